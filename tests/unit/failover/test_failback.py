"""What `mm2 failback` refuses before it changes anything."""

from __future__ import annotations

import pytest

from mm2.config.mirrormaker import SourceAndTarget
from mm2.failover.failback import check_reverse_names
from mm2.failover.sides import FlowConfig, Refused, Sides


def flow(source: str, target: str, regex: str = "") -> FlowConfig:
    """A flow, with a router that keeps the names of the source."""
    props = {
        "source.cluster.alias": source,
        "target.cluster.alias": target,
        "source.cluster.bootstrap.servers": "127.0.0.1:1",
        "target.cluster.bootstrap.servers": "127.0.0.1:1",
    }
    if regex:
        props |= {"transforms": "r", "transforms.r.type": "RegexRouter"}
        props |= {"transforms.r.regex": regex, "transforms.r.replacement": "$1"}
    return FlowConfig(SourceAndTarget(source, target), props, props, {}, has_reverse=True)


def test_the_opposite_flow_has_to_keep_the_names_that_a_router_keeps() -> None:
    """Otherwise it would not continue the topics, but copy them to others."""
    sides = Sides(flow("A", "B", r"A\.(.*)"))
    check_reverse_names(sides, flow("B", "A", r"B\.(.*)"), ["t"])
    with pytest.raises(Refused) as caught:
        check_reverse_names(sides, flow("B", "A"), ["u", "t"])
    assert str(caught.value).startswith("B->A would copy t to A as B.t, so it cannot continue the topic t there")
