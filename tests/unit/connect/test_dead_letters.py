"""Dead letters of sink tasks: the headers that describe the error."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from mm2.connect.api import SinkRecord
from mm2.connect.converters import JsonConverter
from mm2.connect.runtime.counters import ErrorCounters
from mm2.connect.runtime.error_reporters import DeadLetterQueue, DeadLetterQueueReporter
from mm2.connect.runtime.sending import OnSent, RecordSender
from mm2.connect.runtime.task_building import TaskStart
from mm2.connect.runtime.tasks.sink import WorkerSinkTask
from mm2.connect.runtime.tolerance import ProcessingContext, ProcessingStage
from mm2.connect.stores.config_state import ConnectorTaskId, TargetState
from mm2.connect.transforms import CastValue
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.consumer.records import ConsumerRecord
from mm2.kafka.records.record import Record
from mm2.kafka.structs import TopicPartition
from tests.unit.connect.task_parts import RecordingListener
from tests.unit.connect.test_worker_keys import worker

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
        hide=str,
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


def test_values_of_config_providers_are_not_in_dead_letters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secrets").write_text("pattern=yyyy-'Hunter2'\n")
    monkeypatch.setattr(DeadLetterQueue, "create", lambda _queue, _admin: None)
    provider = "org.apache.kafka.common.config.provider.FileConfigProvider"
    instance = worker(**{"config.providers": "file", "config.providers.file.class": provider})
    reference = f"${{file:{tmp_path}/secrets:pattern}}"
    connector = {
        "name": "c",
        "connector.class": "FileStreamSink",
        "topics": "t",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
        "file": str(tmp_path / "out"),
        "transforms": "date",
        "transforms.date.type": "org.apache.kafka.connect.transforms.TimestampConverter$Value",
        "transforms.date.field": "day",
        "transforms.date.target.type": "Timestamp",
        "transforms.date.format": reference,
        "errors.tolerance": "all",
        "errors.deadletterqueue.topic.name": "dlq",
        "errors.deadletterqueue.context.headers.enable": "true",
    }
    task = {**connector, "task.class": "org.apache.kafka.connect.file.FileStreamSinkTask"}
    start = TaskStart(TASK, connector, task, 1, TargetState.STARTED, RecordingListener(), on_topic=lambda _topic: None)
    built = instance._builder.build(start)
    assert isinstance(built, WorkerSinkTask)
    (reporter,) = built._operator._reporters
    sender = Sender()
    assert isinstance(reporter, DeadLetterQueueReporter)
    reporter._sender = cast("RecordSender", sender)
    value = b'{"day":"tomorrow"}'
    assert built._record_converter.convert(ConsumerRecord(TopicPartition("t", 0), 7, None, value, (), 0, False)) is None
    (record,) = sender.records
    headers = dict(record.headers)
    message = headers["__connect.errors.exception.message"]
    assert message == f"Could not parse timestamp: value (tomorrow) does not match pattern ({reference})".encode()
    assert b"Hunter2" not in b"".join(text or b"" for text in headers.values())
