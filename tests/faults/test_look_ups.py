"""Look-ups on targets that assign no producer id, or whose log end was emptied by compaction."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import httpx
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from mm2.copy.driver.engine import CopyEngine
from mm2.copy.progress.written_positions import offset_key, offset_value
from mm2.copy.spec import TransactionsSpec
from mm2.kafka.producer.partitioner import partition_for
from mm2.kafka.records.batch import iter_batches
from mm2.kafka.structs import TopicPartition
from mm2.sandbox.kafka import LocalKafka
from mm2.sandbox.ports import free_ports
from tests.faults.environment import Topics
from tests.faults.test_data import write
from tests.faults.test_source_history import (
    NEVER_MS,
    copied,
    entry_of,
    kill_workers,
    on_target,
    spec_of,
    unreplicated,
    values,
)
from tests.integration.asking import asked
from tests.integration.copy.test_merges import records_of
from tests.integration.copy_flow import (
    CONNECTOR,
    Flow,
    admin_of,
    alter,
    batches,
    create,
    end_offset,
    producer_of,
    read,
    rows_of,
)
from tests.integration.mirror.test_merged_topics import Merge
from tests.integration.mirror_process import MirrorProcess, ends, records, table, write_config
from tests.support.access import OPEN
from tests.support.old_kafka import OldKafka
from tests.support.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

_START_S = 180.0 * PATIENCE
_OLD_MS = 1_600_000_000_000
_AUTHORIZERS = {
    "2.1.1": "kafka.security.auth.SimpleAclAuthorizer",
    "2.6.3": "kafka.security.authorizer.AclAuthorizer",
}


@pytest.fixture
def source(tmp_path: Path) -> Iterator[LocalKafka]:
    broker = LocalKafka("S", tmp_path / "source", heap="256m")
    try:
        yield broker.start(_START_S)
    finally:
        broker.stop()


@pytest.mark.parametrize("version", list(_AUTHORIZERS))
def test_an_old_target_that_assigns_no_producer_id_is_copied_at_least_once(
    engine: CopyEngine, source: LocalKafka, tmp_path: Path, unique: str, version: str
) -> None:
    """Before Kafka 2.8 InitProducerId needs IDEMPOTENT_WRITE on the cluster (KIP-679)."""
    settings = {"authorizer.class.name": _AUTHORIZERS[version], "allow.everyone.if.no.acl.found": "true"}
    old = OldKafka(version, "T", tmp_path / "target", overrides=settings)
    try:
        flow = Flow(engine, source, old.start(_START_S), unique)
        allow_all_but_idempotent_write(old)
        topic = unreplicated(flow)
        spec = spec_of(flow, topic)
        write(source, topic, 0, values("first", 100))
        with flow.copying(spec) as job:
            wait_until(copied(job, topic, 100), 90, detail=job.status)
            row = rows_of(job)[TopicPartition(topic, 0)]
            assert (row.state, row.reason.partition(":")[0]) == ("RUNNING", "at least once")
            assert "CLUSTER_AUTHORIZATION_FAILED" in row.reason
        write(source, topic, 0, values("second", 100))
        with flow.copying(spec) as job:
            wait_until(copied(job, topic, 200), 90, detail=job.status)
            kill_workers()
            write(source, topic, 0, values("third", 100))
            wait_until(copied(job, topic, 300), 120, detail=job.status)
        # The order of first appearances is that of the source. Nothing is missing; a crash may repeat records.
        found = list(dict.fromkeys(on_target(flow, topic)))
        assert found == [*values("first", 100), *values("second", 100), *values("third", 100)]
    finally:
        old.stop()


def allow_all_but_idempotent_write(broker: LocalKafka) -> None:
    """For the principal of all connections without authentication; DENY has priority over ALLOW."""
    rules = [
        AclBinding(
            ResourceType.BROKER,
            "kafka-cluster",
            ResourcePatternType.LITERAL,
            "User:ANONYMOUS",
            "*",
            operation,
            permission,
        )
        for operation, permission in (
            (AclOperation.ALL, AclPermissionType.ALLOW),
            (AclOperation.IDEMPOTENT_WRITE, AclPermissionType.DENY),
        )
    ]
    for done in admin_of(broker).create_acls(rules).values():
        done.result(30 * PATIENCE)


def test_a_look_up_ends_where_compaction_emptied_the_end_of_the_target(
    engine: CopyEngine, source: LocalKafka, tmp_path: Path, unique: str
) -> None:
    """The active segment is empty and the last batches before it are gone, so Fetch returns nothing below the end.

    The records are old, so that the broker forgets the producer and the look-up has to read the log.
    """
    forgetful = {"producer.id.expiration.check.interval.ms": "1000", "producer.id.expiration.ms": "60000"}
    target = LocalKafka("T", tmp_path / "target", overrides=forgetful, heap="256m")
    try:
        flow = Flow(engine, source, target.start(_START_S), unique)
        topic = unreplicated(flow)
        spec = spec_of(flow, topic, commit_interval_ms=NEVER_MS)
        write_old(source, topic, values("first", 50))
        with flow.copying(spec, stop_s=90) as job:
            wait_until(copied(job, topic, 50), 90, detail=job.status)
            write_old(source, topic, values("second", 50))
            wait_until(lambda: len(on_target(flow, topic)) == 100, 90, detail=job.status)
            kill_workers()
            target.stop()  # before the look-up of a successor
        alter_when_stopped(target, flow.remote(topic))
        target.start(_START_S)
        alter(target, ResourceType.TOPIC, flow.remote(topic), "cleanup.policy", "compact")
        left = [header.last_offset for header, _ in batches(target, flow.remote(topic))]
        assert (left[-1], end_offset(target, flow.remote(topic))) == (49, 100), "no record is below the end"
        write_old(source, topic, values("third", 50))
        with flow.copying(spec) as job:
            wait_until(copied(job, topic, 150), 90, detail=job.status)
        assert on_target(flow, topic)[:50] == values("first", 50)
        assert set(on_target(flow, topic)) == {*values("first", 50), *values("second", 50), *values("third", 50)}
    finally:
        target.stop()


def write_old(broker: LocalKafka, topic: str, records: list[bytes]) -> None:
    """Write one batch with timestamps that are years old."""
    producer = producer_of(broker, linger__ms=200)
    for value in records:
        producer.produce(topic, value, key=value, partition=0, timestamp=_OLD_MS)
    assert producer.flush(30) == 0


def alter_when_stopped(broker: LocalKafka, topic: str) -> None:
    """Remove the last batch of the log and add an empty active segment after it, as compaction can do."""
    folder = broker.folder / "data" / f"{topic}-0"
    (segment,) = folder.glob("*.log")
    views = list(iter_batches(memoryview(segment.read_bytes())))
    last = views[-1].header
    assert last is not None
    kept = b"".join(bytes(view.data) for view in views[:-1])
    assert kept
    segment.write_bytes(kept)
    for path in (*folder.glob("*index"), *folder.glob("*.snapshot")):
        path.unlink()
    (folder / f"{last.last_offset + 1:020d}.log").touch()
    for name in (".kafka_cleanshutdown", "recovery-point-offset-checkpoint"):
        (broker.folder / "data" / name).unlink(missing_ok=True)


def test_a_target_whose_lost_end_another_program_has_filled_gets_the_lost_records_again(
    engine: CopyEngine, source: LocalKafka, tmp_path: Path, unique: str
) -> None:
    """The directories of target partitions are put back, and a program appends fewer, as many or more records than were lost.

    The end of the log alone does not show it. With records of the present the broker remembers the producer, with old ones not.
    """
    target = LocalKafka("T", tmp_path / "target", overrides={"producer.id.expiration.check.interval.ms": "1000"})
    try:
        flow = Flow(engine, source, target.start(_START_S), unique)
        cases = {(age, appended): f"{age}-{appended}" for age in ("old", "young") for appended in (300, 600, 800)}
        topics = {case: flow.topic(suffix) for case, suffix in cases.items()}
        spec = flow.spec(*topics.values(), syncs=None)

        def write_all(what: str, count: int) -> None:
            for (age, _), topic in topics.items():
                write_aged(source, topic, values(what, count), is_old=age == "old")

        write_all("kept", 400)
        with flow.copying(spec) as job:
            flow.wait_until_copied(job, spec)
        with put_back(target, [flow.remote(topic) for topic in topics.values()], tmp_path / "backup"):
            write_all("lost", 600)
            with flow.copying(spec) as job:
                flow.wait_until_copied(job, spec)
        for (age, appended), topic in topics.items():
            assert end_offset(target, flow.remote(topic)) == 400, "the end is lost"
            write_aged(target, flow.remote(topic), values("foreign", appended), is_old=age == "old")
        write_all("new", 100)
        with flow.copying(spec, stop_s=60) as job:
            flow.wait_until_copied(job, spec)
        wanted = [*values("kept", 400), *values("lost", 600), *values("new", 100)]
        left = {cases[case]: _missing_and_twice(flow, topic, wanted) for case, topic in topics.items()}
        assert left == dict.fromkeys(cases.values(), (0, 0))
        for (_, appended), topic in topics.items():
            found = on_target(flow, topic)
            assert [value for value in found if value and not value.startswith(b"foreign")] == wanted, "in order"
            assert entry_of(flow, topic).foreign == appended
    finally:
        target.stop()


def test_in_transactions_a_lost_end_that_another_program_has_filled_stops_the_partition(
    engine: CopyEngine, source: LocalKafka, tmp_path: Path, unique: str
) -> None:
    """Given a lost end that another program has filled in part, as far as the position, or further; validates the state with the numbers
    when the flow starts, that nothing is written, and that a reset copies all again.
    """
    target = LocalKafka("T", tmp_path / "target")
    try:
        flow = Flow(engine, source, target.start(_START_S), unique)
        cases = {case: flow.topic(case) for case in ("none", "fewer", "as-many", "more")}
        remote = [flow.remote(topic) for topic in cases.values()]
        spec = flow.spec(*cases.values(), syncs=None, transactions=TransactionsSpec(f"{unique}-0", 60_000, None))

        def write_all(what: str, count: int) -> None:
            for topic in cases.values():
                write(source, topic, 0, values(what, count))

        write_all("kept", 400)
        with flow.copying(spec) as job:
            flow.wait_until_copied(job, spec)
        with put_back(target, remote, tmp_path / "backup"):
            write_all("lost", 600)
            with flow.copying(spec) as job:
                flow.wait_until_copied(job, spec)
            # The marker after the last record may not be there yet.
            reached = {case: read(target, flow.remote(topic), 0)[-1].offset + 1 for case, topic in cases.items()}
        filled = {}
        for case, topic in cases.items():
            end = end_offset(target, flow.remote(topic))
            assert 400 < end < 500, "the end is lost"
            count = {"none": 0, "fewer": 300, "as-many": reached[case] - end, "more": 800}[case]
            if count:
                write(target, flow.remote(topic), 0, values("foreign", count))
            filled[case] = end + count
        write_all("new", 100)
        lost = {case: TopicPartition(topic, 0) for case, topic in cases.items() if case != "none"}
        with flow.copying(spec, stop_s=60) as job:
            wait_until(copied(job, cases["none"], 1_100), 90, detail=job.status)
            wait_until(
                lambda: {rows_of(job)[tp].state for tp in lost.values()} == {"INCONSISTENT"}, 90, detail=job.progress
            )
            for case, tp in lost.items():
                at = min(filled[case], reached[case]) - 1
                assert re.search(
                    f"a record of producer id \\d+ at offset {at}, where a record of producer id \\d+ was committed",
                    rows_of(job)[tp].reason,
                )
                assert f"copying had reached offset {reached[case]}:" in rows_of(job)[tp].reason
        assert on_target(flow, cases["none"]) == [*values("kept", 400), *values("lost", 600), *values("new", 100)]
        for case, tp in lost.items():
            assert end_offset(target, flow.remote(tp.topic)) == filled[case], "nothing is written"
        producer = producer_of(target)
        for tp in lost.values():
            key = offset_key(CONNECTOR, "A", tp)
            producer.produce(flow.offsets_topic, offset_value(400), key, partition_for(key, 5))
        assert producer.flush(30) == 0
        with flow.copying(spec, stop_s=60) as job:
            flow.wait_until_copied(job, spec)
        wanted = [*values("kept", 400), *values("lost", 600), *values("new", 100)]
        for topic in cases.values():
            assert [one for one in on_target(flow, topic) if one and not one.startswith(b"foreign")] == wanted
    finally:
        target.stop()


@pytest.mark.parametrize("mode", ["sessions", "transactions"])
def test_a_flow_at_rest_reports_a_recreated_remote_topic_and_copies_what_the_target_has_lost(
    engine: CopyEngine, source: LocalKafka, tmp_path: Path, unique: str, mode: str
) -> None:
    """No record arrives, so no acknowledgement would show it."""
    target = LocalKafka("T", tmp_path / "target")
    try:
        flow = Flow(engine, source, target.start(_START_S), unique)
        cut, recreated = flow.topic("cut"), flow.topic("recreated")
        transactions = TransactionsSpec(f"{unique}-0", 60_000, None) if mode == "transactions" else None
        spec = flow.spec(cut, recreated, syncs=None, transactions=transactions)
        for topic in (cut, recreated):
            write(source, topic, 0, values("kept", 40))
        with flow.copying(spec, stop_s=60) as job:
            flow.wait_until_copied(job, spec)
            with put_back(target, [flow.remote(cut)], tmp_path / "backup"):
                write(source, cut, 0, values("lost", 60))
                flow.wait_until_copied(job, spec)
            wait_until(lambda: len(on_target(flow, cut)) == 100, 60, detail=job.status)
            Topics(target).delete(flow.remote(recreated))
            create(target, flow.remote(recreated), 1)
            is_reported = lambda: rows_of(job)[TopicPartition(recreated, 0)].state == "RECREATED"  # noqa: E731
            wait_until(is_reported, 30, detail=job.status)
            assert "40 records that were copied to it are lost" in rows_of(job)[TopicPartition(recreated, 0)].reason
        assert on_target(flow, cut) == [*values("kept", 40), *values("lost", 60)]
        assert on_target(flow, recreated) == []
    finally:
        target.stop()


def test_merged_topics_whose_target_lost_its_end_stop_and_name_the_positions_that_copy_it_again(
    source: LocalKafka, tmp_path: Path, unique: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The directory of a partition with the records of two topics is put back while no process runs."""
    target = LocalKafka("T", tmp_path / "target")
    process: MirrorProcess | None = None
    try:
        merge = Merge(source, target.start(_START_S), tmp_path, unique, "policy")
        (port,) = free_ports(1)
        file = merge.file(listeners=f"http://127.0.0.1:{port}", **OPEN)

        def copy(count: int, number: int) -> None:
            process = MirrorProcess(file, merge.files.log(number), "B")
            try:
                process.eventually(lambda: sum(ends(target, merge.remote)) >= 4 * count, 120)
                assert process.stop()[0] == 0
            finally:
                process.clean_up()

        merge.write(4_000)
        copy(4_000, 1)
        with put_back(target, [merge.remote], tmp_path / "backup"):
            merge.write(6_000, 4_000)
            copy(10_000, 2)
        assert ends(target, merge.remote) == [8_000, 20_000, 0], "the end is lost"
        process = MirrorProcess(file, merge.files.log(3), "B")

        def stopped() -> list[str]:
            flows = json.loads(asked(capsys, "status", file, merge.files.flow, "--json")[1])["flows"]
            found = [one for one in flows[0]["partitions"] if one["state"] == "LOST_RANGE"]
            return [one["reason"] for one in found]

        process.eventually(lambda: sum("To copy them again" in reason for reason in stopped()) == 2, 120)
        offsets = []
        for reason in stopped():
            assert "up to" in reason, reason
            assert "ends at offset 8000, where copying had reached offset 20000" in reason, reason
            named = re.search(r'position of ({.*?}) to ({"offset": \d+})', reason)
            assert named is not None, reason
            partition = json.loads(named[1])
            offsets.append({"partition": {"cluster": merge.alias, **partition}, "offset": json.loads(named[2])})
        found = {(one["partition"]["topic"], one["partition"]["partition"]) for one in offsets}
        assert found == {(topic, 0) for topic in merge.topics}, (
            "the end of partition 1 is another session's, which is no contradiction"
        )
        url = f"http://127.0.0.1:{port}/{merge.alias}/B/connectors/MirrorSourceConnector/offsets"
        assert asked(capsys, "stop", file, merge.files.flow, "--connector", "source")[0] == 0
        answer = httpx.patch(url, json={"offsets": offsets}, timeout=60)
        assert answer.status_code == 200, answer.text
        assert asked(capsys, "resume", file, merge.files.flow, "--connector", "source")[0] == 0
        process.eventually(lambda: sum(ends(target, merge.remote)) >= 40_000, 120)
        wanted = [one.value for one in records_of("", 0, 10_000)]
        assert merge.contents() == {(topic, index): wanted for topic in merge.topics for index in range(2)}
        process.eventually(lambda: not stopped(), 60)
    finally:
        if process is not None:
            process.clean_up()
        target.stop()


