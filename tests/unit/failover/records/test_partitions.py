"""How far a flow was copied, where the ledger is not final."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Mapping
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from mm2.cli.failover.evidence import write_report
from mm2.config.mirrormaker import SourceAndTarget
from mm2.copy.progress.session import EndedSession, LedgerEntry, Mark, PartitionCondition, Session
from mm2.copy.progress.target_progress import FoundBatch, ProgressQuestion, ReappearedSession, TargetProgress
from mm2.failover.evidence import FailoverReport, PartitionEvidence, RecordCount
from mm2.failover.groups import Choice
from mm2.failover.leaving import Before, after_stop, refuse_to_leave_behind
from mm2.failover.records.partitions import last_contact_ms, partitions_of
from mm2.failover.records.uncopied import Uncopied
from mm2.failover.sides import OFFSETS_S, Refused
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.structs import EARLIEST, OffsetInfo, PartitionInfo, ProducerIdentity, TopicInfo, TopicPartition

SOURCE, TARGET = TopicPartition("t", 0), TopicPartition("A.t", 0)
BEFORE = EndedSession(ProducerIdentity(7, 1), Mark(0, 100, 0), "isolation=read_uncommitted", Mark(50, 150, 50))


@pytest.mark.parametrize(("foreign", "unmarked", "others"), [(-1, 4, 0), (-1, 0, 0), (156, 4, 2), (150, 0, 8)], ids=str)
def test_markers_of_preserved_offsets_are_not_of_other_clients(
    monkeypatch: pytest.MonkeyPatch, foreign: int, unmarked: int, others: int
) -> None:
    """Otherwise they are reported as records that were written to the remote topic after a failover."""
    session = Session(BEFORE.producer, Mark(0, 0, 0), "isolation=read_committed")
    entry = LedgerEntry("t", 0, "A.t", Mark(150, 150, 50), session=session, end=160, is_preserved=True)

    class LookUp:
        def __init__(self, _cluster: object) -> None:
            pass

        def progress(self, asked: Mapping[TopicPartition, ProgressQuestion]) -> Any:
            return dict.fromkeys(asked, TargetProgress(50 + unmarked, 158, 5))

        def behind_markers(self, _ends: object) -> dict[TopicPartition, int]:
            return {}

        def end_of(self, *_: object) -> int:
            return 150 + unmarked

        def foreign_offset(self, partition: TopicPartition, first: int, end: int, producers: object) -> int:
            assert (partition, first, end, producers) == (TARGET, 150, 158, {BEFORE.producer})
            return foreign

    monkeypatch.setattr("mm2.failover.records.partitions.TargetLookUp", LookUp)
    sides: Any = SimpleNamespace(
        ledger=SimpleNamespace(entry=lambda _: entry, written_ms=lambda _: 1, notes=lambda _: {}),
        source=None,
        target=SimpleNamespace(
            list_offsets=lambda asked, **_: dict.fromkeys(asked, OffsetInfo(158, -1, 5)),
            describe_topics=lambda names: dict.fromkeys(names, INFO),
        ),
        client=lambda *_: nullcontext(),
        changed_by=[],
    )
    (found,) = partitions_of(sides, [SOURCE])
    assert (found.others, found.unmarked) == (others, unmarked)


def test_records_of_the_session_before_count_as_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise `mm2 failback` would copy them to the source, where they came from."""
    session = Session(ProducerIdentity(9, 0), Mark(50, 150, 0), "isolation=read_committed", (BEFORE,))
    entry = LedgerEntry("t", 0, "A.t", Mark(53, 150, 0), session=session, end=60)
    asked: list[ProgressQuestion] = []

    class LookUp:
        def __init__(self, _cluster: object) -> None:
            pass

        def progress(self, questions: Mapping[TopicPartition, ProgressQuestion]) -> Any:
            asked.extend(questions.values())
            there = TargetProgress(54, 154, 5, (FoundBatch(50, 150, 4),))
            return {TARGET: TargetProgress(0, 154, 5, reappeared=ReappearedSession(BEFORE, there))}

        def behind_markers(self, _ends: object) -> dict[TopicPartition, int]:
            return {}

        def end_of(self, partition: TopicPartition, first: int, end: int, producer: ProducerIdentity) -> int:
            assert (partition, first, producer) == (TARGET, 150, BEFORE.producer)
            return end

    monkeypatch.setattr("mm2.failover.records.partitions.TargetLookUp", LookUp)
    sides: Any = SimpleNamespace(
        ledger=SimpleNamespace(entry=lambda _: entry, written_ms=lambda _: 1, notes=lambda _: notes),
        source=None,
        target=SimpleNamespace(
            list_offsets=lambda asked, **_: dict.fromkeys(asked, OffsetInfo(154, -1, 5)),
            describe_topics=lambda names: dict.fromkeys(names, INFO),
        ),
        client=lambda *_: nullcontext(),
        changed_by=[],
    )
    notes: dict[tuple[str, ...], dict[str, Any]] = {}
    (found,) = partitions_of(sides, [SOURCE])
    assert [question.ended for question in asked] == [(BEFORE,)]
    assert (found.copied, found.target_offset, found.unmarked, found.missing) == (50, 154, 4, RecordCount(6, None))
    assert (found.end, found.end_ms) == (60, 1)
    notes |= {(): {"answered_ms": 9_000}, (SOURCE.topic,): {"ends": [75]}}
    (found,) = partitions_of(sides, [SOURCE])
    assert (found.end, found.end_ms, found.missing.least) == (75, 9_000, 21), "the leader has asked later"


