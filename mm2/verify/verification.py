"""One verification of a flow: plan, compare, compare differing ranges in detail, and report."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from mm2.config.definitions.validators import is_topic_name
from mm2.copy.progress.ledger import Ledger, Verified, verified_record
from mm2.copy.progress.session import LedgerEntry
from mm2.copy.spec import ChangesSpec
from mm2.kafka.admin import Admin
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, CorruptBatch, value_of
from mm2.kafka.readers.reader import read_partition
from mm2.kafka.structs import EARLIEST, LATEST, OffsetInfo, TopicPartition
from mm2.mirror.common.clients import ClientKind, MirrorClients, Side
from mm2.mirror.common.discovery import vanished
from mm2.mirror.common.formats import FormatError, OffsetSync
from mm2.mirror.common.recurring_errors import RecurringErrors
from mm2.mirror.common.syncs_topic import syncs_side, syncs_topic
from mm2.mirror.notes.ledgers import Ledgers
from mm2.mirror.process.adoption import next_offsets
from mm2.mirror.source.record_changes import changing_keys
from mm2.mirror.source_connector import topic_selection
from mm2.mirror.topics.provenance import Provenance
from mm2.mirror.topics.selection import TopicSelection
from mm2.verify import planning
from mm2.verify.comparing.findings import Findings
from mm2.verify.comparing.passes import join
from mm2.verify.comparing.spans import Span, SpanSet
from mm2.verify.driver import RangeOutcome, Verifier
from mm2.verify.planning import (
    NotInFlow,
    PartitionPlan,
    VerifyRequest,
    partitions_to_compare,
    plan_partition,
    split_spans,
    why_not_in_log,
)
from mm2.verify.report import PartitionReport, VerifyReport

_PREFLIGHT_S: Final = 5.0
_READ_S: Final = 60.0

Progress = Callable[[int, int, int], None]
"""Called with the bytes read, the ranges completed, and the number of ranges."""


class Verification:
    """The verification of one flow; ``props`` are its source connector's, with references resolved.

    ``changes``: what changes the flow's records (`mm2.mirror.source.record_changes.changes_spec`). ``rate``: bytes per second of
    both sides together, 0 for no limit. ``patience_s``: how long a broker may return no data. ``offsets_topic``: Connect's, on
    the target, which shows whether the last transaction was committed; "": only the end of the remote topic does.
    """

    def __init__(
        self,
        props: Mapping[str, str],
        verifier: Verifier,
        *,
        changes: ChangesSpec | None = None,
        rate: float = 0,
        patience_s: float = 60,
        offsets_topic: str = "",
    ) -> None:
        self._props = props
        self._offsets_topic = offsets_topic
        self._clients = MirrorClients(props)
        self._verifier = verifier
        self._changes = changes
        self._rate = rate
        self._patience_s = patience_s
        consumer = self._clients.client_props(Side.SOURCE, ClientKind.CONSUMER, "verify-source-consumer")
        self._read_committed = consumer.get("isolation.level", "").strip() == "read_committed"

    def run(
        self,
        request: VerifyRequest,
        progress: Progress = lambda _bytes, _done, _all: None,
        *,
        incremental: bool = False,
    ) -> VerifyReport:
        """Compare the requested part. ``incremental``: only what was copied since the last comparison in the ledger.

        Raises KafkaFailure if a cluster does not answer, NotInFlow for an unknown topic or partition (an empty
        comparison would always be equal), and SparkUnavailable.
        """
        began_ms = _now_ms()
        with self._cluster(Side.SOURCE) as source, self._cluster(Side.TARGET) as target:
            ledger = self._ledger(target)
            plans, deleted = self._plans(request, ledger, source, target, incremental=incremental)
        split_spans(plans, self._verifier.parallel)
        found = {id(plan): Findings() for plan in plans}
        read = 0

        def on_progress(total: int) -> Callable[[int, int], None]:
            return lambda size, done: progress(read + size, done, total)

        flat = [(plan, span) for plan in plans for span in plan.spans]
        outcomes = self._verifier.compare([span for _, span in flat], self._job(), on_progress(len(flat)))
        mismatched: list[tuple[PartitionPlan, Span]] = []
        rows = iter(outcomes)
        for plan in plans:
            results = [(span, next(rows)) for span in plan.spans]
            found[id(plan)].bytes += sum(_repeated_bytes(outcome) for _, outcome in results)
            for group in _join_mismatches(results):
                if isinstance(group, Span):
                    mismatched.append((plan, group))
                else:
                    _add_outcome(plan, found[id(plan)], group)
        read = sum(findings.bytes for findings in found.values())
        detailed = self._verifier.compare([span for _, span in mismatched], self._job(), on_progress(len(mismatched)))
        for (plan, _), outcome in zip(mismatched, detailed, strict=True):
            _add_outcome(plan, found[id(plan)], outcome)
        reports = tuple(PartitionReport.of(plan, found[id(plan)]) for plan in plans)
        changes = self._changes
        return VerifyReport(
            self._clients.flow,
            began_ms,
            _now_ms(),
            len(flat),
            reports,
            is_everything=request.is_everything and not request.topics,
            changed_by=() if changes is None else tuple(changing_keys(changes.settings, {})),
            not_repeatable="" if changes is None else changes.not_repeatable,
            deleted=deleted,
        )

    def store_verified(self, report: VerifyReport) -> None:
        """Store in the ledger, if there is one, how far each partition was compared.

        Entries for topics that were recreated, or deleted on both clusters, are deleted. Raises KafkaFailure.
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
            deleted = [source for source in ledger.verifications() if source.topic in report.deleted]
            records += [verified_record(source, None) for source in sorted(deleted)]
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
        topic = self._clients.ledger_topic
        answer = target.describe_topics([topic])[topic]
        if vanished(answer):
            return None
        value_of(answer)
        return self._clients.ledger_now(Side.TARGET, topic, _READ_S)

    def _undone(self, ledger: Ledger | None) -> dict[TopicPartition, bool]:
        """Whether the ledger's entry of a partition belongs to a transaction that was not committed (exactly-once).

        Partitions of which this is not known are absent.
        """
        entries = [] if ledger is None else [ledger.entry(partition) for partition in ledger.partitions()]
        open_ones = [entry for entry in entries if entry is not None and entry.before is not None]
        if not open_ones or not self._offsets_topic:
            return {}
        cluster = self._clients.cluster(Side.TARGET, ClientKind.CONSUMER, "verify-offsets-consumer")
        try:
            positions = next_offsets(cluster, self._offsets_topic, self._clients.source_alias, _READ_S)
        finally:
            cluster.close()
        known = {entry.source: positions.get(entry.source) for entry in open_ones}
        undone = {entry.source: entry.is_undone(known[entry.source]) for entry in open_ones}
        committed = {entry.source for entry in open_ones if known[entry.source] == entry.mark.source}
        return {place: is_undone for place, is_undone in undone.items() if is_undone or place in committed}

    def _plans(
        self, request: VerifyRequest, ledger: Ledger | None, source: Admin, target: Admin, *, incremental: bool
    ) -> tuple[list[PartitionPlan], frozenset[str]]:
        """The partitions to compare, and the topics left out because both clusters have deleted them."""
        selection = topic_selection(self._props)
        undone = self._undone(ledger)
        copied_to = _remote_topics(ledger, undone)
        names = self._names(request, copied_to, source, target, selection)
        isolation = "read_committed" if self._read_committed else "read_uncommitted"
        # After the positions: the records of a transaction that they show as committed are on the target, unless they were lost.
        # The target first: records that are copied between the two reads are on the source already, and not expected.
        remotes = {*names.values(), *(remote for place, remote in copied_to.items() if place.topic in names)}
        on_target = planning.ClusterOffsets.read(target, remotes, "read_committed")
        on_source = planning.ClusterOffsets.read(source, names, isolation)
        plans: list[PartitionPlan] = []
        changes = "" if self._changes is None else self._changes.digest
        is_selection = bool(request.topics or request.offsets)
        deleted = set()
        merged = _merged(copied_to, names)
        for topic, name in sorted(names.items()):
            if not is_selection and planning.is_gone(topic, name, copied_to, on_source, on_target):
                deleted.add(topic)
                continue
            named = selection.named_if_routed(topic)
            others = merged[name] - {topic}
            for index, error in partitions_to_compare(topic, name, copied_to, on_source, on_target, others).items():
                place = TopicPartition(topic, index)
                if request.covers(place):
                    remote = copied_to.get(place, name)
                    plans.append(PartitionPlan(topic, index, remote, changes=changes, named=named, error=error))
        if absent := request.missing_from({plan.source for plan in plans}):
            raise NotInFlow(
                f"{self._clients.flow} does not copy {', '.join(absent)} from {self._clients.source_alias}, and its ledger has no "
                "entry for it: there is nothing to compare."
            )
        if (
            not incremental
            and not is_selection
            and all(selection.policy.is_heartbeats_topic(plan.topic) for plan in plans)
        ):
            raise NotInFlow(
                f"{self._clients.flow} copies no topics: {self._clients.source_alias} shows this user none that topics and "
                "topics.exclude select, and the ledger has none. There is nothing to compare."
            )
        wanted = self._offsets(request, source, plans)
        without_entry = [plan for plan in plans if ledger is None or ledger.entry(plan.source) is None]
        syncs = self._syncs() if without_entry else {}
        for plan in plans:
            if plan.error:
                continue
            first, after = wanted.get(plan.source, (None, None))
            if (
                incremental
                and ledger is not None
                and (before := _previous_result(ledger, plan, on_source, on_target)) is not None
            ):
                first, plan.before = before.checked, before
            plan_partition(
                plan,
                ledger,
                syncs.get(plan.source, ()),
                (on_source, on_target),
                (first, after),
                is_undone=undone.get(plan.source),
                merged=_others(ledger, undone, plan, merged.get(plan.remote_topic, set()) - {plan.topic}),
            )
            if plan.source in request.offsets and not plan.error:
                plan.error = why_not_in_log(plan.source, on_source.range(plan.source)[1], first)
        return plans, frozenset(deleted)

    def _names(
        self,
        request: VerifyRequest,
        copied_to: Mapping[TopicPartition, str],
        source: Admin,
        target: Admin,
        selection: TopicSelection,
    ) -> dict[str, str]:
        """Topics of the source and their names on the target: those in the ledger, and those that are selected now."""
        copied = {place.topic: remote for place, remote in copied_to.items()}
        listed = source.list_topics()
        found = {topic for topic in listed if selection.should_replicate(topic)}
        selected = found | self._hidden(source, listed)
        if not selection.names_show_origin and (others := found - copied.keys()):
            provenance = Provenance(
                source, target, selection, Ledgers(self._clients, target), RecurringErrors(), lambda _: False
            )
            selected -= others - provenance.foreseen(others)
        names = copied | {topic: selection.remote(topic) for topic in selected}
        chosen = request.topics | {partition.topic for partition in request.offsets}
        return {topic: remote for topic, remote in names.items() if not chosen or topic in chosen}

    def _hidden(self, source: Admin, listed: Collection[str]) -> set[str]:
        """Topics that ``topics`` names and that the user may not describe: brokers do not list them."""
        missing = sorted({name.strip() for name in self._props.get("topics", "").split(",")} - set(listed))
        literal = [name for name in missing if is_topic_name(name)]
        answers = source.describe_topics(literal) if literal else {}
        return {
            name
            for name, answer in answers.items()
            if isinstance(answer, BrokerFailure) and answer.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        }

    def _offsets(
        self, request: VerifyRequest, source: Admin, plans: Sequence[PartitionPlan]
    ) -> dict[TopicPartition, tuple[int | None, int | None]]:
        """The requested source offsets; times are translated to offsets."""
        if request.from_ms is None and request.to_ms is None:
            return dict(request.offsets)
        partitions = [plan.source for plan in plans]
        found: list[dict[TopicPartition, int | None]] = []
        for time_ms in (request.from_ms, request.to_ms):
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
            self._changes,
        )


