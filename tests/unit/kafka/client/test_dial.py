import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mm2.kafka.client import dial
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.client.connection import Connection
from mm2.kafka.client.pool import Pool
from mm2.kafka.errors import DnsFailure, RefusedFailure, TimeoutFailure, TlsFailure, TlsInterrupted
from mm2.kafka.settings.client_settings import ClientSettings, Tls
from tests.fuzz.hostile_broker import HostileBroker

SETTINGS = ClientSettings(bootstrap=(("127.0.0.1", 1),))


@pytest.fixture
def unresponsive_port() -> Iterator[int]:
    """A port that accepts connections and never responds."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_closed_port_is_reported() -> None:
    with pytest.raises(
        RefusedFailure, match=r"broker 127\.0\.0\.1:1 of cluster A cannot be reached: connection refused"
    ):
        Connection.open("127.0.0.1", 1, SETTINGS, timeout_s=60, cluster="A")


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b", "x" * 70 + ".invalid"])
def test_a_name_without_an_address_is_reported(host: str) -> None:
    with pytest.raises((DnsFailure, TimeoutFailure)) as raised:
        Connection.open(host, 9092, SETTINGS, timeout_s=3)
    assert host in str(raised.value)


def test_an_unresponsive_server_fails_at_the_deadline(unresponsive_port: int) -> None:
    start = time.monotonic()
    with pytest.raises(TimeoutFailure):
        Connection.open("127.0.0.1", unresponsive_port, SETTINGS, timeout_s=0.2)
    assert 0.15 < time.monotonic() - start < SETTINGS.connection_setup_timeout_ms / 1000


@pytest.mark.parametrize("content", [None, b"", b"-----BEGIN CERTIFICATE-----\nMIIB"], ids=["missing", "empty", "half"])
def test_a_key_store_being_replaced_fails_only_this_connection(
    unresponsive_port: int, tmp_path: Path, content: bytes | None
) -> None:
    store = tmp_path / "trusted.pem"
    if content is not None:
        store.write_bytes(content)
    settings = replace(SETTINGS, security_protocol="SSL", tls=Tls(truststore_location=str(store)))
    with pytest.raises(TlsFailure, match=r"ssl\.truststore\.location") as raised:
        Connection.open("127.0.0.1", unresponsive_port, settings, timeout_s=60, cluster="A")
    assert str(store) in str(raised.value)
    assert not raised.value.is_final


@pytest.mark.parametrize("resets", [True, False], ids=["reset", "closed"])
def test_a_broker_that_stops_during_the_handshake_is_asked_again(resets: bool) -> None:
    """Consumers end for good after a failure that is not retriable."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def stop() -> None:
            accepted, _ = server.accept()
            with accepted:
                accepted.recv(1 << 16)
                if resets:
                    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

        thread = threading.Thread(target=stop)
        thread.start()
        settings = replace(SETTINGS, security_protocol="SSL", tls=Tls())
        with pytest.raises(TlsInterrupted, match="listener without TLS") as raised:
            Connection.open("127.0.0.1", server.getsockname()[1], settings, timeout_s=60)
        thread.join(60)
    assert raised.value.retriable


def test_the_next_address_of_a_name_is_tried_after_a_failure(
    unresponsive_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first address accepts connections and does not respond, as a frozen broker behind a name of all brokers."""
    with contextlib.closing(HostileBroker(1, honesty=1.0)) as broker:
        addresses = [(socket.AF_INET, ("127.0.0.1", port)) for port in (unresponsive_port, broker.port)]
        monkeypatch.setattr(dial, "_lookup", lambda *_: addresses)
        settings = replace(SETTINGS, bootstrap=(("brokers", 9092),), connection_setup_timeout_ms=100)
        pool = Pool(settings, "A")
        with pytest.raises(TimeoutFailure):
            pool.open(("brokers", 9092), time.monotonic() + 60)
        settings = replace(settings, connection_setup_timeout_ms=60_000)
        pool._settings = replace(settings, connection_setup_timeout_max_ms=60_000)
        pool.open(("brokers", 9092), time.monotonic() + 60).close()
        pool.close()


def test_preflight_reports_the_most_specific_failure(unresponsive_port: int) -> None:
    settings = ClientSettings(bootstrap=(("127.0.0.1", 1), ("127.0.0.1", unresponsive_port)))
    with pytest.raises(TimeoutFailure, match=f":{unresponsive_port} of cluster A"):
        Cluster(settings, name="A").preflight(1)


def test_the_second_bootstrap_server_gets_part_of_the_timeout(unresponsive_port: int) -> None:
    settings = ClientSettings(bootstrap=(("127.0.0.1", unresponsive_port), ("127.0.0.1", 1)))
    cluster = Cluster(settings, name="A")
    with pytest.raises(TimeoutFailure):
        cluster.metadata((), timeout_s=4)
    assert cluster._pool.preference(("127.0.0.1", 1)) == 2
    cluster.close()
