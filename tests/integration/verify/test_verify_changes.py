"""Verification of flows that change their records, between two real brokers: the records on the target are compared with
what the chain makes of those of the source."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from mm2.cli.common.flow import ConfiguredFlow
from mm2.cli.mm2 import main
from mm2.cli.show.verify import changes_of
from mm2.codec import encode
from mm2.config.files.properties import load_properties
from mm2.config.mirrormaker import MirrorMakerConfig
from mm2.copy.progress.ledger import LEDGER_CONFIGS, chunk_record, entry_record, ledger_topic
from mm2.copy.progress.segments import Gap, Segment, SegmentChunk
from mm2.copy.progress.session import LedgerEntry, Mark
from mm2.kafka.records.record import Record
from mm2.kafka.structs import TopicPartition
from mm2.sandbox.kafka import LocalKafka
from mm2.sandbox.ports import free_ports
from mm2.verify.comparing.findings import DifferenceKind
from mm2.verify.driver import Verifier
from mm2.verify.planning import Certainty, VerifyRequest
from mm2.verify.report import PartitionReport, Verdict
from mm2.verify.verification import Verification
from tests.integration.copy_flow import create, end_offset
from tests.integration.java_mirror import JavaMirrorProcess
from tests.integration.mirror_process import ROOT, MirrorProcess, partitions_of
from tests.integration.record_chains import STAMP, TOMBSTONE, chain, has, when
from tests.integration.verified_flow import CODECS, command, file_of, flow_of, is_copied, one_of, write
from tests.support.waiting import PATIENCE

COUNT: Final = 100
#: Inserts a header, drops tombstones, and fails for records with the header ``bad``.
CHAIN: Final = chain(
    STAMP,
    ("Filter", when(TOMBSTONE)),
    ("ExtractField$Value", {"field": "x", **when(has("bad"))}),
    given={
        "header.converter": "org.apache.kafka.connect.storage.SimpleHeaderConverter",
        "errors.tolerance": "all",
    },
)


def given(count: int = COUNT) -> list[Record]:
    """Records of a source; every fifth is a tombstone, and numbers 33 and 34 have the header ``bad``."""
    return [
        Record(
            b"k%d" % number,
            None if number % 5 == 0 else b"value %d" % number,
            (("n", b"%d" % number), *([("bad", b"")] if number in (33, 34) else [])),
            1_700_000_000_000 + number,
        )
        for number in range(count)
    ]


def changed(one: Record) -> Record:
    """What the chain makes of a record that it keeps: SimpleHeaderConverter writes bytes as base64."""
    headers = [(name, base64.b64encode(content or b"")) for name, content in one.headers]
    return one._replace(headers=(*headers, ("origin", b"east")))


def is_kept(number: int) -> bool:
    return number % 5 != 0 and number not in (33, 34)


def verification_of(file: Path, unique: str, verifier: Verifier) -> Verification:
    flow = flow_of(file, unique)
    changes = changes_of(flow, MirrorMakerConfig(load_properties(file)))
    assert changes is not None
    return Verification(flow.props, verifier, changes=changes, patience_s=120)


def chained(unique: str, chain: Mapping[str, str] = CHAIN) -> dict[str, str]:
    """The chain with the prefix of the flow."""
    return {f"{unique}-a->{unique}-b.{key}": value for key, value in chain.items()}


# -- seeded differences ------------------------------------------------------------------------------------------------


@dataclass
class Copied:
    """A partition's records on the target, and the source offsets that the ledger has for them."""

    target: list[Record] = field(default_factory=list)
    copied: list[int] = field(default_factory=list)  # source offsets, by target offset

    @classmethod
    def well(cls) -> Copied:
        numbers = [number for number in range(COUNT) if is_kept(number)]
        source = given()
        return cls([changed(source[number]) for number in numbers], numbers)

    def at(self, number: int) -> int:
        """The target offset of a source record."""
        return self.copied.index(number)

    def chunk(self) -> SegmentChunk:
        """The ledger's segments, and a gap for each other source offset."""
        chunk = SegmentChunk(0)
        for target, source in enumerate(self.copied):
            chunk.segments.append(Segment(source, target, 1))
        reasons = {33: "skipped", 34: "skipped"}
        others = [number for number in range(COUNT) if number not in self.copied]
        chunk.gaps += [Gap(number, number + 1, reasons.get(number, "filtered")) for number in others]
        return chunk


def _value(one: Copied) -> None:
    place = one.at(41)
    one.target[place] = one.target[place]._replace(value=b"tampered")


def _header(one: Copied) -> None:
    place = one.at(42)
    one.target[place] = one.target[place]._replace(headers=(*one.target[place].headers[:-1], ("origin", b"west")))


def _unchanged(one: Copied) -> None:
    one.target[one.at(43)] = given()[43]


def _timestamp(one: Copied) -> None:
    place = one.at(44)
    one.target[place] = one.target[place]._replace(timestamp=5)


def _not_dropped(one: Copied) -> None:
    """The flow has copied a tombstone."""
    place = one.at(46)
    one.target.insert(place, changed(given()[45]))
    one.copied.insert(place, 45)


