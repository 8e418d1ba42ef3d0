"""Behaviours 1 to 26 in each variant (`variants`): the external behaviour of a whole process.

The fixture starts everything that the tests check, so that the tests wait at the same time. Each can
run alone.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import TopicPartition as Where
from confluent_kafka.admin import OffsetSpec

from mm2.mirror.client import MirrorClient, RemoteClusterUtils
from mm2.sandbox.kafka import LocalKafka
from tests.integration.copy_flow import admin_of, read
from tests.integration.mirror_flow import alter, commit, create
from tests.integration.mirror_process import config_of, contents, ends, heartbeats, is_running, statuses, topics_of
from tests.integration.test_mm2_behaviours.variants import (
    ALL_AT_ONCE,
    CHECKPOINT,
    FURTHER,
    HEARTBEAT,
    PARTITIONS,
    PER_PARTITION,
    SOURCE,
    VARIANTS,
    Environment,
    Variant,
    staged,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(600)

ALL = range(PARTITIONS)
LAGGING = 100
"""Records in each partition of the topic whose group lags."""
EXCLUDED = "delete.retention.ms"


@pytest.fixture(
    scope="module",
    params=[ALL_AT_ONCE, *(pytest.param(variant, marks=pytest.mark.slow) for variant in VARIANTS)],
    ids=str,
)
def env(
    request: pytest.FixtureRequest,
    kafka_pair: tuple[LocalKafka, LocalKafka],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Environment]:
    variant: Variant = request.param
    with staged(variant, kafka_pair, tmp_path_factory.mktemp(variant.short)) as made:
        main, group = made.create("main-1", cleanup__policy="compact"), made.topic("group")
        made.fill(main)
        made.fill(made.create("bare"))
        made.create("side")
        made.fill(made.topic("side"))
        made.create("main-empty")
        made.fill(made.create("main-lag"), LAGGING)
        made.fill(made.create("main-quiet", 2), 1, [0])
        commit(made.a, group, {(main, number): PER_PARTITION for number in ALL})
        commit(made.a, made.topic("early"), {(made.topic("main-quiet"), number): 1 - number for number in (0, 1)})
        commit(made.a, made.topic("lag"), {(made.topic("main-lag"), number): LAGGING * 9 // 10 for number in ALL})
        if variant.both_ways:
            create(made.b, main, PARTITIONS)
            made.fill(main, at_b=True)
        made.start(FURTHER)
        made.process.eventually(lambda: made.is_copied(main), 150)
        made.create("main-2", retention__bytes="1000", delete__retention__ms="2000")
        made.fill(made.topic("main-2"), partitions=[3])
        commit(made.a, group, {(made.topic("main-2"), 3): PER_PARTITION})
        yield made


def test_01_02_03_all_connectors_run_without_topics_created_in_advance(env: Environment) -> None:
    p, b = env.alias("p"), env.alias("b")
    env.process.eventually(lambda: is_running(env.b, p))
    if env.variant.both_ways:
        env.process.eventually(lambda: is_running(env.a, b))
    for broker, source in ((env.b, p), (env.a, b)):
        assert {f"mm2-{kind}.{source}.internal" for kind in ("status", "offsets", "configs")} <= topics_of(broker)
    assert f"mm2-offset-syncs.{b}.internal" in topics_of(env.a)
    # That name belongs to the opposite flow, on its own source.
    assert (f"mm2-offset-syncs.{p}.internal" in topics_of(env.b)) == env.variant.both_ways


def test_04_05_14_remote_topics_have_their_configs_and_new_ones_are_found(env: Environment) -> None:
    later = env.topic("main-2")
    remote = env.remote(later)
    assert [number for number, rows in enumerate(contents(env.a, later)) if rows] == [3]
    env.process.eventually(lambda: env.is_copied(later))
    assert config_of(env.b, remote, "retention.bytes") == "1000"
    assert config_of(env.b, remote, EXCLUDED) != "2000"
    compacted = env.remote(env.topic("main-1"))
    env.process.eventually(lambda: config_of(env.b, compacted, "cleanup.policy") == "compact", 10)


def test_06_07_17_each_cluster_has_its_own_and_remote_records_once_without_loops(env: Environment) -> None:
    main = env.topic("main-1")
    wanted = {env.remote(env.topic(f"main-{name}")) for name in ("1", "2", "empty", "lag", "quiet")}
    env.process.eventually(lambda: wanted <= topics_of(env.b))
    if env.variant.both_ways:
        copy = env.remote(main, "b")
        env.process.eventually(lambda: contents(env.a, copy) == contents(env.b, main))
        assert [len(rows) for rows in contents(env.a, main)] == [PER_PARTITION] * PARTITIONS
        assert {topic for topic in topics_of(env.a) if "main" in topic and env.alias("b") in topic} == {copy}
    time.sleep(2)  # topics are refreshed every second: replication loops would be visible by now
    ours = {topic for topic in topics_of(env.b) if env.topic("main") in topic}
    assert ours == wanted | ({main} if env.variant.both_ways else set())
    assert env.is_copied(main)


def test_08_09_heartbeats_name_the_upstream_clusters(env: Environment) -> None:
    p, b = env.alias("p"), env.alias("b")
    env.process.eventually(lambda: (p, b) in heartbeats(env.b, "heartbeats"))
    env.process.eventually(lambda: (b, p) in heartbeats(env.b, f"{p}.heartbeats"))
    sides = [(env.b, p)]
    if env.variant.both_ways:
        env.process.eventually(lambda: (p, b) in heartbeats(env.a, f"{b}.heartbeats"))
        sides.append((env.a, b))
    policy = {"replication.policy.class": "IdentityReplicationPolicy", "source.cluster.alias": p}
    for broker, upstream in sides:
        props = {"bootstrap.servers": broker.bootstrap} | (policy if env.variant.identity else {})
        with MirrorClient(props) as client:
            assert upstream in client.upstream_clusters()
            assert client.replication_hops(upstream) == 1


def test_10_11_12_16_a_group_continues_at_its_next_record(env: Environment) -> None:
    main, group, p = env.topic("main-1"), env.topic("group"), env.alias("p")
    env.process.eventually(lambda: set(env.checkpoints(group, main)) == set(ALL))
    policy = {"replication.policy.class": "IdentityReplicationPolicy"} if env.variant.identity else {}
    translated = RemoteClusterUtils.translate_offsets({"bootstrap.servers": env.b.bootstrap} | policy, p, group)
    found = {tp.partition: at.offset for tp, at in translated.items() if tp.topic == env.remote(main)}
    assert set(found) == set(ALL)
    assert env.skips_and_repeats_nothing(
        main, {number: (PER_PARTITION, group_offset) for number, group_offset in found.items()}
    )
    # 16: and as its committed offsets, of each topic that it reads.
    partitions = {main: set(ALL), env.topic("main-2"): {3}}

    def synced() -> dict[str, dict[int, int]]:
        return {topic: env.group_offsets(env.b, group, env.remote(topic)) for topic in partitions}

    env.process.eventually(lambda: {topic: set(found) for topic, found in synced().items()} == partitions)
    for topic, group_offsets in synced().items():
        end = ends(env.b, env.remote(topic))
        assert all(0 < group_offset <= end[number] for number, group_offset in group_offsets.items())
        assert env.skips_and_repeats_nothing(
            topic, {number: (PER_PARTITION, group_offset) for number, group_offset in group_offsets.items()}
        )


def test_12_a_group_that_failed_over_fails_back(env: Environment) -> None:
    main, group, checkpoints_topic = env.topic("main-1"), env.topic("home"), f"{env.alias('b')}.checkpoints.internal"
    remote = env.remote(main)
    rows = read(env.b, remote, 7, isolation="read_committed")
    commit(env.b, group, {(remote, 7): rows[4].offset})
    if not env.variant.both_ways:
        env.process.eventually(lambda: is_running(env.b, env.alias("p")))
        assert checkpoints_topic not in topics_of(env.a), "there is no way home"
        return
    wanted = read(env.a, main, 7)[4].offset

    def home() -> int | None:
        props = {"bootstrap.servers": env.a.bootstrap}
        found = RemoteClusterUtils.translate_offsets(props, env.alias("b"), group)
        return next((at.offset for tp, at in found.items() if tuple(tp) == (main, 7)), None)

    env.process.eventually(lambda: checkpoints_topic in topics_of(env.a))
    env.process.eventually(lambda: home() == wanted)


def test_15_empty_partitions_exist_and_stay_empty(env: Environment) -> None:
    empty = env.topic("main-empty")
    env.process.eventually(lambda: len(ends(env.b, env.remote(empty))) == PARTITIONS)
    latest = {Where(env.remote(empty), number): OffsetSpec.latest() for number in ALL}  # type: ignore[no-untyped-call]
    assert {answer.result(30).offset for answer in admin_of(env.b).list_offsets(latest).values()} == {0}


def test_18_without_offset_syncs_records_are_copied_and_their_topic_is_not_created(env: Environment) -> None:
    env.process.eventually(lambda: env.is_copied(env.topic("bare"), "r"))
    assert f"mm2-offset-syncs.{env.alias('d')}.internal" not in topics_of(env.a)
    assert f"mm2-offset-syncs.{env.alias('r')}.internal" not in topics_of(env.b)
    found = statuses(env.b, env.alias("r"))
    assert {name for name in found if name.startswith("connector-")} >= {
        f"connector-{SOURCE}",
        f"connector-{HEARTBEAT}",
    }
    assert f"connector-{CHECKPOINT}" not in found


def test_19_26_copying_from_the_end_works_with_offset_syncs_on_the_target(env: Environment) -> None:
    side, group = env.topic("side"), env.topic("late")
    remote = env.remote(side, "q")
    env.process.eventually(lambda: len(ends(env.b, remote)) == PARTITIONS)

    def counts() -> list[int]:
        return [len(rows) for rows in env.contents(side, "q")]

    # The start of a flow that starts at the end offset cannot be observed.
    deadline = time.monotonic() + 60
    while 0 in (counts() or [0]):
        assert time.monotonic() < deadline, env.process.tail()
        env.fill(side, 1)
        time.sleep(0.5)
    env.process.eventually(lambda: _tails_equal(env, side))
    before, sizes = counts(), [len(rows) for rows in contents(env.a, side)]
    assert all(here < there for here, there in zip(before, sizes, strict=True)), "those from before the start stay"
    env.fill(side)
    env.process.eventually(lambda: counts() == [count + PER_PARTITION for count in before])
    assert _tails_equal(env, side)
    # 19
    q, c = env.alias("q"), env.alias("c")
    assert f"mm2-offset-syncs.{q}.internal" in topics_of(env.b)
    assert f"mm2-offset-syncs.{c}.internal" not in topics_of(env.a)
    group_offset = read(env.a, side, 2)[-3].offset
    commit(env.a, group, {(side, 2): group_offset})
    env.process.eventually(lambda: env.checkpoints(group, side, "q").get(2, (0, 0))[0] == group_offset)
    assert env.skips_and_repeats_nothing(side, env.checkpoints(group, side, "q"), "q")


def _tails_equal(env: Environment, side: str) -> bool:
    """Wait until the target has all records of the source and none is in flight."""
    pairs = zip(contents(env.a, side), env.contents(side, "q"), strict=True)
    return all(there and here[-len(there) :] == there for here, there in pairs)


def test_20_records_not_copied_yet_have_no_checkpoint(env: Environment) -> None:
    quiet, group = env.topic("main-quiet"), env.topic("early")
    env.process.eventually(lambda: 0 in env.checkpoints(group, quiet))
    if not ends(env.a, quiet)[1]:
        assert 1 not in env.checkpoints(group, quiet)
    env.fill(quiet, 5, [1])
    commit(env.a, group, {(quiet, 1): 5})
    env.process.eventually(lambda: env.checkpoints(group, quiet).get(1, (0, 0))[0] == 5)
    assert env.skips_and_repeats_nothing(quiet, env.checkpoints(group, quiet))


def test_22_checkpoints_follow_a_lagging_group_forward_and_back(env: Environment) -> None:
    topic, group = env.topic("main-lag"), env.topic("lag")

    def group_offsets() -> set[int]:
        found = env.checkpoints(group, topic)
        return {at_a for at_a, _ in found.values()} if set(found) == set(ALL) else set()

    def follows(group_offset: int) -> None:
        commit(env.a, group, {(topic, number): group_offset for number in ALL})
        env.process.eventually(lambda: group_offsets() == {group_offset})
        assert env.skips_and_repeats_nothing(topic, env.checkpoints(group, topic))

    follows(LAGGING * 9 // 10)
    follows(LAGGING // 10)


def test_23_24_25_overrides_on_the_target_are_kept_or_replaced_as_configured(env: Environment) -> None:
    main, side = (env.remote(env.topic("main-2")), env.remote(env.topic("side"), "q"))
    env.process.eventually(lambda: len(ends(env.b, main)) == len(ends(env.b, side)) == PARTITIONS)
    for remote in (main, side):
        alter(env.b, remote, EXCLUDED, "3000")
        alter(env.b, remote, "retention.bytes", "1001")
    alter(env.a, env.topic("main-2"), "retention.bytes", "1000")
    env.process.eventually(lambda: config_of(env.b, main, "retention.bytes") == "1000")
    # 24: configs with the default on the source
    env.process.eventually(lambda: config_of(env.b, side, "retention.bytes") == "-1")
    # 25: an override that is removed on the source is removed on the target
    alter(env.a, env.topic("main-2"), "retention.bytes", None)
    env.process.eventually(lambda: config_of(env.b, main, "retention.bytes") == "-1")
    assert config_of(env.b, main, EXCLUDED) == config_of(env.b, side, EXCLUDED) == "3000"


def test_13_21_checkpoints_continue_and_never_go_back_after_a_restart(env: Environment) -> None:
    main, group = env.topic("main-1"), env.topic("group")
    for connector in (SOURCE, CHECKPOINT):
        env.rest.ask("POST", f"/connectors/{connector}/restart?includeTasks=true", expect=(202, 204))
    env.fill(main)
    moved = read(env.a, main)[-1].offset + 1
    commit(env.a, group, {(main, number): moved for number in ALL})
    wait_until(
        lambda: [env.checkpoints(group, main).get(number, (0, 0))[0] for number in ALL] == [moved] * PARTITIONS,
        60,
        detail=env.process.tail,
    )
    assert env.skips_and_repeats_nothing(main, env.checkpoints(group, main))
    wanted = {number: group_offset for number, (_, group_offset) in env.checkpoints(group, main).items()}
    env.process.eventually(lambda: env.group_offsets(env.b, group, env.remote(main)) == wanted)
    key = struct.pack(">h", len(group)) + group.encode()
    key += struct.pack(">h", len(env.remote(main))) + env.remote(main).encode()
    for number in ALL:
        history = [
            struct.unpack_from(">hqq", record.value)[2]
            for record in read(env.b, f"{env.alias('p')}.checkpoints.internal")
            if record.key == key + struct.pack(">i", number) and record.value
        ]
        assert len(history) > 1
        assert history == sorted(history)
