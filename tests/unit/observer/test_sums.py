"""What would be lost, summed over partitions."""

from __future__ import annotations

from typing import Any

from mm2.copy.states import PartitionState
from mm2.observer.sums import risk_of
from mm2.observer.views import PartitionView, Risk


def partition(lag: int | None, **more: Any) -> PartitionView:
    fields: dict[str, Any] = {"lag_records": lag, "lag_bytes": lag and lag * 10, "lag_seconds": lag and lag / 2, **more}
    return PartitionView("t", 0, "A.t", PartitionState.RUNNING, **fields)


IDLE = partition(0, lag_seconds=0.0, lag_bytes=0)


def test_the_oldest_record_and_the_sums_count() -> None:
    assert risk_of([partition(4), partition(6), IDLE]) == Risk(3.0, 10, 100, 10, 3.0)
    assert risk_of([]) == Risk(0.0, 0, 0, 0, 0.0)


def test_a_lower_bound_or_an_unknown_lag_makes_the_number_of_records_a_lower_bound() -> None:
    assert risk_of([partition(4), partition(6, is_lag_exact=False)]) == Risk(3.0, None, 100, 10, 3.0)
    assert risk_of([partition(4), partition(None, source_end=9)]) == Risk(None, None, None, 4, 2.0)
    assert risk_of([IDLE, partition(None, source_end=9)]) == Risk(None, None, None, 0)
    assert risk_of([partition(None)]) == Risk()


def test_the_greatest_known_age_is_a_lower_bound_while_another_age_is_unknown() -> None:
    seen = risk_of([partition(4), partition(6, lag_seconds=None)])
    assert (seen.seconds, seen.seconds_at_least, seen.records) == (None, 2.0, 10)
    assert risk_of([IDLE, partition(6, lag_seconds=None)]).seconds_at_least is None, "a bound of 0 says nothing"


def test_an_empty_partition_has_nothing_to_lose() -> None:
    assert risk_of([IDLE, partition(None, source_end=0)]) == Risk(0.0, 0, 0, 0, 0.0)


def test_partitions_that_the_flow_is_not_to_copy_are_left_out() -> None:
    assert risk_of([partition(4), partition(None, is_counted=False)]) == Risk(2.0, 4, 40, 4, 2.0)