def _foreign(one: Copied) -> None:
    """Another producer has written the tombstone, of which the ledger knows that it was dropped."""
    one.target.insert(one.at(51), changed(given()[50]))


def _missing(one: Copied) -> None:
    del one.target[one.at(61)]


def _dropped(one: Copied) -> None:
    """The flow has dropped a record that the chain keeps, and the ledger has it as filtered."""
    place = one.at(62)
    del one.target[place]
    del one.copied[place]


def _clean(one: Copied) -> None:
    return


#: Each partition's difference: kind, source offset, and number of records that it displaces.
SEEDED: Final[tuple[tuple[Callable[[Copied], None], str, int | None, int], ...]] = (
    (_clean, "", None, 0),
    (_value, "altered value", 41, 0),
    (_header, "altered headers", 42, 0),
    (_unchanged, "altered headers", 43, 0),
    (_timestamp, "altered timestamp", 44, 0),
    (_not_dropped, "extra", None, 0),
    (_foreign, "extra", None, 40),
    (_missing, "missing", 61, 31),
    (_dropped, "missing", 62, 0),
)


def seed(kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str) -> str:
    """Create both topics, with one difference in each partition but the first, and a ledger."""
    topic, remote = f"{unique}.t", f"X.{unique}"
    create(kafka_a, topic, len(SEEDED), retention__ms="-1")
    create(kafka_b, remote, len(SEEDED), retention__ms="-1")
    configs: dict[str, Any] = {key.replace(".", "__"): value for key, value in LEDGER_CONFIGS.items()}
    create(kafka_b, ledger_topic(f"{unique}-a"), **configs)
    rows: list[Record] = []
    for partition, (edit, *_) in enumerate(SEEDED):
        one = Copied.well()
        edit(one)
        write(kafka_a, topic, given(), partition, codec=CODECS[partition % 5])
        write(kafka_b, remote, one.target, partition)
        mark = Mark(COUNT, max(len(one.copied), len(one.target)), len(one.copied))
        entry = LedgerEntry(topic, partition, remote, mark, COUNT, gaps={"filtered": 1_000})
        rows += [chunk_record(entry.source, one.chunk()), entry_record(entry)]
    write(kafka_b, ledger_topic(f"{unique}-a"), rows)
    return topic


def check_seeded(row: PartitionReport) -> None:
    _, kind, source, displaced = SEEDED[row.partition]
    expected = {kind: 1} if kind else {}
    if displaced:
        expected["displaced"] = displaced
    assert row.counts == expected, encode(row)
    assert row.explained == {"filtered": 20, "skipped": 2}, "of the records, not of the ledger"
    if kind:
        (found,) = [one for one in row.differences if one.kind != DifferenceKind.DISPLACED]
        assert (found.kind, found.source) == (kind, source), encode(row)


@pytest.mark.slow
def test_differences_from_what_the_chain_makes_of_the_source_are_reported(
    verifier: Verifier, kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, tmp_path: Path
) -> None:
    """Given a chain that inserts a header and drops tombstones; when records on the target are altered, missing, unchanged,
    or had to be dropped; validates that each is reported, and that dropped ones are expected to be absent.
    """
    file = file_of(kafka_a, kafka_b, unique, tmp_path, **chained(unique))
    topic = seed(kafka_a, kafka_b, unique)
    report = verification_of(file, unique, verifier).run(VerifyRequest())
    assert report.changed_by == ("transforms", "header.converter")
    rows = [one_of(report, topic, partition) for partition in range(len(SEEDED))]
    for row in rows:
        check_seeded(row)
    assert (rows[0].verdict, rows[0].records, rows[0].certainty) == (Verdict.EQUAL, 78, Certainty.LEDGER)
    (undropped,) = rows[5].differences
    assert (undropped.target, undropped.detail) == (
        Copied.well().at(46),
        "the flow drops the record that the ledger has there (filtered)",
    )
    assert [one.target for one in rows[6].differences if one.kind == "extra"] == [Copied.well().at(51)]


def test_a_record_that_cannot_be_changed_is_reported_as_not_comparable(
    verifier: Verifier, kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, tmp_path: Path
) -> None:
    """Given records that were skipped; when errors.tolerance is none; validates that the verdict names the first one."""
    file = file_of(kafka_a, kafka_b, unique, tmp_path, **chained(unique, {**CHAIN, "errors.tolerance": "none"}))
    topic = seed(kafka_a, kafka_b, unique)
    verification = verification_of(file, unique, verifier)
    report = verification.run(VerifyRequest(offsets={TopicPartition(topic, 0): (None, None)}))
    (row,) = report.partitions
    assert (report.verdict, row.verdict) == (Verdict.INCOMPLETE, Verdict.INCOMPLETE)
    assert row.error.startswith(f"{topic}-0: transformation t2 ")
    assert "failed for the record at offset 33: " in row.error
    assert row.error.endswith("(errors.tolerance is none)")
    before = verification.run(VerifyRequest(offsets={TopicPartition(topic, 0): (0, 33)}))
    assert (before.verdict, before.explained) == (Verdict.EQUAL, {"filtered": 7})


