import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mm2.kafka.cluster import Cluster
from mm2.kafka.connection import Connection
from mm2.kafka.errors import DnsFailure, RefusedFailure, TimeoutFailure, TlsFailure
from mm2.kafka.settings import ClientSettings, Tls

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
        Connection.open("127.0.0.1", 1, SETTINGS, timeout_s=5, cluster="A")


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b", "x" * 70 + ".invalid"])
def test_a_name_without_an_address_is_reported(host: str) -> None:
    start = time.monotonic()
    with pytest.raises((DnsFailure, TimeoutFailure)) as raised:
        Connection.open(host, 9092, SETTINGS, timeout_s=3)
    assert host in str(raised.value)
    assert time.monotonic() - start < 4


def test_an_unresponsive_server_fails_at_the_deadline(unresponsive_port: int) -> None:
    start = time.monotonic()
    with pytest.raises(TimeoutFailure):
        Connection.open("127.0.0.1", unresponsive_port, SETTINGS, timeout_s=0.2)
    assert 0.15 < time.monotonic() - start < 1


@pytest.mark.parametrize("content", [None, b"", b"-----BEGIN CERTIFICATE-----\nMIIB"], ids=["missing", "empty", "half"])
def test_a_key_store_being_replaced_fails_only_this_connection(
    unresponsive_port: int, tmp_path: Path, content: bytes | None
) -> None:
    store = tmp_path / "trusted.pem"
    if content is not None:
        store.write_bytes(content)
    settings = replace(SETTINGS, security_protocol="SSL", tls=Tls(truststore_location=str(store)))
    with pytest.raises(TlsFailure, match=r"ssl\.truststore\.location") as raised:
        Connection.open("127.0.0.1", unresponsive_port, settings, timeout_s=5, cluster="A")
    assert str(store) in str(raised.value)
    assert not raised.value.is_final


def test_preflight_reports_the_most_specific_failure(unresponsive_port: int) -> None:
    settings = ClientSettings(bootstrap=(("127.0.0.1", 1), ("127.0.0.1", unresponsive_port)))
    start = time.monotonic()
    with pytest.raises(TimeoutFailure, match=f":{unresponsive_port} of cluster A"):
        Cluster(settings, name="A").preflight(1)
    assert time.monotonic() - start < 2


def test_the_second_bootstrap_server_gets_part_of_the_timeout(unresponsive_port: int) -> None:
    settings = ClientSettings(bootstrap=(("127.0.0.1", unresponsive_port), ("127.0.0.1", 1)))
    cluster = Cluster(settings, name="A")
    with pytest.raises(TimeoutFailure):
        cluster.metadata((), timeout_s=1.5)
    assert cluster._pool.preference(("127.0.0.1", 1)) == 2
    cluster.close()
