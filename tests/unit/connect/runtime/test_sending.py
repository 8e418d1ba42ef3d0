"""Which partitions records get, without Kafka."""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Sequence
from typing import Any, cast

from mm2.connect.runtime.sending import Outgoing, RecordSender, SenderSettings, size_of
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.producer.producer import Producer, Written
from mm2.kafka.records.record import Record
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import TopicPartition


class Busy:
    """A producer whose first write takes until it is told to go on."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.records: collections.Counter[int] = collections.Counter()

    def write(self, tp: TopicPartition, records: Sequence[Record], **_options: Any) -> list[Written]:
        assert self.go_on.wait(60)
        self.records[tp.partition] += len(records)
        return [Written(tp, records, 0, -1)]

    def close(self) -> None: ...


def test_records_without_a_key_change_their_partition_after_each_batch_while_the_sender_is_busy() -> None:
    cluster, producer = Cluster(ClientSettings.from_props({"bootstrap.servers": "127.0.0.1:1"}), name="T"), Busy()
    settings = SenderSettings(batch_bytes=1000)
    sender = RecordSender(cluster, cast("Producer", producer), settings, name="sender")
    sender._counts["t"] = (3, time.monotonic())
    record = Record(None, bytes(130))
    assert size_of(record) == 200
    for _ in range(2):
        outgoing = [Outgoing("t", None, record, lambda *_settled: None, size=200) for _ in range(30)]
        assert sender.send_at_once(outgoing) == 30
    producer.go_on.set()
    assert sender.flush(60)
    sender.close(0)
    assert sorted(producer.records.values()) == [20, 20, 20]
