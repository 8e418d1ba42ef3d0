"""The source's log changes while records are copied: elections that lose records, logs restored to an older state.

These tests run the copy engine without the rest of the program, so that a crash happens at an exact point.
"""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import ResourceType

from mm2.copy.driver.engine import CopyEngine, CopyJob
from mm2.copy.progress.session import LedgerEntry, Rules
from mm2.copy.spec import CopySpec
from mm2.kafka.records.batch import iter_batches
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import TopicPartition
from mm2.sandbox.kafka import LocalKafka, start_all, stop_all
from tests.faults.environment import Topics
from tests.faults.stale_metadata import StaleMetadata
from tests.faults.test_data import write
from tests.faults.test_leaders import await_leader, lose_the_end
from tests.integration.copy_flow import Flow, alter, create, read, rows_of
from tests.integration.spark_workers import workers
from tests.support.cluster import LocalCluster
from tests.support.java import OLD_VERSIONS
from tests.support.old_kafka import OldKafka, OldZooKeeper
from tests.support.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

#: No commit after the first one of a session, so that everything is uncommitted at a crash.
NEVER_MS = 3_600_000
_START_S = 180.0 * PATIENCE
_LEDGER = {"cleanup__policy": "compact"}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    made = LocalCluster("S", tmp_path_factory.mktemp("sources"), heap="256m")
    try:
        yield made.start(_START_S)
    finally:
        made.stop()


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    made = LocalKafka("T", tmp_path_factory.mktemp("target"), heap="384m")
    try:
        yield made.start(_START_S)
    finally:
        made.stop()


@pytest.fixture
def flow(engine: CopyEngine, sources: LocalCluster, target: LocalKafka, unique: str) -> Flow:
    """A flow from a cluster of two brokers."""
    for node in sources.nodes:
        if not node.is_running:
            node.start(_START_S)
    return Flow(engine, cast(Any, sources), target, unique)


@pytest.fixture
def within(engine: CopyEngine, target: LocalKafka, unique: str) -> Flow:
    """A flow from the target to itself, for tests that need one broker only."""
    return Flow(engine, target, target, unique)


def replicated(flow: Flow, **remote: str) -> str:
    """Create a topic whose preferred leader is broker 1, its remote topic and the internal topics of the flow."""
    topic = f"{flow.name}-t"
    Topics(flow.source).create(topic, assignment=[[1, 2]], unclean__leader__election__enable="true", retention__ms="-1")
    create(flow.target, flow.remote(topic), 1, retention__ms="-1", **remote)
    create(flow.target, flow.offsets_topic, 5, **_LEDGER)
    create(flow.target, flow.ledger_topic, 1, **_LEDGER)
    return topic


def unreplicated(flow: Flow) -> str:
    """Create the same topics with a source of one broker."""
    create(flow.source, f"{flow.name}-t", 1, retention__ms="-1")
    return replicated(flow)


def kill_workers() -> None:
    for worker in workers():
        worker.send_signal(signal.SIGKILL)


def values(what: str, count: int) -> list[bytes]:
    return [f"{what} {index}".encode() for index in range(count)]


def on_target(flow: Flow, topic: str) -> list[bytes | None]:
    return [record.value for record in read(flow.target, flow.remote(topic))]


def entry_of(flow: Flow, topic: str) -> LedgerEntry:
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
    """The source lost the records that were copied and not committed; it has more, different records instead."""
    topic = replicated(flow, message__timestamp__type=stamps)
    spec = spec_of(flow, topic, commit_interval_ms=NEVER_MS)
    await_leader(sources, topic, 1, {1, 2})
    write(sources, topic, 0, values("kept", 100))
    with flow.copying(spec_of(flow, topic)) as job:
        wait_until(copied(job, topic, 100), detail=job.status)
    with flow.copying(spec) as job:

        def ghosts() -> None:
            write(sources, topic, 0, values("ghost", 300))
            wait_until(copied(job, topic, 400), detail=job.status)
            kill_workers()

        lose_the_end(sources, topic, ghosts)
        write(sources, topic, 0, values("new", 500))
        wait_until(copied(job, topic, 600), 90, detail=job.status)
    assert on_target(flow, topic) == [*values("kept", 100), *values("ghost", 300), *values("new", 500)]
    assert [lost[:3] for lost in entry_of(flow, topic).lost] == [(100, 400, "truncated")]


