"""What was handed over: topics of a flow whose remote topics have writers of their own now (`mm2.failover`). Pure.

A note in the ledger of the flow, by source topic, that does not lapse: a source that comes back, and a process that is
started again, find it. Its tasks hold the partitions (PAUSED, with the reason), offsets of groups are not written for them,
and their configs and ACLs are not brought up to those of the source any more.

Where names do not tell where a topic came from, the flow the other way may have it only once `mm2 failback` has said where
that begins (``turned``), or all that came from the source would go back to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from mm2.copy.ledger import Ledger, Pause, note_record
from mm2.kafka.records.record import Record

PROMOTED_NOTE: Final = "promoted"


@dataclass(frozen=True, slots=True)
class Promotion:
    """Of a topic of the source, since ``at_ms``; ``verb`` of `mm2` did it."""

    topic: str
    remote_topic: str
    verb: str
    at_ms: int
    turned: bool = False

    @property
    def pause(self) -> Pause:
        """Of its partitions."""
        return Pause(f"mm2 {self.verb}", self.at_ms, "promoted, until mm2 failback")

    def record(self) -> Record:
        """Of the flow's ledger."""
        fields = {name: value for name, value in asdict(self).items() if name != "topic"}
        return note_record(PROMOTED_NOTE, [self.topic], fields)


def withdrawn(topic: str) -> Record:
    """What makes the flow copy the topic again."""
    return note_record(PROMOTED_NOTE, [topic], None)


def promotions(notes: Mapping[tuple[str, ...], Mapping[str, Any]]) -> dict[str, Promotion]:
    """By source topic, from the notes of a ledger. One that cannot be read counts: what it was written for is known."""
    found = {}
    for name, value in notes.items():
        if len(name) == 1:
            at_ms = value.get("at_ms")
            found[name[0]] = Promotion(
                name[0],
                str(value.get("remote_topic", name[0])),
                str(value.get("verb", "")),
                at_ms if isinstance(at_ms, int) else 0,
                value.get("turned") is True,
            )
    return found


def promoted(ledger: Ledger) -> dict[str, Promotion]:
    """By source topic."""
    return promotions(ledger.notes(PROMOTED_NOTE))


def holds(ledger: Ledger) -> dict[tuple[str, int | None], Pause]:
    """What is not to be copied because it was handed over (`mm2.copy.ledger.Pauses`)."""
    return {(topic, None): one.pause for topic, one in promoted(ledger).items()}
