"""Exports a snapshot as metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from mm2.copy.states import HEALTHY, PartitionState
from mm2.evidence import Evidence
from mm2.metrics import flows as names
from mm2.metrics.metric import Cardinality, Metric, Sheet
from mm2.metrics.mirror import CONSUMER_LAG, INCOMING, LEGACY_SOURCE, NEW_SOURCE, OUTGOING, client_id
from mm2.observer.sums import sum_if_known
from mm2.observer.views import FlowState, FlowView, PartitionView, Snapshot, ValueRange
from mm2.observer.work import SOURCE_NAME
from mm2.reasons import OffsetReasonCode

_FLOW_STATES: Final = tuple(map(str, FlowState))
_STATES: Final = tuple(map(str, PartitionState))
_RUNNING: Final = "RUNNING"


class SnapshotMetrics:
    """Writes the metrics of ``snapshot()``, with the level of partition detail set by ``cardinality``."""

    def __init__(self, snapshot: Callable[[], Snapshot], cardinality: Cardinality = Cardinality.FULL) -> None:
        self._snapshot = snapshot
        self._cardinality = cardinality

    def __call__(self, sheet: Sheet) -> None:
        """Write the metrics of all flows."""
        snapshot = self._snapshot()
        sheet.add(names.BUILD_INFO, (snapshot.version,), 1)
        for flow in snapshot.flows:
            _Flow(sheet, flow, self._cardinality).write()
        if snapshot.spark is not None:
            sheet.add(names.SPARK_UP, (), snapshot.spark.up)
        for outcome in ("applied", "refused"):
            sheet.add(names.RELOADS, (outcome,), snapshot.reloads.get(outcome, 0))
        for one in snapshot.certificates:
            sheet.add(names.CERTIFICATE, (one.source, one.target, one.cluster, one.file), one.expires_ms / 1000)


class _Flow:
    def __init__(self, sheet: Sheet, flow: FlowView, cardinality: Cardinality) -> None:
        self._sheet = sheet
        self._flow = flow
        self._cardinality = cardinality
        self._labels = (flow.source, flow.target)
        read = {one.what for one in flow.evidence if one.at_ms is not None}
        self._has_read = read.__contains__

    def write(self) -> None:
        flow, labels = self._flow, self._labels
        self._sheet.add_states(names.FLOW_STATE, labels, _FLOW_STATES, str(flow.state))
        self._add(names.OBSERVED, None if flow.observed_ms is None else flow.observed_ms / 1000)
        self._add(names.SECONDS_AT_RISK, flow.risk.least_seconds)
        self._add(names.RECORDS_AT_RISK, flow.risk.records)
        self._add(names.RECORDS_AT_RISK_AT_LEAST, flow.risk.least)
        self._add(names.BYTES_AT_RISK, flow.risk.bytes)
        for read in flow.evidence:
            self._add(names.READ, None if read.at_ms is None else read.at_ms / 1000, str(read.what))
        for cluster, error, what in (
            (flow.source, flow.source_error, Evidence.SOURCE_LOGS),
            (flow.target, flow.target_error, Evidence.LEDGER),
        ):
            self._add(names.CLUSTER_UP, not error if error or flow.has_read(what) else None, cluster)
        for state in _STATES if flow.is_ledger_read or flow.partitions else ():
            self._add(names.PARTITIONS, flow.states.get(PartitionState(state), 0), state)
        self._write_totals()
        self._write_partitions()
        self._write_groups()
        self._write_work()

    def _add(self, metric: Metric, value: float | None, *labels: str) -> None:
        """Add a value, unless a part of the metric's evidence was never read."""
        if all(map(self._has_read, metric.evidence)):
            self._sheet.add(metric, (*self._labels, *labels), value)

    def _write_totals(self) -> None:
        flow = self._flow
        for stage, latency in flow.latency.items():
            self._sheet.add_histogram(
                names.LATENCY, (*self._labels, stage), latency.bounds_s, latency.counts, latency.sum_s
            )
        for path, batches in {"passthrough": 0, **flow.batches}.items():
            self._add(names.BATCHES, batches, path)
        for reason, offsets in flow.gaps.items():
            self._add(names.GAPS, offsets, reason)
        for means, offsets in flow.filled.items():
            self._add(names.FILLED, offsets, means)
        if flow.is_ledger_read:
            self._add(names.LOST, flow.lost_ranges)
            self._add(names.FOREIGN, flow.foreign_records)
        for task, batches in flow.micro_batches.items():
            self._add(names.MICRO_BATCHES, batches, str(task))
        self._add(names.MICRO_BATCHES_LOST, flow.lost_micro_batches)
        self._add(names.FAILING_LANES, flow.failing_lanes)
        self._add(names.MOVED_PARTITIONS, flow.moved_partitions)
        for kind, count in flow.differences.items():
            self._add(names.DIFFERENCES, count, kind)
        if flow.verified_records:
            self._add(names.CHECKED, flow.verified_records)
        for metric, role in ((INCOMING, "replication-consumer"), (OUTGOING, "replication-producer")):
            self._sheet.add(metric, (client_id(flow.source, flow.target, role),), flow.bytes)
        ages_ms: dict[tuple[str, str, int], int] = {}
        for beat in flow.heartbeats:
            route = (beat.source, beat.target, beat.hops)
            ages_ms[route] = max(beat.age_ms, ages_ms.get(route, 0))
        for (source, target, hops), age_ms in ages_ms.items():
            self._add(names.HEARTBEAT_AGE, age_ms / 1000, source, target, str(hops))

    def _write_partitions(self) -> None:
        flow = self._flow
        if self._cardinality is Cardinality.FULL:
            for view in flow.partitions:
                self._write_partition(view)
        elif self._cardinality is Cardinality.TOPIC:
            topics: dict[str, list[PartitionView]] = {}
            for view in flow.partitions:
                topics.setdefault(view.topic, []).append(view)
            for topic, views in topics.items():
                self._write_sums(views, topic)
        else:
            self._write_sums(flow.partitions, "")
        for view in flow.partitions:
            if view.unfilled:
                self._add(names.UNFILLED, view.unfilled, view.topic, str(view.partition))
        if self._cardinality is not Cardinality.FULL:
            for view in flow.partitions:
                if view.state not in HEALTHY:
                    self._add(names.PARTITION_STATE, 1, view.topic, str(view.partition), str(view.state))

    def _write_partition(self, view: PartitionView) -> None:
        place = (view.topic, str(view.partition))
        self._write_common(view, place, view.remote_topic)
        consumer = client_id(*self._labels, "replication-consumer", view.task)
        self._sheet.add(CONSUMER_LAG, (consumer, *place), self._lag(view) if view.task is not None else None)
        self._add(names.POSITION, view.position, *place)
        self._add(names.SOURCE_END, view.source_end, *place)
        self._add(names.TARGET_OFFSET, view.target_offset, *place)
        self._add(names.VERIFIED, view.verified_offset, *place)
        self._add(names.PARTITION_STATE, 1, *place, str(view.state))

    def _write_sums(self, views: Iterable[PartitionView], topic: str) -> None:
        """Write the sums of a topic, or of the flow, for which the labels of aggregated levels are empty."""
        views = list(views)
        counted = [view for view in views if view.is_counted]
        first = views[0] if views else None
        remote = first.remote_topic if first is not None and topic else ""
        total = PartitionView(
            topic,
            0,
            remote,
            PartitionState.RUNNING,
            lag_records=sum_if_known(view.lag_records for view in counted) if counted else None,
            lag_bytes=sum_if_known(view.lag_bytes for view in counted) if counted else None,
            lag_seconds=max((view.lag_seconds for view in counted if view.lag_seconds is not None), default=None),
            records_per_s=sum(view.records_per_s or 0.0 for view in views),
            bytes_per_s=sum(view.bytes_per_s or 0.0 for view in views),
            records=sum(view.records for view in views),
            bytes=sum(view.bytes for view in views),
            age_ms=_spread([view.age_ms for view in views]),
            latency_ms=_spread([view.latency_ms for view in views]),
            is_lag_exact=all(view.is_lag_exact for view in counted),
        )
        self._sheet.add(CONSUMER_LAG, (client_id(*self._labels, "replication-consumer"), topic, ""), self._lag(total))
        self._write_common(total, (topic, ""), remote)

    def _write_common(self, view: PartitionView, place: tuple[str, str], remote: str) -> None:
        self._add(names.RECORDS, view.records, *place)
        self._add(names.BYTES, view.bytes, *place)
        self._add(names.LAG_RECORDS, self._lag(view), *place)
        self._add(names.LAG_BYTES, view.lag_bytes, *place)
        self._add(names.LAG_SECONDS, view.lag_seconds, *place)
        self._write_java(view, (remote, place[1]))

    def _lag(self, view: PartitionView) -> int | None:
        """The lag in records; also a lower bound of 0 if all values are those of the source's last answer."""
        return view.lag_records if self._flow.source_error else view.known_lag

    def _write_java(self, view: PartitionView, place: tuple[str, str]) -> None:
        """Write MirrorSourceConnector's Java metrics, for partitions that a task of this process copies."""
        age, latency = view.age_ms, view.latency_ms
        values = {
            "record_count": float(view.records),
            "record_rate": view.records_per_s,
            "byte_count": float(view.bytes),
            "byte_rate": view.bytes_per_s,
        }
        for name, spread in (("record_age_ms", age), ("replication_latency_ms", latency)):
            if spread is not None:
                values |= {
                    name: float(spread.last),
                    f"{name}_min": float(spread.least),
                    f"{name}_max": float(spread.greatest),
                    f"{name}_avg": spread.average,
                }
        for name, value in values.items():
            if "legacy" in self._flow.metric_formats:
                self._add(LEGACY_SOURCE[name], value, *place)
            if "new" in self._flow.metric_formats:
                task = "" if view.task is None else str(view.task)
                self._sheet.add(NEW_SOURCE[name], (SOURCE_NAME, task, *self._labels, *place), value)

    def _write_groups(self) -> None:
        flow = self._flow
        reasons: dict[OffsetReasonCode, int] = {}
        lags: dict[tuple[str, str], list[int | None]] = {}
        for group in flow.groups:
            if group.reason_code is not None:
                reasons[group.reason_code] = reasons.get(group.reason_code, 0) + 1
            if self._cardinality is Cardinality.FULL:
                place = (group.group, group.topic, str(group.partition))
                self._add(names.GROUP_LAG, group.source_lag, *place)
                self._add(names.GROUP_SOURCE, group.source_offset, *place)
                self._add(names.GROUP_TRANSLATED, group.translated, *place)
                self._add(names.GROUP_TARGET, group.target_offset, *place)
            elif group.source_offset is not None:  # without a committed offset there is no lag
                key = (group.group, group.topic if self._cardinality is Cardinality.TOPIC else "")
                lags.setdefault(key, []).append(group.source_lag)
        for (name, topic), known in lags.items():
            self._add(names.GROUP_LAG, sum_if_known(known), name, topic, "")
        for code, count in reasons.items():
            self._add(names.GROUP_UNTRANSLATED, count, str(code))

    def _write_work(self) -> None:
        for connector in self._flow.connectors:
            self._add(names.CONNECTOR_UP, connector.state == _RUNNING, connector.name)
            for task in connector.tasks:
                self._add(names.TASK_UP, task.state == _RUNNING, connector.name, str(task.id))


def _spread(spreads: list[ValueRange | None]) -> ValueRange | None:
    """Combine several partitions: the worst last value, overall minimum and maximum, and the mean of the averages."""
    known = [spread for spread in spreads if spread is not None]
    if not known:
        return None
    return ValueRange(
        max(one.last for one in known),
        min(one.least for one in known),
        max(one.greatest for one in known),
        sum(one.average for one in known) / len(known),
    )
