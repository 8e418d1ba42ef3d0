"""Check from the records alone whether all sent records have arrived, in order and how often.

The first arrivals of all sequences must be in order. A second arrival is a duplicate and attributed to the kill after
which it was written, which is determined by its offset on the target.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.endurance.traffic import SEQUENCE_HEADER, Identity, decode
from tests.faults.oracle import contiguous_ranges


@dataclass(frozen=True)
class Arrived:
    """A record on the target."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    timestamp_ms: int


@dataclass
class Verdict:
    """Errors by kind; `duplicates` counts by the number of the kill, 0 for those before the first."""

    records: int = 0
    lost: list[str] = field(default_factory=list)
    """One message for each range of missing sequences."""
    disordered: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    duplicates: Counter[int] = field(default_factory=Counter)


class Judge:
    """`sent`: number of records that each producer wrote to each partition, including sentinels."""

    def __init__(self, run: bytes, sent: Mapping[tuple[int, int], int]) -> None:
        self._run = run
        self._sent = sent
        self._next = dict.fromkeys(sent, 0)
        self._skipped: dict[tuple[int, int], set[int]] = {stream: set() for stream in sent}
        self._duplicates: list[tuple[int, int]] = []
        self._open = set(sent)
        self._verdict = Verdict()

    @property
    def is_complete(self) -> bool:
        """Whether every sentinel has arrived and no record before them is missing."""
        return not self._open and not any(self._skipped.values())

    def add(self, record: Arrived) -> None:
        """Add a record. Call it in the order of the partition's offsets."""
        self._verdict.records += 1
        identity = decode(record.value or b"")
        wrong = "its value is damaged" if identity is None else self._difference(record, identity)
        if identity is None or wrong:
            self._verdict.damaged.append(f"partition {record.partition}, offset {record.offset}: {wrong}")
            return
        stream = (identity.producer, identity.partition)
        if identity.sequence > self._next[stream]:
            self._skipped[stream].update(range(self._next[stream], identity.sequence))
        elif identity.sequence in self._skipped[stream]:
            self._skipped[stream].remove(identity.sequence)
            self._verdict.disordered.append(
                f"partition {record.partition}, offset {record.offset}: sequence {identity.sequence} of producer "
                f"{identity.producer} comes after {self._next[stream] - 1}"
            )
        elif identity.sequence < self._next[stream]:
            self._duplicates.append((record.partition, record.offset))
        self._next[stream] = max(self._next[stream], identity.sequence + 1)
        if identity.is_last:
            self._open.discard(stream)

    def verdict(self, boundaries: Sequence[Mapping[int, int]]) -> Verdict:
        """`boundaries`: for each kill, in order, the end offset of each target partition after it."""
        for stream, count in self._sent.items():
            missing = sorted(self._skipped[stream] | set(range(self._next[stream], count)))
            self._verdict.lost += [
                f"producer {stream[0]}, partition {stream[1]}: sequences {first} to {last}"
                for first, last in contiguous_ranges(missing)
            ]
        for partition, offset in self._duplicates:
            self._verdict.duplicates[sum(1 for ends in boundaries if ends.get(partition, 0) <= offset)] += 1
        return self._verdict

    def _difference(self, record: Arrived, identity: Identity) -> str | None:
        expected = (
            ("run", self._run, identity.run),
            ("partition", identity.partition, record.partition),
            ("key", identity.key, record.key),
            ("headers", [(SEQUENCE_HEADER, b"%d" % identity.sequence)], list(record.headers)),
            ("timestamp", identity.time_ms, record.timestamp_ms),
        )
        if (identity.producer, identity.partition) not in self._sent:
            return f"there is no producer {identity.producer}"
        return next(
            (f"its {what} is {there!r}, not {right!r}" for what, right, there in expected if there != right), None
        )
