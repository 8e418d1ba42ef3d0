"""Behaviours 1 to 26 in each variant (`variants`): what a whole process does, seen from outside.

Everything that a test looks at has been set going by the fixture, so that the tests wait for each other's work as well. Each can
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
    Stage,
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
def stage(
    request: pytest.FixtureRequest,
    kafka_pair: tuple[LocalKafka, LocalKafka],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stage]:
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


def test_01_02_03_all_connectors_run_without_topics_created_in_advance(stage: Stage) -> None:
    p, b = stage.alias("p"), stage.alias("b")
    stage.process.eventually(lambda: is_running(stage.b, p))
    if stage.variant.both_ways:
        stage.process.eventually(lambda: is_running(stage.a, b))
    for broker, source in ((stage.b, p), (stage.a, b)):
        assert {f"mm2-{kind}.{source}.internal" for kind in ("status", "offsets", "configs")} <= topics_of(broker)
    assert f"mm2-offset-syncs.{b}.internal" in topics_of(stage.a)
    # That name belongs to the flow the other way, on its own source.
    assert (f"mm2-offset-syncs.{p}.internal" in topics_of(stage.b)) == stage.variant.both_ways


def test_04_05_14_remote_topics_have_their_configs_and_new_ones_are_found(stage: Stage) -> None:
    later = stage.topic("main-2")
    remote = stage.remote(later)
    assert [number for number, rows in enumerate(contents(stage.a, later)) if rows] == [3]
    stage.process.eventually(lambda: stage.is_copied(later))
    assert config_of(stage.b, remote, "retention.bytes") == "1000"
    assert config_of(stage.b, remote, EXCLUDED) != "2000"
    compacted = stage.remote(stage.topic("main-1"))
    stage.process.eventually(lambda: config_of(stage.b, compacted, "cleanup.policy") == "compact", 10)


def test_06_07_17_each_cluster_has_its_own_and_remote_records_once_without_loops(stage: Stage) -> None:
    main = stage.topic("main-1")
    wanted = {stage.remote(stage.topic(f"main-{name}")) for name in ("1", "2", "empty", "lag", "quiet")}
    stage.process.eventually(lambda: wanted <= topics_of(stage.b))
    if stage.variant.both_ways:
        copy = stage.remote(main, "b")
        stage.process.eventually(lambda: contents(stage.a, copy) == contents(stage.b, main))
        assert [len(rows) for rows in contents(stage.a, main)] == [PER_PARTITION] * PARTITIONS
        assert {topic for topic in topics_of(stage.a) if "main" in topic and stage.alias("b") in topic} == {copy}
    time.sleep(2)  # topics are looked at every second: what goes round would be here by now
    ours = {topic for topic in topics_of(stage.b) if stage.topic("main") in topic}
    assert ours == wanted | ({main} if stage.variant.both_ways else set())
    assert stage.is_copied(main)


def test_08_09_heartbeats_name_the_upstream_clusters(stage: Stage) -> None:
    p, b = stage.alias("p"), stage.alias("b")
    stage.process.eventually(lambda: (p, b) in heartbeats(stage.b, "heartbeats"))
    stage.process.eventually(lambda: (b, p) in heartbeats(stage.b, f"{p}.heartbeats"))
    sides = [(stage.b, p)]
    if stage.variant.both_ways:
        stage.process.eventually(lambda: (p, b) in heartbeats(stage.a, f"{b}.heartbeats"))
        sides.append((stage.a, b))
    policy = {"replication.policy.class": "IdentityReplicationPolicy", "source.cluster.alias": p}
    for broker, upstream in sides:
        props = {"bootstrap.servers": broker.bootstrap} | (policy if stage.variant.identity else {})
        with MirrorClient(props) as client:
            assert upstream in client.upstream_clusters()
            assert client.replication_hops(upstream) == 1


def test_10_11_12_16_a_group_continues_at_its_next_record(stage: Stage) -> None:
    main, group, p = stage.topic("main-1"), stage.topic("group"), stage.alias("p")
    stage.process.eventually(lambda: set(stage.checkpoints(group, main)) == set(ALL))
    policy = {"replication.policy.class": "IdentityReplicationPolicy"} if stage.variant.identity else {}
    translated = RemoteClusterUtils.translate_offsets({"bootstrap.servers": stage.b.bootstrap} | policy, p, group)
    found = {tp.partition: at.offset for tp, at in translated.items() if tp.topic == stage.remote(main)}
    assert set(found) == set(ALL)
    assert stage.goes_on_well(main, {number: (PER_PARTITION, place) for number, place in found.items()})
    # 16: and as its offsets, of each topic that it reads.
    partitions = {main: set(ALL), stage.topic("main-2"): {3}}

    def synced() -> dict[str, dict[int, int]]:
        return {topic: stage.places(stage.b, group, stage.remote(topic)) for topic in partitions}

    stage.process.eventually(lambda: {topic: set(found) for topic, found in synced().items()} == partitions)
    for topic, places in synced().items():
        end = ends(stage.b, stage.remote(topic))
        assert all(0 < place <= end[number] for number, place in places.items())
        assert stage.goes_on_well(topic, {number: (PER_PARTITION, place) for number, place in places.items()})


def test_12_a_group_that_failed_over_fails_back(stage: Stage) -> None:
    main, group, told = stage.topic("main-1"), stage.topic("home"), f"{stage.alias('b')}.checkpoints.internal"
    remote = stage.remote(main)
    rows = read(stage.b, remote, 7, isolation="read_committed")
    commit(stage.b, group, {(remote, 7): rows[4].offset})
    if not stage.variant.both_ways:
        stage.process.eventually(lambda: is_running(stage.b, stage.alias("p")))
        assert told not in topics_of(stage.a), "there is no way home"
        return
    wanted = read(stage.a, main, 7)[4].offset

    def home() -> int | None:
        props = {"bootstrap.servers": stage.a.bootstrap}
        found = RemoteClusterUtils.translate_offsets(props, stage.alias("b"), group)
        return next((at.offset for tp, at in found.items() if tuple(tp) == (main, 7)), None)

    stage.process.eventually(lambda: told in topics_of(stage.a))
    stage.process.eventually(lambda: home() == wanted)


def test_15_empty_partitions_exist_and_stay_empty(stage: Stage) -> None:
    empty = stage.topic("main-empty")
    stage.process.eventually(lambda: len(ends(stage.b, stage.remote(empty))) == PARTITIONS)
    latest = {Where(stage.remote(empty), number): OffsetSpec.latest() for number in ALL}  # type: ignore[no-untyped-call]
    assert {answer.result(30).offset for answer in admin_of(stage.b).list_offsets(latest).values()} == {0}


def test_18_without_offset_syncs_records_are_copied_and_their_topic_is_not_created(stage: Stage) -> None:
    stage.process.eventually(lambda: stage.is_copied(stage.topic("bare"), "r"))
    assert f"mm2-offset-syncs.{stage.alias('d')}.internal" not in topics_of(stage.a)
    assert f"mm2-offset-syncs.{stage.alias('r')}.internal" not in topics_of(stage.b)
    found = statuses(stage.b, stage.alias("r"))
    assert {name for name in found if name.startswith("connector-")} >= {
        f"connector-{SOURCE}",
        f"connector-{HEARTBEAT}",
    }
    assert f"connector-{CHECKPOINT}" not in found


def test_19_26_copying_from_the_end_works_with_offset_syncs_on_the_target(stage: Stage) -> None:
    side, group = stage.topic("side"), stage.topic("late")
    remote = stage.remote(side, "q")
    stage.process.eventually(lambda: len(ends(stage.b, remote)) == PARTITIONS)

    def counts() -> list[int]:
        return [len(rows) for rows in stage.contents(side, "q")]

    # Nobody can see when a flow that begins at the end has begun.
    deadline = time.monotonic() + 60
    while 0 in (counts() or [0]):
        assert time.monotonic() < deadline, stage.process.tail()
        stage.fill(side, 1)
        time.sleep(0.5)
    stage.process.eventually(lambda: _tails_equal(stage, side))
    before, sizes = counts(), [len(rows) for rows in contents(stage.a, side)]
    assert all(here < there for here, there in zip(before, sizes, strict=True)), "those from before the start stay"
    stage.fill(side)
    stage.process.eventually(lambda: counts() == [count + PER_PARTITION for count in before])
    assert _tails_equal(stage, side)
    # 19
    q, c = stage.alias("q"), stage.alias("c")
    assert f"mm2-offset-syncs.{q}.internal" in topics_of(stage.b)
    assert f"mm2-offset-syncs.{c}.internal" not in topics_of(stage.a)
    place = read(stage.a, side, 2)[-3].offset
    commit(stage.a, group, {(side, 2): place})
    stage.process.eventually(lambda: stage.checkpoints(group, side, "q").get(2, (0, 0))[0] == place)
    assert stage.goes_on_well(side, stage.checkpoints(group, side, "q"), "q")


def _tails_equal(stage: Stage, side: str) -> bool:
    """What is on the target is what the source ends with, and nothing is under way."""
    pairs = zip(contents(stage.a, side), stage.contents(side, "q"), strict=True)
    return all(there and here[-len(there) :] == there for here, there in pairs)


def test_20_records_not_copied_yet_have_no_checkpoint(stage: Stage) -> None:
    quiet, group = stage.topic("main-quiet"), stage.topic("early")
    stage.process.eventually(lambda: 0 in stage.checkpoints(group, quiet))
    if not ends(stage.a, quiet)[1]:
        assert 1 not in stage.checkpoints(group, quiet)
    stage.fill(quiet, 5, [1])
    commit(stage.a, group, {(quiet, 1): 5})
    stage.process.eventually(lambda: stage.checkpoints(group, quiet).get(1, (0, 0))[0] == 5)
    assert stage.goes_on_well(quiet, stage.checkpoints(group, quiet))


def test_22_checkpoints_follow_a_lagging_group_forward_and_back(stage: Stage) -> None:
    topic, group = stage.topic("main-lag"), stage.topic("lag")

    def places() -> set[int]:
        found = stage.checkpoints(group, topic)
        return {at_a for at_a, _ in found.values()} if set(found) == set(ALL) else set()

    def follows(place: int) -> None:
        commit(stage.a, group, {(topic, number): place for number in ALL})
        stage.process.eventually(lambda: places() == {place})
        assert stage.goes_on_well(topic, stage.checkpoints(group, topic))

    follows(LAGGING * 9 // 10)
    follows(LAGGING // 10)


def test_23_24_25_overrides_on_the_target_are_kept_or_replaced_as_configured(stage: Stage) -> None:
    main, side = (stage.remote(stage.topic("main-2")), stage.remote(stage.topic("side"), "q"))
    stage.process.eventually(lambda: len(ends(stage.b, main)) == len(ends(stage.b, side)) == PARTITIONS)
    for remote in (main, side):
        alter(stage.b, remote, EXCLUDED, "3000")
        alter(stage.b, remote, "retention.bytes", "1001")
    alter(stage.a, stage.topic("main-2"), "retention.bytes", "1000")
    stage.process.eventually(lambda: config_of(stage.b, main, "retention.bytes") == "1000")
    # 24: what the source has by default
    stage.process.eventually(lambda: config_of(stage.b, side, "retention.bytes") == "-1")
    # 25: an override that is gone from the source goes from the target
    alter(stage.a, stage.topic("main-2"), "retention.bytes", None)
    stage.process.eventually(lambda: config_of(stage.b, main, "retention.bytes") == "-1")
    assert config_of(stage.b, main, EXCLUDED) == config_of(stage.b, side, EXCLUDED) == "3000"


def test_13_21_checkpoints_continue_and_never_go_back_after_a_restart(stage: Stage) -> None:
    main, group = stage.topic("main-1"), stage.topic("group")
    for connector in (SOURCE, CHECKPOINT):
        stage.rest.ask("POST", f"/connectors/{connector}/restart?includeTasks=true", expect=(202, 204))
    stage.fill(main)
    moved = read(stage.a, main)[-1].offset + 1
    commit(stage.a, group, {(main, number): moved for number in ALL})
    wait_until(
        lambda: [stage.checkpoints(group, main).get(number, (0, 0))[0] for number in ALL] == [moved] * PARTITIONS,
        60,
        detail=stage.process.tail,
    )
    assert stage.goes_on_well(main, stage.checkpoints(group, main))
    wanted = {number: place for number, (_, place) in stage.checkpoints(group, main).items()}
    stage.process.eventually(lambda: stage.places(stage.b, group, stage.remote(main)) == wanted)
    key = struct.pack(">h", len(group)) + group.encode()
    key += struct.pack(">h", len(stage.remote(main))) + stage.remote(main).encode()
    for number in ALL:
        history = [
            struct.unpack_from(">hqq", record.value)[2]
            for record in read(stage.b, f"{stage.alias('p')}.checkpoints.internal")
            if record.key == key + struct.pack(">i", number) and record.value
        ]
        assert len(history) > 1
        assert history == sorted(history)