@pytest.mark.parametrize(("starts", "new"), [(1, 150), (2, 350)], ids=["same epoch", "older epoch and more records"])
def test_a_source_restored_to_an_older_state_and_written_to_before_it_is_read_loses_no_new_record(
    within: Flow, tmp_path: Path, starts: int, new: int
) -> None:
    """Each start is a leader epoch. The restored log has different records; its log end offset does not show the loss.

    With an older epoch the broker returns OFFSET_OUT_OF_RANGE for an offset that is in its log.
    """
    old = LocalKafka("O", tmp_path / "o", heap="256m").start(_START_S)
    try:
        flow = replace(within, source=old)
        topic = unreplicated(flow)
        spec = spec_of(flow, topic)
        write(old, topic, 0, values("kept", 100))
        with flow.copying(spec) as job:
            wait_until(copied(job, topic, 100), detail=job.status)
        old.stop()
        shutil.copytree(old.folder / "data", tmp_path / "backup")
        for _ in range(starts):
            old.stop()
            old.start(_START_S)
        write(old, topic, 0, values("forgotten", 200))
        with flow.copying(spec) as job:
            wait_until(copied(job, topic, 300), detail=job.status)
        old.stop()
        shutil.rmtree(old.folder / "data")
        shutil.copytree(tmp_path / "backup", old.folder / "data")
        old.start(_START_S)
        write(old, topic, 0, values("new", new))
        with flow.copying(spec) as job:
            wanted = [*values("kept", 100), *values("forgotten", 200), *values("new", new)]
            wait_until(lambda: len(on_target(flow, topic)) >= len(wanted), detail=job.status)
            wait_until(lambda: entry_of(flow, topic).mark.source == 100 + new, detail=job.status)
        assert on_target(flow, topic) == wanted
        assert [lost[:3] for lost in entry_of(flow, topic).lost] == [(100, 300, "truncated")]
    finally:
        old.stop()


@pytest.mark.parametrize("then_committed", [True, False], ids=["to read_committed", "to read_uncommitted"])
def test_an_isolation_level_changed_across_a_crash_causes_no_loss_or_duplicate(
    within: Flow, then_committed: bool
) -> None:
    """The records of the predecessor were counted under the old isolation level."""
    flow = within
    topic = unreplicated(flow)
    tp = TopicPartition(topic, 0)
    before = spec_of(flow, topic, commit_interval_ms=NEVER_MS, read_committed=not then_committed)
    transaction(flow, topic, "one", 100)
    transaction(flow, topic, "two", 100, abort=True)
    transaction(flow, topic, "three", 100)
    with flow.copying(before) as job:
        wait_until(copied(job, topic, 303), detail=job.status)
        crashed = flow.ledger().start(tp, None)  # the state that a crash leaves: a stop commits
    assert crashed.entry is not None
    assert crashed.entry.mark.source == 0
    transaction(flow, topic, "four", 100, abort=True)
    transaction(flow, topic, "five", 100)
    after = replace(before, read_committed=then_committed, commit_interval_ms=1000)
    job = flow.engine.open(after, lambda _: {tp: crashed}, dict)
    try:
        wait_until(copied(job, topic, 505), detail=job.status)
    finally:
        assert job.stop(20)
    first = [*values("one", 100), *values("two", 100), *values("three", 100)]
    if not then_committed:
        first = [*values("one", 100), *values("three", 100)]
    second = values("five", 100) if then_committed else [*values("four", 100), *values("five", 100)]
    assert on_target(flow, topic) == first + second
    entry = entry_of(flow, topic)
    assert entry.session is not None
    assert (entry.session.start.source, entry.session.rules) == (302, str(Rules(read_committed=then_committed)))


def transaction(flow: Flow, topic: str, what: str, count: int, *, abort: bool = False) -> None:
    producer = Producer({"bootstrap.servers": flow.source.bootstrap, "transactional.id": f"{topic}-{what}"})
    producer.init_transactions(60)
    producer.begin_transaction()
    for value in values(what, count):
        producer.produce(topic, value, b"k", 0)
    producer.flush(30)
    if abort:
        producer.abort_transaction(60)
    else:
        producer.commit_transaction(60)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    """A broker that the test may stop."""
    broker = LocalKafka("H", tmp_path_factory.mktemp("own"), heap="256m")
    try:
        yield broker.start(_START_S)
    finally:
        broker.stop()


@pytest.fixture(scope="module")
def stale(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalKafka, StaleMetadata]]:
    """A broker that advertises the address of a proxy, and the proxy."""
    listeners = {"PLAINTEXT": "PLAINTEXT", "PROXIED": "PLAINTEXT"}
    broker = LocalKafka("M", tmp_path_factory.mktemp("stale"), listeners=listeners, proxied=["PROXIED"], heap="256m")
    try:
        broker.start(_START_S)
        with StaleMetadata(broker.advertised("PROXIED"), broker.address("PROXIED")) as proxy:
            yield broker, proxy
    finally:
        broker.stop()


