"""A hot-path connection in an asyncio loop: receives whole frames, sends lists of buffers, without copies.

`mm2.kafka.client.connection.Connection` opens it, with TLS and SASL; the channel then uses its socket.
"""

from __future__ import annotations

import asyncio
import mmap
import ssl
import struct
import sys
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import cast

from mm2.kafka.client.connection import Connection
from mm2.kafka.errors import CorruptBatch, DisconnectedFailure, KafkaFailure

_WANT = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_MAX_VECTORS = 512  # Linux accepts 1024 buffers in one sendmsg; fewer mean more calls, which cost more
_TLS_RECORD_BYTES = 16 << 10
_READS_PER_TURN = 64  # then other channels of the loop get their turn
_TLS_READS_PER_TURN = 512  # of one TLS record each


class BufferPool:
    """Reusable receive buffers: new memory costs a page fault per 4 KiB, a third of the total cost of copying.

    Buffers are not returned explicitly. A buffer is free when the pool holds the only reference to it: every memoryview
    on a bytearray holds one too.
    """

    _ROUND = 1 << 20

    def __init__(self, keep_bytes: int = 64 << 20) -> None:
        self._keep_bytes = keep_bytes
        self._buffers: list[bytearray | mmap.mmap] = []

    def take(self, size: int) -> bytearray:
        """A buffer of at least ``size`` bytes with undefined content, all of which is in memory."""
        return cast("bytearray", self._take(size, bytearray))

    def claim(self, size: int) -> bytearray | mmap.mmap:
        """A buffer of which only what is written takes memory, page by page. Use a pool for either `take` or `claim`."""
        return self._take(size, _private_pages)

    def _take(self, size: int, create: Callable[[int], bytearray | mmap.mmap]) -> bytearray | mmap.mmap:
        if size < self._ROUND >> 4:
            return bytearray(size)
        # getrefcount counts the list's reference and its argument: 2 means free.
        free = [
            index
            for index in range(len(self._buffers))
            if sys.getrefcount(self._buffers[index]) == 2 and len(self._buffers[index]) >= size
        ]
        if free:
            return self._buffers[min(free, key=lambda index: len(self._buffers[index]))]
        buffer = create(-(-size // self._ROUND) * self._ROUND)
        held = sum(map(len, self._buffers))
        if held + len(buffer) > self._keep_bytes:
            # here the loop's variable is a third reference
            self._buffers = [kept for kept in self._buffers if sys.getrefcount(kept) > 3]
        self._buffers.append(buffer)
        return buffer


def _private_pages(size: int) -> mmap.mmap:
    try:
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError from error


class Channel:
    """Frames over one broker connection. All methods and callbacks run on the loop's thread.

    ``on_frame(frame)`` receives each answer without its size prefix, in request order (brokers answer in order).
    ``on_lost(error)`` is called once, after which no other callback follows. ``may_write`` is called before each write
    to the socket, including delayed writes; if it returns False, the connection is closed.
    """

    def __init__(
        self,
        connection: Connection,
        loop: asyncio.AbstractEventLoop,
        pool: BufferPool,
        *,
        on_frame: Callable[[memoryview], None],
        on_lost: Callable[[KafkaFailure], None],
        max_frame_bytes: int = 256 << 20,
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        self.connection = connection
        self._loop = loop
        self._pool = pool
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._max_frame_bytes = max_frame_bytes
        self._may_write = may_write
        self._socket = connection.sock
        self._vectored = not isinstance(self._socket, ssl.SSLSocket)
        self._reads_per_turn = _READS_PER_TURN if self._vectored else _TLS_READS_PER_TURN
        self._out: deque[bytes | bytearray | memoryview] = deque()
        self._offered: memoryview | None = None
        self._writer_added = False
        self._expected: deque[int] = deque()
        self._head = bytearray(4)
        self._filled = 0
        self._body: memoryview | None = None
        self._lost = False
        self._file = self._socket.fileno()
        loop.add_reader(self._file, self._readable)

    @property
    def lost(self) -> bool:
        """The connection is closed; open another."""
        return self._lost

    def send(self, buffers: Iterable[bytes | bytearray | memoryview], correlation_id: int) -> None:
        """Queue one framed request and write as much as the socket accepts.

        The answer must have this ``correlation_id``.
        """
        if self._lost:
            return
        self._expected.append(correlation_id)
        self._out += [buffer for buffer in buffers if len(buffer)]
        if not self._writer_added:
            self._flush()

    def close(self) -> None:
        """Close without calling ``on_lost``."""
        if not self._lost:
            self._detach()

    def fail(self, error: KafkaFailure) -> None:
        """Close and call ``on_lost``."""
        if not self._lost:
            self._detach()
            self._on_lost(error)

    def _detach(self) -> None:
        self._lost = True
        self._loop.remove_reader(self._file)
        if self._writer_added:
            self._loop.remove_writer(self._file)
        self._out.clear()
        self._offered = self._body = None
        self.connection.close()

    def _flush(self) -> None:
        out = self._out
        try:
            while out:
                if not self._may_write():
                    self.fail(DisconnectedFailure(f"a request to {self._address} was not sent in time"))
                    return
                if self._vectored:
                    sent = self._socket.sendmsg(islice(out, _MAX_VECTORS))
                else:
                    # SSL_write requires an incomplete write to be repeated with the same data.
                    self._offered = self._offered or self._whole_records()
                    sent = self._socket.send(self._offered)
                    self._offered = None
                while sent:
                    first = out[0]
                    if sent >= len(first):
                        sent -= len(first)
                        out.popleft()
                    else:
                        out[0] = memoryview(first)[sent:]
                        sent = 0
        except _WANT:
            pass
        except OSError as error:
            self.fail(
                DisconnectedFailure(f"{self._address} closed the connection while a request was being sent: {error}")
            )
            return
        if self._out and not self._writer_added:
            self._loop.add_writer(self._file, self._flush)
            self._writer_added = True
        elif not self._out and self._writer_added:
            self._loop.remove_writer(self._file)
            self._writer_added = False

    def _whole_records(self) -> memoryview:
        """The next bytes to write through TLS.

        As many whole TLS records as the front buffer fills, or small buffers joined to one record. Each write ends with
        a TLS record, which costs as much for 60 bytes as for 16 KiB.
        """
        out = self._out
        if len(out) > 1 and len(out[0]) < _TLS_RECORD_BYTES:
            record = bytearray()
            while out and len(record) < _TLS_RECORD_BYTES:
                room = _TLS_RECORD_BYTES - len(record)
                first = out.popleft()
                record += first[:room]
                if len(first) > room:
                    out.appendleft(memoryview(first)[room:])
            out.appendleft(record)
        first = memoryview(out[0])
        return first[: len(first) // _TLS_RECORD_BYTES * _TLS_RECORD_BYTES] if len(out) > 1 else first

    @property
    def _address(self) -> str:
        return f"{self.connection.host}:{self.connection.port}"

    def _readable(self) -> None:
        reads = 0
        try:
            while not self._lost:
                if self._body is None:
                    got = self._socket.recv_into(memoryview(self._head)[self._filled :])
                else:
                    got = self._socket.recv_into(self._body[self._filled :])
                if not got:
                    self.fail(DisconnectedFailure(f"{self._address} closed the connection"))
                    return
                self._filled += got
                if self._body is None and self._filled == 4:
                    self._begin_body()
                elif self._body is not None and self._filled == len(self._body):
                    self._finish_body()
                reads += 1
                if reads >= self._reads_per_turn:
                    if not self._vectored:
                        # A TLS socket may hold decrypted bytes that poll does not see: always check it again.
                        self._loop.call_soon(self._readable)
                    return
        except _WANT:
            return
        except KafkaFailure as error:
            self.fail(error)
        except OSError as error:
            self.fail(DisconnectedFailure(f"{self._address} closed the connection: {error}"))

    def _begin_body(self) -> None:
        (size,) = struct.unpack(">i", self._head)
        if not 4 <= size <= self._max_frame_bytes:
            message = f"{self._address} sent a frame of {size} bytes; the limit is {self._max_frame_bytes}"
            raise DisconnectedFailure(message)
        try:
            # The size is only a claim of the broker, of which there may be as many as it has partitions.
            self._body = memoryview(self._pool.claim(size))[:size]
        except MemoryError as error:
            message = f"{self._address} sent a frame of {size} bytes, for which there is no memory"
            raise DisconnectedFailure(message) from error
        self._filled = 0

    def _finish_body(self) -> None:
        frame = self._body
        self._body = None
        self._filled = 0
        if frame is None:
            return
        (correlation_id,) = struct.unpack_from(">i", frame)
        if not self._expected or self._expected[0] != correlation_id:
            # The answer belongs to another request: the connection is in an unknown state.
            due = self._expected[0] if self._expected else "none"
            message = f"{self._address} answered request {correlation_id} when {due} was due"
            raise CorruptBatch(message)
        self._expected.popleft()
        self._on_frame(frame)
