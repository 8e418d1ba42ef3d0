from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm2.copy.assignment import assign, costs

WEIGHT = st.none() | st.floats(0, 1e9) | st.sampled_from([0.0, math.inf, math.nan, -1.0])
WEIGHTS = st.lists(WEIGHT, max_size=60)


@given(weights=WEIGHTS, shares_count=st.integers(1, 12))
def test_every_item_is_assigned_once_and_no_share_is_empty(weights: list[float | None], shares_count: int) -> None:
    shares = assign(weights, shares_count)
    assert sorted(index for share in shares for index in share) == list(range(len(weights)))
    assert len(shares) == min(shares_count, len(weights))
    assert all(share and share == sorted(share) for share in shares)


@given(weights=st.lists(WEIGHT, max_size=7), shares_count=st.integers(1, 3))
def test_the_largest_load_is_at_most_a_third_above_the_optimum(weights: list[float | None], shares_count: int) -> None:
    known = costs(weights)

    def largest(owners: tuple[int, ...]) -> float:
        return max(sum(cost for cost, owner in zip(known, owners, strict=True) if owner == share) for share in range(3))

    optimum = min(map(largest, product(range(shares_count), repeat=len(known))))
    loads = [sum(known[index] for index in share) for share in assign(weights, shares_count)]
    assert max(loads, default=0.0) <= optimum * 4 / 3 * (1 + 1e-9)


@pytest.mark.parametrize("weights", [[None] * 8, [0.0] * 8, [7.5] * 8, [math.nan] * 8, [None, 3.0] * 4])
def test_equal_or_unknown_weights_are_assigned_round_robin(weights: list[float | None]) -> None:
    assert assign(weights, 3) == [[0, 3, 6], [1, 4, 7], [2, 5]]


def test_a_heavy_item_gets_its_own_share() -> None:
    assert assign([1.0, 1.0, 20.0, 1.0, 1.0], 2) == [[2], [0, 1, 3, 4]]


def test_idle_items_do_not_all_get_the_same_share() -> None:
    shares = assign([1000.0, 1000.0, *[0.0] * 100], 2)
    assert sorted(map(len, shares)) == [51, 51]


def test_few_or_no_items() -> None:
    assert assign([], 3) == []
    assert assign([1.0], 3) == [[0]]