class Restored:
    """A flow of one topic, whose internal topics on the target lose records while no process runs."""

    def __init__(self, source: LocalKafka, target: LocalKafka, folder: Path, unique: str, mode: str) -> None:
        self.source, self.target, self.folder = source, target, folder
        self.alias, self.topic, self.rounds = f"S{unique}", f"{unique}-t", count(1)
        self.remote, self.offsets = f"{self.alias}.{self.topic}", f"mm2-offsets.{self.alias}.internal"
        self.ledger, self.flow = f"mm2-ledger.{self.alias}.internal", f"{self.alias}->B"
        self.wanted: list[bytes] = []
        self.process: MirrorProcess | None = None
        create(source, self.topic, 1)
        settings = {
            "clusters": f"{self.alias}, B",
            f"{self.alias}.bootstrap.servers": source.bootstrap,
            "B.bootstrap.servers": target.bootstrap,
            f"{self.flow}.enabled": "true",
            f"{self.flow}.topics": self.topic,
            f"B->{self.alias}.enabled": "false",
            "emit.heartbeats.enabled": "false",
            "offset.storage.partitions": "1",
            "B.exactly.once.source.support": mode,
        }
        self.file = write_config(folder / "mm2.properties", settings)

    def committed(self) -> int:
        found = [
            int(json.loads(value or b"{}").get("offset", -1)) for value, _ in table(self.target, self.offsets).values()
        ]
        return max(found, default=-1) + 1

    def copied(self) -> list[bytes | None]:
        return [record.value for record in records(self.target, self.remote)[0]]

    def start(self) -> MirrorProcess:
        self.process = MirrorProcess(self.file, self.folder / f"{next(self.rounds)}.log", "B")
        return self.process

    def copy(self, *names: str) -> MirrorProcess:
        process = self.start()
        for name in names:
            write(self.source, self.topic, 0, values(name, 100))
            self.wanted.extend(values(name, 100))
            process.eventually(lambda: self.committed() == len(self.wanted), 120)
        return process

    def close(self) -> None:
        if self.process is not None:
            self.process.clean_up()
        self.target.stop()


