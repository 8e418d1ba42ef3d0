"""Frames over a socket pair, and buffers that are reused only when no reference is left."""

from __future__ import annotations

import asyncio
import functools
import socket
import ssl
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from mm2.kafka.client.channel import BufferPool, Channel
from mm2.kafka.errors import CorruptBatch, DisconnectedFailure, KafkaFailure
from tests.support import certificates
from tests.support.waiting import wait_until_async


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def answer(correlation_id: int, body: bytes) -> bytes:
    return correlation_id.to_bytes(4, "big") + body


def ask(channel: Channel, far: socket.socket, *correlation_ids: int) -> None:
    """Send requests that the peer reads and does not answer."""
    for correlation_id in correlation_ids:
        channel.send([b"?"], correlation_id)
        assert far.recv(1) == b"?"


def with_channel(
    play: Callable[[Channel, socket.socket, list[bytes], list[KafkaFailure]], Any], **options: Any
) -> None:
    """Run ``play`` with a channel over one end of a socket pair, the other end and the events of the channel."""

    async def scene() -> None:
        near, far = socket.socketpair()
        near.setblocking(False)
        far.settimeout(5)
        frames: list[bytes] = []
        losses: list[KafkaFailure] = []
        # A channel takes over nothing but the socket and the address of an open connection.
        connection: Any = types.SimpleNamespace(sock=near, host="h", port=9, close=near.close)
        channel = Channel(
            connection,
            asyncio.get_running_loop(),
            BufferPool(),
            on_frame=lambda view: frames.append(bytes(view)),
            on_lost=losses.append,
            **options,
        )
        try:
            await play(channel, far, frames, losses)
        finally:
            channel.close()
            far.close()

    asyncio.run(scene())


def test_frames_are_reassembled_from_any_fragments() -> None:
    bodies = [answer(1, b""), answer(2, b"x" * 300_000), answer(3, b"last frame")]

    async def play(channel: Channel, far: socket.socket, frames: list[bytes], losses: list[KafkaFailure]) -> None:
        ask(channel, far, 1, 2, 3)
        data = b"".join(map(frame, bodies))
        for at in range(0, len(data), 70_001):
            await asyncio.to_thread(far.sendall, data[at : at + 70_001])
            await asyncio.sleep(0)
        await wait_until_async(lambda: len(frames) == 3)
        assert frames == bodies
        assert not losses

    with_channel(play)


def test_buffers_are_sent_in_order_through_a_full_socket() -> None:
    async def play(channel: Channel, far: socket.socket, frames: list[bytes], losses: list[KafkaFailure]) -> None:
        buffers = [bytes([i % 256]) * (i * 7 % 3000) for i in range(2000)]
        for at in range(0, 2000, 500):
            channel.send(buffers[at : at + 500], at)
        wanted = b"".join(buffers)
        got = bytearray()
        while len(got) < len(wanted):
            got += await asyncio.to_thread(far.recv, 1 << 20)
        assert got == wanted

    with_channel(play)


@pytest.mark.parametrize("size", [-1, 0, 3, 1001])
def test_an_invalid_frame_closes_the_connection(size: int) -> None:
    async def play(channel: Channel, far: socket.socket, frames: list[bytes], losses: list[KafkaFailure]) -> None:
        far.sendall(size.to_bytes(4, "big", signed=True) + b"....")
        await wait_until_async(lambda: losses)
        assert isinstance(losses[0], DisconnectedFailure)
        assert str(losses[0]) == f"h:9 sent a frame of {size} bytes; the limit is 1000"
        assert channel.lost
        assert not frames

    with_channel(play, max_frame_bytes=1000)


@pytest.mark.parametrize("answered", [[2], [1, 3], [1, 2, 2]])
def test_a_response_to_another_request_closes_the_connection(answered: list[int]) -> None:
    async def play(channel: Channel, far: socket.socket, frames: list[bytes], losses: list[KafkaFailure]) -> None:
        ask(channel, far, 1, 2)
        far.sendall(b"".join(frame(answer(correlation_id, b"")) for correlation_id in answered))
        await wait_until_async(lambda: losses)
        assert isinstance(losses[0], CorruptBatch)
        assert frames == [answer(correlation_id, b"") for correlation_id in answered[:-1]]

    with_channel(play)


def test_a_disconnect_within_a_frame_is_reported_once() -> None:
    async def play(channel: Channel, far: socket.socket, frames: list[bytes], losses: list[KafkaFailure]) -> None:
        ask(channel, far, 7)
        far.sendall(frame(answer(7, b"whole")) + frame(b"not whole")[:7])
        far.close()
        await wait_until_async(lambda: losses)
        channel.send([b"into the void"], 8)
        await asyncio.sleep(0.01)
        assert [str(loss) for loss in losses] == ["h:9 closed the connection"]
        assert frames == [answer(7, b"whole")]

    with_channel(play)


# -- TLS ----------------------------------------------------------------------------------------------------------------


class Peer:
    """The peer of a TLS connection, which records the TLS records."""

    def __init__(self, far: socket.socket, folder: Path) -> None:
        trusted, server = certificates.serving(folder)
        self.client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.client.load_verify_locations(trusted)
        self.far = far
        self.raw = bytearray()
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = server.wrap_bio(self._in, self._out, server_side=True)

    def shake_hands(self) -> None:
        self._until_done(self._tls.do_handshake)
        self.raw.clear()

    def read(self, size: int) -> bytes:
        got = bytearray()
        while len(got) < size:
            got += self._until_done(functools.partial(self._tls.read, size - len(got)))
        return bytes(got)

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._tls.write(view) :]
        self.far.sendall(self._out.read())

    def _until_done(self, step: Callable[[], Any]) -> Any:
        while True:
            try:
                done = step()
            except ssl.SSLWantReadError:
                self.far.sendall(self._out.read())
                data = self.far.recv(1 << 20)
                self.raw += data
                self._in.write(data)
            else:
                self.far.sendall(self._out.read())
                return done

    def records(self) -> list[int]:
        """Sizes of the TLS records received since the handshake."""
        sizes, at = [], 0
        while at < len(self.raw):
            sizes.append(int.from_bytes(self.raw[at + 3 : at + 5], "big"))
            at += 5 + sizes[-1]
        return sizes


