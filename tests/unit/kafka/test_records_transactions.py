"""Batches that read_committed filters, in the interleavings of Kafka's own consumer tests (FetcherTest)."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from mm2.kafka.records.batch import CONTROL, TRANSACTIONAL, iter_batches
from mm2.kafka.records.record import Record, decode_batch, encode_batch
from mm2.kafka.records.transactions import AbortedTransactions, control_type


class Log:
    """The bytes of a partition, like those of producers and the transaction coordinator."""

    def __init__(self) -> None:
        self.data = b""
        self.end = 0

    def send(self, producer: int, *keys: str) -> None:
        self._add([Record(key.encode(), b"v", timestamp=1) for key in keys], producer, TRANSACTIONAL)

    def plain(self, *keys: str) -> None:
        self._add([Record(key.encode(), b"v", timestamp=1) for key in keys], -1, 0)

    def abort(self, producer: int) -> None:
        self._mark(producer, 0)

    def commit(self, producer: int) -> None:
        self._mark(producer, 1)

    def skip(self, offsets: int) -> None:
        self.end += offsets

    def _mark(self, producer: int, kind: int) -> None:
        marker = Record(struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 0), timestamp=1)
        self._add([marker], producer, TRANSACTIONAL | CONTROL)

    def _add(self, records: list[Record], producer: int, attributes: int) -> None:
        identity = (producer, 0, 0) if producer >= 0 else (-1, -1, -1)
        self.data += encode_batch(records, producer=identity, attributes=attributes, base_offset=self.end)
        self.end += len(records)


def visible(log: Log, aborted: Iterable[tuple[int, int]]) -> str:
    """Keys of the records that a read_committed consumer returns; ``aborted`` as (producer id, first offset)."""
    filtered = AbortedTransactions(aborted)
    seen = []
    for view in iter_batches(memoryview(log.data)):
        hidden = filtered.covers(view)
        assert view.header is not None
        if not view.header.is_control and not hidden:
            seen += [(record.key or b"").decode() for record in decode_batch(view)]
    return " ".join(seen)


def test_committed_transactions_are_visible() -> None:
    log = Log()
    log.send(1, "a", "b")
    log.commit(1)
    assert visible(log, []) == "a b"


def test_committed_and_aborted_interleaved() -> None:
    # testReadCommittedWithCommittedAndAbortedTransactions
    log = Log()
    log.send(2, "abort2-1")
    log.send(1, "commit1-1", "commit1-2")
    log.send(2, "abort2-2")
    log.abort(2)
    log.commit(1)
    log.send(2, "commit2-1")
    log.send(1, "commit1-3")
    log.abort(1)
    log.commit(2)
    assert visible(log, [(2, 0), (1, 7)]) == "commit1-1 commit1-2 commit2-1"


def test_several_abort_markers_in_a_row() -> None:
    # testMultipleAbortMarkers: the second marker of the same producer has no effect
    log = Log()
    log.send(1, "abort1-1", "abort1-2")
    log.abort(1)
    log.abort(1)
    log.send(1, "commit1-1", "commit1-2")
    log.commit(1)
    assert visible(log, [(1, 0)]) == "commit1-1 commit1-2"


def test_an_abort_marker_without_data() -> None:
    # testReadCommittedAbortMarkerWithNoData
    log = Log()
    log.send(1, "abort1-1")
    log.abort(1)
    log.abort(2)
    log.send(3, "commit3-1")
    log.commit(3)
    assert visible(log, [(1, 0)]) == "commit3-1"


def test_compacted_topic_where_the_first_aborted_offset_is_gone() -> None:
    # testReadCommittedWithCompactedTopic
    log = Log()
    log.skip(15)
    log.send(1, "15", "16", "17")
    log.skip(12)
    log.send(2, "30", "31", "32")
    log.commit(2)
    log.send(3, "35", "36")
    log.commit(3)
    log.send(1, "39", "40")
    log.abort(1)
    assert visible(log, [(1, 6)]) == "30 31 32 35 36"


def test_a_producer_that_aborts_twice_with_a_commit_between() -> None:
    log = Log()
    log.send(5, "x1")
    log.abort(5)
    log.send(5, "ok")
    log.commit(5)
    log.send(5, "x2")
    log.abort(5)
    log.send(5, "open")
    assert visible(log, [(5, 4), (5, 0)]) == "ok open"


def test_records_outside_transactions_are_visible_while_one_is_aborted() -> None:
    log = Log()
    log.send(1, "x")
    log.plain("plain")
    log.send(1, "y")
    log.abort(1)
    assert visible(log, [(1, 0)]) == "plain"


def test_a_response_that_starts_within_an_aborted_transaction() -> None:
    log = Log()
    log.skip(40)
    log.send(1, "x")
    log.abort(1)
    log.send(1, "kept")
    assert visible(log, [(1, 3)]) == "kept"


def test_types_of_markers() -> None:
    log = Log()
    log.commit(1)
    log.abort(1)
    views = list(iter_batches(memoryview(log.data)))
    assert [control_type(view.header, view.data) for view in views if view.header] == [1, 0]


def test_a_compressed_marker_is_read() -> None:
    """Kafka does not compress markers; its clients read compressed ones."""
    marker = Record(struct.pack(">hh", 0, 0), bytes(6), timestamp=1)
    data = encode_batch([marker], codec="zstd", producer=(1, 0, 0), attributes=TRANSACTIONAL | CONTROL)
    (view,) = iter_batches(memoryview(data))
    assert view.header is not None
    assert control_type(view.header, view.data) == 0
