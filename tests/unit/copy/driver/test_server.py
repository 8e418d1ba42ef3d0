"""Who may fetch a copy job, with its credentials, from the driver."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from mm2.codec import decode
from mm2.copy import channel
from mm2.copy.driver.batch import MicroBatch
from mm2.copy.driver.identity import DriverIdentity
from mm2.copy.driver.server import ChannelServer
from mm2.copy.spec import CopySpec, PartitionSpec
from mm2.kafka.settings.client_settings import ClientSettings
from tests.support.waiting import wait_until

SETTINGS = ClientSettings.from_props({"bootstrap.servers": "localhost:1"}, client_id="c")
SPEC = CopySpec("A->B", "C", 0, "A", "B", SETTINGS, SETTINGS, (PartitionSpec("t", 0, "A.t"),), "offsets")


@pytest.fixture(params=["plain", "tls"])
def server(request: pytest.FixtureRequest) -> Iterator[ChannelServer]:
    server = ChannelServer("127.0.0.1", identity=DriverIdentity.create() if request.param == "tls" else None)
    yield server
    server.close()


class Executor:
    """The other end of the channel."""

    def __init__(self, server: ChannelServer) -> None:
        self.socket = socket.create_connection(server.address, 60)
        if server.fingerprint:
            self.socket = channel.client_tls().wrap_socket(self.socket)
            channel.verify_pin(self.socket, server.fingerprint)
        self.lines = self.socket.makefile("rb")
        self.challenge = self.hear()["nonce"]

    def hear(self) -> dict[str, Any]:
        return channel.decode(self.lines.readline())

    def say(self, message: dict[str, Any]) -> None:
        self.socket.sendall(channel.encode(message))

    def hello(self, batch: MicroBatch, *, secret: str | None = None, attempt: int = 0) -> str:
        own = channel.nonce()
        mac = channel.proof(secret or batch.secret, "executor", self.challenge, batch.id, attempt)
        self.say({"batch": batch.id, "attempt": attempt, "nonce": own, "mac": mac})
        return own

    @property
    def hung_up(self) -> bool:
        self.socket.settimeout(60)
        try:
            return self.lines.readline() == b""
        except (ConnectionResetError, ssl.SSLEOFError):
            return True


def batch_of(server: ChannelServer) -> MicroBatch:
    batch = MicroBatch("b", SPEC, lambda: None)
    server.expect(batch)
    return batch


def test_both_sides_authenticate_and_the_job_is_sent(server: ChannelServer) -> None:
    batch = batch_of(server)
    executor = Executor(server)
    own = executor.hello(batch)
    answer = executor.hear()
    assert channel.proves(answer["mac"], batch.secret, "driver", own)
    assert decode(CopySpec, answer["spec"]) == SPEC
    executor.say({"type": "ready"})
    assert executor.hear() == {"type": "go"}
    assert batch.ready.is_set()


def test_small_messages_do_not_wait_for_acknowledgements(server: ChannelServer) -> None:
    batch = batch_of(server)
    executor = Executor(server)
    executor.hello(batch)
    executor.hear()
    (peer,) = server._peers
    ours = peer._transport.get_extra_info("socket")
    assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


def test_an_unauthenticated_client_gets_nothing(server: ChannelServer) -> None:
    batch = batch_of(server)
    executor = Executor(server)
    executor.hello(batch, secret="00" * 32)
    assert executor.hung_up
    assert not batch.finished.is_set()


def test_a_hello_that_was_recorded_is_not_accepted_again(server: ChannelServer) -> None:
    """The proof is for the challenge of one connection, and for one batch."""
    batch, other = batch_of(server), batch_of(server)
    first, replaying = Executor(server), Executor(server)
    mac = channel.proof(batch.secret, "executor", first.challenge, batch.id, 0)
    recorded = {"batch": batch.id, "attempt": 0, "nonce": channel.nonce(), "mac": mac}
    replaying.say(recorded)
    assert replaying.hung_up
    assert not batch.finished.is_set()
    first.say({**recorded, "batch": other.id})
    assert first.hung_up
    late = Executor(server)
    late.hello(batch)
    assert "spec" in late.hear()


def test_a_forgotten_batch_is_not_sent(server: ChannelServer) -> None:
    batch = batch_of(server)
    server.forget(batch)
    executor = Executor(server)
    executor.hello(batch)
    assert executor.hung_up


def test_a_second_attempt_is_rejected_and_the_first_continues(server: ChannelServer) -> None:
    batch = batch_of(server)
    first = Executor(server)
    first.hello(batch)
    first.hear()
    second = Executor(server)
    second.hello(batch, attempt=1)
    assert second.hung_up
    assert not batch.finished.is_set()
    first.say({"type": "ready"})
    assert first.hear() == {"type": "go"}


@pytest.mark.parametrize("line", [b"nonsense\n", b"[]\n", b"{}\n", b"x" * 5000 + b"\n"])
def test_invalid_data_closes_the_connection(server: ChannelServer, line: bytes) -> None:
    executor = Executor(server)
    executor.socket.sendall(line)
    assert executor.hung_up


def test_the_end_of_the_connection_is_the_end_of_the_batch(server: ChannelServer) -> None:
    batch = batch_of(server)
    executor = Executor(server)
    executor.hello(batch)
    executor.hear()
    executor.socket.shutdown(socket.SHUT_RDWR)
    assert batch.finished.wait(60)
    assert not batch.final
    assert batch.failure.startswith(("the executor closed the progress channel", "the progress channel failed"))


def test_a_disconnect_reaches_the_executor_immediately(server: ChannelServer) -> None:
    batch = batch_of(server)
    executor = Executor(server)
    executor.hello(batch)
    executor.hear()
    threading.Timer(0.05, batch.ended, ["cancelled"]).start()
    assert executor.hung_up
    assert batch.failure == "cancelled"


def test_running_out_of_file_descriptors_does_not_stop_the_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [OSError(24, "Too many open files")]
    accept = socket.socket.accept

    def accepting(listener: socket.socket) -> Any:
        if failures:
            raise failures.pop()
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", accepting)
    server = ChannelServer("127.0.0.1")
    try:
        assert Executor(server).challenge
    finally:
        server.close()


def test_silent_connections_replace_each_other_and_not_executors(
    monkeypatch: pytest.MonkeyPatch, server: ChannelServer
) -> None:
    """Each held a file descriptor of the process for ten seconds, in any number, also before a TLS handshake."""
    monkeypatch.setattr("mm2.copy.driver.server._MAX_UNAUTHENTICATED", 5)
    batch = batch_of(server)
    executor = Executor(server)
    executor.hello(batch)
    executor.hear()
    silent = [socket.create_connection(server.address, 60) for _ in range(12)]
    for one in silent[:7]:
        one.settimeout(5)
        with contextlib.suppress(ConnectionResetError):
            while one.recv(4096):
                pass
    wait_until(lambda: len(server._unauthenticated) == 5)
    assert all(_is_open(one) for one in silent[7:])
    executor.say({"type": "ready"})
    assert executor.hear() == {"type": "go"}
    assert Executor(server).challenge


def _is_open(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        return sock.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False


def test_lines_are_reassembled_from_any_fragments(server: ChannelServer) -> None:
    batch = batch_of(server)
    executor = Executor(server)
    executor.hello(batch)
    executor.hear()
    text = channel.encode({"type": "waiting", "reason": "r" * 100_000}) + channel.encode({"type": "ready"})
    for cut in range(0, len(text), 7_001):
        executor.socket.sendall(text[cut : cut + 7_001])
    assert batch.ready.wait(60)
    assert [executor.hear(), executor.hear()] == [{"type": "go"}] * 2


def test_an_internal_error_ends_the_batch_and_not_the_server(server: ChannelServer) -> None:
    broken = MicroBatch("b", SPEC, lambda: 1 // 0)  # type: ignore[arg-type]
    server.expect(broken)
    executor = Executor(server)
    executor.hello(broken)
    executor.hear()
    executor.say({"type": "ready"})
    assert executor.hung_up
    assert broken.finished.wait(60)
    assert Executor(server).challenge


def test_closing_ends_listening_connections_and_the_thread(server: ChannelServer) -> None:
    batch = batch_of(server)
    executor = Executor(server)
    executor.hello(batch)
    executor.hear()
    server.close()
    assert executor.hung_up
    assert batch.finished.wait(60)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(server.address, 60)
    assert not server._thread.is_alive()
    server.close()
    batch.stop(1)  # a caller may still use it


def test_without_tls_a_client_gets_nothing_where_tls_is_required() -> None:
    server = ChannelServer("127.0.0.1", identity=DriverIdentity.create())
    try:
        with socket.create_connection(server.address, 60) as stranger:
            stranger.sendall(b"{}\n" * 2000)
            with pytest.raises((ConnectionResetError, ValueError)):
                channel.decode(stranger.makefile("rb").readline())
    finally:
        server.close()


def test_another_drivers_certificate_is_refused() -> None:
    server = ChannelServer("127.0.0.1", identity=DriverIdentity.create())
    try:
        with socket.create_connection(server.address, 60) as plain, channel.client_tls().wrap_socket(plain) as tls:
            with pytest.raises(ValueError, match="another certificate than the driver's"):
                channel.verify_pin(tls, DriverIdentity.create().fingerprint)
            channel.verify_pin(tls, server.fingerprint)
    finally:
        server.close()


def test_a_client_that_does_not_authenticate_is_disconnected(
    monkeypatch: pytest.MonkeyPatch, server: ChannelServer
) -> None:
    monkeypatch.setattr("mm2.copy.driver.server._HANDSHAKE_TIMEOUT_S", 0.2)
    assert Executor(server).hung_up
