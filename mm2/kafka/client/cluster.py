"""Client view of a cluster: connection pool, metadata and coordinators."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal

from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest

from mm2.kafka.backoff import Backoff
from mm2.kafka.client.connection import Connection
from mm2.kafka.client.dial import canonical_names
from mm2.kafka.client.pool import Address, Pool
from mm2.kafka.client.shared_requests import SharedRequests
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import (
    AuthenticationFailure,
    BrokerFailure,
    ConnectFailure,
    CorruptBatch,
    DisconnectedFailure,
    DnsFailure,
    KafkaFailure,
    RefusedFailure,
    TimeoutFailure,
    TlsFailure,
    UnsupportedVersion,
)
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import Broker, Metadata, TopicInfo
from mm2.kafka.wire.metadata import MetadataAnswer

CoordinatorKind = Literal["group", "transaction"]
_COORDINATOR_TYPES: Final[Mapping[str, int]] = {"group": 0, "transaction": 1}
_MIN_SHARE_S: Final = 0.5
#: How long a leader that no broker names any more is kept. Brokers learn of an election within seconds.
_LEADER_KEPT_S: Final = 30.0
#: When several servers failed, the first of these failures is raised: it is the most specific one.
_TELLING: Final[tuple[type[KafkaFailure], ...]] = (
    AuthenticationFailure,
    TlsFailure,
    UnsupportedVersion,
    BrokerFailure,
    CorruptBatch,
    DisconnectedFailure,
    TimeoutFailure,
    RefusedFailure,
    DnsFailure,
)


@dataclasses.dataclass(frozen=True, slots=True)
class _KnownTopic:
    """A topic with its newest leaders. Times in seconds (monotonic)."""

    info: TopicInfo
    #: When it was requested; -inf after `Cluster.invalidate`.
    fetched_s: float
    #: When a broker last named these leaders.
    confirmed_s: float


class Cluster:
    """Thread-safe. Each request uses a connection of its own, so a long poll does not block other requests.

    Connections are opened on demand. A request is sent at most once: only the caller knows whether it may be repeated.
    """

    def __init__(self, settings: ClientSettings, *, name: str) -> None:
        self.settings = settings
        self.name = name
        self._pool = Pool(settings, name)
        self._lock = threading.Lock()
        self._brokers: dict[int, Broker] = {}
        self._bootstrap: tuple[Address, ...] | None = None if settings.canonical_bootstrap else settings.bootstrap
        self._cluster_id: str | None = None
        self._controller_id = -1
        self._topics: dict[str, _KnownTopic] = {}
        self._listing: tuple[Metadata, float] | None = None
        self._coordinators: dict[tuple[str, str], int] = {}
        self._requests = SharedRequests[Metadata]()

    def preflight(self, timeout_s: float) -> None:
        """Connect to the bootstrap servers in turn until one answers a request.

        Raises the most informative of their failures. A rejected login ends the search, because the next server would
        reject it too.
        """
        deadline = time.monotonic() + timeout_s
        failures: list[KafkaFailure] = []
        addresses = list(self._bootstrap_addresses(deadline))
        for position, address in enumerate(addresses):
            share = _share(deadline, len(addresses) - position)
            try:
                with self._pool.lease(address, share) as connection:
                    answer = connection.request(MetadataRequest(topics=[], min_version=1), timeout_s=_left(share))
                self._learn(self._read(answer), time.monotonic())
                return
            except AuthenticationFailure:
                raise
            except KafkaFailure as failure:
                failures.append(failure)
        raise _most_specific(failures)

    def send(self, node_id: int | None, request: Any, *, timeout_s: float | None = None) -> Any:
        """Send one request to a broker and return its answer. None: any live broker, bootstrap servers last.

        `timeout_s` (default `request.timeout.ms`) includes connecting. Raises KafkaFailure. The caller checks the error
        codes in the answer.
        """
        deadline = time.monotonic() + self._timeout_s(timeout_s)
        if node_id is not None:
            with self._pool.lent(self._connect(node_id, deadline, self._pool.take)) as connection:
                return connection.request(request, timeout_s=_left(deadline))
        with self._lease_any(deadline) as connection:
            return connection.request(request, timeout_s=_left(deadline))

    def send_to_controller(self, request: Any, *, timeout_s: float | None = None) -> Any:
        """Send one request to the controller, as `send`. NOT_CONTROLLER if it cannot be connected to: there may be another one.

        With ZooKeeper other brokers do not change topics. With KRaft the metadata names any live broker, which forwards the
        request (KIP-590).
        """
        deadline = time.monotonic() + self._timeout_s(timeout_s)
        metadata = self.metadata((), timeout_s=_left(deadline))
        node_id = metadata.controller_id
        if node_id not in metadata.brokers:
            return self.send(None, request, timeout_s=_left(deadline))
        try:
            connection = self._connect(node_id, deadline, self._pool.take)
        except ConnectFailure as failure:
            if not failure.retriable or self.closed:
                raise
            subject = f"Controller {node_id} of cluster {self.name}"
            raise BrokerFailure.of(ErrorCode.NOT_CONTROLLER, str(failure), subject=subject) from failure
        with self._pool.lent(connection):
            return connection.request(request, timeout_s=_left(deadline))

    def lease_connection(self, node_id: int, *, timeout_s: float | None = None) -> Connection:
        """A connection of the pool for several requests. `return_connection` must follow. Raises KafkaFailure."""
        return self._connect(node_id, time.monotonic() + self._timeout_s(timeout_s), self._pool.take)

    def return_connection(self, connection: Connection) -> None:
        """Return a connection of `lease_connection`. The caller closes it first if a response is outstanding."""
        self._pool.give_back(connection)

    def open_connection(self, node_id: int | None, *, timeout_s: float | None = None) -> Connection:
        """Open a connection outside the pool, for the hot path and readers of one broker; the caller closes it.

        Raises KafkaFailure.
        """
        deadline = time.monotonic() + self._timeout_s(timeout_s)
        if node_id is None:
            return self._first_of(deadline, self._pool.open)
        return self._connect(node_id, deadline, self._pool.open)

    def metadata(
        self, topics: Iterable[str] | None = None, *, max_age_s: float = 0, timeout_s: float | None = None
    ) -> Metadata:
        """Brokers and the named topics (None: all topics), at most `max_age_s` seconds old. Never creates topics.

        For topics with ids, a leader is not replaced by that of an older leader epoch: a broker without a connection to the
        controller keeps returning the leaders that it knew (KIP-320).

        Concurrent callers with the same question share one request, which is sent after all of them have called. Raises
        KafkaFailure.
        """
        deadline = time.monotonic() + self._timeout_s(timeout_s)
        names = None if topics is None else tuple(sorted(set(topics)))
        if max_age_s > 0 and (cached := self._cached(names, time.monotonic() - max_age_s)) is not None:
            return cached
        return self._requests.join(
            names, deadline, lambda: self._fetch_metadata(names, deadline), f"Metadata of cluster {self.name}"
        )

    def metadata_of(self, node_id: int, topics: Iterable[str], *, timeout_s: float | None = None) -> Metadata:
        """Metadata of these topics according to one broker. Raises KafkaFailure."""
        wanted = [MetadataRequest.MetadataRequestTopic(name=name) for name in sorted(set(topics))]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False, min_version=1)
        metadata = self._read(self.send(node_id, request, timeout_s=timeout_s))
        self._learn(metadata, time.monotonic())
        return metadata

    def leader(self, topic: str, partition: int, *, timeout_s: float | None = None) -> int:
        """Node id of the leader, from metadata up to `metadata.max.age.ms` old.

        Raises BrokerFailure with UNKNOWN_TOPIC_OR_PARTITION or LEADER_NOT_AVAILABLE, or the failure to get metadata.
        """
        metadata = self.metadata((topic,), max_age_s=self.settings.metadata_max_age_ms / 1000, timeout_s=timeout_s)
        if topic in metadata.errors:
            raise metadata.errors[topic]
        info = metadata.topics[topic].partitions.get(partition) if topic in metadata.topics else None
        subject = f"Partition {topic}-{partition} of cluster {self.name}"
        if info is None:
            self.invalidate(topic)
            raise BrokerFailure.of(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, subject=subject)
        if info.leader < 0:
            self.invalidate(topic)
            raise BrokerFailure.of(ErrorCode.LEADER_NOT_AVAILABLE, subject=subject)
        return info.leader

    def invalidate(self, topic: str) -> None:
        """Do not use the cache for a topic: the next `leader` requests metadata."""
        with self._lock:
            if topic in self._topics:
                self._topics[topic] = dataclasses.replace(self._topics[topic], fetched_s=-math.inf)
            self._listing = None

    def coordinator(self, key: str, kind: CoordinatorKind = "group", *, timeout_s: float | None = None) -> int:
        """Node id of the coordinator of a group or transactional id; waits while there is none. Raises KafkaFailure."""
        deadline = time.monotonic() + self._timeout_s(timeout_s)
        backoff = Backoff(self.settings.retry_backoff_ms, self.settings.retry_backoff_max_ms)
        attempt = 0
        while True:
            answer = self.coordinators((key,), kind, timeout_s=_left(deadline))[key]
            if isinstance(answer, int):
                return answer
            delay_s = backoff.delay_s(attempt)
            if not (isinstance(answer, BrokerFailure) and answer.retriable) or time.monotonic() + delay_s >= deadline:
                raise answer
            attempt += 1
            self._pool.sleep(delay_s)

    def coordinators(
        self, keys: Iterable[str], kind: CoordinatorKind = "group", *, timeout_s: float | None = None
    ) -> dict[str, int | KafkaFailure]:
        """Find the coordinators of many keys, cached ones first.

        Sends as few requests as the cluster supports (KIP-699). Each key is tried once.
        """
        wanted = list(dict.fromkeys(keys))
        with self._lock:
            known = {key: self._coordinators[kind, key] for key in wanted if (kind, key) in self._coordinators}
        found: dict[str, int | KafkaFailure] = dict(known)
        unknown = [key for key in wanted if key not in known]
        if unknown:
            try:
                found.update(self._find_coordinators(unknown, kind, time.monotonic() + self._timeout_s(timeout_s)))
            except KafkaFailure as failure:
                found.update(dict.fromkeys(unknown, failure))
        return found

    def invalidate_coordinator(self, key: str, kind: CoordinatorKind = "group") -> None:
        """Remove a coordinator from the cache, after COORDINATOR_LOAD_IN_PROGRESS,
        COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR or a lost connection."""
        with self._lock:
            self._coordinators.pop((kind, key), None)

    def close(self) -> None:
        """Close idle connections and abort those in use: blocked callers get a DisconnectedFailure."""
        self._pool.close()

    @property
    def closed(self) -> bool:
        return self._pool.closed

    def _timeout_s(self, timeout_s: float | None) -> float:
        return self.settings.request_timeout_ms / 1000 if timeout_s is None else timeout_s

    # -- connections

    def _bootstrap_addresses(self, deadline: float) -> tuple[Address, ...]:
        if self._bootstrap is None:
            self._bootstrap = tuple(
                (name, port)
                for host, port in self.settings.bootstrap
                for name in canonical_names(host, port, deadline=deadline)
            )
        return self._bootstrap

    def _address_of(self, node_id: int, deadline: float) -> Address:
        with self._lock:
            broker = self._brokers.get(node_id)
        if broker is None:
            broker = self.metadata((), timeout_s=_left(deadline)).brokers.get(node_id)
        if broker is None:
            raise DisconnectedFailure(f"Cluster {self.name} has no broker {node_id} at the moment.")
        return broker.host, broker.port

    def _connect(self, node_id: int, deadline: float, connect: Callable[[Address, float], Connection]) -> Connection:
        try:
            return connect(self._address_of(node_id, deadline), deadline)
        except ConnectFailure:
            # The broker may have restarted at another address: refresh the metadata before the next attempt.
            with self._lock:
                self._brokers.pop(node_id, None)
            raise

    def _candidates(self, deadline: float) -> Iterable[tuple[Address, float]]:
        """Addresses to try for a request that any broker can answer, each with the deadline of its attempt.

        Brokers with an idle connection come first and those with a recent failure last, then the bootstrap servers
        (KIP-899).
        """
        with self._lock:
            brokers = [(broker.host, broker.port) for broker in self._brokers.values()]
        random.shuffle(brokers)
        brokers.sort(key=self._pool.preference)
        bootstrap: tuple[Address, ...] = ()
        if not brokers or self.settings.rebootstrap:
            bootstrap = self._bootstrap_addresses(deadline)
        addresses = list(dict.fromkeys([*brokers, *random.sample(bootstrap, len(bootstrap))]))
        for position, address in enumerate(addresses):
            yield address, _share(deadline, len(addresses) - position)

    def _lease_any(self, deadline: float) -> contextlib.AbstractContextManager[Connection]:
        return self._pool.lent(self._first_of(deadline, self._pool.take))

    def _first_of(self, deadline: float, connect: Callable[[Address, float], Connection]) -> Connection:
        """Connect to the first candidate that accepts. Raises the most informative failure when none does."""
        failures: list[KafkaFailure] = []
        for address, share in self._candidates(deadline):
            try:
                return connect(address, share)
            except ConnectFailure as failure:
                failures.append(failure)
                if self._pool.closed:
                    break
        raise _most_specific(failures)

    # -- metadata

    def _fetch_metadata(self, names: tuple[str, ...] | None, deadline: float) -> Metadata:
        wanted = None if names is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
        # Version 0 cannot ask for "no topics": an empty list means all topics.
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False, min_version=1)
        with self._lease_any(deadline) as connection:
            answer = connection.request(request, timeout_s=_left(deadline))
        if answer.error_code == ErrorCode.REBOOTSTRAP_REQUIRED:
            # The brokers belong to another cluster now (KIP-1102).
            with self._lock:
                self._brokers = {}
            with self._lease_any(deadline) as connection:
                answer = connection.request(request, timeout_s=_left(deadline))
        return self._learn(self._read(answer), time.monotonic(), all_topics=names is None)

    def _read(self, answer: MetadataAnswer) -> Metadata:
        if answer.error_code:
            raise BrokerFailure.of(answer.error_code, subject=f"Metadata of cluster {self.name}")
        topics: dict[str, TopicInfo] = {}
        errors: dict[str, BrokerFailure] = {}
        for topic in answer.topics:
            if topic.error_code:
                subject = f"Topic {topic.name} of cluster {self.name}"
                errors[topic.name] = BrokerFailure.of(topic.error_code, subject=subject, needed="DESCRIBE")
            else:
                topics[topic.name] = topic.info
        return Metadata(
            cluster_id=answer.cluster_id,
            controller_id=answer.controller_id,
            brokers={broker.node_id: broker for broker in answer.brokers},
            topics=topics,
            errors=errors,
        )

    def _learn(self, metadata: Metadata, now: float, *, all_topics: bool = False) -> Metadata:
        """Keep the answer of a broker. Returns it with the newest leaders that are known."""
        with self._lock:
            # A broker that has just started may list no brokers: the cached list is better than none.
            if metadata.brokers:
                self._brokers = dict(metadata.brokers)
            self._cluster_id = metadata.cluster_id
            self._controller_id = metadata.controller_id
            found = {name: self._newest(info, now) for name, info in metadata.topics.items()}
            metadata = dataclasses.replace(metadata, topics={name: known.info for name, known in found.items()})
            if all_topics:
                self._topics.clear()
                self._listing = (metadata, now)
            self._topics.update(found)
            for name in metadata.errors:
                self._topics.pop(name, None)
        return metadata

    def _newest(self, info: TopicInfo, now: float) -> _KnownTopic:
        """The topic of an answer, with leaders of newer epochs that are known (Metadata.updateLatestMetadata). Needs the lock.

        Without topic ids a recreated topic, whose epochs begin again, cannot be told from an old answer. Leaders that no broker
        has named for some time are not kept: a cluster may have been restored to an older state.
        """
        known = self._topics.get(info.name)
        is_same = known is not None and info.topic_id != "" and known.info.topic_id == info.topic_id
        kept_s = min(_LEADER_KEPT_S, self.settings.metadata_max_age_ms / 1000)
        if known is None or not is_same or now - known.confirmed_s > kept_s:
            return _KnownTopic(info, now, now)
        newer = {
            index: partition
            for index, partition in known.info.partitions.items()
            if index in info.partitions and partition.leader_epoch > info.partitions[index].leader_epoch
        }
        if not newer:
            return _KnownTopic(info, now, now)
        merged = dataclasses.replace(info, partitions={**info.partitions, **newer})
        return _KnownTopic(merged, now, known.confirmed_s)

    def _cached(self, names: tuple[str, ...] | None, not_before: float) -> Metadata | None:
        with self._lock:
            if names is None:
                fresh = self._listing is not None and self._listing[1] >= not_before
                return self._listing[0] if self._listing is not None and fresh else None
            if not names:
                return None
            entries = {name: self._topics.get(name) for name in names}
            topics = {
                name: known.info
                for name, known in entries.items()
                if known is not None and known.fetched_s >= not_before
            }
            if len(topics) < len(names):
                return None
            return Metadata(self._cluster_id, self._controller_id, dict(self._brokers), topics)

    def _find_coordinators(
        self, keys: list[str], kind: CoordinatorKind, deadline: float
    ) -> dict[str, int | KafkaFailure]:
        key_type = _COORDINATOR_TYPES[kind]
        answers: list[tuple[str, Any]] = []
        with self._lease_any(deadline) as connection:
            if connection.version_of(FindCoordinatorRequest) >= 4:
                request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=keys, min_version=4)
                answer = connection.request(request, timeout_s=_left(deadline))
                answers = [(coordinator.key, coordinator) for coordinator in answer.coordinators]
            else:
                for key in keys:
                    request = FindCoordinatorRequest(key=key, key_type=key_type, min_version=1, max_version=3)
                    answers.append((key, connection.request(request, timeout_s=_left(deadline))))
        subject = "Group" if kind == "group" else "Transactional id"
        found: dict[str, int | KafkaFailure] = {}
        with self._lock:
            for key, coordinator in answers:
                if coordinator.error_code:
                    found[key] = BrokerFailure.of(
                        coordinator.error_code,
                        coordinator.error_message,
                        subject=f"{subject} {key} of cluster {self.name}",
                        needed="DESCRIBE",
                    )
                    continue
                found[key] = self._coordinators[kind, key] = coordinator.node_id
                self._brokers.setdefault(
                    coordinator.node_id, Broker(coordinator.node_id, coordinator.host, coordinator.port)
                )
        for key in keys:
            if key not in found:
                found[key] = BrokerFailure.of(
                    ErrorCode.COORDINATOR_NOT_AVAILABLE, subject=f"{subject} {key} of cluster {self.name}"
                )
        return found


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


def _share(deadline: float, parties: int) -> float:
    """Deadline of the first of `parties` attempts that must all finish before `deadline`."""
    now = time.monotonic()
    return min(deadline, now + max(_MIN_SHARE_S, (deadline - now) / parties))


def _most_specific(failures: list[KafkaFailure]) -> KafkaFailure:
    def rank(failure: KafkaFailure) -> int:
        return next((rank for rank, kind in enumerate(_TELLING) if isinstance(failure, kind)), len(_TELLING))

    return min(failures, key=rank)
