"""Reading and changing a connector's offsets (KIP-875).

For sources: the offsets that the runtime stores. For sinks: those of their consumer group, through an admin client.
Everything here waits for the network and for plugins and runs on its own threads. The herder decides which requests are
allowed, and when.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import structlog

from mm2.connect.api import ConnectError, Connector, SinkConnector, SourceConnector
from mm2.connect.errors import BadRequest, NotSupported
from mm2.connect.herder.answers import ConnectorOffset, ConnectorOffsets, Message
from mm2.connect.herder.interface import REQUEST_TIMEOUT_S
from mm2.connect.herder.request_queue import StageTracker
from mm2.connect.runtime.exactly_once_settings import task_transactional_id
from mm2.connect.runtime.worker import Worker
from mm2.connect.stores import internal_json
from mm2.connect.stores.config_state import ClusterConfigState, ConnectorTaskId, Props, TargetState
from mm2.connect.stores.internal_topic import InternalTopic
from mm2.connect.stores.kafka_offset_store import ConnectorOffsetStore, KafkaOffsetStore, own_topic
from mm2.connect.stores.offset_store import FLUSH_S, OffsetStore, SourceOffset
from mm2.connect.stores.offset_table import OffsetJson
from mm2.kafka.admin import Admin
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.producer.transactions import TransactionalProducer
from mm2.kafka.records.record import Record
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import OffsetAndMetadata, TopicPartition

log = structlog.get_logger(__name__)

OWN_TOPIC: Final = "offsets.storage.topic"
_START_S: Final = 60.0


class StoredOffsets:
    """Offsets in the worker's or the connector's offset store.

    ``writer`` writes them in a transaction, as the tasks do with exactly-once support. It has the transactional id of
    the first task, so a transaction that this task left open is aborted.
    """

    def __init__(self, store: OffsetStore, connector: str, writer: TransactionalProducer | None = None) -> None:
        self._store = store
        self._connector = connector
        self._writer = writer

    def all(self, timeout_s: float) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Every partition with its offset. Raises ConnectError."""
        return self._store.all_offsets(self._connector, timeout_s)

    def write(self, offsets: Sequence[SourceOffset], timeout_s: float) -> None:
        """Store these offsets; returns when they are durable. Raises ConnectError.

        None removes an offset under every key that it currently has.
        """
        deadline = time.monotonic() + timeout_s
        if self._writer is None:
            self._store.refresh(timeout_s)
            self._store.write(self._connector, offsets, _remaining_s(deadline))
        else:
            self._write_in_transaction(self._writer, offsets, deadline)
        self._store.flush(FLUSH_S)

    def _write_in_transaction(
        self, writer: TransactionalProducer, offsets: Sequence[SourceOffset], deadline: float
    ) -> None:
        try:
            # Initialize first: a transaction that a task left open would block the reader.
            writer.init()
            self._store.refresh(_remaining_s(deadline))
            self._store.before_commit(self._connector, offsets, _remaining_s(deadline))
            records = [Record(key, value) for key, value in self._store.records(self._connector, offsets)]
            if not records:
                return
            writer.begin()
            writer.send(self._store.topic, records, timeout_s=_remaining_s(deadline))
            writer.commit()
        except KafkaFailure as failure:
            raise ConnectError(
                f"Failed to modify offsets for source connector {self._connector}: {failure}"
            ) from failure
        self._store.after_commit(self._connector, offsets)


class KafkaSourceOffsets:
    """Opens the offsets of connectors of a distributed worker.

    Reads those in its ``store``; for a connector with its own offsets topic, that topic takes precedence (see
    `own_topic`).
    """

    def __init__(self, worker: Worker, store: OffsetStore, *, cluster_name: str) -> None:
        self._worker = worker
        self._store = store
        self._cluster_name = cluster_name

    @contextmanager
    def __call__(self, name: str, props: Mapping[str, str]) -> Iterator[StoredOffsets]:
        """Its clients are closed at the end of the with-block. Raises ConnectError or KafkaFailure."""
        first = ConnectorTaskId(name, 0)
        with ExitStack() as closing:
            producer_props = self._worker.producer_props(first, props)
            cluster = Cluster(
                ClientSettings.from_props({**producer_props, "client.id": f"connector-offset-producer-{name}"}),
                name=self._cluster_name,
            )
            closing.callback(cluster.close)
            store = self._store
            servers = {server.strip() for server in producer_props["bootstrap.servers"].split(",")}
            topic = own_topic(
                (props.get(OWN_TOPIC) or "").strip(),
                store.topic,
                elsewhere=servers != set(self._worker.config.list("bootstrap.servers")),
                exactly_once=self._worker.exactly_once,
            )
            if topic is not None:
                consumer_props = self._worker.clients.offsets_consumer(
                    name, props, self._worker.connector_class(props), exactly_once=self._worker.exactly_once
                )
                own = KafkaOffsetStore(
                    cluster,
                    InternalTopic.of_connector(self._worker.config, topic),
                    start_timeout_s=_START_S,
                    read_committed=consumer_props["isolation.level"].strip().lower() == "read_committed",
                )
                store = ConnectorOffsetStore(own, self._store)
                store.start()
                closing.callback(store.stop)
            writer = None
            if self._worker.exactly_once:
                group = self._worker.config.str("group.id")
                writer = TransactionalProducer(cluster, task_transactional_id(group, first))
                closing.callback(writer.close)
            yield StoredOffsets(store, name, writer)


