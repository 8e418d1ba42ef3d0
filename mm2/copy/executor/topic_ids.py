"""Which id each topic of a cluster has (KIP-516), so that one stale metadata answer changes nothing. Pure.

Metadata spread from broker to broker, and one that lags behind names the id of a topic that was deleted meanwhile. An id that
was replaced is retired and never believed again. An unknown id is believed once the partition's leader confirms it, at
least a second after it was first seen.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto
from typing import Final

CONFIRM_AFTER_S: Final = 1.0
#: So many replaced ids are remembered, the newest.
RETIRED_KEPT: Final = 8


class Belief(Enum):
    """What to do with a metadata answer about a topic."""

    BELIEVED = auto()
    STALE = auto()
    """It names a topic that was replaced: ask again."""
    UNCONFIRMED = auto()
    """It names an unknown topic: ask again, later."""
    DUE = auto()
    """The same unknown topic after a while: ask the leader, then `TopicIds.replace` or `TopicIds.drop`."""


class TopicIds:
    """By topic name; an id is Kafka's text form, "" for none."""

    def __init__(self) -> None:
        self.current: dict[str, str] = {}
        self._retired: dict[str, tuple[str, ...]] = {}
        self._candidates: dict[str, tuple[str, float]] = {}  # unknown id, and when it was first seen (monotonic s)
        self._seen_only: set[str] = set()  # whose current id comes from a single answer

    @property
    def waiting(self) -> bool:
        """Whether an unknown id waits for its confirmation."""
        return bool(self._candidates)

    def expect(self, name: str, topic_id: str, retired: Iterable[str], now_s: float) -> None:
        """The ledger names a topic's id and those that it had before; that counts for more than what was just seen."""
        self._retired[name] = retire(self._retired.get(name, ()), *retired)
        seen = self.current.get(name, "")
        if not topic_id or topic_id == seen or topic_id in self._retired[name]:
            return
        if not seen or name in self._seen_only or seen in self._retired[name]:
            self.current[name] = topic_id
            if seen and seen not in self._retired[name]:
                self._candidates[name] = seen, now_s
        self._seen_only.discard(name)

    def judge(self, name: str, topic_id: str, now_s: float) -> Belief:
        """Whether an answer can be believed that names this id."""
        current = self.current.get(name, "")
        if topic_id in self._retired.get(name, ()):
            return Belief.STALE
        if not topic_id or topic_id == current:
            self._candidates.pop(name, None)
            return Belief.BELIEVED
        if not current:
            self.current[name] = topic_id
            self._seen_only.add(name)
            return Belief.BELIEVED
        candidate, since_s = self._candidates.get(name, ("", 0.0))
        if candidate != topic_id:
            self._candidates[name] = topic_id, now_s
            return Belief.UNCONFIRMED
        return Belief.DUE if now_s - since_s >= CONFIRM_AFTER_S else Belief.UNCONFIRMED

    def replace(self, name: str, topic_id: str) -> None:
        """The topic was deleted and created again under this id."""
        self._retired[name] = retire(self._retired.get(name, ()), self.current.get(name, ""))
        self.current[name] = topic_id
        self._candidates.pop(name, None)
        self._seen_only.discard(name)

    def drop(self, name: str) -> None:
        """The leader knows nothing of the unknown id."""
        self._candidates.pop(name, None)


def retire(retired: Iterable[str], *replaced: str) -> tuple[str, ...]:
    """Replaced ids, the newest last and no more than are remembered."""
    kept = list(dict.fromkeys([*retired, *(topic_id for topic_id in replaced if topic_id)]))
    return tuple(kept[-RETIRED_KEPT:])
