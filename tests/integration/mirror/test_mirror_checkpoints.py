import time
from collections.abc import Callable

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka import Producer as Client
from structlog.testing import capture_logs

from mm2.connect.api import RetriableError, SourceRecord, SourceTask
from mm2.kafka.admin import Admin
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.producer.producer import Producer
from mm2.kafka.records.record import Record
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import OffsetAndMetadata
from mm2.kafka.structs import TopicPartition as Mm2TopicPartition
from mm2.mirror.checkpoint_connector import MirrorCheckpointConnector
from mm2.mirror.checkpoint_task import MirrorCheckpointTask
from mm2.mirror.common.formats import Checkpoint, OffsetSync
from mm2.mirror.common.syncs_topic import syncs_topic
from mm2.mirror.groups.group_offsets import GroupOffsets
from mm2.reasons import OffsetReasonCode
from mm2.sandbox.kafka import LocalKafka
from tests.integration.mirror_flow import (
    admin,
    commit,
    committed,
    config_of,
    create,
    flow_props,
    partitions_of,
    read_all,
    running,
    running_task,
    write,
)
from tests.support.waiting import wait_until

#: Settings that sync groups' offsets to the target every second.
SYNCING = {"sync__group__offsets__enabled": "true", "sync__group__offsets__interval__seconds": "1"}


def props(a: LocalKafka, b: LocalKafka, unique: str, **more: str) -> dict[str, str]:
    # A unique source alias for each test, so that its checkpoints and offset syncs have their own topics.
    own = {
        "source__cluster__alias": unique,
        "target__cluster__alias": f"{unique}-B",
        "offset-syncs__topic__location": "source",
    }
    return flow_props("MirrorCheckpointConnector", a, b, groups=f"{unique}.*", topics=f"{unique}.*", **own, **more)


def task_props(a: LocalKafka, b: LocalKafka, unique: str, *groups: str, **more: str) -> dict[str, str]:
    return props(a, b, unique, **more) | {"task.index": "0", "task.assigned.groups": ",".join(groups or (unique,))}


def copied(broker: LocalKafka, unique: str, records: int, partitions: int = 1) -> None:
    """Create a remote topic with `count` records in its partition 0."""
    create(broker, f"{unique}.{unique}", partitions)
    write(broker, f"{unique}.{unique}", [(None, b"x")] * records, 0)


def mirrored(
    a: LocalKafka, b: LocalKafka, config: dict[str, str], unique: str, records: int, partitions: int = 1
) -> None:
    """Create a topic, its copy with that many records in partition 0, and the internal topics of the flow."""
    create(a, unique, partitions)
    create(a, syncs_topic(config))
    create(b, f"{unique}.checkpoints.internal")
    copied(b, unique, records, partitions)


def write_sync(broker: LocalKafka, config: dict[str, str], upstream: int, downstream: int, partition: int = 0) -> None:
    sync = OffsetSync(config["source.cluster.alias"], partition, upstream, downstream)
    write(broker, syncs_topic(config), [(sync.key(), sync.value())], 0)


def store(broker: LocalKafka, records: list[SourceRecord]) -> None:
    """Produce the records of a task, as Connect does."""
    cluster = Cluster(ClientSettings.from_props({"bootstrap.servers": broker.bootstrap}), name="B")
    producer = Producer(cluster)
    for record in records:
        wire = Record(record.key, record.value, (), record.timestamp)
        producer.send(record.topic, [wire], record.partition, timeout_s=10)
    cluster.close()


