"""The parts of the herder, each separately."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from mm2.codec import encode
from mm2.config.keys.worker_keys import WorkerConfig
from mm2.connect import request_signing
from mm2.connect.api import ConnectError
from mm2.connect.errors import BadRequest, Conflict, Forbidden, MalformedBody, NotReady
from mm2.connect.herder import request_queue
from mm2.connect.herder.answers import (
    ConnectorOffset,
    ConnectorOffsets,
    ConnectorStateInfo,
    ConnectorType,
    TaskStateInfo,
    WorkState,
)
from mm2.connect.herder.connector_offsets import parse_sink_offsets
from mm2.connect.herder.internal_requests import SessionKeys
from mm2.connect.herder.lifecycle import restart_plan
from mm2.connect.herder.reconfiguration import TaskReconfiguration, backoff_s, changed
from mm2.connect.herder.request_queue import NEVER, RequestQueue, StagedFuture, StageTracker, Steps, run_apart
from mm2.connect.herder.steps.config_changes import PendingChanges
from mm2.connect.request_signing import RequestSignature, SessionKey
from mm2.connect.runtime.worker import TooManyTasks
from mm2.connect.stores.config_state import ClusterConfigState, ConnectorTaskId, Props, RestartRequest, TargetState
from mm2.kafka.structs import TopicPartition

# -- stages


def test_stages_in_progress_and_completed_ones_are_distinguished() -> None:
    stages = StageTracker("awaiting startup")
    stages.complete()
    with stages.during("polling the group"):
        with stages.during("stopping connector c"):
            assert stages.current.summary().startswith("The worker is currently stopping connector c, which began at 2")
        assert stages.current.description == "polling the group"
    output = stages.current.summary()
    assert output.startswith("The last operation the worker completed was polling the group, which began at 2")
    assert " and completed at 2" in output


def test_a_stage_can_report_its_progress() -> None:
    stages = StageTracker("awaiting startup")
    done = ["7 of 9"]
    with stages.during("reading", lambda: done[0]):
        assert stages.current.description == "reading (7 of 9)"
        done[0] = ""
        assert stages.current.description == "reading"


def test_a_hanging_call_reports_its_stage_and_blocks_no_other() -> None:
    hanging, entered = threading.Event(), threading.Event()

    def hang(stages: StageTracker) -> None:
        with stages.during("asking the plugin"):
            entered.set()
            hanging.wait(600)

    future = run_apart(hang, "hang", "waiting for a thread")
    assert entered.wait(60)
    assert future.stage().description == "asking the plugin"
    assert run_apart(lambda _stages: 1, "other", "waiting").result(60) == 1
    hanging.set()
    future.result(60)


def test_steps_report_the_stage_in_progress_and_fail_with_it() -> None:
    steps: Steps[int] = Steps("first")
    assert steps.outcome.stage().description == "first"
    second = StageTracker("second")
    step: StagedFuture[str] = StagedFuture(lambda: second.current)
    steps.after(step, lambda text: steps.end(len(text)))
    assert steps.outcome.stage().description == "second"
    step.set_result("four")
    assert steps.outcome.result(0) == 4

    failing: Steps[int] = Steps("first")
    bad: StagedFuture[str] = StagedFuture(lambda: second.current)
    failing.after(bad, lambda text: failing.end(int(text)))
    bad.set_result("no number")
    with pytest.raises(ValueError, match="no number"):
        failing.outcome.result(0)


# -- requests


def test_requests_run_in_order_of_time_and_then_of_arrival(monkeypatch: pytest.MonkeyPatch) -> None:
    woken: list[None] = []
    queue = RequestQueue(StageTracker("idle"), lambda: woken.append(None))
    ran: list[str] = []
    late = queue.submit(lambda: ran.append("late"), "late", delay_s=600)
    for name in ("a", "b"):
        queue.submit(lambda name=name: ran.append(name), name)  # type: ignore[misc]
    assert len(woken) == 3
    due_s = queue.run_due(lambda: False)
    assert ran == ["a", "b"]
    assert due_s > time.monotonic()
    monkeypatch.setattr(request_queue, "time", SimpleNamespace(monotonic=lambda: due_s, time_ns=time.time_ns))
    assert queue.run_due(lambda: False) == NEVER
    assert late.done()
    assert ran == ["a", "b", "late"]


def test_a_cancelled_request_does_not_run_and_a_stopped_herder_rejects_all() -> None:
    queue = RequestQueue(StageTracker("idle"), lambda: None)
    withdrawn = queue.submit(lambda: pytest.fail("withdrawn"), "nothing")
    withdrawn.cancel()
    queue.run_due(lambda: False)
    waiting = queue.submit(lambda: None, "waiting")
    queue.close()
    for future in (waiting, queue.submit(lambda: None, "too late")):
        with pytest.raises(ConnectError, match="Worker is shutting down"):
            future.result(0)


# -- changes


def test_new_and_deleted_connectors_and_task_commits_need_a_rebalance_changed_connectors_do_not() -> None:
    pending = PendingChanges({"old"}.__contains__)
    pending.connector_updated("old")
    pending.target_changed("old")
    assert not pending.need_rebalance
    announcements: list[Callable[[], None]] = [
        lambda: pending.connector_updated("new"),
        lambda: pending.connector_removed("old"),
        lambda: pending.tasks_updated([ConnectorTaskId("old", 0)]),
    ]
    for announce in announcements:
        announce()
        assert pending.take().rebalance
    pending.connector_removed("unknown")
    assert not pending.need_rebalance


def test_the_restart_request_that_restarts_more_wins() -> None:
    pending = PendingChanges({"c"}.__contains__)
    wanted = RestartRequest("c", only_failed=False, include_tasks=True)
    pending.restart_requested(RestartRequest("c", only_failed=True, include_tasks=True))
    pending.restart_requested(wanted)
    pending.restart_requested(RestartRequest("c", only_failed=False, include_tasks=False))
    assert pending.take_restarts() == [wanted]
    assert pending.take_restarts() == []


# -- restarts


def states(connector: str, *tasks: str) -> ConnectorStateInfo:
    return ConnectorStateInfo(
        "c",
        WorkState(connector, "w"),
        tuple(TaskStateInfo(state, "w", id=number) for number, state in enumerate(tasks)),
        ConnectorType.SOURCE,
    )


@pytest.mark.parametrize(
    ("only_failed", "include_tasks", "connector", "tasks"),
    [
        (False, False, True, []),
        (False, True, True, [0, 1]),
        (True, False, False, []),
        (True, True, False, [1]),
    ],
)
def test_a_restart_follows_its_flags(only_failed: bool, include_tasks: bool, connector: bool, tasks: list[int]) -> None:
    plan = restart_plan(RestartRequest("c", only_failed, include_tasks), states("RUNNING", "RUNNING", "FAILED"))
    assert plan.connector is connector
    assert [task.task for task in plan.tasks] == tasks
    shown = encode(plan.states)
    assert shown["connector"]["state"] == ("RESTARTING" if connector else "RUNNING")
    assert [task["state"] for task in shown["tasks"]] == [
        "RESTARTING" if number in tasks else state for number, state in enumerate(("RUNNING", "FAILED"))
    ]


# -- session keys

KEY = SessionKey(bytes(32), "HmacSHA256", 0)


def session_keys(stored: SessionKey | None, *, signs: bool = True) -> SessionKeys:
    props = {
        "bootstrap.servers": "127.0.0.1:1",
        "group.id": "g",
        "config.storage.topic": "configs",
        "offset.storage.topic": "offsets",
        "status.storage.topic": "statuses",
        "key.converter": "x",
        "value.converter": "x",
    }
    return SessionKeys(WorkerConfig(props), lambda: stored, lambda: signs)


def signed(body: bytes, key: SessionKey = KEY, algorithm: str = "HmacSHA256") -> RequestSignature | None:
    return RequestSignature.from_headers(body, request_signing.signature_headers(key, body, algorithm))


def test_internal_requests_are_verified_like_java() -> None:
    keys = session_keys(KEY)
    keys.verify(signed(b"[]"), is_permitted=False)
    session_keys(KEY, signs=False).verify(None, is_permitted=True)
    with pytest.raises(BadRequest, match="missing required signature"):
        keys.verify(None, is_permitted=False)
    # The name is compared as written, although Java's Mac, and ours, would find the algorithm.
    for algorithm in ("HmacSHA1", "hmacsha256"):
        wrong = rf"does not support the '{algorithm}' key signing algorithm .* to use: \[HmacSHA256\]\. Check"
        with pytest.raises(BadRequest, match=wrong):
            keys.verify(signed(b"[]", algorithm=algorithm), is_permitted=False)
    with pytest.raises(NotReady, match="still starting up"):
        session_keys(None).verify(signed(b"[]"), is_permitted=False)
    with pytest.raises(Forbidden, match="invalid signature"):
        keys.verify(signed(b"[]", SessionKey(b"1" * 32, "HmacSHA256", 0)), is_permitted=False)
    newer = SessionKey(b"2" * 32, "HmacSHA256", 1)
    keys.accept(newer)
    keys.verify(signed(b"[]", newer), is_permitted=False)


@pytest.mark.parametrize(
    "signature", [None, signed(b"[]", SessionKey(b"1" * 32, "HmacSHA256", 0))], ids=["none", "wrong"]
)
def test_a_group_that_signs_no_more_opens_nothing_to_a_client_without_a_role(
    signature: RequestSignature | None,
) -> None:
    """A member of the group can end the signing after REST has asked for a signature instead of a role, while it receives the body."""
    with pytest.raises(Conflict, match="does not sign requests any more"):
        session_keys(KEY, signs=False).verify(signature, is_permitted=False)


@pytest.mark.parametrize(
    ("headers", "output"),
    [
        (
            {request_signing.SIGNATURE_HEADER: "AAA=", request_signing.ALGORITHM_HEADER: "Nonsense"},
            "Unknown MAC algorithm 'Nonsense'",
        ),
        ({request_signing.SIGNATURE_HEADER: "=A=", request_signing.ALGORITHM_HEADER: "HmacSHA256"}, "is not base64"),
    ],
)
def test_a_signature_that_cannot_be_read_is_a_bad_request(headers: dict[str, str], output: str) -> None:
    with pytest.raises(BadRequest, match=output):
        RequestSignature.from_headers(b"", headers)


def test_half_a_signature_is_no_signature() -> None:
    assert RequestSignature.from_headers(b"", {request_signing.SIGNATURE_HEADER: "AAA="}) is None


# -- task configs


class Connectors:
    """A worker whose connector c returns configured results."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.running = True
        self.secret = "old"

    def is_running(self, name: str) -> bool:
        return self.running

    def resolve(self, raw: Props) -> dict[str, str]:
        return {key: self.secret if value == "${secret}" else str(value) for key, value in raw.items()}

    def task_configs(self, name: str, raw: Props, resolved: Mapping[str, str]) -> list[dict[str, str | None]]:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer() if callable(answer) else answer  # type: ignore[return-value]


