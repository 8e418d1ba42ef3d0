"""Internal topics of the stores: creation and validation (TopicAdmin), reading and writing."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import structlog

from mm2.config.keys.worker_keys import TOPIC_CREATION_KEY, WorkerConfig
from mm2.connect.api import ConnectError
from mm2.kafka.admin import Admin
from mm2.kafka.backoff import Backoff
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.errors import BrokerFailure, KafkaFailure, value_of
from mm2.kafka.producer.producer import Producer
from mm2.kafka.readers.log import KafkaBasedLog, LogProgress, LogRecord, OnBatches
from mm2.kafka.structs import NewTopic, TopicInfo

log = structlog.get_logger(__name__)

_CLEANUP_POLICY = "cleanup.policy"
_COMPACT = "compact"
_ALREADY_EXISTS = 36
_INVALID_REPLICATION_FACTOR = 38
_UNKNOWN_TOPIC = 3
#: What to do if a topic is deleted while a worker runs: as in Java, it is created only when a worker starts.
_IF_DELETED = {
    "config.storage.": "Restart the worker, which creates it again. Connectors that were created through REST have to be created again.",
    "offset.storage.": "Restart the worker, which creates it again. Its positions are lost: restore them, or connectors start without any.",
    "status.storage.": "Restart the worker, which creates it again.",
}
# A broker's error codes for missing permissions: then, as in Java, the topic is used without validation.
_NOT_AUTHORIZED_OR_SUPPORTED = {29, 31, 35}


@dataclass(frozen=True)
class InternalTopic:
    """The required settings of a store's topic.

    ``prefix`` is the prefix of its settings, e.g. ``config.storage.``; ``named_by`` is the key that names it, by
    default ``<prefix>topic``. -1 partitions or replicas mean the broker's default.
    """

    name: str
    prefix: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str] = field(default_factory=dict)
    named_by: str = ""
    is_created: bool = True
    """Whether a worker creates it when it is missing (`TOPIC_CREATION_KEY`)."""

    @property
    def key(self) -> str:
        """The configuration key that names the topic."""
        return self.named_by or f"{self.prefix}topic"

    @property
    def new_topic(self) -> NewTopic:
        """The topic to create."""
        return NewTopic(
            self.name, self.partitions, self.replication_factor, {**self.configs, _CLEANUP_POLICY: _COMPACT}
        )

    @classmethod
    def from_config(cls, config: WorkerConfig, prefix: str) -> InternalTopic:
        """The topic that a worker's settings describe under ``prefix``; the config topic always has one partition."""
        extra = config.storage_topic_settings(prefix)
        ignored = extra.pop(_CLEANUP_POLICY, _COMPACT)
        if ignored.strip() != _COMPACT:
            log.warning(
                "cleanup policy ignored, the topic is always compacted",
                key=f"{prefix}{_CLEANUP_POLICY}",
                ignored=ignored,
            )
        partitions_key = f"{prefix}partitions"
        partitions = config.int(partitions_key) if partitions_key in config.values else 1
        extra.pop("partitions", None)
        return cls(
            config.str(f"{prefix}topic"),
            prefix,
            partitions,
            config.int(f"{prefix}replication.factor"),
            extra,
            is_created=config.bool(TOPIC_CREATION_KEY),
        )

    @classmethod
    def of_connector(cls, config: WorkerConfig, name: str) -> InternalTopic:
        """The topic in a connector's ``offsets.storage.topic``, with the settings of the worker's offsets topic."""
        return replace(cls.from_config(config, "offset.storage."), name=name, named_by="offsets.storage.topic")


def ensure(
    admin: Admin,
    topic: InternalTopic,
    cluster: str,
    *,
    timeout_s: float,
    single_partition: bool = False,
    stopping: threading.Event | None = None,
) -> None:
    """Create the topic if it is missing and may be created, otherwise check that its cleanup policy is exactly ``compact``.

    ``cluster`` is the name to use in messages. Transient failures are retried until ``timeout_s``. Raises ConnectError,
    one sentence naming topic, key, value and cluster.
    """
    deadline = time.monotonic() + timeout_s
    backoff = Backoff(250, 5_000)
    stopping = stopping or threading.Event()
    for failures in itertools.count():
        try:
            info = _describe(admin, topic.name)
            if info is None:
                if not topic.is_created:
                    raise ConnectError(why_missing(topic))
                _create(admin, topic)
                log.info("internal topic created", topic=topic.name, cluster=cluster)
                return
            check(admin, topic, info, cluster, single_partition=single_partition)
            return
        except KafkaFailure as failure:
            reason = explain(admin, topic, failure, cluster)
            wait_s = backoff.delay_s(failures)
            # Brokers may still be starting, so an error about too many replicas is not final either.
            passing = failure.retriable or _is_replication(failure)
            if not passing or time.monotonic() + wait_s > deadline or stopping.wait(wait_s):
                raise ConnectError(reason) from failure
            if failures in {0, 5}:
                log.warning("internal topic cannot be created yet, retrying", reason=reason)


def _describe(admin: Admin, name: str) -> TopicInfo | None:
    found = admin.describe_topics([name])[name]
    if isinstance(found, BrokerFailure) and found.code == _UNKNOWN_TOPIC:
        return None
    return value_of(found)


def _create(admin: Admin, topic: InternalTopic) -> None:
    outcome = admin.create_topics([topic.new_topic])[topic.name]
    if isinstance(outcome, BrokerFailure) and outcome.code == _ALREADY_EXISTS:
        return  # another worker has created it
    value_of(outcome)


