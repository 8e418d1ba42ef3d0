"""The source's history changes while records are copied: elections that lose records, logs that are set back.

These tests run the copy engine without the rest of the program, so that a crash happens at an exact point.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from mm2.copy.driver.engine import CopyEngine
from mm2.copy.session import Entry
from mm2.copy.spec import CopySpec
from mm2.kafka.structs import TopicPartition
from mm2.sandbox.cluster import LocalCluster
from mm2.sandbox.kafka import LocalKafka
from tests.faults.stage import Topics
from tests.faults.test_data import write
from tests.faults.test_leaders import await_leader, lose_the_end
from tests.integration.copy_flow import Flow, create, eventually, read, rows_of
from tests.integration.spark_workers import workers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

#: No commit after the first one of a session: a crash finds everything uncommitted.
NEVER_MS = 3_600_000
_LEDGER = {"cleanup__policy": "compact"}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster("S", tmp_path_factory.mktemp("sources"), heap="256m") as made:
        yield made


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    with LocalKafka("T", tmp_path_factory.mktemp("target"), heap="384m") as made:
        yield made


@pytest.fixture
def flow(engine: CopyEngine, sources: LocalCluster, target: LocalKafka, unique: str) -> Flow:
    for node in sources.nodes:
        if not node.is_running:
            node.start()
    return Flow(engine, cast(Any, sources), target, unique)


def replicated(flow: Flow, **remote: str) -> str:
    """A topic whose preferred leader is broker 1, its remote topic and the topics of the flow."""
    topic = f"{flow.name}-t"
    Topics(flow.source).create(topic, assignment=[[1, 2]], unclean__leader__election__enable="true", retention__ms="-1")
    create(flow.target, flow.remote(topic), 1, retention__ms="-1", **remote)
    create(flow.target, flow.offsets_topic, 5, **_LEDGER)
    create(flow.target, flow.ledger_topic, 1, **_LEDGER)
    return topic


def unreplicated(flow: Flow) -> str:
    """The same on a source of one broker."""
    create(flow.source, f"{flow.name}-t", 1, retention__ms="-1")
    return replicated(flow)


def kill_workers() -> None:
    for worker in workers():
        worker.send_signal(signal.SIGKILL)


def values(what: str, count: int) -> list[bytes]:
    return [f"{what} {index}".encode() for index in range(count)]


def on_target(flow: Flow, topic: str) -> list[bytes | None]:
    return [record.value for record in read(flow.target, flow.remote(topic))]


def entry_of(flow: Flow, topic: str) -> Entry:
    entry = flow.ledger().entry(TopicPartition(topic, 0))
    assert entry is not None
    return entry


def copied(job: Any, topic: str, position: int) -> Callable[[], bool]:
    tp = TopicPartition(topic, 0)
    return lambda: tp in rows_of(job) and rows_of(job)[tp].position >= position


def spec_of(flow: Flow, topic: str, **changes: Any) -> CopySpec:
    return flow.spec(topic, syncs=None, **changes)


@pytest.mark.parametrize("stamps", ["CreateTime", "LogAppendTime"])
def test_a_crash_and_an_unclean_election_before_the_next_commit_lose_no_new_record(
    flow: Flow, sources: LocalCluster, stamps: str
) -> None:
    """What the predecessor copied and did not commit is not on the source any more; other records are, as many and more."""
    topic = replicated(flow, message__timestamp__type=stamps)
    spec = spec_of(flow, topic, commit_interval_ms=NEVER_MS)
    await_leader(sources, topic, 1, {1, 2})
    write(sources, topic, 0, values("kept", 100))
    with flow.copying(spec_of(flow, topic)) as job:
        eventually(copied(job, topic, 100), why=job.status)
    with flow.copying(spec) as job:

        def ghosts() -> None:
            write(sources, topic, 0, values("ghost", 300))
            eventually(copied(job, topic, 400), why=job.status)
            kill_workers()

        lose_the_end(sources, topic, ghosts)
        write(sources, topic, 0, values("new", 500))
        eventually(copied(job, topic, 600), 90, why=job.status)
    assert on_target(flow, topic) == [*values("kept", 100), *values("ghost", 300), *values("new", 500)]
    assert [lost[:3] for lost in entry_of(flow, topic).lost] == [(100, 400, "truncated")]


def test_a_source_that_was_set_back_and_written_to_before_it_is_read_again_loses_no_new_record(
    flow: Flow, tmp_path: Path
) -> None:
    """The log of the backup has the same leader epoch and other records; where it ends by now says nothing."""
    with LocalKafka("O", tmp_path / "o", heap="256m") as old:
        flow = replace(flow, source=old)
        topic = unreplicated(flow)
        spec = spec_of(flow, topic)
        write(old, topic, 0, values("kept", 100))
        with flow.copying(spec) as job:
            eventually(copied(job, topic, 100), why=job.status)
        old.stop()
        shutil.copytree(old.folder / "data", tmp_path / "backup")
        old.start()
        write(old, topic, 0, values("forgotten", 200))
        with flow.copying(spec) as job:
            eventually(copied(job, topic, 300), why=job.status)
        old.stop()
        shutil.rmtree(old.folder / "data")
        shutil.copytree(tmp_path / "backup", old.folder / "data")
        old.start()
        write(old, topic, 0, values("new", 150))
        with flow.copying(spec) as job:
            wanted = [*values("kept", 100), *values("forgotten", 200), *values("new", 150)]
            eventually(lambda: len(on_target(flow, topic)) >= len(wanted), why=job.status)
            eventually(lambda: entry_of(flow, topic).mark.source == 250, why=job.status)
        assert on_target(flow, topic) == wanted
        assert [lost[:3] for lost in entry_of(flow, topic).lost] == [(100, 300, "truncated")]
