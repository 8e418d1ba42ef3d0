"""A batch that expands to gigabytes costs at most the limit, wherever a batch is decompressed or decoded."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pytest

from mm2.kafka.errors import BatchOverLimit, CorruptBatch
from mm2.kafka.readers.key_values import collect
from mm2.kafka.records.batch import BatchView, iter_batches
from mm2.kafka.records.codec import CODECS, codec_of, decompress
from mm2.kafka.records.legacy import read_message_set
from mm2.kafka.records.record import Record, decode_batch, encode_batch, rewrite, split
from tests.support import bombs

_MIB: Final = 1 << 20
#: What a process may take beside its imports: the block, the buffer that it is decompressed into, and its records.
_GROWTH_BYTES: Final = 260 * _MIB

_DECODING: Final = ("decode", "rewrite", "split", "collect", "verify")

#: Reads each file of batches by some paths under a limit of its address space. Prints how each ended, and at last how much
#: memory the process took beside its imports.
_CHILD: Final = """
import resource, sys
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.readers.key_values import collect
from mm2.kafka.records.batch import iter_batches
from mm2.kafka.records.legacy import read_message_set
from mm2.kafka.records.merge import coalesce
from mm2.kafka.records.record import decode_batch, rewrite, split
from mm2.verify.comparing.records import Block

paths = {
    "decode": lambda: decode_batch(views[0]),
    "rewrite": lambda: rewrite(views[0]),
    "split": lambda: split(views[0], 2),
    "collect": lambda: collect(views, 0),
    "messages": lambda: read_message_set(views[0]),
    "merge": lambda: list(coalesce(data, 0, compressed=True)),
    "verify": lambda: (block := Block(views[0], 0, 1 << 40)).load() and block.item(0),
}
pages = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
def peak():  # ru_maxrss includes the process that has forked this one
    (line,) = (line for line in open("/proc/self/status") if line.startswith("VmHWM:"))
    return int(line.split()[1])
before = peak()
resource.setrlimit(resource.RLIMIT_AS, (pages + int(sys.argv[2]), -1))
for name in sys.argv[3:]:
    data = memoryview(open(name, "rb").read())
    views = list(iter_batches(data))
    for path in sys.argv[1].split():
        try:
            paths[path]()
            print("done")
        except (KafkaFailure, MemoryError) as error:
            print(f"{type(error).__name__}: {error}")
