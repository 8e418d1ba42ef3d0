"""A sink that prints received and flushed records (VerifiableSinkConnector and its task)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from mm2 import __version__
from mm2.config.configdef import AbstractConfig, ConfigDef
from mm2.connect.api import OffsetAndMetadata, SinkConnector, SinkRecord, SinkTask, Task, TopicPartition
from mm2.connect.verifiable.connector import NumberingConnector, with_id
from mm2.connect.verifiable.pace import now_ms, say

_TASK_CONFIG: Final = with_id(ConfigDef())


class VerifiableSinkConnector(NumberingConnector, SinkConnector):
    """Runs tasks.max tasks."""

    CONFIG = ConfigDef()

    def task_class(self) -> type[Task]:
        return VerifiableSinkTask


class VerifiableSinkTask(SinkTask):
    """Prints each record twice: when it is put, and when it is flushed."""

    def version(self) -> str:
        return __version__

    def start(self, props: dict[str, str]) -> None:
        self._name = props.get("name", "")
        self._id = AbstractConfig(_TASK_CONFIG, props).int("id")
        self._unflushed: dict[TopicPartition, list[dict[str, Any]]] = {}

    def put(self, records: Collection[SinkRecord]) -> None:
        for record in records:
            data = {
                "name": self._name,
                "task": record.key,
                "sinkTask": self._id,
                "topic": record.topic,
                "time_ms": now_ms(),
                "seqno": record.value,
                "offset": record.kafka_offset,
            }
            say(data)
            self._unflushed.setdefault(TopicPartition(record.topic, record.partition), []).append(data)

    def flush(self, current_offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        for tp in current_offsets:
            for data in self._unflushed.pop(tp, ()):
                say({**data, "time_ms": now_ms(), "flushed": True})

    def stop(self) -> None:
        return