# -- running flows -----------------------------------------------------------------------------------------------------


def gaps_of(file: Path, flow: ConfiguredFlow, capsys: pytest.CaptureFixture[str]) -> Any:
    capsys.readouterr()
    main(["gaps", str(file), str(flow.pair), "--json"])
    return json.loads(capsys.readouterr().out)["totals"]


@pytest.mark.slow
@pytest.mark.timeout(int(600 * PATIENCE))
@pytest.mark.parametrize("exactly_once", ["disabled", "enabled"])
def test_a_running_flow_with_a_chain_is_equal(
    verifier: Verifier,
    kafka_a: LocalKafka,
    kafka_b: LocalKafka,
    unique: str,
    tmp_path: Path,
    exactly_once: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Given a flow with a chain; when everything, and what is copied later, is compared; validates that both are equal,
    that dropped records count as in `mm2 gaps`, and that a tombstone of another producer is found.
    """
    topic = f"{unique}.t"
    create(kafka_a, topic, len(CODECS), retention__ms="-1")
    for partition, codec in enumerate(CODECS):
        write(kafka_a, topic, given(1_000), partition, codec=codec)
    (port,) = free_ports(1)
    more = {
        f"{unique}-b.exactly__once__source__support": exactly_once,
        "dedicated__mode__enable__internal__rest": "true",
        "listeners": f"http://127.0.0.1:{port}",
    }
    file = file_of(kafka_a, kafka_b, unique, tmp_path, **more, **chained(unique))
    flow = flow_of(file, unique)
    process = MirrorProcess(file, tmp_path / "log")
    verification = verification_of(file, unique, verifier)
    try:
        ends = {TopicPartition(topic, index): 1_000 for index in range(len(CODECS))}
        process.eventually(lambda: is_copied(flow, kafka_b, ends), 240)
        report = verification.run(VerifyRequest())
        verification.store_verified(report)
        assert report.verdict is Verdict.EQUAL, encode(report)
        assert {row.certainty for row in report.partitions} == {Certainty.LEDGER}
        assert not [row.notes for row in report.partitions if row.notes], "it was copied with the configured chain"
        assert (report.records, report.not_repeatable) == (len(CODECS) * 798, "")
        expected = {"filtered": len(CODECS) * 200, "skipped": len(CODECS) * 2}
        assert {reason: report.explained.get(reason) for reason in expected} == expected
        gaps = gaps_of(file, flow, capsys)
        assert {reason: gaps.get(reason) for reason in expected} == expected

        remote = f"{unique}-a.{topic}"
        write(kafka_b, remote, [changed(given()[0])])
        write(kafka_a, topic, given(10))
        process.eventually(lambda: is_copied(flow, kafka_b, {TopicPartition(topic, 0): 1_010}), 120)
        found = one_of(verification.run(VerifyRequest(), incremental=True), topic)
        assert (found.records, found.counts, found.explained) == (8, {"extra": 1}, {"filtered": 2}), encode(found)

        altered = file_of(
            kafka_a, kafka_b, unique, tmp_path, **more, **chained(unique, {**CHAIN, "transforms.t0.header": "other"})
        )
        row = one_of(verification_of(altered, unique, verifier).run(VerifyRequest()), topic, 1)
        assert row.counts == {"altered headers": 798}
        if exactly_once == "disabled":
            (note,) = row.notes
            assert note.startswith("the records from source offset 0 on were copied with other transformations")
    finally:
        process.clean_up()


@pytest.mark.slow
@pytest.mark.timeout(int(600 * PATIENCE))
def test_a_copy_by_java_with_a_chain_is_equal(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, tmp_path: Path
) -> None:
    """Given Java's MirrorMaker with the same chain; when the command compares its copy by content; validates that it is
    equal, and that a record of another producer is found.
    """
    topic, remote = f"{unique}.t", f"{unique}-a.{unique}.t"
    create(kafka_a, topic, retention__ms="-1")
    write(kafka_a, topic, given())
    file = file_of(kafka_a, kafka_b, unique, tmp_path, **chained(unique))
    process = JavaMirrorProcess(file, tmp_path / "java.log", f"{unique}-b")
    try:
        process.eventually(lambda: partitions_of(kafka_b, remote) == 1 and end_offset(kafka_b, remote) == 78, 240)
        code, report = ran(file, unique)
        assert (code, report["verdict"], report["records"]) == (0, "equal", 78), report
        assert report["explained"] == {"filtered": 20, "skipped": 2}
        assert report["changed_by"] == ["transforms", "header.converter"]
        write(kafka_b, remote, [changed(given()[0])])
        write(kafka_a, topic, given(10))
        process.eventually(lambda: end_offset(kafka_b, remote) == 78 + 1 + 8, 120)
        code, report = ran(file, unique)
        assert (code, report["differences"]) == (1, {"extra": 1}), report
    finally:
        process.clean_up()


def ran(file: Path, unique: str) -> tuple[int, dict[str, Any]]:
    """The exit code and report of the command."""
    done = subprocess.run(
        command(file, unique, "--json", "--patience", "300"),
        capture_output=True,
        text=True,
        timeout=600 * PATIENCE,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)