def _remote_topics(ledger: Ledger | None, undone: Mapping[TopicPartition, bool]) -> dict[TopicPartition, str]:
    """The remote topic to which each partition in the ledger was copied most recently."""
    found = {}
    for place in () if ledger is None else ledger.partitions():
        entry = None if ledger is None else ledger.entry(place)
        if entry is not None:
            found[place] = (entry.undone() if undone.get(place) else entry).remote_topic
    return found


def _others(
    ledger: Ledger | None, undone: Mapping[TopicPartition, bool], plan: PartitionPlan, topics: Collection[str]
) -> list[LedgerEntry] | None:
    """The entries of the other source partitions that are copied to the same target partition; None: it is no merge."""
    if not topics:
        return None
    places = [TopicPartition(topic, plan.partition) for topic in sorted(topics)]
    entries = [(place, None if ledger is None else ledger.entry(place)) for place in places]
    known = [entry.undone() if undone.get(place) else entry for place, entry in entries if entry is not None]
    return [entry for entry in known if entry.remote_topic == plan.remote_topic]


def _merged(copied_to: Mapping[TopicPartition, str], names: Mapping[str, str]) -> dict[str, set[str]]:
    """The source topics of each remote topic."""
    found: dict[str, set[str]] = {}
    for topic, remote in {(place.topic, remote) for place, remote in copied_to.items()} | set(names.items()):
        found.setdefault(remote, set()).add(topic)
    return found


