"""Verification between two real brokers: reports each seeded difference, compares contents without a ledger, limits its bandwidth."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mm2.codec import encode
from mm2.copy.progress.ledger import chunk_record, entry_record, ledger_topic
from mm2.copy.progress.segments import Cut, Gap, Segment, SegmentChunk
from mm2.copy.progress.session import LedgerEntry, Lost, Mark, PreviousCommit
from mm2.copy.progress.written_positions import offset_key
from mm2.kafka.records.record import Record
from mm2.kafka.structs import TopicPartition
from mm2.mirror.common.formats import OffsetSync
from mm2.sandbox.kafka import LocalKafka
from mm2.verify.comparing.findings import DifferenceKind, Explained
from mm2.verify.driver import Verifier
from mm2.verify.planning import Certainty, NotInFlow, VerifyRequest
from mm2.verify.report import Verdict
from mm2.verify.verification import Verification
from tests.integration.copy_flow import create, producer_of
from tests.integration.verified_flow import (
    CLEAN,
    COUNT,
    MISSING,
    VALUE,
    check_named,
    file_of,
    flow_of,
    numbered,
    one_of,
    seed,
    write,
)


@pytest.fixture
def file(kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, tmp_path: Path) -> Path:
    return file_of(kafka_a, kafka_b, unique, tmp_path)


def test_every_seeded_difference_is_found_and_named(
    verifier: Verifier, kafka_a: LocalKafka, kafka_b: LocalKafka, file: Path, unique: str
) -> None:
    topic = seed(kafka_a, kafka_b, unique, range(9))
    verification = Verification(flow_of(file, unique).props, verifier, patience_s=120)
    report = verification.run(VerifyRequest())
    assert report.verdict is Verdict.DIFFERENT
    check_named(encode(report), topic)
    clean = one_of(report, topic, CLEAN)
    assert (clean.verdict, clean.records, clean.certainty) == (Verdict.EQUAL, COUNT, Certainty.LEDGER)
    part = verification.run(VerifyRequest(offsets={TopicPartition(topic, VALUE): (91, 150)}))
    (row,) = part.partitions
    assert (row.verdict, row.records) == (Verdict.EQUAL, 59), "what was not asked for is not compared"
    base = numbered(1)[0].timestamp or 0
    times = verification.run(VerifyRequest(from_ms=base + 85, to_ms=base + 95))
    assert {row.partition for row in times.partitions if row.counts} == {MISSING, VALUE}
    # A misspelled topic name leaves nothing to compare, which must not count as equal.
    mistyped, beyond = topic + "x", TopicPartition(topic, 99)
    for asked, name in (
        (VerifyRequest(frozenset({topic, mistyped})), mistyped),
        (VerifyRequest(offsets={beyond: (0, 9)}), str(beyond)),
    ):
        with pytest.raises(NotInFlow, match=re.escape(f"{unique}-a->{unique}-b does not copy {name} from ")):
            verification.run(asked)


@pytest.mark.parametrize("committed", [150, COUNT])
def test_a_transaction_that_was_aborted_after_its_ledger_entry_is_not_compared(
    verifier: Verifier, kafka_a: LocalKafka, kafka_b: LocalKafka, file: Path, unique: str, committed: int
) -> None:
    """The flow has died in its last transaction (exactly-once), and the coordinator has ended it since."""
    topic, remote, offsets = f"{unique}.t", f"X.{unique}", f"{unique}-offsets"
    create(kafka_a, topic, retention__ms="-1")
    create(kafka_b, remote, retention__ms="-1")
    create(kafka_b, ledger_topic(f"{unique}-a"), cleanup__policy="compact")
    create(kafka_b, offsets, cleanup__policy="compact")
    records = numbered(COUNT)
    write(kafka_a, topic, records)
    write(kafka_b, remote, records[:150])
    producer = producer_of(kafka_b, transactional__id=unique)
    producer.init_transactions(30)
    producer.begin_transaction()
    for record in records[150:]:
        (header,) = record.headers
        producer.produce(remote, record.value, record.key, 0, timestamp=record.timestamp or 0, headers=[header])
    assert producer.flush(30) == 0
    (producer.commit_transaction if committed == COUNT else producer.abort_transaction)(30)
    before = PreviousCommit(Mark(150, 150, 150), {}, 0, (0, 0, 0), 0)
    entry = LedgerEntry(topic, 0, remote, Mark(COUNT, COUNT, COUNT), 150, before=before)
    chunk = chunk_record(entry.source, SegmentChunk(0, [Segment(0, 0, COUNT)]))
    write(kafka_b, ledger_topic(f"{unique}-a"), [chunk, entry_record(entry)])
    position = Record(
        offset_key("MirrorSourceConnector", f"{unique}-a", entry.source), b'{"offset":%d}' % (committed - 1)
    )
    write(kafka_b, offsets, [position])
    props = flow_of(file, unique).props
    report = Verification(props, verifier, patience_s=120, offsets_topic=offsets).run(VerifyRequest())
    row = one_of(report, topic)
    assert (row.verdict, row.records, row.counts) == (Verdict.EQUAL, committed, {})


def test_what_the_ledger_explains_is_no_difference(
    verifier: Verifier, kafka_a: LocalKafka, kafka_b: LocalKafka, file: Path, unique: str
) -> None:
    """The source topic was recreated after 20 records of its first partition. A user has set the position of the second one from 20
    to 29.
    """
    topic, remote = f"{unique}.t", f"{unique}-a.{unique}.t"
    create(kafka_a, topic, 2, retention__ms="-1")
    create(kafka_b, remote, 2, retention__ms="-1")
    create(kafka_b, ledger_topic(f"{unique}-a"), cleanup__policy="compact")
    records = numbered(80)
    old, new = records[:20], records[40:65]
    write(kafka_a, topic, new)
    write(kafka_b, remote, [*old, *new])
    write(kafka_a, topic, records[:35], 1)
    write(kafka_b, remote, [*records[:20], *records[29:35]], 1)
    entries = [
        LedgerEntry(topic, 0, remote, Mark(25, 45, 25), 25),
        LedgerEntry(topic, 1, remote, Mark(35, 26, 6), 35, gaps={"reset": 9}, lost=(Lost(20, 29, "reset", 1),)),
    ]
    chunks = [
        SegmentChunk(0, [Segment(0, 0, 20), Segment(0, 20, 25)], [], [Cut(1, 0)]),
        SegmentChunk(0, [Segment(0, 0, 20), Segment(29, 20, 6)], [Gap(20, 29, "reset")]),
    ]
    rows = zip(entries, chunks, strict=True)
    ledger = [one for entry, chunk in rows for one in (chunk_record(entry.source, chunk), entry_record(entry))]
    write(kafka_b, ledger_topic(f"{unique}-a"), ledger)
    report = Verification(flow_of(file, unique).props, verifier, patience_s=120).run(VerifyRequest())
    first, second = one_of(report, topic), one_of(report, topic, 1)
    assert (first.verdict, first.records, first.notes) == (Verdict.EQUAL, 25, ())
    assert first.explained == {Explained.SOURCE_TRUNCATED: 20}
    assert (second.verdict, second.records, second.explained) == (Verdict.EQUAL, 26, {"reset": 9})


def test_without_a_ledger_content_is_compared_from_offset_syncs(
    verifier: Verifier, kafka_a: LocalKafka, kafka_b: LocalKafka, file: Path, unique: str
) -> None:
    """A copy by Java's MirrorMaker that started late, is incomplete, and has an altered record."""
    topic = f"{unique}.t"
    create(kafka_a, topic, 2, retention__ms="-1")
    create(kafka_b, f"{unique}-a.{topic}", 2, retention__ms="-1")
    create(kafka_a, f"mm2-offset-syncs.{unique}-b.internal", cleanup__policy="compact")
    source = numbered(COUNT)
    target = source[20:180]
    write(kafka_a, topic, source)
    write(kafka_b, f"{unique}-a.{topic}", target)
    target[100] = target[100]._replace(value=b"another")
    write(kafka_a, topic, source, 1)
    write(kafka_b, f"{unique}-a.{topic}", target, 1)
    syncs = [OffsetSync(topic, 1, 20, 0), OffsetSync(topic, 1, 100, 80)]
    write(kafka_a, f"mm2-offset-syncs.{unique}-b.internal", [Record(sync.key(), sync.value()) for sync in syncs])
    report = Verification(flow_of(file, unique).props, verifier, patience_s=120).run(VerifyRequest())
    first, second = one_of(report, topic), one_of(report, topic, 1)
    assert (first.verdict, first.certainty, first.records) == (Verdict.EQUAL, Certainty.CONTENT, 160)
    assert first.explained == {Explained.BEFORE: 20, Explained.PENDING: 20}
    assert (second.verdict, second.certainty) == (Verdict.DIFFERENT, Certainty.SYNCS)
    assert second.counts == {DifferenceKind.ALTERED_VALUE: 1}
    assert (second.differences[0].source, second.differences[0].target) == (120, 100)


# -- limits ------------------------------------------------------------------------------------------------------------


def test_no_more_is_read_per_second_than_was_allowed(
    verifier: Verifier, kafka_a: LocalKafka, kafka_b: LocalKafka, file: Path, unique: str
) -> None:
    seed(kafka_a, kafka_b, unique, range(2), size=10_000)
    props = flow_of(file, unique).props
    free = Verification(props, verifier, patience_s=120).run(VerifyRequest())
    assert free.verdict is Verdict.EQUAL
    assert free.bytes > 2 * 2 * COUNT * 10_000
    rate = 2_000_000
    limited = Verification(props, verifier, rate=rate, patience_s=120).run(VerifyRequest())
    assert limited.verdict is Verdict.EQUAL
    # The last reads may exceed the limit at the end: a quarter of a second for each of two sides and tasks.
    assert limited.seconds >= (limited.bytes - rate) / rate
    assert limited.seconds > 2
