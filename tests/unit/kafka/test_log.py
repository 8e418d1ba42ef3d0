"""Reading a shared log continues after failures. The test simulates the reads."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from mm2.kafka.cluster import Cluster
from mm2.kafka.errors import BrokerFailure
from mm2.kafka.log import KafkaBasedLog
from mm2.kafka.settings import ClientSettings

SETTINGS = ClientSettings.from_props({"bootstrap.servers": "localhost:1", "retry.backoff.ms": "1"}, client_id="c")


def tail(poll: Callable[[KafkaBasedLog], None]) -> None:
    log = KafkaBasedLog(Cluster(SETTINGS, name="B"), "t", on_record=lambda _: None)
    log._poll = lambda: poll(log)  # type: ignore[method-assign]
    thread = threading.Thread(target=log._run, daemon=True)
    thread.start()
    thread.join(5)
    assert not thread.is_alive()


def test_a_buffer_referenced_by_an_exception_is_not_reused() -> None:
    grown: list[int] = []

    def poll(log: KafkaBasedLog) -> None:
        buffer = log._buffer
        if log._failure is not None:
            size = len(buffer)
            buffer.extend(bytes(8))
            grown.append(len(buffer) - size)
            log._stopping.set()
            return
        frame = memoryview(buffer)
        raise BrokerFailure.of(6, subject=f"reading {len(frame)} bytes")

    tail(poll)
    assert grown == [8]


@pytest.mark.parametrize("error", [ValueError("ours"), BrokerFailure.of(6)])
def test_no_failure_stops_the_tail(error: Exception) -> None:
    polls: list[int] = []

    def poll(log: KafkaBasedLog) -> None:
        polls.append(1)
        if len(polls) > 2:
            log._stopping.set()
        raise error

    tail(poll)
    assert len(polls) == 3
