"""Records as a consumer returns them."""

from __future__ import annotations

from typing import NamedTuple

from mm2.kafka.records.record import Headers
from mm2.kafka.structs import TopicPartition


class ConsumerRecord(NamedTuple):
    """One record; ``timestamp`` in ms since the epoch, -1 when it has none."""

    topic_partition: TopicPartition
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int
    #: Whether the broker set the timestamp (LogAppendTime); otherwise the producer did.
    is_log_append_time: bool