class Herd:
    """A herder that runs in the test's thread."""

    def __init__(self) -> None:
        self.state = ClusterConfigState(connector_configs={"c": {"a": "1"}}, target_states={"c": TargetState.STARTED})
        self.published: list[Sequence[Props]] = []
        self.refusals: list[Exception] = []
        self.queue = RequestQueue(StageTracker("idle"), lambda: None)

    def configs(self) -> ClusterConfigState:
        return self.state

    def later(self, action: Callable[[], None], stage: str, *, delay_s: float = 0.0) -> StagedFuture[None]:
        return self.queue.submit(action, stage, delay_s=delay_s / 100)

    def publish_task_configs(self, connector: str, configs: Sequence[Props]) -> Future[None]:
        done: Future[None] = Future()
        if self.refusals:
            done.set_exception(self.refusals.pop(0))
        else:
            self.published.append(configs)
            done.set_result(None)
        return done

    def run_until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not done():
            assert time.monotonic() < deadline
            self.queue.run_due(lambda: False)
            time.sleep(0.001)


def reconfiguration(worker: Connectors, herd: Herd) -> TaskReconfiguration:
    fake: Any = worker
    return TaskReconfiguration(fake, herd)


def test_task_configs_are_published_and_a_failure_is_tried_again_until_it_works() -> None:
    herd, made = Herd(), [{"n": "0"}]
    worker = Connectors(ValueError("not yet"), made, made)
    herd.refusals.append(ConnectError("the leader is busy"))
    reported: list[None] = []
    reconfiguration(worker, herd).request("c", then=lambda: reported.append(None))
    herd.run_until(lambda: herd.published == [made])
    assert reported == [None], "the waiting caller must get the first failure"


