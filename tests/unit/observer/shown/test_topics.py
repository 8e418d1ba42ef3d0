"""The topics of a flow, from its partitions."""

from __future__ import annotations

from mm2.copy.states import HEALTHY, PartitionState
from mm2.observer.shown.topics import SEVERITY, topic_views
from mm2.observer.views import PartitionView


def partition(topic: str, number: int, state: PartitionState = PartitionState.RUNNING, **more: object) -> PartitionView:
    return PartitionView(topic, number, f"A.{topic}", state, **more)  # type: ignore[arg-type]


def test_a_topic_has_the_sums_and_the_worst_state_of_its_partitions() -> None:
    views = (
        partition("a", 0, lag_records=3, lag_bytes=30, lag_seconds=1.5, records_per_s=2.0, bytes_per_s=10.0),
        partition("a", 1, PartitionState.PAUSED, lag_records=4, lag_bytes=40, lag_seconds=9.0, bytes_per_s=1.0),
        partition("a", 2, PartitionState.TOO_LARGE, lag_records=0, lag_bytes=0, bytes_per_s=0.0, lost_ranges=2),
        partition("b", 0, lag_records=None, foreign_records=5),
    )
    first, second = topic_views(views)
    assert (first.topic, first.remote_topic, first.state) == ("a", "A.a", PartitionState.TOO_LARGE)
    assert (first.partitions, first.unhealthy, first.lost_ranges) == (3, 1, 2), "a pause is deliberate"
    assert (first.lag_records, first.lag_bytes, first.lag_seconds) == (7, 70, 9.0)
    assert (first.records_per_s, first.bytes_per_s) == (None, 11.0), "a sum of unknown values is unknown"
    assert (second.lag_records, second.foreign_records, second.state) == (None, 5, PartitionState.RUNNING)


def test_the_lag_of_a_topic_is_a_lower_bound_if_that_of_a_partition_is() -> None:
    (topic,) = topic_views((partition("a", 0, lag_records=3), partition("a", 1, lag_records=4, is_lag_exact=False)))
    assert (topic.lag_records, topic.is_lag_exact) == (7, False)


def test_the_lag_of_a_topic_is_that_of_the_partitions_that_the_flow_is_to_copy() -> None:
    """The ledger still has the last partitions of a topic that was recreated with fewer ones."""
    gone = partition("a", 2, PartitionState.DELETED, lag_seconds=90.0, is_counted=False, is_lag_exact=False)
    (topic,) = topic_views((partition("a", 0, lag_records=3), partition("a", 1, lag_records=4), gone))
    assert (topic.partitions, topic.lag_records, topic.lag_seconds, topic.is_lag_exact) == (3, 7, None, True)
    (topic,) = topic_views((gone,))
    assert (topic.lag_records, topic.lag_seconds, topic.is_lag_exact) == (None, 90.0, False)


def test_every_state_has_a_severity_and_healthy_ones_are_the_least_severe() -> None:
    assert set(SEVERITY) == set(PartitionState)
    assert {state for state, rank in SEVERITY.items() if rank >= len(SEVERITY) - len(HEALTHY)} == HEALTHY
    assert SEVERITY[PartitionState.FAILED] < SEVERITY[PartitionState.THROTTLED] < SEVERITY[PartitionState.PAUSED]