@pytest.mark.parametrize(
    ("mode", "loss"),
    [("disabled", "end"), ("enabled", "end"), ("enabled", "newest"), ("disabled", "topic"), ("enabled", "topic")],
)
def test_newest_positions_that_the_offsets_topic_has_lost_are_those_of_the_ledger(
    source: LocalKafka, tmp_path: Path, unique: str, mode: str, loss: str
) -> None:
    """Given an offsets topic that loses its end while no process runs, as after an unclean election, only its newest transaction, or
    everything; validates that its older position, or none, is not taken for one that a user has set, which would copy the records after
    it again.
    """
    target = LocalKafka("T", tmp_path / "target").start(_START_S)
    flow = Restored(source, target, tmp_path, unique, mode)
    try:
        process = flow.copy("kept")
        assert process.stop()[0] == 0
        if loss == "end":
            with put_back(target, [flow.offsets], tmp_path / "backup"):
                flow.copy("first", "second", "third").kill9(whole_family=True)
            assert flow.committed() == 100, "positions are lost"
        else:
            flow.copy("first", "second", "third").kill9(whole_family=True)
            if loss == "newest":
                target.stop()
                cut_newest_batch(target, flow.offsets)
                target.start(_START_S)
                assert 100 <= flow.committed() < 400, "positions are lost"
            else:
                Topics(target).delete(flow.offsets)
        process = flow.copy("new")
        assert flow.copied() == flow.wanted
        assert process.lines(event="The offsets topic has lost its newest positions, copying continues by the ledger.")
        assert not process.lines(event="The position was changed by a user or by Java and is used.")
        assert process.stop()[0] == 0
        process = flow.copy("last")
        assert flow.copied() == flow.wanted
        assert not process.lines(level="error")
    finally:
        flow.close()