def test_too_many_tasks_are_not_requested_again() -> None:
    herd, rounds = Herd(), list[None]()
    reconfiguration(Connectors(TooManyTasks("too many")), herd).request("c", then=lambda: rounds.append(None))
    herd.run_until(lambda: bool(rounds))
    assert herd.queue.run_due(lambda: False) == NEVER


def test_a_hanging_connector_is_abandoned_and_its_successor_is_used() -> None:
    herd, hanging = Herd(), threading.Event()

    def hang() -> list[dict[str, str | None]]:
        hanging.wait(600)
        return [{"n": "old"}]

    worker = Connectors(hang, [{"n": "new"}])
    asking = reconfiguration(worker, herd)
    asking.request("c")
    asking.request("c", fresh=True)
    herd.run_until(lambda: bool(herd.published))
    hanging.set()
    time.sleep(0.05)
    herd.queue.run_due(lambda: False)
    assert herd.published == [[{"n": "new"}]]


def test_task_configs_from_before_a_change_are_ignored() -> None:
    herd = Herd()

    def change() -> list[dict[str, str | None]]:
        herd.state = ClusterConfigState(connector_configs={"c": {"a": "2"}}, target_states=herd.state.target_states)
        return [{"n": "old"}]

    reconfiguration(Connectors(change, [{"n": "new"}]), herd).request("c")
    herd.run_until(lambda: bool(herd.published))
    assert herd.published == [[{"n": "new"}]]


