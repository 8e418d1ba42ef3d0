"""All parsers of external bytes, each with assertions that are true for any bytes.

A target returns whether it could decode the bytes. It may raise CorruptBatch (or BrokerFailure, where a response can contain an
error code); any other exception, including a failed assertion, is a finding.
"""

from __future__ import annotations

import socket
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mm2.kafka.client.channel import BufferPool, Channel
from mm2.kafka.errors import BrokerFailure, CorruptBatch, KafkaFailure
from mm2.kafka.records.batch import BatchView, assemble, check_crc, iter_batches, patch, read_header
from mm2.kafka.records.codec import CODECS, decompress
from mm2.kafka.records.merge import Merged, coalesce, merge
from mm2.kafka.records.record import Record, decode_batch, rewrite, split
from mm2.kafka.records.transactions import AbortedTransactions
from mm2.kafka.wire import produce
from tests.fuzz import seeds
from tests.unit.kafka.test_wire_fetch import session

Row = tuple[Any, ...]
REFUSALS: Final = (CorruptBatch, BrokerFailure)


@dataclass(frozen=True)
class Target:
    """``sealed``: CRCs are usually recomputed after the damage. ``share`` of all examples, in percent."""

    name: str
    seeds: Callable[[], Sequence[bytes]]
    run: Callable[[bytearray], bool]
    share: int = 0
    sealed: bool = False


def _rows(records: Sequence[Record]) -> list[Row]:
    return [(record.timestamp, record.key, record.value, record.headers) for record in records]


def _view(data: bytes | bytearray) -> BatchView:
    (view,) = iter_batches(memoryview(data))
    return view


def _decoded(view: BatchView) -> list[Record] | None:
    try:
        return decode_batch(view)
    except CorruptBatch:
        return None


def _same_after_rewriting(view: BatchView, rows: list[Row] | None) -> None:
    """A rewritten batch contains the same records and is valid by a broker's rules."""
    try:
        whole = rewrite(view)
        pieces = split(view, 2)
    except CorruptBatch:
        return
    found: list[Row] = []
    for piece in pieces:
        again = _view(piece.data)
        assert again.header is not None
        assert again.header.is_dense
        assert not again.header.is_log_append_time
        check_crc(again.header, again.data)
        decoded = _decoded(again)
        if decoded is None:
            assert rows is None, "rewriting has broken a record"
            return
        assert again.header.max_timestamp == max(record.timestamp or 0 for record in decoded)
        found += _rows(decoded)
    if rows is not None:
        assert found == rows
        assert len(found) == (0 if whole is None else len(whole.offsets))


def _same_after_patching(view: BatchView, rows: list[Row] | None) -> None:
    if view.header is None:
        return
    data = bytearray(view.data)
    patch(memoryview(data), view.header, (4, 1, 77), transactional=True)
    header = read_header(data)
    check_crc(header, memoryview(data))
    assert (header.base_offset, header.producer_id, header.producer_epoch, header.base_sequence) == (0, 4, 1, 77)
    assert header.codec == view.header.codec
    decoded = _decoded(_view(data))
    assert (None if decoded is None else _rows(decoded)) == rows


def read_batches(data: bytearray) -> bool:
    """Walk, decode, rewrite, split and patch."""
    read = False
    aborted = AbortedTransactions([(7, 0)])
    for view in iter_batches(memoryview(data)):
        aborted.covers(view)
        records = _decoded(view)
        rows = None if records is None else _rows(records)
        _same_after_rewriting(view, rows)
        _same_after_patching(view, rows)
        read = read or records is not None
    return read


def read_merged(data: bytearray) -> bool:
    """Compare `coalesce` and `merge` with decoding one batch at a time."""
    views: list[BatchView] = []
    try:
        views.extend(iter_batches(memoryview(data)))
        walked = True
    except CorruptBatch:
        walked = False
    items: list[BatchView | Merged] = []
    try:
        items.extend(coalesce(memoryview(data), 0, compressed=True, transactional=True))
        assert walked, "what cannot be walked was merged"
    except CorruptBatch:
        assert not walked, "what can be walked was refused"
    left = iter(views)
    some = False
    for item in items:
        if isinstance(item, Merged):
            some = True
            _compare(item, [next(left) for _ in range(item.batches)])
        else:
            assert item.data == next(left).data
    try:
        left = iter(views)
        for merged in merge(views):
            some = True
            _compare(merged, [next(left) for _ in range(merged.batches)])
    except ValueError as error:
        if "merged" not in str(error):
            raise
    return some


