from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm2.connect.api import ConnectError, RetriableError
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.structs import GroupDescription, GroupListing, OffsetAndMetadata, TopicPartition
from mm2.mirror.checkpoint_connector import Calm, MirrorCheckpointConnector, assign_groups, fitting, shares
from mm2.mirror.checkpoint_task import decode_groups, encode_groups
from mm2.mirror.common.formats import Checkpoint
from mm2.mirror.groups.checkpoint_store import CheckpointStore, offsets_to_sync

P0 = TopicPartition("A.t", 0)


def checkpoint(upstream: int, downstream: int, group: str = "g") -> Checkpoint:
    return Checkpoint(group, "A.t", 0, upstream, downstream, "note")


def test_a_checkpoint_is_emitted_when_it_advances_or_the_group_went_back() -> None:
    store = CheckpointStore(["g"])
    assert store.is_news(checkpoint(250, 201))
    store.put(checkpoint(250, 201))
    assert not store.is_news(checkpoint(250, 201))
    # after a restart with less exact syncs the same position translates lower: the checkpoint must not move backwards
    assert not store.is_news(checkpoint(250, 176))
    assert not store.is_news(checkpoint(370, 176))
    assert store.is_news(checkpoint(400, 376))
    assert store.is_news(checkpoint(249, 100))


def test_checkpoints_of_a_deleted_topic_are_forgotten() -> None:
    store = CheckpointStore(["g", "h"])
    for one in (checkpoint(1, 1), checkpoint(1, 1, group="h"), Checkpoint("g", "A.u", 0, 1, 1)):
        store.put(one)
    store.forget_topics({"A.t"})
    assert store.groups() == ["g"]
    assert set(store.of("g")) == {TopicPartition("A.u", 0)}
    assert store.is_news(checkpoint(1, 1))


def test_checkpoints_of_other_groups_are_not_kept() -> None:
    store = CheckpointStore(["g"])
    store.put(checkpoint(1, 1, group="other"))
    assert store.groups() == []


def test_an_idle_group_never_moves_backwards() -> None:
    wanted = {P0: checkpoint(10, 5)}
    assert offsets_to_sync(wanted, {}) == {P0: OffsetAndMetadata(5, "note")}
    assert offsets_to_sync(wanted, {P0: OffsetAndMetadata(-1)}) == {P0: OffsetAndMetadata(5, "note")}
    assert offsets_to_sync(wanted, {P0: OffsetAndMetadata(4)}) == {P0: OffsetAndMetadata(5, "note")}
    assert offsets_to_sync(wanted, {P0: OffsetAndMetadata(5)}) == {}
    assert offsets_to_sync(wanted, {P0: OffsetAndMetadata(6)}) == {}


def test_groups_are_assigned_in_contiguous_ranges() -> None:
    assert shares(tuple("abcdefg"), 3) == [["a", "b", "c"], ["d", "e"], ["f", "g"]]
    assert shares(("a",), 5) == [["a"]]
    assert shares((), 5) == []


@pytest.mark.parametrize("tasks", [1, 4])
def test_the_longest_group_ids_leave_room_for_the_others(tasks: int) -> None:
    """A client of the source that may use a group could otherwise stop the checkpoints of all new groups."""
    groups = {f"app-{number:03}{'x' * 30_000}": number % 2 == 0 for number in range(200)} | {
        "billing": False,
        "Ü": True,
    }
    kept = fitting(groups, tasks, 1_000_000)
    assert {"billing", "Ü"} <= kept.keys()
    assert tasks * 930_000 <= sum(map(len, kept)) <= tasks * 1_000_000
    few = {group: groups[group] for group in [*groups][-3:]}
    assert fitting(few, tasks, 1_000_000) == few


@given(st.lists(st.text(min_size=1, max_size=8) | st.text("a\\,", min_size=1, max_size=6), min_size=1, max_size=6))
def test_group_ids_with_any_characters_are_kept(groups: list[str]) -> None:
    assert decode_groups(encode_groups(groups)) == groups


@pytest.mark.parametrize("groups", [["billing", "orders.eu"], ["CORP\\ann", "b"]])
def test_ordinary_group_ids_are_written_as_java_does(groups: list[str]) -> None:
    assert encode_groups(groups) == ",".join(groups)
    assert decode_groups(",".join(groups)) == groups


