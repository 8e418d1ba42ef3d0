"""One verification of a flow: plan, compare, compare differing ranges in detail, and report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from mm2.copy.ledger import Ledger, LedgerLog, Verified, ledger_topic, verified_record
from mm2.kafka.admin import Admin
from mm2.kafka.cluster import Cluster
from mm2.kafka.errors import CorruptBatch, KafkaFailure
from mm2.kafka.reader import read_partition
from mm2.kafka.structs import EARLIEST, LATEST, OffsetInfo, TopicInfo, TopicPartition
from mm2.mirror.clients import ClientKind, MirrorClients, Side
from mm2.mirror.discovery import vanished
from mm2.mirror.formats import FormatError, OffsetSync
from mm2.mirror.ledgers import Ledgers
from mm2.mirror.plugins import replication_policy, topic_filter
from mm2.mirror.selection import TopicSelection
from mm2.mirror.syncs_topic import syncs_side, syncs_topic
from mm2.verify import planning
from mm2.verify.driver import Outcome, Verifier
from mm2.verify.findings import Findings
from mm2.verify.passes import joined
from mm2.verify.planning import Asked, NotOfTheFlow, PartitionPlan, plan_partition, split_spans
from mm2.verify.report import PartitionReport, VerifyReport
from mm2.verify.spans import Span, SpanSet

_PREFLIGHT_S: Final = 5.0
_READ_S: Final = 60.0

Progress = Callable[[int, int, int], None]
"""Called with the bytes read, the ranges completed, and the number of ranges."""


class Verification:
    """The verification of one flow; ``props`` are its source connector's, with references resolved.

    ``rate``: bytes per second of both sides together, 0 for no limit. ``patience_s``: how long a broker may return no
    data.
    """

    def __init__(
        self, props: Mapping[str, str], verifier: Verifier, *, rate: float = 0, patience_s: float = 60
    ) -> None:
        self._props = props
        self._clients = MirrorClients(props)
        self._verifier = verifier
        self._rate = rate
        self._patience_s = patience_s
        consumer = self._clients.client_props(Side.SOURCE, ClientKind.CONSUMER, "verify-source-consumer")
        self._read_committed = consumer.get("isolation.level", "").strip() == "read_committed"

    def run(
        self, asked: Asked, progress: Progress = lambda _bytes, _done, _all: None, *, goes_on: bool = False
    ) -> VerifyReport:
        """Compare the requested part. ``goes_on``: only what was copied since the last comparison in the ledger.

        Raises KafkaFailure if a cluster does not answer, NotOfTheFlow for an unknown topic or partition (an empty
        comparison would always be equal), and SparkUnavailable.
        """
        began_ms = _now_ms()
        with self._cluster(Side.SOURCE) as source, self._cluster(Side.TARGET) as target:
            ledger = self._ledger(target)
            plans = self._plans(asked, ledger, source, target, goes_on=goes_on)
        split_spans(plans, self._verifier.parallel)
        found = {id(plan): Findings() for plan in plans}
        read = 0

        def tell(total: int) -> Callable[[int, int], None]:
            return lambda size, done: progress(read + size, done, total)

        flat = [(plan, span) for plan in plans for span in plan.spans]
        outcomes = self._verifier.examine([span for _, span in flat], self._job(), tell(len(flat)))
        again: list[tuple[PartitionPlan, Span]] = []
        rows = iter(outcomes)
        for plan in plans:
            came = [(span, next(rows)) for span in plan.spans]
            found[id(plan)].bytes += sum(_in_vain(outcome) for _, outcome in came)
            for group in _alike(came):
                if isinstance(group, Span):
                    again.append((plan, group))
                else:
                    _take(plan, found[id(plan)], group)
        read = sum(findings.bytes for findings in found.values())
        closer = self._verifier.examine([span for _, span in again], self._job(), tell(len(again)))
        for (plan, _), outcome in zip(again, closer, strict=True):
            _take(plan, found[id(plan)], outcome)
        reports = tuple(PartitionReport.of(plan, found[id(plan)]) for plan in plans)
        return VerifyReport(
            self._clients.flow, began_ms, _now_ms(), len(flat), reports, is_everything=asked.is_everything
        )

    def note(self, report: VerifyReport) -> None:
        """Store in the ledger, if there is one, how far each partition was compared.

        Entries for topics that were recreated are deleted. Raises KafkaFailure.
        """
        with self._cluster(Side.TARGET) as target:
            ledger = self._ledger(target)
            if ledger is None:
                return
            records = []
            for row in report.partitions:
                verified, noted = row.verified(report.ended_ms), ledger.verified(row.source)
                is_stale = noted is not None and not noted.is_of(row.source_id, row.target_id)
                if verified is not None or is_stale:
                    records.append(verified_record(row.source, verified))
            Ledgers(self._clients, target).write(records)

    # -- inputs ------------------------------------------------------------------------------------------------------

    @contextmanager
    def _cluster(self, side: Side) -> Iterator[Admin]:
        cluster, admin = self._clients.admin(side, f"verify-{side.value}-admin")
        try:
            cluster.preflight(_PREFLIGHT_S)
            yield admin
        finally:
            cluster.close()

    def _ledger(self, target: Admin) -> Ledger | None:
        """The flow's ledger; None if there is none: records are then matched by content."""
        topic = ledger_topic(self._clients.source_alias)
        answer = target.describe_topics([topic])[topic]
        if vanished(answer):
            return None
        if isinstance(answer, KafkaFailure):
            raise answer
        settings = self._clients.settings(Side.TARGET, ClientKind.CONSUMER, "ledger-consumer")
        following = LedgerLog(settings, topic, name=self._clients.target_alias)
        try:
            following.start(_READ_S)
        finally:
            following.stop()
        return following.ledger

    def _plans(
        self, asked: Asked, ledger: Ledger | None, source: Admin, target: Admin, *, goes_on: bool
    ) -> list[PartitionPlan]:
        names = self._names(asked, ledger, source)
        isolation = "read_committed" if self._read_committed else "read_uncommitted"
        # The target first: records that are copied between the two reads are on the source already, and not expected.
        there = planning.ClusterOffsets.look(target, names.values(), "read_committed")
        here = planning.ClusterOffsets.look(source, names, isolation)
        plans: list[PartitionPlan] = []
        for topic, remote in sorted(names.items()):
            info = here.topics[topic]
            known_ones = [] if ledger is None else [tp.partition for tp in ledger.partitions() if tp.topic == topic]
            indexes = set(known_ones) | (set(info.partitions) if isinstance(info, TopicInfo) else set())
            plans += [
                PartitionPlan(topic, index, remote)
                for index in sorted(indexes)
                if asked.covers(TopicPartition(topic, index))
            ]
        if absent := asked.not_among({plan.source for plan in plans}):
            raise NotOfTheFlow(
                f"{self._clients.flow} has nothing of {', '.join(absent)} to compare: neither does it copy that from "
                f"{self._clients.source_alias}, nor has it done so."
            )
        wanted = self._offsets(asked, source, plans)
        strangers = [plan for plan in plans if ledger is None or ledger.entry(plan.source) is None]
        syncs = self._syncs() if strangers else {}
        for plan in plans:
            first, after = wanted.get(plan.source, (None, None))
            if goes_on and ledger is not None and (before := _known(ledger, plan, here, there)) is not None:
                first, plan.before = before.checked, before
            plan_partition(plan, ledger, syncs.get(plan.source, ()), (here, there), (first, after))
        return plans

    def _names(self, asked: Asked, ledger: Ledger | None, source: Admin) -> dict[str, str]:
        """Topics of the source and their names on the target: those in the ledger, and those that are selected now."""
        policy = replication_policy(self._props)
        selection = TopicSelection(
            policy,
            topic_filter(self._props),
            self._clients.source_alias,
            self._clients.target_alias,
            self._props.get("heartbeats.replication.enabled", "true").strip().lower() == "true",
        )
        names = {topic: selection.remote(topic) for topic in source.list_topics() if selection.should_replicate(topic)}
        for partition in () if ledger is None else ledger.partitions():
            entry = None if ledger is None else ledger.entry(partition)
            if entry is not None:
                names[partition.topic] = entry.remote_topic
        chosen = asked.topics | {partition.topic for partition in asked.offsets}
        return {topic: remote for topic, remote in names.items() if not chosen or topic in chosen}

    def _offsets(
        self, asked: Asked, source: Admin, plans: Sequence[PartitionPlan]
    ) -> dict[TopicPartition, tuple[int | None, int | None]]:
        """The requested source offsets; times are translated to offsets."""
        if asked.from_ms is None and asked.to_ms is None:
            return dict(asked.offsets)
        partitions = [plan.source for plan in plans]
        found: list[dict[TopicPartition, int | None]] = []
        for time_ms in (asked.from_ms, asked.to_ms):
            if time_ms is None:
                found.append({})
                continue
            answers = source.list_offsets(dict.fromkeys(partitions, time_ms))
            # -1: no record has this timestamp or a later one.
            found.append({tp: answer.offset for tp, answer in answers.items() if isinstance(answer, OffsetInfo)})
        ends = source.list_offsets(dict.fromkeys(partitions, LATEST))
        wanted: dict[TopicPartition, tuple[int | None, int | None]] = {}
        for tp in partitions:
            first, after, end = found[0].get(tp), found[1].get(tp), ends[tp]
            if first == -1:
                first = end.offset if isinstance(end, OffsetInfo) else None
            wanted[tp] = (first, None if after == -1 else after)
        return wanted

    def _syncs(self) -> dict[TopicPartition, list[tuple[int, int]]]:
        """The flow's offset syncs: (source, target) offsets by partition; empty if there is no such topic."""
        side, topic = syncs_side(self._props), syncs_topic(self._props)
        cluster = self._clients.cluster(side, ClientKind.CONSUMER, "verify-syncs-consumer")
        try:
            return _read_syncs(cluster, topic)
        finally:
            cluster.close()

    def _job(self) -> SpanSet:
        clients = self._clients
        return SpanSet(
            clients.settings(Side.SOURCE, ClientKind.CONSUMER, "verify-source-consumer"),
            clients.settings(Side.TARGET, ClientKind.CONSUMER, "verify-target-consumer"),
            clients.source_alias,
            clients.target_alias,
            (),
            self._read_committed,
            self._rate,
            self._patience_s,
        )