def with_tls_channel(play: Callable[[Channel, Peer, list[bytes], list[KafkaFailure]], Any], folder: Path) -> None:
    async def scene() -> None:
        near, far = socket.socketpair()
        far.settimeout(5)
        peer = Peer(far, folder)
        shaking = asyncio.get_running_loop().run_in_executor(None, peer.shake_hands)
        tls = await asyncio.to_thread(peer.client.wrap_socket, near, server_hostname="127.0.0.1")
        await shaking
        tls.setblocking(False)
        frames: list[bytes] = []
        losses: list[KafkaFailure] = []
        connection: Any = types.SimpleNamespace(sock=tls, host="h", port=9, close=tls.close)
        channel = Channel(
            connection,
            asyncio.get_running_loop(),
            BufferPool(),
            on_frame=lambda view: frames.append(bytes(view)),
            on_lost=losses.append,
        )
        try:
            await play(channel, peer, frames, losses)
        finally:
            channel.close()
            far.close()

    asyncio.run(scene())


def test_small_buffers_share_tls_records(tmp_path: Path) -> None:
    async def play(channel: Channel, peer: Peer, frames: list[bytes], losses: list[KafkaFailure]) -> None:
        buffers = [bytes([i % 256]) * (60 if i % 2 else 5000 + i * 131 % 40_000) for i in range(400)]
        for at in range(0, 400, 40):
            channel.send(buffers[at : at + 40], at)
            await asyncio.sleep(0)
        wanted = b"".join(buffers)
        assert await asyncio.to_thread(peer.read, len(wanted)) == wanted
        assert len(peer.records()) <= len(wanted) / (16 << 10) + 11, "one that is not full for each send, at most"
        assert not losses

    with_tls_channel(play, tmp_path)


def test_frames_are_reassembled_through_tls(tmp_path: Path) -> None:
    bodies = [answer(1, b""), answer(2, bytes(range(256)) * 50_000), answer(3, b"last frame")]

    async def play(channel: Channel, peer: Peer, frames: list[bytes], losses: list[KafkaFailure]) -> None:
        channel.send([b"?" * 12], 1)
        channel.send([b""], 2)
        channel.send([b""], 3)
        assert await asyncio.to_thread(peer.read, 12) == b"?" * 12
        await asyncio.to_thread(peer.write, b"".join(map(frame, bodies)))
        await wait_until_async(lambda: len(frames) == 3 or losses)
        assert frames == bodies
        assert not losses

    with_tls_channel(play, tmp_path)


# -- buffers ------------------------------------------------------------------------------------------------------------


def test_a_referenced_buffer_is_not_reused() -> None:
    pool = BufferPool()
    first = pool.take(200_000)
    view = memoryview(first)[:10]
    known = id(first)
    del first
    assert id(pool.take(200_000)) != known
    del view
    assert id(pool.take(150_000)) == known


def test_the_smallest_free_buffer_that_fits_is_taken() -> None:
    pool = BufferPool()
    held = [pool.take(3 << 20), pool.take(1 << 20), pool.take(2 << 20)]
    small = id(held[1])
    held.clear()
    assert id(pool.take(1 << 20)) == small


def test_the_pool_releases_free_buffers_above_its_limit() -> None:
    pool = BufferPool(keep_bytes=2 << 20)
    pool.take(1 << 20)
    kept = pool.take(2 << 20)
    pool.take(4 << 20)
    assert sum(map(len, pool._buffers)) == (2 << 20) + (4 << 20)
    assert any(buffer is kept for buffer in pool._buffers)


def test_the_size_of_a_frame_takes_no_memory_before_the_frame_arrives() -> None:
    """A hostile broker could fill the memory with four bytes for each partition."""
    claimed = 128 << 20
    before = psutil.Process().memory_info().rss

    async def play(channel: Channel, far: socket.socket, _frames: list[bytes], _losses: list[KafkaFailure]) -> None:
        ask(channel, far, 1)
        await asyncio.to_thread(far.sendall, claimed.to_bytes(4, "big") + bytes(100_000))
        await wait_until_async(lambda: channel._body is not None)
        open_.append(channel._body)

    open_: list[memoryview | None] = []
    for _ in range(8):
        with_channel(play)
    assert [None if view is None else len(view) for view in open_] == [claimed] * 8
    assert psutil.Process().memory_info().rss - before < 4 * claimed


def test_a_frame_for_which_there_is_no_memory_closes_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """MemoryError reached the loop, and the connection stayed in the middle of a frame."""

    def take(_pool: BufferPool, size: int) -> bytearray:
        raise MemoryError(size)

    monkeypatch.setattr(BufferPool, "claim", take)

    async def play(channel: Channel, far: socket.socket, frames: list[bytes], losses: list[KafkaFailure]) -> None:
        ask(channel, far, 1)
        far.sendall((200 << 20).to_bytes(4, "big"))
        await wait_until_async(lambda: losses)
        assert str(losses[0]) == "h:9 sent a frame of 209715200 bytes, for which there is no memory"
        assert channel.lost
        assert not frames

    with_channel(play)
