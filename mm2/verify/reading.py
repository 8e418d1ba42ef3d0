"""Reads one side of a range from its brokers, with one request ahead and a time limit for unresponsive brokers."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final

from mm2.kafka.admin import Admin
from mm2.kafka.backoff import Backoff
from mm2.kafka.cluster import Cluster
from mm2.kafka.connection import Connection
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, CorruptBatch, KafkaFailure, TimeoutFailure
from mm2.kafka.records.batch import BatchView, check_crc, iter_batches
from mm2.kafka.records.transactions import AbortedTransactions
from mm2.kafka.structs import EARLIEST, TopicInfo, TopicPartition, topic_id_bytes
from mm2.kafka.wire import fetch
from mm2.kafka.wire.channel import BufferPool
from mm2.kafka.wire.fetch import Fetched, FetchSession, Position
from mm2.verify.pace import RateLimit

_MAX_WAIT_MS: Final = 500
_FRAME_HEAD: Final = 64 << 10
_NO_SESSION: Final = -1  # the epoch of a request that neither begins a session nor belongs to one (KIP-227)
_EMPTY_ANSWERS: Final = 2
_METADATA_AGE_S: Final = 300.0


class Lines:
    """Idle connections to the brokers of one cluster, for one task. Not thread-safe."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.pool = BufferPool()
        self._idle: dict[int, Connection] = {}

    def take(self, node: int) -> Connection:
        """A connection to a broker. Raises KafkaFailure."""
        idle = self._idle.pop(node, None)
        if idle is not None and not idle.is_stale():
            return idle
        return self.cluster.open_connection(node)

    def give(self, node: int, connection: Connection) -> None:
        """Return a connection without requests in flight."""
        if node in self._idle:
            connection.close()
        else:
            self._idle[node] = connection

    def close(self) -> None:
        """Close all connections."""
        for connection in self._idle.values():
            connection.close()
        self._idle.clear()


