"""What a herder does without a group to talk to."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import structlog

from mm2.config.worker_keys import WorkerConfig
from mm2.connect import herder as herder_module
from mm2.connect.api import ConnectError
from mm2.connect.herder import DistributedHerder
from mm2.connect.node import Node
from mm2.connect.plugins import Plugins
from mm2.connect.protocol import NO_ERROR, URL_NOT_USED, Assignment, ConnectorTaskId
from mm2.connect.stores.config_state import RestartRequest
from mm2.connect.stores.config_store import PrivilegedWriteError

BYTES = "org.apache.kafka.connect.converters.ByteArrayConverter"
TASK = ConnectorTaskId("c", 0)


def herder(**settings: str) -> DistributedHerder:
    props = {
        "bootstrap.servers": "127.0.0.1:1",
        "group.id": "g",
        "config.storage.topic": "configs",
        "offset.storage.topic": "offsets",
        "status.storage.topic": "statuses",
        "key.converter": BYTES,
        "value.converter": BYTES,
        **settings,
    }
    return Node(WorkerConfig(props), Plugins(), worker_id="w", cluster_name="T", log_context={"flow": "A->B"}).herder


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(herder_module, "_BACKOFF_FLOOR_S", 0.02)


def hold(instance: DistributedHerder) -> None:
    """Let it have a task, as after a rebalance."""
    held = Assignment(NO_ERROR, "m", URL_NOT_USED, 1, (), (TASK,), version=2)
    instance._member._allocation = held
    instance._running_tasks = {TASK}


def test_without_a_delay_the_group_is_not_left_with_work_running() -> None:
    instance = herder(**{"scheduled.rebalance.max.delay.ms": "0"})
    hold(instance)
    for _ in range(5):
        before = time.monotonic()
        instance._back_off()
        assert time.monotonic() - before >= 0.02, "a failure that comes at once must not make the herder spin"
        assert not instance._member._on_leave
        assert instance._running_tasks == {TASK}
    instance._back_off()
    assert instance._member._on_leave
    assert instance._running_tasks == set()


def test_with_a_delay_the_group_waits_for_our_work() -> None:
    instance = herder(**{"scheduled.rebalance.max.delay.ms": "500"})
    hold(instance)
    instance._back_off()
    assert instance._member._on_leave
    assert instance._running_tasks == {TASK}


def test_leading_again_as_another_member_is_a_new_leadership() -> None:
    announced = []
    instance = herder()
    instance._on_leader_ready = lambda leader: announced.append(leader._member.member_id)
    for member_id in ("m1", "m1", "m2"):
        instance._member._member_id = member_id
        instance._assignment = Assignment(NO_ERROR, member_id, URL_NOT_USED, 1, version=2)
        instance._announce_leadership()
    assert announced == ["m1", "m2"]
    instance._assignment = Assignment(NO_ERROR, "other", URL_NOT_USED, 1, version=2)
    instance._announce_leadership()
    assert announced == ["m1", "m2"]


def test_a_stop_ends_a_write_that_waits_for_a_broker() -> None:
    instance = herder()
    instance._ready.set()
    request = RestartRequest("c", only_failed=False, include_tasks=False)
    with ThreadPoolExecutor(1) as pool:
        # Nothing listens there, so this would be tried for half a minute.
        writing = pool.submit(instance._config_store.put_restart_request, request)
        time.sleep(0.1)
        instance.stop()
        with pytest.raises(ConnectError, match="Failed to write"):
            writing.result(timeout=5)


def test_slow_requests_do_not_keep_the_herder_from_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(herder_module, "_REQUESTS_S", 0.05)
    instance = herder()
    done = [instance._submit(lambda: time.sleep(0.1), "being slow") for _ in range(2)]
    assert instance._run_requests() < time.monotonic(), "there is more to do, after a look at the group"
    assert [future.done() for future in done] == [True, False]
    assert instance._run_requests() == float("inf")
    assert all(future.done() for future in done)


def test_after_a_fenced_write_the_config_topic_is_claimed_before_the_next_request() -> None:
    instance = herder(**{"exactly.once.source.support": "enabled"})
    request = RestartRequest("c", only_failed=False, include_tasks=False)

    def write() -> None:
        instance._as_leader(lambda: instance._config_store.put_restart_request(request))

    futures = [instance._submit(write, "writing") for _ in range(2)]
    assert instance._run_requests() <= time.monotonic()
    with pytest.raises(PrivilegedWriteError, match="has not claimed the right"):
        futures[0].result(0)
    assert not futures[1].done()
    instance._fenced_from_config_topic = False  # claimed again
    instance._run_requests()
    assert futures[1].done()


def test_lines_of_a_start_name_the_flow() -> None:
    assert herder()._starter.submit(structlog.contextvars.get_contextvars).result() == {"flow": "A->B"}
