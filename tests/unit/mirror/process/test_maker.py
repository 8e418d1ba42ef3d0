"""How a new leader updates the connectors of its flow from its file, and what the end of a herder means for other flows."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from mm2.config.mirrormaker import MirrorMakerConfig, SourceAndTarget
from mm2.connect.api import ConnectError
from mm2.connect.errors import NotLeader
from mm2.connect.herder.distributed import DistributedHerder
from mm2.connect.stores.config_state import ClusterConfigState, ConnectorTaskId
from mm2.connect.stores.config_store import PrivilegedWriteError
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import AuthenticationFailure, BrokerFailure, TimeoutFailure, UnreadableAnswer
from mm2.mirror.common.plugins import connect_plugins, plugin_limits
from mm2.mirror.common.recurring_errors import RecurringErrors
from mm2.mirror.process import maker
from mm2.mirror.process.config_file import ConfigFile
from mm2.mirror.process.maker import Configurer, Flow, FlowFailed, MirrorMaker, _frozen
from mm2.mirror.process.plans import Changes, plan_flows
from tests.support.waiting import wait_until

WANTED = {"one": {"name": "one"}, "two": {"name": "two"}}


class Configs:
    """The part of a herder that is used here; the first writes raise ``failures``."""

    def __init__(self, *failures: Exception, stored: Mapping[str, Mapping[str, str]] | None = None) -> None:
        self.failures = list(failures)
        self.stored = dict(stored or {})
        self.writes: list[str] = []

    def configs(self) -> ClusterConfigState:
        return ClusterConfigState(connector_configs=self.stored)

    def put_connector_config(self, name: str, config: Mapping[str, str], allow_replace: bool) -> Future[bool]:
        assert allow_replace
        self.writes.append(name)
        future: Future[bool] = Future()
        if self.failures:
            future.set_exception(self.failures.pop(0))
        else:
            self.stored[name] = config
            future.set_result(True)
        return future


def caused_by(cause: Exception) -> ConnectError:
    error = ConnectError("Failed to write")
    error.__cause__ = cause
    return error


def write_failure() -> ConnectError:
    return caused_by(TimeoutFailure("too late"))


@pytest.fixture
def configure(monkeypatch: pytest.MonkeyPatch) -> Callable[[Configs], None]:
    monkeypatch.setattr(maker, "_CONFIGURE_AGAIN_S", 0.01)
    run = Configurer(SourceAndTarget("A", "B"), WANTED)
    return lambda herder: run(cast(DistributedHerder, cast(Any, herder)))


def test_only_changed_configs_are_written(configure: Callable[[Configs], None]) -> None:
    herder = Configs(stored={"one": WANTED["one"]})
    configure(herder)
    assert herder.writes == ["two"]


def test_a_write_with_a_retriable_error_is_retried(configure: Callable[[Configs], None]) -> None:
    herder = Configs(write_failure(), PrivilegedWriteError("no producer, since a zombie has fenced it"))
    configure(herder)
    wait_until(lambda: herder.stored == WANTED, 30, what="the configs", interval_s=0.01)
    # Both failures may be those of the first connector, if it is tried again before the second one is written.
    assert (len(herder.writes), set(herder.writes)) == (4, {"one", "two"})


@pytest.mark.parametrize("error", [NotLeader("no", None), ConnectError("the configuration is invalid")])
def test_other_rejections_are_final(configure: Callable[[Configs], None], error: Exception) -> None:
    herder = Configs(error)
    configure(herder)
    time.sleep(0.1)
    assert herder.writes == ["one", "two"]


class EndedHerder:
    """The part of a herder that ended by itself that is used here."""

    is_leader = True

    def __init__(self, failure: Exception | None, *, was_ready: bool = False) -> None:
        self.failure = failure
        self.was_ready = was_ready

    def await_stopped(self, timeout_s: float) -> bool:
        return self.failure is not None

    def await_ready(self, timeout_s: float) -> bool:
        return self.was_ready

    def start(self) -> None:
        pass

    def status(self) -> dict[str, Any]:
        return {"connectors": {}, "leader": True}


class ProcessOfFlows(MirrorMaker):
    """A process whose flows have these herders; nothing connects."""

    def __init__(self, herders: Mapping[SourceAndTarget, EndedHerder], *late: SourceAndTarget) -> None:
        nodes = {pair: SimpleNamespace(herder=herder, stop=lambda: None) for pair, herder in herders.items()}
        self.flows = [
            Flow(pair, cast(Any, node), Configurer(pair, {}), cast(Any, None)) for pair, node in nodes.items()
        ]
        self._waiting = set()
        self._late = set(late)
        self._not_before_s = {}
        self._stopping = threading.Event()
        self._engine = cast(Any, SimpleNamespace(ended=None))
        self._rest = None

    def look(self) -> None:
        """Handle the failures."""
        rounds = iter([False, True])
        self.wait(cast(threading.Event, SimpleNamespace(wait=lambda _: next(rounds))))


ONE, OTHER = SourceAndTarget("A", "B"), SourceAndTarget("A", "C")


@pytest.mark.parametrize(
    "failure",
    [
        TimeoutFailure("topic mm2-offsets.A.internal of cluster B was not read to its end"),
        pytest.param(write_failure(), id="while-it-creates-a-topic"),
        pytest.param(caused_by(BrokerFailure.of(ErrorCode.INVALID_REPLICATION_FACTOR)), id="too-few-brokers-yet"),
        pytest.param(caused_by(BrokerFailure.of(999)), id="an-unknown-error-code"),
        pytest.param(caused_by(UnreadableAnswer("offset is -7")), id="an-unreadable-answer"),
    ],
)
def test_a_flow_that_cannot_load_its_topics_yet_does_not_end_the_others(failure: Exception) -> None:
    process = ProcessOfFlows({ONE: EndedHerder(failure), OTHER: EndedHerder(None)})
    process.look()
    assert [flow.pair for flow in process.flows] == [OTHER]
    assert process._waiting == {ONE}
    process.look()
    assert process._waiting == {ONE}, "it is started again after a pause only"


@pytest.mark.parametrize(
    ("herders", "has_started"),
    [
        pytest.param({ONE: EndedHerder(TimeoutFailure("late"))}, False, id="no-other-flow"),
        pytest.param(
            {ONE: EndedHerder(TimeoutFailure("late")), SourceAndTarget("C", "B"): EndedHerder(None)},
            False,
            id="no-other-target",
        ),
        pytest.param({ONE: EndedHerder(TimeoutFailure("late"), was_ready=True)}, True, id="ran-alone"),
        pytest.param(
            {ONE: EndedHerder(ValueError("bug"), was_ready=True), SourceAndTarget("C", "B"): EndedHerder(None)},
            True,
            id="ran-and-no-other-target",
        ),
        pytest.param({ONE: EndedHerder(ValueError("bug")), OTHER: EndedHerder(None)}, False, id="permanent"),
    ],
)
def test_any_other_failure_of_a_herder_ends_the_process(
    herders: Mapping[SourceAndTarget, EndedHerder], has_started: bool
) -> None:
    with pytest.raises(FlowFailed) as raised:
        ProcessOfFlows(herders).look()
    assert raised.value.started is has_started


@pytest.mark.parametrize("failure", [ConnectError("error 201"), ValueError("bug")])
@pytest.mark.parametrize("other", [OTHER, SourceAndTarget("C", "B")], ids=["another-target", "the-same-target"])
def test_a_flow_that_fails_while_it_runs_does_not_end_the_others(failure: Exception, other: SourceAndTarget) -> None:
    process = ProcessOfFlows({ONE: EndedHerder(failure, was_ready=True), other: EndedHerder(None, was_ready=True)})
    process.look()
    assert [flow.pair for flow in process.flows] == [other]
    assert process._waiting == {ONE}


def test_a_flow_that_starts_late_never_ends_the_others() -> None:
    process = ProcessOfFlows({ONE: EndedHerder(ConnectError("not compacted")), OTHER: EndedHerder(None)}, ONE)
    process.look()
    assert process._waiting == {ONE}


@pytest.mark.parametrize("pair", [OTHER, SourceAndTarget("C", "B")], ids=["another-target", "the-same-target"])
def test_a_flow_that_the_file_adds_never_ends_the_others(pair: SourceAndTarget) -> None:
    process = ProcessOfFlows({ONE: EndedHerder(None, was_ready=True)})
    herder = EndedHerder(ConnectError("the topic is not compacted"))
    fresh = Flow(
        pair, cast(Any, SimpleNamespace(herder=herder, stop=lambda: None)), Configurer(pair, {}), cast(Any, None)
    )
    process.flows = [replace(flow, configurer=Configurer(ONE, {})) for flow in process.flows]
    process._plans = {one: cast(Any, SimpleNamespace(connectors={}, replicates=False)) for one in (ONE, pair)}
    process._stopping = threading.Event()
    process._apply(Changes((pair,), (), (), {}, {}), [fresh])
    process.look()
    assert [flow.pair for flow in process.flows] == [ONE]
    assert process._waiting == {pair}


class ProcessOfFile(MirrorMaker):
    """A process that has read a file whose flows do not run yet; it connects only for a new version."""

    def __init__(self, path: Path, **settings: str) -> None:
        self.path = path
        self.write(**settings)
        self.file = ConfigFile(path, threading.Event())
        self._config = MirrorMakerConfig(self.file.load())
        self._plugins = connect_plugins()
        self._plugins.limit(plugin_limits(self._config))
        self._plans = plan_flows(self._config, None, self._plugins)
        self._targets = self._rest = None
        self._engine = cast(Any, SimpleNamespace(start=lambda: None, ended=None))
        self.checkpoint_latencies = cast(Any, SimpleNamespace())
        self._stopping = threading.Event()
        self._waiting = set()
        self._late = set()
        self._frozen = _frozen(self._config)
        self._ineffective = self._config.ineffective_keys()
        self._reloads = Counter()
        self.flows = []

    def write(self, **settings: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as closed:
            port = closed.getsockname()[1]
        base = {
            "clusters": "A,B",
            "A->B.enabled": "true",
            "A.bootstrap.servers": "a:1",
            "B.bootstrap.servers": f"127.0.0.1:{port}",
        }
        self.path.write_text("".join(f"{key} = {value}\n" for key, value in (base | settings).items()))

    @property
    def allowed(self) -> frozenset[str]:
        assert self._plugins.limits is not None
        return self._plugins.limits.admitted


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maker, "_TARGET_PATIENCE_S", 0.0)


@pytest.mark.usefixtures("impatient")
def test_a_file_that_cannot_be_applied_yet_allows_and_forbids_no_class(tmp_path: Path) -> None:
    """The connectors that run still need the classes of the previous version."""
    process = ProcessOfFile(tmp_path / "mm2.properties", **{"plugin.allowed.classes": "before.Filter"})
    process.write(**{"plugin.allowed.classes": "after.Filter"})
    assert not process._reload(process.file), "the target of the flow does not answer"
    assert "before.Filter" in process.allowed
    assert "after.Filter" not in process.allowed


def test_a_file_whose_flow_raises_an_unexpected_exception_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flows that run continue."""

    def check(*_: object) -> None:
        raise ValueError("embedded null byte")

    monkeypatch.setattr(MirrorMaker, "_check_target", check)
    process = ProcessOfFile(tmp_path / "mm2.properties")
    before = process.config
    process.write()
    assert process._reload(process.file)
    assert process.config is before
    assert process.reloads == {"refused": 1}


