"""`mm2 verify`: compare the records on the target with those on the source. See docs/how-to/verify.md."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TextIO

from mm2.cli.common.flow import (
    EXIT_ERROR,
    EXIT_NOT_WELL,
    EXIT_WELL,
    CommandError,
    ConfiguredFlow,
    add_flow,
    read_config,
)
from mm2.cli.common.output import write_document
from mm2.cli.common.tables import MOST_ROWS, TableRow, number, short_table
from mm2.cli.common.terminal import with_controls
from mm2.cli.common.verbs import examples, seconds
from mm2.cli.signals import StopRequest, stop_at_signals
from mm2.config.configdef import ConfigException
from mm2.config.keys.mirror_keys import SOURCE_CONNECTOR
from mm2.config.mirrormaker import MirrorMakerConfig
from mm2.connect.api import ConnectError
from mm2.copy.driver.jvm import SparkUnavailable
from mm2.copy.spec import ChangesSpec
from mm2.evidence import VERIFIED, counted, utc_time
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.structs import TopicPartition
from mm2.mirror.source.record_changes import changes_spec
from mm2.mirror.source.start_from import parse_start_from
from mm2.verify.driver import Verifier
from mm2.verify.page import page
from mm2.verify.planning import NotInFlow, VerifyRequest
from mm2.verify.report import PartitionReport, Verdict, VerifyReport
from mm2.verify.verification import Progress, Verification

_CODES: Final = {
    Verdict.EQUAL: EXIT_WELL,
    Verdict.DIFFERENT: EXIT_NOT_WELL,
    Verdict.INCOMPLETE: EXIT_ERROR,
}
_OFFSETS: Final = re.compile(r"(?P<topic>[A-Za-z0-9._-]+)-(?P<partition>\d+)=(?P<first>\d*)\.\.(?P<last>\d*)")
_SIZE: Final = re.compile(r"(\d+)\s*([kKMG]?)")
_UNITS: Final = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9}
_SHOWN: Final = 20
_TELL_EVERY_S: Final = 1.0
#: How to see all partitions.
_ALL: Final = "--json or --html FILE"
_WORST_FIRST: Final = (Verdict.DIFFERENT, Verdict.INCOMPLETE, Verdict.EQUAL)


def add(verbs: Any) -> None:
    """Declare the command and its arguments."""
    parser = verbs.add_parser(
        "verify",
        help="compare source and target of a flow, record by record",
        description="Compares source and target of a flow: every record must be on the target once, in order, with its key, "
        "value, headers and timestamp, as the flow's transformations and converters make it of the source's record. "
        "Other differences are explained by the flow's ledger, compaction or retention, or reported. Reads only what was copied before it started, so the flow may be running. "
        "Exit code: 0 equal, 1 they differ, 2 some of it could not be compared, 130 interrupted by Ctrl-C. With --continuous, "
        "Ctrl-C is the usual end: 1 if differences were ever found, 2 if the last comparison before it was not complete, else 0.",
        epilog=examples(
            ("everything", "mm2 verify mm2.properties 'A->B'"),
            ("one topic of last night", "mm2 verify mm2.properties 'A->B' --topic orders --from 2026-11-21T20:00Z"),
            ("offsets of one partition", "mm2 verify mm2.properties 'A->B' --offsets orders-0=1000..1999"),
            ("continuously, at most 20 MB/s", "mm2 verify mm2.properties 'A->B' --continuous --max-bytes-per-sec 20M"),
        ),
    )
    add_flow(parser)
    parser.add_argument(
        "--topic", metavar="T", action="append", default=[], help="only this topic of the source; may be repeated"
    )
    parser.add_argument(
        "--from", dest="since", metavar="TIME", help="from the first record that is not older (ISO 8601 or ms)"
    )
    parser.add_argument("--to", dest="until", metavar="TIME", help="to before the first record that is not older")
    parser.add_argument(
        "--offsets",
        metavar="TOPIC-PARTITION=FIRST..LAST",
        action="append",
        default=[],
        help="only these source offsets, both ends included; either may be left out; may be repeated",
    )
    parser.add_argument("--html", metavar="FILE", type=Path, help="also write the report as an HTML page")
    parser.add_argument(
        "--max-bytes-per-sec", metavar="N", default="0", help="limit for both sides together, as in 20M (default: none)"
    )
    parser.add_argument(
        "--parallel",
        metavar="N",
        type=int,
        default=os.cpu_count() or 1,
        help="number of concurrent Spark tasks (default: cores)",
    )
    parser.add_argument(
        "--patience",
        metavar="S",
        type=seconds,
        default=60.0,
        help="seconds to wait for a broker that returns no data (default: 60)",
    )
    parser.add_argument(
        "--record",
        action="store_true",
        help="note in the ledger how far each partition was compared, for status and dashboard",
    )
    parser.add_argument(
        "--continuous",
        action="store_true",
        help="continue with records that are copied later, until stopped; implies --record",
    )
    parser.add_argument(
        "--every",
        metavar="S",
        type=seconds,
        default=60.0,
        help="with --continuous: seconds between two comparisons (default: 60)",
    )
    parser.set_defaults(run=run)


def run(options: Any) -> int:
    """Run the command; returns the exit code. Raises CommandError, ConfigException or KafkaFailure."""
    flow = ConfiguredFlow.of(options.config, options.flow)
    config = read_config(options.config)
    changes = changes_of(flow, config)
    asked = asked_for(options)
    rate = bytes_of(options.max_bytes_per_sec)
    if options.parallel < 1:
        raise CommandError(f"--parallel {options.parallel}: must be at least 1.")
    if (options.continuous or options.record) and not asked.is_everything:
        raise CommandError("--continuous and --record compare whole partitions: omit --from, --to and --offsets.")
    stopping = stop_at_signals()
    verifier = Verifier(config.spark_props(), options.parallel, stopping=stopping)
    try:
        verification = Verification(
            flow.props,
            verifier,
            changes=changes,
            rate=rate,
            patience_s=options.patience,
            offsets_topic=config.worker_config(flow.pair)["offset.storage.topic"],
        )
        if options.continuous:
            return _go_on(options, verification, asked, stopping)
        report = verification.run(asked, _progress(options))
        if stopping.is_set():
            return _interrupted(stopping)
        _publish(options, report)
        if options.record:
            verification.store_verified(report)
        _write_page(options, report)
        return _CODES[report.verdict]
    except SparkUnavailable as error:
        if stopping.is_set():
            return _interrupted(stopping)
        raise CommandError(f"{error}.") from error
    except NotInFlow as error:
        raise CommandError(str(error)) from error
    finally:
        verifier.stop()


def _interrupted(stopping: StopRequest) -> int:
    """Report that nothing was compared completely; returns the exit code."""
    sys.stderr.write("mm2: interrupted\n")
    return stopping.exit_code


def changes_of(flow: ConfiguredFlow, config: MirrorMakerConfig) -> ChangesSpec | None:
    """What changes the records of the flow. Raises ConfigException for what cannot be used, as the flow would."""
    try:
        connector = SOURCE_CONNECTOR.rpartition(".")[2]
        return changes_spec(flow.props, config.worker_config(flow.pair), connector=connector, task=0)
    except (ConfigException, ConnectError) as error:
        raise ConfigException(f"Flow {flow.pair}: {error}") from error


def asked_for(options: Any) -> VerifyRequest:
    """The selection on the command line. Raises CommandError or ConfigException."""
    offsets: dict[TopicPartition, tuple[int | None, int | None]] = {}
    for text in options.offsets:
        found = _OFFSETS.fullmatch(text.strip())
        if found is None:
            raise CommandError(f"--offsets {text}: write TOPIC-PARTITION=FIRST..LAST, as in orders-0=1000..1999.")
        first, last = found["first"], found["last"]
        if first and last and int(last) < int(first):
            raise CommandError(f"--offsets {text}: the last offset is below the first.")
        place = TopicPartition(found["topic"], int(found["partition"]))
        if place in offsets:
            raise CommandError(f"--offsets {text}: {place} is listed twice.")
        offsets[place] = (int(first) if first else None, int(last) + 1 if last else None)
    if offsets and options.topic:
        raise CommandError("--offsets contains the topics: omit --topic.")
    since, until = _time("--from", options.since), _time("--to", options.until)
    if offsets and (since is not None or until is not None):
        raise CommandError("--offsets cannot be combined with --from or --to.")
    if since is not None and until is not None and until <= since:
        raise CommandError(f"--to {options.until} is not after --from {options.since}.")
    return VerifyRequest(frozenset(options.topic), since, until, offsets)


def bytes_of(text: str) -> float:
    """Parse ``20M`` to 20,000,000. Raises CommandError."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise CommandError(f"--max-bytes-per-sec {text}: write a number of bytes, as in 500k, 20M or 1G.")
    return int(found[1]) * _UNITS[found[2]]


