"""Dead letters of sink tasks: the headers that describe the error."""

from __future__ import annotations

from typing import cast

from mm2.connect.api import SinkRecord
from mm2.connect.converters import JsonConverter
from mm2.connect.runtime.counters import ErrorCounters
from mm2.connect.runtime.error_reporters import DeadLetterQueue, DeadLetterQueueReporter
from mm2.connect.runtime.sending import OnSent, RecordSender
from mm2.connect.runtime.tolerance import ProcessingContext, ProcessingStage
from mm2.connect.stores.config_state import ConnectorTaskId
from mm2.connect.transforms import CastValue
from mm2.kafka.cluster import Cluster
from mm2.kafka.consumer.records import ConsumerRecord
from mm2.kafka.records.record import Record
from mm2.kafka.structs import TopicPartition

TASK = ConnectorTaskId("c", 0)


class Sender:
    """Acknowledges each record."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def send(self, topic: str, partition: int | None, record: Record, on_sent: OnSent) -> None:
        self.records.append(record)
        on_sent(None, None)


def reported(value: bytes, error: Exception) -> dict[str, bytes | None]:
    """The headers of the dead letter."""
    sender = Sender()
    reporter = DeadLetterQueueReporter(
        TASK,
        DeadLetterQueue("dlq", 1, context_headers=True),
        cast("RecordSender", sender),
        ErrorCounters(),
        cast("Cluster", None),
    )
    context = ProcessingContext(ConsumerRecord(TopicPartition("t", 0), 7, None, value, (), 0, False))
    context.stage, context.executing_class, context.error = ProcessingStage.TRANSFORMATION, "Cast$Value", error
    done = reporter.report(context)
    assert done is not None
    assert done.done()
    (record,) = sender.records
    return dict(record.headers)


def test_an_error_that_quotes_half_a_surrogate_pair_is_reported() -> None:
    """A text that was cut within an emoji is valid JSON."""
    value = b'{"a":"12\\ud83d"}'
    converter, cast_value = JsonConverter(), CastValue()
    converter.configure({"schemas.enable": "false"}, is_key=False)
    cast_value.configure({"spec": "a:int32"})
    read = converter.to_connect_data("t", (), value)
    try:
        cast_value.apply(SinkRecord(topic="t", partition=0, key=None, value=read.value, kafka_offset=7))
    except Exception as error:  # noqa: BLE001 - as the runtime catches it
        headers = reported(value, error)
    message = headers["__connect.errors.exception.message"]
    assert message == b"Value (12?) was out of range for requested data type"
    assert message in (headers["__connect.errors.exception.stacktrace"] or b"")