def test_unchanged_task_configs_are_not_written_again_unless_the_connectors_changed() -> None:
    task = ConnectorTaskId("c", 0)
    raw: Props = {"a": "1"}
    known = ClusterConfigState(
        task_counts={"c": 1},
        connector_configs={"c": raw},
        task_configs={task: {"n": "0"}},
        applied_connector_configs={"c": raw},
    )
    assert not changed(known, "c", [{"n": "0"}])
    assert changed(known, "c", [{"n": "1"}])
    assert changed(known, "c", [])
    other = ClusterConfigState(
        task_counts={"c": 1},
        connector_configs={"c": {"a": "1", "value.converter": "other"}},
        task_configs={task: {"n": "0"}},
        applied_connector_configs={"c": raw},
    )
    assert changed(other, "c", [{"n": "0"}])


def test_tasks_get_the_new_value_of_a_secret_when_their_connector_is_reconfigured() -> None:
    """Their stored configs contain the reference, so they do not change. A failed write is repeated."""
    made: list[dict[str, str | None]] = [{"password": "${secret}"}]
    raw: Props = {"password": "${secret}"}
    herd, worker = Herd(), Connectors(*[made] * 5)
    herd.state = ClusterConfigState(
        task_counts={"c": 1},
        connector_configs={"c": raw},
        task_configs={ConnectorTaskId("c", 0): made[0]},
        applied_connector_configs={"c": raw},
        target_states={"c": TargetState.STARTED},
    )
    tasks, rounds = reconfiguration(worker, herd), list[None]()

    def reconfigure() -> None:
        before = len(rounds)
        tasks.request("c", then=lambda: rounds.append(None))
        herd.run_until(lambda: len(rounds) > before)

    reconfigure()
    assert herd.published == []
    worker.secret = "new"
    herd.refusals.append(ConnectError("the leader is busy"))
    reconfigure()
    herd.run_until(lambda: herd.published == [made])
    reconfigure()
    assert herd.published == [made]


def test_the_retry_backoff_doubles_up_to_a_minute() -> None:
    assert [backoff_s(n) for n in (0, 1, 2, 8, 1000)] == [0.25, 0.5, 1.0, 60.0, 60.0]


# -- offsets


def offsets(partition: Any, offset: Any) -> ConnectorOffsets:
    return ConnectorOffsets((ConnectorOffset(partition, offset),))


