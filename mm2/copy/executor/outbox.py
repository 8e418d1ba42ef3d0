"""Batches on their way to one target partition."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from mm2.copy.executor.window import Window
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.records.batch import BatchHeader, read_header
from mm2.kafka.records.record import Record, encode_batch
from mm2.kafka.structs import ProducerIdentity, TopicPartition

#: As many batches as a broker remembers of an idempotent producer.
MAX_IN_FLIGHT: Final = 5


@dataclass(slots=True, eq=False)
class Parcel:
    """One batch on its way. ``data`` is the whole batch; ``acked`` gets the target's base offset (-1: not told).

    ``split`` is asked for smaller parcels of the same records when the target refuses the size; None = cannot be cut.
    """

    data: memoryview
    header: BatchHeader
    acked: Callable[[int], None]
    split: Callable[[], list[Parcel] | None] | None = None
    sequence: int = -1
    base_offset: int | None = None  # once acknowledged
    under_way: bool = False
    counted: bool = False  # in its outbox's window
    failure: int = 0

    @property
    def count(self) -> int:
        """How many records, that is how many sequence numbers it takes."""
        return self.header.records_count


@dataclass(slots=True, eq=False)
class Outbox:
    """Batches for one target partition, in order.

    ``identity`` None means a producer without idempotence, which has one batch under way at a time. While ``refused``
    the broker does not want this partition's head for a reason that waiting does not mend; it is offered again every
    5 s, in case somebody mends it.
    """

    partition: TopicPartition
    identity: ProducerIdentity | None
    on_refused: Callable[[KafkaFailure | None], None] | None = None
    sequence: int = 0
    known: bool = False  # the broker has taken a batch of this identity
    queue: deque[Parcel] = field(default_factory=deque)
    sent: deque[Parcel] = field(default_factory=deque)
    leader: int | None = None
    draining: bool = False
    ready: bool = False  # in a broker's line
    paused: bool = False  # nothing is sent until somebody says that the pause is over
    failures: int = 0
    refused: bool = False
    window: Window = field(default_factory=Window)
    alarm: bool = False  # it will be looked at again when the window's patience ends
    complaint: KafkaFailure | None = None  # the last answer that was no acknowledgement, until one comes

    @property
    def idle(self) -> bool:
        """Nothing to send, nothing unanswered."""
        return not self.queue and not self.sent

    @property
    def held(self) -> bool:
        """Nothing may be sent now."""
        return self.draining or self.paused or self.refused

    @property
    def depth(self) -> int:
        """How many batches may be under way."""
        # Of a producer that it does not know a broker takes any sequence: what follows a refused batch would overtake it.
        return MAX_IN_FLIGHT if self.identity is not None and self.known else 1


def parcel_of(records: list[Record], acked: Callable[[], None]) -> Parcel:
    """One batch of records for an outbox without idempotence."""
    batch = encode_batch(records)
    return Parcel(memoryview(batch), read_header(batch), lambda _: acked())
