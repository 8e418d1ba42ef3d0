"""Who gets a slot of the cluster, and when."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from mm2.copy.driver.slots import TURN_S, Slots


class Entrant:
    """A batch that asks for a slot in a thread of its own."""

    def __init__(self, slots: Slots, batch: str, lane: str) -> None:
        self.slots, self.batch = slots, batch
        self.troubles: list[str] = []
        self.until = threading.Event()
        self.entered: bool | None = None
        self._thread = threading.Thread(target=self._run, args=(lane,), daemon=True)
        self._thread.start()
        eventually(lambda: self.entered is not None or batch in slots._queue)

    def _run(self, lane: str) -> None:
        self.entered = self.slots.enter(self.batch, lane, self.until, self.troubles.append)

    def leave(self) -> None:
        self.slots.leave(self.batch)

    def gets_in(self) -> bool:
        eventually(lambda: self.entered is not None)
        return bool(self.entered)

    @property
    def waits(self) -> bool:
        time.sleep(0.05)
        return self.entered is None


def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_without_a_limit_nobody_waits() -> None:
    slots = Slots(None)
    assert all(Entrant(slots, f"b{index}", "lane").gets_in() for index in range(20))
    assert slots.may_stand_by()
    assert not slots.is_over(1e9)


def test_nobody_gets_in_before_there_are_executors() -> None:
    slots = Slots(0)
    first = Entrant(slots, "a1", "a")
    assert first.waits
    slots.resize(1)
    assert first.gets_in()


def test_who_came_first_gets_the_slot_that_comes_free() -> None:
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


def test_the_next_batch_stands_by_only_where_a_slot_is_free() -> None:
    slots = Slots(2)
    a = Entrant(slots, "a1", "a")
    assert a.gets_in()
    assert slots.may_stand_by()
    b = Entrant(slots, "b1", "b")
    assert b.gets_in()
    assert not slots.may_stand_by()
    slots.resize(3)
    assert slots.may_stand_by()


def test_a_turn_ends_only_when_another_lane_has_no_slot_and_it_is_said_once() -> None:
    slots = Slots(1)
    a = Entrant(slots, "a1", "a")
    assert a.gets_in()
    Entrant(slots, "a2", "a")
    assert not slots.is_over(TURN_S), "its own next batch is no other lane"
    Entrant(slots, "b1", "b")
    with capture_logs() as logs:
        assert not slots.is_over(TURN_S - 0.1)
        assert slots.is_over(TURN_S)
        assert slots.is_over(TURN_S)
    assert [(line["lanes"], line["slots"]) for line in logs] == [(2, 1)]


def test_who_is_not_wanted_any_more_leaves_the_queue() -> None:
    slots = Slots(1)
    a = Entrant(slots, "a1", "a")
    assert a.gets_in()
    b, c = Entrant(slots, "b1", "b"), Entrant(slots, "c1", "c")
    b.until.set()
    assert not b.gets_in()
    a.leave()
    assert c.gets_in()


def test_lost_executors_take_no_slot_from_those_who_have_one() -> None:
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
    monkeypatch.setattr("mm2.copy.driver.slots._LATE_S", 0.0)
    slots = Slots(0)
    a = Entrant(slots, "a1", "a")
    eventually(lambda: a.troubles == ["the Spark cluster has given us no executor"])
    slots.resize(1)
    b = Entrant(slots, "b1", "b")
    assert a.gets_in()
    eventually(lambda: b.troubles[-1:] == ["all slots of the Spark cluster are taken"])
