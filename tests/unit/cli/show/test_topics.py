"""Output of `mm2 topics` for a snapshot."""

from __future__ import annotations

import io
from dataclasses import replace

from mm2.cli.show.topics import exit_code, write_topics
from mm2.copy.states import PartitionState
from mm2.observer.shown.topics import topic_views
from mm2.observer.views import FlowState, FlowView, PartitionView, Risk, Snapshot

FLOW = FlowView("A", "B", FlowState.RUNNING, "", Risk())
TOPICS = topic_views(
    (
        PartitionView(
            "orders", 0, "A.orders", PartitionState.RUNNING, lag_records=1200, lag_seconds=1.25, bytes_per_s=99.9
        ),
        PartitionView("orders", 1, "A.orders", PartitionState.TOO_LARGE, lag_records=5, bytes_per_s=0.0, lost_ranges=1),
        PartitionView("quiet", 0, "", PartitionState.RUNNING),
    )
)


def lines(*, with_flow: bool = False, wide: bool = False) -> list[str]:
    out = io.StringIO()
    write_topics(out, [(FLOW, topic) for topic in TOPICS], with_flow=with_flow, wide=wide)
    return [" ".join(line.split()) for line in out.getvalue().splitlines()]


def test_a_topic_is_one_line() -> None:
    assert lines() == [
        "TOPIC PARTITIONS UNHEALTHY LAG BYTES/S STATE REMOTE TOPIC",
        "orders 2 1 1,205 99 TOO_LARGE A.orders",
        "quiet 1 0 - - RUNNING -",
    ]
    assert lines(with_flow=True)[1] == "A->B orders 2 1 1,205 99 TOO_LARGE A.orders"


def test_a_lag_that_may_be_larger_is_marked() -> None:
    view = PartitionView("a", 0, "A.a", PartitionState.UNREACHABLE, lag_records=0, is_lag_exact=False)
    out = io.StringIO()
    write_topics(out, [(FLOW, topic) for topic in topic_views((view,))], with_flow=False, wide=False)
    assert "at least 0" in out.getvalue()


def test_wide_lines_have_more_columns() -> None:
    assert lines(wide=True) == [
        "TOPIC PARTITIONS UNHEALTHY LAG SECONDS BYTES BYTES/S LOST FOREIGN STATE REMOTE TOPIC",
        "orders 2 1 1,205 1.2 - 99 1 0 TOO_LARGE A.orders",
        "quiet 1 0 - - - - 0 0 RUNNING -",
    ]


def test_topics_of_a_source_that_does_not_answer_are_not_known() -> None:
    silent = replace(FLOW, source_error="does not answer")
    known = replace(silent, partitions=(PartitionView("quiet", 0, "A.quiet", PartitionState.RUNNING),))
    assert exit_code(Snapshot(1, "", (silent,)), []) == 2
    assert exit_code(Snapshot(1, "", (known,)), topic_views(known.partitions)) == 0
    assert exit_code(Snapshot(1, "", (FLOW,)), []) == 0
