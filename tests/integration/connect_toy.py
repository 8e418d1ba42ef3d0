"""A connector that counts, and a worker process that runs it: `python connect_toy.py '<json of worker properties>'`.

Every task writes 1, 2, 3 … with its own key and continues after its committed offset.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from mm2.config.configdef import ConfigDef, Importance, Type
from mm2.config.keys.worker_keys import WorkerConfig
from mm2.connect.api import Headers, RetriableError, SourceConnector, SourceRecord, SourceTask, Task
from mm2.connect.node import Node
from mm2.connect.plugins import Plugins
from mm2.sandbox.kafka import LocalKafka

MODULE = "tests.integration.connect_toy"
CONNECTOR = f"{MODULE}.CountingConnector"


class CountingConnector(SourceConnector):
    def version(self) -> str:
        return "1.0"

    def start(self, props: dict[str, str]) -> None:
        if props.get("fail.connector"):
            raise ValueError("configured to fail")
        self.props = props

    def stop(self) -> None:
        pass

    def task_class(self) -> type[Task]:
        return CountingTask

    def task_configs(self, max_tasks: int) -> list[dict[str, str]]:
        tasks = int(self.props.get("tasks", max_tasks))
        return [{**self.props, "number": str(n)} for n in range(tasks)]

    def exactly_once_support(self, props: Mapping[str, str]) -> bool:
        return True

    def config(self) -> ConfigDef:
        return ConfigDef().define("topic", Type.STRING, importance=Importance.HIGH, doc="where to")


class CountingTask(SourceTask):
    def version(self) -> str:
        return "1.0"

    def start(self, props: dict[str, str]) -> None:
        self.topic, self.number = props["topic"], props["number"]
        self.pause_s = float(props.get("pause.s", "0.02"))
        self.bad_at = int(props.get("bad.at", "0"))
        self.fail_at = int(props.get("fail.at", "0"))
        self.blocking = props.get("block") == "true"
        self.moody = props.get("moody") == "true"
        self.secret = props.get("secret", "")
        self.ended = threading.Event()
        self.partition = {"number": int(self.number), "toy": "é"}
        (offset,) = self.context.offset_reader.offsets([self.partition])
        self.count = 0 if offset is None else int(offset["count"])
        self.acked = 0
        detail: dict[str, Any] = {"resumed_at": self.count}
        if self.secret:
            detail["secret_length"] = len(self.secret)
        self.context.report(detail)

    def poll(self) -> list[SourceRecord] | None:
        if self.blocking:
            self.ended.wait()
            return None
        if self.ended.wait(self.pause_s):
            return None
        if self.moody:
            self.moody = False
            raise RetriableError("not in the mood")
        self.count += 1
        if self.count == self.fail_at:
            raise ValueError(f"configured to fail at {self.fail_at}")
        return [
            SourceRecord(
                self.partition,
                {"count": self.count},
                self.topic,
                None,
                "no bytes" if self.count == self.bad_at else f"task-{self.number}".encode(),
                str(self.count).encode(),
                headers=Headers.of([("h", b"\x00\xff")]),
                timestamp=1_700_000_000_000 + self.count,
            )
        ]

    def commit_record(self, record: SourceRecord, metadata: Any) -> None:
        self.acked += metadata is not None

    def stop(self) -> None:
        self.ended.set()


def worker_props(bootstrap: str, name: str, **overrides: str) -> dict[str, str]:
    return {
        "bootstrap.servers": bootstrap,
        "group.id": f"{name}-group",
        "client.id": "toy",
        "config.storage.topic": f"{name}-configs",
        "offset.storage.topic": f"{name}-offsets",
        "status.storage.topic": f"{name}-status",
        "config.storage.replication.factor": "1",
        "offset.storage.replication.factor": "1",
        "status.storage.replication.factor": "1",
        "offset.storage.partitions": "3",
        "status.storage.partitions": "2",
        "key.converter": "org.apache.kafka.connect.converters.ByteArrayConverter",
        "value.converter": "org.apache.kafka.connect.converters.ByteArrayConverter",
        "header.converter": "org.apache.kafka.connect.converters.ByteArrayConverter",
        "offset.flush.interval.ms": "300",
        "scheduled.rebalance.max.delay.ms": "0",
        "session.timeout.ms": "6000",
        "heartbeat.interval.ms": "500",
        "rebalance.timeout.ms": "20000",
        **overrides,
    }


def node(props: Mapping[str, str], worker_id: str, **options: Any) -> Node:
    return Node(WorkerConfig(props), Plugins(), worker_id=worker_id, cluster_name="toy", **options)


def connector_props(name: str, topic: str, **more: str) -> dict[str, str | None]:
    return {"name": name, "connector.class": CONNECTOR, "topic": topic, **more}


def main() -> None:
    arguments = json.loads(sys.argv[1])
    running = node(arguments["props"], arguments["worker_id"])
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    running.herder.start()
    while not ended.wait(0.2):
        status = running.herder.status()
        sys.stdout.write(json.dumps({"at": time.time(), **status}) + "\n")
        sys.stdout.flush()
        if status["failure"]:
            sys.exit(3)
    running.stop()


if __name__ == "__main__":
    main()


@contextmanager
def running_worker(kafka: LocalKafka, name: str, worker_id: str = "w1:1", **overrides: str) -> Iterator[Node]:
    """Run a worker with `worker_props`; it is ready."""
    started = node(worker_props(kafka.bootstrap, name, **overrides), worker_id)
    started.herder.start()
    try:
        assert started.herder.await_ready(30), started.herder.status()
        yield started
    finally:
        started.stop()
