"""Promotions: topics of a flow whose remote topics are written by applications now (`mm2.failover`). Pure.

A promotion is a note in the ledger of the flow, by source topic, that does not expire: a recovered source and a
restarted process find it. The tasks do not copy these partitions (state PAUSED, with the reason), offsets of groups are
not written for them, and their configs and ACLs are no longer synced from the source.

If topic names do not show where a topic came from, the flow in the opposite direction may copy the topic only after
`mm2 failback` has stored the start offsets (``turned``). Otherwise it would send all records back to the source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from mm2.copy.progress.ledger import Ledger, Pause, note_record
from mm2.kafka.records.record import Record

PROMOTED_NOTE: Final = "promoted"


@dataclass(frozen=True, slots=True)
class Promotion:
    """The promotion of a source topic, since ``at_ms``, by the command `mm2 <verb>`."""

    topic: str
    remote_topic: str
    verb: str
    at_ms: int
    turned: bool = False

    @property
    def pause(self) -> Pause:
        """The pause of the topic's partitions."""
        return Pause(f"mm2 {self.verb}", self.at_ms, "promoted, until mm2 failback")

    def record(self) -> Record:
        """The record for the flow's ledger."""
        fields = {name: value for name, value in asdict(self).items() if name != "topic"}
        return note_record(PROMOTED_NOTE, [self.topic], fields)


def withdrawn(topic: str) -> Record:
    """The record that makes the flow copy the topic again."""
    return note_record(PROMOTED_NOTE, [topic], None)


def promotions(notes: Mapping[tuple[str, ...], Mapping[str, Any]]) -> dict[str, Promotion]:
    """Promotions by source topic, from the notes of a ledger.

    An unreadable note counts too: its key identifies the topic.
    """
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
    """Promotions by source topic."""
    return promotions(ledger.notes(PROMOTED_NOTE))


def holds(ledger: Ledger) -> dict[tuple[str, int | None], Pause]:
    """The pauses of promoted topics (`mm2.copy.progress.ledger.Pauses`)."""
    return {(topic, None): one.pause for topic, one in promoted(ledger).items()}
