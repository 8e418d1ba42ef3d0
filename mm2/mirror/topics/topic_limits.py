"""Limits of what a source may cause on the target, and the notes in the flow's ledger about topics and groups that exceed them.

The notes make them visible wherever the flow is observed, not only in the log of the process that runs its connector.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from mm2.config.configdef import AbstractConfig
from mm2.config.keys.mirror_keys import REMOTE_PARTITIONS_KEY, REMOTE_TOPIC_PARTITIONS_KEY
from mm2.copy.progress.ledger import Ledger, note_record
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.records.record import Record
from mm2.mirror.common.recurring_errors import RecurringErrors
from mm2.mirror.notes.ledgers import Ledgers

_NOTE: Final = "limit"
_NAME: Final = ("topics",)
_GROUPS: Final = ("groups",)
#: A note stays small, however many topics a source has.
_NAMED_TOPICS: Final = 5


@dataclass(frozen=True, slots=True)
class RemoteTopicsLimits:
    """What a source may cause on the target: partitions of one remote topic, and of all of a flow.

    Every topic has a partition, so the second limits the number of topics, too.
    """

    topic_partitions: int
    partitions: int

    @classmethod
    def of(cls, settings: AbstractConfig) -> Self:
        """The limits of a source connector."""
        return cls(settings.int(REMOTE_TOPIC_PARTITIONS_KEY), settings.int(REMOTE_PARTITIONS_KEY))

    def exceeded(self, wanted: Mapping[str, int], existing: Mapping[str, int]) -> dict[str, str]:
        """The topics that must not have the wanted number of partitions, and why, without its subject.

        `existing` are those of all remote topics of the flow. Topics are admitted in the order of their names, so the
        result is the same each time.
        """
        left = self.partitions - sum(existing.values())
        exceeded = {}
        for remote, count in sorted(wanted.items()):
            more = count - existing.get(remote, 0)
            if count > self.topic_partitions:
                exceeded[remote] = f"is limited to {self.topic_partitions} partitions ({REMOTE_TOPIC_PARTITIONS_KEY})"
            elif more > left:
                limit = f"{self.partitions} partitions ({REMOTE_PARTITIONS_KEY})"
                exceeded[remote] = f"would exceed the limit of all remote topics of the flow, {limit}"
            else:
                left -= more
        return exceeded


def over_limit_message(ledger: Ledger) -> str:
    """Which topics exceed a limit, as the ledger has it; "" if none does."""
    return _message(ledger.notes(_NOTE).get(_NAME))


def left_out_groups(ledger: Ledger) -> str:
    """Which groups get no checkpoints because of the length of their ids, as the ledger has it; "" if all do."""
    return _message(ledger.notes(_NOTE).get(_GROUPS))


def left_out_record(message: str) -> Record:
    """The note that `left_out_groups` reads."""
    return note_record(_NOTE, _GROUPS, {"message": message} if message else None)


def _message(note: Mapping[str, Any] | None) -> str:
    return "" if note is None else str(note.get("message", ""))


def summary(over_limit: Mapping[str, str]) -> str:
    """One sentence for all of them; "" without any."""
    named = [f"{remote} {why}" for remote, why in sorted(over_limit.items())[:_NAMED_TOPICS]]
    more = len(over_limit) - len(named)
    return "; ".join([*named, f"and {more} more topics exceed a limit"] if more > 0 else named)


class LimitNote:
    """Keeps the note up to date; written only when it changes."""

    def __init__(self, ledgers: Ledgers, recurring: RecurringErrors) -> None:
        self._ledgers = ledgers
        self._recurring = recurring
        self._written: tuple[int, str] | None = None  # with the losses of the ledger; None: unknown

    def update(self, over_limit: Mapping[str, str]) -> bool:
        """These remote topics exceed a limit now. False: the ledger does not have this yet, try again soon."""
        message = summary(over_limit)
        now = (self._ledgers.losses, message)
        if now == self._written:
            return True
        try:
            if not self._ledgers.exists():
                return not message  # it is created by another job of the connector
            # The first time also without a message: a previous process may have left one.
            self._ledgers.write([note_record(_NOTE, _NAME, {"message": message} if message else None)])
            self._written = now
        except KafkaFailure as failure:
            if message:
                self._recurring.report("note of limits", f"Topics over a limit are not in the ledger: {failure}")
            return not message
        return True