class _Target:
    """Look-ups on a target whose partition has this end and no records after the ledger's position."""

    def __init__(self, _cluster: object) -> None:
        pass

    def progress(self, asked: Mapping[TopicPartition, ProgressQuestion]) -> Any:
        return {tp: TargetProgress(question.records, question.behind, 5) for tp, question in asked.items()}

    def behind_markers(self, _ends: object) -> dict[TopicPartition, int]:
        return {}


INFO = TopicInfo("t", "", False, {0: PartitionInfo(1, 5, (1,), (1,))})
SESSION = Session(ProducerIdentity(7, 1), Mark(0, 0, 0), "isolation=read_uncommitted")


def seen(
    monkeypatch: pytest.MonkeyPatch,
    entry: LedgerEntry,
    target_end: int | KafkaFailure,
    *,
    source_end: int | KafkaFailure | None = None,
    source_start: int = 0,
    source_id: str = "",
    is_described: bool = True,
    notes: Mapping[tuple[str, ...], Mapping[str, Any]] | None = None,
) -> PartitionEvidence:
    """The evidence of a partition; ``source_end`` None: the source does not answer."""
    monkeypatch.setattr("mm2.failover.records.partitions.TargetLookUp", _Target)

    def admin(end: int | KafkaFailure, admin_of: str) -> Any:
        def list_offsets(
            asked: Mapping[TopicPartition, int], *, timeout_s: float | None
        ) -> dict[TopicPartition, OffsetInfo | KafkaFailure]:
            # A partition without a leader must not delay a failover by the request timeout, each time it is asked for.
            assert (timeout_s == OFFSETS_S) is (admin_of == "source")
            if isinstance(end, KafkaFailure):
                return dict.fromkeys(asked, end)
            return {tp: OffsetInfo(source_start if at == EARLIEST else end, -1, 5) for tp, at in asked.items()}

        info: TopicInfo | KafkaFailure = INFO if admin_of == "target" else dataclasses.replace(INFO, topic_id=source_id)
        if not is_described and admin_of == "source":
            info = BrokerFailure.of(3, subject="t")
        return SimpleNamespace(list_offsets=list_offsets, describe_topics=lambda names: dict.fromkeys(names, info))

    sides: Any = SimpleNamespace(
        ledger=SimpleNamespace(
            entry=lambda _: entry, written_ms=lambda _: 5_000, notes=lambda _: notes or {}, chunks=lambda _: []
        ),
        source=None if source_end is None else admin(source_end, "source"),
        pair=SimpleNamespace(source="A", target="B"),
        target=admin(target_end, "target"),
        client=lambda *_: nullcontext(),
        changed_by=[],
    )
    (found,) = partitions_of(sides, [SOURCE])
    return found


