"""Builds a startable task from configurations: plugins, clients, error handling, offset store."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

import structlog

from mm2.config.keys.worker_keys import WorkerConfig
from mm2.config.providers import FreshValues
from mm2.connect.api import (
    ConnectError,
    Connector,
    SinkTask,
    SourceTask,
    SourceTaskContext,
    Task,
    WorkerView,
)
from mm2.connect.plugins import PluginLoader, Plugins
from mm2.connect.runtime.clients import ClientProps
from mm2.connect.runtime.connectors import StatusListener, WorkId, check_count, connector_config
from mm2.connect.runtime.counters import ErrorCounters, SinkCounters, SourceCounters, TaskCounters
from mm2.connect.runtime.error_reporters import (
    DeadLetterQueue,
    DeadLetterQueueReporter,
    LogReporter,
    of_consumer_record,
    of_source_record,
)
from mm2.connect.runtime.exactly_once_settings import (
    Boundary,
    TransactionBoundaries,
    task_transactional_id,
    transactions_of,
)
from mm2.connect.runtime.sending import RecordSender, SenderSettings
from mm2.connect.runtime.tasks.base import Equipment, WorkerTask
from mm2.connect.runtime.tasks.conversion import build_converters
from mm2.connect.runtime.tasks.exactly_once import ExactlyOnceWorkerSourceTask, WorkerTransactionContext
from mm2.connect.runtime.tasks.sink import SinkSetup, WorkerSinkTask, topics_of
from mm2.connect.runtime.tasks.source import OwnershipGuard, SourceSetup, WorkerSourceTask
from mm2.connect.runtime.tolerance import RetryWithToleranceOperator, Tolerance
from mm2.connect.runtime.topic_creation import TopicCreation, topic_creation_groups
from mm2.connect.runtime.transformation_chain import TransformationChain, build_stages
from mm2.connect.stores.config_state import ConnectorTaskId, Props, TargetState
from mm2.connect.stores.internal_topic import InternalTopic
from mm2.connect.stores.kafka_offset_store import ConnectorOffsetStore, KafkaOffsetStore, own_topic
from mm2.connect.stores.offset_store import ConnectorOffsetReader, OffsetStore
from mm2.kafka.admin import Admin
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.consumer.consumer import Consumer
from mm2.kafka.consumer.records import ConsumerRecord
from mm2.kafka.consumer.settings import ConsumerSettings
from mm2.kafka.producer.producer import Producer, codec_and_acks, compression_level
from mm2.kafka.producer.transactions import TransactionalProducer
from mm2.kafka.settings.client_settings import ClientSettings

log = structlog.get_logger(__name__)

#: Key that the runtime adds to the task configs of a connector.
TASK_CLASS: Final = "task.class"
_STORE_START_S: Final = 60.0


@dataclass(frozen=True)
class TaskStart:
    """What the herder passes to start a task; its configurations are as stored."""

    id: ConnectorTaskId
    connector_raw: Props = field(repr=False)
    task_raw: Props = field(repr=False)
    #: Number of the connector's tasks.
    count: int
    state: TargetState
    listener: StatusListener
    #: See `Equipment.on_topic`.
    on_topic: Callable[[str], None]
    #: Used with exactly-once support only.
    guard: OwnershipGuard | None = None
    #: Whether the task is still assigned to this worker, as far as can be known; false after an unnoticed end of
    #: session.
    is_ours: Callable[[], bool] = lambda: True


@dataclass(frozen=True)
class _WorkerParts:
    """What all tasks of a worker share."""

    config: WorkerConfig
    props: dict[str, str] = field(repr=False)
    plugins: Plugins
    clients: ClientProps
    offset_store: OffsetStore
    resolve: Callable[[str, Props], dict[str, str]]
    hide: Callable[[WorkId, str], str]
    exactly_once: bool
    cluster_name: str
    resources: Mapping[str, Any]
    log_context: Mapping[str, str]

    @property
    def group_id(self) -> str:
        return self.props.get("group.id", "")


class TaskBuilder:
    """Builds tasks of one worker; source tasks receive ``resources``.

    ``resolve`` replaces the provider references in a configuration of the connector of that name, ``hide`` replaces their
    values in a text about it.
    """

    def __init__(
        self,
        config: WorkerConfig,
        plugins: Plugins,
        clients: ClientProps,
        offset_store: OffsetStore,
        *,
        resolve: Callable[[str, Props], dict[str, str]],
        hide: Callable[[WorkId, str], str],
        exactly_once: bool,
        cluster_name: str,
        resources: Mapping[str, Any],
        log_context: Mapping[str, str],
    ) -> None:
        self._worker = _WorkerParts(
            config,
            {key: str(value) for key, value in config.originals.items()},
            plugins,
            clients,
            offset_store,
            resolve,
            hide,
            exactly_once,
            cluster_name,
            MappingProxyType(dict(resources)),
            log_context,
        )

    def build(self, start: TaskStart) -> WorkerTask:
        """A task that has not been started.

        Raises ConnectError, ConfigException or KafkaFailure; all clients are closed then.
        """
        props = self._worker.resolve(start.id.connector, start.connector_raw)
        loader = self._worker.plugins.connector_loader(props)
        with self._worker.plugins.swap(loader), ExitStack() as on_failure:
            built = _Building(self._worker, start, props, loader, on_failure).task()
            on_failure.pop_all()
            return built


class _Building:
    """Builds one task; ``on_failure`` closes what was opened."""

    def __init__(
        self,
        worker: _WorkerParts,
        start: TaskStart,
        props: dict[str, str],
        loader: PluginLoader | None,
        on_failure: ExitStack,
    ) -> None:
        self._worker = worker
        self._start = start
        self._id = start.id
        self._props = props
        self._loader = loader
        self._on_failure = on_failure
        self._connector_class = worker.plugins.find(
            props.get("connector.class") or "",
            Connector,
            key="connector.class",
            version=props.get("connector.plugin.version"),
        )
        self._config = connector_config(props, self._connector_class)
        self._task_props = worker.resolve(start.id.connector, start.task_raw)
        self._stopping = threading.Event()

    def task(self) -> WorkerTask:
        check_count(self._id.connector, self._start.count, self._config)
        task = self._worker.plugins.new_task(self._task_props.get(TASK_CLASS, ""), self._props)
        if isinstance(task, SinkTask):
            return self._sink(task)
        if isinstance(task, SourceTask):
            return self._source(task)
        raise ConnectError(
            f"Class {type(task).__qualname__} of configuration {TASK_CLASS} is neither a SourceTask nor a SinkTask"
        )

    def _resolved_again(self) -> Mapping[str, str]:
        return MappingProxyType(self._worker.resolve(self._id.connector, self._start.task_raw))

    def _equipment(self, task: Task, counters: TaskCounters, operator: RetryWithToleranceOperator[Any]) -> Equipment:
        worker = self._worker
        converters = build_converters(worker.plugins, self._props, self._loader, worker.props, worker.config.str)
        self._on_failure.callback(converters.close)
        chain = TransformationChain(
            build_stages(self._worker.plugins, self._config, self._props, self._loader), operator
        )
        self._on_failure.callback(chain.close)
        loader = self._worker.plugins.loader_of(task) or self._loader
        return Equipment(
            self._id,
            MappingProxyType(self._task_props),
            converters,
            chain,
            operator,
            counters,
            self._stopping,
            self._start.listener,
            self._start.state,
            self._start.on_topic,
            self._worker.log_context,
            lambda: self._worker.plugins.swap(loader),
            self._start.is_ours,
        )

    # -- sinks

    def _sink(self, task: SinkTask) -> WorkerTask:
        counters = TaskCounters(sink=SinkCounters())
        tolerance = Tolerance.of(self._config)
        operator: RetryWithToleranceOperator[ConsumerRecord] = RetryWithToleranceOperator(
            tolerance, counters.errors, self._stopping
        )
        self._on_failure.callback(operator.close)
        equipment = self._equipment(task, counters, operator)
        topics = topics_of(self._task_props)
        if tolerance.log_enable:
            where = of_consumer_record if tolerance.log_include_messages else None
            operator.add_reporter(LogReporter(self._id, counters.errors, where))
        queue = DeadLetterQueue.of(self._config)
        if queue is not None:
            operator.add_reporter(self._dead_letters(queue, counters.errors))
        consumer_props = self._worker.clients.consumer(
            self._id.connector, self._props, self._connector_class, client_id=f"connector-consumer-{self._id}"
        )
        consumer = Consumer(ConsumerSettings.from_props(consumer_props), name=self._worker.cluster_name)
        return WorkerSinkTask(
            equipment,
            SinkSetup(
                task,
                consumer,
                topics,
                fresh_configs=self._resolved_again,
                reports_errors=queue is not None or tolerance.log_enable,
                commit_interval_ms=self._worker.config.int("offset.flush.interval.ms"),
                commit_timeout_ms=self._worker.config.int("offset.flush.timeout.ms"),
            ),
        )

    def _dead_letters(self, queue: DeadLetterQueue, counters: ErrorCounters) -> DeadLetterQueueReporter:
        admin_cluster = self._admin_cluster(f"connector-dlq-adminclient-{self._id}")
        try:
            queue.create(Admin(admin_cluster))
        finally:
            admin_cluster.close()
        props = self._worker.clients.producer(
            self._id.connector, self._props, self._connector_class, client_id=f"connector-dlq-producer-{self._id}"
        )
        cluster = Cluster(ClientSettings.from_props(props), name=self._worker.cluster_name)
        sender = RecordSender(
            cluster, _producer(cluster, props), SenderSettings.of(props), name=f"dlq-producer-{self._id}"
        )
        hide = functools.partial(self._worker.hide, self._id)
        return DeadLetterQueueReporter(self._id, queue, sender, counters, cluster, hide)

    # -- sources

    def _source(self, task: SourceTask) -> WorkerTask:
        counters = TaskCounters(source=SourceCounters())
        tolerance = Tolerance.of(self._config)
        operator: RetryWithToleranceOperator[Any] = RetryWithToleranceOperator(
            tolerance, counters.errors, self._stopping
        )
        equipment = self._equipment(task, counters, operator)
        if tolerance.log_enable:
            where = of_source_record if tolerance.log_include_messages else None
            operator.add_reporter(LogReporter(self._id, counters.errors, where))
        producer_props = self._producer_props()
        transactions = (
            transactions_of(self._config, self._worker.config, producer_props) if self._worker.exactly_once else None
        )
        boundaries = (
            WorkerTransactionContext()
            if transactions is not None and transactions.boundary is Boundary.CONNECTOR
            else None
        )
        store, owns_store, store_clusters = self._store(producer_props, task)
        reader = ConnectorOffsetReader(store, self._id.connector)
        cluster = self._opened(Cluster(ClientSettings.from_props(producer_props), name=self._worker.cluster_name))
        producer, transactional = _producer(cluster, producer_props), None
        if transactions is not None and not task.produces_by_itself:
            producer = transactional = _transactional_producer(
                cluster, producer_props, task_transactional_id(self._worker.group_id, self._id), transactions
            )
        creation, creation_clusters = self._topic_creation()
        setup = SourceSetup(
            task,
            self._source_context(reader, self._view(store, producer_props, transactions), boundaries),
            store,
            owns_store,
            reader,
            cluster,
            self._sender(cluster, producer, producer_props, transactional=transactional is not None),
            creation,
            (*store_clusters, *creation_clusters),
            self._start.guard if transactions is not None else None,
        )
        flush_timeout_s = self._worker.config.int("offset.flush.timeout.ms") / 1000
        if transactional is not None and transactions is not None:
            return ExactlyOnceWorkerSourceTask(
                equipment, setup, transactional, transactions, boundaries, flush_timeout_s=flush_timeout_s
            )
        return WorkerSourceTask(equipment, setup, flush_timeout_s=flush_timeout_s)

    def _sender(
        self, cluster: Cluster, producer: Producer, producer_props: Mapping[str, str], *, transactional: bool
    ) -> RecordSender:
        return RecordSender(
            cluster,
            producer,
            SenderSettings.of(producer_props),
            name=f"producer-{self._id}",
            transactional=transactional,
            is_ours=self._start.is_ours,
        )

    def _source_context(
        self, reader: ConnectorOffsetReader, view: WorkerView, boundaries: WorkerTransactionContext | None
    ) -> SourceTaskContext:
        return SourceTaskContext(
            connector=self._id.connector,
            task_id=self._id.task,
            configs=FreshValues(
                {key: value for key, value in self._start.task_raw.items() if value is not None}, self._resolved_again
            ),
            offset_reader=reader,
            worker=view,
            resources=self._worker.resources,
            transaction_context=boundaries,
            task_count=self._start.count,
        )

    def _producer_props(self) -> dict[str, str]:
        if self._worker.exactly_once:
            return self._worker.clients.exactly_once_producer(self._id, self._props, self._connector_class)
        return self._worker.clients.producer(
            self._id.connector, self._props, self._connector_class, client_id=f"connector-producer-{self._id}"
        )

    def _store(self, producer_props: Mapping[str, str], task: SourceTask) -> tuple[OffsetStore, bool, list[Cluster]]:
        """The task's offset store: the worker's, or one that also uses the connector's own topic."""
        named = str(self._config.get("offsets.storage.topic") or "").strip()
        elsewhere = _servers(producer_props) != _servers(self._worker.props)
        if not self._worker.offset_store.topic:
            if named:
                log.warning("offsets.storage.topic ignored, offsets are stored in a file", task_id=str(self._id))
            return self._worker.offset_store, False, []
        if task.produces_by_itself and (named or (elsewhere and self._worker.exactly_once)):
            raise ConnectError(
                f"Class {type(task).__qualname__} writes its offsets by itself to the worker's topic: neither "
                "offsets.storage.topic nor, with exactly-once, a producer of another cluster is possible with it"
            )
        topic = own_topic(
            named, self._worker.offset_store.topic, elsewhere=elsewhere, exactly_once=self._worker.exactly_once
        )
        if topic is None:
            return self._worker.offset_store, False, []
        consumer_props = self._worker.clients.offsets_consumer(
            self._id.connector, self._props, self._connector_class, exactly_once=self._worker.exactly_once
        )
        # The connector's topic is in the producer's cluster; the consumer's settings define how it is read.
        cluster = self._opened(
            Cluster(
                ClientSettings.from_props({**producer_props, "client.id": consumer_props["client.id"]}),
                name=self._worker.cluster_name,
            )
        )
        own = KafkaOffsetStore(
            cluster,
            InternalTopic.of_connector(self._worker.config, topic),
            start_timeout_s=_STORE_START_S,
            read_committed=consumer_props["isolation.level"].strip().lower() == "read_committed",
        )
        return ConnectorOffsetStore(own, self._worker.offset_store), True, [cluster]

    def _topic_creation(self) -> tuple[TopicCreation | None, list[Cluster]]:
        if not self._worker.config.bool("topic.creation.enable"):
            return None, []
        groups = topic_creation_groups(self._config, self._props)
        if not groups:
            return None, []
        cluster = self._admin_cluster(f"connector-adminclient-{self._id}")
        return TopicCreation(Admin(cluster), groups), [cluster]

    def _admin_cluster(self, client_id: str) -> Cluster:
        props = self._worker.clients.admin(self._id.connector, self._props, self._connector_class, client_id=client_id)
        # The worker's own client.id is for its own clients.
        settings = ClientSettings.from_props(props, client_id=client_id)
        return self._opened(Cluster(settings, name=self._worker.cluster_name))

    def _opened(self, cluster: Cluster) -> Cluster:
        self._on_failure.callback(cluster.close)
        return cluster

    def _view(
        self, store: OffsetStore, producer_props: Mapping[str, str], transactions: TransactionBoundaries | None
    ) -> WorkerView:
        view = WorkerView(
            worker_props=MappingProxyType(self._worker.props),
            group_id=self._worker.group_id,
            offset_storage_topic=store.topic,
            producer_props=MappingProxyType(dict(producer_props)),
            exactly_once=transactions is not None,
        )
        if transactions is None:
            return view
        return replace(
            view,
            transactional_id=task_transactional_id(self._worker.group_id, self._id),
            transaction_boundary=transactions.boundary.value,
            transaction_interval_ms=transactions.interval_ms,
        )


def _producer(cluster: Cluster, props: Mapping[str, str]) -> Producer:
    codec, acks = codec_and_acks(props)
    return Producer(
        cluster,
        acks=acks,
        codec=codec,
        level=compression_level(props),
        max_request_bytes=int(props.get("max.request.size", "1048576")),
    )


def _transactional_producer(
    cluster: Cluster, props: Mapping[str, str], transactional_id: str, transactions: TransactionBoundaries
) -> TransactionalProducer:
    codec, _ = codec_and_acks(props)
    return TransactionalProducer(
        cluster,
        transactional_id,
        transactions.timeout_ms,
        codec=codec,
        level=compression_level(props),
        max_request_bytes=int(props.get("max.request.size", "1048576")),
    )


def _servers(props: Mapping[str, str]) -> set[str]:
    return {server.strip() for server in props["bootstrap.servers"].split(",")}
