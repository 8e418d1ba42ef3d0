"""Groups partitions by what stops them, so that one cause in many partitions is one message. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from mm2.kafka.structs import TopicPartition

#: Characters of a reason in a message about many partitions, and in one that people read.
LONGEST_TEXT: Final = 400
#: Causes that a message lists; the partitions of the others are counted.
CAUSES_SHOWN: Final = 5
_NUMBER: Final = re.compile(r"\d+")


class StoppedPartition(NamedTuple):
    """A partition in a state with a reason."""

    source: TopicPartition
    state: str
    reason: str
    since_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Cause:
    """Partitions in one state whose reasons differ only in names of topics, in numbers, or not at all.

    ``example`` is one of them, with its reason; ``since_ms`` is the earliest time, None if none is known.
    """

    state: str
    partitions: int
    example: TopicPartition
    reason: str
    since_ms: int | None = None

    def __str__(self) -> str:
        reason = shortened(self.reason)
        if self.partitions == 1:
            return reason
        rest = self.partitions - 1
        return f"{reason} ({rest:,} more {'partition' if rest == 1 else 'partitions'} {self.state} for the same cause)"


def alike(partitions: Iterable[StoppedPartition]) -> list[list[StoppedPartition]]:
    """The partitions with the same cause, largest groups first.

    Reasons are compared to print fewer of them, never to decide anything.
    """
    found: dict[tuple[str, str], list[StoppedPartition]] = {}
    for one in partitions:
        key = one.state, _NUMBER.sub("#", one.reason.replace(one.source.topic, "#"))
        found.setdefault(key, []).append(one)
    return sorted(found.values(), key=lambda group: (-len(group), group[0].source))


def causes_of(partitions: Iterable[StoppedPartition]) -> list[Cause]:
    """The causes, those of most partitions first."""
    return [cause_of(group) for group in alike(partitions)]


def cause_of(group: Sequence[StoppedPartition]) -> Cause:
    """The cause of partitions that are `alike`."""
    first = group[0]
    since_ms = min((one.since_ms for one in group if one.since_ms is not None), default=None)
    return Cause(first.state, len(group), first.source, first.reason, since_ms)


def sentences_of(causes: list[Cause]) -> list[str]:
    """One sentence for each cause, and one for those that are left out."""
    shown, hidden = causes[:CAUSES_SHOWN], causes[CAUSES_SHOWN:]
    sentences = [str(cause) for cause in shown]
    if hidden:
        sentences.append(
            f"{sum(cause.partitions for cause in hidden):,} more partitions for {len(hidden):,} other causes"
        )
    return sentences


def shortened(text: str, longest: int = LONGEST_TEXT) -> str:
    """The beginning of a long text, and how much is left out."""
    return text if len(text) <= longest else f"{text[:longest]}… ({len(text) - longest:,} more characters)"
