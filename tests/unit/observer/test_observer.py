"""When the observer of a process polls, and for which requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from mm2.config.configdef import ConfigException
from mm2.config.mirrormaker import MirrorMakerConfig, SourceAndTarget
from mm2.copy.driver.engine import CopyEngine
from mm2.mirror.common.clients import SOURCE_ALIAS_KEY, TARGET_ALIAS_KEY
from mm2.observer.flow import WatchedFlow
from mm2.observer.observer import Observer, observe_once
from mm2.observer.views import FlowState
from mm2.sandbox.ports import free_ports
from tests.support.waiting import wait_until

Threads = Callable[[], set[str]]
PAIR = SourceAndTarget("A", "B")


def unreachable_flow() -> WatchedFlow:
    """A flow with unreachable clusters."""
    ports = free_ports(2)
    props = {
        "name": "MirrorSourceConnector",
        SOURCE_ALIAS_KEY: "A",
        TARGET_ALIAS_KEY: "B",
        "source.cluster.bootstrap.servers": f"127.0.0.1:{ports[0]}",
        "target.cluster.bootstrap.servers": f"127.0.0.1:{ports[1]}",
    }
    return WatchedFlow(PAIR, props)


@pytest.fixture
def threads() -> Threads:
    """The observing threads that this test has started: other tests of the process may have left theirs."""
    before = set(threading.enumerate())

    def new() -> set[str]:
        started = set(threading.enumerate()) - before
        return {thread.name for thread in started if thread.name.startswith(("observer", "watch-A->B"))}

    return new


@pytest.fixture
def engine() -> CopyEngine:
    return CopyEngine({})


@pytest.fixture
def observer(engine: CopyEngine) -> Iterator[Observer]:
    flow = unreachable_flow()
    made = Observer(lambda: [flow], lambda: engine, reloads=lambda: {"applied": 2}, idle_s=1.0)
    yield made
    made.stop()


def test_the_observer_does_not_run_without_requests(threads: Threads, observer: Observer) -> None:
    assert not observer.is_running
    assert not threads()


def test_unreachable_clusters_block_nothing_and_are_reported(observer: Observer) -> None:
    snapshot = observer.snapshot(60)
    (flow,) = snapshot.flows
    assert (flow.name, flow.state, flow.risk.records) == ("A->B", FlowState.DEGRADED, None)
    assert "127.0.0.1" in flow.source_error + flow.target_error
    assert "not known" in flow.sentence
    assert snapshot.reloads == {"applied": 2}
    assert snapshot.spark is not None
    assert not snapshot.spark.up
    # The next request returns immediately with the same snapshot.
    began_s = time.monotonic()
    assert observer.snapshot(600).flow("A->B") is not None
    assert time.monotonic() - began_s < 60


def test_the_observer_stops_without_requests_and_starts_again(threads: Threads, observer: Observer) -> None:
    assert observer.snapshot(60).flows
    wait_until(lambda: not observer.is_running and not threads(), 30, what="the end of the observer")
    assert observer.snapshot(60).flows


def test_a_single_poll_of_unreachable_clusters_ends_in_time(threads: Threads) -> None:
    ports = free_ports(2)
    config = MirrorMakerConfig(
        {
            "clusters": "A, B",
            "A.bootstrap.servers": f"127.0.0.1:{ports[0]}",
            "B.bootstrap.servers": f"127.0.0.1:{ports[1]}",
            "A->B.enabled": "true",
        }
    )
    (flow,) = observe_once(config, timeout_s=30).flows
    wait_until(lambda: not threads(), 30, what="the end of the threads")
    assert flow.source_error or flow.target_error
    assert flow.records_per_s is None


def test_flows_that_copy_nothing_are_not_observed_and_unknown_ones_rejected() -> None:
    config = MirrorMakerConfig(
        {"clusters": "A, B", "A.bootstrap.servers": "127.0.0.1:1", "B.bootstrap.servers": "127.0.0.1:1"}
    )
    assert observe_once(config).flows == ()  # for heartbeats alone
    with pytest.raises(ConfigException, match="The file has no flow A->C; its flows are A->B, B->A"):
        observe_once(config, ["A->C"])