def _compare(merged: Merged, sources: Sequence[BatchView]) -> None:
    again = _view(merged.data)
    assert again.header == merged.header
    assert merged.header.is_plain
    check_crc(merged.header, again.data)
    assert merged.first == sources[0].base_offset
    decoded = _decoded(again)
    singly = [_decoded(view) for view in sources]
    if decoded is None:
        assert None in singly, "merging has broken a record"
        return
    wanted = [
        (record.offset, *row)
        for found in singly
        if found is not None
        for record, row in zip(found, _rows(found), strict=True)
    ]
    assert [(record.offset, *row) for record, row in zip(decoded, _rows(decoded), strict=True)] == wanted
    assert merged.after == merged.first + len(wanted)


def read_block(data: bytearray) -> bool:
    """Records of a batch with a valid header, in a codec chosen by the size."""
    codec = CODECS[len(data) % len(CODECS)]
    count = data[0]
    batch = assemble(
        codec.compress(data[1:], fast=True), count=count, attributes=codec.id, base_timestamp=5, max_timestamp=9
    )
    return read_batches(batch) | read_merged(batch + batch)


def read_packed(data: bytearray) -> bool:
    """Decompress; the result can be compressed again."""
    codec = data[0] % 8
    plain = decompress(codec, memoryview(data)[1:])
    if len(plain) < 4096:
        assert decompress(codec, CODECS[codec].compress(plain, fast=True)) == plain
    return True


def read_fetch(data: bytearray) -> bool:
    """A Fetch response of the version in the first byte, and iteration over its records."""
    version = data[0] if data[0] in seeds.FETCH_VERSIONS else seeds.FETCH_VERSIONS[data[0] % len(seeds.FETCH_VERSIONS)]
    for fetched in session().response(version, memoryview(data)[1:]):
        list(coalesce(fetched.records, 0))
    return True


def read_produce(data: bytearray) -> bool:
    """A Produce response of the version in the first byte."""
    version = (
        data[0] if data[0] in seeds.PRODUCE_VERSIONS else seeds.PRODUCE_VERSIONS[data[0] % len(seeds.PRODUCE_VERSIONS)]
    )
    produce.response(version, memoryview(data)[1:])
    return True


_POOL = BufferPool()


class _Loop:
    """The methods of an event loop that a channel calls when it only reads."""

    def add_reader(self, file: int, callback: Callable[[], None]) -> None: ...

    def remove_reader(self, file: int) -> None: ...


def read_frames(data: bytearray) -> bool:
    """The channel, on one end of a socket pair; the other end sends the bytes and closes."""
    near, far = socket.socketpair()
    try:
        near.setblocking(False)
        frames: list[bytes] = []
        losses: list[KafkaFailure] = []
        connection: Any = types.SimpleNamespace(sock=near, host="h", port=9, close=near.close)
        loop: Any = _Loop()
        channel = Channel(
            connection,
            loop,
            _POOL,
            on_frame=lambda frame: frames.append(bytes(frame)),
            on_lost=losses.append,
            max_frame_bytes=1 << 20,
        )
        for number in (1, 2, 3):
            channel.send((), number)
        far.sendall(data)
        channel._readable()
        far.close()
        while not channel.lost:
            channel._readable()
        assert len(losses) == 1
        assert [int.from_bytes(frame[:4], "big") for frame in frames] == [1, 2, 3][: len(frames)]
        sent = b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)
        assert data.startswith(sent)
        return len(frames) == 3
    finally:
        near.close()
        far.close()


TARGETS: Final = (
    Target("batches", seeds.batches, read_batches, 15, sealed=True),
    Target("merging", seeds.chains, read_merged, 15, sealed=True),
    Target("records", seeds.blocks, read_block, 5),
    Target("old-messages", seeds.old, read_batches, 15, sealed=True),
    Target("codecs", seeds.packed, read_packed, 20),
    Target("fetch-answer", seeds.fetch_answers, read_fetch, 10),
    Target("produce-answer", seeds.produce_answers, read_produce, 15),
    Target("frames", seeds.frames, read_frames, 5),
)
