"""Environment of the dashboard tests: two brokers, flows, traffic, transactions, groups, and a failed connector.

``shop`` is copied to ``vault``, and heartbeats back. Used by the tests and by the script that takes the screenshots.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

import httpx
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from mm2.copy.progress.ledger import Verified, ledger_topic, verified_record
from mm2.kafka.structs import TopicPartition as Mm2TopicPartition
from mm2.sandbox.kafka import LocalKafka, start_all, stop_all
from mm2.sandbox.ports import free_ports
from tests.integration.copy_flow import create, producer_of
from tests.integration.mirror_process import MirrorProcess, write_config
from tests.support.waiting import PATIENCE, wait_until

SOURCE, TARGET = "shop", "vault"
FLOW = f"{SOURCE}->{TARGET}"
TOPICS = ("orders", "payments", "clicks")
GROUP = "billing"
SECRET = "correct-horse-battery"
_BROKEN = "ArchiveSink"
#: Timeout for brokers, a process and pages; higher on a busy machine.
PATIENCE_S = 60.0 * PATIENCE


class Traffic:
    """Writes a few hundred records a second to the source in a thread, and occasional transactions, half of them aborted."""

    def __init__(self, broker: LocalKafka) -> None:
        self._broker = broker
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="traffic", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join(20)

    def _run(self) -> None:
        plain = producer_of(self._broker)
        careful: Producer | None = None
        turn = 0
        while not self._ends.wait(0.1):
            turn += 1
            for number in range(30):
                plain.produce("orders", f"order {turn}-{number}".encode(), key=str(number).encode())
            plain.produce("clicks", b"click")
            plain.poll(0)
            if turn % 20 == 0:
                try:
                    if careful is None:
                        careful = producer_of(self._broker, transactional__id="shop-payments")
                        careful.init_transactions(10)
                    careful.begin_transaction()
                    careful.produce("payments", f"payment {turn}".encode())
                    careful.flush(2)
                    if turn % 40:
                        careful.commit_transaction(2)
                    else:
                        careful.abort_transaction(2)
                except KafkaException:  # the source is unreachable or slow: another producer ends the open transaction
                    careful = None
        with contextlib.suppress(Exception):
            plain.flush(2)


class DashboardFlow:
    """A process that copies; ``url`` is its address."""

    def __init__(self, source: LocalKafka, target: LocalKafka, file: Path, process: MirrorProcess) -> None:
        self.source = source
        self.target = target
        self.file = file
        self.process = process
        self.url = str(process.await_log("REST server listening.", timeout_s=PATIENCE_S)["advertised_url"]).rstrip("/")
        self.ui = f"{self.url}/ui/"

    def ask(self, method: str, path: str, **how: object) -> httpx.Response:
        """Send a request to the REST interface of the flow."""
        return httpx.request(method, f"{self.url}/{SOURCE}/{TARGET}{path}", timeout=PATIENCE_S, trust_env=False, **how)  # type: ignore[arg-type]

    def state(self, connector: str) -> str:
        """The state of a connector, from REST."""
        answer = self.ask("GET", f"/connectors/{connector}/status")
        return str(answer.json()["connector"]["state"]) if answer.is_success else ""

    def commit(self, count: int, group: str = GROUP) -> None:
        """Commit that many records of each partition of the orders for a group."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.source.bootstrap,
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
            }
        )
        try:
            consumer.commit(offsets=[TopicPartition("orders", index, count) for index in range(4)], asynchronous=False)
        finally:
            consumer.close()

    def verified(self, tp: Mm2TopicPartition, verified: Verified) -> None:
        """Write the result of `mm2 verify --record` for a partition to the ledger."""
        record = verified_record(tp, verified)
        producer = producer_of(self.target)
        producer.produce(ledger_topic(SOURCE), key=record.key, value=record.value)
        assert producer.flush(PATIENCE_S) == 0

    def break_a_connector(self) -> None:
        """Create a connector whose task cannot start: its folder does not exist."""
        config = {
            "connector.class": "FileStreamSink",
            "topics": "shop.clicks",
            "file": "/nowhere/to/be/found/archive.txt",
            "tasks.max": "1",
        }
        # Rejected with 409 during a rebalance.
        wait_until(
            lambda: self.ask("PUT", f"/connectors/{_BROKEN}/config", json=config).is_success,
            60.0,
            detail=self.process.tail,
        )
        wait_until(
            lambda: "FAILED" in self.ask("GET", f"/connectors/{_BROKEN}/status").text, 60.0, detail=self.process.tail
        )


@contextlib.contextmanager
def start_dashboard_flow(
    folder: Path, *, topics: Sequence[str] = (), settings: Mapping[str, str] | None = None
) -> Iterator[DashboardFlow]:
    """Run everything, with additional ``topics`` of one partition and ``settings``."""
    source, target = LocalKafka("shop", folder / "shop"), LocalKafka("vault", folder / "vault")
    start_all((source, target), PATIENCE_S)
    try:
        for topic, partitions in zip(TOPICS, (4, 2, 12), strict=True):
            create(source, topic, partitions)
        for topic in topics:
            create(source, topic, 1)
        file = write_config(
            folder / "mm2.properties",
            {
                "clusters": f"{SOURCE}, {TARGET}",
                f"{SOURCE}.bootstrap.servers": source.bootstrap,
                f"{TARGET}.bootstrap.servers": target.bootstrap,
                f"{FLOW}.enabled": "true",
                f"{FLOW}.topics": ", ".join([*TOPICS, *topics]),
                f"{FLOW}.sync.group.offsets.enabled": "true",
                "sync.group.offsets.interval.seconds": "1",
                "shop.consumer.isolation.level": "read_committed",
                "offset-syncs.topic.location": "target",
                f"{SOURCE}.ssl.keystore.password": SECRET,
                "worker.of.nobody": "7",
                f"{TARGET}.plugin.path": "libs/connect-file-4.3.0.jar",
                "plugin.allowed.classes": "FileStreamSink",
                # Not the first free port from 8083 on: another test's process would use it next, and open pages would connect to it.
                "listeners": f"http://127.0.0.1:{free_ports(1)[0]}",
                **(settings or {}),
            },
        )
        process = MirrorProcess(file, folder / "mm2.log", variables={"XDG_STATE_HOME": str(folder)})
        try:
            shop = DashboardFlow(source, target, file, process)
            with Traffic(source):
                wait_until(lambda: shop.state("MirrorSourceConnector") == "RUNNING", 60.0, detail=process.tail)
                shop.commit(20)
                yield shop
        finally:
            process.clean_up()
    finally:
        stop_all((source, target))
