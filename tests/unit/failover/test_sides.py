"""What is read of a flow's configuration on the target."""

from __future__ import annotations

from typing import Any

import pytest

from mm2.failover.sides import CHECKPOINT_NAME, Sides
from mm2.mirror.checkpoint_task import ASSIGNED_GROUPS_KEY, encode_groups
from mm2.mirror.group_offsets import ASSIGNED_SHARE_GROUPS_KEY


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
