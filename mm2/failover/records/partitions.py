"""How far a flow's topics were copied: by the ledger, the target, and the source if it answers."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from mm2.copy.progress.session import LedgerEntry, Rules
from mm2.copy.progress.target_progress import InconsistentTarget, ProgressQuestion, TargetLookUp, TargetProgress
from mm2.copy.states import PartitionState
from mm2.failover.evidence import PartitionEvidence
from mm2.failover.groups import Choice
from mm2.failover.records.source_logs import compared_with_source
from mm2.failover.records.source_tail import source_tails
from mm2.failover.sides import OFFSETS_S, READ_S, Refused, Sides
from mm2.kafka.admin import Admin
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.structs import LATEST, OffsetInfo, TopicInfo, TopicPartition
from mm2.mirror.client.freshness import FreshnessWatch
from mm2.mirror.client.mirror_client import MirrorClient
from mm2.mirror.common.clients import ClientKind, Side
from mm2.mirror.common.discovery import vanished
from mm2.mirror.groups.target_logs import target_loss
from mm2.mirror.notes.source_answers import SourceAnswers, source_answers
from mm2.mirror.process.adoption import next_offsets
from mm2.reasons import TargetLossCode


class NothingChosen(Refused):
    """The ledger has none of the chosen topics."""


def chosen_partitions(sides: Sides, choice: Choice) -> list[TopicPartition]:
    """The chosen partitions in the ledger.

    Raises NothingChosen if there are none, neither copied nor received from the opposite flow.
    """
    known = sides.known_partitions()
    chosen = [tp for tp in known if choice.has_topic(tp.topic)]
    reverse = [] if sides.reverse_ledger is None else sides.reverse_ledger.partitions()
    if chosen or any(choice.has_topic(tp.topic) for tp in reverse):
        return chosen
    if not known:
        raise NothingChosen(f"The ledger of {sides.pair} has no topics: nothing was copied yet.")
    topics = sorted({tp.topic for tp in known})
    raise NothingChosen(
        f"No topic of {sides.pair} matches --topic; topics in its ledger ({len(topics)}): {', '.join(topics[:5])}."
    )


def partitions_of(
    sides: Sides, chosen: Iterable[TopicPartition], *, with_records: bool = False
) -> list[PartitionEvidence]:
    """The current state of these source partitions. Raises KafkaFailure if the target does not return it.

    ``with_records``: read from a reachable source which of the offsets that are not on the target have records. This takes too long while a
    failover waits for the flow.
    """
    entries = [entry for tp in chosen if (entry := sides.ledger.entry(tp)) is not None]
    entries = [_with_first_offset(sides, entry) for entry in _without_undone(sides, entries)]
    end_answers = {} if sides.source is None else source_ends(sides, [entry.source for entry in entries])
    target_answers = _ends(sides.target, [entry.target for entry in entries])
    target_ends = _known(target_answers)
    remote_topics = sides.target.describe_topics(sorted({entry.remote_topic for entry in entries}))
    answers = source_answers(sides.ledger)
    with sides.client(Side.TARGET, ClientKind.CONSUMER) as cluster:
        look_up = TargetLookUp(cluster)
        progress = _progress(look_up, entries, target_ends)
        in_transactions: dict[TopicPartition, int] = {}
        for entry in entries:
            if entry.session is None and 0 <= entry.mark.target < target_ends.get(entry.target, 0):
                in_transactions[entry.target] = max(entry.mark.target, in_transactions.get(entry.target, 0))
        markers: Mapping[TopicPartition, int] = {}
        with suppress(KafkaFailure):  # without them, markers count as records of other producers
            markers = look_up.behind_markers(in_transactions)
        found = []
        digests: dict[TopicPartition, str] = {}
        for written, answered in zip(entries, progress, strict=True):
            entry, there = _newest_session(written, answered)
            reached = _target_offset(entry, there, look_up)
            if entry.session is None and entry.target in markers:
                reached = reached._replace(offset=markers[entry.target])
            answer = end_answers.get(entry.source)
            target_answer = target_answers[entry.target]
            loss = _target_error(entry, remote_topics[entry.remote_topic], target_answer)
            known_end = _last_known_end(sides, entry, answers)
            found.append(_evidence(entry, answer, known_end, reached, target_answer, loss))
            digests[entry.source] = _changes_of(entry)
    found = compared_with_source(sides, _with_common_ends(found), entries)
    return _with_tails(sides, found, digests, with_records=with_records)


def _with_common_ends(partitions: Sequence[PartitionEvidence]) -> list[PartitionEvidence]:
    """Source partitions that are merged have the same last record of the flow: that of the one copied last."""
    offsets: dict[TopicPartition, list[int | None]] = {}
    for one in partitions:
        offsets.setdefault(one.target, []).append(one.target_offset)
    ends = {tp: None if None in found else max(at for at in found if at is not None) for tp, found in offsets.items()}
    return [dataclasses.replace(one, target_offset=ends[one.target]) for one in partitions]


def _changes_of(entry: LedgerEntry) -> str:
    """The digest of the changes by which the records after the entry's position were copied; "": they were not changed."""
    rules = None if entry.session is None else Rules.parse(entry.session.rules)
    return "" if rules is None else rules.changes


