"""Counts numbered records in remote topics, by the source topic that they are from. A value is ``<source topic>:<number>``; the number is
the source offset, because a topic has one partition and one producer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

FOREIGN: Final = b"foreign"


@dataclass(frozen=True)
class Count:
    """What a remote topic has of one source topic, of the records that were sent: numbers of ``missing`` ones, ``doubled`` records, and
    ``disordered`` ones, which first occur behind a later one. ``foreign`` are the records of other producers in the remote topic.
    """

    missing: tuple[int, ...]
    doubled: int
    disordered: int
    foreign: int

    @property
    def is_whole(self) -> bool:
        return not (self.missing or self.doubled or self.disordered)

    def missing_in(self, first: int, after: int) -> int:
        """The number of missing records with these offsets."""
        return sum(first <= number < after for number in self.missing)

    def __str__(self) -> str:
        return f"{len(self.missing)}/{self.doubled}/{self.disordered}/{self.foreign}"


@dataclass(frozen=True)
class Copy:
    """A remote topic and its source topics, in the order of their names; several of them are a merge. ``by_process``: by the MirrorMaker
    process, whose flow `mm2` reports, not by a connector.
    """

    remote: str
    sources: tuple[str, ...]
    by_process: bool

    @property
    def is_merge(self) -> bool:
        return len(self.sources) > 1

    def counts(self, values: Iterable[bytes | None], sent: Mapping[str, int]) -> dict[str, Count]:
        """The counts by source topic of the remote topic's values, in their order."""
        found: dict[str, list[int]] = {source: [] for source in self.sources}
        foreign = 0
        for value in values:
            source, separator, number = (value or b"").decode().rpartition(":")
            if separator and source in found:
                found[source].append(int(number))
            else:
                foreign += 1
        return {source: count_of(found[source], sent[source], foreign) for source in self.sources}


def count_of(numbers: Sequence[int], sent: int, foreign: int = 0) -> Count:
    """The count of the numbers that were found, in this order, of 0 to ``sent - 1``."""
    times = Counter(numbers)
    highest, disordered = -1, 0
    for number in dict.fromkeys(numbers):
        disordered += number < highest
        highest = max(highest, number)
    missing = tuple(number for number in range(sent) if number not in times)
    return Count(missing, len(numbers) - len(times), disordered, foreign)
