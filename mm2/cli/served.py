"""The resources of a MirrorMaker process beside those of its flows: /metrics, /overview and /ui, from one observer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.types import ASGIApp

from mm2.config.keys.rest_keys import CARDINALITY_KEY
from mm2.kafka.records.record import Record
from mm2.mirror.common.clients import MirrorClients
from mm2.mirror.notes.ledgers import write_to_ledger
from mm2.mirror.process.maker import MirrorMaker
from mm2.mirror.rest.flow_paths import Apps
from mm2.mirror.topics.config_sync import ConfigDifference
from mm2.observer.curves.history import History
from mm2.observer.curves.prometheus_settings import PrometheusSettings
from mm2.observer.curves.recorder import Recorder
from mm2.observer.flow import WatchedFlow
from mm2.observer.observer import Observer
from mm2.observer.shown.topics import ConfigComparisons
from mm2.observer.work import SOURCE_NAME

if TYPE_CHECKING:
    from mm2.observer.curves.long_term import LongTermHistory


class Served:
    """Created before the process's MirrorMaker, which receives `apps`; `maker` must be set before it starts."""

    maker: MirrorMaker

    def __init__(self, file: Path, prometheus: PrometheusSettings | None = None) -> None:
        """``prometheus``: where the dashboard reads values that are older than the process."""
        self._file = file
        self._prometheus = prometheus
        self.observer = Observer(
            self._flows,
            engine=lambda: self.maker.engine,
            reloads=lambda: self.maker.reloads,
            listeners=lambda: self.maker.listeners,
        )
        self.history = History()
        self._configs = ConfigComparisons()
        self._recorder = Recorder(self.history, self._flows, lambda: self.maker.engine, self.observer.newest)

    @property
    def apps(self) -> Apps:
        """The applications by first path segment."""
        return {"metrics": self._metrics, "overview": self._overview, "ui": self._dashboard}

    def start(self) -> None:
        """Start to record the history."""
        self._recorder.start()

    def stop(self) -> None:
        """Stop recording and observing."""
        self._recorder.stop()
        self.observer.stop()

    def _flows(self) -> Sequence[WatchedFlow]:
        maker = self.maker
        herders = {flow.pair: flow.herder for flow in maker.flows}
        return [
            WatchedFlow(pair, plan.resolved[SOURCE_NAME], herder=herders.get(pair))
            for pair, plan in maker.plans.items()
            if plan.replicates
        ]

    def _metrics(self, _rest: ASGIApp) -> ASGIApp:
        # Imported here, where FastAPI is imported too: in parallel to the rest of the start.
        from mm2.connect.metrics import ConnectMetrics, ObservedWorker  # noqa: PLC0415
        from mm2.connect.rest.app import metrics_app  # noqa: PLC0415
        from mm2.metrics.exposition import Exposition  # noqa: PLC0415
        from mm2.metrics.metric import Cardinality, Sheet  # noqa: PLC0415
        from mm2.observer.shown.collector import SnapshotMetrics  # noqa: PLC0415

        def workers() -> list[ObservedWorker]:
            flows = self.maker.flows
            return [
                ObservedWorker(flow.herder, {"source": flow.pair.source, "target": flow.pair.target}) for flow in flows
            ]

        cardinality = Cardinality(self.maker.config.top.str(CARDINALITY_KEY))
        snapshots = SnapshotMetrics(self.observer.snapshot, cardinality)

        def checkpoints(sheet: Sheet) -> None:
            self.maker.checkpoint_latencies.write(sheet, cardinality)

        return metrics_app(Exposition(snapshots, ConnectMetrics(workers), checkpoints))

    def _overview(self, _rest: ASGIApp) -> ASGIApp:
        from mm2.observer.shown.resources import overview_app  # noqa: PLC0415

        return overview_app(self.observer, self._write)

    def _write(self, flow: str, records: Sequence[Record]) -> None:
        """Raises KafkaFailure."""
        found = self._watched(flow)
        if found is not None:
            write_to_ledger(MirrorClients(found.props), records)

    def _watched(self, flow: str) -> WatchedFlow | None:
        return next((one for one in self._flows() if str(one.pair) == flow), None)

    def _dashboard(self, rest: ASGIApp) -> ASGIApp:
        from mm2.ui.dashboard import Dashboard  # noqa: PLC0415
        from mm2.ui.source import PageData, Settings  # noqa: PLC0415

        data = PageData(
            self.observer.snapshot,
            lambda: Settings.of(self.maker.config, self._file),
            self.history,
            self._differences,
            self._long_term(),
        )
        return Dashboard(data, rest)

    def _long_term(self) -> LongTermHistory | None:
        if self._prometheus is None:
            return None
        from mm2.observer.curves.long_term import LongTermHistory  # noqa: PLC0415
        from mm2.observer.curves.prometheus import Prometheus  # noqa: PLC0415

        return LongTermHistory(Prometheus(self._prometheus), self._prometheus.matchers)

    def _differences(self, flow: str, topic: str, remote_topic: str) -> Sequence[ConfigDifference]:
        """Raises KafkaFailure."""
        found = self._watched(flow)
        return () if found is None else self._configs.of(found, topic, remote_topic)