def recreate_topic(broker: LocalKafka, topic: str) -> None:
    topics = Topics(broker)
    topics.delete(topic)

    def created() -> bool:
        try:
            topics.create(topic, retention__ms="-1")
        except KafkaException as error:  # brokers before KRaft delete a topic after metadata omits it
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
            return False
        return True

    wait_until(created, _START_S, what="creation of the topic")


def through(broker: LocalKafka) -> ClientSettings:
    return ClientSettings.from_props({"bootstrap.servers": broker.advertised("PROXIED")}, client_id="stale")


def cut_until(proxy: StaleMetadata, condition: Callable[[], bool], job: CopyJob) -> None:
    """Close the connections repeatedly: after each time, a client may request other topics than before."""
    cut_s = 0.0

    def met() -> bool:
        nonlocal cut_s
        if time.monotonic() > cut_s + 5:
            proxy.cut()
            cut_s = time.monotonic()
        return condition()

    wait_until(met, detail=job.status)


def test_stale_metadata_do_not_rewind_a_source_topic_that_was_created_again(
    within: Flow, stale: tuple[LocalKafka, StaleMetadata]
) -> None:
    """Metadata responses alternate between the old and the new topic id."""
    broker, proxy = stale
    flow = replace(within, source=broker)
    topic = unreplicated(flow)
    spec = spec_of(flow, topic, source=through(broker))
    write(broker, topic, 0, values("first", 100))
    with flow.copying(spec) as job:
        wait_until(copied(job, topic, 100), detail=job.status)
        assert proxy.remember()
        recreate_topic(broker, topic)
        write(broker, topic, 0, values("second", 50))
        wait_until(lambda: len(on_target(flow, topic)) == 150, 90, detail=job.status)
        wait_until(lambda: entry_of(flow, topic).mark.source == 50, detail=job.status)
        for _ in range(3):
            before = proxy.replayed
            proxy.replay(2)
            cut_until(proxy, lambda: proxy.replayed > before, job)  # noqa: B023
            proxy.replay(0)
            time.sleep(1)  # long enough for a wrong rewind
        write(broker, topic, 0, values("third", 50))
        wait_until(copied(job, topic, 100), 90, detail=job.status)
    assert on_target(flow, topic) == [*values("first", 100), *values("second", 50), *values("third", 50)]


def test_stale_metadata_do_not_stop_a_remote_topic_that_was_created_again(
    within: Flow, stale: tuple[LocalKafka, StaleMetadata]
) -> None:
    broker, proxy = stale
    flow = replace(within, source=within.target, target=broker)
    topic = unreplicated(flow)
    tp = TopicPartition(topic, 0)
    spec = spec_of(flow, topic, target=through(broker))
    write(flow.source, topic, 0, values("record", 100))
    with flow.copying(spec) as job:
        wait_until(copied(job, topic, 100), detail=job.status)
        every = (
            flow.remote(topic),
            flow.ledger_topic,
            flow.offsets_topic,
        )  # which a client asks for after it was cut off
        cut_until(proxy, lambda: bool(proxy.remember()) and proxy.remembers(*every), job)
    recreate_topic(broker, flow.remote(topic))
    with flow.copying(spec, {tp: None}) as job:  # its position was reset
        wait_until(copied(job, topic, 100), detail=job.status)
    proxy.replay(4)  # the first Metadata requests of the next job
    with flow.copying(spec) as job:
        wait_until(lambda: proxy.replayed, detail=job.status)
        write(flow.source, topic, 0, values("more", 50))
        wait_until(copied(job, topic, 150), 90, detail=job.status)
        before = proxy.replayed
        proxy.replay(2)
        write(flow.source, topic, 0, values("last", 50))
        cut_until(proxy, lambda: proxy.replayed > before, job)
        proxy.replay(0)
        wait_until(copied(job, topic, 200), 90, detail=job.status)
    assert on_target(flow, topic) == [*values("record", 100), *values("more", 50), *values("last", 50)]


@dataclass(frozen=True)
class BrokerList:
    """Bootstrap servers of several brokers of one cluster."""

    bootstrap: str


def led(broker: Any, topic: str) -> tuple[int, set[int]]:
    """Leader and in-sync replicas; (-1, empty) while a broker that has just started does not know them."""
    try:
        return Topics(broker).leader(topic)
    except (KafkaException, KeyError):
        return -1, set()


