"""The connections of a cluster whose brokers list ever new addresses."""

from __future__ import annotations

import contextlib
import time

import pytest

from mm2.kafka.client import pool as pool_module
from mm2.kafka.client.pool import Pool
from mm2.kafka.errors import KafkaFailure, TimeoutFailure
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.sandbox.ports import free_ports
from tests.fuzz.hostile_broker import HostileBroker


def new_pool() -> Pool:
    props = {"bootstrap.servers": "127.0.0.1:1", "reconnect.backoff.ms": "0", "reconnect.backoff.max.ms": "0"}
    return Pool(ClientSettings.from_props(props, client_id="c"), "A")


def test_idle_connections_to_ever_new_addresses_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes a file descriptor of the process, which the other clusters need, too."""
    monkeypatch.setattr(pool_module, "MOST_IDLE", 3)
    pool = new_pool()
    with contextlib.ExitStack() as stack:
        stack.callback(pool.close)
        brokers = [stack.enter_context(contextlib.closing(HostileBroker(seed, honesty=1.0))) for seed in range(6)]
        addresses = [("127.0.0.1", broker.port) for broker in brokers]
        connections = []
        for address in addresses:
            with pool.lease(address, time.monotonic() + 60) as connection:
                connections.append(connection)
        assert [connection.closed for connection in connections] == [True] * 3 + [False] * 3
        assert [pool.preference(address) for address in addresses] == [1, 1, 1, 0, 0, 0]


def test_failures_of_ever_new_addresses_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "MOST_FAILING", 3)
    pool = new_pool()
    addresses = [("127.0.0.1", port) for port in free_ports(6)]
    for address in addresses:
        with pytest.raises(KafkaFailure):
            pool.open(address, time.monotonic() + 60)
    assert [pool.preference(address) for address in addresses] == [1, 1, 1, 2, 2, 2]
    pool.close()


def test_the_idle_connections_to_a_broker_that_does_not_answer_are_closed() -> None:
    """A load balancer may have dropped all of them without a notice: each would cost request.timeout.ms."""
    pool = new_pool()
    with contextlib.ExitStack() as stack:
        stack.callback(pool.close)
        one, other = (stack.enter_context(contextlib.closing(HostileBroker(seed, honesty=1.0))) for seed in range(2))
        addresses = [("127.0.0.1", broker.port) for broker in (one, other)]
        deadline = time.monotonic() + 60
        first, second, third = (pool.take(address, deadline) for address in (addresses[0], *addresses))
        for connection in (second, third):
            pool.give_back(connection)
        with pytest.raises(TimeoutFailure), pool.lent(first):
            raise TimeoutFailure("no answer")
        assert [connection.closed for connection in (first, second, third)] == [True, True, False]
        assert [pool.preference(address) for address in addresses] == [2, 0]
