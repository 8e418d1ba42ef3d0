"""A target that answers as no broker does harms the flows into it, and no others.

Given a broker A, and a broker B behind a relay that changes its answers, and flows in both directions in one process.
"""

from __future__ import annotations

import itertools
import struct
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from kafka.protocol.consumer import HeartbeatRequest, HeartbeatResponse

from mm2.sandbox.kafka import LocalKafka
from tests.faults.absurd import UNKNOWN_CODE, AbsurdAnswers, Absurdity
from tests.faults.wire import Request, Wire
from tests.fuzz.hostile_broker import response_classes
from tests.fuzz.hostile_process import LIMIT_BYTES
from tests.integration.mirror_flow import create, write
from tests.integration.mirror_process import MirrorProcess, ends, write_config

_LIST_OFFSETS: Final = frozenset({2})
_FETCH: Final = frozenset({1})
_METADATA: Final = frozenset({3, 10})
_APIS: Final = frozenset(response_classes())
#: Each kind of answer is given for so long.
_CASE_S: Final = 3.0
#: A process with two flows into and out of the cluster and intervals of a second sends about 70, at most 120 in these tests.
_MOST_REQUESTS_S: Final = 250
_MOST_LOG_BYTES: Final = 256 << 10


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
    answer = HeartbeatResponse(version=request.version, throttle_time_ms=0, error_code=UNKNOWN_CODE)
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


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_absurd_answer_is_asked_for_again_and_again(
    kafka_a: LocalKafka, relayed: tuple[LocalKafka, Wire], unique: str, tmp_path: Path
) -> None:
    """Negative offsets of ListOffsets led to 600 requests a second, empty Fetch answers to 2,300. B is target and source; the flow from C, the same
    broker without the relay, goes on.
    """
    broker, wire = relayed
    topics = {name: f"{unique}-{name}" for name in "abc"}
    file = write_config(
        tmp_path / "mm2.properties",
        {
            "clusters": "A, B, C",
            "A.bootstrap.servers": kafka_a.bootstrap,
            "B.bootstrap.servers": wire.address,
            "C.bootstrap.servers": broker.bootstrap,
            "A->B.enabled": "true",
            "B->A.enabled": "true",
            "C->A.enabled": "true",
            "A->B.topics": topics["a"],
            "B->A.topics": topics["b"],
            "C->A.topics": topics["c"],
            "C->A.offset-syncs.topic.location": "target",
            "A->C.emit.heartbeats.enabled": "false",
            "B->C.emit.heartbeats.enabled": "false",
            "C->B.emit.heartbeats.enabled": "false",
            "sync.group.offsets.enabled": "true",
        },
    )
    for name, source in (("a", kafka_a), ("b", broker), ("c", broker)):
        create(source, topics[name])
        write(source, topics[name], [(b"k", b"before")], 0)
    wire.answer = answers = AbsurdAnswers()
    process = MirrorProcess(file, tmp_path / "log", variables={"XDG_STATE_HOME": str(tmp_path)})
    try:
        process.eventually(lambda: ends(broker, f"A.{topics['a']}") == ends(kafka_a, f"B.{topics['b']}") == [1], 120)
        port = process.await_log("REST server listening.")["advertised_url"].rstrip("/").rpartition(":")[2]
        others = _APIS - _LIST_OFFSETS - _FETCH - _METADATA
        for sent, (absurdity, keys) in enumerate(
            itertools.product(Absurdity, (_LIST_OFFSETS, _FETCH, _METADATA, others)), start=2
        ):
            written, began_s = process.log.stat().st_size, time.monotonic()
            answers.begin(absurdity, keys)
            while time.monotonic() - began_s < _CASE_S:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/overview", timeout=60).close()
                time.sleep(0.3)
            rate = answers.counts.total() / (time.monotonic() - began_s)
            what = f"{absurdity} {sorted(keys)}: {answers.counts.most_common(3)}"
            assert rate < _MOST_REQUESTS_S, what
            assert process.log.stat().st_size - written < _MOST_LOG_BYTES, what
            assert sum(member.memory_info().rss for member in process.family()) < LIMIT_BYTES, what
            write(broker, topics["c"], [(b"k", b"meanwhile")], 0)
            process.eventually(lambda sent=sent: ends(kafka_a, f"C.{topics['c']}") == [sent])  # type: ignore[misc]
        answers.begin(None)
        assert process.stop()[0] == 0
    finally:
        process.clean_up()