def _known(
    ledger: Ledger, plan: PartitionPlan, source: planning.ClusterOffsets, target: planning.ClusterOffsets
) -> Verified | None:
    """How far a partition was compared before.

    None if it never was, or if the result is obsolete: one of its topics was recreated since, or the target has lost
    compared records.
    """
    before = ledger.verified(plan.source)
    if before is None or not before.is_of(source.topic_id(plan.topic), target.topic_id(plan.remote_topic)):
        return None
    end = target.ends.get(TopicPartition(plan.remote_topic, plan.partition))
    return None if before.target < 0 or (isinstance(end, int) and end < before.target) else before


def _read_syncs(cluster: Cluster, topic: str) -> dict[TopicPartition, list[tuple[int, int]]]:
    admin, place = Admin(cluster), TopicPartition(topic, 0)
    info = admin.describe_topics([topic])[topic]
    if vanished(info):
        return {}
    if isinstance(info, KafkaFailure):
        raise info
    ends = [admin.list_offsets({place: when})[place] for when in (EARLIEST, LATEST)]
    offsets: list[int] = []
    for end in ends:
        if isinstance(end, KafkaFailure):
            raise end
        offsets.append(end.offset)
    found: dict[TopicPartition, list[tuple[int, int]]] = {}
    for record in read_partition(cluster, info, 0, start=offsets[0], end=offsets[1]):
        try:
            sync = OffsetSync.decode(record.key, record.value)
        except (FormatError, CorruptBatch):
            continue
        pair = (sync.upstream_offset, sync.downstream_offset)
        found.setdefault(TopicPartition(sync.topic, sync.partition), []).append(pair)
    return found


