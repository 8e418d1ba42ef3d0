"""How long `mm2 status` waits for the ages of records, and what it shows of a poll that fails."""

from __future__ import annotations

from typing import Any

import pytest

from mm2.copy.driver.engine import CopyEngine
from mm2.copy.progress.ledger import Ledger, entry_record
from mm2.copy.progress.session import LedgerEntry, Mark
from mm2.kafka.errors import RefusedFailure
from mm2.kafka.structs import TopicPartition
from mm2.observer import flow as module
from mm2.observer.flow import FlowObserver, WatchedFlow
from mm2.observer.polling.new_topics import NEW_TOPICS_S, NewTopicsPoll
from mm2.observer.polling.polls import LedgerPoll, SourceLogs, SourcePoll, TargetLogsPoll
from mm2.observer.polling.timestamps import LOOKS, BatchTimestamp
from tests.unit.observer.test_observer import PAIR
from tests.unit.observer.unreachable import PROPS

COUNT = 8 * LOOKS
UNREADABLE = TopicPartition("t", 7)


class _Source(SourcePoll):
    """A source with a record behind each position, of which one cannot be read."""

    def __call__(self) -> None:
        stamps = {tp: BatchTimestamp(0, 99, 1) for tp, _ in self.wanted if tp != UNREADABLE}
        self.logs = SourceLogs(dict.fromkeys(self.partitions, 20), self.logs.ends_at_s + 1.0, stamps=stamps)
        self.polls += 1


class _Target(LedgerPoll):
    def __call__(self) -> None:
        ledger = Ledger()
        for number in range(COUNT):
            row = entry_record(LedgerEntry("t", number, "A.t", Mark(10, 10, 10)))
            ledger.apply(row.key, row.value, 1)
        self.ledger = self.ledger or ledger


def _nothing(_self: Any) -> None:
    pass


class _TargetLogs(TargetLogsPoll):
    """Logs that have what was copied."""

    def __call__(self) -> None:
        self.losses = dict.fromkeys(TopicPartition("t", number) for number in range(COUNT))
        self.read_at_s = 1.0


@pytest.fixture(autouse=True)
def _polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SourcePoll", _Source)
    monkeypatch.setattr(module, "LedgerPoll", _Target)
    monkeypatch.setattr(module, "TargetLogsPoll", _TargetLogs)
    for name in ("NewTopicsPoll", "HeartbeatsPoll", "GroupsPoll"):
        monkeypatch.setattr(getattr(module, name), "__call__", _nothing)
    monkeypatch.setattr(FlowObserver, "_read_stored_work", _nothing)
    monkeypatch.setattr(FlowObserver, "_ends_interval_s", lambda _self: 0.2)


def test_an_age_that_cannot_be_known_does_not_take_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    observer = FlowObserver(WatchedFlow(PAIR, PROPS), None)
    waits: list[float] = []
    wait = observer._await_source

    def counted(is_done: Any, deadline_s: float) -> None:
        waits.append(deadline_s)
        wait(is_done, deadline_s)

    monkeypatch.setattr(observer, "_await_source", counted)
    try:
        seen = observer.look_once(60)
    finally:
        observer.stop()
    assert seen.risk.records == 10 * COUNT
    assert seen.risk.seconds is None
    assert (seen.risk.seconds_at_least or 0) > 1_000_000
    assert len(waits) <= 7, "not one for each 256 partitions"


def _refused(_self: Any) -> None:
    raise RefusedFailure("not allowed")


def test_topics_that_cannot_be_listed_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NewTopicsPoll, "__call__", _refused)
    observer = FlowObserver(WatchedFlow(PAIR, PROPS), None)
    try:
        seen = observer.look_once(30)
    finally:
        observer.stop()
    assert seen.troubles == ("topics that the flow has not found yet are not known: not allowed",)


def test_a_process_reports_them_after_more_than_one_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NewTopicsPoll, "__call__", _refused)
    observer = FlowObserver(WatchedFlow(PAIR, PROPS), CopyEngine({}))
    watch = observer._new_topics_watch
    watch.once()
    assert observer.view().troubles == ()
    assert watch.failing_since_s is not None
    watch.failing_since_s -= NEW_TOPICS_S + 1
    watch.once()
    assert observer.view().troubles == ("topics that the flow has not found yet are not known: not allowed",)
    monkeypatch.setattr(NewTopicsPoll, "__call__", _nothing)
    watch.once()
    assert not observer.view().troubles
    observer.stop()