def _previous_result(
    ledger: Ledger, plan: PartitionPlan, source: planning.ClusterOffsets, target: planning.ClusterOffsets
) -> Verified | None:
    """How far a partition was compared before.

    None if it never was, or if the result is obsolete: the remote topic has another name or one of the topics was recreated
    since, or the target has lost compared records.
    """
    before, entry = ledger.verified(plan.source), ledger.entry(plan.source)
    if before is None or (entry is not None and entry.former is not None and before.checked <= entry.former.until):
        return None
    if not before.is_of(source.topic_id(plan.topic), target.topic_id(plan.remote_topic)):
        return None
    end = target.ends.get(TopicPartition(plan.remote_topic, plan.partition))
    return None if before.target < 0 or (isinstance(end, int) and end < before.target) else before


def _read_syncs(cluster: Cluster, topic: str) -> dict[TopicPartition, list[tuple[int, int]]]:
    admin, partition = Admin(cluster), TopicPartition(topic, 0)
    info = admin.describe_topics([topic])[topic]
    if vanished(info):
        return {}
    description = value_of(info)
    start, end = (value_of(admin.list_offsets({partition: when})[partition]).offset for when in (EARLIEST, LATEST))
    found: dict[TopicPartition, list[tuple[int, int]]] = {}
    for record in read_partition(cluster, description, 0, start=start, end=end):
        try:
            sync = OffsetSync.decode(record.key, record.value)
        except (FormatError, CorruptBatch):
            continue
        pair = (sync.upstream_offset, sync.downstream_offset)
        found.setdefault(TopicPartition(sync.topic, sync.partition), []).append(pair)
    return found


