"""failback A->B: A has recovered, and the flow is reversed to match the current location of the applications.

Records of A after the last one copied before the failure (the divergent tail) are on A only. They are reported by
range, and kept. `DeleteRecords` deletes records from the beginning of a log, never from its end, so only deleting the
topic removes them.

==== names show where a topic came from =============================== they do not (identity naming) =================
  A->B resumes: the tail is appended to the records on B. Records      B->A takes over the topic, from the offset after
  written on B to the topic of the original name are copied to A by    the records that came from A, so A does not get
  B->A as always.                                                      its own records back. The tail stays on A before
                                                                       the records from B.
======================================================================================================================

In both cases applications return to A by `failover B->A`.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Final

from mm2.codec import encode
from mm2.config.keys.worker_keys import storage_topics
from mm2.connect.stores import internal_json
from mm2.connect.stores.config_state import RESTART_PREFIX, RestartRequest
from mm2.connect.stores.offset_survey import KeptOffset, kept_offsets
from mm2.copy.progress.ledger import note_record
from mm2.copy.progress.written_positions import offset_key, offset_value
from mm2.evidence import counted
from mm2.failover.copy_control import disturbed, on_interrupt, resume_copying
from mm2.failover.evidence import (
    FailoverReport,
    PartitionEvidence,
    StartEvidence,
    missing_records,
    target_problems,
)
from mm2.failover.groups import Choice
from mm2.failover.leaving import unknown_ends_error
from mm2.failover.records.divergence import Divergence, gone_topics
from mm2.failover.records.foreign import foreign_records, kept_notes, where
from mm2.failover.records.partitions import chosen_partitions, last_contact_ms, partitions_of
from mm2.failover.records.uncopied import uncopied
from mm2.failover.sides import READ_S, SOURCE_NAME, WRITE_S, FlowConfig, Refused, Sides, now_ms
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.producer.partitioner import partition_for
from mm2.kafka.producer.producer import Producer
from mm2.kafka.records.record import Record
from mm2.kafka.structs import TopicPartition
from mm2.mirror.common.clients import ClientKind, Side
from mm2.mirror.notes.kept_records import ForeignRun, kept_note_records
from mm2.mirror.notes.ledgers import PROVENANCE_NOTE
from mm2.mirror.notes.promotions import Promotion, promoted, withdrawn
from mm2.mirror.plan.way_back import WayBack
from mm2.mirror.source.record_changes import changing_keys
from mm2.mirror.source_connector import topic_selection

VERB: Final = "failback"
#: A restarted connector refreshes its topics at once; its tasks follow after a rebalance.
START_TIMEOUT_S: Final = 90.0
_POLL_S: Final = 0.5
_CHANGED: Final = "another command has changed the promotion or a position of {} since this one has read them"


@dataclass(frozen=True)
class FailbackOptions:
    """``keep``: continue although some records are on the source only."""

    choice: Choice
    dry_run: bool = False
    keep: bool = False


def failback(config: FlowConfig, reverse: FlowConfig, options: FailbackOptions) -> FailoverReport:
    """Run the command. ``reverse`` is the opposite flow. Raises Refused or KafkaFailure if nothing was changed."""
    with Sides.opened(config) as sides:
        if sides.source is None:
            raise Refused(f"Cluster {config.pair.source} does not answer yet: {sides.source_error}")
        promotions = promoted(sides.ledger)
        chosen = [tp for tp in chosen_partitions(sides, options.choice) if tp.topic in promotions]
        if not chosen:
            raise Refused(
                f"No selected topic of {config.pair} is promoted, so there is nothing to fail back: see mm2 failover, mm2 promote."
            )
        partitions, contact_ms = partitions_of(sides, chosen, with_records=True), last_contact_ms(sides)
        names = {one.topic: sides.is_same_name(one.topic) for one in partitions}
        if sides.reverse_error and any(names.values()):
            raise Refused(
                f"The ledger of {reverse.pair} on cluster {config.pair.source} cannot be read, so its own promotions of these topics are not "
                f"known: {sides.reverse_error}"
            )
        renamed = {topic for topic, same in names.items() if not same}
        unnamed = {topic for topic, same in names.items() if same and not promotions[topic].turned}
        open_ones = [one for one in partitions if one.topic in unnamed | renamed]
        divergence = Divergence(sides, reverse, open_ones, renamed, gone_topics(sides, names))
        again = divergence.copied_back
        tail = [
            one for one in partitions if one.missing and not promotions[one.topic].turned and one.topic not in again
        ]
        new = uncopied(sides, options.choice)
        unknown = [one for one in new.partitions if one.topic in unnamed | renamed]
        tail += unknown
        done: list[str] = []
        problems: list[str] = [] if options.keep else _tail_problems(sides, [*partitions, *unknown], tail, new.error)
        problems += divergence.problems(keep=options.keep)
        foreign = foreign_records(sides, [one for one in open_ones if one.topic not in again], Side.TARGET)
        notes = kept_notes(sides, open_ones)
        if foreign:
            source, target = config.pair.source, config.pair.target
            notes.append(
                f"on {target} only: {where(foreign)}: other producers wrote them, or {source} has lost them since; {reverse.pair} "
                f"starts after the last record from {source}, so it does not copy them"
            )
            partitions = [replace(one, foreign_on_target=foreign.get(one.source, ())) for one in partitions]
            if not options.keep:
                problems.append(
                    f"{notes.pop()}, and nothing was changed: check these records, then use --divergent keep"
                )
        # Where the opposite flow starts after the copied records, they have to be there.
        lost = target_problems(sides.pair.target, [one for one in partitions if one.topic in unnamed])
        problems += [f"{one}. {reverse.pair} cannot start after them, and nothing was changed" for one in lost]
        starts: list[StartEvidence] = []
        endless = {one.topic: one for one in partitions if one.topic in unnamed - again and one.target_offset is None}
        left_out = _unknown_starts(sides, reverse, endless.values())
        if left_out and not unnamed - endless.keys():
            raise Refused(f"{left_out[0][0].upper()}{left_out[0][1:]}.")
        unnamed -= endless.keys()
        if unnamed:
            check_reverse_names(sides, reverse, unnamed)
            turned = [one for one in partitions if one.topic in unnamed]
            reversal = _FlowReversal(
                sides,
                reverse,
                turned,
                promotions,
                from_beginning=again,
                tail=[one for one in tail if one.topic in unnamed],
            )
            if problems or options.dry_run:
                starts = reversal.starts()
            else:
                with on_interrupt(
                    f"{reverse.pair} may copy {counted(len(unnamed), 'topic')} now; run the command again"
                ):
                    starts = reversal.execute(done, problems)
        if already := [topic for topic, same in names.items() if same and promotions[topic].turned]:
            done.append(f"{reverse.pair} had already taken over {counted(len(already), 'topic')}, first {already[0]}")
            stuck = [
                one for one in partitions if one.topic in already and is_left_promoted(sides, promotions[one.topic])
            ]
            if stuck and not options.dry_run:
                _FlowReversal(sides, reverse, stuck, promotions).withdraw(done, problems)
        if renamed and not problems and not options.dry_run:
            _resume(sides, {topic: promotions[topic] for topic in renamed}, done, problems)
        way_back = sides.way_back({one.topic: one.remote_topic for one in partitions})
        return FailoverReport(
            VERB,
            str(config.pair),
            options.dry_run,
            now_ms(),
            "",
            contact_ms,
            [*partitions, *unknown],
            starts=starts,
            divergent=encode(divergence.ranges),
            notes=notes,
            done=done,
            problems=[*problems, *left_out],
            advice=_advice(sides, reverse, tail, renamed, unnamed, partitions, way_back),
            way_back=way_back.topics,
        )


def is_left_promoted(sides: Sides, promotion: Promotion) -> bool:
    """Whether the opposite flow has taken over a topic and does not copy it, since its own promotion from before was not withdrawn.

    A later promotion is that of a failover in the opposite direction.
    """
    other = None if sides.reverse_ledger is None else promoted(sides.reverse_ledger).get(promotion.topic)
    return other is not None and other.turned and other.at_ms < promotion.at_ms


def _resume(sides: Sides, promotions: Mapping[str, Promotion], done: list[str], problems: list[str]) -> None:
    """Let the flow copy the topics of these promotions again."""
    sentence = f"{sides.pair} may copy {counted(len(promotions), 'topic')} again; run the command again"
    try:
        with on_interrupt(sentence):
            resumed, failed = resume_copying(sides, promotions)
    except KafkaFailure as failure:
        problems.append(f"{sentence}: {failure}")
        return
    done += resumed
    problems += failed


def check_reverse_names(sides: Sides, reverse: FlowConfig, topics: Collection[str]) -> None:
    """Raise Refused if the opposite flow cannot take over these topics: it does not select them, or transformations change the names
    that those of the flow have kept.
    """
    names = topic_selection(reverse.source_connector, storage_topics(reverse.worker))
    if left_out := sorted(topic for topic in topics if not names.should_replicate(topic)):
        more = f" and {len(left_out) - 1:,} more" if len(left_out) > 1 else ""
        raise Refused(
            f"{reverse.pair} would copy nothing of {left_out[0]}{more} to {reverse.pair.target}: its topics and topics.exclude, or its "
            f"replication policy, do not select it. Change {reverse.pair}.topics, or choose other topics with --topic."
        )
    other = next((topic for topic in sorted(topics) if names.remote(topic) != topic), None)
    if sides.selection.route and other is not None:
        raise Refused(
            f"{reverse.pair} would copy {other} to {reverse.pair.target} as {names.remote(other)}, so it cannot continue the topic "
            f"{other} there, which transformations of {sides.pair} name: give {reverse.pair} transformations that keep its name."
        )


def _tail_problems(
    sides: Sides, partitions: Sequence[PartitionEvidence], tail: Sequence[PartitionEvidence], unlisted: str
) -> list[str]:
    """Messages about records that are, or may be, on the source only."""
    problems = []
    if tail:
        records = missing_records(tail).of("record")
        problems.append(
            f"on {sides.pair.source} only: {records} in {counted(len(tail), 'partition')}, and nothing was changed: check these "
            "records, then use --divergent keep"
        )
    if error := unlisted or unknown_ends_error(sides, partitions):
        problems.append(f"{error}, and nothing was changed: fix the cause, or use --divergent keep")
    return problems


def _unknown_starts(sides: Sides, reverse: FlowConfig, unknown: Iterable[PartitionEvidence]) -> list[str]:
    """Messages about topics that the opposite flow cannot take over; it takes over the others."""
    return [
        f"the end of the records from {sides.pair.source} in {one.target} is unknown, and so is the start position of {reverse.pair}: set it "
        f"with PATCH /connectors/{SOURCE_NAME}/offsets"
        for one in unknown
    ]


class _FlowReversal:
    """Makes the opposite flow copy topics that have the same name on both clusters."""

    def __init__(
        self,
        sides: Sides,
        reverse: FlowConfig,
        partitions: Sequence[PartitionEvidence],
        promotions: Mapping[str, Promotion],
        *,
        from_beginning: Collection[str] = (),
        tail: Sequence[PartitionEvidence] = (),
    ) -> None:
        """``from_beginning``: topics that are copied completely, and without a position. ``tail``: partitions with records that stay on
        the source.
        """
        self._sides = sides
        self._reverse = reverse
        self._partitions = partitions
        self._tail = tail
        self._topics = {one.topic for one in partitions}
        self._promotions = promotions
        self._offsets_topic = reverse.worker["offset.storage.topic"]
        self._wanted = {
            one.source: None if one.topic in from_beginning else one.target_offset or 0 for one in partitions
        }

    def starts(self, before: Sequence[StartEvidence] | None = None) -> list[StartEvidence]:
        """The wanted start offset of each partition, and the one currently stored.

        ``before`` are the start offsets before the write; with it, the stored offsets are verified. Raises Refused if
        the flow has no offsets topic.
        """
        kept = self._kept()
        rows = []
        for index, one in enumerate(self._partitions):
            wanted, found = self._wanted[one.source], _position(kept.get(one.source))
            previous = found if before is None else before[index].before
            is_verified = before is not None and found == wanted
            rows.append(StartEvidence(one.topic, one.partition, wanted or 0, previous, is_verified))
        return rows

    def execute(self, done: list[str], problems: list[str]) -> list[StartEvidence]:
        """Write the positions, permit the flow to copy, then trigger it. Raises Refused before any of these steps."""
        planned = self.starts()
        try:
            self._write_positions({TopicPartition(one.topic, one.partition): one.before for one in planned})
            after = self.starts(planned)
            if wrong := [one for one in after if not one.verified]:
                problems.append(
                    f"the position of {wrong[0].topic}-{wrong[0].partition} was written, but a different one was read back: "
                    f"another process writes positions of {self._reverse.pair}; it is not started"
                )
                return after
            done.append(f"{counted(len(after), 'position')} of {self._reverse.pair} written and read back")
            self._permit_copying()
        except (Refused, KafkaFailure) as failure:
            problems.append(f"{self._reverse.pair} was not started, run the command again: {failure}")
            return planned
        done.append(
            f"{self._reverse.pair} is permitted to copy {counted(len(self._topics), 'topic')} that {self._sides.pair} copied before"
        )
        problems += disturbed(self._sides)
        try:
            self._trigger_copying(done, problems)
        except (Refused, KafkaFailure) as failure:
            problems.append(f"cannot verify that {self._reverse.pair} has started copying: {failure}")
        return after

    def withdraw(self, done: list[str], problems: list[str]) -> None:
        """Only withdraw the promotions of the opposite flow, which has its positions."""
        try:
            self._check_unchanged()
            if any(not is_left_promoted(self._sides, self._promotions[topic]) for topic in self._topics):
                raise Refused(_CHANGED.format(min(self._topics)))
            self._write_reverse_ledger([withdrawn(topic) for topic in self._topics])
            done.append(f"{counted(len(self._topics), 'topic')} no longer promoted by {self._reverse.pair}")
            self._trigger_copying(done, problems)
        except (Refused, KafkaFailure) as failure:
            problems.append(
                f"cannot verify that {self._reverse.pair} has started copying, run the command again: {failure}"
            )

    def _kept(self) -> dict[TopicPartition, KeptOffset]:
        with self._source(ClientKind.CONSUMER) as cluster:
            if self._offsets_topic not in cluster.metadata([self._offsets_topic]).topics:
                raise Refused(
                    f"Cluster {self._reverse.pair.target} has no topic {self._offsets_topic}, so the flow {self._reverse.pair} has never "
                    f"run: set {self._reverse.pair}.enabled = true, start it once, then run the command again."
                )
            kept = kept_offsets(cluster, self._offsets_topic, READ_S)
        found = {}
        for one in kept:
            partition = one.partition or {}
            if one.connector == SOURCE_NAME and partition.get("cluster") == self._reverse.pair.source:
                found[TopicPartition(str(partition.get("topic")), int(partition.get("partition", -1)))] = one
        return found

    def _source(self, kind: ClientKind) -> AbstractContextManager[Cluster]:
        """The cluster that becomes the target: the source of this flow."""
        return self._sides.client(Side.SOURCE, kind)

    def _check_unchanged(self) -> None:
        """Raise Refused if another command has changed the promotions since they were read. This one may have been frozen, for hours.

        Called right before each write: nothing on the broker excludes the write of a command that continues later.
        """
        self._sides.refresh()
        now = promoted(self._sides.ledger)
        changed = sorted(topic for topic in self._topics if now.get(topic) != self._promotions[topic])
        if changed or not self._sides.is_undisturbed:
            raise Refused(_CHANGED.format(changed[0] if changed else min(self._topics)))

    def _write_positions(self, before: Mapping[TopicPartition, int | None]) -> None:
        """Raises Refused if the positions are not those ``before``."""
        kept = self._kept()
        for tp, wanted in self._wanted.items():
            if _position(kept.get(tp)) not in {before[tp], wanted}:
                raise Refused(_CHANGED.format(tp.topic))
        with self._source(ClientKind.PRODUCER) as cluster:
            count = len(cluster.metadata([self._offsets_topic]).topics[self._offsets_topic].partitions)
            batches: dict[int, list[Record]] = {}
            for one in self._partitions:
                key = offset_key(SOURCE_NAME, self._reverse.pair.source, one.source)
                known = kept.get(one.source)
                log_partition = partition_for(key, count) if known is None else known.log_partition
                wanted = self._wanted[one.source]
                record = Record(key if known is None else known.key, None if wanted is None else offset_value(wanted))
                batches.setdefault(log_partition, []).append(record)
            producer = Producer(cluster)
            self._check_unchanged()
            for log_partition, records in batches.items():
                producer.send(self._offsets_topic, records, log_partition, timeout_s=WRITE_S)

    def _permit_copying(self) -> None:
        """Withdraw the promotions of the opposite flow and this flow's claims to the topics."""
        self._check_unchanged()
        self._note_kept()
        reverse_promoted = [topic for topic in self._topics if self._is_promoted_in_reverse(topic)]
        if reverse_promoted:
            self._write_reverse_ledger([withdrawn(topic) for topic in reverse_promoted])
        turned = [
            Promotion(one.topic, one.remote_topic, one.verb, one.at_ms, turned=True)
            for topic, one in self._promotions.items()
            if topic in self._topics
        ]
        self._check_unchanged()
        claims = [note_record(PROVENANCE_NOTE, [one.remote_topic], None) for one in turned]
        self._sides.write_ledger([*claims, *(one.record() for one in turned)], promotions=len(turned))

    def _note_kept(self) -> None:
        """Note what stays on one cluster only, in the ledger of the flow that reads from it."""
        entries = {one.source: self._sides.ledger.entry(one.source) for one in [*self._partitions, *self._tail]}
        foreign = {one.source: one.foreign_on_target for one in self._partitions if one.foreign_on_target}
        if foreign and self._sides.reverse_ledger is not None:
            ids = {tp: entry.target_id for tp, entry in entries.items() if entry is not None}
            self._write_reverse_ledger(kept_note_records(self._sides.reverse_ledger, ids, foreign))
        tails = {
            one.source: [ForeignRun(one.next_offset, one.end, one.missing_after.least)]
            for one in self._tail
            if one.is_end_current and one.end is not None and one.next_offset < one.end and one.missing_after
        }
        if tails:
            ids = {tp: entry.source_id for tp, entry in entries.items() if entry is not None}
            self._sides.write_ledger(kept_note_records(self._sides.ledger, ids, tails))

    def _is_promoted_in_reverse(self, topic: str) -> bool:
        return self._sides.reverse_ledger is not None and topic in promoted(self._sides.reverse_ledger)

    def _write_reverse_ledger(self, records: Sequence[Record]) -> None:
        with self._source(ClientKind.PRODUCER) as cluster:
            Producer(cluster).send(self._sides.clients.opposite_ledger_topic, list(records), 0, timeout_s=WRITE_S)

    def _trigger_copying(self, done: list[str], problems: list[str]) -> None:
        """Make the opposite flow's source connector refresh its topics now, by Connect's restart record (KIP-745)."""
        with Sides.opened(self._reverse) as other:
            not_running = (
                f"no process of {self._reverse.pair} is running; it starts copying at these offsets when one starts"
            )
            if other.workers == 0:
                done.append(not_running)
                return
            request = RestartRequest(SOURCE_NAME, only_failed=False, include_tasks=False)
            with other.client(Side.TARGET, ClientKind.PRODUCER) as cluster:
                _send_json(
                    cluster,
                    self._reverse.worker["config.storage.topic"],
                    RESTART_PREFIX + SOURCE_NAME,
                    encode(request),
                )
            deadline = time.monotonic() + START_TIMEOUT_S
            wanted = {tp: offset or 0 for tp, offset in self._wanted.items()}
            while True:
                other.refresh()
                waiting = [tp for tp, offset in wanted.items() if not self._is_copying(other, tp, offset)]
                if not waiting:
                    done.append(
                        f"{self._reverse.pair} copies {counted(len(wanted), 'partition')}, from the written positions"
                    )
                    return
                if other.workers == 0:  # a killed worker leaves the group at the end of its session only
                    done.append(not_running)
                    return
                if time.monotonic() > deadline:
                    problems.append(
                        f"{counted(len(waiting), 'partition')}, first {waiting[0]}, not copied by {self._reverse.pair} after {START_TIMEOUT_S:.0f} s; "
                        "it detects them at the next refresh of topics (refresh.topics.interval.seconds)"
                    )
                    return
                time.sleep(_POLL_S)

    @staticmethod
    def _is_copying(other: Sides, tp: TopicPartition, offset: int) -> bool:
        """Whether the flow has claimed the topic and written its position.

        No position is required before its first transaction.
        """
        if (other.selection.remote(tp.topic),) not in other.ledger.notes(PROVENANCE_NOTE):
            return False
        entry = other.ledger.entry(tp)
        if entry is None or entry.session is None:
            return other.config.worker.get("exactly.once.source.support") == "enabled"
        return entry.condition is None and entry.mark.source >= offset