class RangeReader:
    """The batches of a partition from offset ``first`` to before ``after``, as a `mm2.verify.comparison.BatchFeed`.

    ``heard`` is called after each response. Raises KafkaFailure: a permanent error at once, any other after
    ``patience_s`` seconds without data.
    """

    def __init__(
        self,
        lines: Lines,
        partition: TopicPartition,
        first: int,
        after: int,
        *,
        read_committed: bool,
        pace: RateLimit,
        patience_s: float,
        heard: Callable[[], None],
    ) -> None:
        self.log_start = 0
        self.log_end = after
        self.bytes = 0
        self._lines = lines
        self._partition = partition
        self._position = first
        self._after = after
        self._read_committed = read_committed
        self._pace = pace
        self._patience_s = patience_s
        self._heard = heard
        self._ready: deque[BatchView] = deque()
        self._line: tuple[int, Connection, FetchSession] | None = None
        self._asked = 0  # version of the request in flight, 0 for none
        self._most = 0  # bytes to request, if a batch was larger than the pace's piece
        self._over = False
        self._empty = 0
        self._corrupt_at = -1
        self._blocked = False

    def read(self) -> BatchView | None:
        """The next batch that is visible to a consumer, with its CRC checked; None at the end."""
        if not self._ready and not self._finished:
            self._fill()
        return self._ready.popleft() if self._ready else None

    def close(self) -> None:
        """Return the connection, or close it if a response is pending."""
        line, self._line = self._line, None
        if line is not None:
            if self._asked:
                line[1].close()
            else:
                self._lines.give(line[0], line[1])

    @property
    def _finished(self) -> bool:
        return self._over or self._position >= self._after

    def _fill(self) -> None:
        backoff = Backoff(100, 1_000)
        since, failures = time.monotonic(), 0
        while not self._ready and not self._finished:
            before = self._position
            try:
                if not self._asked:
                    self._ask()
                self._take(self._answer())
                failures = 0
            except CorruptBatch:
                self._drop()
                if self._corrupt_at == self._position:
                    raise  # corruption on disk is permanent, on the network it may be temporary
                self._corrupt_at = self._position
            except KafkaFailure as failure:
                self._drop()
                if not failure.retriable or time.monotonic() - since > self._patience_s:
                    raise
                self._lines.cluster.invalidate(self._partition.topic)
                time.sleep(backoff.delay_s(failures))
                failures += 1
            if self._position != before:
                since = time.monotonic()
            elif time.monotonic() - since > self._patience_s and not self._finished:
                raise TimeoutFailure(self._silence())
            self._heard()

    def _silence(self) -> str:
        where = f"{self._partition} of cluster {self._lines.cluster.name}"
        if self._blocked:
            return f"{where} has an open transaction at offset {self._position}, which keeps what is behind it from being read."
        return f"{where} has brought nothing from offset {self._position} on for {self._patience_s:.0f} s."

    def _topic(self) -> TopicInfo:
        cluster, topic = self._lines.cluster, self._partition.topic
        metadata = cluster.metadata([topic], max_age_s=_METADATA_AGE_S)
        if topic in metadata.errors:
            raise metadata.errors[topic]
        return metadata.topics[topic]

    def _ask(self) -> None:
        topic = self._topic()
        info = topic.partitions.get(self._partition.partition)
        if info is None or info.leader < 0:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if info is None else ErrorCode.LEADER_NOT_AVAILABLE
            raise BrokerFailure.of(code, subject=f"Partition {self._partition} of cluster {self._lines.cluster.name}")
        if self._line is None:
            session = FetchSession({topic.name: topic_id_bytes(topic.topic_id)}, epoch=_NO_SESSION)
            self._line = (info.leader, self._lines.take(info.leader), session)
        _, connection, session = self._line
        connection.maybe_reauthenticate()
        version = connection.version_of(
            fetch.REQUEST, fetch.MAX_VERSION if topic.topic_id else fetch.TOPIC_IDS_FROM - 1
        )
        self._pace.wait()
        most = max(self._most, self._pace.piece)
        session.known.clear()
        frame = session.request(
            version,
            connection.next_correlation_id(),
            connection.client_id,
            {self._partition: Position(self._position, info.leader_epoch, most)},
            max_wait_ms=_MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=most,
            read_committed=self._read_committed,
        )
        connection.send_buffers([frame])
        self._asked = version

    def _answer(self) -> Fetched | None:
        assert self._line is not None  # noqa: S101  (a connection is open here)
        _, connection, session = self._line
        limit_s = min(self._patience_s, self._lines.cluster.settings.request_timeout_ms / 1000)
        # A buffer is reused when no batch references it any more.
        buffer = self._lines.pool.take(max(self._most, self._pace.piece) + _FRAME_HEAD)
        frame = connection.receive_frame(buffer, timeout_s=limit_s + _MAX_WAIT_MS / 1000)
        version, self._asked = self._asked, 0
        self.bytes += len(frame)
        self._pace.came(len(frame))
        found = session.response(version, frame)
        return found[0] if found else None

    def _take(self, fetched: Fetched | None) -> None:
        if fetched is None:
            return
        if fetched.error_code:
            self._refused(fetched.error_code)
            return
        self.log_start = max(self.log_start, fetched.log_start_offset)
        self.log_end = fetched.high_watermark
        aborted = AbortedTransactions(fetched.aborted)
        position = self._position
        for view in iter_batches(fetched.records):
            header = view.header
            hidden = aborted.covers(view)
            last = view.base_offset if header is None else header.last_offset
            if last < position:
                continue
            if header is not None:
                check_crc(header, view.data)
            if not (header is not None and header.is_control) and not (hidden and self._read_committed):
                self._ready.append(view)
            self._position = last + 1
        size = len(fetched.records)
        if self._position == position and size:
            self._most = 4 * max(self._most, self._pace.piece)  # the next batch is larger than requested
        self._empty = 0 if size else self._empty + 1
        self._blocked = self._read_committed and fetched.last_stable_offset <= self._position < fetched.high_watermark
        # A newly elected leader may report a lower high watermark for a moment.
        self._over = self._empty >= _EMPTY_ANSWERS and fetched.high_watermark <= self._position
        if not self._finished and self._ready:
            self._ask()

    def _refused(self, code: int) -> None:
        where = f"Reading {self._partition} of cluster {self._lines.cluster.name} from offset {self._position}"
        failure = BrokerFailure.of(code, subject=where)
        if code != ErrorCode.OFFSET_OUT_OF_RANGE:
            raise failure
        found = Admin(self._lines.cluster).list_offsets({self._partition: EARLIEST})[self._partition]
        if isinstance(found, KafkaFailure):
            raise found
        if found.offset > self._position:
            self.log_start, self._position = found.offset, min(found.offset, self._after)
        else:
            self._over, self.log_end = True, self._position  # the log was truncated

    def _drop(self) -> None:
        line, self._line, self._asked = self._line, None, 0
        if line is not None:
            line[1].close()
