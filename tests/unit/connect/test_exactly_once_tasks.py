"""Which records of a transaction the plugin is told about, without Kafka."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import cast

import pytest

from mm2.connect.api import SourceRecord, SourceTask
from mm2.connect.runtime.exactly_once_settings import Boundary, TransactionBoundaries
from mm2.connect.runtime.sending import OnSent, RecordSender
from mm2.connect.runtime.tasks.exactly_once import ExactlyOnceWorkerSourceTask
from mm2.connect.stores.config_state import TargetState
from mm2.kafka.errors import KafkaFailure, TimeoutFailure
from mm2.kafka.producer.producer import RecordMetadata
from mm2.kafka.producer.transactions import TransactionalProducer
from mm2.kafka.records.record import Record
from tests.support.waiting import wait_until
from tests.unit.connect.task_parts import RecordingListener, equipment, source_setup

METADATA = RecordMetadata("t", 0, 7, 0)


class Acknowledged(SourceTask):
    """Polls three records once, and records which of them are acknowledged."""

    def __init__(self) -> None:
        self.acknowledged: list[tuple[object, RecordMetadata | None]] = []
        self.batches = [[SourceRecord({"p": 1}, {"o": i}, "t", None, None, b"%d" % i) for i in range(3)]]

    def version(self) -> str:
        return "1"

    def start(self, props: dict[str, str]) -> None: ...

    def stop(self) -> None: ...

    def poll(self) -> list[SourceRecord] | None:
        return self.batches.pop() if self.batches else None

    def commit_record(self, record: SourceRecord, metadata: RecordMetadata | None) -> None:
        self.acknowledged.append((record.value, metadata))


class Transactions:
    """A transactional producer that records its calls."""

    def __init__(self) -> None:
        self.in_transaction = False
        self.failure: KafkaFailure | None = None
        self.calls: list[str] = []
        self.refuses = False

    def init(self) -> None:
        self.calls.append("init")

    def begin(self) -> None:
        self.in_transaction = True
        self.calls.append("begin")

    def send(self, _topic: str, records: Sequence[Record]) -> None:
        if self.refuses:
            raise KafkaFailure("refused")
        self.calls.extend(f"offset {record.value!r}" for record in records)

    def commit(self) -> None:
        self.in_transaction = False
        self.calls.append("commit")

    def abort(self) -> None:
        self.in_transaction = False
        self.calls.append("abort")


class FullBuffer:
    """A sender that writes one record and has no room for a second one."""

    failure: KafkaFailure | None = None
    room_bytes = 1 << 20

    def __init__(self) -> None:
        self.written: list[bytes | None] = []
        self.waits = threading.Event()

    def is_ready(self, _topic: str) -> bool:
        return False

    def send(
        self, _topic: str, _partition: int | None, record: Record, on_sent: OnSent, *, give_up: Callable[[], bool]
    ) -> None:
        if self.written:
            deadline = time.monotonic() + 0.5
            self.waits.set()
            while not give_up() and time.monotonic() < deadline:
                time.sleep(0.01)
            raise TimeoutFailure("there is no room in the buffer")
        self.written.append(record.value)
        on_sent(METADATA, None)

    def flush(self, timeout_s: float | None = None, *, give_up: Callable[[], bool] = lambda: False) -> bool:
        return True

    def close(self, timeout_s: float) -> None: ...


def exactly_once(
    task: SourceTask, sender: FullBuffer, transactions: Transactions, listener: RecordingListener
) -> ExactlyOnceWorkerSourceTask:
    return ExactlyOnceWorkerSourceTask(
        equipment(listener),
        source_setup(task, sender=cast("RecordSender", sender)),
        cast("TransactionalProducer", transactions),
        TransactionBoundaries(Boundary.INTERVAL, 60_000, 600_000),
        flush_timeout_s=1,
    )


@pytest.mark.parametrize("state", [TargetState.STOPPED, TargetState.PAUSED])
def test_a_record_that_was_not_written_is_not_acknowledged_by_the_last_commit(state: TargetState) -> None:
    """The plugin would take it for a filtered one and acknowledge it at its source."""
    task, sender, transactions = Acknowledged(), FullBuffer(), Transactions()
    running = exactly_once(task, sender, transactions, RecordingListener())
    running.start()
    assert sender.waits.wait(60)
    running.set_target_state(state)
    wait_until(lambda: "commit" in transactions.calls, 10, detail=lambda: transactions.calls)
    running.stop()
    assert running.await_stop(60)
    assert sender.written == [b"0"]
    assert task.acknowledged == [(b"0", METADATA)]
    assert transactions.calls[:3] == ["begin", "offset b'{\"o\":0}'", "commit"]


class Closing(Acknowledged):
    """Polls one record, then waits on a connection that its stop closes."""

    def __init__(self) -> None:
        super().__init__()
        self.batches = [self.batches[0][:1]]
        self.polling = threading.Event()
        self.closed = threading.Event()

    def stop(self) -> None:
        self.closed.set()

    def poll(self) -> list[SourceRecord] | None:
        if not self.batches:
            self.polling.set()
            assert self.closed.wait(60)
            raise OSError("the connection is closed")
        return super().poll()


@pytest.mark.parametrize("refused", [False, True])
def test_records_are_committed_if_poll_fails_because_of_the_stop(refused: bool) -> None:
    """A commit that fails then is no failure of the task either: the successor polls the records again."""
    task, transactions, listener = Closing(), Transactions(), RecordingListener()
    running = exactly_once(task, FullBuffer(), transactions, listener)
    running.start()
    assert task.polling.wait(60)
    transactions.refuses = refused
    running.stop()
    assert running.await_stop(60)
    assert listener.events == ["startup", "shutdown"]
    ends = ["abort"] if refused else ["offset b'{\"o\":0}'", "commit"]
    assert transactions.calls == ["begin", *ends]