def test_task_configs_written_by_java_are_read_completely() -> None:
    assert decode_groups("a,b\\") == ["a", "b\\"]


def test_new_groups_are_searched_again_soon_unless_they_appear_continuously() -> None:
    calm, now_s = Calm(), 1_000.0
    waits: list[float] = []
    for _ in range(40):
        waits.append(calm.after_a_find(now_s))
        now_s += waits[-1]
    assert set(waits[:20]) == {6.0}
    assert set(waits[30:]) == {60.0}
    assert calm.after_a_find(now_s + 600) == 6.0


PROPS = {
    "name": "MirrorCheckpointConnector",
    "connector.class": "org.apache.kafka.connect.mirror.MirrorCheckpointConnector",
    "source.cluster.alias": "A",
    "target.cluster.alias": "B",
    "source.cluster.bootstrap.servers": "127.0.0.1:1",
    "target.cluster.bootstrap.servers": "127.0.0.1:1",
}


@pytest.mark.parametrize("off", ["enabled", "emit.checkpoints.enabled"])
def test_disabled_checkpoints_have_no_tasks_even_before_groups_are_known(off: str) -> None:
    connector = MirrorCheckpointConnector()
    connector.start({**PROPS, off: "false"})
    assert connector.task_configs(3) == []
    connector.stop()


@pytest.mark.parametrize(
    ("stored", "groups", "max_tasks", "dealt_out"),
    [
        (["b,c", "a"], "abc", 2, ["b,c", "a"]),  # Java's order
        (["b,c", "a"], "abcd", 2, ["a,b", "c,d"]),
        (["b,c", "a"], "ab", 2, ["a", "b"]),
        (["b,c", "a"], "abc", 3, ["a", "b", "c"]),
        ([], "abc", 2, ["a,b", "c"]),
    ],
)
def test_a_valid_assignment_is_kept_from_any_writer(
    stored: list[str], groups: str, max_tasks: int, dealt_out: list[str]
) -> None:
    shares_now = assign_groups(list(groups), max_tasks, [{"task.assigned.groups": some} for some in stored])
    assert [encode_groups(share) for share in shares_now] == dealt_out


def test_unknown_groups_differ_from_no_groups() -> None:
    connector = MirrorCheckpointConnector()
    connector.start(PROPS)
    try:
        with pytest.raises(RetriableError):
            connector.task_configs(3)
    finally:
        connector.stop()


def test_checkpoints_without_their_sources_are_rejected() -> None:
    def wrong(**props: str) -> list[str]:
        return [key for key, _ in MirrorCheckpointConnector().validate({**PROPS, **props})]

    assert wrong() == []
    assert wrong(**{"emit.checkpoints.enabled": "false"}) == ["emit.checkpoints.enabled"]
    assert wrong(**{"emit.offset-syncs.enabled": "false"}) == ["emit.offset-syncs.enabled"]
    assert wrong(**{"emit.offset-syncs.enabled": "false", "enabled": "false"}) == []


def test_only_zero_may_be_written_as_offset() -> None:
    good = {"group": "g", "topic": "A.t", "partition": 0}
    connector = MirrorCheckpointConnector()
    assert connector.alter_offsets(PROPS, [(good, {"offset": 0}), (good, None)])
    with pytest.raises(ConnectError):
        connector.alter_offsets(PROPS, [(good, {"offset": 1})])
    with pytest.raises(ConnectError):
        connector.alter_offsets(PROPS, [({"topic": "A.t", "partition": 0}, {"offset": 0})])


class Groups:
    """A source with groups that have all read the same topic."""

    def __init__(self) -> None:
        self.listed = {"g": "classic", "h": "classic"}
        self.uncommitted: set[str] = set()
        self.unlisted: set[str] = set()  # their coordinators do not answer the list request
        self.asked: list[list[str]] = []

    def list_groups(self) -> list[GroupListing]:
        return [GroupListing(group, "consumer", "Stable", kind) for group, kind in self.listed.items()]

    def list_group_offsets(self, groups: list[str], **_: object) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]:
        self.asked.append(list(groups))
        committed = self.listed.keys() - self.uncommitted
        return {group: dict.fromkeys([P0], OffsetAndMetadata(1)) if group in committed else {} for group in groups}

    def describe_groups(self, groups: list[str]) -> dict[str, GroupDescription | KafkaFailure]:
        gone = BrokerFailure.of(69)
        alive = GroupDescription("", "consumer", "range", "Stable", "classic", ())
        return {group: alive if group in self.unlisted else gone for group in groups}


