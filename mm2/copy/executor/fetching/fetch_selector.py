"""The selection of the partitions of each Fetch request, within the configured limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from mm2.copy.executor.fetching.fetch_states import SourceBroker
from mm2.copy.executor.fetching.throttle import Throttle
from mm2.kafka.structs import TopicPartition
from mm2.kafka.wire.fetch import Position

_BY_LIMIT: Final = "limited by copy.throttle.bytes.per.sec"


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """Sizes in bytes, times in ms, as ``fetch.*`` and ``max.partition.fetch.bytes`` of the consumer."""

    max_bytes: int = 8 << 20
    partition_bytes: int = 1 << 20
    max_wait_ms: int = 500
    min_bytes: int = 1


class FetchSelection(NamedTuple):
    """What differs between a broker's next request and the one before.

    ``throttled_s`` is the time until the throttle allows more; 0 if it left out no partition.
    """

    touched: dict[TopicPartition, None]
    max_bytes: int
    throttled_s: float


class FetchSelector:
    """Selects what a broker's next Fetch request contains."""

    def __init__(self, limits: FetchLimits, throttle: Throttle) -> None:
        self._limits = limits
        self._throttle = throttle

    def select(self, broker: SourceBroker, now: float) -> FetchSelection:
        """Update the broker's `wanted` and its maximum wait. Nothing is to be sent if `wanted` is empty."""
        throttle = self._throttle
        wanted, version = broker.wanted, broker.version
        blocked = False
        throttled = throttle.active
        max_bytes = self._limits.max_bytes
        throttled_s = 0.0
        candidates = broker.candidates(include_unchanged=throttled)
        touched = broker.left
        broker.left = {}
        for tp in touched:
            wanted.pop(tp, None)
        for tp, fetch_state in candidates:
            receiver = fetch_state.receiver
            touched[tp] = None
            wanted.pop(tp, None)
            broker.to_consider[tp] = fetch_state
            if fetch_state.topic_replaced and fetch_state.check_topic():
                continue
            if fetch_state.must_be_validated(version):
                if not receiver.suspended:
                    receiver.unvalidated()
                continue
            if receiver.full:
                blocked = blocked or not receiver.stuck
            elif fetch_state.paused_until <= now:
                size = fetch_state.max_bytes
                if throttled:
                    room, wait_s = throttle.room(tp.topic, now, behind=receiver.behind)
                    if not room:
                        receiver.throttled(_BY_LIMIT)
                        throttled_s = min(throttled_s or wait_s, wait_s)
                        continue
                    size = int(min(size, room))
                    # The limit of one topic must not reduce the bytes of the others.
                    max_bytes = int(min(max_bytes, throttle.flow_room(behind=receiver.behind)))
                fetch_state.asked_for = receiver.offset
                fetch_state.unvalidated = False
                if receiver.idle:
                    del broker.to_consider[tp]  # until it has new records, or its receiver changes
                wanted[tp] = Position(receiver.offset, fetch_state.leader_epoch, size, receiver.leader_epoch)
        if wanted:
            left_out = blocked or throttled_s > 0
            broker.set_wait(self._limits.max_wait_ms, has_changes=bool(candidates), left_out=left_out)
            if self._limits.min_bytes > 1:
                # The broker keeps fewer bytes back, so the wait must not grow while none arrive.
                broker.wait_ms = min(broker.wait_ms, self._limits.max_wait_ms)
        else:
            broker.left = touched
        return FetchSelection(touched, max_bytes, throttled_s)
