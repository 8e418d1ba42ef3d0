"""Decides when the leader of a partition may name a follower to read from (KIP-392).

A leader that receives the client's rack names the replica of that rack, and returns no records. It does not compare the
epoch of the last batch that was read either. So the rack is left out of a request while one of its partitions has to be
answered by the leader itself: until the leader has compared the position under its current epoch, and for some time after
a follower could not be read. All methods run on the loop's thread.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from mm2.copy.executor.fetching.fetch_states import PartitionFetchState, SourceBroker
from mm2.kafka.structs import PartitionInfo, TopicPartition
from mm2.kafka.wire import fetch

#: How long a partition is read from its leader after an error of a follower, and after a follower that cannot be reached.
#: The leader names a follower until it has left the ISR.
AFTER_ERROR_S: Final = 1.0
AFTER_LOSS_S: Final = 5.0


class FetchMode(NamedTuple):
    """How a broker is asked. ``comparing``: for no records, only for the comparison of positions with its log."""

    rack: str
    comparing: bool = False


class ReadReplicas:
    """The partitions that may be read from a follower; none without a ``rack``."""

    def __init__(self, rack: str, max_age_s: float) -> None:
        self._rack = rack
        self._max_age_s = max_age_s
        self._held: dict[TopicPartition, float] = {}  # read from the leader until then (monotonic seconds)
        self._uncompared: set[TopicPartition] = set()

    @property
    def allowed(self) -> bool:
        """Whether followers may be read at all."""
        return bool(self._rack)

    def leader_changed(self, tp: TopicPartition) -> None:
        """The leader has to compare the position of this partition before a follower is read."""
        if self._rack:
            self._uncompared.add(tp)

    def forget(self, tp: TopicPartition) -> None:
        """The partition is no longer read."""
        self._held.pop(tp, None)
        self._uncompared.discard(tp)

    def mode(self, broker: SourceBroker, now: float) -> FetchMode:
        """How to send the broker's next request, which contains its ``wanted`` partitions."""
        if not self._rack or broker.version < fetch.RACK_FROM:
            return FetchMode("")
        if self._uncompared and any(self._has_to_compare(tp, broker) for tp in self._uncompared):
            return FetchMode("", comparing=True)
        if self._held:
            self._held = {tp: until for tp, until in self._held.items() if until > now}
        is_held = any(tp in broker.wanted and broker.fetch_states[tp].replica < 0 for tp in self._held)
        return FetchMode("" if is_held else self._rack)

    def compared(self, broker: SourceBroker) -> None:
        """The broker has answered a request that compares positions; those that differ were reported before."""
        for tp in [tp for tp in self._uncompared if tp in broker.fetch_states]:
            fetch_state = broker.fetch_states[tp]
            if fetch_state.replica < 0 and tp in broker.wanted and fetch_state.asked_for == fetch_state.receiver.offset:
                self._uncompared.discard(tp)

    def follow(self, fetch_state: PartitionFetchState, node: int, now: float) -> bool:
        """Whether to read a partition from the broker that its leader names."""
        if fetch_state.replica >= 0 or node == fetch_state.leader:
            return False
        self._uncompared.discard(fetch_state.receiver.partition)
        fetch_state.replica, fetch_state.replica_until = node, now + self._max_age_s
        return True

    def leave(self, fetch_state: PartitionFetchState, *, held_until: float, diverging: bool) -> None:
        """Read a partition from its leader again. ``diverging``: the logs of the two may differ."""
        tp = fetch_state.receiver.partition
        fetch_state.replica = -1
        self._held[tp] = held_until
        if diverging:
            fetch_state.unvalidated = True
            self._uncompared.add(tp)

    @staticmethod
    def may_stay(fetch_state: PartitionFetchState, topic_id: str, partition: PartitionInfo) -> bool:
        """Whether a partition may be read from the same follower under this metadata."""
        return (
            fetch_state.replica >= 0
            and fetch_state.topic_id == topic_id
            and (fetch_state.leader, fetch_state.leader_epoch) == (partition.leader, partition.leader_epoch)
            and partition.has_online(fetch_state.replica)
        )

    @staticmethod
    def _has_to_compare(tp: TopicPartition, broker: SourceBroker) -> bool:
        """Before version 12 positions are compared with OffsetForLeaderEpoch, see `PartitionFetchState.must_be_validated`."""
        fetch_state = broker.fetch_states.get(tp)
        return (
            fetch_state is not None
            and fetch_state.replica < 0
            and tp in broker.wanted
            and broker.version >= fetch.FLEXIBLE_FROM
            and fetch_state.receiver.leader_epoch >= 0
        )
