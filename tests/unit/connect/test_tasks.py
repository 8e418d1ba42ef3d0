"""The life cycle of a source task, without Kafka."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
import structlog

from mm2.connect.api import ConnectError, SourceRecord, SourceTask
from mm2.connect.runtime.sending import Outgoing, Sent, size_of
from mm2.connect.runtime.tasks.source import OwnershipGuard, WorkerSourceTask
from mm2.connect.runtime.tasks.submitted import Submitted
from mm2.connect.runtime.tolerance import Tolerance
from mm2.kafka.producer.producer import RecordMetadata, Written
from mm2.kafka.records.record import Record
from mm2.kafka.structs import TopicPartition
from tests.unit.connect.task_parts import RecordingListener, equipment, source_setup


class SlowStart(SourceTask):
    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.starting = threading.Event()
        self.context_of_stop: dict[str, object] = {}

    def version(self) -> str:
        return "1"

    def start(self, props: dict[str, str]) -> None:
        self.starting.set()
        assert self.go_on.wait(60)

    def poll(self) -> list[SourceRecord] | None:
        return None

    def stop(self) -> None:
        self.context_of_stop = structlog.contextvars.get_contextvars()


def worker_task(task: SourceTask, listener: RecordingListener, guard: OwnershipGuard | None = None) -> WorkerSourceTask:
    return WorkerSourceTask(equipment(listener), source_setup(task, guard), flush_timeout_s=1)


def run_and_stop(*, cancel: bool) -> list[str]:
    task, listener = SlowStart(), RecordingListener()
    running = worker_task(task, listener)
    running.start()
    assert task.starting.wait(60)
    running.stop()
    if cancel:
        running.cancel()
    task.go_on.set()
    assert running.await_stop(60)
    return listener.events


def test_a_task_stopped_during_its_start_reports_its_status() -> None:
    assert run_and_stop(cancel=False) == ["startup", "shutdown"]


def test_a_cancelled_task_reports_no_status() -> None:
    assert run_and_stop(cancel=True) == []


def test_log_lines_of_a_stop_contain_the_flow_on_every_thread() -> None:
    task = SlowStart()
    running = worker_task(task, RecordingListener())
    running._plugin_stop.call()
    assert task.context_of_stop == {"flow": "A->B", "connector": "c", "task": 0}
    assert "flow" not in structlog.contextvars.get_contextvars()


class Guard:
    """Responses of the group, and the requests."""

    def __init__(self, refuse: str | None = None) -> None:
        self.asked: list[str] = []
        self.asking = threading.Event()
        self.wait = False
        self.refuse = refuse

    def as_guard(self) -> OwnershipGuard:
        return OwnershipGuard(fence=lambda stopping: self._ask("fence", stopping), confirm=self._confirm)

    def _confirm(self, stopping: Callable[[], bool]) -> None:
        self._ask("confirm", stopping)

    def _ask(self, what: str, stopping: Callable[[], bool]) -> None:
        self.asked.append(what)
        self.asking.set()
        while self.wait and not stopping():
            time.sleep(0.01)
        if self.refuse == what:
            raise ConnectError(f"{what} refused")


class Returning(SlowStart):
    def poll(self) -> list[SourceRecord] | None:
        return [SourceRecord({"p": 1}, {"o": 1}, "t", None, None, None)]


def test_a_task_with_its_own_producer_starts_after_fencing_if_it_is_still_assigned() -> None:
    task, listener, guard = SlowStart(), RecordingListener(), Guard()
    running = worker_task(task, listener, guard.as_guard())
    task.go_on.set()
    running.start()
    assert task.starting.wait(60)
    assert guard.asked == ["fence", "confirm"]
    task.context.confirm_ownership()
    assert guard.asked == ["fence", "confirm", "confirm"]
    running.stop()
    assert running.await_stop(60)
    assert listener.events == ["startup", "shutdown"]
    with pytest.raises(ConnectError, match="is being stopped"):
        task.context.confirm_ownership()


class Closing(SlowStart):
    """A task whose poll uses a connection that its stop closes."""

    def __init__(self, fails: str = "poll") -> None:
        super().__init__()
        self.closed = threading.Event()
        self.fails = fails

    def start(self, props: dict[str, str]) -> None:
        if self.fails == "start":
            super().start(props)
            raise OSError("there is no connection")

    def poll(self) -> list[SourceRecord] | None:
        self.starting.set()
        assert self.closed.wait(60)
        raise OSError("the connection is closed")

    def stop(self) -> None:
        self.closed.set()
        self.go_on.set()


@pytest.mark.parametrize(("fails", "events"), [("poll", ["startup", "shutdown"]), ("start", ["shutdown"])])
def test_a_task_that_raises_while_it_is_being_stopped_has_not_failed(fails: str, events: list[str]) -> None:
    task, listener = Closing(fails), RecordingListener()
    running = worker_task(task, listener)
    running.start()
    assert task.starting.wait(60)
    running.stop()
    task.go_on.set()
    assert running.await_stop(60)
    assert listener.events == events
    assert running.failure is None


def test_a_task_that_raises_without_being_stopped_fails() -> None:
    task, listener = Closing(), RecordingListener()
    running = worker_task(task, listener)
    running.start()
    task.closed.set()
    assert running.await_stop(60)
    assert listener.events == ["startup", "failure"]


@pytest.mark.parametrize("what", ["fence", "confirm"])
def test_a_task_that_is_no_longer_assigned_fails_before_it_starts(what: str) -> None:
    task, listener = SlowStart(), RecordingListener()
    running = worker_task(task, listener, Guard(refuse=what).as_guard())
    running.start()
    assert running.await_stop(60)
    assert listener.events == ["failure"]
    assert not task.starting.is_set()
    assert str(running.failure) == f"{what} refused"


def test_a_task_stopped_while_it_waits_for_fencing_ends() -> None:
    task, listener, guard = SlowStart(), RecordingListener(), Guard(refuse="fence")
    guard.wait = True
    running = worker_task(task, listener, guard.as_guard())
    running.start()
    assert guard.asking.wait(60)
    running.stop()
    assert running.await_stop(60)
    assert listener.events == ["shutdown"]
    assert guard.asked == ["fence"]


def test_records_of_a_task_with_its_own_producer_are_rejected() -> None:
    task, listener = Returning(), RecordingListener()
    task.go_on.set()
    running = worker_task(task, listener, Guard().as_guard())
    running.start()
    assert running.await_stop(60)
    assert "produces records itself" in str(running.failure)


def test_a_source_task_reports_the_topic_of_each_batch() -> None:
    """The record of topics in use may have been reset in between."""
    topics: list[str] = []
    parts = equipment(RecordingListener(), on_topic=topics.append)
    running = WorkerSourceTask(parts, source_setup(SlowStart()), flush_timeout_s=1)
    for offset in range(2):
        submitted = [Submitted(SourceRecord({"p": 1}, {"o": n}, "t", None, None, None)) for n in range(3)]
        records = [Outgoing("t", 0, Record(None, None, (), 1), running._run_settled, one) for one in submitted]
        written = Written(TopicPartition("t", 0), [one.record for one in records], offset, -1)
        running._run_settled(records, Sent([written], slice(0, 3)), None)
    assert topics == ["t", "t"]


class Acknowledged(SlowStart):
    def __init__(self) -> None:
        super().__init__()
        self.acknowledged: list[object] = []

    def commit_record(self, record: SourceRecord, metadata: RecordMetadata | None) -> None:
        self.acknowledged.append((record.value, metadata))


def test_records_that_were_not_written_because_the_task_was_reassigned_are_not_skipped() -> None:
    """Their task may run on another worker, so they are no tolerated failures."""
    task, listener, session = Acknowledged(), RecordingListener(), [True]

    def is_ours() -> bool:
        return session[0]

    parts = equipment(listener, Tolerance(tolerates_all=True), is_ours)
    setup = source_setup(task, is_ours=is_ours)
    running = WorkerSourceTask(parts, setup, flush_timeout_s=1)
    submitted = running._submitted.submit(SourceRecord({"p": 1}, {"o": 1}, "t", None, None, b"v"))
    setup.sender._counts["t"] = (1, time.monotonic())
    session[0] = False
    record = Record(None, b"v")
    setup.sender.send_at_once([Outgoing("t", None, record, running._run_settled, submitted, size_of(record))])
    assert setup.sender.flush(60)
    assert (task.acknowledged, submitted.acked, parts.counters.errors.records_skipped) == ([], False, 0)


def test_records_that_were_not_written_before_the_producer_was_closed_are_not_skipped() -> None:
    """The task is not cancelled: it has failed, or its grace period is longer than the end of the producer takes."""
    task = Acknowledged()
    parts = equipment(RecordingListener(), Tolerance(tolerates_all=True))
    setup = source_setup(task)
    running = WorkerSourceTask(parts, setup, flush_timeout_s=1)
    submitted = running._submitted.submit(SourceRecord({"p": 1}, {"o": 1}, "t", None, None, b"v"))
    setup.sender._counts["t"] = (1, time.monotonic())
    record = Record(None, b"v")
    setup.sender.send_at_once([Outgoing("t", None, record, running._run_settled, submitted, size_of(record))])
    running._disconnect(0.1)
    assert setup.sender.flush(60)
    assert (task.acknowledged, submitted.acked, parts.counters.errors.records_skipped) == ([], False, 0)