def test_sink_offsets_can_be_numbers_or_strings() -> None:
    where = {"kafka_topic": "t", "kafka_partition": "3"}
    assert parse_sink_offsets(offsets(where, {"kafka_offset": "7"})) == {TopicPartition("t", 3): 7}
    assert parse_sink_offsets(offsets({**where, "kafka_partition": 3}, {"kafka_offset": 7})) == {
        TopicPartition("t", 3): 7
    }
    assert parse_sink_offsets(offsets(where, None)) == {TopicPartition("t", 3): None}


@pytest.mark.parametrize(
    ("partition", "offset", "output"),
    [
        (None, None, "cannot be null or missing"),
        ({"kafka_topic": "t"}, None, "must contain the keys 'kafka_topic' and 'kafka_partition'"),
        ({"kafka_topic": None, "kafka_partition": 1}, None, "topic names must be valid strings"),
        ({"kafka_topic": "t", "kafka_partition": None}, None, "Kafka partitions must be valid numbers"),
        ({"kafka_topic": "t", "kafka_partition": "one"}, None, "partition value in the provided offsets: 'one'"),
        ({"kafka_topic": "t", "kafka_partition": 2**31}, None, "partition value in the provided offsets"),
        ({"kafka_topic": "t", "kafka_partition": 1}, {}, "either be null or contain the key 'kafka_offset'"),
        (
            {"kafka_topic": "t", "kafka_partition": 1},
            {"kafka_offset": 1.5},
            "offset value in the provided offsets: '1.5'",
        ),
        ({"kafka_topic": "t", "kafka_partition": 1}, {"kafka_offset": None}, "offset value in the provided offsets"),
    ],
)
def test_bad_sink_offsets_are_bad_requests(partition: Any, offset: Any, output: str) -> None:
    with pytest.raises(BadRequest, match=output):
        parse_sink_offsets(offsets(partition, offset))


_TYPE = "org.apache.kafka.connect.runtime.rest.entities.ConnectorOffset"


@pytest.mark.parametrize(
    ("body", "message"),  # of Java's worker, without the place in the text
    [
        ([], f"Cannot deserialize value of type `{_TYPE}s` from Array value (token `JsonToken.START_ARRAY`)"),
        (
            "x",
            (
                f"Cannot construct instance of `{_TYPE}s` (although at least one Creator exists): no String-argument "
                "constructor/factory method to deserialize from String value ('x')"
            ),
        ),
        (
            {"offsets": {}},
            f"Cannot deserialize value of type `java.util.ArrayList<{_TYPE}>` from Object value (token `JsonToken.START_OBJECT`)",
        ),
        (
            {"offsets": [1]},
            (
                f"Cannot construct instance of `{_TYPE}` (although at least one Creator exists): no int/Int-argument "
                "constructor/factory method to deserialize from Number value (1)"
            ),
        ),
        (
            {"offsets": [{"partition": []}]},
            (
                "Cannot deserialize value of type `java.util.LinkedHashMap<java.lang.String,java.lang.Object>` from Array value (token "
                "`JsonToken.START_ARRAY`)"
            ),
        ),
        ({"offsets": [{"key": "x"}]}, 'Unrecognized field "key"; known are "partition" and "offset"'),
    ],
)
def test_a_body_that_holds_no_offsets_has_java_s_message(body: Any, message: str) -> None:
    with pytest.raises(MalformedBody) as caught:
        ConnectorOffsets.from_json(body)
    assert str(caught.value) == message


@pytest.mark.parametrize("body", [{}, {"offsets": None}, {"offsets": []}])
def test_no_offsets_are_a_bad_request(body: Any) -> None:
    with pytest.raises(BadRequest, match="Partitions / offsets need to be provided"):
        ConnectorOffsets.from_json(body)


@pytest.mark.parametrize(
    "body",
    [
        [],
        1,
        {"offset": []},
        {"offsets": {}},
        {"offsets": [1]},
        {"offsets": [{"partition": 1}]},
        {"offsets": [{"x": {}}]},
    ],
)
def test_an_unexpected_structure_is_a_malformed_body(body: Any) -> None:
    with pytest.raises(MalformedBody):
        ConnectorOffsets.from_json(body)
