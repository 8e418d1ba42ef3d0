"""The fault-injecting proxy between plain sockets: the effect of each condition, and its end."""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mm2.sandbox.errors import SandboxError
from tests.support.proxy import Proxy
from tests.support.relay import Conditions

_PATIENCE_S = 60.0


class Echo:
    """Returns each frame of Kafka's protocol unchanged."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.frames = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._answer, args=(client,), daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError, ConnectionError), client:
            while True:
                frame = receive(client)
                self.frames += 1
                client.sendall(frame)


def receive(sock: socket.socket) -> bytes:
    """One frame, size included. Raises ConnectionError when the connection ends earlier."""
    data = b""
    while len(data) < 4 or len(data) < 4 + struct.unpack_from(">i", data)[0]:
        part = sock.recv(1 << 16)
        if not part:
            raise ConnectionError(f"ended after {len(data)} bytes")
        data += part
    return data


def frame(size: int = 10) -> bytes:
    return struct.pack(">i", size) + bytes(size)


def connect(proxy: Proxy) -> socket.socket:
    host, port = proxy.address.rsplit(":", 1)
    sock = socket.create_connection((host, int(port)))
    sock.settimeout(_PATIENCE_S)
    return sock


def ask(proxy: Proxy, data: bytes) -> bytes:
    with connect(proxy) as sock:
        sock.sendall(data)
        return receive(sock)


@pytest.fixture(scope="module")
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture(scope="module")
def running(echo: Echo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    with Proxy(echo.address, tmp_path_factory.mktemp("proxy") / "proxy.log") as proxy:
        yield proxy


@pytest.fixture
def proxy(running: Proxy) -> Iterator[Proxy]:
    yield running
    running.heal()
    running.reset()


def test_an_unlimited_network_passes_and_counts_all_bytes(proxy: Proxy) -> None:
    before = proxy.counters()
    assert ask(proxy, frame(1_000_000)) == frame(1_000_000)
    after = proxy.counters()
    assert after["accepted"] == before["accepted"] + 1
    assert [after[name] - before[name] for name in ("bytes_up", "bytes_down")] == [1_000_004, 1_000_004]


def test_latency_applies_to_round_trips_and_to_new_connections(proxy: Proxy) -> None:
    proxy.delay(round_trip_ms=60)
    with connect(proxy) as sock:
        took_s = []
        for _ in range(6):
            began_s = time.monotonic()
            sock.sendall(frame())
            receive(sock)
            took_s.append(time.monotonic() - began_s)
    assert took_s[0] > 0.115
    assert 0.055 < min(took_s[1:]) < 0.115


def test_at_most_one_window_is_in_flight_in_a_round_trip(proxy: Proxy) -> None:
    proxy.delay(round_trip_ms=100, window_bytes=50_000)
    began_s = time.monotonic()
    ask(proxy, frame(250_000))  # five windows one way, and the response in parallel
    assert time.monotonic() - began_s > 0.45


def test_the_bandwidth_limit_is_enforced(proxy: Proxy) -> None:
    proxy.limit(400_000)
    began_s = time.monotonic()
    ask(proxy, frame(200_000))
    assert 0.45 < time.monotonic() - began_s < 60


def test_withheld_bytes_arrive_when_the_network_recovers(proxy: Proxy) -> None:
    proxy.freeze()
    with connect(proxy) as sock:
        sock.sendall(frame())
        sock.settimeout(0.2)
        with pytest.raises(TimeoutError):
            sock.recv(1)
        proxy.heal()
        sock.settimeout(_PATIENCE_S)
        assert receive(sock) == frame()


def test_a_connection_that_lost_bytes_stays_blocked_and_a_new_one_works(proxy: Proxy) -> None:
    with connect(proxy) as sock:
        proxy.black_hole()
        sock.sendall(frame())
        time.sleep(0.1)
        proxy.heal()
        sock.sendall(frame())
        sock.settimeout(0.3)
        with pytest.raises(TimeoutError):
            sock.recv(1)
    assert ask(proxy, frame()) == frame()


def test_half_open_connections_pass_requests_and_drop_responses(proxy: Proxy, echo: Echo) -> None:
    proxy.half_open()
    before = echo.frames
    with connect(proxy) as sock:
        sock.sendall(frame())
        sock.settimeout(0.3)
        with pytest.raises(TimeoutError):
            sock.recv(1)
    assert echo.frames == before + 1


def test_a_refusal_resets_open_connections_until_the_network_recovers(proxy: Proxy) -> None:
    with connect(proxy) as sock:
        sock.sendall(frame())
        receive(sock)
        proxy.refuse()
        with pytest.raises(ConnectionResetError):
            sock.recv(1)
    with pytest.raises(ConnectionRefusedError):
        connect(proxy)
    proxy.heal()
    assert ask(proxy, frame()) == frame()


def test_a_reset_reaches_the_client_as_a_reset(proxy: Proxy) -> None:
    with connect(proxy) as sock:
        sock.sendall(frame())
        receive(sock)
        assert proxy.reset() == 1
        with pytest.raises(ConnectionResetError):
            sock.recv(1)


@pytest.mark.parametrize("by_fin", [False, True])
def test_a_response_is_truncated_and_the_next_one_is_complete(proxy: Proxy, by_fin: bool) -> None:
    proxy.cut(after_bytes=1000, by_fin=by_fin)
    assert ask(proxy, frame(900)) == frame(900), "it is shorter"
    expected = "ended after 1000 bytes" if by_fin else "reset by peer|ended after"
    with pytest.raises(ConnectionError, match=expected):
        ask(proxy, frame(5000))
    assert ask(proxy, frame(5000)) == frame(5000)


def test_small_fragments_arrive_completely(proxy: Proxy) -> None:
    proxy.slice(3)
    assert ask(proxy, frame(5000)) == frame(5000)


def test_the_rate_of_flipped_bits_is_about_the_configured_one(proxy: Proxy) -> None:
    before = proxy.counters()["flipped"]
    with connect(proxy) as sock:
        sock.sendall(frame(100))
        receive(sock)
        proxy.corrupt(every_bytes=10_000)
        sock.sendall(frame(500_000))
        got = b""
        while len(got) < 500_004:
            got += sock.recv(1 << 16)
    flipped = proxy.counters()["flipped"] - before
    assert 20 < flipped < 120
    assert sum(byte.bit_count() for byte in got[4:]) in range(flipped - 8, flipped + 1)


def test_a_response_is_repeated(proxy: Proxy) -> None:
    proxy.repeat(1)
    with connect(proxy) as sock:
        sock.sendall(frame(10))
        first = receive(sock)
        sock.sendall(frame(20))
        answers = first + receive(sock)
        while len(answers) < 14 + 14 + 24:
            answers += sock.recv(100)
    assert answers == frame(10) + frame(10) + frame(20)


def test_loss_and_jitter_delay_but_keep_the_order(proxy: Proxy) -> None:
    proxy.disturb(loss=0.5, jitter_ms=20)
    with connect(proxy) as sock:
        for size in range(1, 30):
            sock.sendall(frame(size))
        wanted = b"".join(frame(size) for size in range(1, 30))
        got = b""
        while len(got) < len(wanted):
            got += sock.recv(1 << 16)
    assert got == wanted


def test_conditions_are_changed_individually(proxy: Proxy) -> None:
    proxy.delay(round_trip_ms=10)
    proxy.change(slice_bytes=5)
    assert proxy.conditions == Conditions(delay_up_ms=5, delay_down_ms=5, slice_bytes=5)


def test_a_port_in_use_is_reported_in_one_sentence(echo: Echo, tmp_path: Path) -> None:
    with (
        pytest.raises(SandboxError, match=r"did not start: .*Address already in use"),
        Proxy("127.0.0.1:1", tmp_path / "log", address=echo.address),
    ):
        pass