def _with_tails(
    sides: Sides, partitions: Sequence[PartitionEvidence], digests: Mapping[TopicPartition, str], *, with_records: bool
) -> list[PartitionEvidence]:
    """Count on a reachable source what is not on the target, for partitions whose records are changed, or for all."""
    found = [
        dataclasses.replace(one, is_changed=bool(sides.changed_by) or bool(one.unmarked and digests[one.source]))
        for one in partitions
    ]
    # An end offset that the source does not return now need not exist any more.
    uncounted = [
        one
        for one in found
        if (one.is_changed or with_records) and one.uncopied and one.other_log is None and one.is_end_current
    ]
    tails = source_tails(sides, uncounted, digests)
    return [dataclasses.replace(one, tail=tails.get(one.source)) for one in found]


class _TargetOffset(NamedTuple):
    """The target offset after the flow's last record, and ``unmarked`` records after the ledger's position. ``error``: the target
    contradicts the ledger.
    """

    offset: int | None
    unmarked: int = 0
    note: str = ""
    error: str = ""


def _progress(
    look_up: TargetLookUp, entries: Sequence[LedgerEntry], target_ends: Mapping[TopicPartition, int]
) -> list[TargetProgress | KafkaFailure | None]:
    """The progress of each entry's session, in order; None: the entry is final, or its partition has no known end.

    A look-up takes one session of a target partition at a time, and merged source partitions share it.
    """
    sources = Counter(entry.target for entry in entries)
    found: list[TargetProgress | KafkaFailure | None] = [None] * len(entries)
    waiting = {
        index: ProgressQuestion(
            entry.session.producer,
            entry.mark.records,
            entry.mark.target,
            entry.session.start.target,
            ended=entry.ended_sessions,
            is_preserved=entry.is_preserved,
            own_end=None if sources[entry.target] == 1 else -1,
        )
        for index, entry in enumerate(entries)
        if entry.session is not None and entry.target in target_ends and not _is_final(entry)
    }
    while waiting:
        asked = {entries[index].target: index for index in waiting}
        answers = look_up.progress({tp: waiting.pop(index) for tp, index in asked.items()})
        for tp, index in asked.items():
            found[index] = answers[tp]
    return found


def _last_known_end(sides: Sides, entry: LedgerEntry, answers: SourceAnswers) -> tuple[int | None, int | None]:
    """The last end offset of a partition that the ledger has, and a time at which the source still answered.

    The entry's is that of the copier's last Fetch, which is older for a paused or blocked partition.
    """
    noted = answers.ends.get(entry.source, -1)
    if noted >= entry.end and noted >= 0:
        return noted, answers.answered_ms
    return (entry.end, _source_answered_ms(sides, entry, answers)) if entry.end >= 0 else (None, None)


