from collections import Counter
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from mm2.copy import segments
from mm2.copy.ledger import Ledger, chunk_record, chunk_tombstone, entry_record
from mm2.copy.segments import Trail
from mm2.copy.session import Before, Entry, Mark
from mm2.kafka.structs import TopicPartition


def test_a_rate_holds_as_long_as_its_entry_is_written() -> None:
    ledger = Ledger()
    assert ledger.rates() == {}
    for partition, written_ms in ((0, 1_000_000), (1, 1_030_000), (2, 969_999), (3, 1_000_000)):
        row = entry_record(Entry("t", partition, "A.t", Mark(0, 0, 0), rate=7))
        ledger.apply(row.key, row.value, written_ms)
    assert ledger.rates() == {TopicPartition("t", partition): rate for partition, rate in enumerate((7, 7, 0, 7))}
    row = entry_record(Entry("t", 3, "A.t", Mark(9, 9, 9), rate=8))
    ledger.apply(row.key, row.value, 1_040_000)
    assert ledger.rates() == {TopicPartition("t", partition): rate for partition, rate in enumerate((0, 7, 0, 8))}


@settings(max_examples=300, deadline=None)
@given(
    runs=st.lists(
        st.tuples(st.sampled_from(["", "", "control", "compacted"]), st.integers(1, 4)), min_size=1, max_size=60
    ),
    steps=st.lists(st.tuples(st.integers(1, 7), st.booleans()), min_size=1, max_size=60),
)
def test_whatever_transaction_is_never_committed_the_ledger_knows_every_offset_once(
    runs: list[tuple[str, int]], steps: list[tuple[int, bool]]
) -> None:
    """Ledger first, commit second: a crash in between takes back what the ledger said of the transaction, and no more."""
    place, partition = TopicPartition("t", 0), "A.t"
    ledger, committed, target, behind, done = Ledger(), None, 0, 0, 0
    reasons: dict[int, str] = {}
    there: dict[int, int] = {}
    with patch.object(segments, "CHUNK_SIZE", 5):
        for wanted, crashes in steps:
            count = wanted
            start = ledger.start(place, committed)
            trail = Trail(start.chunk, None if start.entry is None else start.entry.gaps)
            position = committed or 0
            while True:
                before = Before(
                    Mark(position, behind, 0), dict(trail.gaps), trail.newest.number, trail.newest.extent(), 0
                )
                taken = runs[done : done + count]
                for reason, length in taken:
                    if reason:
                        trail.missing(position, position + length, reason)
                        reasons.update(dict.fromkeys(range(position, position + length), reason))
                    else:
                        trail.copied(position, target, length)
                        there.update(
                            zip(range(position, position + length), range(target, target + length), strict=True)
                        )
                        target = behind = target + length
                    position += length
                changed, forgotten = trail.take_changed()
                said = Entry(
                    "t", 0, partition, Mark(position, behind, 0), committed, gaps=dict(trail.gaps), before=before
                )
                for record in (
                    *(chunk_record(place, chunk) for chunk in changed),
                    *(chunk_tombstone(place, number) for number in forgotten),
                    entry_record(said.replace(chunk=trail.newest.number)),
                ):
                    ledger.apply(record.key, record.value)
                target += 1  # the transaction's marker
                if crashes or not taken:
                    break
                committed, done = position, done + count
                count = 1  # and on, by the same executor
                if done >= len(runs):
                    break
    start = ledger.start(place, committed)
    reached = committed or 0
    reasons = {offset: reason for offset, reason in reasons.items() if offset < reached}
    if start.entry is not None:
        assert start.entry.gaps == Counter(reasons.values())
    chunks = [*(chunk for chunk in ledger.chunks(place) if start.chunk and chunk.number < start.chunk.number)]
    chunks += [start.chunk] if start.chunk else []
    told = {offset: gap.reason for chunk in chunks for gap in chunk.gaps for offset in range(gap.first, gap.after)}
    assert told == reasons
    lie = {
        segment.source + index: segment.target + index
        for chunk in chunks
        for segment in chunk.segments
        for index in range(segment.records)
    }
    assert lie == {offset: at for offset, at in there.items() if offset < reached}