@pytest.mark.parametrize("kept", [40, 0], ids=["of the session", "before the session"])
def test_records_of_others_in_place_of_lost_ones_are_not_copied_ones(
    monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    """They are those that a failback has to copy, and the lost ones are reported."""
    entry = LedgerEntry("t", 0, "A.t", Mark(150, 150, 100 if kept else 0), session=SESSION, end=150)
    progress = TargetProgress(kept, 150, 5, replaced_from=90)
    monkeypatch.setattr(_Target, "progress", lambda _self, asked: dict.fromkeys(asked, progress))
    found = seen(monkeypatch, entry, 150)
    assert (found.target_offset, found.others) == (90, 60)
    assert "the target has lost" in found.target_error


def paused(offset: int) -> PartitionCondition:
    return PartitionCondition("PAUSED", "promoted, until mm2 failback", offset, 9_000)


@pytest.mark.parametrize(("condition", "end"), [(paused(-1), 97), (paused(90), 90)], ids=["not read past", "read past"])
def test_a_pause_is_final_only_where_the_records_of_a_predecessor_were_read_past(
    monkeypatch: pytest.MonkeyPatch, condition: PartitionCondition, end: int
) -> None:
    """A process that was killed has left 7 records after the position; the task that follows has only paused."""
    asked: list[TopicPartition] = []

    def progress(_self: object, questions: Mapping[TopicPartition, ProgressQuestion]) -> Any:
        asked.extend(questions)
        return {tp: TargetProgress(97, 97, 5) for tp in questions}

    monkeypatch.setattr(_Target, "progress", progress)
    monkeypatch.setattr(_Target, "end_of", lambda *_: 97, raising=False)
    entry = LedgerEntry("t", 0, "A.t", Mark(90, 90, 90), session=SESSION, end=97, condition=condition)
    found = seen(monkeypatch, entry, 147, source_end=97)
    assert (found.target_offset, found.others, len(asked)) == (end, 147 - end, int(end == 97))


@pytest.mark.parametrize(
    ("changes", "end"),
    [
        ({}, 0),
        ({"previous": 40}, None),  # Java, or a user, has written the position
        ({"mark": Mark(40, -1, 0), "previous": 40}, None),
        ({"mark": Mark(40, -1, 5)}, None),
    ],
    ids=str,
)
def test_of_what_was_never_copied_in_transactions_the_end_on_the_target_is_0(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], end: int | None
) -> None:
    entry = LedgerEntry("t", 0, "A.t", Mark(0, -1, 0), condition=paused(0)).replace(**changes)
    assert seen(monkeypatch, entry, 50, source_end=0).target_offset == end