def _remaining_s(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


TOPIC: Final = "kafka_topic"
PARTITION: Final = "kafka_partition"
OFFSET: Final = "kafka_offset"
#: Error codes of a coordinator for a group that still has members.
_HAS_MEMBERS: Final = frozenset(
    {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}
)
_LARGEST_OFFSET: Final = 2**63 - 1


#: A source partition with its offset; None removes it.
_Offset = tuple[Mapping[str, Any], Mapping[str, Any] | None]


class ConnectorOffsetsAccess:
    """``source_offsets(name, props)`` opens the offsets of a source connector for the duration of a with-block."""

    def __init__(
        self,
        worker: Worker,
        source_offsets: Callable[[str, Mapping[str, str]], Any],
        *,
        cluster_name: str,
    ) -> None:
        self._worker = worker
        self._source_offsets = source_offsets
        self._cluster_name = cluster_name

    def read(self, name: str, raw: Props, stages: StageTracker) -> ConnectorOffsets:
        """The current offsets of a connector. Raises ConnectError."""
        resolution = self._worker.resolution(raw)
        with resolution.values.hidden_in_errors():
            return self._read(name, resolution.data, stages)

    def _read(self, name: str, props: Mapping[str, str], stages: StageTracker) -> ConnectorOffsets:
        with stages.during(f"reading the offsets of connector {name}"):
            try:
                if isinstance(self._connector(props), SinkConnector):
                    with self._admin(name, props) as admin:
                        return _shown(_group_offsets(admin, _group_id(self._worker, name, props), name))
                with self._source_offsets(name, props) as offsets:
                    found = offsets.all(REQUEST_TIMEOUT_S)
            except KafkaFailure as failure:
                raise ConnectError(f"Failed to retrieve offsets for connector {name}: {failure}") from failure
        return ConnectorOffsets(tuple(ConnectorOffset(partition, offset) for partition, offset in found))

    def modify(self, name: str, raw: Props, offsets: ConnectorOffsets | None, stages: StageTracker) -> Message:
        """Change some offsets, or (None) remove all. Raises BadRequest, NotSupported or ConnectError."""
        resolution = self._worker.resolution(raw)
        with resolution.values.hidden_in_errors():
            return self._modify(name, resolution.data, offsets, stages)

    def _modify(
        self, name: str, props: Mapping[str, str], offsets: ConnectorOffsets | None, stages: StageTracker
    ) -> Message:
        deadline = time.monotonic() + REQUEST_TIMEOUT_S
        connector = self._connector(props)
        with stages.during(f"modifying offsets for connector {name}"):
            try:
                if isinstance(connector, SinkConnector):
                    checked = self._modify_sink(name, props, connector, offsets, deadline)
                elif isinstance(connector, SourceConnector):
                    checked = self._modify_source(name, props, connector, offsets, deadline)
                else:
                    raise ConnectError(f"Class {type(connector).__qualname__} is neither a source nor a sink connector")
            except KafkaFailure as failure:
                raise ConnectError(f"Failed to modify offsets for connector {name}: {failure}") from failure
        done = "altered" if offsets is not None else "reset"
        if checked:
            return Message(f"The offsets for this connector have been {done} successfully")
        return Message(
            f"The Connect framework-managed offsets for this connector have been {done} successfully. However, if this "
            f"connector manages offsets externally, they will need to be manually {done} in the system that the connector uses."
        )

    def _connector(self, props: Mapping[str, str]) -> Connector:
        return self._worker.plugins.new_connector(props)

    # -- sources

    def _modify_source(
        self,
        name: str,
        props: Mapping[str, str],
        connector: SourceConnector,
        offsets: ConnectorOffsets | None,
        deadline: float,
    ) -> bool:
        with self._source_offsets(name, props) as stored:
            if offsets is None:
                wanted: list[_Offset] = [(partition, None) for partition, _ in stored.all(_remaining_s(deadline))]
            else:
                wanted = _normalized(offsets)
            requested = [(dict(partition), None if offset is None else dict(offset)) for partition, offset in wanted]
            checked = _ask(name, connector, lambda: connector.alter_offsets(props, requested))
            _require_time(deadline, f"Timed out while calling the 'alterOffsets' method for source connector {name}")
            if wanted:
                stored.write(wanted, _remaining_s(deadline))
            else:
                log.info("the connector has no offsets", connector=name)
        return checked

    # -- sinks

    def _modify_sink(
        self,
        name: str,
        props: Mapping[str, str],
        connector: SinkConnector,
        offsets: ConnectorOffsets | None,
        deadline: float,
    ) -> bool:
        group = _group_id(self._worker, name, props)
        with self._admin(name, props) as admin:
            if offsets is None:
                wanted: dict[TopicPartition, int | None] = dict.fromkeys(_group_offsets(admin, group, name))
            else:
                wanted = parse_sink_offsets(offsets)
                if any(offset is not None and offset < 0 for offset in wanted.values()):
                    # A broker treats a negative offset as the removal of the committed one.
                    raise ConnectError(f"Failed to modify offsets for sink connector {name}: Invalid negative offset")
            checked = _ask(name, connector, lambda: connector.alter_offsets(props, wanted))
            _require_time(deadline, f"Timed out while calling the 'alterOffsets' method for sink connector {name}")
            if offsets is None:
                outcome = admin.delete_groups([group])[group]
                if not _is(outcome, {ErrorCode.GROUP_ID_NOT_FOUND}):
                    _require_done(name, "reset", [outcome])
                return checked
            altered = {key: OffsetAndMetadata(offset) for key, offset in wanted.items() if offset is not None}
            if altered:
                _require_done(name, "alter", admin.alter_group_offsets(group, altered).values())
            removed = [key for key, offset in wanted.items() if offset is None]
            if removed:
                _require_done(name, "alter", admin.delete_group_offsets(group, removed).values())
        return checked

    @contextmanager
    def _admin(self, name: str, props: Mapping[str, str]) -> Iterator[Admin]:
        """A client with the settings of the worker's ``admin.*`` and the connector's ``admin.override.*``."""
        own = {key: str(value) for key, value in self._worker.config.originals.items()}
        settings = ClientSettings.from_props(
            {**own, **_under("admin.", own), **_under("admin.override.", props)},
            client_id=f"connector-worker-adminclient-{name}",
        )
        cluster = Cluster(settings, name=self._cluster_name)
        try:
            yield Admin(cluster)
        finally:
            cluster.close()


def require_stopped(name: str, configs: ClusterConfigState) -> None:
    """Raises BadRequest unless the connector is STOPPED and has no tasks."""
    if configs.target_state(name) is not TargetState.STOPPED or configs.task_counts.get(name, 0):
        raise BadRequest(
            "Connectors must be in the STOPPED state before their offsets can be modified. This can be done for the specified "
            f"connector by issuing a 'PUT' request to the '/connectors/{name}/stop' endpoint"
        )


def parse_sink_offsets(offsets: ConnectorOffsets) -> dict[TopicPartition, int | None]:
    """The offsets in a request for a sink (SinkUtils of Java).

    Raises BadRequest if a partition or offset is not valid for Kafka.
    """
    parsed: dict[TopicPartition, int | None] = {}
    for entry in offsets.offsets:
        if entry.partition is None:
            raise BadRequest("The partition for a sink connector offset cannot be null or missing")
        if TOPIC not in entry.partition or PARTITION not in entry.partition:
            raise BadRequest(
                f"The partition for a sink connector offset must contain the keys '{TOPIC}' and '{PARTITION}'"
            )
        topic, number = entry.partition[TOPIC], entry.partition[PARTITION]
        if topic is None:
            raise BadRequest("Kafka topic names must be valid strings and may not be null")
        if number is None:
            raise BadRequest("Kafka partitions must be valid numbers and may not be null")
        partition = _integer(number, 2**31 - 1)
        if partition is None:
            raise BadRequest(
                f"Failed to parse the following Kafka partition value in the provided offsets: '{number}'. Partition values for "
                "sink connectors need to be integers."
            )
        offset: int | None = None
        if entry.offset is not None:
            if OFFSET not in entry.offset:
                raise BadRequest(f"The offset for a sink connector should either be null or contain the key '{OFFSET}'")
            offset = _integer(entry.offset[OFFSET], _LARGEST_OFFSET)
            if offset is None:
                shown = "null" if entry.offset[OFFSET] is None else entry.offset[OFFSET]
                raise BadRequest(
                    f"Failed to parse the following Kafka offset value in the provided offsets: '{shown}'. Offset "
                    "values for sink connectors need to be integers."
                )
        parsed[TopicPartition(str(topic), partition)] = offset
    return parsed


def _integer(value: object, largest: int) -> int | None:
    """Numbers may be given as text; 1.0 and true are rejected."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    text = str(value)
    digits = text[1:] if text[:1] in {"-", "+"} else text
    if not (digits.isascii() and digits.isdigit()):
        return None
    number = int(text)
    return number if -largest - 1 <= number <= largest else None


def _normalized(offsets: ConnectorOffsets) -> list[_Offset]:
    """The offsets as the connector will read them back.

    Raises BadRequest if one cannot be stored, ConnectError for one without a partition.
    """
    normalized: list[_Offset] = []
    for entry in offsets.offsets:
        if entry.partition is None:
            if entry.offset is None:
                continue  # nothing has the offset that this removes
            raise ConnectError("Partition objects cannot be null")
        try:
            internal_json.require_flat("partition", entry.partition)
            if entry.offset is not None:
                internal_json.require_flat("offset", entry.offset)
            key = OffsetJson.parse_key(OffsetJson.key("", entry.partition))
            partition = dict(entry.partition) if key is None else key[1]
            normalized.append((partition, OffsetJson.parse_value(OffsetJson.value(entry.offset))))
        except (TypeError, ValueError, ConnectError) as error:
            raise BadRequest(f"A source partition or offset cannot be stored: {error}") from error
    return normalized


def _ask(name: str, connector: Connector, ask: Callable[[], bool]) -> bool:
    try:
        return bool(ask())
    except NotImplementedError as error:
        raise NotSupported(
            f"Failed to modify offsets for connector {name} because it doesn't support external modification of offsets"
        ) from error
    except ConnectError:
        raise
    except Exception as error:
        raise ConnectError(
            f"Failed to modify offsets for connector {name}, {type(connector).__qualname__} reports: {error}"
        ) from error


def _group_id(worker: Worker, name: str, props: Mapping[str, str]) -> str:
    """The consumer group of a sink connector."""
    return (
        props.get("consumer.override.group.id")
        or worker.config.originals_with_prefix("consumer.").get("group.id")
        or f"connect-{name}"
    )


def _group_offsets(admin: Admin, group: str, name: str) -> dict[TopicPartition, OffsetAndMetadata]:
    found = admin.list_group_offsets([group])[group]
    if isinstance(found, KafkaFailure):
        raise ConnectError(f"Failed to retrieve consumer group offsets for sink connector {name}: {found}") from found
    return found


def _shown(found: Mapping[TopicPartition, OffsetAndMetadata]) -> ConnectorOffsets:
    return ConnectorOffsets(
        tuple(
            ConnectorOffset({TOPIC: key.topic, PARTITION: key.partition}, {OFFSET: found[key].offset})
            for key in sorted(found)
        )
    )


def _require_done(name: str, what: str, outcomes: Any) -> None:
    failures = [outcome for outcome in outcomes if outcome is not None]
    if not failures:
        return
    if any(_is(failure, _HAS_MEMBERS) for failure in failures):
        raise ConnectError(
            f"Failed to {what} consumer group offsets for connector {name} either because its tasks haven't stopped completely yet "
            f"or the connector was resumed before the request to {what} its offsets could be successfully completed. If the "
            "connector is in a stopped state, this operation can be safely retried. If it doesn't eventually succeed, the Connect "
            "cluster may need to be restarted to get rid of the zombie sink tasks."
        )
    raise ConnectError(f"Failed to {what} consumer group offsets for connector {name}: {failures[0]}")


def _is(outcome: object, codes: Any) -> bool:
    return isinstance(outcome, BrokerFailure) and outcome.code in codes


def _under(prefix: str, props: Mapping[str, str]) -> dict[str, str]:
    return {key.removeprefix(prefix): value for key, value in props.items() if key.startswith(prefix) and key != prefix}


def _require_time(deadline: float, message: str) -> None:
    if time.monotonic() > deadline:
        raise ConnectError(message)