def _alike(outcomes: Sequence[tuple[Span, Outcome]]) -> Iterator[Outcome | Span]:
    """The results of adjacent ranges; adjacent differing ranges are joined into one to be compared in detail."""
    unlike: list[Span] = []
    for span, outcome in outcomes:
        if isinstance(outcome, Findings) and outcome.unlike is not None:
            last = unlike[-1].stretch if unlike else span.stretch
            if unlike and (last.after, last.target_after) != (span.stretch.first, span.stretch.target_first):
                yield _closer(unlike)
                unlike = []
            unlike.append(span)
            continue
        if unlike:
            yield _closer(unlike)
            unlike = []
        yield outcome
    if unlike:
        yield _closer(unlike)


def _in_vain(outcome: Outcome) -> int:
    """The bytes that were read of a range that must be read again."""
    return outcome.bytes if isinstance(outcome, Findings) and outcome.unlike is not None else 0


def _closer(spans: Sequence[Span]) -> Span:
    hidden = tuple(sorted({gap for span in spans for gap in span.hidden}))
    return replace(spans[0], stretch=joined([span.stretch for span in spans]), hidden=hidden, closely=True)


def _take(plan: PartitionPlan, findings: Findings, outcome: Outcome) -> None:
    if isinstance(outcome, Findings):
        findings.add(outcome)
    else:
        plan.trouble = plan.trouble or outcome


def _now_ms() -> int:
    return int(time.time() * 1000)
