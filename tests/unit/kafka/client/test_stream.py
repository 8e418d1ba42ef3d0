"""The byte layer and the frame layer over it, against a socket pair."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any, cast

import pytest

from mm2.kafka.client.connection import Connection
from mm2.kafka.client.stream import Stream
from mm2.kafka.errors import CorruptBatch, DisconnectedFailure, TimeoutFailure, TlsFailure
from mm2.kafka.settings.client_settings import ClientSettings

Pair = tuple[Stream, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    stream = Stream(ours, "broker x:1")
    yield stream, theirs
    stream.close()
    theirs.close()


def connection(pair: Pair, *, max_frame_bytes: int = 1 << 20, request_timeout_ms: int = 500) -> Connection:
    settings = ClientSettings(
        bootstrap=(("x", 1),), max_frame_bytes=max_frame_bytes, request_timeout_ms=request_timeout_ms
    )
    return Connection(pair[0], "x", 1, settings, "broker x:1")


def soon(seconds: float = 60.0) -> float:
    return time.monotonic() + seconds


def read_all(theirs: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        received += theirs.recv(1 << 20)
    return bytes(received)


def test_more_buffers_than_one_sendmsg_and_more_bytes_than_the_socket_buffer_are_sent(pair: Pair) -> None:
    stream, theirs = pair
    buffers = [bytes([number % 256]) * (number % 700) for number in range(9_000)]
    expected = b"".join(buffers)
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(read_all(theirs, len(expected))))
    reader.start()
    stream.write(buffers, soon())
    reader.join(60)
    assert received == [expected]


def test_views_of_any_item_size_are_sent_as_bytes(pair: Pair) -> None:
    stream, theirs = pair
    stream.write([memoryview(b"\1\2\3\4").cast("H"), bytearray(b"ab"), b""], soon())
    assert read_all(theirs, 6) == b"\1\2\3\4ab"


def test_a_write_without_a_reader_times_out_and_closes(pair: Pair) -> None:
    stream, _ = pair
    with pytest.raises(TimeoutFailure, match="broker x:1"):
        stream.write([bytes(8 << 20)], soon(0.2))
    assert stream.closed


def test_a_write_to_a_closed_peer_is_a_disconnect(pair: Pair) -> None:
    stream, theirs = pair
    theirs.close()
    with pytest.raises(DisconnectedFailure, match="broke"):
        stream.write([b"x"], soon())


def test_abort_from_another_thread_ends_a_read_immediately(pair: Pair) -> None:
    stream, _ = pair
    threading.Timer(0.1, stream.abort).start()
    with pytest.raises(DisconnectedFailure):
        stream.read_into(memoryview(bytearray(4)), soon())


def test_a_connection_is_idle_until_the_peer_sends_or_disconnects(pair: Pair) -> None:
    stream, theirs = pair
    assert stream.is_idle()
    theirs.close()
    assert not stream.is_idle()


def test_frame_arrives_in_pieces_and_the_buffer_grows(pair: Pair) -> None:
    client = connection(pair)
    body = bytes(range(256)) * 40
    frame = struct.pack(">i", len(body)) + body

    def send() -> None:
        for start in range(0, len(frame), 1_000):
            pair[1].sendall(frame[start : start + 1_000])
            time.sleep(0.005)

    sender = threading.Thread(target=send)
    sender.start()
    buffer = bytearray(10)
    view = client.receive_frame(buffer, timeout_s=60)
    sender.join()
    assert bytes(view) == body
    assert len(buffer) >= len(body)
    view.release()
    pair[1].sendall(struct.pack(">i", 2) + b"ok")
    assert bytes(client.receive_frame(buffer, timeout_s=60)) == b"ok"


def test_a_timeout_before_a_frame_leaves_the_connection_usable(pair: Pair) -> None:
    client = connection(pair)
    buffer = bytearray(10)
    with pytest.raises(TimeoutFailure):
        client.receive_frame(buffer, timeout_s=0.05)
    assert not client.closed
    pair[1].sendall(struct.pack(">i", 2) + b"ok")
    assert bytes(client.receive_frame(buffer, timeout_s=60)) == b"ok"


def test_an_incomplete_frame_times_out_and_closes(pair: Pair) -> None:
    client = connection(pair, request_timeout_ms=200)
    pair[1].sendall(struct.pack(">i", 100) + b"half")
    with pytest.raises(TimeoutFailure):
        client.receive_frame(bytearray(10), timeout_s=600)  # longer than a test may take
    assert client.closed


def test_end_of_stream_inside_a_frame_is_a_disconnect(pair: Pair) -> None:
    client = connection(pair)
    pair[1].sendall(struct.pack(">i", 100) + b"half")
    pair[1].close()
    with pytest.raises(DisconnectedFailure):
        client.receive_frame(bytearray(10), timeout_s=60)


@pytest.mark.parametrize("size", [-1, -(1 << 31), (1 << 20) + 1, 0x7FFFFFFF])
def test_impossible_frame_size_is_corrupt(pair: Pair, size: int) -> None:
    client = connection(pair)
    pair[1].sendall(struct.pack(">i", size))
    with pytest.raises(CorruptBatch, match=f"frame of {size} bytes"):
        client.receive_frame(bytearray(10), timeout_s=60)
    assert client.closed


def test_a_tls_alert_instead_of_a_frame_is_detected(pair: Pair) -> None:
    client = connection(pair)
    pair[1].sendall(bytes.fromhex("15030300020250"))
    with pytest.raises(TlsFailure, match="uses TLS"):
        client.receive_frame(bytearray(10), timeout_s=60)


def test_a_web_server_is_detected(pair: Pair) -> None:
    client = connection(pair)
    pair[1].sendall(b"HTTP/1.1 400 Bad Request\r\n")
    with pytest.raises(CorruptBatch, match="web server"):
        client.receive_frame(bytearray(10), timeout_s=60)


@pytest.mark.parametrize("answered", [False, True])
def test_a_tls_error_is_a_rejection_only_before_the_first_byte(answered: bool) -> None:
    """With TLS 1.3 a broker checks our certificate after our side of the handshake. Later the connection is damaged."""

    class DamagedSocket:
        def __init__(self, pair: socket.socket) -> None:
            self.fileno, self.close = pair.fileno, pair.close
            self.first = b"x" if answered else b""

        def recv_into(self, view: memoryview) -> int:
            if self.first:
                view[:1], self.first = self.first, b""
                return 1
            error = ssl.SSLError(1, "ssl/tls alert bad record mac")
            error.reason = "SSLV3_ALERT_BAD_RECORD_MAC"  # as the library sets it
            raise error

    with contextlib.closing(socket.socket()) as sock:
        stream = Stream(cast(Any, DamagedSocket(sock)), "broker b:1")
        with pytest.raises(DisconnectedFailure if answered else TlsFailure) as raised:
            stream.read_into(memoryview(bytearray(2)), time.monotonic() + 1)
    assert raised.value.retriable is answered
    assert stream.closed
