from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mm2.copy.assignment import assign, costs
from mm2.kafka.structs import TopicPartition
from mm2.mirror.source.task_assignment import WORTH_BYTES_PER_S, WORTH_RATIO, Shares, TaskAssignment, reassign

ALL = tuple(TopicPartition(topic, partition) for topic in ("a", "b", "c") for partition in range(8))
SOME = st.sets(st.sampled_from(ALL)).map(lambda some: tuple(sorted(some)))
RATES = st.dictionaries(st.sampled_from(ALL), st.floats(0, 5e8))
FLOORS = 0.1  # the fixed cost of a partition, which is in the weights and not in these loads
TASKS = st.integers(1, 6)


def loads(shares: Shares, rates: dict[TopicPartition, float]) -> list[float]:
    weights = dict(zip(ALL, costs([rates.get(tp) for tp in ALL]), strict=True))
    return [sum(weights[tp] for tp in share) for share in shares]


def moved(before: Shares, after: Shares) -> set[TopicPartition]:
    """Partitions that moved to another task."""
    task = {tp: index for index, share in enumerate(before) for tp in share}
    return {tp for index, share in enumerate(after) for tp in share if task.get(tp, index) != index}


def round_robin(partitions: tuple[TopicPartition, ...], max_tasks: int) -> list[list[TopicPartition]]:
    """Assign partition k to task k modulo the number of tasks, as Java does."""
    count = min(max_tasks, len(partitions))
    return [list(partitions[index::count]) for index in range(count)]


@given(partitions=SOME, tasks=TASKS)
def test_the_first_assignment_equals_java_s(partitions: tuple[TopicPartition, ...], tasks: int) -> None:
    assert reassign(partitions, tasks, [], {}) == round_robin(partitions, tasks)


@given(before=SOME, tasks=TASKS, now=SOME, tasks_now=TASKS, rates=RATES)
def test_everything_is_assigned_once_and_no_task_is_empty(
    before: tuple[TopicPartition, ...],
    tasks: int,
    now: tuple[TopicPartition, ...],
    tasks_now: int,
    rates: dict[TopicPartition, float],
) -> None:
    shares = reassign(now, tasks_now, reassign(before, tasks, [], rates), rates)
    assert sorted(tp for share in shares for tp in share) == list(now)
    assert len(shares) == min(tasks_now, len(now))
    assert all(shares)


@given(before=SOME, now=SOME, tasks=TASKS, rates=RATES)
def test_an_assignment_is_kept_until_something_changes(
    before: tuple[TopicPartition, ...],
    now: tuple[TopicPartition, ...],
    tasks: int,
    rates: dict[TopicPartition, float],
) -> None:
    shares = reassign(now, tasks, reassign(before, tasks, [], {}), rates)
    assert reassign(now, tasks, shares, rates) == shares


@given(tasks=TASKS, rates=RATES)
def test_partitions_move_only_for_a_large_imbalance_and_then_the_load_is_even(
    tasks: int, rates: dict[TopicPartition, float]
) -> None:
    before = round_robin(ALL, tasks)
    after = reassign(ALL, tasks, before, rates)
    best = max(loads([[ALL[i] for i in share] for share in assign([rates.get(tp) for tp in ALL], tasks)], rates))
    over = max(loads(before, rates)) - best
    if moved(before, after):
        assert max(loads(before, rates)) > WORTH_RATIO * best * (1 - FLOORS)
        assert over > WORTH_BYTES_PER_S * (1 - FLOORS)
        assert max(loads(after, rates)) <= WORTH_RATIO * best * (1 + FLOORS)
    else:
        assert over <= max(WORTH_BYTES_PER_S, (WORTH_RATIO - 1) * best) + FLOORS * best + 1e-6


def tps(text: str) -> list[TopicPartition]:
    return [TopicPartition(item[0], int(item[1:])) for item in text.split()]


def test_new_partitions_go_to_the_least_loaded_task_and_move_no_others() -> None:
    current = [tps("a0 a2"), tps("a1 a3")]
    rates = dict(zip(tps("a0 a1 a2 a3"), (4e6, 3e6, 4e6, 4e6), strict=True))
    assert reassign(tps("a0 a1 a2 a3 b0"), 2, current, rates) == [tps("a0 a2"), tps("a1 a3 b0")]


def test_deleted_partitions_do_not_move_the_others() -> None:
    assert reassign(tps("a0 a1 a2"), 2, [tps("a0 a2 b0"), tps("a1 b1")], {}) == [tps("a0 a2"), tps("a1")]