def _evidence(
    entry: LedgerEntry,
    answer: int | KafkaFailure | None,
    known: tuple[int | None, int | None],
    reached: _TargetOffset,
    target_answer: int | KafkaFailure,
    loss: str,
) -> PartitionEvidence:
    """``answer`` is the source's end offset; if it is unknown, the last ``known`` one and its time are used."""
    end, end_ms = (answer, None) if isinstance(answer, int) else known
    target_end = None if isinstance(target_answer, KafkaFailure) else target_answer
    # A mark beyond the end was not read from the target.
    offset = reached.offset if reached.offset is None or target_end is None else min(reached.offset, target_end)
    condition = entry.condition
    return PartitionEvidence(
        entry.topic,
        entry.partition,
        entry.remote_topic,
        entry.mark.source,
        offset,
        end,
        end_ms,
        target_end,
        reached.unmarked,
        "" if condition is None else condition.state,
        reached.note or ("" if condition is None else condition.reason),
        str(answer) if isinstance(answer, KafkaFailure) else "",
        loss or reached.error,
        isinstance(answer, int),
        is_remote_gone=vanished(target_answer),
    )


def _target_error(entry: LedgerEntry, topic: TopicInfo | KafkaFailure, end: int | KafkaFailure) -> str:
    """Why the target does not have all records before the ledger's position; "" if nothing shows this."""
    if vanished(end):
        return f"there is no {entry.target}"
    loss = target_loss(entry, topic, end)
    if isinstance(loss, KafkaFailure):
        return f"the end of {entry.target} is not known: {str(loss).rstrip('.')}"
    # Of a partition that has stopped, the look-ups show what the target has.
    return "" if loss is None or loss.code is TargetLossCode.STOPPED else str(loss)


def is_paused(entry: LedgerEntry) -> bool:
    """Whether the task has paused the partition and all that it had read is on the target."""
    condition = entry.condition
    return condition is not None and condition.state == PartitionState.PAUSED and entry.mark.source >= condition.offset


def _is_final(entry: LedgerEntry) -> bool:
    """Whether no record of the flow is on the target after the entry's mark. A pause without an offset does not show this: records of a
    process that was killed may be there, which the task has not read past (`Cursor.is_end_known`).
    """
    return is_paused(entry) and entry.condition is not None and entry.condition.offset >= 0


def source_ends(sides: Sides, chosen: Sequence[TopicPartition]) -> dict[TopicPartition, int | KafkaFailure]:
    """The end offsets of these source partitions, or the errors; partitions of deleted topics are left out.

    Raises Refused if the source does not answer.
    """
    if sides.source is None:
        raise Refused(f"Cluster {sides.pair.source} does not answer: {sides.source_error}")
    return {tp: end for tp, end in _ends(sides.source, chosen, OFFSETS_S).items() if not vanished(end)}


def last_contact_ms(sides: Sides) -> int | None:
    """The time of the newest data from the source on the target; None if there is none.

    These are heartbeats, and the leader's note of the source's last answer. The ledger of an old version has no note; then the times of
    its entries are used, which can be later: a new micro-batch writes them before it has read anything.
    """
    answers = source_answers(sides.ledger)
    if answers.answered_ms is None:
        entries = [entry for tp in sides.ledger.partitions() if (entry := sides.ledger.entry(tp)) is not None]
        times = [at_ms for entry in entries if (at_ms := _source_answered_ms(sides, entry, answers)) is not None]
    else:
        times = [answers.answered_ms]
    props = {
        **sides.config.source_connector,
        **sides.clients.client_props(Side.TARGET, ClientKind.CONSUMER, "mm2-cli-heartbeats"),
    }
    try:
        with MirrorClient(props) as client:
            seen = FreshnessWatch(client).look()
        times += [one.heartbeat.timestamp_ms for one in seen if one.route[:1] == (sides.pair.source,)]
    except KafkaFailure:
        pass  # the ledger is sufficient
    return max((at_ms for at_ms in times if at_ms >= 0), default=None)


def _source_answered_ms(sides: Sides, entry: LedgerEntry, answers: SourceAnswers) -> int | None:
    """When the source had answered for a partition; it may have answered later, too.

    The entry's time is used only if there is no note: the entry is also written for later errors, by a task that has paused the
    partition, and by a new micro-batch that has not read anything.
    """
    if entry.condition is None:
        return sides.ledger.written_ms(entry.source) if answers.answered_ms is None else answers.answered_ms
    return None if entry.condition.state == PartitionState.PAUSED else entry.condition.since_ms


