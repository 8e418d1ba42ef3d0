import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm2.mirror.formats import OffsetSync
from mm2.mirror.sync_emission import OffsetPair, OffsetSyncQueue, OffsetSyncState

# spec mirrormaker §4.4 (Kafka's MirrorSourceTask test), offset.lag.max=50.
VECTORS = [
    (0, 100, True),
    (2, 102, True),
    (3, 152, False),
    (4, 153, True),
    (5, 154, False),
    (6, 203, False),
    (7, 204, True),
    (2, 206, True),
    (3, 207, False),
    (4, 3, True),
    (5, 4, False),
]


def test_the_record_level_rule() -> None:
    state = OffsetSyncState(50)
    assert [(up, down, state.update(up, down)) for up, down, _ in VECTORS] == VECTORS


def test_lag_zero_makes_every_record_a_sync() -> None:
    state = OffsetSyncState(0)
    assert all(state.update(up, up + 5) for up in range(20))


def test_a_second_record_below_the_lag_waits() -> None:
    queue = OffsetSyncQueue(2)
    queue.acked("t", 0, 0, 1)
    queue.acked("t", 0, 1, 2)
    assert queue.take(10) == [OffsetSync("t", 0, 0, 1)]
    queue.release_delayed()
    assert queue.take(10) == [OffsetSync("t", 0, 1, 2)]
    queue.release_delayed()
    assert queue.take(10) == []


def test_pending_keeps_the_order_of_first_need_and_the_newest_value() -> None:
    queue = OffsetSyncQueue(0)
    queue.acked("a", 0, 1, 1)
    queue.acked("b", 0, 1, 1)
    queue.acked("a", 0, 2, 2)
    assert len(queue) == 2
    assert queue.take(1) == [OffsetSync("a", 0, 2, 2)]
    assert queue.take(9) == [OffsetSync("b", 0, 1, 1)]


RUNS = st.lists(st.tuples(st.integers(0, 30), st.integers(-5, 30), st.integers(1, 60)), max_size=20)


@given(st.integers(0, 40), RUNS)
def test_a_run_gives_what_its_records_would_have_given(lag_max: int, runs: list[tuple[int, int, int]]) -> None:
    by_record, by_run = OffsetSyncState(lag_max), OffsetSyncState(lag_max)
    upstream = downstream = 100
    for gap_up, gap_down, count in runs:
        upstream, downstream = upstream + gap_up, max(downstream + gap_down, 0)
        newest = None
        for i in range(count):
            if by_record.update(upstream + i, downstream + i):
                newest = OffsetPair(upstream + i, downstream + i)
        assert by_run.update_run(upstream, downstream, count) == newest
        assert by_run == by_record
        upstream, downstream = upstream + count, downstream + count


@pytest.mark.parametrize("lag_max", [0, 3, 100])
def test_after_a_commit_the_last_position_of_every_partition_is_known(lag_max: int) -> None:
    queue = OffsetSyncQueue(lag_max)
    queue.acked("t", 0, 0, 10, 57)
    first = queue.take(10)
    queue.release_delayed()
    assert (first + queue.take(10))[-1] == OffsetSync("t", 0, 56, 66)