def test_of_two_hot_partitions_in_one_task_one_moves_and_nothing_else() -> None:
    current = [tps("a0 a2 a4"), tps("a1 a3 a5")]
    rates = dict.fromkeys(tps("a1 a3 a4 a5"), 1e5) | dict.fromkeys(tps("a0 a2"), 5e7)
    after = reassign(tps("a0 a1 a2 a3 a4 a5"), 2, current, rates)
    assert len(moved(current, after)) == 1
    assert moved(current, after) <= set(tps("a0 a2"))


def test_partitions_with_little_traffic_do_not_move() -> None:
    current = [tps("a0 a1"), tps("a2 a3")]
    assert reassign(tps("a0 a1 a2 a3"), 2, current, dict.fromkeys(tps("a0 a1"), 9e4)) == current


def test_a_single_hot_partition_is_not_moved() -> None:
    current = [tps("a0"), tps("a1 a2 a3")]
    assert (
        reassign(tps("a0 a1 a2 a3"), 2, current, {tps("a0")[0]: 9e8} | dict.fromkeys(tps("a1 a2 a3"), 1e3)) == current
    )


def test_another_number_of_tasks_is_a_new_assignment() -> None:
    current = [tps("a0 a2 a4"), tps("a1 a3 a5")]
    assert reassign(tps("a0 a1 a2 a3 a4 a5"), 3, current, {}) == [tps("a0 a3"), tps("a1 a4"), tps("a2 a5")]


def test_a_new_assignment_moves_as_few_partitions_as_possible() -> None:
    current = [tps("a1 a2"), tps("a0 a4"), tps("a3")]
    rates = dict.fromkeys(tps("a1 a2 a3 a4"), 1e6) | {tps("a0")[0]: 9e7}
    assert reassign(tps("a0 a1 a2 a3 a4"), 2, current, rates) == [tps("a1 a2 a3 a4"), tps("a0")]


HOT = dict.fromkeys(tps("a0 a2"), 5e7) | dict.fromkeys(tps("a1 a3"), 1e3)


def test_an_assignment_continues_the_stored_one() -> None:
    stored = [tps("a0 a1 a2"), tps("a3 a4 b7")]
    assignment = TaskAssignment(lambda: stored)
    assert assignment.shares(tuple(tps("a0 a1 a2 a3 a4")), 2) == [tps("a0 a1 a2"), tps("a3 a4")]
    assert assignment.tasks == 2


def test_an_assignment_changes_only_with_new_partitions_tasks_or_measurements() -> None:
    assignment = TaskAssignment(list)
    assert assignment.tasks == 0
    assert assignment.weigh(dict.fromkeys(HOT, 1.0)) == 0, "nothing is assigned yet"
    four = tuple(tps("a0 a1 a2 a3"))
    first = assignment.shares(four, 2)
    assert first == [tps("a0 a2"), tps("a1 a3")]
    assert assignment.shares(four, 2) == first
    assert assignment.weigh({}) == 0
    assert assignment.weigh(HOT) == 1
    second = assignment.shares(four, 2)
    assert moved(first, second) < set(tps("a0 a2"))
    assert assignment.weigh(HOT) == 0
    assert assignment.shares(four, 2) == second
    assert sorted(tp for share in assignment.shares((*four, *tps("a4")), 2) for tp in share) == tps("a0 a1 a2 a3 a4")
    assert len(assignment.shares(four, 3)) == 3


def test_partitions_that_are_copied_to_the_same_partition_have_one_task() -> None:
    partitions = [TopicPartition(topic, number) for topic in ("a", "b", "c") for number in range(3)]

    def target_of(tp: TopicPartition) -> TopicPartition:
        return tp if tp.topic == "c" else TopicPartition("merged", tp.partition)

    assignment = TaskAssignment(list, target_of)
    for tasks in (1, 2, 4, 9):
        shares = assignment.shares(tuple(partitions), tasks)
        assert sorted(tp for share in shares for tp in share) == partitions
        assert len(shares) == min(tasks, 6)
        task_of = {tp: index for index, share in enumerate(shares) for tp in share}
        assert all(task_of[TopicPartition("a", n)] == task_of[TopicPartition("b", n)] for n in range(3))
    assignment.weigh({TopicPartition("a", 0): 9e6, TopicPartition("b", 0): 9e6, TopicPartition("c", 0): 1.0})
