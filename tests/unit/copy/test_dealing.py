from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm2.copy.dealing import costs, deal

WEIGHTS = st.lists(st.none() | st.floats(0, 1e9) | st.sampled_from([0.0, math.inf, math.nan, -1.0]), max_size=60)


@given(weights=WEIGHTS, parties=st.integers(1, 12))
def test_everything_is_dealt_once_and_nobody_goes_empty(weights: list[float | None], parties: int) -> None:
    shares = deal(weights, parties)
    assert sorted(index for share in shares for index in share) == list(range(len(weights)))
    assert len(shares) == min(parties, len(weights))
    assert all(share and share == sorted(share) for share in shares)


@given(weights=WEIGHTS, parties=st.integers(1, 12))
def test_the_heaviest_share_is_at_most_a_third_over_what_it_must_be(weights: list[float | None], parties: int) -> None:
    shares = deal(weights, parties)
    heavy = sorted(costs(weights), reverse=True)
    # No deal is better than this: an equal share, the heaviest thing, or the two lightest of the first parties + 1.
    pair = heavy[parties - 1] + heavy[parties] if len(heavy) > parties else 0.0
    lowest = max([sum(heavy) / parties, pair, *heavy[:1]])
    assert all(sum(costs(weights)[index] for index in share) <= lowest * 4 / 3 * (1 + 1e-9) for share in shares)


@pytest.mark.parametrize("weights", [[None] * 8, [0.0] * 8, [7.5] * 8, [math.nan] * 8, [None, 3.0] * 4])
def test_equal_or_unknown_weights_are_dealt_round_robin(weights: list[float | None]) -> None:
    assert deal(weights, 3) == [[0, 3, 6], [1, 4, 7], [2, 5]]


def test_a_hot_one_gets_a_party_of_its_own() -> None:
    assert deal([1.0, 1.0, 20.0, 1.0, 1.0], 2) == [[2], [0, 1, 3, 4]]


def test_idle_ones_do_not_all_go_to_one_party() -> None:
    shares = deal([1000.0, 1000.0, *[0.0] * 100], 2)
    assert sorted(map(len, shares)) == [51, 51]


def test_nothing_to_deal() -> None:
    assert deal([], 3) == []
    assert deal([1.0], 3) == [[0]]