def _ends(
    admin: Admin, partitions: Iterable[TopicPartition], timeout_s: float | None = None
) -> dict[TopicPartition, int | KafkaFailure]:
    answers = admin.list_offsets(dict.fromkeys(partitions, LATEST), timeout_s=timeout_s)
    return {tp: answer.offset if isinstance(answer, OffsetInfo) else answer for tp, answer in answers.items()}


def _known(ends: Mapping[TopicPartition, int | KafkaFailure]) -> dict[TopicPartition, int]:
    return {tp: end for tp, end in ends.items() if isinstance(end, int)}


def _newest_session(
    entry: LedgerEntry, progress: TargetProgress | KafkaFailure | None
) -> tuple[LedgerEntry, TargetProgress | KafkaFailure | None]:
    """The session that the target continues: the entry's, or the one before if records of that have appeared since it ended."""
    if not isinstance(progress, TargetProgress) or progress.reappeared is None:
        return entry, progress
    return entry.continuing(progress.reappeared.session), progress.reappeared.progress


def _target_offset(
    entry: LedgerEntry, progress: TargetProgress | KafkaFailure | None, look_up: TargetLookUp
) -> _TargetOffset:
    marked = entry.mark.target if entry.mark.target >= 0 else None
    if progress is None or entry.session is None:
        return _TargetOffset(marked)
    if isinstance(progress, KafkaFailure):
        note = f"target offsets after the ledger's position cannot be read: {progress}"
        return _TargetOffset(marked, 0, note, str(progress) if isinstance(progress, InconsistentTarget) else "")
    unmarked = progress.records - entry.mark.records
    if unmarked < 0:
        note = f"the target has lost {-unmarked} records that it had acknowledged"
        return _TargetOffset(progress.own_end, 0, note, note)
    if progress.replaced_from >= 0:
        note = f"the target has lost what it had acknowledged from offset {progress.replaced_from} on, before the copy session"
        return _TargetOffset(progress.replaced_from, 0, note, note)
    has_markers = entry.is_preserved and marked is not None and progress.end > marked
    if marked is None or not (unmarked or has_markers):
        return _TargetOffset(marked, max(0, unmarked))
    # A process was killed after it had copied records, and before it stored its position in the ledger.
    offset = look_up.end_of(entry.target, marked, progress.end, entry.session.producer)
    if has_markers:
        # Markers, too, are of this flow, between its records and behind them.
        own = {entry.session.producer, *(ended.producer for ended in entry.ended_sessions)}
        foreign = look_up.foreign_offset(entry.target, marked, progress.end, own)
        offset = max(offset, progress.end if foreign < 0 else foreign)
    if not unmarked:
        return _TargetOffset(offset)
    return _TargetOffset(offset, unmarked, f"{unmarked} records on the target are after the ledger's position")


def _without_undone(sides: Sides, entries: Sequence[LedgerEntry]) -> list[LedgerEntry]:
    """Revert entries of transactions that were never committed (exactly-once), by Connect's offsets topic."""
    if all(entry.before is None for entry in entries):
        return list(entries)
    with sides.client(Side.TARGET, ClientKind.CONSUMER) as cluster:
        topic = sides.config.worker["offset.storage.topic"]
        committed = next_offsets(cluster, topic, sides.pair.source, READ_S)
    return [entry.undone() if entry.is_undone(committed.get(entry.source)) else entry for entry in entries]


def _with_first_offset(sides: Sides, entry: LedgerEntry) -> LedgerEntry:
    """The entry of a partition of which nothing was ever copied, with target offset 0: transactions learn the target offset of a mark from
    their first record. A position that was committed before may be Java's, or a user's after records were copied.
    """
    is_first = entry.session is None and entry.previous is None and not entry.mark.records
    if entry.mark.target >= 0 or not is_first or any(chunk.segments for chunk in sides.ledger.chunks(entry.source)):
        return entry
    return entry.replace(mark=entry.mark._replace(target=0))
