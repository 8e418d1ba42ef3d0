"""Who gets a slot of the cluster, and when."""

from __future__ import annotations

import threading
import time
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from mm2.copy.driver.lanes.slots import TURN_S, Slots
from mm2.reasons import SparkDownCode
from tests.support.waiting import wait_until


class Entrant:
    """A batch that asks for a slot in a thread of its own."""

    def __init__(self, slots: Slots, batch: str, lane: str) -> None:
        self.slots, self.batch = slots, batch
        self.troubles: list[str] = []
        self.until = threading.Event()
        self.entered: bool | None = None
        self._thread = threading.Thread(target=self._run, args=(lane,), daemon=True)
        self._thread.start()
        wait_until(lambda: self.entered is not None or batch in slots._queue)

    def _run(self, lane: str) -> None:
        self.entered = self.slots.enter(self.batch, lane, self.until, self.troubles.append)

    def leave(self) -> None:
        self.slots.leave(self.batch)

    def gets_in(self) -> bool:
        wait_until(lambda: self.entered is not None)
        return bool(self.entered)

    @property
    def waits(self) -> bool:
        time.sleep(0.05)
        return self.entered is None


def test_without_a_limit_no_batch_waits() -> None:
    slots = Slots(None)
    assert all(Entrant(slots, f"b{index}", "lane").gets_in() for index in range(20))
    assert slots.may_start_standby()
    assert not slots.must_yield(1e9)


def test_no_batch_gets_a_slot_before_there_are_executors() -> None:
    slots = Slots(0)
    first = Entrant(slots, "a1", "a")
    assert first.waits
    slots.resize(1)
    assert first.gets_in()


def test_the_first_waiting_batch_gets_the_free_slot() -> None:
    slots = Slots(1)
    first, second, third = (Entrant(slots, f"{lane}1", lane) for lane in "abc")
    assert first.gets_in()
    first.leave()
    assert second.gets_in()
    assert third.waits
    second.leave()
    assert third.gets_in()


def test_a_lane_without_a_slot_comes_before_one_that_wants_a_second() -> None:
    slots = Slots(2)
    a, b = Entrant(slots, "a1", "a"), Entrant(slots, "b1", "b")
    assert a.gets_in() and b.gets_in()  # noqa: PT018
    standby, c = Entrant(slots, "a2", "a"), Entrant(slots, "c1", "c")
    b.leave()
    assert c.gets_in()
    assert standby.waits
    a.leave()
    assert standby.gets_in()


def test_the_next_batch_is_submitted_early_only_where_a_slot_is_free() -> None:
    slots = Slots(2)
    a = Entrant(slots, "a1", "a")
    assert a.gets_in()
    assert slots.may_start_standby()
    b = Entrant(slots, "b1", "b")
    assert b.gets_in()
    assert not slots.may_start_standby()
    slots.resize(3)
    assert slots.may_start_standby()


def test_a_turn_ends_only_when_another_lane_has_no_slot_and_one_warning_is_logged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slots = Slots(1)
    a = Entrant(slots, "a1", "a")
    assert a.gets_in()
    Entrant(slots, "a2", "a")
    assert not slots.must_yield(TURN_S), "its own next batch is no other lane"
    Entrant(slots, "b1", "b")
    with capture_logs() as logs:
        assert not slots.must_yield(TURN_S - 0.1)
        assert not slots.must_yield(TURN_S), "it may get a slot by other means"
        monkeypatch.setattr("mm2.copy.driver.lanes.slots.SCARCE_S", 0.0)
        assert slots.must_yield(TURN_S)
        assert slots.must_yield(TURN_S)
    assert [(line["lanes"], line["slots"]) for line in logs] == [(2, 1)]


def test_a_cancelled_batch_leaves_the_queue() -> None:
    slots = Slots(1)
    a = Entrant(slots, "a1", "a")
    assert a.gets_in()
    b, c = Entrant(slots, "b1", "b"), Entrant(slots, "c1", "c")
    b.until.set()
    assert not b.gets_in()
    a.leave()
    assert c.gets_in()


def test_lost_executors_take_no_slot_from_a_running_batch() -> None:
    slots = Slots(2)
    a, b = Entrant(slots, "a1", "a"), Entrant(slots, "b1", "b")
    assert a.gets_in() and b.gets_in()  # noqa: PT018
    slots.resize(1)
    c = Entrant(slots, "c1", "c")
    a.leave()
    assert c.waits
    b.leave()
    assert c.gets_in()


def test_a_long_wait_has_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mm2.copy.driver.lanes.slots._LATE_S", 0.0)
    slots = Slots(0)
    a = Entrant(slots, "a1", "a")
    wait_until(lambda: a.troubles == ["the Spark cluster has not started an executor"])
    slots.resize(1)
    b = Entrant(slots, "b1", "b")
    assert a.gets_in()
    wait_until(lambda: b.troubles[-1:] == ["all slots of the Spark cluster are in use"])


def test_a_cluster_without_executors_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = cast(Any, Slots(0))
    assert not slots.down, "executors take a moment to start"
    monkeypatch.setattr("mm2.copy.driver.lanes.slots._LATE_S", 0.0)
    assert slots.down is not None
    assert slots.down.code == SparkDownCode.NO_EXECUTOR
    slots.resize(1)
    assert not slots.down
    slots.resize(None)
    assert not slots.down
