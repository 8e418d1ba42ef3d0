"""Read-ahead of a consumer's partitions: one thread, one connection and fetch session for each leader.

As in Java's fetcher, at most one answer per partition is buffered; the next one is requested while its records are
being returned. Responses for a position that has changed since the request are dropped.
"""

from __future__ import annotations

import contextvars
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog

from mm2.kafka.backoff import Backoff
from mm2.kafka.cluster import Cluster
from mm2.kafka.connection import Connection
from mm2.kafka.consumer.records import ConsumerRecord
from mm2.kafka.consumer.settings import ConsumerSettings
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, ConnectFailure, CorruptBatch, KafkaFailure
from mm2.kafka.records.batch import BatchView, check_crc, iter_batches
from mm2.kafka.records.record import Headers, decode_batch, decode_batch_as
from mm2.kafka.records.transactions import AbortedTransactions
from mm2.kafka.structs import Metadata, TopicPartition, topic_id_bytes
from mm2.kafka.wire import fetch
from mm2.kafka.wire.fetch import Fetched, FetchSession, Position

log = structlog.get_logger(__name__)

_IDLE_S: Final = 1.0
_NO_TIMESTAMP: Final = -1
#: These errors mean that a topic has been deleted, or deleted and recreated.
_GONE: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.INCONSISTENT_TOPIC_ID,
}


@dataclass(slots=True)
class _Place:
    """State of one partition. The consumer's condition guards all fields but the last five."""

    #: Next offset to fetch; None: unknown, see `Fetcher.without_position`.
    fetch: int | None = None
    last_epoch: int = -1
    paused: bool = False
    #: Changes with every seek: answers to an older version are dropped.
    version: int = 0
    retry_at_s: float = 0.0
    failures: int = 0
    chunks: deque[Fetched] = field(default_factory=deque)
    #: Whether the position was lost because its offset does not exist.
    out_of_range: bool = False

    # Accessed by the consumer's user only.
    #: Next offset to return.
    position: int | None = None
    batches: Iterator[BatchView] | None = None
    aborted: AbortedTransactions | None = None
    ready: list[ConsumerRecord] = field(default_factory=list)
    ready_at: int = 0

    @property
    def has_more(self) -> bool:
        return self.ready_at < len(self.ready) or self.batches is not None or bool(self.chunks)


@dataclass(slots=True)
class _Leader:
    """A leader: its connection and its outstanding Fetch request."""

    connection: Connection
    session: FetchSession
    version: int = 0
    requested: dict[TopicPartition, tuple[int, int]] | None = None  # version of the partition's state, offset
    sent_s: float = 0.0


