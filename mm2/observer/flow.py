"""Observes one flow: combines the state of its clusters, its workers and this process's copying into one view."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from mm2.config.mirrormaker import SourceAndTarget
from mm2.connect.herder.distributed import DistributedHerder
from mm2.copy.causes import Cause, StoppedPartition, causes_of, sentences_of, shortened
from mm2.copy.driver.engine import CopyEngine
from mm2.copy.driver.status import FlowStatus
from mm2.copy.states import PartitionState
from mm2.copy.tally import BOUNDS_S
from mm2.evidence import Evidence
from mm2.kafka.structs import TopicPartition
from mm2.metrics.mirror import metric_formats
from mm2.mirror.common.clients import Side
from mm2.mirror.notes.kept_records import kept_count
from mm2.mirror.notes.preparation import preparations
from mm2.mirror.notes.source_answers import SourceAnswers, source_answers
from mm2.mirror.topics.topic_limits import left_out_groups, over_limit_message
from mm2.observer.flow_state import ON_ITS_WAY, FlowInputs, state_of, summary_of
from mm2.observer.groups import GroupViews
from mm2.observer.partition_inputs import PartitionInputs
from mm2.observer.partitions import Partitions, PartitionViews
from mm2.observer.polling.certificates import Certificates, client_certificates
from mm2.observer.polling.new_topics import NEW_TOPICS_S, NewTopicsPoll
from mm2.observer.polling.polls import FlowClients, GroupsPoll, HeartbeatsPoll, LedgerPoll, SourcePoll, TargetLogsPoll
from mm2.observer.polling.watch import PeriodicPoll
from mm2.observer.views import EvidenceView, FlowView, HeartbeatView, Latency, PartitionView, Risk
from mm2.observer.work import HerderWork, NoWork, StoredWork, Works
from mm2.reasons import PauseCode

#: Partitions whose end offsets are requested per second; the polling interval grows with their number.
_ENDS_PER_S: Final = 2_000
_MOST_S: Final = 10.0
_HEARTBEATS_S: Final = 2.0
_GROUPS_S: Final = 5.0
_GROUPS_PER_S: Final = 500
_TROUBLES_SHOWN: Final = 20
_STALLED_SHOWN: Final = 5
_LOSSES_SHOWN: Final = 100
_CLOCKS_DIFFER_MS: Final = 1_000
_RETRY_S: Final = 10.0


@dataclass(frozen=True)
class WatchedFlow:
    """A flow to observe.

    ``props`` are its source connector's and ``worker`` its worker's settings, with references resolved. ``herder`` is
    that of this process, None if there is none (yet). Contains secrets.
    """

    pair: SourceAndTarget
    props: Mapping[str, str] = field(repr=False)
    worker: Mapping[str, str] = field(repr=False, default_factory=dict)
    herder: DistributedHerder | None = None


class FlowObserver:
    """The observer of one flow, from `start` to `stop`.

    `view` is called by one thread and never waits for a cluster.
    """

    def __init__(self, flow: WatchedFlow, engine: CopyEngine | None) -> None:
        """Raises ConfigException; opens nothing."""
        self.flow = flow
        self._engine = engine
        self._clients = clients = FlowClients(flow.props)
        self._works: Works = NoWork() if flow.herder is None else HerderWork(flow.herder, flow.pair.source)
        self._source, self._ledger = SourcePoll(clients), LedgerPoll(clients)
        self._target_logs = TargetLogsPoll(clients, lambda: self._ledger.ledger)
        self._heartbeats, self._groups = HeartbeatsPoll(clients), GroupsPoll(clients)
        name = str(flow.pair)
        self._source_watch = PeriodicPoll(f"{name}-source", self._source, self._ends_interval_s)
        self._target_watch = PeriodicPoll(f"{name}-target", self._ledger, 1.0)
        self._target_logs_watch = PeriodicPoll(f"{name}-target-logs", self._target_logs, self._target_logs_interval_s)
        self._heartbeats_watch = PeriodicPoll(f"{name}-heartbeats", self._heartbeats, _HEARTBEATS_S)
        self._groups_watch = PeriodicPoll(f"{name}-groups", self._groups, self._groups_interval_s)
        self._new_topics = NewTopicsPoll(clients)
        self._new_topics_watch = PeriodicPoll(f"{name}-new-topics", self._new_topics, self._new_topics_interval_s)
        self._watches = (
            self._source_watch,
            self._target_watch,
            self._target_logs_watch,
            self._heartbeats_watch,
            self._groups_watch,
            self._new_topics_watch,
        )
        self._partition_views = PartitionViews(rates=engine is not None)
        self._group_views = GroupViews()
        self._metric_formats = metric_formats(flow.props)
        self._unread_work = ""
        self._work_read_s: float | None = None
        self._is_once = False
        self.certificates = Certificates(lambda: client_certificates(clients))

    def start(self) -> None:
        """Start polling; returns at once."""
        for watch in self._watches:
            watch.start()

    def stop(self) -> None:
        """Stop polling and close all connections, which aborts a request in flight."""
        for watch in self._watches:
            watch.signal_stop()
        for poll in (
            self._source,
            self._ledger,
            self._target_logs,
            self._heartbeats,
            self._groups,
            self._new_topics,
        ):
            poll.close()
        for watch in self._watches:
            watch.join()

    def look_once(self, timeout_s: float) -> FlowView:
        """One view from outside of the processes that run the flow.

        Waits at most ``timeout_s``; a cluster that does not answer takes all of it, and the view contains the error.
        """
        deadline, self._is_once = time.monotonic() + timeout_s, True
        for watch in self._watches:
            if watch not in {self._target_logs_watch, self._groups_watch, self._new_topics_watch}:
                watch.start()
        work = PeriodicPoll(f"{self.flow.pair}-work", self._read_stored_work, 3_600)
        work.start()
        for watch in (self._target_watch, work):
            watch.await_first(max(0.0, deadline - time.monotonic()))
        if work.answered_s is None and not self._target_watch.error:
            # Without the state of its workers, a stopped flow without lag would look like a running one.
            self._unread_work = work.error or "the topics of its workers were not read in time"
        work.signal_stop()  # only one answer was needed; `mm2 status --watch` calls this repeatedly
        self.view()  # the partitions to request from the source are known now
        self._target_logs_watch.start()
        self._groups_watch.start()  # the groups in the ledger are known now
        self._new_topics_watch.start()
        # Half of the time is left for the polls of the source, without which nothing is known.
        half = (time.monotonic() + deadline) / 2
        self._await_source(lambda: self._new_topics_watch.await_first(0), half)
        self.view()
        # The partitions to request from the source are known now. A poll that has begun before requests none, the next one shows which
        # timestamps are missing, and each of the others reads some of them.
        unread: set[TopicPartition] | None = None
        without_progress = 0
        while time.monotonic() < deadline and not self._source_watch.error:
            before = self._source.polls
            self._await_source(lambda: self._source.polls != before, deadline)  # noqa: B023  (called at once)
            logs = self._source.logs
            is_asked = self._source.partitions <= logs.ends.keys() | logs.missing.keys()
            self.view()
            logs = self._source.logs
            left = {tp for tp, _ in self._source.wanted} - logs.stamps.keys()
            left |= self._source.other_logs - logs.starts.keys()
            without_progress = without_progress + 1 if unread is not None and unread <= left else 0
            if (is_asked and not left) or without_progress == 2:
                break  # the last two polls, one of which may have begun before, have read nothing: what is left cannot be read
            unread = left if is_asked else None
        for watch in (self._target_logs_watch, self._heartbeats_watch, self._groups_watch):
            watch.await_first(max(0.0, deadline - time.monotonic()))
        return self.view()

    def _await_source(self, is_done: Callable[[], bool], deadline_s: float) -> None:
        """Wait for a poll of the source, unless it does not answer."""
        while not is_done() and not self._source_watch.error and time.monotonic() < deadline_s:
            time.sleep(0.05)

    def view(self) -> FlowView:
        """The current view, from what is known now."""
        inputs = self._read()
        partitions = self._partition_views.read(inputs)
        self._source.partitions = self._partition_views.partitions
        self._source.wanted, self._source.other_logs = partitions.wanted, partitions.other_logs
        self._groups.remote_topics = frozenset(one.remote_topic for one in partitions.views)
        self._groups.reasoned = frozenset() if inputs.ledger is None else frozenset(inputs.ledger.group_reasons())
        return self._made(inputs, partitions)

    def _read(self) -> PartitionInputs:
        """What is known now."""
        now_s, now_ms = time.monotonic(), int(time.time() * 1000)
        status = FlowStatus() if self._engine is None else self._engine.flow_status(str(self.flow.pair))
        work, ledger, logs, error = self._works.read(), self._ledger.ledger, self._source.logs, self._source_watch.error
        as_of_s, answered_ms = now_s, None
        noted: Mapping[TopicPartition, int] = {}
        if error or not logs.ends_at_s:
            known = SourceAnswers() if ledger is None else source_answers(ledger)
            noted = known.ends
            if error:
                # While the source does not answer, its new records are not known, so ages do not increase.
                answered_ms = self._last_answer_ms(known, now_s, now_ms)
                as_of_s = now_s if answered_ms is None else now_s - (now_ms - answered_ms) / 1000
        preparing = {} if ledger is None else {**self._new_topics.found, **preparations(ledger)}
        self._new_topics.ledger, self._new_topics.assigned = ledger, work.tasks or ()
        pair, target, losses = self.flow.pair, self._target_watch, self._target_logs.losses
        silent, target_silent = (
            f"{cluster} does not answer: {why}" if why else ""
            for cluster, why in ((pair.source, error), (pair.target, target.error))
        )
        return PartitionInputs(
            now_s,
            now_ms,
            as_of_s,
            ledger,
            logs,
            status,
            work,
            silent,
            answered_ms,
            noted,
            preparing,
            losses,
            target_silent,
            target.answered_by_clock_ms(now_s, now_ms),
        )

    def _last_answer_ms(self, known: SourceAnswers, now_s: float, now_ms: int) -> int | None:
        """When the source last answered this process or, by the ledger, another one; None if that is not known.

        Heartbeats that the flow has copied were written on the source. Its own one, which it writes on the target, shows nothing. A time
        in the future shows nothing either: the clock of a process differs, or was set.
        """
        copied = [one.heartbeat for one in self._heartbeats.seen if one.route[:1] == (self.flow.pair.source,)]
        own_ms = self._source_watch.answered_by_clock_ms(now_s, now_ms)
        times = [own_ms, known.answered_ms, *(heartbeat.timestamp_ms for heartbeat in copied)]
        valid = (min(at_ms, now_ms) for at_ms in times if at_ms is not None and at_ms <= now_ms + _CLOCKS_DIFFER_MS)
        return max(valid, default=None)

    def _made(self, inputs: PartitionInputs, partitions: Partitions) -> FlowView:
        pair, source, target = self.flow.pair, self._source_watch, self._target_watch
        now_s, now_ms, ledger, status, work = inputs.now_s, inputs.now_ms, inputs.ledger, inputs.status, inputs.work
        if self._ledger.is_missing and all(one.position is None for one in partitions.views):
            # Without a ledger, nothing was copied or Java has copied it: a risk of zero would be a guess.
            partitions = dataclasses.replace(partitions, risk=Risk(), unbegun=0)
        causes = stopped_by(partitions.views) if not partitions.states.keys() <= ON_ITS_WAY else []
        known = self._inputs(inputs, partitions, causes)
        observed = max((watch.answered_s or 0.0 for watch in (source, target)), default=0.0)
        tally = status.tally
        return FlowView(
            pair.source,
            pair.target,
            state_of(known),
            summary_of(known),
            partitions.risk,
            observed_ms=_wall(observed or None, now_s, now_ms),
            source_error=source.error,
            target_error=target.error,
            records=status.records,
            bytes=status.bytes,
            records_per_s=partitions.records_per_s,
            bytes_per_s=partitions.bytes_per_s,
            states=partitions.states,
            gaps=partitions.gaps,
            lost_ranges=partitions.lost_ranges,
            foreign_records=partitions.foreign_records,
            batches=dict(tally.paths),
            latency={name: Latency(BOUNDS_S, tuple(one.counts), one.sum_s) for name, one in tally.latency.items()},
            troubles=known.troubles[:_TROUBLES_SHOWN],
            partitions=tuple(partitions.views),
            groups=self._group_views.read(self._groups.seen, ledger, partitions.views),
            heartbeats=self._heartbeat_views(now_s, now_ms),
            connectors=work.connectors,
            workers=work.workers,
            micro_batches=status.micro_batches,
            lost_micro_batches=status.lost,
            failing_lanes=sum(1 for lane in status.lanes if lane.failing),
            moved_partitions=status.moves,
            metric_formats=self._metric_formats,
            differences=known.differences,
            verified_records=sum(one.records for one in inputs.verified.values()),
            losses=partitions.losses[:_LOSSES_SHOWN],
            throttles={} if ledger is None else ledger.throttles(),
            filled=dict(tally.filled),
            groups_error=self._groups_error(),
            is_ledger_read=ledger is not None or self._ledger.is_missing,
            evidence=self._evidence(now_s, now_ms),
            target_losses=len(partitions.target_losses),
            causes=tuple(causes),
            came_back_topics=known.came_back,
            kept_records=known.kept_records,
        )

    def _evidence(self, now_s: float, now_ms: int) -> tuple[EvidenceView, ...]:
        """What was read of the clusters, and when; in the order of the data flow."""

        def polled(what: Evidence, watch: PeriodicPoll, error: str = "") -> EvidenceView:
            return EvidenceView(what, watch.answered_by_clock_ms(now_s, now_ms), watch.error or error)

        target_logs = self._target_logs
        logs_ms = _wall(target_logs.read_at_s or None, now_s, now_ms)
        no_ledger = f"{self.flow.pair.target} has none" if self._ledger.is_missing else ""
        no_checkpoints = f"{self.flow.pair.target} has no topic {self._groups.topic}" if self._groups.is_missing else ""
        work_s = now_s if self.flow.herder is not None else self._work_read_s
        return (
            polled(Evidence.SOURCE_TOPICS, self._new_topics_watch),
            polled(Evidence.SOURCE_LOGS, self._source_watch),
            polled(Evidence.LEDGER, self._target_watch, no_ledger),
            EvidenceView(Evidence.TARGET_LOGS, logs_ms, self._target_logs_watch.error or target_logs.error),
            EvidenceView(
                Evidence.GROUPS, _wall(self._groups.read_at_s, now_s, now_ms), self._groups_error() or no_checkpoints
            ),
            polled(Evidence.HEARTBEATS, self._heartbeats_watch),
            EvidenceView(Evidence.WORKERS, _wall(work_s, now_s, now_ms), self._unread_work),
            *(() if self._engine is None else (EvidenceView(Evidence.PROCESS, now_ms),)),
        )

    def _groups_error(self) -> str:
        """Why offsets of groups are not known; "" if this is only because the source does not answer."""
        groups, watch, is_silent = self._groups, self._groups_watch, bool(self._source_watch.error)
        if watch.error:
            return "" if is_silent and groups.failed_on is Side.SOURCE else watch.error
        if watch.answered_s is None and not (is_silent and groups.has_target):
            return "their first poll has not ended yet"
        return ""

    def _inputs(self, inputs: PartitionInputs, partitions: Partitions, causes: list[Cause]) -> FlowInputs:
        """What the state and the summary of the flow are derived from."""
        pair, source, target = self.flow.pair, self._source_watch, self._target_watch
        now_s, ledger, work = inputs.now_s, inputs.ledger, inputs.work
        troubles, unknown = [shortened(one) for one in (*inputs.status.blocked_reasons, *sentences_of(causes))], ""
        if partitions.stalled:
            troubles.append(_stalled(partitions.stalled))
        if self._ledger.is_missing:
            unknown = f"{pair.target} has no ledger of what comes from {pair.source}"
            if any(one.position is not None for one in partitions.views):
                troubles.append(f"{unknown}: only what this process has copied is known")
        elif missing := inputs.source.missing:
            unknown = str(missing[min(missing)])
        if ledger is not None:
            troubles += filter(None, (over_limit_message(ledger), left_out_groups(ledger)))
        if work.absent and work.absent != work.idle_reason:
            troubles.append(work.absent)
        if unlisted := self._unlisted_topics(now_s):
            troubles.append(unlisted)
        pauses, heartbeats, is_empty = self._pauses(partitions)
        # The ledger also contains the source's end offsets of the last fetch.
        known = inputs.source.ends_at_s > 0 or partitions.risk.least is not None
        has_logs = self._target_logs.read_at_s > 0 or bool(self._target_logs_watch.error)
        seen = (ledger is not None and known and has_logs) or (
            self._ledger.is_missing and source.answered_s is not None
        )
        differences: Counter[str] = Counter()
        for one in inputs.verified.values():
            differences.update(one.differences)
        return FlowInputs(
            pair.source,
            pair.target,
            seen,
            partitions,
            work,
            source_error=source.error,
            source_error_since_ms=inputs.silent_since_ms,
            target_error=target.error,
            target_error_since_ms=target.answered_by_clock_ms(now_s, inputs.now_ms),
            troubles=tuple(troubles),
            differences=dict(differences),
            unknown=unknown,
            nothing_selected=self._new_topics.nothing_selected if is_empty and not work.held else "",
            pauses=pauses,
            heartbeats=heartbeats,
            uncompared_why=self._target_logs_watch.error or self._target_logs.error,
            came_back=self._new_topics.came_back,
            kept_records=0 if ledger is None else kept_count(ledger),
            unread_work=self._unread_work,
        )

    def _pauses(self, partitions: Partitions) -> tuple[Mapping[PauseCode | None, int], int, bool]:
        """The number of paused partitions by cause, that of heartbeats topics which are not paused, and whether there are no
        partitions of other topics. Of many partitions, these are only counted if one is paused, or if nothing is selected.
        """
        paused = partitions.states.get(PartitionState.PAUSED, 0)
        if not paused and not self._new_topics.nothing_selected:
            return {}, 0, False
        policy = self._clients.policy
        counted = [one for one in partitions.views if one.is_counted]
        heartbeats = {topic for topic in {one.topic for one in counted} if policy.is_heartbeats_topic(topic)}
        pauses = Counter(one.pause for one in counted if one.state is PartitionState.PAUSED)
        others = sum(one.topic in heartbeats and one.state is not PartitionState.PAUSED for one in counted)
        return pauses, others, all(one.topic in heartbeats for one in counted)

    def _unlisted_topics(self, now_s: float) -> str:
        """Why it is not known which topics the flow has not found yet; "" while a cluster does not answer at all."""
        watch = self._new_topics_watch
        if self._source_watch.error or self._target_watch.error:
            return ""
        if self._is_once and watch.answered_s is None:
            why = watch.error or "they were not read in time"
        elif watch.failing_since_s is not None and now_s - watch.failing_since_s > NEW_TOPICS_S:
            why = watch.error
        else:
            return ""
        return f"topics that the flow has not found yet are not known: {why}"

    def _heartbeat_views(self, now_s: float, now_ms: int) -> tuple[HeartbeatView, ...]:
        """The age of a heartbeat is at least the time since it was read: the clock of its writer may be ahead."""
        return tuple(
            HeartbeatView(
                one.topic,
                one.heartbeat.source,
                one.heartbeat.target,
                one.route,
                max(now_ms - one.heartbeat.timestamp_ms, int((now_s - self._heartbeats.read_at_s(one)) * 1000), 0),
            )
            for one in self._heartbeats.seen
        )

    def _read_stored_work(self) -> None:
        cluster = self._clients.cluster(Side.TARGET)
        try:
            from mm2.kafka.admin import Admin  # noqa: PLC0415

            self._works = StoredWork(cluster, Admin(cluster), self.flow.worker, self.flow.pair.source, 10.0)
            self._work_read_s = time.monotonic()
        finally:
            cluster.close()

    def _ends_interval_s(self) -> float:
        return min(_MOST_S, max(1.0, len(self._source.partitions) / _ENDS_PER_S))

    def _target_logs_interval_s(self) -> float:
        return self._ends_interval_s() if self._target_logs.read_at_s else 0.1

    def _new_topics_interval_s(self) -> float:
        if self._new_topics.ledger is None:
            return 1.0
        return _RETRY_S if self._new_topics_watch.error else NEW_TOPICS_S

    def _groups_interval_s(self) -> float:
        return max(_GROUPS_S, min(60.0, len(self._groups.seen.checkpoints) / _GROUPS_PER_S))


def stopped_by(partitions: Sequence[PartitionView]) -> list[Cause]:
    """What stops partitions that the flow is to copy. A promotion, a pause and a limit do not."""
    return causes_of(
        StoppedPartition(TopicPartition(one.topic, one.partition), one.state, one.reason, one.since_ms)
        for one in partitions
        if one.is_counted and one.state not in ON_ITS_WAY
    )


def _stalled(stalled: Sequence[TopicPartition]) -> str:
    shown = ", ".join(map(str, stalled[:_STALLED_SHOWN]))
    rest = len(stalled) - _STALLED_SHOWN
    return f"{shown}{f' and {rest} more' if rest > 0 else ''} have records to copy and do not advance"


def _wall(at_s: float | None, now_s: float, now_ms: int) -> int | None:
    """A time of the monotonic clock in milliseconds since the epoch."""
    return None if at_s is None else now_ms - int((now_s - at_s) * 1000)