def test_in_transactions_positions_that_the_ledger_has_lost_too_stop_the_partition(
    source: LocalKafka, tmp_path: Path, unique: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Given an offsets topic and a ledger that both lose their ends; validates that nothing is copied a second time, and the position
    with which the partition continues.
    """
    target = LocalKafka("T", tmp_path / "target").start(_START_S)
    flow = Restored(source, target, tmp_path, unique, "enabled")
    try:
        assert flow.copy("kept").stop()[0] == 0
        with put_back(target, [flow.offsets, flow.ledger], tmp_path / "backup"):
            flow.copy("first", "second").kill9(whole_family=True)
        assert flow.committed() == 100, "positions are lost"
        process = flow.start()

        def stopped() -> list[str]:
            flows = json.loads(asked(capsys, "status", flow.file, flow.flow, "--json")[1])["flows"]
            return [one["reason"] for one in flows[0]["partitions"] if one["state"] == "INCONSISTENT"]

        process.eventually(lambda: "set the position of this partition to offset 300" in stopped()[0], 120)
        assert "has 200 records from target offset" in stopped()[0]
        assert asked(capsys, "gaps", flow.file, flow.flow)[0] == 1
        assert flow.copied() == flow.wanted
        assert process.stop()[0] == 0
        key = offset_key("MirrorSourceConnector", flow.alias, TopicPartition(flow.topic, 0))
        producer = producer_of(target)
        producer.produce(flow.offsets, offset_value(300), key, 0)
        assert producer.flush(30) == 0
        flow.copy("new")
        assert flow.copied() == flow.wanted
    finally:
        flow.close()


def cut_newest_batch(broker: LocalKafka, topic: str) -> None:
    """Remove the newest record batch of partition 0 from the log of a stopped broker, and the markers after it."""
    folder = broker.folder / "data" / f"{topic}-0"
    segment = max(folder.glob("*.log"))
    views = list(iter_batches(memoryview(segment.read_bytes())))
    while views and (header := views.pop().header) is not None and header.is_control:
        pass
    segment.write_bytes(b"".join(bytes(view.data) for view in views))
    for path in (*folder.glob("*index"), *folder.glob("*.snapshot")):
        path.unlink()
    for name in (".kafka_cleanshutdown", "recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        (broker.folder / "data" / name).unlink(missing_ok=True)


def _missing_and_twice(flow: Flow, topic: str, wanted: list[bytes]) -> tuple[int, int]:
    found = on_target(flow, topic)
    return len(set(wanted) - set(found)), len(found) - len(set(found))


def write_aged(broker: LocalKafka, topic: str, records: list[bytes], *, is_old: bool) -> None:
    if is_old:
        write_old(broker, topic, records)
    else:
        write(broker, topic, 0, records)


@contextmanager
def put_back(broker: LocalKafka, topics: Iterable[str], folder: Path) -> Iterator[None]:
    """Restart a broker before and after the `with` block, and give the partitions 0 of topics the directories from before it."""
    broker.stop()
    for topic in topics:
        shutil.copytree(broker.folder / "data" / f"{topic}-0", folder / topic)
    broker.start(_START_S)
    yield
    broker.stop()
    for topic in topics:
        shutil.rmtree(broker.folder / "data" / f"{topic}-0")
        shutil.copytree(folder / topic, broker.folder / "data" / f"{topic}-0")
    for name in (".kafka_cleanshutdown", "recovery-point-offset-checkpoint"):
        (broker.folder / "data" / name).unlink(missing_ok=True)
    broker.start(_START_S)
