"""How many lanes a job has, and which partitions move when that changes."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from mm2.copy.driver.lanes.division import (
    JobSize,
    LaneState,
    divide,
    groups_of,
    lane_counts,
    most_lanes,
    next_partitions,
)
from mm2.copy.spec import PartitionSpec, TransactionsSpec
from mm2.kafka.structs import TopicPartition
from tests.unit.copy.driver.test_lane import spec_of


def test_what_is_copied_to_the_same_target_partition_is_one_group() -> None:
    a, b, c = PartitionSpec("a", 0, "x"), PartitionSpec("b", 0, "x"), PartitionSpec("b", 1, "x")
    assert groups_of([a, c, b]) == {TopicPartition("x", 0): (a, b), TopicPartition("x", 1): (c,)}


@pytest.mark.parametrize(
    ("partitions", "lanes", "automatic", "most"),
    [(50, 0, 4, 4), (50, 0, None, 25), (3, 0, 4, 1), (1, 0, None, 1), (50, 8, 4, 8), (50, 8, None, 8), (3, 8, 4, 3)],
)
def test_copy_lanes_is_a_limit_and_without_it_a_lane_has_two_groups(
    partitions: int, lanes: int, automatic: int | None, most: int
) -> None:
    parts = tuple(PartitionSpec("t", index, "A.t") for index in range(partitions))
    spec = replace(spec_of(1), partitions=parts, lanes=lanes)
    assert most_lanes(spec, automatic) == most
    # A transaction has one producer.
    assert most_lanes(replace(spec, transactions=TransactionsSpec("id")), automatic) == 1


@pytest.mark.parametrize(
    ("slots", "jobs", "counts"),
    [
        (9, [(100, 50)], [8]),
        (9, [(100, 50), (100, 50)], [4, 4]),
        (9, [(300, 150), (100, 50)], [6, 2]),
        (9, [(300, 1), (100, 50)], [1, 7]),
        (9, [(10, 5), (10, 5), (10, 5)], [3, 3, 2]),
        (100, [(10, 5), (4, 2)], [5, 2]),
        (2, [(10, 5), (10, 5), (10, 5)], [1, 1, 1]),
        (1, [(10, 5)], [1]),
        (None, [(10, 5), (4, 2)], [5, 2]),
        (9, [], []),
    ],
)
def test_slots_are_divided_among_jobs_by_their_groups(
    slots: int | None, jobs: list[tuple[int, int]], counts: list[int]
) -> None:
    assert lane_counts(slots, [JobSize(*job) for job in jobs]) == counts


def test_one_slot_more_is_one_lane_more_of_one_job() -> None:
    """Otherwise partitions of jobs would move whose number of lanes has not to change."""
    chance = random.Random(1)
    for _ in range(200):
        jobs = [JobSize(groups := chance.randint(1, 200), max(1, groups // 2)) for _ in range(chance.randint(1, 6))]
        before = lane_counts(2, jobs)
        for slots in range(3, 40):
            after = lane_counts(slots, jobs)
            grown = [now - was for now, was in zip(after, before, strict=True) if now != was]
            assert grown in ([], [1])
            assert sum(after) <= max(slots - 1, len(jobs)), "one slot is for the lane that hands off"
            before = after


def test_the_first_division_alternates() -> None:
    assert divide([], 3, list("abcdefg")) == [["a", "d", "g"], ["b", "e"], ["c", "f"]]


def test_evenly_spaced_groups_stay() -> None:
    """Neighbours are often partitions of the same topic, which may be the only one with traffic."""
    assert divide([list(range(8))], 4)[0] == [0, 4]


def test_a_division_is_even_and_complete_and_nothing_moves_that_need_not() -> None:
    chance = random.Random(2)
    for _ in range(500):
        current = [[(lane, at) for at in range(chance.randint(0, 9))] for lane in range(chance.randint(1, 6))]
        groups = [group for lane in current for group in lane]
        if not groups:
            continue
        count = chance.randint(1, min(len(groups), 8))
        shares = divide(current, count)
        assert sorted(group for share in shares for group in share) == sorted(groups)
        used = [share for share in shares if share]
        assert len(used) == count
        assert max(map(len, used)) - min(map(len, used)) <= 1
        assert all(not share for share in shares[count : len(current)]), "the first ones continue"
        kept = sum(group in was for was, now in zip(current, shares, strict=False) for group in now)
        size, rest = divmod(len(groups), count)
        lanes = sorted((len(lane) for lane in current[:count]), reverse=True)
        most_kept = sum(min(lane, size + (place < rest)) for place, lane in enumerate(lanes))
        assert kept == most_kept
        assert divide(shares[:count] if len(current) < count else used, count) == used, "it stays as it is"


T = [TopicPartition("t", index) for index in range(6)]


def test_a_partition_stays_until_the_other_lane_is_prepared_for_it() -> None:
    targets = {T[0]: 0, T[1]: 1}
    both = LaneState([T[0], T[1]], prepared=[T[0], T[1]])
    assert next_partitions([both, LaneState([])], targets) == [{T[0], T[1]}, {T[1]}]
    assert next_partitions([both, LaneState([], prepared=[T[1]])], targets) == [{T[0]}, {T[1]}]


def test_a_lane_that_ends_first_gives_away_what_no_lane_is_prepared_for() -> None:
    lanes = [LaneState([T[0]], prepared=[T[0]]), LaneState([T[1]], ends_first=True)]
    assert next_partitions(lanes, {T[0]: 0, T[1]: 0}) == [{T[0], T[1]}, set()]


def test_every_partition_reaches_its_lane_whatever_ends_in_between() -> None:
    """Lanes hand off, lose micro-batches and get other targets at any time. No partition is ever in two lanes."""
    chance = random.Random(3)
    for _ in range(300):
        count = chance.randint(2, 4)
        held: list[set[TopicPartition]] = [set() for _ in range(count)]
        for tp in T:
            chance.choice(held).add(tp)
        prepared = [set(lane) for lane in held]
        for step in range(60):
            if step in {0, 7}:
                targets = {tp: chance.randrange(count) for tp in T}
            states = [LaneState(held[lane], prepared[lane]) for lane in range(count)]
            wanted = next_partitions(states, targets)
            lane = chance.randrange(count)
            if step < 30 and chance.random() < 0.3:
                prepared[lane] = set()  # its micro-batch was lost
            else:
                given = held[lane] - wanted[lane]
                held[lane] -= given
                for tp in given:
                    held[targets[tp]].add(tp)
                prepared[lane] = wanted[lane] | held[lane]
            assert sorted(tp for lane_held in held for tp in lane_held) == T
        assert held == [{tp for tp in T if targets[tp] == lane} for lane in range(count)]
