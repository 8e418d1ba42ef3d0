"""The data that is copied: how large its records are, how they lie in batches and partitions."""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice

_DISTINCT_VALUES = 4096
_RECORD_OVERHEAD_BYTES = 10


@dataclass(frozen=True)
class Shape:
    """One data set. `batch_bytes` is counted before compression; `hot` is how often partition 0 gets a batch for each
    that another one gets. `age_days` is how old the records' timestamps are."""

    name: str
    title: str
    records: int
    record_bytes: int
    batch_bytes: int
    partitions: int = 8
    codec: str = "none"
    hot: int = 1
    age_days: int = 0

    @property
    def records_per_batch(self) -> int:
        return max(1, self.batch_bytes // (self.record_bytes + _RECORD_OVERHEAD_BYTES))

    @property
    def payload_bytes(self) -> int:
        """Values only, before compression: what MB and GB mean in every figure."""
        return self.records * self.record_bytes

    def values(self, seed: int = 1) -> list[bytes]:
        """Different values of exactly `record_bytes`: JSON as applications write it, which compresses three to five times."""
        rng = random.Random(seed)
        return [_value(rng, self.record_bytes) for _ in range(_DISTINCT_VALUES)]

    def batch_partitions(self) -> Iterator[int]:
        """The partition of each batch, endlessly."""
        return cycle([0] * (self.hot - 1) + list(range(self.partitions)))

    def record_partitions(self) -> Iterator[int]:
        """The partition of each record: a batch is filled before the next one begins."""
        whole = (partition for partition in self.batch_partitions() for _ in range(self.records_per_batch))
        return islice(whole, self.records)


def _value(rng: random.Random, size: int) -> bytes:
    text = ""
    while len(text) < size:
        event = {
            "order": rng.randrange(10_000_000),
            "customer": f"{rng.getrandbits(48):012x}",
            "state": rng.choice(("placed", "paid", "sent", "returned")),
            "total": rng.randrange(100_000) / 100,
            "currency": "EUR",
            "at": f"2026-03-{rng.randint(1, 28):02}T{rng.randrange(24):02}:{rng.randrange(60):02}:00Z",
        }
        text += json.dumps(event, separators=(",", ":"))
    return text[:size].encode()


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("1k", "1 KB records, 128 KB batches", 2_000_000, 1024, 128 << 10),
        Shape("1k-4g", "1 KB records, 128 KB batches, 4 GB", 4_000_000, 1024, 128 << 10),
        Shape("lz4", "1 KB records, 128 KB batches, lz4", 2_000_000, 1024, 128 << 10, codec="lz4"),
        Shape("zstd", "1 KB records, 128 KB batches, zstd", 2_000_000, 1024, 128 << 10, codec="zstd"),
        Shape("100b", "100 B records, 16 KB batches", 4_000_000, 100, 16 << 10),
        Shape("single", "100 B records, each a batch", 500_000, 100, 1),
        Shape("single-lz4", "100 B records, each a batch, lz4", 500_000, 100, 1, codec="lz4"),
        Shape("100p", "1 KB records, 128 KB batches, 100 partitions", 2_000_000, 1024, 128 << 10, partitions=100),
        Shape("1000p", "1 KB records, 128 KB batches, 1000 partitions", 2_000_000, 1024, 128 << 10, partitions=1000),
        Shape(
            "hot", "1 KB records, 128 KB batches, one partition 20 times as busy", 2_000_000, 1024, 128 << 10, hot=20
        ),
    )
}