def polled(task: SourceTask, timeout_s: float = 20) -> list[Checkpoint]:
    """The checkpoints of the next poll that returns some."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if records := task.poll():
            return [Checkpoint.decode(record.key, record.value) for record in records]
    raise AssertionError("no checkpoint came")


def quiet(task: SourceTask, polls: int = 3) -> bool:
    return all(task.poll() is None for _ in range(polls))


def codes(task: MirrorCheckpointTask) -> dict[str, dict[Mm2TopicPartition, OffsetReasonCode]]:
    return {group: {tp: why.code for tp, why in found.items()} for group, found in task.reasons.items()}


def test_groups_are_found_and_assigned(kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str) -> None:
    create(kafka_a, unique, 2)
    create(kafka_a, f"other-{unique}")
    commit(kafka_a, f"{unique}-1", {(unique, 0): 0})
    commit(kafka_a, f"{unique}-elsewhere", {(f"other-{unique}", 0): 0})
    commit(kafka_a, f"not-{unique}", {(unique, 0): 0})
    with running(MirrorCheckpointConnector(), props(kafka_a, kafka_b, unique)) as (connector, context):
        assert context.reconfigured.wait(30)

        def groups(tasks: int = 1) -> list[str]:
            try:
                return [config["task.assigned.groups"] for config in connector.task_configs(tasks)]
            except RetriableError:
                return []

        assert groups() == [f"{unique}-1"]
        topic = f"{unique}.checkpoints.internal"
        wait_until(lambda: partitions_of(kafka_b, topic) == 1, 30, what="creation of the checkpoints topic")
        assert config_of(kafka_b, topic, "cleanup.policy") == "compact"
        commit(kafka_a, f"{unique}-2", {(unique, 1): 0})
        wait_until(lambda: groups(2) == [f"{unique}-1", f"{unique}-2"], 30, what="discovery of a new group")


def test_a_group_with_an_empty_id_is_skipped_and_reported(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str
) -> None:
    create(kafka_a, unique)
    commit(kafka_a, unique, {(unique, 0): 0})
    cluster = Cluster(ClientSettings.from_props({"bootstrap.servers": kafka_a.bootstrap}), name="A")
    tp = Mm2TopicPartition(unique, 0)
    try:
        assert Admin(cluster).alter_group_offsets("", {tp: OffsetAndMetadata(0)}) == {tp: None}
        config = props(kafka_a, kafka_b, unique) | {"groups": f"({unique}.*)?"}
        with capture_logs() as logs, running(MirrorCheckpointConnector(), config) as (connector, context):
            assert context.reconfigured.wait(30)
            assert [one["task.assigned.groups"] for one in connector.task_configs(2)] == [unique]
        warnings = [line["event"] for line in logs if line["log_level"] == "warning"]
        assert len([one for one in warnings if "empty id" in one]) == 1
    finally:
        admin(kafka_a).delete_consumer_groups([""])[""].result(30)
        cluster.close()


def test_committed_offsets_are_translated_conservatively_and_only_changes_are_emitted(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str
) -> None:
    config = task_props(kafka_a, kafka_b, unique)
    mirrored(kafka_a, kafka_b, config, unique, 110, 2)
    write_sync(kafka_a, config, 100, 57)
    commit(kafka_a, unique, {(unique, 0): 100, (unique, 1): 5})
    with running_task(MirrorCheckpointTask(), config) as task:
        (first,) = polled(task)
        assert first == Checkpoint(unique, f"{unique}.{unique}", 0, 100, 57, "")
        assert quiet(task, 2), "the same position is no news, and partition 1 has no sync"
        commit(kafka_a, unique, {(unique, 0): 150})
        (second,) = polled(task)
        assert second.downstream_offset == 58, "past a sync nothing is known but that it lies behind it"
        write_sync(kafka_a, config, 150, 107)
        (third,) = polled(task)
        assert (third.upstream_offset, third.downstream_offset) == (150, 107)
        commit(kafka_a, unique, {(unique, 0): 120})
        (rewound,) = polled(task)
        assert (rewound.upstream_offset, rewound.downstream_offset) == (120, 58), "a group that went back goes back"


def test_records_have_java_s_key_and_partition(kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str) -> None:
    config = task_props(kafka_a, kafka_b, unique)
    mirrored(kafka_a, kafka_b, config, unique, 3)
    write_sync(kafka_a, config, 3, 2)
    commit(kafka_a, unique, {(unique, 0): 3})
    with running_task(MirrorCheckpointTask(), config) as task:
        records: list[SourceRecord] = []
        wait_until(lambda: records or records.__iadd__(task.poll() or []), 30, what="a checkpoint")
    (record,) = records
    assert (record.topic, record.partition) == (f"{unique}.checkpoints.internal", 0)
    assert list(record.source_partition or ()) == ["partition", "topic", "group"]
    assert record.source_offset == {"offset": 0}
    store(kafka_b, records)
    assert read_all(kafka_b, record.topic) == [(record.key, record.value)]


def test_after_a_restart_stored_checkpoints_keep_groups_from_going_back(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str
) -> None:
    config = task_props(kafka_a, kafka_b, unique)
    mirrored(kafka_a, kafka_b, config, unique, 400)
    stored = Checkpoint(unique, f"{unique}.{unique}", 0, 250, 201)
    write(kafka_b, f"{unique}.checkpoints.internal", [(b"rubbish", b"x"), (stored.key(), stored.value())], 0)
    write_sync(kafka_a, config, 175, 175)
    commit(kafka_a, unique, {(unique, 0): 250})
    with running_task(MirrorCheckpointTask(), config) as task:
        assert quiet(task), "250 translates to 176 now, but 201 was written before"
        write_sync(kafka_a, config, 400, 376)
        commit(kafka_a, unique, {(unique, 0): 400})
        (after,) = polled(task)
        assert after.downstream_offset == 376


def test_a_group_reset_to_before_the_known_offsets_starts_at_the_start_of_the_copy(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str
) -> None:
    config = task_props(kafka_a, kafka_b, unique)
    mirrored(kafka_a, kafka_b, config, unique, 400)
    stored = Checkpoint(unique, f"{unique}.{unique}", 0, 250, 201)
    write(kafka_b, f"{unique}.checkpoints.internal", [(stored.key(), stored.value())], 0)
    write_sync(kafka_a, config, 175, 175)
    commit(kafka_a, unique, {(unique, 0): 100})
    with running_task(MirrorCheckpointTask(), config) as task:
        (found,) = polled(task)
        assert found == Checkpoint(unique, f"{unique}.{unique}", 0, 100, 0), "by 201 it would skip a hundred records"
        assert isinstance(task, MirrorCheckpointTask)
        assert task.reasons[unique][Mm2TopicPartition(unique, 0)].code is OffsetReasonCode.TOO_OLD
        assert quiet(task, 2)
        commit(kafka_a, unique, {(unique, 0): 175})
        (known,) = polled(task)
        assert known.downstream_offset == 175


def test_a_group_within_a_transaction_blocks_no_other_and_keeps_its_previous_offset(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str
) -> None:
    config = task_props(kafka_a, kafka_b, unique, unique, f"{unique}-other")
    mirrored(kafka_a, kafka_b, config, unique, 20)
    write_sync(kafka_a, config, 10, 7)
    for group in (unique, f"{unique}-other"):
        commit(kafka_a, group, {(unique, 0): 10})
    member = Consumer({"bootstrap.servers": kafka_a.bootstrap, "group.id": unique})
    dying = Client({"bootstrap.servers": kafka_a.bootstrap, "transactional.id": unique, "log_level": 0})
    dying.init_transactions(30)
    dying.begin_transaction()
    dying.send_offsets_to_transaction([TopicPartition(unique, 0, 15)], member.consumer_group_metadata(), 30)
    try:
        with running_task(MirrorCheckpointTask(), config) as task:
            found = polled(task)
            assert {(one.group, one.upstream_offset) for one in found} == {(unique, 10), (f"{unique}-other", 10)}
        with running(MirrorCheckpointConnector(), props(kafka_a, kafka_b, unique)) as (connector, context):
            assert context.reconfigured.wait(60)
            assert [one["task.assigned.groups"] for one in connector.task_configs(1)] == [f"{unique},{unique}-other"]
    finally:
        dying.abort_transaction(30)
        member.close()


def test_a_missing_offset_syncs_topic_is_awaited(kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str) -> None:
    config = task_props(kafka_a, kafka_b, unique)
    create(kafka_a, unique)
    create(kafka_b, f"{unique}.checkpoints.internal")
    copied(kafka_b, unique, 10)
    commit(kafka_a, unique, {(unique, 0): 9})
    with running_task(MirrorCheckpointTask(), config) as task:
        assert quiet(task, 2)
        create(kafka_a, syncs_topic(config))
        write_sync(kafka_a, config, 9, 4)
        (found,) = polled(task, 40)
        assert found.downstream_offset == 4


def test_idle_groups_on_the_target_follow_and_never_go_back(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str
) -> None:
    fresh, ahead, busy = (f"{unique}-{name}" for name in ("fresh", "ahead", "busy"))
    config = task_props(kafka_a, kafka_b, unique, fresh, ahead, busy, **SYNCING)
    remote = f"{unique}.{unique}"
    mirrored(kafka_a, kafka_b, config, unique, 20)
    write_sync(kafka_a, config, 10, 7)
    for group in (fresh, ahead, busy):
        commit(kafka_a, group, {(unique, 0): 10})
    commit(kafka_b, ahead, {(remote, 0): 8})
    consumer = Consumer({"bootstrap.servers": kafka_b.bootstrap, "group.id": busy, "enable.auto.commit": False})
    consumer.subscribe([remote])
    wait_until(lambda: consumer.poll(0.2) or consumer.assignment(), 30, what="a member in the busy group")
    try:
        with running_task(MirrorCheckpointTask(), config) as task:
            assert {checkpoint.group for checkpoint in polled(task)} == {fresh, ahead, busy}
            wait_until(
                lambda: committed(kafka_b, fresh, remote) == 7, 30, what="sync of a group that is new on the target"
            )
            write_sync(kafka_a, config, 20, 17)
            commit(kafka_a, fresh, {(unique, 0): 20})
            task.pause()
            assert polled(task)[0].downstream_offset == 17
            time.sleep(2.5)  # of intervals of a second
            assert committed(kafka_b, fresh, remote) == 7, "while its connector is paused a task does nothing"
            task.resume()
            follow = _polling(task, lambda: committed(kafka_b, fresh, remote) == 17)
            wait_until(follow, 30, what="sync of an idle group")
        assert committed(kafka_b, ahead, remote) == 8
        assert committed(kafka_b, busy, remote) == -1001
    finally:
        consumer.close()


def _polling(task: SourceTask, condition: Callable[[], bool]) -> Callable[[], bool]:
    def step() -> bool:
        task.poll()
        return condition()

    return step


def test_offset_syncs_of_a_deleted_copy_move_no_group_past_the_end(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str
) -> None:
    # The target was rebuilt. The source still has the offset syncs of the old one, and a group with a high offset.
    config = task_props(kafka_a, kafka_b, unique, **SYNCING)
    remote = f"{unique}.{unique}"
    mirrored(kafka_a, kafka_b, config, unique, 3)
    write_sync(kafka_a, config, 1_000, 1_000)
    commit(kafka_a, unique, {(unique, 0): 1_000})
    with running_task(MirrorCheckpointTask(), config) as task:
        assert quiet(task)
        assert isinstance(task, MirrorCheckpointTask)
        expected = {unique: {Mm2TopicPartition(unique, 0): OffsetReasonCode.ANOTHER_COPY}}
        wait_until(lambda: codes(task) == expected, 30, what="the reason")
        # Offset syncs of the new one, which starts at the oldest existing record.
        write_sync(kafka_a, config, 990, 0)
        (found,) = polled(task)
        assert found.downstream_offset == 1
        wait_until(
            _polling(task, lambda: committed(kafka_b, unique, remote) == 1),
            30,
            what="sync of the group, which is not ahead",
        )
        assert task.reasons == {}


def test_a_stored_checkpoint_past_the_end_of_the_copy_is_not_written(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str
) -> None:
    # The remote topic was recreated unnoticed and is not in the ledger: Java has copied it.
    config = task_props(kafka_a, kafka_b, unique, **SYNCING)
    remote = f"{unique}.{unique}"
    mirrored(kafka_a, kafka_b, config, unique, 3)
    stored = Checkpoint(unique, remote, 0, 1_000, 1_000)
    write(kafka_b, f"{unique}.checkpoints.internal", [(stored.key(), stored.value())], 0)
    write_sync(kafka_a, config, 1_000, 1_000)
    commit(kafka_a, unique, {(unique, 0): 1_000})
    with running_task(MirrorCheckpointTask(), config) as task:
        assert isinstance(task, MirrorCheckpointTask)
        expected = {unique: {Mm2TopicPartition(remote, 0): OffsetReasonCode.ANOTHER_COPY}}
        wait_until(_polling(task, lambda: codes(task) == expected), 30, what="the reason")
        assert committed(kafka_b, unique, remote) == -1001


def test_checkpoints_of_a_deleted_remote_topic_are_discarded(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str
) -> None:
    witness, other = f"{unique}-witness", f"{unique}-other"
    config = task_props(kafka_a, kafka_b, unique, unique, witness, **SYNCING)
    remote = f"{unique}.{unique}"
    mirrored(kafka_a, kafka_b, config, unique, 10)
    create(kafka_a, other)
    create(kafka_b, f"{unique}.{other}")
    write_sync(kafka_a, config, 10, 7)
    sync = OffsetSync(other, 0, 0, 0)
    write(kafka_a, syncs_topic(config), [(sync.key(), sync.value())], 0)
    commit(kafka_a, unique, {(unique, 0): 10})
    with running_task(MirrorCheckpointTask(), config) as task:
        wait_until(_polling(task, lambda: committed(kafka_b, unique, remote) == 7), 30, what="sync of the group")
        for done in admin(kafka_b).delete_topics([remote]).values():
            done.result(30)
        wait_until(lambda: not partitions_of(kafka_b, remote), 30, what="deletion")
        create(kafka_b, remote)
        # Offsets of groups are deleted with a topic. They do not reappear in the next round.
        wait_until(lambda: committed(kafka_b, unique, remote) == -1001, 30, what="the end of the group's offset")
        commit(kafka_a, witness, {(other, 0): 0})
        here = f"{unique}.{other}"
        wait_until(_polling(task, lambda: committed(kafka_b, witness, here) == 0), 30, what="a round of the sync")
        assert committed(kafka_b, unique, remote) == -1001


def test_19_offset_syncs_can_be_kept_on_the_target(kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str) -> None:
    config = task_props(kafka_a, kafka_b, unique) | {"offset-syncs.topic.location": "target"}
    create(kafka_a, unique)
    create(kafka_b, syncs_topic(config))
    create(kafka_b, f"{unique}.checkpoints.internal")
    copied(kafka_b, unique, 10)
    write_sync(kafka_b, config, 9, 4)
    commit(kafka_a, unique, {(unique, 0): 9})
    with running_task(MirrorCheckpointTask(), config) as task:
        (found,) = polled(task)
        assert found.downstream_offset == 4


def test_a_group_of_the_new_protocol_is_replicated(kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str) -> None:
    config = task_props(kafka_a, kafka_b, unique)
    mirrored(kafka_a, kafka_b, config, unique, 3)
    write(kafka_a, unique, [(None, b"x")] * 3, 0)
    write_sync(kafka_a, config, 3, 2)
    consumer = Consumer(
        {
            "bootstrap.servers": kafka_a.bootstrap,
            "group.id": unique,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([unique])
    try:
        read: list[object] = []
        wait_until(
            lambda: len(read) == 3 or (read.__iadd__(consumer.consume(3, 0.5)) and len(read) == 3),
            30,
            what="three records",
        )
        consumer.commit(asynchronous=False)
        with running(MirrorCheckpointConnector(), props(kafka_a, kafka_b, unique)) as (connector, context):
            assert context.reconfigured.wait(30)
            assert [share["task.assigned.groups"] for share in connector.task_configs(1)] == [unique]
        with running_task(MirrorCheckpointTask(), config) as task:
            (found,) = polled(task)
            assert (found.upstream_offset, found.downstream_offset) == (3, 2)
    finally:
        consumer.close()


def test_share_groups_are_assigned_separately_and_replicated(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str
) -> None:
    create(kafka_a, unique)
    create(kafka_b, f"{unique}.checkpoints.internal")
    copied(kafka_b, unique, 3)
    cluster, target = (
        Cluster(ClientSettings.from_props({"bootstrap.servers": broker.bootstrap}), name="A")
        for broker in (kafka_a, kafka_b)
    )
    here, there = Mm2TopicPartition(unique, 0), Mm2TopicPartition(f"{unique}.{unique}", 0)
    wait_until(
        lambda: Admin(cluster).alter_share_group_offsets(unique, {here: 3}) == {here: None}, 30, what="a share group"
    )
    with running(MirrorCheckpointConnector(), props(kafka_a, kafka_b, unique, **SYNCING)) as (connector, context):
        assert context.reconfigured.wait(30)

        def assigned_groups() -> list[tuple[str, str | None]]:
            configs = connector.task_configs(2)
            return [(config["task.assigned.groups"], config.get("task.assigned.share.groups")) for config in configs]

        assert assigned_groups() == [("", unique)]
        (config,) = connector.task_configs(1)
        for number in (1, 2):
            commit(kafka_a, f"{unique}-{number}", {(unique, 0): 0})
        # Groups that Java would assign have Java's order.
        wait_until(
            lambda: assigned_groups() == [(f"{unique}-1", unique), (f"{unique}-2", None)],
            30,
            what="discovery of the others",
        )
    create(kafka_a, syncs_topic(config))
    write_sync(kafka_a, config, 3, 2)
    with running_task(MirrorCheckpointTask(), {**config, "task.index": "0"}) as task:
        (found,) = polled(task)
        assert (found.group, found.upstream_offset, found.downstream_offset) == (unique, 3, 2)
        synced = {unique: {there: OffsetAndMetadata(2)}}
        wait_until(
            lambda: Admin(target).list_share_group_offsets([unique]) == synced,
            30,
            what="its start offset on the target",
        )
    cluster.close()
    target.close()


def test_the_offsets_of_more_than_a_thousand_groups_are_requested_together(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str
) -> None:
    create(kafka_a, unique)
    create(kafka_b, f"{unique}.checkpoints.internal")
    copied(kafka_b, unique, 1)
    groups = [f"{unique}, {number}" for number in range(1_100)]
    cluster = Cluster(ClientSettings.from_props({"bootstrap.servers": kafka_a.bootstrap}), name="A")
    tp = Mm2TopicPartition(unique, 0)
    for number, group in enumerate(groups):
        assert Admin(cluster).alter_group_offsets(group, {tp: OffsetAndMetadata(number)}) == {tp: None}
    cluster.close()
    with running(MirrorCheckpointConnector(), props(kafka_a, kafka_b, unique)) as (connector, context):
        assert context.reconfigured.wait(30)
        (config,) = connector.task_configs(1)
    create(kafka_a, syncs_topic(config))
    write_sync(kafka_a, config, 0, 0)
    with running_task(MirrorCheckpointTask(), {**config, "task.index": "0"}) as task:
        found = {checkpoint.group: checkpoint.upstream_offset for checkpoint in polled(task, 60)}
    assert found == {group: number for number, group in enumerate(groups)}


def test_offsets_that_do_not_fit_into_one_batch_of_the_coordinator_are_written_in_parts(
    kafka_b: LocalKafka, unique: str
) -> None:
    create(kafka_b, unique, 280)
    wanted = {
        Mm2TopicPartition(unique, partition): OffsetAndMetadata(partition, "m" * 4_000) for partition in range(280)
    }
    cluster = Cluster(ClientSettings.from_props({"bootstrap.servers": kafka_b.bootstrap}), name="B")
    try:
        offsets = GroupOffsets(Admin(cluster))
        assert set(offsets.write(unique, wanted).values()) == {None}
        found = offsets.read([unique])[unique]
        assert isinstance(found, dict)
        assert {tp: one.offset for tp, one in found.items()} == {tp: tp.partition for tp in wanted}
    finally:
        cluster.close()
