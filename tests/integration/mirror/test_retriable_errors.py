"""Records whose transformation fails with a RetriableError: whether they are skipped is decided once, and retries end."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from mm2.copy.driver.engine import CopyEngine
from mm2.copy.spec import CopySpec
from mm2.kafka.structs import TopicPartition
from mm2.mirror.source.record_changes import changes_spec
from mm2.sandbox.kafka import LocalKafka
from tests.integration.copy.test_copy_engine import numbered, write
from tests.integration.copy_flow import Flow, Traffic, read, rows_of
from tests.integration.spark_workers import workers
from tests.support.waiting import wait_until

_ROUNDS = 6
BYTES = "org.apache.kafka.connect.converters.ByteArrayConverter"


#: A plugin, because the executors do not find the modules of the tests.
SERVICE = """
from pathlib import Path

from mm2.config.configdef import ConfigDef
from mm2.connect.api import RetriableError, Transformation


class Service(Transformation):
    '''Asks a service that is down while a file exists.'''

    deterministic = True

    def config(self):
        return ConfigDef()

    def configure(self, props):
        self._down = Path(props["down"])

    def apply(self, record):
        if self._down.exists():
            raise RetriableError("the service is down")
        return record
"""


@pytest.fixture
def flow(engine: CopyEngine, kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str) -> Flow:
    return Flow(engine, kafka_a, kafka_b, unique)


def asking(flow: Flow, topic: str, down: Path, **errors: str) -> CopySpec:
    """A job whose records are changed by a plugin that asks a service, which is down while the file ``down`` exists."""
    plugin = down.parent / "plugins" / "asking"
    plugin.mkdir(parents=True)
    (plugin / "asking.py").write_text(SERVICE)
    (plugin / "mm2-plugins.txt").write_text("asking.Service\n")
    props = {"source.cluster.alias": "A", "transforms": "ask", "transforms.ask.type": "asking.Service"}
    props |= {"transforms.ask.down": str(down)} | {f"errors.{key.replace('_', '.')}": errors[key] for key in errors}
    worker = {"key.converter": BYTES, "value.converter": BYTES, "plugin.path": str(plugin.parent)}
    changes = changes_spec(props, worker, connector="MirrorSourceConnector", task=0)
    assert changes is not None
    assert changes.not_repeatable == ""
    return replace(flow.spec(topic), changes=changes)


@pytest.mark.slow
def test_a_killed_executor_and_its_successor_skip_the_same_records(flow: Flow, tmp_path: Path) -> None:
    """Given a service that is down now and then, and executors that are killed while it is down, while it is up, and in
    between; validates that each record is on the target once, in order, or listed as skipped.
    """
    topic, down = flow.topic(), tmp_path / "down"
    spec = asking(flow, topic, down, tolerance="all")
    tp = TopicPartition(topic, 0)
    with Traffic(flow.source, topic, per_second=300) as traffic, flow.copying(spec) as job:
        for number in range(_ROUNDS):
            position = job.status()["records"]
            wait_until(lambda: job.status()["records"] > position + 50, 60, detail=job.status)  # noqa: B023
            down.touch()
            time.sleep(0.1 * (number % 3))  # some records are skipped
            if number % 2:
                down.unlink()
            for worker in workers():
                worker.kill()
            batches = job.status()["batches"]
            wait_until(lambda: job.status()["batches"] > batches, 60, detail=job.status)  # noqa: B023
            time.sleep(0.5)
            down.unlink(missing_ok=True)
        traffic.finish()
        flow.wait_until_copied(job, spec, 120)
        wait_until(lambda: flow.committed(spec) == {tp: traffic.sent}, detail=job.status)
    assert not [row.reason for row in job.progress() if "at least once" in row.reason]
    ledger = flow.ledger()
    skipped = {
        offset
        for chunk in ledger.chunks(tp)
        for gap in chunk.gaps
        if gap.reason == "skipped"
        for offset in range(gap.first, gap.after)
    }
    wanted = [row.content for row in read(flow.source, topic) if row.offset not in skipped]
    assert [row.content for row in read(flow.target, flow.remote(topic))] == wanted
    entry = ledger.entry(tp)
    assert entry is not None
    assert entry.gaps == {"skipped": len(skipped)}
    assert skipped, "the service was never down"


def test_the_time_for_retries_counts_across_micro_batches(flow: Flow, tmp_path: Path) -> None:
    topic, down = flow.topic(), tmp_path / "down"
    down.touch()
    retries = {"tolerance": "none", "retry_timeout": "12000", "retry_delay_max_ms": "300"}
    spec = replace(asking(flow, topic, down, **retries), batch_duration_ms=500)
    write(flow.source, topic, numbered(0, 3))
    with flow.copying(spec) as job:
        wait_until(lambda: [row.state for row in rows_of(job).values()] == ["FAILED"], 60, detail=job.progress)
        assert job.status()["batches"] > 1
