"""Which heartbeats the clusters should have."""

from __future__ import annotations

from mm2.cli.show.heartbeats import ExpectedHeartbeats
from mm2.config.mirrormaker import MirrorMakerConfig
from mm2.mirror.common.plugins import replication_policy

BASE = {"clusters": "A, B", "A.bootstrap.servers": "a:1", "B.bootstrap.servers": "b:1", "A->B.enabled": "true"}


def silent(alias: str, **more: str) -> list[tuple[str, str]]:
    """The heartbeats that a cluster without any should have."""
    props = {**BASE, **{key.replace("__", "."): value for key, value in more.items()}}
    return ExpectedHeartbeats.of(MirrorMakerConfig(props)).missing(alias, replication_policy({}), [])


def test_a_direction_that_is_not_enabled_needs_no_heartbeats() -> None:
    """It emits them by default, but only if a process for its target runs."""
    assert silent("A") == []
    assert silent("B") == [("heartbeats", "A->B")]


def test_two_enabled_directions_need_all_heartbeats() -> None:
    both = {"B->A__enabled": "true"}
    assert silent("A", **both) == [("B.heartbeats", "A->B"), ("heartbeats", "B->A")]
    assert silent("B", **both) == [("A.heartbeats", "B->A"), ("heartbeats", "A->B")]


def test_a_flow_without_heartbeats_needs_none() -> None:
    assert silent("B", **{"A->B__emit__heartbeats__enabled": "false"}) == []
