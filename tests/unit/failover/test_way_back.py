"""Whether the flow in the opposite direction copies topics back after a failover."""

from __future__ import annotations

import pytest

from mm2.config.mirrormaker import MirrorMakerConfig, SourceAndTarget
from mm2.failover.sides import FlowConfig
from mm2.mirror.plan.way_back import WayBack, way_back
from mm2.reasons import WayBackCode

PAIR = SourceAndTarget("A", "B")
DISABLED = "no enabled flow copies what is written on B to A: for the way back set B->A.enabled = true and run a process with --clusters A"
NEVER_RUN = "B->A is enabled and has never run, which the way back requires: run a process with --clusters A"
TOPICS = {"orders": "A.orders", "audit": "A.audit"}


def of(reverse: str, *, has_run: bool = True, is_held: bool = False) -> WayBack:
    """Of a file with these lines about the opposite flow."""
    props = {"clusters": "A, B", "A.bootstrap.servers": "a:1", "B.bootstrap.servers": "b:1", "A->B.enabled": "true"}
    props |= {key: value for key, _, value in (line.partition("=") for line in reverse.split())}
    config = FlowConfig.of(MirrorMakerConfig(props), PAIR)
    reversed_props = None if config.reverse is None else config.reverse.source_connector
    return way_back(PAIR, reversed_props, TOPICS, has_run=has_run, is_held=is_held, error=config.reverse_error)


def test_the_flow_in_the_opposite_direction_has_to_be_enabled_and_to_have_run() -> None:
    assert of("").sentences() == [DISABLED]
    assert of("B->A.topics=.*", has_run=False).sentences() == [DISABLED]
    assert of("B->A.enabled=true", has_run=False).sentences() == [NEVER_RUN]
    assert of("B->A.enabled=true").sentences(copied=False) == []


@pytest.mark.parametrize(
    ("more", "is_held", "orders", "audit"),
    [
        ("", False, WayBackCode.COPIED, WayBackCode.COPIED),
        ("B->A.topics=eu\\..*", False, WayBackCode.NOT_SELECTED, WayBackCode.NOT_SELECTED),
        ("B->A.topics=ord.*", False, WayBackCode.COPIED, WayBackCode.NOT_SELECTED),
        ("B->A.topics.exclude=audit", False, WayBackCode.COPIED, WayBackCode.NOT_SELECTED),
        ("B->A.topics=ord.*", True, WayBackCode.HELD, WayBackCode.NOT_SELECTED),
        ("B->A.replication.policy.class=no.Such", False, WayBackCode.UNKNOWN, WayBackCode.UNKNOWN),
    ],
)
def test_filters_and_state_are_evaluated_for_each_topic(
    more: str, is_held: bool, orders: WayBackCode, audit: WayBackCode
) -> None:
    found = of(f"B->A.enabled=true {more}", is_held=is_held)
    assert found.topics == {"orders": orders, "audit": audit}
    claim = [one for one in found.sentences() if "is configured to copy" in one]
    assert bool(claim) is (WayBackCode.COPIED in {orders, audit})
    assert all(("orders" in one, "audit" in one) == (orders == "copied", audit == "copied") for one in claim)


def test_a_remote_topic_is_not_copied_back_to_its_source() -> None:
    config = FlowConfig.of(
        MirrorMakerConfig(
            {"clusters": "A, B", "A.bootstrap.servers": "a:1", "B.bootstrap.servers": "b:1", "B->A.enabled": "true"}
        ),
        PAIR,
    )
    assert config.reverse is not None
    found = way_back(PAIR, config.reverse.source_connector, {"A.orders": ""})
    assert found.topics == {"A.orders": WayBackCode.NOT_SELECTED}
