"""A standalone worker stores configs and statuses in memory, and offsets in a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from mm2.sandbox.kafka import LocalKafka
from tests.integration.copy_flow import create, read
from tests.integration.mirror_process import topics_of
from tests.support.waiting import wait_until
from tests.systems.test_stores_on_kafka import file_source, verifiable
from tests.systems.workers import StandaloneWorker


@pytest.mark.timeout(180)
def test_a15_a_restarted_worker_resumes_at_the_offset_file(broker: LocalKafka, unique: str, folder: Path) -> None:
    create(broker, unique)
    source = folder / "source.txt"
    source.write_text("one\ntwo\n")
    connector = folder / "source.properties"
    connector.write_text("".join(f"{k}={v}\n" for k, v in {"name": "src", **file_source(source, unique)}.items()))
    with StandaloneWorker(folder / "worker", {"bootstrap.servers": broker.bootstrap}, [connector]) as worker:
        wait_until(lambda: [entry["offset"] for entry in worker.rest.offsets("src")] == [{"position": 8}], 60)
        worker.kill9()
        with source.open("a") as growing:
            growing.write("three\n")
        worker.start()
        wait_until(lambda: [entry["offset"] for entry in worker.rest.offsets("src")] == [{"position": 14}], 60)
    assert [record.value for record in read(broker, unique)] == [b"one", b"two", b"three"]
    assert (folder / "worker" / "offsets").read_bytes().startswith(bytes.fromhex("aced0005"))


@pytest.mark.timeout(180)
def test_a17_a19_standalone_writes_only_data_to_kafka(broker: LocalKafka, unique: str, folder: Path) -> None:
    create(broker, unique)
    wait_until(lambda: unique in topics_of(broker), 30, what="the topic in metadata")
    before = topics_of(broker)
    with StandaloneWorker(folder / "worker", {"bootstrap.servers": broker.bootstrap}) as worker:
        worker.rest.create("c", verifiable(unique, 2))
        status = worker.rest.await_running("c", 2)
        assert {task["worker_id"] for task in status["tasks"]} == {worker.worker_id}
        worker.rest.pause("c")
        wait_until(lambda: worker.rest.states("c") == ["PAUSED"] * 3, 30, detail=worker.tail)
        worker.rest.stop("c")
        worker.rest.resume("c")
        worker.rest.await_running("c", 2)
        worker.rest.configure("c", verifiable(unique, 1))
        worker.rest.await_running("c", 1)
        worker.rest.delete("c")
        assert worker.rest.get("/connectors") == []
        assert worker.rest.http.get("/connectors/c/status").status_code == 404
        worker.rest.create("d", verifiable(unique, 1))
        worker.rest.await_running("d", 1)
        worker.kill9()
        worker.start()
        assert worker.rest.get("/connectors") == []  # configs and statuses were in memory only
    assert topics_of(broker) - before <= {"__consumer_offsets", "__transaction_state"}
