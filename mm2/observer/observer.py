"""The observer of a process: takes one snapshot per second for all readers (metrics, dashboard and REST).

It starts with the first request and stops some minutes after the last one, so it costs nothing while unused. Readers
never wait for a cluster: a snapshot contains what is known.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import structlog

from mm2 import __version__
from mm2.config.configdef import ConfigException
from mm2.config.keys.mirror_keys import SOURCE_CONNECTOR
from mm2.config.mirrormaker import MirrorMakerConfig, SourceAndTarget
from mm2.config.providers import ConfigTransformer
from mm2.connect.tls import ListenerTls
from mm2.copy.driver.engine import CopyEngine
from mm2.evidence import Evidence
from mm2.observer.flow import FlowObserver, WatchedFlow
from mm2.observer.polling.certificates import listener_certificates
from mm2.observer.views import LaneView, Snapshot, SparkView

log = structlog.get_logger(__name__)

TICK_S: Final = 1.0
#: Stops this long after the last request.
IDLE_S: Final = 180.0
_FIRST_S: Final = 3.0


class Observer:
    """The observer of a process. Thread-safe.

    ``flows`` returns the current flows, ``engine`` is the process's copy engine, ``listeners`` the TLS of its https listeners.
    """

    def __init__(
        self,
        flows: Callable[[], Sequence[WatchedFlow]],
        engine: Callable[[], CopyEngine],
        *,
        reloads: Callable[[], Mapping[str, int]] = dict,
        listeners: Callable[[], Iterable[ListenerTls]] = tuple,
        idle_s: float = IDLE_S,
    ) -> None:
        self._flows = flows
        self._engine = engine
        self._reloads = reloads
        self._listeners = listeners
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)
        self._asked_s = 0.0
        self._snapshot: Snapshot | None = None
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()

    def snapshot(self, timeout_s: float = _FIRST_S) -> Snapshot:
        """The newest snapshot.

        Only the first call waits, until the clusters have answered or ``timeout_s`` has passed.
        """
        with self._lock:
            self._asked_s = time.monotonic()
            if self._thread is None and not self._stopping.is_set():
                self._thread = threading.Thread(target=self._run, name="observer", daemon=True)
                self._thread.start()
            self._news.wait_for(lambda: self._snapshot is not None, timeout_s)
            snapshot = self._snapshot
        return snapshot or Snapshot(int(time.time() * 1000), __version__, ())

    def newest(self) -> Snapshot | None:
        """The newest snapshot, None while clusters are not polled; does not start polling."""
        return self._snapshot

    def stop(self) -> None:
        """Stop observing; running requests end by themselves soon."""
        self._stopping.set()

    @property
    def is_running(self) -> bool:
        """Whether clusters are polled at the moment."""
        return self._thread is not None

    def _run(self) -> None:
        observers: dict[SourceAndTarget, FlowObserver] = {}
        log.debug("Observing begins.")
        began_s = time.monotonic()
        try:
            while not self._stopping.is_set():
                turn_s = time.monotonic()
                try:
                    self._go_over(observers)
                    snapshot = self._observe(observers)
                except Exception:
                    log.exception("An error of ours while observing.")
                else:
                    # The first answers are pending: wait for them rather than return an empty snapshot.
                    if _have_all_answered(snapshot) or turn_s - began_s > _FIRST_S - 1 or self._snapshot is not None:
                        with self._lock:
                            self._snapshot = snapshot
                            self._news.notify_all()
                with self._lock:
                    if time.monotonic() - self._asked_s > self._idle_s:
                        self._thread = self._snapshot = None
                        return
                wait_s = TICK_S if self._snapshot is not None else TICK_S / 10
                self._stopping.wait(max(0.05, wait_s - (time.monotonic() - turn_s)))
        finally:
            log.debug("Observing ends.")
            for observer in observers.values():
                observer.stop()

    def _go_over(self, observers: dict[SourceAndTarget, FlowObserver]) -> None:
        """Start and stop observers to match the current flows."""
        wanted = {flow.pair: flow for flow in self._flows()}
        for pair in [pair for pair, one in observers.items() if not _is_same(one.flow, wanted.get(pair))]:
            observers.pop(pair).stop()
        for pair, flow in wanted.items():
            if pair not in observers:
                observers[pair] = observer = FlowObserver(flow, self._engine())
                observer.start()

    def _observe(self, observers: Mapping[SourceAndTarget, FlowObserver]) -> Snapshot:
        return Snapshot(
            int(time.time() * 1000),
            __version__,
            tuple(observer.view() for observer in observers.values()),
            spark_view(self._engine(), [str(pair) for pair in observers]),
            dict(self._reloads()),
            (
                *(one for observer in observers.values() for one in observer.certificates.now()),
                *listener_certificates(self._listeners()),
            ),
        )


def observe_once(config: MirrorMakerConfig, flows: Sequence[str] | None = None, *, timeout_s: float = 15.0) -> Snapshot:
    """Observe flows of a MirrorMaker file once, from outside, whether or not a process runs them; for `mm2 status`.

    ``flows`` are names ``A->B`` (None: all enabled flows; named ones may be disabled). They are observed in parallel
    within ``timeout_s`` seconds. A cluster that has not answered by then is in ``source_error`` or ``target_error`` of
    the view. Nothing is written. Values that only a running process knows are empty: latencies, batches, lanes, Spark,
    records and bytes copied; rates are taken from the ledger.

    Raises ConfigException for a flow that the file does not define, and for invalid cluster settings.
    """
    pairs = {str(pair): pair for pair in config.possible_pairs()}
    names = list(map(str, config.replicating_pairs())) if flows is None else ["".join(name.split()) for name in flows]
    for name in names:
        if name not in pairs:
            raise ConfigException(f"The file has no flow {name}; its flows are {', '.join(pairs) or 'none'}.")
    transformer = ConfigTransformer.from_props(config.originals)
    observers = []
    for name in names:
        pair = pairs[name]
        for alias in (pair.source, pair.target):
            if not config.client_config(alias).get("bootstrap.servers"):
                raise ConfigException(f'Missing required configuration "{alias}.bootstrap.servers".')
        props = transformer.transform(config.connector_config(pair, SOURCE_CONNECTOR))
        worker = transformer.transform(config.worker_config(pair))
        observers.append(FlowObserver(WatchedFlow(pair, props, worker), None))
    try:
        with ThreadPoolExecutor(max(1, len(observers)), thread_name_prefix="observe") as pool:
            views = tuple(pool.map(lambda observer: observer.look_once(timeout_s), observers))
    finally:
        for observer in observers:
            observer.stop()
    return Snapshot(int(time.time() * 1000), __version__, views)


def spark_view(engine: CopyEngine, flows: Sequence[str]) -> SparkView:
    """The process's Spark and its lanes; sends no requests to Spark."""
    lanes = tuple(
        LaneView(
            lane.name, lane.task, lane.batch, lane.since_ms, lane.lost, lane.partitions, lane.blocked_reason, lane.flow
        )
        for flow in flows
        for lane in engine.flow_status(flow).lanes
    )
    spark, down = engine.spark, engine.down
    code = None if down is None else down.code
    is_up, trouble, slots = spark.is_up and down is None, str(down or ""), engine.slots.count
    return SparkView(is_up, trouble, engine.master, spark.application_id, lanes, code, slots)


def _is_same(flow: WatchedFlow, other: WatchedFlow | None) -> bool:
    return other is not None and flow.herder is other.herder and flow.props == other.props


def _have_all_answered(snapshot: Snapshot) -> bool:
    """Whether the clusters of all flows have answered or failed."""
    return all(
        (flow.risk.least is not None and flow.has_read(Evidence.TARGET_LOGS)) or flow.source_error or flow.target_error
        for flow in snapshot.flows
    )