def _time(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        found = None if text.strip().startswith("file:") else parse_start_from(text).timestamp_ms
    except ConfigException:
        found = None
    if found is None:
        raise CommandError(
            f"{option} {text}: neither a time as in 2026-11-20T15:00:00Z (ISO 8601) nor milliseconds since 1970."
        )
    return found


def _go_on(options: Any, verification: Verification, asked: VerifyRequest, stopping: StopRequest) -> int:
    """Compare newly copied records repeatedly; returns the exit code: differences are never forgotten, errors may be temporary."""
    differ, last, quiet = False, EXIT_ERROR, ""

    def code() -> int:
        return EXIT_NOT_WELL if differ else last

    while True:
        try:
            report = verification.run(asked, incremental=True)
            if stopping.is_set():
                return code()
            verification.store_verified(report)
        except KafkaFailure as failure:
            # The output shows that nothing is verified meanwhile.
            if str(failure) != quiet:
                sys.stderr.write(f"mm2: {failure}\n")
            quiet, last = str(failure), EXIT_ERROR
        else:
            quiet, last = "", _CODES[report.verdict]
            if report.records or report.verdict is not Verdict.EQUAL:
                _publish(options, report, brief=True)
                _write_page(options, report)
            differ = differ or bool(report.counts)
        if stopping.wait(options.every):
            return code()


def _write_page(options: Any, report: VerifyReport) -> None:
    """Write the HTML page, last: a comparison may have taken hours. Raises CommandError."""
    if options.html is not None:
        try:
            options.html.write_text(page(report), encoding="utf-8")
        except OSError as error:
            raise CommandError(f"--html {options.html}: {error.strerror}.") from error


def _publish(options: Any, report: VerifyReport, *, brief: bool = False) -> None:
    if options.json:
        write_document(options, report, indent=None if brief else 2, is_one_of_many=brief)
    else:
        write_report(sys.stdout, report, brief=brief)
    sys.stdout.flush()


def write_report(out: TextIO, report: VerifyReport, *, brief: bool = False) -> None:
    """Print a report for people. ``brief``: only what is not equal."""
    shown = [row for row in report.partitions if not brief or row.verdict is not Verdict.EQUAL]
    shown.sort(key=lambda row: _WORST_FIRST.index(row.verdict))
    header = ("PARTITION", "SOURCE OFFSETS", "RECORDS", "DIFFERENCES", "VERDICT")
    rows = [
        TableRow(
            (
                str(row.source),
                f"{row.first}-{row.after - 1}" if row.after > row.first else "none",
                number(row.records),
                number(sum(row.counts.values())),
                str(row.verdict) + (f", {row.error}" if row.error else ""),
            ),
            _urgency(row),
        )
        for row in shown
    ]
    if rows:
        short_table(out, header, rows, things="partitions", well="equal", hint=_ALL)
    for row in shown[:MOST_ROWS]:
        _write_details(out, row)
    if left := sum(bool(row.notes or row.counts or row.is_uncertain) for row in shown[MOST_ROWS:]):
        out.write(f"details of {number(left)} more partitions: {_ALL}\n")
    if report.changed_by and not brief:
        out.write(f"The source's records were changed by {', '.join(report.changed_by)} before they were compared.\n")
    if report.not_repeatable and not brief:
        out.write(f"Differences may be due to this: {report.not_repeatable}.\n")
    took = max(report.seconds, 0.001)
    out.write(
        f"{report.flow} at {utc_time(report.ended_ms)}: {VERIFIED(is_known=report.has_compared, verdict=report.verdict)}. {number(report.records)} records of "
        f"{counted(len(report.partitions), 'partition')} are on both sides"
        f"{_listed(', they differ in ', report.counts)}{_listed('; explained: ', report.explained)}. "
        f"{report.bytes / 1e6:,.1f} MB read in {took:,.1f} s.\n"
    )


def _urgency(row: PartitionReport) -> tuple[float, ...] | None:
    """None: it is equal."""
    return None if row.verdict is Verdict.EQUAL else (_WORST_FIRST.index(row.verdict),)


def _write_details(out: TextIO, row: PartitionReport) -> None:
    if row.is_uncertain:
        out.write(f"{row.source}  not in the ledger: compared by {row.certainty}, which is less certain\n")
    out.writelines(f"{row.source}  {note}\n" for note in row.notes)
    for one in row.differences[:_SHOWN]:
        places = [
            f"{side} offset {offset}" + (f"-{offset + one.records - 1}" if one.records > 1 else "")
            for side, offset in (("source", one.source), ("target", one.target))
            if offset is not None
        ]
        out.write(f"{row.source}  {one.kind}: {', '.join(places)}{f': {one.detail}' if one.detail else ''}\n")
    left = sum(row.counts.values()) - sum(one.records for one in row.differences[:_SHOWN])
    if left > 0:
        out.write(f"{row.source}  and {number(left)} more\n")


def _listed(before: str, counts: Mapping[str, int]) -> str:
    parts = ", ".join(f"{name} {number(count)}" for name, count in sorted(counts.items()))
    return before + parts if parts else ""


def _progress(options: Any) -> Progress:
    """A progress line for a terminal."""
    if options.json or not sys.stderr.isatty():
        return lambda _bytes, _done, _all: None
    began = last = time.monotonic()

    def show(read: int, done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _TELL_EVERY_S or done == total:
            last = now
            speed = read / max(now - began, 0.001) / 1e6
            out = with_controls(sys.stderr)
            out.write(f"\r{done} of {total} ranges, {read / 1e6:,.0f} MB, {speed:,.0f} MB/s ")
            out.write("\n" if done == total else "")
            out.flush()

    return show