@pytest.fixture
def searching(monkeypatch: pytest.MonkeyPatch) -> tuple[MirrorCheckpointConnector, Groups]:
    """A connector that has listed the groups once, and its source."""
    connector, source = MirrorCheckpointConnector(), Groups()
    connector._prepared({**PROPS, "topics": "A.t"})  # no job runs
    monkeypatch.setattr(connector, "_source_admin", source)
    monkeypatch.setattr(connector, "_calm", SimpleNamespace(after_a_find=lambda _: 0.0))
    monkeypatch.setattr(connector, "_has_buried", True)
    monkeypatch.setattr(connector, "_bury", lambda *_: None)
    monkeypatch.setattr(connector, "context", SimpleNamespace(request_task_reconfiguration=lambda: None), raising=False)
    assert connector._refresh()
    return connector, source


def test_groups_that_are_followed_already_are_not_read_between_two_refreshes(
    searching: tuple[MirrorCheckpointConnector, Groups], monkeypatch: pytest.MonkeyPatch
) -> None:
    connector, source = searching
    monkeypatch.setattr(connector, "_find", None)
    connector._look()
    assert source.asked == [["g", "h"]], "only by the refresh"


def test_groups_that_the_flow_does_not_follow_are_filtered_once(
    searching: tuple[MirrorCheckpointConnector, Groups], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the group filter, or by their type. Most clusters have such groups, for instance those of Connect workers."""
    connector, source = searching
    filtered: list[str] = []

    def should_replicate_group(group: str) -> bool:
        filtered.append(group)
        return not group.startswith("console")

    groups: Any = SimpleNamespace(should_replicate_group=should_replicate_group)
    monkeypatch.setattr(connector, "_followed", replace(connector._followed, groups=groups))
    source.listed |= {"console-1": "classic", "workers": "unheard-of"}
    connector._look()
    assert sorted(filtered) == ["console-1", "g", "h"]
    for _ in range(3):
        connector._look()
    assert len(filtered) == 3, "the lists are compared"
    source.listed["console-2"] = "classic"
    connector._look()
    connector._look()
    assert len(filtered) == 7
    assert connector._groups == {"g": False, "h": False}


def test_a_group_that_has_not_committed_yet_is_searched_until_it_has(
    searching: tuple[MirrorCheckpointConnector, Groups],
) -> None:
    connector, source = searching
    source.listed |= {"console-1": "unheard-of", "new": "classic"}
    source.uncommitted = {"new"}
    connector._look()
    connector._look()
    assert sorted(connector._groups or ()) == ["g", "h"]
    source.uncommitted = set()
    connector._look()
    assert sorted(connector._groups or ()) == ["g", "h", "new"]
    asked = len(source.asked)
    connector._look()
    assert len(source.asked) == asked


def test_a_group_that_is_not_listed_is_searched_until_it_is_known_to_be_deleted(
    searching: tuple[MirrorCheckpointConnector, Groups],
) -> None:
    connector, source = searching
    del source.listed["h"]
    source.unlisted = {"h"}
    connector._look()
    connector._look()
    assert sorted(connector._groups or ()) == ["g", "h"]
    source.unlisted = set()
    connector._look()
    assert sorted(connector._groups or ()) == ["g"]


def test_groups_that_are_new_gone_or_of_another_type_are_found_between_two_refreshes(
    searching: tuple[MirrorCheckpointConnector, Groups],
) -> None:
    connector, source = searching
    source.listed["new"] = "consumer"
    connector._look()
    assert sorted(connector._groups or ()) == ["g", "h", "new"]
    del source.listed["h"]
    source.listed["g"] = "share"
    connector._look()
    assert connector._groups == {"g": True, "new": False}
    connector._look()
    assert connector._groups == {"g": True, "new": False}