def _join_mismatches(outcomes: Sequence[tuple[Span, RangeOutcome]]) -> Iterator[RangeOutcome | Span]:
    """The results of adjacent ranges; adjacent differing ranges are join into one to be compared in detail."""
    mismatched: list[Span] = []
    for span, outcome in outcomes:
        if isinstance(outcome, Findings) and outcome.first_mismatch is not None:
            last = mismatched[-1].piece if mismatched else span.piece
            if mismatched and (last.after, last.target_after) != (span.piece.first, span.piece.target_first):
                yield _in_detail(mismatched)
                mismatched = []
            mismatched.append(span)
            continue
        if mismatched:
            yield _in_detail(mismatched)
            mismatched = []
        yield outcome
    if mismatched:
        yield _in_detail(mismatched)


def _repeated_bytes(outcome: RangeOutcome) -> int:
    """The bytes that were read of a range that must be read again."""
    return outcome.bytes if isinstance(outcome, Findings) and outcome.first_mismatch is not None else 0


def _in_detail(spans: Sequence[Span]) -> Span:
    excluded = tuple(sorted({gap for span in spans for gap in span.excluded}))
    return replace(spans[0], piece=join([span.piece for span in spans]), excluded=excluded, in_detail=True)


def _add_outcome(plan: PartitionPlan, findings: Findings, outcome: RangeOutcome) -> None:
    if isinstance(outcome, Findings):
        findings.add(outcome)
    else:
        plan.error = plan.error or outcome


def _now_ms() -> int:
    return int(time.time() * 1000)