def test_a_remote_topic_that_was_created_again_does_not_have_what_was_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its log may be as long as the one before."""
    monkeypatch.setattr(f"{__name__}.INFO", dataclasses.replace(INFO, topic_id="new"))
    entry = LedgerEntry("t", 0, "A.t", Mark(90, 90, 90), session=SESSION, end=90, target_id="old")
    found = seen(monkeypatch, entry, 90, source_end=90)
    assert found.target_error.startswith("A.t was deleted and created again: records were copied up to offset 90")
    assert found.missing == RecordCount(0, None)


@pytest.mark.parametrize("condition", [None, paused(90)], ids=["running", "promoted"])
@pytest.mark.parametrize(
    ("end", "error", "offset"),
    [
        (90, "", 90),
        (40, "A.t-0 ends at offset 40, and records were copied up to offset 90", 40),
        (BrokerFailure.of(3, subject="A.t-0"), "there is no A.t-0", 90),
        (BrokerFailure.of(5, subject="A.t-0"), "the end of A.t-0 is not known: ", 90),
    ],
    ids=str,
)
def test_records_that_the_target_has_lost_are_not_counted_as_copied(
    monkeypatch: pytest.MonkeyPatch,
    condition: PartitionCondition | None,
    end: int | KafkaFailure,
    error: str,
    offset: int,
) -> None:
    """Also in the report of the command itself, after the partition was paused. A source that answers is not left then."""
    entry = LedgerEntry("t", 0, "A.t", Mark(90, 90, 90), session=SESSION, end=90, condition=condition)
    found = seen(monkeypatch, entry, end, source_end=90)
    assert found.target_error.startswith(error)
    assert bool(found.target_error) is bool(error)
    assert found.target_offset == offset
    assert found.missing == RecordCount(0, None if error else 0), "MISSING 0 would be a promise"
    sides: Any = SimpleNamespace(source=object(), pair=SimpleNamespace(source="A", target="B"))
    before = Before([SOURCE], [found], Uncopied())
    if not error:
        refuse_to_leave_behind(sides, before)
        return
    with pytest.raises(
        Refused, match="B does not have all records that were copied to it, in 1 partition, first t-0: "
    ):
        refuse_to_leave_behind(sides, before)


def condition(state: str) -> PartitionCondition:
    return PartitionCondition(state, "its records are unknown", 90, 9_000)


@pytest.mark.parametrize(
    ("entry", "source", "missing", "first"),
    [
        # Deleted and created again: nothing of the new log is on the target, however long it is.
        ({"source_id": "old"}, ("new", 5, 40), RecordCount(35, 35), 5),
        ({"source_id": "old"}, ("new", 5, 200), RecordCount(195, 195), 5),
        ({"source_id": "old", "condition": condition("RECREATED")}, ("new", 0, 40), RecordCount(40, 40), 0),
        ({"source_id": "old", "retired": ("older",)}, ("older", 0, 90), RecordCount(0, 0), 90),
        # A broker without topic ids.
        ({"condition": condition("RECREATED")}, ("", 0, 40), RecordCount(0, 40), 0),
        # Truncated, and perhaps written again since.
        ({}, ("", 5, 40), RecordCount(0, 35), 5),
        ({"condition": condition("LOST_RANGE")}, ("", 5, 100), RecordCount(10, 95), 5),
        ({"source_id": "old"}, ("old", 5, 100), RecordCount(10, 10), 90),
    ],
    ids=str,
)
def test_a_log_of_the_source_that_is_not_the_copied_one_counts_as_missing(
    monkeypatch: pytest.MonkeyPatch,
    entry: dict[str, Any],
    source: tuple[str, int, int],
    missing: RecordCount,
    first: int,
) -> None:
    """An end offset before the ledger's position does not mean that nothing is missing."""
    topic_id, start, end = source
    written = LedgerEntry("t", 0, "A.t", Mark(90, 90, 90), session=SESSION, end=90, **entry)
    found = seen(monkeypatch, written, 90, source_end=end, source_start=start, source_id=topic_id)
    assert (found.missing, found.next_offset) == (missing, first)
    sides: Any = SimpleNamespace(source=object(), pair=SimpleNamespace(source="A", target="B"))
    before = Before([SOURCE], [found], Uncopied())
    if not missing:
        refuse_to_leave_behind(sides, before)
        return
    with pytest.raises(Refused, match=f"t-0: {first} of {end}"):
        refuse_to_leave_behind(sides, before)


def test_what_is_missing_of_a_recreated_topic_of_an_unreachable_source_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entry = LedgerEntry("t", 0, "A.t", Mark(90, 90, 90), session=SESSION, end=40, condition=condition("RECREATED"))
    assert seen(monkeypatch, entry, 90).missing == RecordCount(0, None)


