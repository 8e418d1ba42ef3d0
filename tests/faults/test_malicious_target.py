"""A target that answers as no broker does harms the flows into it, and no others.

Given a broker A, and a broker B behind a relay that changes its answers, and flows in both directions in one process.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from kafka.protocol.consumer import HeartbeatRequest, HeartbeatResponse

from mm2.sandbox.kafka import LocalKafka
from tests.faults.wire import Request, Wire
from tests.integration.mirror_flow import create, write
from tests.integration.mirror_process import MirrorProcess, ends, write_config

_UNKNOWN_CODE: Final = 999


@pytest.fixture(scope="module")
def relayed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalKafka, Wire]]:
    listeners = {"OPEN": "PLAINTEXT", "PROXIED": "PLAINTEXT"}
    folder = tmp_path_factory.mktemp("malicious")
    with (
        LocalKafka("B", folder, listeners=listeners, proxied=["PROXIED"], heap="256m") as broker,
        Wire.before(broker) as wire,
    ):
        yield broker, wire


def unknown_heartbeats(request: Request, response: bytes) -> bytes:
    """An error code that no version of Kafka has."""
    if request.api_key != HeartbeatRequest.API_KEY:
        return response
    answer = HeartbeatResponse(version=request.version, throttle_time_ms=0, error_code=_UNKNOWN_CODE)
    return (
        struct.pack(">i", request.correlation_id) + (b"\x00" if request.version >= 4 else b"") + bytes(answer.encode())
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_malicious_target_ends_no_flow_into_another_one(
    kafka_a: LocalKafka, relayed: tuple[LocalKafka, Wire], unique: str, tmp_path: Path
) -> None:
    """One such answer ended the herder, and with it the process. The flow is started again after a minute."""
    broker, wire = relayed
    file = write_config(
        tmp_path / "mm2.properties",
        {
            "clusters": "A, B",
            "A.bootstrap.servers": kafka_a.bootstrap,
            "B.bootstrap.servers": wire.address,
            "A->B.enabled": "true",
            "B->A.enabled": "true",
            "A->B.topics": f"{unique}-a",
            "B->A.topics": f"{unique}-b",
        },
    )
    for source, topic in ((kafka_a, f"{unique}-a"), (broker, f"{unique}-b")):
        create(source, topic)
        write(source, topic, [(b"k", b"before")], 0)

    def copied(flow: str) -> list[int]:
        return ends(broker, f"A.{unique}-a") if flow == "A->B" else ends(kafka_a, f"B.{unique}-b")

    process = MirrorProcess(file, tmp_path / "log")
    try:
        process.eventually(lambda: copied("A->B") == copied("B->A") == [1], 120)
        wire.answer = unknown_heartbeats
        failed = "The flow A->B has failed and is started again: Heartbeat in group A-mm2 on cluster B: ERROR_999"
        process.await_log(failed, timeout_s=120)
        write(broker, f"{unique}-b", [(b"k", b"meanwhile")], 0)
        process.eventually(lambda: copied("B->A") == [2])
        wire.answer = lambda _, response: response
        write(kafka_a, f"{unique}-a", [(b"k", b"after")], 0)
        process.eventually(lambda: copied("A->B") == [2], 180)
        assert process.stop()[0] == 0
    finally:
        process.clean_up()
