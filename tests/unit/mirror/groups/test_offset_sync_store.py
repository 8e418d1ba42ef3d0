import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm2.mirror.common.formats import OffsetSync
from mm2.mirror.groups.offset_sync_store import OffsetSyncStore, SyncHistory


def store(*, must_read_to_end: bool = False, ready: bool = True) -> OffsetSyncStore:
    made = OffsetSyncStore(must_read_to_end=must_read_to_end)
    if ready:
        made.first_read_done()
    return made


def sync(upstream: int, downstream: int | None = None) -> OffsetSync:
    return OffsetSync("t", 0, upstream, upstream if downstream is None else downstream)


def history(made: OffsetSyncStore) -> SyncHistory:
    found = made.history("t", 0)
    assert found is not None
    return found


def shown(made: OffsetSyncStore) -> str:
    """The upstream offsets by slot, as `0=5 1=4 2=2 3-63=0`."""
    parts, at = [], 0
    for upstream, run in itertools.groupby(entry.upstream_offset for entry in history(made)):
        last = at + len(list(run)) - 1
        parts.append(f"{at}={upstream}" if last == at else f"{at}-{last}={upstream}")
        at = last + 1
    return " ".join(parts)


GAPS = [1, 3, 100, 2, 50, 7, 1000, 1, 1, 1, 10, 500, 20, 5, 5, 5, 300]

# Recorded from OffsetSyncStore of Kafka 4.3.0.
VECTORS: list[tuple[list[int], str]] = [
    (list(range(6)), "0=5 1=4 2=2 3-63=0"),
    (list(range(9)), "0=8 1=7 2=6 3=4 4-63=0"),
    (list(range(21)), "0=20 1=19 2=18 3=16 4=8 5-63=0"),
    (list(range(1001)), "0=1000 1=999 2=998 3=996 4=992 5=976 6=960 7=896 8=768 9=512 10-63=0"),
    (list(range(0, 10001, 10)), "0-4=10000 5=9990 6=9960 7=9900 8=9840 9=9600 10=9120 11=8640 12=7680 13=3840 14-63=0"),
    (
        list(range(0, 100001, 100)),
        "0-7=100000 8=99900 9=99800 10=99600 11=99200 12=97600 13=96000 14=89600 15=76800 16=51200 17-63=0",
    ),
    (list(itertools.accumulate([0, *GAPS])), "0-9=2011 10=1676 11=1163 12-63=0"),
]


@pytest.mark.parametrize(("offsets", "expected"), VECTORS)
def test_history_thins_out_as_in_java(offsets: list[int], expected: str) -> None:
    made = store()
    for offset in offsets:
        made.update(sync(offset))
    assert shown(made) == expected


def test_without_readable_checkpoints_only_the_last_sync_before_the_start_is_usable() -> None:
    made = store(must_read_to_end=True, ready=False)
    for offset in range(0, 1001, 10):
        made.update(sync(offset))
    assert shown(made) == "0-63=1000"
    made.first_read_done()
    for offset in range(1010, 10001, 10):
        made.update(sync(offset))
    assert shown(made) == ("0-4=10000 5=9990 6=9970 7=9940 8=9880 9=9640 10=9160 11=8680 12=6760 13=4840 14-63=1000")


def test_the_same_upstream_offset_twice() -> None:
    made = store()
    made.update(sync(5, 5))
    made.update(sync(5, 6))
    assert [entry.downstream_offset for entry in history(made)] == [6] + [5] * 63
    assert made.translate("t", 0, 5) == 6
    assert made.translate("t", 0, 6) == 7


def test_offsets_are_translated_conservatively() -> None:
    made = store()
    made.update(sync(100, 200))
    assert [made.translate("t", 0, group) for group in (99, 100, 101, 150)] == [-1, 200, 201, 201]
    made.update(sync(150, 251))
    assert made.translate("t", 0, 150) == 251
    assert made.translate("t", 0, 5) == -1
    made.update(sync(200, 10))
    assert made.translate("t", 0, 200) == 10
    made.update(sync(20, 20))
    assert made.translate("t", 0, 20) == 20


def test_nothing_is_translated_before_the_first_read_is_complete() -> None:
    made = store(ready=False)
    made.update(sync(100, 200))
    assert made.translate("t", 0, 100) is None
    made.first_read_done()
    assert made.translate("t", 0, 100) == 200
    assert made.translate("t", 1, 100) is None


def test_offsets_near_the_end_of_the_number_range() -> None:
    made = store()
    for offset in (0, 1, 2**62, 2**63 - 2, 2**63 - 1):
        made.update(sync(offset))
    assert made.translate("t", 0, 2**63 - 1) == 2**63 - 1
    # The oldest sync is only lost here: a history cannot span more than 2^62 offsets. Conservative, as in Java.
    assert made.translate("t", 0, 0) == -1


@given(st.lists(st.integers(1, 5000), max_size=200))
def test_invariants_hold_whatever_the_steps(steps: list[int]) -> None:
    made = store()
    offsets = list(itertools.accumulate([0, *steps]))
    for offset in offsets:
        made.update(sync(offset))
    entries = history(made)
    assert entries[0].upstream_offset == offsets[-1]
    assert entries[63].upstream_offset == 0
    for i, j in itertools.combinations(range(64), 2):
        if entries[i] is not entries[j]:
            ahead = entries[i].upstream_offset - entries[j].upstream_offset
            assert (1 << max(i - 2, 0)) <= ahead <= (1 << j) - (1 << i)


@given(st.lists(st.integers(1, 50), min_size=2, max_size=100), st.data())
def test_translation_never_skips_a_record(steps: list[int], data: st.DataObject) -> None:
    made = store()
    offsets = list(itertools.accumulate([7, *steps]))
    for offset in offsets:
        made.update(sync(offset, 2 * offset))
    group = data.draw(st.integers(0, offsets[-1] + 10))
    translated = made.translate("t", 0, group)
    assert translated is not None
    assert translated == -1 if group < offsets[0] else translated <= 2 * group


def test_syncs_of_topics_that_no_cluster_can_have_are_not_kept() -> None:
    """Other clients may write to the offset-syncs topic, and each name is kept for the life of the process."""
    store = OffsetSyncStore(must_read_to_end=False)
    for length in (249, 250):
        store.update(OffsetSync("t" * length, 0, 5, 5))
    assert store.history("t" * 249, 0)
    assert store.history("t" * 250, 0) is None
