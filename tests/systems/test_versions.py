"""Flows between brokers of different versions of Kafka: every version as source and, from 2.8 on, as target.

docs/reference/kafka-versions.md has the matrix of versions and of these tests. The slow ones are run by `bin/test --all`.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka.admin import AclBindingFilter, AclOperation, AclPermissionType, ResourcePatternType
from confluent_kafka.admin import ResourceType as Kind

from mm2.mirror.client import RemoteClusterUtils
from mm2.sandbox.kafka import start_all
from tests.faults.test_source_history import recreate_topic
from tests.integration.asking import asked
from tests.integration.copy_flow import Traffic, admin_of, read_all
from tests.integration.mirror_flow import create
from tests.integration.mirror_process import config_of, contents, ends, grow, partitions_of
from tests.support.versions import KafkaVersion, broker_of
from tests.support.waiting import PATIENCE
from tests.systems.version_matrix import ALWAYS, PAIRS
from tests.systems.version_pair import (
    GROUP_OFFSETS,
    IN_HOLE,
    SHARE,
    SMALL_SEGMENT,
    START_S,
    VersionPair,
    alter_configs,
    committed_records,
    seed,
)

pytestmark = pytest.mark.timeout(int(1200 * PATIENCE))


@pytest.fixture(
    scope="module",
    params=[pytest.param(one, marks=() if one in ALWAYS else pytest.mark.slow, id="-to-".join(one)) for one in PAIRS],
)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VersionPair]:
    """Two running brokers and a process that copies everything from one to the other."""
    here, there = map(KafkaVersion.of, request.param)
    folder = tmp_path_factory.mktemp("pair")
    source, target = broker_of(here, "S", folder / "source"), broker_of(there, "T", folder / "target")
    found = VersionPair(here, there, source, target, folder)
    with ExitStack() as stack:
        for broker in (source, target):
            stack.callback(broker.stop)
        start_all([source, target], START_S)
        seed(found)
        found.start()
        stack.callback(found.clean_up)
        yield found


def test_records_of_every_codec_are_equal(pair: VersionPair) -> None:
    """Headers, tombstones, empty and missing keys and values, a large record, the oldest and far future timestamps."""
    pair.await_equal("codecs")


def test_records_with_log_append_time_keep_their_timestamps(pair: VersionPair) -> None:
    pair.await_equal("appended")


def test_records_in_old_message_formats_are_equal(pair: VersionPair) -> None:
    """Formats of before 0.11, which a source can store until 3.0 (KIP-724)."""
    if not pair.formats:
        pytest.skip("The source stores no old formats.")
    pair.await_equal(*pair.formats)


def test_only_committed_transactions_are_copied(pair: VersionPair) -> None:
    pair.await_equal("transactions")
    _, got = pair.records("transactions")
    assert len(got[0]) == 80


def test_compacted_records_are_skipped_and_a_group_in_a_hole_continues_behind_it(pair: VersionPair) -> None:
    pair.await_equal("holes")
    pair.process.eventually(lambda: pair.checkpoint(IN_HOLE, "holes"))
    checkpoint = pair.checkpoint(IN_HOLE, "holes")
    assert checkpoint is not None
    (wanted,), (got,) = pair.records("holes")
    left = [record.content for record in wanted if record.offset >= pair.hole]
    assert [record.content for record in got if record.offset >= checkpoint[1]] == left
    pair.process.eventually(lambda: pair.committed(IN_HOLE, "S.v.holes") == checkpoint[1])


def test_topics_configs_and_new_partitions_follow_the_source(pair: VersionPair) -> None:
    remote, source, target = "S.v.synced", pair.source, pair.target
    pair.process.eventually(lambda: partitions_of(target, remote) == 1)
    pair.process.eventually(lambda: config_of(target, remote, "retention.ms") == "123456789")
    if not pair.here.since(4, 1):
        is_rejected = pair.there.since(4, 1)
        pair.process.eventually(lambda: is_rejected or config_of(target, remote, "segment.bytes") == SMALL_SEGMENT)
        assert (config_of(target, remote, "segment.bytes") != SMALL_SEGMENT) == is_rejected
    alter_configs(source, "v.synced", {"retention.ms": "987654321"})
    pair.process.eventually(lambda: config_of(target, remote, "retention.ms") == "987654321")
    grow(source, "v.synced", 3)
    pair.process.eventually(lambda: partitions_of(target, remote) == 3)


def test_acls_of_a_topic_are_copied_except_write(pair: VersionPair) -> None:
    anything: Any = None  # the type stubs require strings
    matching = AclBindingFilter(
        Kind.TOPIC,
        "S.v.groups",
        ResourcePatternType.LITERAL,
        anything,
        anything,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )

    def found() -> set[tuple[str, str, str]]:
        acls = admin_of(pair.target).describe_acls(matching).result(30)
        return {(acl.principal, acl.operation.name, acl.permission_type.name) for acl in acls}

    wanted = {("User:ann", "READ", "ALLOW"), ("User:ann", "DELETE", "DENY")}
    pair.process.eventually(lambda: found() >= wanted)
    assert found() == wanted


def test_offsets_of_groups_are_checkpointed_and_committed(pair: VersionPair) -> None:
    """Groups of all types that the source has; share groups are committed where the target has them too."""
    pair.await_equal("groups")
    for group in pair.groups:
        wanted = GROUP_OFFSETS[group]
        pair.process.eventually(lambda: pair.checkpoint(group, "groups") == (wanted, wanted))  # noqa: B023
        if group != SHARE or pair.there.since(4, 2):
            pair.process.eventually(lambda: pair.committed(group, "S.v.groups") == wanted)  # noqa: B023
        translated = RemoteClusterUtils.translate_offsets({"bootstrap.servers": pair.target.bootstrap}, "S", group)
        assert {str(place): one.offset for place, one in translated.items()} == {"S.v.groups-0": wanted}


def test_commands_report_the_flow_and_every_offset_that_is_not_on_the_target(
    pair: VersionPair, capsys: pytest.CaptureFixture[str]
) -> None:
    pair.await_equal("transactions", "holes", "codecs")
    code, out, err = asked(capsys, "gaps", pair.file, pair.flow, "--json")
    gaps = {(row["topic"], row["partition"]): row["gaps"] for row in json.loads(out)["partitions"]}
    assert err == ""
    assert gaps["v.transactions", 0] == {"aborted": 40, "control": 6}
    assert gaps["v.holes", 0].keys() == {"compacted"}
    assert gaps["v.codecs", 0] == {}
    code, out, err = asked(capsys, "plan", pair.file, pair.flow)
    assert (code, err) == (0, ""), out
    code, out, err = asked(capsys, "status", pair.file, pair.flow, "--json")
    assert err == ""
    assert json.loads(out)["flows"][0]["state"] in {"OK", "RUNNING"}, out
    code, out, err = asked(capsys, "groups", pair.file, pair.flow, "--json")
    missing = [
        (row["group"], row["reason"].partition(",")[0].rpartition(": ")[2]) for row in json.loads(out)["offsets"]
    ]
    # A target without share groups gets their checkpoints only.
    lacks_share_groups = SHARE in pair.groups and not pair.there.since(4, 2)
    assert missing == ([(SHARE, "UNSUPPORTED_VERSION")] if lacks_share_groups else [])
    assert (code, err) == (1 if lacks_share_groups else 0, "")


@pytest.mark.slow
def test_verify_finds_no_difference(pair: VersionPair, capsys: pytest.CaptureFixture[str]) -> None:
    pair.await_equal("transactions", "holes", "codecs", "appended", *pair.formats)
    code, out, err = asked(capsys, "verify", pair.file, pair.flow, "--parallel", "1", "--json")
    assert code == 0, (out, err)


@pytest.mark.slow
def test_a_topic_that_is_created_again_is_copied_from_its_start(pair: VersionPair) -> None:
    """By its id, or on a source before 2.8 because its log of the same leader epoch is shorter."""
    create(pair.source, "v.again", 1, {"retention.ms": "-1"})
    with Traffic(pair.source, "v.again") as traffic:
        while traffic.sent < 200:
            time.sleep(0.05)
    first = traffic.sent
    remote = "S.v.again"
    pair.process.eventually(lambda: partitions_of(pair.target, remote) and ends(pair.target, remote) == [first])
    recreate_topic(pair.source, "v.again")
    with Traffic(pair.source, "v.again") as traffic:
        while traffic.sent < 50:
            time.sleep(0.05)
    pair.process.eventually(lambda: ends(pair.target, remote) == [first + traffic.sent], 120)
    values = [record.value for record in read_all(pair.target, remote, [0])[0]]
    assert values == [b"%d" % number for number in [*range(first), *range(traffic.sent)]]


@pytest.mark.slow
def test_a_kill_under_load_loses_and_doubles_nothing(pair: VersionPair) -> None:
    remote = "S.v.load"
    with Traffic(pair.source, "v.load", 3, per_second=1000) as traffic:
        pair.process.eventually(lambda: sum(ends(pair.target, remote)) > 500, 120)
        time.sleep(random.random())
        pair.process.kill9(whole_family=True)
        pair.process.clean_up()
        pair.start()
        before = sum(ends(pair.target, remote))
        pair.process.eventually(lambda: sum(ends(pair.target, remote)) > before + 500, 120)
        traffic.finish()
    wanted = contents(pair.source, "v.load")
    pair.process.eventually(lambda: sum(ends(pair.target, remote)) >= sum(map(len, wanted)), 120)
    assert contents(pair.target, remote) == wanted
    for group in pair.groups:
        offset = GROUP_OFFSETS[group]
        assert pair.checkpoint(group, "groups") == (offset, offset)


@pytest.mark.slow
def test_exactly_once_mode_loses_and_doubles_nothing_when_it_is_killed(pair: VersionPair) -> None:
    pair.process.stop()
    pair.process.clean_up()
    create(pair.source, "x.load", 3, {"retention.ms": "-1"})
    remote = "X.x.load"
    pair.start(exactly_once=True)
    with Traffic(pair.source, "x.load", 3, per_second=1000) as traffic:
        pair.process.eventually(lambda: sum(ends(pair.target, remote)) > 500, 120)
        time.sleep(random.random())
        pair.process.kill9(whole_family=True)
        pair.process.clean_up()
        pair.start(exactly_once=True)
        before = sum(ends(pair.target, remote))
        pair.process.eventually(lambda: sum(ends(pair.target, remote)) > before + 500, 120)
        traffic.finish()
    wanted = contents(pair.source, "x.load")

    def got() -> list[list[tuple[Any, ...]]]:
        return [[record.content for record in rows] for rows in committed_records(pair.target, remote)]

    pair.process.eventually(lambda: sum(map(len, got())) >= sum(map(len, wanted)), 120)
    assert got() == wanted
    assert pair.process.stop()[0] == 0