def test_the_last_known_end_of_a_partition_that_was_promoted_is_a_lower_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause hides when the source last answered for it: a second run printed the number as exact."""
    notes: dict[tuple[str, ...], dict[str, Any]] = {(): {"answered_ms": 1_000}, ("t",): {"ends": [100]}}
    entry = LedgerEntry("t", 0, "A.t", Mark(90, 90, 90), session=SESSION, end=120, condition=paused(90))
    found = seen(monkeypatch, entry, 90, notes=notes)
    assert (found.end, found.end_ms, found.missing) == (120, None, RecordCount(30, None))
    out = io.StringIO()
    write_report(out, FailoverReport("failover", "A->B", False, 20_000, "refused", 5_000, [found]))
    assert "120 at an unknown time" in out.getvalue()


def _unreachable(_props: object) -> Any:
    raise KafkaFailure("refused")


@pytest.mark.parametrize(
    ("notes", "expected_ms"),
    [({(): {"answered_ms": 1_000}}, 1_000), ({}, 9_000)],
    ids=["noted", "a ledger of an old version"],
)
def test_an_entry_that_was_written_after_the_source_died_is_no_answer_of_it(
    monkeypatch: pytest.MonkeyPatch, notes: dict[tuple[str, ...], dict[str, Any]], expected_ms: int
) -> None:
    """A new micro-batch writes all entries before it has read anything: the last contact was later than the death."""
    entry = LedgerEntry("t", 0, "A.t", Mark(90, 90, 90), session=SESSION, end=120)
    ledger = SimpleNamespace(
        entry=lambda _: entry, partitions=lambda: [SOURCE], written_ms=lambda _: 9_000, notes=lambda _: notes
    )
    monkeypatch.setattr("mm2.failover.records.partitions.MirrorClient", _unreachable)
    sides: Any = SimpleNamespace(
        ledger=ledger,
        pair=SourceAndTarget("A", "B"),
        config=SimpleNamespace(source_connector={}),
        clients=SimpleNamespace(client_props=lambda *_: {}),
    )
    assert last_contact_ms(sides) == expected_ms
    found = seen(monkeypatch, entry, 90, notes=notes)
    assert found.end_ms == (expected_ms if notes else 5_000)


@pytest.mark.parametrize(
    ("after", "end_ms", "missing"),
    [
        (PartitionEvidence("t", 0, "A.t", 90, 90, 95, is_end_current=False), 7_000, RecordCount(5, None)),
        (PartitionEvidence("t", 0, "A.t", 90, 90, 95, 8_000, is_end_current=False), 8_000, RecordCount(5, None)),
        (PartitionEvidence("t", 0, "A.t", 90, 90, 95), None, RecordCount(5, 5)),
    ],
    ids=["paused", "not paused", "the source answers again"],
)
@pytest.mark.parametrize("was_current", [False, True])
def test_the_final_report_is_exact_only_if_the_source_answers_then(
    monkeypatch: pytest.MonkeyPatch,
    after: PartitionEvidence,
    end_ms: int | None,
    missing: RecordCount,
    was_current: bool,
) -> None:
    """It may die, or recover, between the two looks."""
    known = PartitionEvidence("t", 0, "A.t", 90, 90, 95, None if was_current else 7_000, is_end_current=was_current)
    monkeypatch.setattr("mm2.failover.leaving.partitions_of", lambda *_: [after])
    monkeypatch.setattr("mm2.failover.leaving.uncopied", lambda *_: Uncopied())
    sides: Any = SimpleNamespace(source=None, pair=SimpleNamespace(source="A", target="B"), refresh=lambda: None)
    found, problems = after_stop(sides, Before([SOURCE], [known], Uncopied()), Choice(), leave_behind=False)
    (one,) = found.partitions
    expected_ms = None if was_current and after.end_ms is None else end_ms
    assert (one.end_ms, one.missing, problems) == (expected_ms, missing, [])


GONE = BrokerFailure.of(3, subject="t-0")


def test_a_topic_that_was_deleted_on_the_source_is_not_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not copied is nowhere: waiting for it, or refusing to leave it behind, helps nobody."""
    entry = LedgerEntry("t", 0, "A.t", Mark(90, 90, 90), session=SESSION, end=120)
    found = seen(monkeypatch, entry, 90, source_end=GONE, is_described=False)
    assert (found.is_gone, found.missing, found.uncopied) == (True, RecordCount(0, 0), 0)
    before = Before([SOURCE], [found], Uncopied())
    sides: Any = SimpleNamespace(source=object(), pair=SimpleNamespace(source="A", target="B"))
    refuse_to_leave_behind(sides, before)
    assert before.notes == ["t-0 was deleted on the source, with records from offset 90 on that were not copied"]
    assert before.topics == {"t": "A.t"}, "its copy is all that is left"
    still = seen(monkeypatch, entry, 90, source_end=GONE)
    assert (still.is_gone, still.missing) == (False, RecordCount(30, None)), "its leader does not know it yet"