class Fetcher:
    """Fetch thread and buffers of a consumer.

    ``changed`` is the consumer's condition; the consumer's user holds it when calling any method but `take` and
    `close`. ``on_gone`` is called when a topic seems to have been deleted.
    """

    def __init__(
        self, cluster: Cluster, settings: ConsumerSettings, changed: threading.Condition, *, on_gone: Callable[[], None]
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._changed = changed
        self._on_gone = on_gone
        self._places: dict[TopicPartition, _Place] = {}
        self.failure: KafkaFailure | None = None
        self._stopping = False
        self._turn = 0
        self._brokers: dict[int, _Leader] = {}
        self._backoff = Backoff(cluster.settings.retry_backoff_ms, cluster.settings.retry_backoff_max_ms)
        self._log = log.bind(group=settings.group_id, cluster=cluster.name)
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        context = contextvars.copy_context()
        self._thread = threading.Thread(
            target=lambda: context.run(self._run), name=f"consumer-fetcher-{settings.client.client_id}", daemon=True
        )

    # -- called by the consumer's user

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions; those already assigned keep their position."""
        self._places = {tp: self._places.get(tp) or _Place() for tp in sorted(partitions)}
        self._wake()

    @property
    def assigned(self) -> frozenset[TopicPartition]:
        """The partitions that are read."""
        return frozenset(self._places)

    def without_position(self) -> dict[TopicPartition, bool]:
        """Partitions that cannot be read before `seek`; True: because the offset of their position does not exist."""
        return {tp: place.out_of_range for tp, place in self._places.items() if place.fetch is None}

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Set the position and drop what was read ahead."""
        place = self._places[tp]
        place.fetch = place.position = offset
        self._empty(place)
        self._wake()

    def position(self, tp: TopicPartition) -> int | None:
        """Next offset to return, None when it is not known yet."""
        return self._places[tp].position

    def pause(self, partitions: Iterable[TopicPartition], *, paused: bool) -> None:
        """Pause or resume partitions; what was read ahead is kept."""
        for tp in partitions:
            self._places[tp].paused = paused
        self._wake()

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """The partitions that are paused."""
        return frozenset(tp for tp, place in self._places.items() if place.paused)

    @property
    def is_ready(self) -> bool:
        """Whether `take` may have records."""
        return any(place.has_more and not place.paused for place in self._places.values())

    def take(self, limit: int) -> list[ConsumerRecord]:
        """Up to ``limit`` records in order within each partition. Raises CorruptBatch."""
        with self._changed:
            places = [(tp, place) for tp, place in self._places.items() if not place.paused and place.has_more]
            self._turn += 1
        taken: list[ConsumerRecord] = []
        first = self._turn % len(places) if places else 0
        for tp, place in (*places[first:], *places[:first]):
            while len(taken) < limit and self._next_batch(tp, place):
                stop = min(len(place.ready), place.ready_at + limit - len(taken))
                taken += place.ready[place.ready_at : stop]
                place.ready_at = stop
                place.position = place.ready[stop - 1].offset + 1
        return taken

    def close(self) -> None:
        """Stop the thread; the owner has closed the cluster's connections before."""
        with self._changed:
            self._stopping = True
            self._wake()
        if self._thread.is_alive():
            self._thread.join(5)

    def _next_batch(self, tp: TopicPartition, place: _Place) -> bool:
        """Fill ``place.ready`` if records are available. Returns whether it has any."""
        while place.ready_at >= len(place.ready):
            if place.batches is None:
                with self._changed:
                    if not place.chunks:
                        return False
                    chunk = place.chunks.popleft()
                    self._wake()
                place.batches = iter_batches(chunk.records)
                place.aborted = AbortedTransactions(chunk.aborted)
            view = next(place.batches, None)
            if view is None:
                place.batches = None
                continue
            self._open_batch(tp, place, view)
        return True

    def _open_batch(self, tp: TopicPartition, place: _Place, view: BatchView) -> None:
        header, position = view.header, place.position or 0
        place.ready, place.ready_at = [], 0
        if header is not None:
            if header.last_offset < position:
                return
            if self._settings.check_crcs:
                check_crc(header, view.data)
            hidden = place.aborted is not None and self._settings.read_committed and place.aborted.covers(view)
            if header.is_control or hidden:
                place.position = header.last_offset + 1
                return
        records = _records(tp, view)
        place.ready = records if not records or records[0].offset >= position else _from(records, position)
        if not place.ready and header is not None:
            place.position = header.last_offset + 1

    @staticmethod
    def _empty(place: _Place) -> None:
        place.version += 1
        place.out_of_range = False
        place.last_epoch = -1
        place.retry_at_s = 0.0
        place.chunks.clear()
        place.batches = place.aborted = None
        place.ready, place.ready_at = [], 0

    def _wake(self) -> None:
        """Wake the thread, so that it checks all partitions."""
        try:
            self._wake_write.send(b"\0")
        except (BlockingIOError, OSError):
            return  # an earlier wake-up is still pending, or the thread has ended

    # -- called by the thread

    def _run(self) -> None:
        failures = 0
        try:
            while not self._is_stopping():
                try:
                    self._round()
                    failures = 0
                except CorruptBatch as failure:
                    self._fail(failure)
                    return
                except KafkaFailure as failure:
                    if self._is_stopping():
                        return
                    if not failure.retriable:
                        self._fail(failure)
                        return
                    self._close_connections()
                    (self._log.debug if failures < 3 else self._log.warning)("fetching failed", reason=str(failure))
                    self._sleep(self._backoff.delay_s(failures))
                    failures += 1
                except Exception as error:  # noqa: BLE001 - raised by the user's next poll
                    self._log.exception("fetcher thread failed")
                    self._fail(KafkaFailure(f"Fetching for group {self._settings.group_id} failed: {error!r}"))
                    return
        finally:
            self._close_connections()
            with self._changed:
                self._wake_read.close()
                self._wake_write.close()

    def _is_stopping(self) -> bool:
        return self._stopping

    def _round(self) -> None:
        wait_s = self._ask_leaders()
        poll = select.poll()
        poll.register(self._wake_read.fileno(), select.POLLIN)
        requested = {
            broker.connection.fileno(): node for node, broker in self._brokers.items() if broker.requested is not None
        }
        for fileno in requested:
            poll.register(fileno, select.POLLIN)
        pending = [node for node in requested.values() if self._brokers[node].connection.has_pending()]
        events = poll.poll(0 if pending else int(wait_s * 1000))
        if any(fileno == self._wake_read.fileno() for fileno, _ in events):
            self._wake_read.recv(4096)
        readable = {requested[fileno] for fileno, _ in events if fileno in requested}
        for node in sorted({*readable, *pending}):
            self._receive(node)
        overdue_s = time.monotonic() - self._cluster.settings.request_timeout_ms / 1000
        for node, broker in list(self._brokers.items()):
            if broker.requested is not None and broker.sent_s < overdue_s - self._settings.fetch_max_wait_ms / 1000:
                self._hang_up(node)
                self._forget_leaders(broker.requested)

    def _ask_leaders(self) -> float:
        """Send all possible requests. Returns the seconds to wait for the next event."""
        now = time.monotonic()
        with self._changed:
            wanted = {
                tp: (place.version, place.fetch, place.last_epoch)
                for tp, place in self._places.items()
                if place.fetch is not None and not place.paused and not place.chunks and place.retry_at_s <= now
            }
            retries = [p.retry_at_s for p in self._places.values() if p.retry_at_s > now]
        wait_s = max(0.001, min([_IDLE_S, *(at - now for at in retries)]))
        busy = {tp for broker in self._brokers.values() if broker.requested is not None for tp in broker.requested}
        wanted = {tp: place for tp, place in wanted.items() if tp not in busy}
        if not wanted:
            return wait_s
        max_age_s = self._cluster.settings.metadata_max_age_ms / 1000
        metadata = self._cluster.metadata({tp.topic for tp in wanted}, max_age_s=max_age_s)
        by_leader: dict[int, dict[TopicPartition, tuple[int, int, int]]] = {}
        for tp, (version, offset, last_epoch) in wanted.items():
            info = metadata.topics.get(tp.topic)
            partition = None if info is None else info.partitions.get(tp.partition)
            if partition is None or partition.leader < 0:
                gone = partition is None
                self._later(tp, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if gone else ErrorCode.LEADER_NOT_AVAILABLE)
                continue
            by_leader.setdefault(partition.leader, {})[tp] = (version, offset, last_epoch)
        for node, places in by_leader.items():
            broker = self._brokers.get(node)
            if broker is None or broker.requested is None:
                self._ask(node, places, metadata)
        return wait_s

    def _ask(self, node: int, places: Mapping[TopicPartition, tuple[int, int, int]], metadata: Metadata) -> None:
        topics = {tp.topic: metadata.topics[tp.topic] for tp in places}
        topic_ids = {name: topic_id_bytes(info.topic_id) for name, info in topics.items()}
        try:
            broker = self._brokers.get(node)
            if broker is None:
                broker = self._brokers[node] = _Leader(self._cluster.open_connection(node), FetchSession(topic_ids))
            broker.connection.maybe_reauthenticate()
            # The session still knows removed topics by their old id, which has to be used to forget them.
            kept = {name: old for name, old in broker.session.topic_ids.items() if topic_ids.get(name, old) == old}
            if len(kept) < len(broker.session.topic_ids):
                broker.session.reset()
            broker.session.topic_ids = {**kept, **topic_ids}
            has_ids = all(info.topic_id for info in topics.values())
            broker.version = broker.connection.version_of(
                fetch.REQUEST, fetch.MAX_VERSION if has_ids else fetch.TOPIC_IDS_FROM - 1
            )
            frame = broker.session.request(
                broker.version,
                broker.connection.next_correlation_id(),
                broker.connection.client_id,
                {
                    tp: Position(
                        offset,
                        topics[tp.topic].partitions[tp.partition].leader_epoch,
                        self._settings.max_partition_fetch_bytes,
                        last_epoch,
                    )
                    for tp, (_, offset, last_epoch) in places.items()
                },
                max_wait_ms=self._settings.fetch_max_wait_ms,
                min_bytes=self._settings.fetch_min_bytes,
                max_bytes=self._settings.fetch_max_bytes,
                read_committed=self._settings.read_committed,
            )
            broker.connection.send_buffers([frame])
        except ConnectFailure as failure:
            self._lost(node, places, failure)
            return
        broker.requested = {tp: (version, offset) for tp, (version, offset, _) in places.items()}
        broker.sent_s = time.monotonic()

    def _receive(self, node: int) -> None:
        broker = self._brokers[node]
        requested, broker.requested = broker.requested or {}, None
        try:
            # A separate buffer for each answer: the returned batches are views into it.
            frame = broker.connection.receive_frame(
                bytearray(1 << 16), timeout_s=self._cluster.settings.request_timeout_ms / 1000
            )
            answer = broker.session.response(broker.version, frame)
        except ConnectFailure as failure:
            self._lost(node, requested, failure)
            return
        except BrokerFailure as failure:
            if not failure.retriable and failure.code not in _GONE:
                raise
            self._log.debug("fetch refused", node=node, reason=str(failure))
            self._hang_up(node)
            for tp in requested:
                self._later(tp, failure.code)
            return
        with self._changed:
            for fetched in answer:
                self._take_in(fetched, requested)
            self._changed.notify_all()

    def _take_in(self, fetched: Fetched, requested: Mapping[TopicPartition, tuple[int, int]]) -> None:
        tp = fetched.topic_partition
        place = self._places.get(tp)
        if place is None or tp not in requested or (place.version, place.fetch) != requested[tp]:
            return
        if fetched.diverging is not None:
            end = fetched.diverging[1]
            self._log.warning("the log was cut off behind what was read", partition=str(tp), offset=end)
            place.fetch = place.position = min(place.fetch or 0, end)
            self._empty(place)
        elif fetched.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._log.info("offset out of range", partition=str(tp), offset=place.fetch)
            place.fetch = None
            self._empty(place)
            place.out_of_range = True
        elif fetched.error_code:
            failure = BrokerFailure.of(fetched.error_code, subject=f"reading {tp} of cluster {self._cluster.name}")
            if not failure.retriable and failure.code not in _GONE and not failure.stale_metadata:
                self._fail(failure)
                return
            self._later(tp, failure.code)
        elif len(fetched.records):
            behind, epoch = _end_of(fetched.records)
            if behind is not None:
                place.failures = 0
                place.fetch, place.last_epoch = behind, epoch
                place.chunks.append(fetched)

    def _later(self, tp: TopicPartition, code: int) -> None:
        """Retry a partition later that cannot be read at the moment."""
        self._cluster.invalidate(tp.topic)
        with self._changed:
            place = self._places.get(tp)
            if place is not None:
                place.retry_at_s = time.monotonic() + self._backoff.delay_s(place.failures)
                place.failures += 1
            if code in _GONE:
                self._on_gone()

    def _lost(self, node: int, places: Iterable[TopicPartition], failure: ConnectFailure) -> None:
        """Drop the connection to a leader."""
        if not failure.retriable:
            raise failure
        self._log.debug("connection to a leader lost", node=node, reason=str(failure))
        self._hang_up(node)
        self._forget_leaders(places)

    def _forget_leaders(self, places: Iterable[TopicPartition]) -> None:
        for tp in places:
            self._later(tp, ErrorCode.NETWORK_EXCEPTION)

    def _hang_up(self, node: int) -> None:
        broker = self._brokers.pop(node, None)
        if broker is not None:
            broker.connection.close()

    def _close_connections(self) -> None:
        for node in list(self._brokers):
            self._hang_up(node)

    def _sleep(self, seconds: float) -> None:
        with self._changed:
            if not self._stopping:
                self._changed.wait(seconds)

    def _fail(self, failure: KafkaFailure) -> None:
        with self._changed:
            if not self._stopping:
                self.failure = failure
            self._changed.notify_all()


def _records(tp: TopicPartition, view: BatchView) -> list[ConsumerRecord]:
    log_append_time = view.header is not None and view.header.is_log_append_time

    def record(
        key: bytes | None, value: bytes | None, headers: Headers, timestamp: int | None, offset: int
    ) -> ConsumerRecord:
        at = _NO_TIMESTAMP if timestamp is None else timestamp
        return ConsumerRecord(tp, offset, key, value, headers, at, log_append_time)

    return decode_batch_as(record, view)


def _from(records: list[ConsumerRecord], position: int) -> list[ConsumerRecord]:
    return [record for record in records if record.offset >= position]


def _end_of(records: memoryview) -> tuple[int | None, int]:
    """The offset after the last whole batch, and the epoch of its leader."""
    end: int | None = None
    epoch = -1
    for view in iter_batches(records):
        if view.header is not None:
            end, epoch = view.header.last_offset + 1, view.header.leader_epoch
        else:
            end, epoch = decode_batch(view)[-1].offset + 1, -1
    return end, epoch
