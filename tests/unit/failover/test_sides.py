"""What is read of a flow's configuration on the target."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mm2.failover.sides import CHECKPOINT_NAME, Sides
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, TimeoutFailure
from mm2.kafka.structs import GroupDescription, PartitionInfo, TopicInfo
from mm2.mirror.checkpoint_task import ASSIGNED_GROUPS_KEY, encode_groups
from mm2.mirror.common.clients import MirrorClients, Side
from mm2.mirror.groups.group_offsets import ASSIGNED_SHARE_GROUPS_KEY


def test_the_types_of_groups_are_those_of_the_checkpoint_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [
        {ASSIGNED_GROUPS_KEY: encode_groups(["a", "b,c"]), ASSIGNED_SHARE_GROUPS_KEY: encode_groups(["s"])},
        {ASSIGNED_GROUPS_KEY: "", ASSIGNED_SHARE_GROUPS_KEY: encode_groups(["t"])},
    ]

    class State:
        def all_task_configs(self, connector: str) -> list[dict[str, str]]:
            assert connector == CHECKPOINT_NAME
            return tasks

    sides: Any = Sides.__new__(Sides)
    monkeypatch.setattr(Sides, "_config_state", lambda _: State())
    assert sides.assigned_groups() == ({"a", "b,c"}, {"s", "t"})


@pytest.mark.parametrize(
    ("answer", "workers"),
    [
        (BrokerFailure.of(ErrorCode.GROUP_ID_NOT_FOUND), 0),
        (GroupDescription("w", "connect", "", "Dead", "", ()), 0),
        (GroupDescription("w", "connect", "", "Empty", "", ()), 0),
        (GroupDescription("w", "connect", "", "Stable", "", (object(),)), 1),  # type: ignore[arg-type]
        (BrokerFailure.of(ErrorCode.COORDINATOR_NOT_AVAILABLE), None),
        (BrokerFailure.of(ErrorCode.GROUP_AUTHORIZATION_FAILED), None),
        (TimeoutFailure("no answer"), None),
    ],
    ids=["deleted", "dead", "empty", "one", "no coordinator", "no right", "no answer"],
)
def test_workers_are_not_taken_as_stopped_if_their_group_is_not_described(answer: Any, workers: int | None) -> None:
    sides: Any = Sides.__new__(Sides)
    sides.config = SimpleNamespace(worker={"group.id": "w"})
    sides.target = SimpleNamespace(describe_groups=lambda groups: dict.fromkeys(groups, answer))
    assert sides.workers == workers


def test_a_ledger_without_a_leader_is_not_waited_for_on_the_source() -> None:
    """The commands have to work with a source that has lost some of its brokers."""
    sides: Any = Sides.__new__(Sides)
    sides.clients = MirrorClients({"source.cluster.alias": "A", "target.cluster.alias": "B"})
    ledger = TopicInfo("mm2-ledger.B.internal", "", False, {0: PartitionInfo(-1, 5, (1,), ())})
    sides.source = SimpleNamespace(describe_topics=lambda names: dict.fromkeys(names, ledger))
    sides.target = None
    with pytest.raises(BrokerFailure, match="LEADER_NOT_AVAILABLE"):
        sides._follow(Side.SOURCE)