@pytest.mark.parametrize(
    ("source", "state", "remote_gone", "left_out"),
    [
        (True, "", True, True),
        (True, "", False, False),
        (False, "DELETED", True, True),
        (False, "DELETED", False, False),
        (False, "", True, False),
    ],
)
def test_what_neither_cluster_has_is_left_out(
    monkeypatch: pytest.MonkeyPatch, source: bool, state: str, remote_gone: bool, left_out: bool
) -> None:
    one = PartitionEvidence("t", 0, "A.t", 90, 90, 90, state=state, is_gone=source, is_remote_gone=remote_gone)
    (chosen, before) = before_of(monkeypatch, [one], source=object() if source else None)
    assert before.copied == ([] if left_out else [one])
    assert before.notes == (["left out, because deleted on both clusters: t"] if left_out else [])
    assert chosen == [SOURCE]


def before_of(
    monkeypatch: pytest.MonkeyPatch, found: list[PartitionEvidence], *, source: object
) -> tuple[list[TopicPartition], Before]:
    """The partitions that were looked up, and the state of a flow that selects t, and not u."""
    asked: list[TopicPartition] = []

    def look_up(_: object, chosen: list[TopicPartition]) -> list[PartitionEvidence]:
        asked.extend(chosen)
        return [one for one in found if one.source in chosen]

    monkeypatch.setattr("mm2.failover.leaving.partitions_of", look_up)
    monkeypatch.setattr("mm2.failover.leaving.uncopied", lambda *_: Uncopied())
    sides: Any = SimpleNamespace(
        source=source,
        pair=SourceAndTarget("A", "B"),
        refresh=lambda: None,
        known_partitions=lambda: [one.source for one in found],
        reverse_ledger=None,
        selection=SimpleNamespace(should_replicate=lambda topic: topic == "t"),
    )
    return asked, Before.of(sides, Choice())


def test_topics_that_the_flow_no_longer_selects_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is copied to them, so a planned failover would wait for records of theirs until its timeout."""
    t, u = (PartitionEvidence(topic, 0, f"A.{topic}", 90, 90, 95) for topic in "tu")
    asked, before = before_of(monkeypatch, [t, u], source=object())
    assert (asked, before.partitions) == ([t.source], [t])
    assert before.notes == ["left out, because not selected by A->B any more: u"]
    with pytest.raises(Refused, match=r"No chosen topic is selected by A->B any more; in its ledger: u\."):
        before_of(monkeypatch, [u], source=object())


def test_an_empty_ledger_is_not_blamed_on_an_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refused, match=r"The ledger of A->B has no topics: nothing was copied yet\."):
        before_of(monkeypatch, [], source=object())
