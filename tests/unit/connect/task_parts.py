"""The parts of tasks that run without Kafka."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext

from mm2.connect.api import SourceTask, SourceTaskContext, WorkerView
from mm2.connect.converters import ByteArrayConverter
from mm2.connect.runtime.connectors import WorkId
from mm2.connect.runtime.counters import SinkCounters, SourceCounters, TaskCounters
from mm2.connect.runtime.sending import RecordSender, SenderSettings
from mm2.connect.runtime.tasks.base import Converters, Equipment
from mm2.connect.runtime.tasks.source import OwnershipGuard, SourceSetup
from mm2.connect.runtime.tolerance import RetryWithToleranceOperator, Tolerance
from mm2.connect.runtime.transformation_chain import TransformationChain
from mm2.connect.stores.config_state import ConnectorTaskId, TargetState
from mm2.connect.stores.internal_topic import InternalTopic
from mm2.connect.stores.kafka_offset_store import KafkaOffsetStore
from mm2.connect.stores.offset_store import ConnectorOffsetReader
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.producer.producer import Producer
from mm2.kafka.settings.client_settings import ClientSettings

TASK = ConnectorTaskId("c", 0)


class RecordingListener:
    """A listener that records its calls."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def on_startup(self, work: WorkId, version: str | None) -> None:
        self.events.append("startup")

    def on_pause(self, work: WorkId, version: str | None) -> None:
        self.events.append("pause")

    def on_resume(self, work: WorkId, version: str | None) -> None:
        self.events.append("resume")

    def on_stop(self, work: WorkId, version: str | None) -> None:
        self.events.append("stop")

    def on_shutdown(self, work: WorkId, version: str | None) -> None:
        self.events.append("shutdown")

    def on_failure(self, work: WorkId, error: BaseException, version: str | None) -> None:
        self.events.append("failure")


def equipment(
    listener: RecordingListener,
    tolerance: Tolerance | None = None,
    is_ours: Callable[[], bool] = lambda: True,
    *,
    sink: bool = False,
    on_topic: Callable[[str], None] = lambda _topic: None,
) -> Equipment:
    converter = ByteArrayConverter()
    stopping = threading.Event()
    counters = TaskCounters(sink=SinkCounters()) if sink else TaskCounters(source=SourceCounters())
    operator: RetryWithToleranceOperator[object] = RetryWithToleranceOperator(
        tolerance or Tolerance(), counters.errors, stopping
    )
    return Equipment(
        TASK,
        {},
        Converters(converter, converter, converter),
        TransformationChain((), operator),
        operator,
        counters,
        stopping,
        listener,
        TargetState.STARTED,
        on_topic=on_topic,
        log_context={"flow": "A->B"},
        as_plugin=nullcontext,
        is_ours=is_ours,
    )


def source_setup(
    task: SourceTask,
    guard: OwnershipGuard | None = None,
    sender: RecordSender | None = None,
    is_ours: Callable[[], bool] = lambda: True,
) -> SourceSetup:
    cluster = Cluster(ClientSettings.from_props({"bootstrap.servers": "127.0.0.1:1"}), name="T")
    store = KafkaOffsetStore(cluster, InternalTopic("offsets", "offset.storage.", 1, 1), start_timeout_s=1)
    reader = ConnectorOffsetReader(store, "c")
    view = WorkerView({}, "g", "offsets", {}, exactly_once=False)
    context = SourceTaskContext("c", 0, {}, reader, view)
    if sender is None:
        sender = RecordSender(cluster, Producer(cluster), SenderSettings(), name="sender", is_ours=is_ours)
    return SourceSetup(task, context, store, False, reader, cluster, sender, guard=guard)
