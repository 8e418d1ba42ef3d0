"""Connectors for tests of tasks: a sink that records its calls as events and executes commands from records and a file;
sources that define their own transaction boundaries.

Every line of a sink's file ``events`` is one JSON object with ``event``; the JSON commands in ``commands`` run at the next put.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from mm2.config.configdef import ConfigDef, Importance, Type
from mm2.connect.api import (
    ConnectError,
    OffsetAndMetadata,
    RetriableError,
    SinkConnector,
    SinkRecord,
    SinkTask,
    SourceConnector,
    SourceRecord,
    SourceTask,
    Task,
    TopicPartition,
    Transformation,
)
from mm2.connect.api.transformation import Record

MODULE = "tests.systems.task_toys"


class _Connector:
    def version(self) -> str:
        return "7.0"

    def start(self, props: dict[str, str]) -> None:
        if props.get("block.start"):
            time.sleep(float(props["block.start"]))
        self.props = props

    def stop(self) -> None:
        return

    def task_configs(self, max_tasks: int) -> list[dict[str, str]]:
        return [{**self.props, "number": str(number)} for number in range(max_tasks)]

    def config(self) -> ConfigDef:
        return ConfigDef()


class RecordingSinkConnector(_Connector, SinkConnector):
    def task_class(self) -> type[Task]:
        return RecordingSinkTask


class RecordingSinkTask(SinkTask):
    """Values with these prefixes: ``fail`` fails the task (``fail not 1`` all but task 1), ``retry`` is rejected three times, ``bad`` is
    reported, ``hold`` is rejected until a flush that it requests has failed; then putting it takes three seconds."""

    def version(self) -> str:
        return "7.0"

    def start(self, props: dict[str, str]) -> None:
        self.props = props
        self.events = Path(props["events"])
        self.commands = Path(props.get("commands", "nothing"))
        self.done: set[str] = set()
        self.refused = 0
        self.holding = self.flush_failed = False
        self.slow_s = float(props.get("slow.s", "0"))
        self.record_event("start", thread=threading.current_thread().name, assigned=len(self.context.assignment()))

    def record_event(self, event: str, **what: Any) -> None:
        line = json.dumps(
            {"event": event, "task": int(self.props["number"]), "pid": os.getpid(), "at": time.time(), **what}
        )
        with self.events.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def open(self, partitions: Collection[TopicPartition]) -> None:
        self.record_event("open", partitions=sorted(map(str, partitions)), thread=threading.current_thread().name)

    def close(self, partitions: Collection[TopicPartition]) -> None:
        self.record_event("close", partitions=sorted(map(str, partitions)))

    def put(self, records: Collection[SinkRecord]) -> None:
        self.obey()
        if self.slow_s and records:
            time.sleep(self.slow_s)
        for record in records:
            value = str(record.value)
            if value.startswith("retry") and self.refused < 3:
                self.refused += 1
                self.record_event("refused", records=len(records), paused=self.refused)
                self.context.timeout(100)
                raise RetriableError(f"refused {self.refused}")
            if value.startswith("hold") and not self.flush_failed:
                self.holding = True
                self.context.timeout(100)
                self.context.request_commit()
                raise RetriableError("held")
            if value.startswith("fail") and value != f"fail not {self.props['number']}":
                raise ValueError(f"configured to fail by {value}")
        if any(str(record.value).startswith("hold") for record in records):
            time.sleep(3)
        for record in records:
            if str(record.value).startswith("bad"):
                reporter = self.context.errant_record_reporter()
                assert reporter is not None
                reporter.report(record, ValueError(f"this is {record.value}"))
                continue
            self.record_event(
                "put",
                topic=record.topic,
                partition=record.partition,
                offset=record.kafka_offset,
                original=[record.original_topic, record.original_kafka_partition, record.original_kafka_offset],
                key=repr(record.key),
                value=repr(record.value),
                schema=None if record.value_schema is None else record.value_schema.type.value,
                headers=[[header.key, repr(header.value)] for header in record.headers],
                timestamp=record.timestamp,
            )

    def obey(self) -> None:
        try:
            wanted = json.loads(self.commands.read_text())
        except (FileNotFoundError, ValueError):
            return
        for name, what in wanted.items():
            if name in self.done:
                continue
            self.done.add(name)
            partitions = [TopicPartition(topic, number) for topic, number in what["partitions"]]
            mine = [tp for tp in partitions if tp in self.context.assignment()]
            if what["do"] == "pause":
                self.context.pause(*mine)
            elif what["do"] == "resume":
                self.context.resume(*mine)
            elif what["do"] == "rewind":
                self.context.offset(dict.fromkeys(mine, what["to"]))
            elif what["do"] == "commit":
                self.context.request_commit()
            self.record_event("obeyed", command=name)

    def flush(self, current_offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        if self.holding and not self.flush_failed:
            self.flush_failed = True
            self.record_event("flush failed")
            raise ConnectError("what was put is lost")
        self.record_event("flush", offsets={str(tp): offset.offset for tp, offset in current_offsets.items()})

    def stop(self) -> None:
        self.record_event("stop")


class Later(Transformation):
    """Values that start with ``later`` must be retried until the file ``unless`` exists."""

    def config(self) -> ConfigDef:
        return ConfigDef().define("unless", Type.STRING, importance=Importance.HIGH, doc="A file.")

    def configure(self, props: Mapping[str, Any]) -> None:
        self.unless = Path(props["unless"])

    def apply(self, record: Record) -> Record | None:
        if str(record.value).startswith("later") and not self.unless.exists():
            raise RetriableError(f"there is no {self.unless}")
        return record


class TransactionalConnector(_Connector, SourceConnector):
    def task_class(self) -> type[Task]:
        return TransactionalTask

    def exactly_once_support(self, props: Mapping[str, str]) -> bool:
        return True

    def can_define_transaction_boundaries(self, props: Mapping[str, str]) -> bool:
        return True


class TransactionalTask(SourceTask):
    """Counts, five records a poll. With connector boundaries every third batch is aborted and the others are committed; with
    ``per.record`` transactions are committed after numbers that end in 9 and aborted after those that end in 4. The record
    ``large.at`` has 5000 bytes. With ``no.offsets`` records have neither source partition nor offset."""

    def version(self) -> str:
        return "7.0"

    def start(self, props: dict[str, str]) -> None:
        self.topic = props["topic"]
        self.per_record = props.get("per.record") == "true"
        self.pause_s = float(props.get("pause.s", "0.02"))
        self.most = int(props.get("most", str(10**9)))
        self.large_at = int(props.get("large.at", "-1"))
        self.partition = {"task": props["number"]}
        self.keeps_offsets = props.get("no.offsets") != "true"
        (offset,) = self.context.offset_reader.offsets([self.partition])
        self.next = 0 if offset is None else int(offset["next"])
        self.ended = threading.Event()
        self.context.report({"resumed_at": self.next})

    def poll(self) -> list[SourceRecord] | None:
        if self.ended.wait(self.pause_s) or self.next >= self.most:
            return None
        boundaries = self.context.transaction_context
        batch = []
        for _ in range(5):
            number, self.next = self.next, self.next + 1
            record = SourceRecord(
                self.partition if self.keeps_offsets else None,
                {"next": self.next} if self.keeps_offsets else None,
                self.topic,
                None,
                self.partition["task"].encode(),
                str(number).encode().ljust(5000 if number == self.large_at else 1),
            )
            batch.append(record)
            if boundaries is not None and self.per_record and number % 10 == 9:
                boundaries.commit_transaction(record)
            if boundaries is not None and self.per_record and number % 10 == 4:
                boundaries.abort_transaction(record)
        if boundaries is not None and not self.per_record:
            if (self.next // 5) % 3 == 0:
                boundaries.abort_transaction()
            else:
                boundaries.commit_transaction()
        return batch

    def stop(self) -> None:
        self.ended.set()
