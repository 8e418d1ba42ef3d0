"""Finds the topics of a cluster that concern a flow. A failed request never makes known topics disappear."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from mm2.kafka.admin import Admin
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.structs import TopicInfo

TOPICS_PER_REQUEST: Final = 500
_ONE_LOOK_S: Final = 5.0

_T = TypeVar("_T")


@dataclass(frozen=True)
class TopicsSeen:
    """`partitions`: number of partitions by topic. `unknown`: topics that exist but could not be described.

    A topic that was known and cannot be described now is in both, with its known number of partitions.
    """

    partitions: Mapping[str, int]
    unknown: Mapping[str, KafkaFailure]


class TopicLists:
    """Tells topics that were deleted, or recreated with fewer partitions, from those that only one list lacks: a broker that has just
    started has an empty or an old one for a moment.

    Otherwise all tasks would stop until the next refresh of topics, by default ten minutes later.
    """

    def __init__(self) -> None:
        self._missed: set[str] = set()

    def doubtful(self, known: Mapping[str, int], seen: Mapping[str, int]) -> set[str]:
        """The known topics that the newest list lacks or has with fewer partitions, and the one before did not."""
        missing = {topic for topic, partitions in known.items() if seen.get(topic, 0) < partitions}
        doubtful, self._missed = missing - self._missed, missing
        return doubtful


def see_topics(admin: Admin, wanted: Callable[[str], bool], known: Mapping[str, int]) -> TopicsSeen:
    """All topics of the cluster for which `wanted` is true. Raises KafkaFailure if topics cannot be listed at all."""
    names = sorted(filter(wanted, admin.list_topics()))
    # The list already contained the descriptions; reusing them halves the work where there are thousands of topics.
    return describe(admin, names, known, max_age_s=_ONE_LOOK_S)


def describe(admin: Admin, names: Iterable[str], known: Mapping[str, int], *, max_age_s: float = 0) -> TopicsSeen:
    """The topics of `names` that exist, or did `max_age_s` seconds ago. A topic that was deleted is absent."""
    partitions: dict[str, int] = {}
    unknown: dict[str, KafkaFailure] = {}
    for some in chunks(names, TOPICS_PER_REQUEST):
        for name, answer in admin.describe_topics(some, max_age_s=max_age_s).items():
            if isinstance(answer, TopicInfo) and answer.partitions:
                partitions[name] = len(answer.partitions)
            elif not vanished(answer):
                unknown[name] = answer if isinstance(answer, KafkaFailure) else BrokerFailure.of(5, subject=name)
                if name in known:
                    partitions[name] = known[name]
    return TopicsSeen(partitions, unknown)


def vanished(answer: object) -> bool:
    """Whether `answer` reports that the topic does not exist."""
    return isinstance(answer, BrokerFailure) and answer.code in {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }


def chunks(items: Iterable[_T], size: int) -> Iterator[list[_T]]:
    """Consecutive lists of at most `size` items."""
    some: list[_T] = []
    for item in items:
        some.append(item)
        if len(some) == size:
            yield some
            some = []
    if some:
        yield some
