"""Tracks the id of each topic of a cluster (KIP-516), so that one stale metadata response changes nothing. Pure.

Metadata spreads from broker to broker, and a broker that lags behind names the id of a deleted topic. A replaced id
is retired and never accepted again. An unknown id is accepted once the partition's leader confirms it, at least a
second after it was first seen.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto
from typing import Final

from mm2.kafka.structs import topic_id_bytes

CONFIRM_AFTER_S: Final = 1.0
#: Number of retired ids that are kept, the newest.
RETIRED_KEPT: Final = 8


class IdCheck(Enum):
    """What to do with a metadata response about a topic."""

    ACCEPTED = auto()
    STALE = auto()
    """It names a retired id: refresh."""
    UNCONFIRMED = auto()
    """It names an unknown id: refresh later."""
    CONFIRM = auto()
    """The same unknown id after `CONFIRM_AFTER_S`: ask the leader, then call `TopicIds.replace` or `TopicIds.drop`."""


class TopicIds:
    """By topic name; an id is in Kafka's text form, "" for none."""

    def __init__(self) -> None:
        self.current: dict[str, str] = {}
        self._retired: dict[str, tuple[str, ...]] = {}
        self._candidates: dict[str, tuple[str, float]] = {}  # unknown id, and when it was first seen (monotonic s)
        self._seen_only: set[str] = set()  # topics whose current id comes from a single response

    @property
    def waiting(self) -> bool:
        """Whether an unknown id waits for its confirmation."""
        return bool(self._candidates)

    def expect(self, name: str, topic_id: str, retired: Iterable[str], now_s: float) -> None:
        """Set a topic's id and its retired ids from the ledger, which takes precedence over a single response."""
        self._retired[name] = retire(self._retired.get(name, ()), *retired)
        seen = self.current.get(name, "")
        if not topic_id or topic_id == seen or topic_id in self._retired[name]:
            return
        if not seen or name in self._seen_only or seen in self._retired[name]:
            self.current[name] = topic_id
            if seen and seen not in self._retired[name]:
                self._candidates[name] = seen, now_s
        self._seen_only.discard(name)

    def check(self, name: str, topic_id: str, now_s: float) -> IdCheck:
        """Whether a response with this id is accepted."""
        current = self.current.get(name, "")
        if topic_id in self._retired.get(name, ()):
            return IdCheck.STALE
        if not topic_id or topic_id == current:
            self._candidates.pop(name, None)
            return IdCheck.ACCEPTED
        if not current:
            self.current[name] = topic_id
            self._seen_only.add(name)
            return IdCheck.ACCEPTED
        candidate, since_s = self._candidates.get(name, ("", 0.0))
        if candidate != topic_id:
            self._candidates[name] = topic_id, now_s
            return IdCheck.UNCONFIRMED
        return IdCheck.CONFIRM if now_s - since_s >= CONFIRM_AFTER_S else IdCheck.UNCONFIRMED

    def replace(self, name: str, topic_id: str) -> None:
        """The topic was deleted and recreated with this id."""
        self._retired[name] = retire(self._retired.get(name, ()), self.current.get(name, ""))
        self.current[name] = topic_id
        self._candidates.pop(name, None)
        self._seen_only.discard(name)

    def drop(self, name: str) -> None:
        """The leader does not confirm the unknown id."""
        self._candidates.pop(name, None)


class TargetTopicIds:
    """Ids by which batches are addressed to topics of the target (Produce 13).

    An id does not change when the topic is recreated: acknowledged records are not in the new topic.
    """

    def __init__(self) -> None:
        self._first: dict[str, str] = {}
        self.data: dict[str, bytes] = {}  # by name, as in requests
        self.names: dict[bytes, str] = {}  # of all ids that were ever used: responses may be late

    def get(self, name: str, default: str = "") -> str:
        """The id of a topic as first seen."""
        return self._first.get(name, default)

    def see(self, name: str, topic_id: str) -> bool:
        """Use the id of an accepted metadata response. False, and nothing changes, when the topic was recreated."""
        if self._first.setdefault(name, topic_id) != topic_id:
            return False
        self._use(name, topic_id)
        return True

    def replace(self, name: str, topic_id: str) -> None:
        """Use this id from now on."""
        self._first[name] = topic_id
        self._use(name, topic_id)

    def _use(self, name: str, topic_id: str) -> None:
        if topic_id:
            data = topic_id_bytes(topic_id)
            self.data[name], self.names[data] = data, name


def retire(retired: Iterable[str], *replaced: str) -> tuple[str, ...]:
    """Add replaced ids to the retired ones, newest last, at most `RETIRED_KEPT`."""
    kept = list(dict.fromkeys([*retired, *(topic_id for topic_id in replaced if topic_id)]))
    return tuple(kept[-RETIRED_KEPT:])
