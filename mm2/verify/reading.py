"""Reads one side of a range from its brokers, with one request ahead and a time limit for unresponsive brokers."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final

from mm2.kafka.admin import Admin
from mm2.kafka.backoff import Backoff
from mm2.kafka.client.channel import BufferPool
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, CorruptBatch, KafkaFailure, TimeoutFailure, value_of
from mm2.kafka.readers.fetch_reader import FetchReader, FetchReaderLimits
from mm2.kafka.records.batch import BatchView
from mm2.kafka.records.corruption import CorruptReads
from mm2.kafka.records.visibility import VisibleBatches
from mm2.kafka.structs import EARLIEST, LATEST, TopicPartition
from mm2.kafka.wire.fetch import Fetched
from mm2.verify.pace import RateLimit

_MAX_WAIT_MS: Final = 500
_FRAME_HEAD: Final = 64 << 10
_EMPTY_ANSWERS: Final = 2
_CORRUPT_PAUSE_S: Final = 0.1


class RangeReader:
    """The batches of a partition from offset ``first`` to before ``after``, as a `mm2.verify.comparing.comparison.BatchFeed`.

    ``buffers`` are those of all readers of the task. ``on_response`` is called after each response. Raises KafkaFailure: a
    permanent error at once, any other after ``patience_s`` seconds without data.
    """

    def __init__(
        self,
        cluster: Cluster,
        buffers: BufferPool,
        partition: TopicPartition,
        first: int,
        after: int,
        *,
        read_committed: bool,
        pace: RateLimit,
        patience_s: float,
        on_response: Callable[[], None],
    ) -> None:
        self.log_start = 0
        self.log_end = after
        self._cluster = cluster
        self._buffers = buffers
        limit_s = min(patience_s, cluster.settings.request_timeout_ms / 1000)
        self._reader = FetchReader(cluster, backoff=Backoff(100, 1_000), timeout_s=limit_s + _MAX_WAIT_MS / 1000)
        self._partition = partition
        self._position = first
        self._after = after
        self._read_committed = read_committed
        self._pace = pace
        self._patience_s = patience_s
        self._on_response = on_response
        self._ready: deque[BatchView] = deque()
        self._most = 0  # bytes to request, if a batch was larger than the pace's piece
        self._over = False
        self._empty = 0
        self._corrupt = CorruptReads()
        self._is_corrupt = False  # on the disk
        self._blocked = False

    @property
    def bytes(self) -> int:
        """Size of all responses."""
        return self._reader.bytes_received

    def read(self) -> BatchView | None:
        """The next batch that is visible to a consumer, with its CRC checked; None at the end."""
        if not self._ready and not self._finished:
            self._fill()
        return self._ready.popleft() if self._ready else None

    def close(self) -> None:
        """Disconnect from the brokers."""
        self._reader.close()

    @property
    def _finished(self) -> bool:
        return self._over or self._position >= self._after

    def _fill(self) -> None:
        since = time.monotonic()
        while not self._ready and not self._finished:
            before = self._position
            try:
                self._ask()
                self._receive()
            except CorruptBatch:
                if self._is_corrupt or time.monotonic() - since > self._patience_s:
                    raise
                self._reader.close()
                time.sleep(_CORRUPT_PAUSE_S)
            except KafkaFailure as failure:
                if not failure.retriable or time.monotonic() - since > self._patience_s:
                    raise
            if self._position != before:
                since = time.monotonic()
            elif time.monotonic() - since > self._patience_s and not self._finished:
                raise TimeoutFailure(self._silence())
            self._on_response()

    def _silence(self) -> str:
        where = f"{self._partition} of cluster {self._cluster.name}"
        if self._blocked:
            return f"{where} has an open transaction at offset {self._position}: later records cannot be read until it ends."
        return f"{where} returned no records from offset {self._position} on for {self._patience_s:.0f} s."

    def _ask(self) -> None:
        if self._reader.has_results:
            return
        self._pace.wait()
        limits = FetchReaderLimits(
            _MAX_WAIT_MS, self._most_bytes, self._most_bytes, read_committed=self._read_committed, incremental=False
        )
        self._reader.send({self._partition: self._position}, limits)

    @property
    def _most_bytes(self) -> int:
        return max(self._most, self._pace.piece)

    def _receive(self) -> None:
        before = self.bytes
        # A buffer is reused when no batch references it any more.
        buffer = self._buffers.take(self._most_bytes + _FRAME_HEAD)
        answer = self._reader.receive(self._patience_s, buffer=buffer).get(self._partition)
        self._pace.came(self.bytes - before)
        if isinstance(answer, BrokerFailure) and answer.code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._out_of_range()
        elif isinstance(answer, KafkaFailure):
            raise answer
        elif answer is not None:
            self._take(answer)

    def _take(self, fetched: Fetched) -> None:
        self.log_start = max(self.log_start, fetched.log_start_offset)
        position = self._position
        aborted = fetched.aborted if self._read_committed else None
        visible = VisibleBatches(fetched.records, position, aborted=aborted)
        try:
            self._ready.extend(visible)
        except CorruptBatch:
            self._is_corrupt = self._corrupt.add(visible.position, fetched.records)
            raise
        finally:
            self._position = visible.position
        # A follower reads its high watermark before it reads the records, which may end after it.
        self.log_end = max(fetched.high_watermark, self._position)
        size = len(fetched.records)
        if self._position == position and size:
            self._most = 4 * self._most_bytes  # the next batch is larger than requested
        self._empty = 0 if size else self._empty + 1
        self._blocked = self._read_committed and fetched.last_stable_offset <= self._position < fetched.high_watermark
        if self._empty >= _EMPTY_ANSWERS and fetched.high_watermark <= self._position:
            # A replica that lags and a newly elected leader report a lower high watermark, too; ListOffsets does not (KIP-207).
            self._over = self._listed(LATEST) <= self._position
        if not self._finished and self._ready:
            self._ask()

    def _out_of_range(self) -> None:
        start = self._listed(EARLIEST)
        if start > self._position:
            self.log_start, self._position = start, min(start, self._after)
        else:
            self._over, self.log_end = True, self._position  # the log was truncated

    def _listed(self, which: int) -> int:
        """The log start or end offset by the partition's leader. Raises KafkaFailure."""
        return value_of(Admin(self._cluster).list_offsets({self._partition: which})[self._partition]).offset