print(peak() - before)
"""


def read_in_child(paths: Iterable[str], tmp_path: Path, *files: bytes | bytearray) -> list[str]:
    """How reading each of these files by each path ended. The process must have taken little memory."""
    names = [tmp_path / str(index) for index in range(len(files))]
    for name, data in zip(names, files, strict=True):
        name.write_bytes(data)
    command = [sys.executable, "-c", _CHILD, " ".join(paths), str(_GROWTH_BYTES), *map(str, names)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr[-500:]
    *ends, kilobytes = found.stdout.splitlines()
    assert int(kilobytes) << 10 < _GROWTH_BYTES, ends
    return ends


@pytest.mark.parametrize("codec", bombs.ZEROS)
def test_a_bomb_costs_at_most_the_limit(codec: str, tmp_path: Path) -> None:
    """With zstd 14 KB stand for 450 MB."""
    ends = read_in_child(_DECODING, tmp_path, bombs.zeros(codec))
    assert len(ends) == len(_DECODING)
    for end in ends:
        assert end.startswith("BatchOverLimit: the batch at offsets 0..0 is not decompressed: a ")
        assert end.endswith("decompresses to more than 67108864 bytes (decompression.max.bytes)")


def test_a_bomb_in_an_old_message_set_costs_at_most_the_limit(tmp_path: Path) -> None:
    """Messages of magic 1 carry any codec but zstd."""
    packed = [bombs.ZEROS[codec] for codec in ("gzip", "snappy", "lz4", "lz4-linked")]
    files = [bombs.message_set(codec_id, pack(200 * _MIB)) for codec_id, pack in packed]
    for end in read_in_child(["messages"], tmp_path, *files):
        assert end.startswith("BatchOverLimit: the message set at offset 0 (magic 1) is not decompressed: ")


def test_millions_of_records_in_a_small_batch_are_not_decoded(tmp_path: Path) -> None:
    """9 million records of seven bytes fit into the limit, their objects do not."""
    data = bombs.many_records()
    assert len(data) < 10_000
    for end in read_in_child(_DECODING, tmp_path, data):
        assert end.startswith("BatchOverLimit: the batch at offsets 0..8999999 is not decompressed: 9000000 records ")


def test_millions_of_headers_in_a_record_are_not_decoded(tmp_path: Path) -> None:
    """A header takes two bytes in the batch and more than a hundred as objects."""
    for end in read_in_child(["decode", "verify"], tmp_path, bombs.many_headers()):
        assert end.startswith("BatchOverLimit: ")
        assert "20000000 headers" in end


def test_tiny_bombs_are_not_merged(tmp_path: Path) -> None:
    """A copier that is far behind merges batches of less than 4 KB; these would make gigabytes."""
    assert read_in_child(["merge"], tmp_path, b"".join(bombs.tiny())) == ["done"]


def test_many_batches_together_cost_no_more_than_one(tmp_path: Path) -> None:
    """Each batch is below the limit, but all keys and values of an answer of a compacted topic are kept."""
    batches = b"".join(bombs.one_record(32 * _MIB, key=b"k%d" % index, offset=index) for index in range(20))
    (end,) = read_in_child(["collect"], tmp_path, batches)
    assert end.startswith("BatchOverLimit: the batches from offset ")


def the_view(data: bytes | bytearray) -> BatchView:
    (view,) = iter_batches(memoryview(data))
    return view


def test_a_claimed_record_count_allocates_nothing() -> None:
    """2,147,483,647 records over seven bytes."""
    view = the_view(bombs.claimed_count())
    for read in (decode_batch, rewrite, lambda one: collect([one], 0)):
        with pytest.raises(CorruptBatch, match="the header has 2147483647 records, the block 7 bytes") as caught:
            read(view)
        assert not isinstance(caught.value, BatchOverLimit)


def test_a_claimed_header_count_allocates_nothing() -> None:
    """A record of a few bytes that claims a billion headers is corrupt, not too large."""
    body = b"\x00\x00\x00\x01\x01" + b"\xfe\xff\xff\xff\x0f" + b"\x00\x01"
    view = the_view(bombs.batch_of(bytes((len(body) * 2,)) + body, 0))
    with pytest.raises(CorruptBatch, match="a record has 2147483647 headers and 2 bytes") as caught:
        decode_batch(view)
    assert not isinstance(caught.value, BatchOverLimit)


@pytest.mark.parametrize("codec", [codec.name for codec in CODECS[1:]])
def test_the_limit_is_exact(codec: str) -> None:
    """A block of the limit passes, one byte more does not; for each codec, also beyond its buffers."""
    for size in (1, 1000, 65_536, 65_537, 300_000, 5 << 20):
        data = bytes(index * index >> 3 & 0xFF for index in range(min(size, 4096))) * -(-size // min(size, 4096))
        packed = codec_of(codec).compress(data)
        assert decompress(codec_of(codec).id, packed, len(data)) == data
        with pytest.raises(BatchOverLimit, match=f"more than {len(data) - 1} bytes"):
            decompress(codec_of(codec).id, packed, len(data) - 1)


def test_uncompressed_records_have_no_limit_of_bytes() -> None:
    """They have been received already."""
    data = encode_batch([Record(b"k", bytes(10_000))])
    assert len(decode_batch(the_view(data), 1000)) == 1


def test_records_over_a_lowered_limit_are_rejected_by_every_reader() -> None:
    """The limit is a parameter everywhere."""
    view = the_view(encode_batch([Record(b"k", bytes(10_000)), Record(b"l", b"")], codec="lz4"))
    for read in (
        lambda: decode_batch(view, 5000),
        lambda: rewrite(view, limit=5000),
        lambda: split(view, 2, 5000),
        lambda: collect([view], 0, 5000),
    ):
        with pytest.raises(BatchOverLimit, match="5000 bytes"):
            read()
    assert len(decode_batch(view, 20_000)) == 2


def test_old_messages_over_a_lowered_limit_are_rejected() -> None:
    """By the number of messages, too."""
    inner = b"".join(bytes(bombs.message_set(0, b"")) for _ in range(20))
    view = the_view(bombs.message_set(bombs.GZIP, bombs.codec_of_gzip(inner)))
    assert len(read_message_set(view)) == 20
    with pytest.raises(BatchOverLimit, match="more than 19 messages"):
        read_message_set(view, most=19)