def test_a_worker_that_is_not_the_leader_restarts_its_tasks_when_a_secret_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader has restarted them when its own copy of the secret changed, which may have been earlier."""
    monkeypatch.setenv("MM2_SECRET", "before")
    process = ProcessOfFile(
        tmp_path / "mm2.properties",
        **{
            "config.providers": "env",
            "config.providers.env.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
            "A->B.source.consumer.x": "${env:MM2_SECRET}",
        },
    )
    task = ConnectorTaskId("MirrorSourceConnector", 2)
    restarted: list[object] = []

    def restart(work: object) -> Future[None]:
        restarted.append(work)
        return Future()

    herder = SimpleNamespace(is_leader=False, assigned=((), (task,)), restart_task=restart)
    configurer = Configurer(ONE, process.plans[ONE].connectors)
    process.flows = [Flow(ONE, cast(Any, SimpleNamespace(herder=herder)), configurer, cast(Any, None))]
    assert process._reload(process.file)
    assert restarted == []
    monkeypatch.setenv("MM2_SECRET", "after")
    assert process._reload(process.file)
    assert restarted == [task]


def test_a_follower_with_another_file_logs_the_difference_once() -> None:
    """Not at the first check: the leader may read a changed file later. A leader, and the same file, log nothing."""
    stored = {"topics": "orders", "name": "x"}
    configs = SimpleNamespace(connector_config=lambda _: stored)
    follower: Any = SimpleNamespace(is_leader=False, is_ready=True, configs=lambda: configs)
    leader: Any = SimpleNamespace(is_leader=True, is_ready=True, configs=lambda: configs)
    configurer = Configurer(ONE, {"MirrorSourceConnector": {"topics": "other", "name": "x"}})
    logged = []
    for herder in (leader, leader, follower, follower, follower):
        with capture_logs() as lines:
            configurer.report_difference(herder)
        logged.append([line["differences"] for line in lines])
    assert logged == [[], [], [], ["MirrorSourceConnector: topics: orders -> other"], []]
    configurer.wanted = {"MirrorSourceConnector": stored}
    with capture_logs() as lines:
        configurer.report_difference(follower)
        configurer.report_difference(follower)
    assert not lines


class CheckedFlows(ProcessOfFlows):
    """A process whose first target answers its check with this failure."""

    def __init__(self, failure: Exception) -> None:
        super().__init__({ONE: EndedHerder(None), OTHER: EndedHerder(None)})
        self._failure, self._recurring = failure, RecurringErrors()
        self._plans = {pair: cast(Any, SimpleNamespace(worker={})) for pair in (ONE, OTHER)}
        cast(Any, self.flows[0].node).check = self._first_answer
        cast(Any, self.flows[1].node).check = lambda _: "id"

    def _first_answer(self, _timeout_s: float) -> str:
        raise self._failure


@pytest.mark.parametrize("failure", [BrokerFailure.of(999), BrokerFailure.of(-1), UnreadableAnswer("offset is -7")])
def test_a_target_that_answers_its_first_request_with_an_error_postpones_its_own_flows(failure: Exception) -> None:
    """It ended the start of the flows into all others."""
    process = CheckedFlows(failure)
    process._check_targets()
    assert [flow.pair for flow in process.flows] == [OTHER]
    assert process._waiting == {ONE}


def test_a_target_that_rejects_the_credentials_ends_the_start() -> None:
    """The file has to be changed."""
    with pytest.raises(ConnectError, match="cannot be used: wrong password"):
        CheckedFlows(AuthenticationFailure("wrong password"))._check_targets()
