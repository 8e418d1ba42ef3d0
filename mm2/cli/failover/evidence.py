"""Arguments and output of `mm2 failover`, `failback` and `promote`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, TextIO

from mm2.cli.common.flow import (
    EXIT_NOT_WELL,
    EXIT_WELL,
    CommandError,
    add_topics,
    pair_of,
    pattern_argument,
    read_config,
)
from mm2.cli.common.output import is_wide, write_document
from mm2.cli.common.tables import ALL_ROWS, COLLAPSED_ABOVE, MOST_ROWS, TableRow, number, short_table, table
from mm2.config.mirrormaker import SourceAndTarget
from mm2.copy.states import PartitionState
from mm2.evidence import LEFT, MISSING_ZERO, counted, utc_time
from mm2.failover.evidence import (
    DONE,
    FailoverReport,
    GroupEvidence,
    Outcome,
    PartitionEvidence,
    missing_records,
)
from mm2.failover.groups import Choice
from mm2.failover.leaving import Confirm
from mm2.failover.sides import FlowConfig, Refused

EXIT_CODES = "Exit code: 0 done and verified; 1 done except for the listed problems; 2 nothing was changed, for the reason shown."

_UNSEEN_SHOWN: Final = 5
#: How to see all rows of a report; what the command has done is not repeated.
_ALL: Final = f"--dry-run {ALL_ROWS}"
#: States of partitions that copy, or stopped because of a promotion.
_UNBLOCKED: Final = frozenset({"", PartitionState.PAUSED})
_WORST_FIRST: Final = (Outcome.FAILED, Outcome.UNTRANSLATED, Outcome.IN_USE)


def add_leave_behind(parser: Any) -> None:
    """Add the argument of commands that leave a source."""
    parser.add_argument(
        "--leave-behind",
        action="store_true",
        help="continue although the source is available and has records that are not on the target",
    )


def add_yes(parser: Any) -> None:
    """Add the argument that confirms in advance."""
    parser.add_argument(
        "--yes",
        action="store_true",
        help="do not ask for a confirmation on the terminal when the source may be available",
    )


def confirmation(options: Any) -> Confirm:
    """Asks on the terminal whether to leave a source that may be running, unless ``--yes`` is given."""

    def confirm(reason: str, dry_run: Callable[[], FailoverReport]) -> None:
        """Raises Refused if it is not confirmed."""
        if options.yes:
            return
        preview = dry_run()
        source = preview.flow.partition("->")[0]
        if not sys.stdin.isatty():
            raise Refused(
                f"{reason}, and there is no terminal to confirm on: see what would be done with --dry-run, then use --yes."
            )
        # Standard output has the report of what was done.
        write_report(sys.stderr, preview, wide=is_wide(options))
        sys.stderr.write(
            f"\n{reason}. {preview.verb} {preview.flow} stops copying these topics. Write {source} to continue: "
        )
        sys.stderr.flush()
        if sys.stdin.readline().strip() != source:
            raise Refused("Not confirmed.")

    return confirm


def add_choice(parser: Any, *, groups: bool) -> None:
    """Add the arguments that select a part of a flow, and the output format."""
    parser.set_defaults(code_in_doubt=EXIT_NOT_WELL)
    add_topics(parser)
    if groups:
        parser.add_argument(
            "--group", metavar="PATTERNS", help="only these consumer groups: Java patterns, with commas between them"
        )
    parser.add_argument("--dry-run", action="store_true", help="show the state and the actions, and change nothing")


def choice_of(options: Any) -> Choice:
    """The selected topics and groups. Raises ConfigException for an invalid pattern, CommandError for an empty list."""
    return Choice(*(pattern_argument(name, getattr(options, name, None)) for name in ("topic", "group")))


def flow_of(options: Any, *, reverse: bool = False) -> FlowConfig:
    """The named flow, or the one in the opposite direction. Raises CommandError or ConfigException."""
    config = read_config(options.config)
    pair = pair_of(config, options.config, options.flow)
    return FlowConfig.of(config, SourceAndTarget(pair.target, pair.source) if reverse else pair)


def carried_out(verb: Callable[[], FailoverReport], options: Any) -> int:
    """Run the command and print its report; returns the exit code. Raises CommandError if nothing was changed."""
    try:
        report = verb()
    except Refused as refusal:
        raise CommandError(str(refusal)) from refusal
    if options.json:
        write_document(options, report)
    else:
        write_report(sys.stdout, report, wide=is_wide(options))
    return EXIT_WELL if report.is_well else EXIT_NOT_WELL


def write_report(out: TextIO, report: FailoverReport, *, wide: bool = False) -> None:
    """Print a report for people. ``wide``: with one line for each partition, however many there are."""
    source, _, target = report.flow.partition("->")
    out.write(f"{report.verb} {report.flow}{', dry run: nothing is changed' if report.dry_run else ''}\n")
    if report.source_error:
        out.write(f"{source} does not answer: {report.source_error}\n")
        silent = (
            "unknown"
            if report.seconds_at_risk is None
            else f"{_time(report.last_contact_ms)}, {report.seconds_at_risk:,.1f} s ago"
        )
        out.write(
            f"last contact with {source} on {target}: {silent}; records that {source} received since then are not known\n"
        )
    if report.partitions:
        _write_partitions(out, report, source, target, wide=wide)
    if report.groups:
        out.write("\n")
        header = ("GROUP", "PARTITION", f"ON {source}", f"ON {target}", "BEFORE", "AFTER", "FOUND BY", "OUTCOME")
        groups = [TableRow(_group(one), _group_urgency(one)) for one in report.groups]
        fine = sorted({str(one.outcome) for one in report.groups if one.outcome in DONE})
        _write_rows(out, header, groups, "offsets of groups", " or ".join(fine), left=2, wide=wide)
    if report.starts:
        out.write("\n")
        starts = [
            TableRow(
                (
                    f"{one.topic}-{one.partition}",
                    number(one.offset),
                    number(one.before),
                    "yes" if one.verified else "no",
                ),
                None if one.verified else (0,),
            )
            for one in report.starts
        ]
        columns = (f"{target}->{source} BEGINS WITH", "AT", "BEFORE", "READ BACK")
        _write_rows(out, columns, starts, "partitions", "read back", wide=wide)
    out.write("\n")
    for heading, sentences in (
        ("note", report.notes),
        ("ACL", report.acls),
        ("done", report.done),
        ("NOT DONE", report.problems),
        ("next", report.advice),
    ):
        shown = sentences if wide else sentences[:MOST_ROWS]
        out.writelines(f"{heading}: {sentence}\n" for sentence in shown)
        if len(shown) < len(sentences):
            out.write(f"{heading}: and {number(len(sentences) - len(shown))} more: {_ALL}\n")


def _write_rows(
    out: TextIO, header: tuple[str, ...], rows: Sequence[TableRow], things: str, well: str, *, left: int = 1, wide: bool
) -> None:
    if wide:
        table(out, header, [row.cells for row in rows], left=left)
    else:
        short_table(out, header, rows, things=things, well=well, hint=_ALL, left=left)


def _write_partitions(out: TextIO, report: FailoverReport, source: str, target: str, *, wide: bool) -> None:
    out.write("\n")
    is_collapsed = not wide and len(report.partitions) > COLLAPSED_ABOVE
    if is_collapsed:
        _write_topics(out, report)
    else:
        _write_each(out, report, source, target)
    out.write(f"{counted(len(report.partitions), 'partition')}, on {source} only: {_left(report, source, target)}\n")
    ranges = [
        f"  {one.source}: {_range(one.next_offset, one.end)}{_of_these(one)}\n"
        for one in report.partitions
        if one.uncopied and one.end is not None and one.next_offset < one.end
    ]
    shown = ranges[:COLLAPSED_ABOVE] if is_collapsed else ranges
    out.writelines(shown)
    if len(shown) < len(ranges):
        out.write(f"  and ranges of {counted(len(ranges) - len(shown), 'more partition')}: {_ALL}\n")


def _write_topics(out: TextIO, report: FailoverReport) -> None:
    """One line for each topic, as far as it needs attention."""
    topics: dict[str, list[PartitionEvidence]] = {}
    for one in report.partitions:
        topics.setdefault(one.topic, []).append(one)
    rows = [
        TableRow(
            (
                topic,
                number(len(rows)),
                number(sum(bool(one.missing.least) for one in rows)),
                str(missing_records(rows)),
                number(None if any(one.others is None for one in rows) else sum(one.others or 0 for one in rows)),
                rows[0].remote_topic,
                ", ".join(
                    f"{state} {number(count)}"
                    for state, count in sorted(Counter(one.state for one in rows).items())
                    if state
                ),
            ),
            _urgency(rows),
        )
        for topic, rows in topics.items()
    ]
    header = ("TOPIC", "PARTITIONS", "WITH MISSING", "MISSING", "BY OTHERS", "REMOTE", "")
    # Of a source that does not answer, no number is exact.
    well = MISSING_ZERO(is_known=not report.source_error)
    short_table(out, header, rows, things="topics", well=well, hint=_ALL)


def _urgency(partitions: Sequence[PartitionEvidence]) -> tuple[float, ...] | None:
    """Topics with missing records first, the most first, then those of which something is not known or blocked.

    None: no record is known to be missing, and no partition is in an error state. A promotion pauses all partitions.
    """
    missing = missing_records(partitions)
    unknown = sum((one.end is None and not one.is_gone) or bool(one.target_error) for one in partitions)
    blocked = sum(one.state not in _UNBLOCKED for one in partitions)
    if not (missing or unknown or blocked):
        return None
    return -missing.least, -(missing.most or 0), -unknown, -blocked


def _group_urgency(one: GroupEvidence) -> tuple[float, ...] | None:
    return None if one.outcome in DONE else (_WORST_FIRST.index(one.outcome),)


def _write_each(out: TextIO, report: FailoverReport, source: str, target: str) -> None:
    header = (
        "PARTITION",
        "COPIED UP TO",
        f"END ON {source}",
        "MISSING",
        f"ENDS ON {target}",
        "BY OTHERS",
        "REMOTE",
        "",
    )
    table(out, header, [_partition(one) for one in report.partitions])


def _of_these(one: PartitionEvidence) -> str:
    """How many records of the range would be copied, if the flow changes or drops records."""
    if not one.is_changed:
        is_each = one.tail is None or one.missing_after.exact == one.uncopied
        return (
            ""
            if is_each
            else f", {one.missing_after.of('record')} to be copied{f': {one.tail_note}' if one.tail_note else ''}"
        )
    if one.dropped is not None:
        return f", {one.missing_after.of('record')} to be copied and {one.dropped:,} to be dropped"
    why = one.tail_note or "which of them the transformations would drop is not known"
    return f", {one.missing_after.of('record')} to be copied: {why}"


def _left(report: FailoverReport, source: str, target: str) -> str:
    """The records that are on the source only, and whether this is the current state or that of the last contact."""
    missing, unknown_ends = report.missing, report.unknown_ends
    text = LEFT(records=missing.of("record") if missing.least or not unknown_ends else counted(0, "record"))
    if report.source_error:
        text = LEFT(is_known=False, records=counted(missing.least, "record"), target=target, source=source)
    if unknown_ends:
        shown = ", ".join(map(str, unknown_ends[:_UNSEEN_SHOWN]))
        more = f" and {len(unknown_ends) - _UNSEEN_SHOWN} more" if len(unknown_ends) > _UNSEEN_SHOWN else ""
        text += f"; not counted, because their end offsets on {source} are unknown: {shown}{more}"
    return text


def _partition(one: PartitionEvidence) -> tuple[str, ...]:
    end = number(one.end)
    if one.end is not None and not one.is_end_current:
        end += " at an unknown time" if one.end_ms is None else f" at {_time(one.end_ms)}"
    log = "" if one.other_log is None or one.state else one.other_log.reason
    log = "deleted on the source" if one.is_gone else log
    state = " ".join(part for part in (one.state, one.target_error or one.note, log, one.end_error) if part)
    return (
        str(one.source),
        number(one.copied),
        end,
        str(one.missing) if one.uncopied is not None else number(None),
        number(one.target_offset),
        number(one.others),
        str(one.target),
        state,
    )


def _group(one: GroupEvidence) -> tuple[str, ...]:
    offset = number(one.source_offset) + ("" if one.offset_source == "source" else f" ({one.offset_source})")
    outcome = str(one.outcome) + (f": {one.reason}" if one.reason else "")
    partition = f"{one.remote_topic}-{one.partition}"
    return (
        one.group,
        partition,
        offset,
        number(one.translated),
        number(one.before),
        number(one.after),
        str(one.found),
        outcome,
    )


def _range(first: int, end: int | None) -> str:
    last = (end or 0) - 1
    return f"offset {first}" if first == last else f"offsets {first}-{last}"


def _time(at_ms: int | None) -> str:
    return "-" if at_ms is None else utc_time(at_ms)