def check(admin: Admin, topic: InternalTopic, info: TopicInfo, cluster: str, *, single_partition: bool = False) -> None:
    """Check that an existing topic is usable. Raises ConnectError, one sentence, or KafkaFailure."""
    if single_partition and len(info.partitions) != 1:
        raise ConnectError(
            f"Topic '{topic.name}' supplied via the '{topic.key}' property is required to have a single partition, "
            f"but it has {len(info.partitions)} on cluster {cluster}"
        )
    found = admin.describe_configs([topic.name])[topic.name]
    if isinstance(found, BrokerFailure) and found.code in _NOT_AUTHORIZED_OR_SUPPORTED:
        log.info("cleanup policy not checked", topic=topic.name, reason=str(found))
        return
    entry = value_of(found).get(_CLEANUP_POLICY)
    policies = {part.strip() for part in (entry.value or "").split(",")} if entry is not None else {_COMPACT}
    if policies != {_COMPACT}:
        raise ConnectError(
            f"Topic '{topic.name}' supplied via the '{topic.key}' property is required to have 'cleanup.policy=compact', or "
            f"what is in it will be lost, but on cluster {cluster} it has 'cleanup.policy={','.join(sorted(policies))}'"
        )


def why_missing(topic: InternalTopic) -> str:
    """The error of a missing topic that a worker must not create, as in Java."""
    return (
        f"Topic '{topic.name}' specified via the '{topic.key}' property is missing. The config '{TOPIC_CREATION_KEY}' is set to "
        "'false', so automatic creation of internal topics is disabled. Either enable automatic creation or create the topics "
        "manually."
    )


def deleted_in_use(name: str, cluster: str) -> BrokerFailure:
    """The error of a topic that does not exist although workers run that have found or created it."""
    text = "it was deleted while the workers run; restart them, which creates it again"
    return BrokerFailure.of(_UNKNOWN_TOPIC, text, subject=f"Topic {name} of cluster {cluster}")


def _is_replication(failure: KafkaFailure) -> bool:
    return isinstance(failure, BrokerFailure) and failure.code == _INVALID_REPLICATION_FACTOR


def explain(admin: Admin, topic: InternalTopic, failure: KafkaFailure, cluster: str) -> str:
    """Why the topic cannot be created, in one sentence with topic, key, value and cluster."""
    if not _is_replication(failure):
        return f"Topic '{topic.name}' supplied via the '{topic.key}' property cannot be used on cluster {cluster}: {failure}"
    key = f"{topic.prefix}replication.factor"
    try:
        brokers = f"{len(admin.describe_cluster().brokers)} broker(s)"
    except KafkaFailure:
        brokers = "fewer brokers"
    return (
        f"Topic {topic.name} cannot be created with {key}={topic.replication_factor}, because cluster {cluster} has "
        f"{brokers}; set {key} to at most that number"
    )


class InternalLog:
    """What the three stores share. ``on_record`` or ``on_batches`` runs on the log's thread. Thread-safe.

    ``start_timeout_s`` limits the creation of the topic, and separately reading it. ``single_partition``: reject a
    topic with more partitions. ``read_committed``: records of open and aborted transactions are skipped, and reading to
    the end waits for open ones. ``stopping`` is set when the store ends.
    """

    def __init__(
        self,
        cluster: Cluster,
        topic: InternalTopic,
        *,
        on_record: Callable[[LogRecord], None] | None = None,
        on_batches: OnBatches | None = None,
        start_timeout_s: float,
        single_partition: bool = False,
        read_committed: bool = False,
    ) -> None:
        self.cluster = cluster
        self.topic = topic
        self.stopping = threading.Event()
        self._start_timeout_s = start_timeout_s
        self._single_partition = single_partition
        self._producer = Producer(cluster)
        self._log = KafkaBasedLog(
            cluster,
            topic.name,
            on_record=on_record,
            on_batches=on_batches,
            producer=self._producer,
            read_committed=read_committed,
            if_deleted=_IF_DELETED.get(topic.prefix, ""),
        )

    @property
    def name(self) -> str:
        """Name of the topic."""
        return self.topic.name

    @property
    def progress(self) -> LogProgress | None:
        """The progress of reading in `start`; None before reading begins."""
        return self._log.progress

    def start(self) -> None:
        """Create or check the topic and read all of it. Raises ConnectError or KafkaFailure.

        Does not wait for a transaction that a dead worker has left open: the next task or leader aborts it. In Java, a
        worker that was killed cannot start before the transaction has timed out (a minute).
        """
        ensure(
            Admin(self.cluster),
            self.topic,
            self.cluster.name,
            timeout_s=self._start_timeout_s,
            single_partition=self._single_partition,
            stopping=self.stopping,
        )
        self._log.start(self._start_timeout_s, to_stable=True)
        if self._single_partition and self._log.partitions != 1:
            raise ConnectError(
                f"Topic '{self.name}' supplied via the '{self.topic.key}' property is required to have a single partition, "
                f"but it has {self._log.partitions} on cluster {self.cluster.name}"
            )

    def stop(self) -> None:
        """Stop reading and abort writes in progress."""
        self.stop_writing()
        self._log.stop()

    def stop_writing(self) -> None:
        """Abort writes in progress; reading continues until `stop`."""
        self.stopping.set()
        self._producer.close()

    def read_to_end(self, timeout_s: float) -> None:
        """Wait until all current records of the topic have been passed to ``on_record``.

        Raises KafkaFailure on a timeout.
        """
        self._log.read_to_end(timeout_s)

    def send_all(self, records: Iterable[tuple[bytes | None, bytes | None]], *, timeout_s: float) -> None:
        """Write (key, value) pairs in order and wait for the acknowledgements.

        Raises KafkaFailure; some pairs may have been written then.
        """
        self._log.send_all(records, timeout_s=timeout_s)