def _position(kept: KeptOffset | None) -> int | None:
    """The next offset to copy; None if none is stored."""
    done = None if kept is None else (kept.offset or {}).get("offset")
    return done + 1 if isinstance(done, int) else None


def _send_json(cluster: Cluster, topic: str, key: str, value: Mapping[str, bool]) -> None:
    Producer(cluster).send(topic, [Record(key.encode(), internal_json.encode(value))], 0, timeout_s=WRITE_S)


def _advice_about_changes(sides: Sides, reverse: FlowConfig) -> list[str]:
    """What the transformations of both directions mean for the records that come back. No record was compared."""
    source, target = sides.pair.source, sides.pair.target
    advice = []
    if keys := sides.changed_by:
        advice.append(
            f"{sides.pair} changes or drops records by {', '.join(keys)}: the records on {source} and those copied to {target} "
            "are not compared, and none of them is copied back"
        )
    if keys := changing_keys(reverse.source_connector, reverse.worker):
        advice.append(
            f"{reverse.pair} changes or drops records by {', '.join(keys)}: {source} gets the records written on {target} as it "
            f"makes them; those that it drops stay on {target} only (mm2 gaps)"
        )
    return advice


def _advice(
    sides: Sides,
    reverse: FlowConfig,
    tail: Sequence[PartitionEvidence],
    renamed: Collection[str],
    unnamed: Collection[str],
    partitions: Sequence[PartitionEvidence],
    way_back: WayBack,
) -> list[str]:
    source, target = sides.pair.source, sides.pair.target
    advice = []
    if any(one.topic in unnamed for one in tail):
        advice.append(
            f"records that are only on {source} stay there, before all records from {target}; groups that return continue after them. Read "
            f"them from {source} by partition and offset"
        )
    if any(one.topic in renamed for one in tail):
        advice.append(
            f"records that are only on {source} are copied to {target} when {sides.pair} continues, after the existing ones"
        )
    advice += _advice_about_changes(sides, reverse)
    foreign = [one for one in partitions if one.topic in renamed and one.others]
    if foreign:
        advice.append(
            f"{counted(sum(one.others or 0 for one in foreign), 'record')} of other producers are in {foreign[0].remote_topic} on {target} after those "
            f"from {source}, in {counted(len(foreign), 'partition')} in all; no flow copies them to {source}"
        )
    advice += way_back.sentences(copied=False)
    if sides.config.has_reverse:
        advice.append(
            f"to return to {source}: stop applications on {target}, then mm2 failover FILE '{target}->{source}' --wait 60"
        )
    return advice
