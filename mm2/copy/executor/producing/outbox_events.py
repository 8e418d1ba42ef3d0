"""What follows from the answers of the target for an outbox.

`ProduceOutcomes` decides it without I/O. `Sink` handles what concerns requests, and reports the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

from mm2.copy.executor.partition.outbox import Outbox
from mm2.kafka.errors import KafkaFailure


@dataclass(frozen=True, slots=True)
class PauseEnds:
    """Batches that are not on the target are resent now."""

    outbox: Outbox


@dataclass(frozen=True, slots=True)
class RetryDue:
    """They are resent after this time."""

    outbox: Outbox
    delay_s: float


@dataclass(frozen=True, slots=True)
class OutcomeUnknown:
    """Nothing is sent before its progress has been looked up."""

    outbox: Outbox


@dataclass(frozen=True, slots=True)
class LeaderUnknown:
    """Its partition has no known leader any more."""

    outbox: Outbox


@dataclass(frozen=True, slots=True)
class LeadersOutdated:
    """The leaders have to be looked up."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The target rejects the first batch. A handler that writes it to the dead letter topic changes `Outbox.state`."""

    outbox: Outbox
    failure: KafkaFailure


@dataclass(frozen=True, slots=True)
class Accepted:
    """The target has accepted a batch after an error."""

    outbox: Outbox


@dataclass(frozen=True, slots=True)
class ErrorChanged:
    """`Outbox.last_error` has changed."""

    outbox: Outbox


@dataclass(frozen=True, slots=True)
class TargetTruncated:
    """The target has so many records of the session, and ends at this offset: acknowledged records are lost."""

    outbox: Outbox
    records: int
    end: int


@dataclass(frozen=True, slots=True)
class TargetRecreated:
    """Its topic was recreated."""

    outbox: Outbox


@dataclass(frozen=True, slots=True)
class TargetInconsistent:
    """The target contradicts the count of the session. Nothing more is sent."""

    outbox: Outbox
    reason: str


@dataclass(frozen=True, slots=True)
class ResendUncertain:
    """A batch is resent that may be on the target."""

    outbox: Outbox
    note: str


@dataclass(frozen=True, slots=True)
class Throttled:
    """A quota of the target prevents writing for so many seconds."""

    outbox: Outbox
    by: str
    for_s: float


@dataclass(frozen=True, slots=True)
class ProducerLost:
    """The producer cannot continue: the target's state of it contradicts ours, or the target stores records in a message
    format without producer ids (UNSUPPORTED_FOR_MESSAGE_FORMAT).
    """

    outbox: Outbox
    failure: KafkaFailure


@dataclass(frozen=True, slots=True)
class NotInTransaction:
    """It has something to send, and its partition has to be added to the open transaction before."""

    outbox: Outbox


#: Handled by the sink.
SendingEvent = PauseEnds | RetryDue | OutcomeUnknown | LeaderUnknown | LeadersOutdated
#: Reported by the sink.
ReportedEvent = (
    Rejected
    | Accepted
    | ErrorChanged
    | TargetTruncated
    | TargetRecreated
    | TargetInconsistent
    | ResendUncertain
    | Throttled
    | ProducerLost
    | NotInTransaction
)
OutboxEvent = SendingEvent | ReportedEvent