@pytest.mark.parametrize("version", OLD_VERSIONS)
def test_an_old_source_that_lost_its_end_and_was_written_to_loses_no_new_record(
    within: Flow, tmp_path: Path, version: str
) -> None:
    """Fetch below version 12 does not compare epochs: the client must (KIP-320), here before its first Fetch."""
    zookeeper = OldZooKeeper(version, tmp_path / "zookeeper").start(_START_S)
    one, two = (
        OldKafka(version, f"O{node}", tmp_path / str(node), node_id=node, zookeeper=zookeeper) for node in (1, 2)
    )
    try:
        start_all([one, two], _START_S)
        both: Any = BrokerList(f"{one.bootstrap},{two.bootstrap}")
        flow = replace(within, source=both)
        topic = replicated(flow)
        spec = spec_of(flow, topic)
        wait_until(lambda: led(both, topic) == (1, {1, 2}), _START_S, what="both replicas in sync")
        write(both, topic, 0, values("kept", 100))
        two.stop()
        write(one, topic, 0, values("ghost", 100))  # acknowledged once the other replica is out of sync
        with flow.copying(spec) as job:
            wait_until(copied(job, topic, 200), 90, detail=job.status)
        one.stop()
        two.start(_START_S)
        wait_until(lambda: led(two, topic)[0] == 2, _START_S, what="an unclean election")
        write(two, topic, 0, values("new", 150))
        wanted = [*values("kept", 100), *values("ghost", 100), *values("new", 150)]
        with flow.copying(spec) as job:
            wait_until(lambda: len(on_target(flow, topic)) >= len(wanted), 90, detail=job.status)
            wait_until(lambda: entry_of(flow, topic).mark.source == 250, detail=job.status)
        assert on_target(flow, topic) == wanted
        assert [lost[:3] for lost in entry_of(flow, topic).lost] == [(100, 200, "truncated")]
    finally:
        stop_all([one, two])
        zookeeper.stop()


@pytest.mark.parametrize("version", OLD_VERSIONS)
def test_an_old_source_topic_that_was_created_again_is_copied_from_its_start(
    within: Flow, tmp_path: Path, version: str
) -> None:
    """Without topic ids it is detected because the log of the same leader epoch ends below the position."""
    old = OldKafka(version, "O", tmp_path / "o")
    try:
        flow = replace(within, source=old.start(_START_S))
        topic = unreplicated(flow)
        spec = spec_of(flow, topic)
        write(old, topic, 0, values("first", 100))
        with flow.copying(spec) as job:
            wait_until(copied(job, topic, 100), 90, detail=job.status)
        recreate_topic(old, topic)
        write(old, topic, 0, values("again", 80))  # before the next job reads it
        wanted = [*values("first", 100), *values("again", 80)]
        with flow.copying(spec) as job:
            wait_until(lambda: len(on_target(flow, topic)) >= len(wanted), 90, detail=job.status)
            wait_until(lambda: entry_of(flow, topic).mark.source == 80, detail=job.status)
            recreate_topic(old, topic)  # while the job reads it
            write(old, topic, 0, values("once more", 60))
            wanted += values("once more", 60)
            wait_until(lambda: len(on_target(flow, topic)) >= len(wanted), 90, detail=job.status)
        assert on_target(flow, topic) == wanted
    finally:
        old.stop()


@pytest.mark.parametrize("policy", ["delete", "compact", "compact,delete"])
def test_a_hole_in_a_log_that_is_not_compacted_is_reported_as_missing(
    within: Flow, own: LocalKafka, policy: str
) -> None:
    broker = own
    flow = replace(within, source=broker)
    topic = unreplicated(flow)
    alter(broker, ResourceType.TOPIC, topic, "cleanup.policy", policy)
    for what in ("one", "two", "three"):
        write(broker, topic, 0, values(what, 10))
    broker.stop()
    cut_out(broker, topic, 10)
    broker.start(_START_S)
    with flow.copying(spec_of(flow, topic)) as job:
        wait_until(copied(job, topic, 30), 90, detail=job.status)
        wait_until(lambda: entry_of(flow, topic).mark.source == 30, detail=job.status)
    assert on_target(flow, topic) == [*values("one", 10), *values("three", 10)]
    assert entry_of(flow, topic).gaps == {"missing" if policy == "delete" else "compacted": 10}


def cut_out(broker: LocalKafka, topic: str, offset: int) -> None:
    """Remove the batch at an offset from the log of a stopped broker, and make it recover the log at its next start."""
    folder = broker.folder / "data" / f"{topic}-0"
    (segment,) = folder.glob("*.log")
    data = segment.read_bytes()
    kept = b"".join(bytes(view.data) for view in iter_batches(memoryview(data)) if view.base_offset != offset)
    assert 0 < len(kept) < len(data)
    segment.write_bytes(kept)
    for path in (*folder.glob("*index"), *folder.glob("*.snapshot")):
        path.unlink()
    for name in (".kafka_cleanshutdown", "recovery-point-offset-checkpoint"):
        (broker.folder / "data" / name).unlink()
