"""What an observer reports when the clock of a machine is wrong, or is set."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from mm2.config.mirrormaker import SourceAndTarget
from mm2.copy.progress.ledger import Ledger, note_record
from mm2.kafka.errors import KafkaFailure
from mm2.mirror.client.freshness import Freshness, FreshnessWatch
from mm2.mirror.common.formats import Heartbeat
from mm2.mirror.notes.source_answers import SOURCE_NOTE
from mm2.observer.flow import FlowObserver, WatchedFlow
from mm2.observer.polling.watch import PeriodicPoll
from tests.unit.observer.unreachable import PROPS

HOUR_S = 3_600.0


class Clocks:
    """The two clocks of a machine; that of the wall can be set."""

    def __init__(self) -> None:
        self.passed_s, self.wall_s = 1_000.0, 1_700_000_000.0

    def monotonic(self) -> float:
        return self.passed_s

    def time(self) -> float:
        return self.wall_s

    def time_ns(self) -> int:
        return int(self.wall_s * 1e9)

    def wait(self, seconds: float) -> None:
        self.passed_s += seconds
        self.wall_s += seconds

    @property
    def now_ms(self) -> int:
        return int(self.wall_s * 1000)


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    made = Clocks()
    for module in ("observer.flow", "observer.polling.watch", "observer.polling.polls", "mirror.client.freshness"):
        monkeypatch.setattr(f"mm2.{module}.time", made)
    return made


@pytest.fixture
def observer(clocks: Clocks) -> Iterator[FlowObserver]:
    del clocks
    made = FlowObserver(WatchedFlow(SourceAndTarget("A", "B"), PROPS), None)
    made._ledger.ledger = Ledger()
    yield made
    made.stop()


def fails() -> None:
    raise KafkaFailure("timed out")


@pytest.mark.parametrize("set_by_s", [0.0, HOUR_S, -HOUR_S])
def test_the_time_of_the_last_answer_is_that_of_the_clock_as_it_is_now(clocks: Clocks, set_by_s: float) -> None:
    """It is compared with the present time, and shown beside it."""
    answers: Any = iter([lambda: None, fails])
    poll = PeriodicPoll("A", lambda: next(answers)(), 1.0)  # noqa: PLW0108  (another one each time)
    poll.once()
    clocks.wait(60)
    clocks.wall_s += set_by_s
    poll.once()
    assert poll.answered_by_clock_ms(clocks.monotonic(), clocks.now_ms) == clocks.now_ms - 60_000
    clocks.wait(0.0004)
    assert poll.answered_by_clock_ms(clocks.monotonic(), clocks.now_ms + 7) == clocks.now_ms - 60_000, "it is steady"


def test_a_last_answer_in_the_future_is_none(clocks: Clocks, observer: FlowObserver) -> None:
    """The clock of the process that has noted it is ahead, or that of this machine was set back."""
    observer._source_watch.error = "timed out"
    ledger: Any = observer._ledger.ledger
    for at_ms, shown in ((clocks.now_ms - 5_000, True), (clocks.now_ms + 3_600_000, False)):
        note = note_record(SOURCE_NOTE, [], {"answered_ms": at_ms})
        ledger.apply(note.key, note.value)
        sentence = observer.view().sentence
        assert ("A has not answered since 2023-11-14 22:13:15 UTC" in sentence) is shown
        assert ("A does not answer." in sentence) is not shown


def beat(timestamp_ms: int) -> Freshness:
    return Freshness("A.heartbeats", ("A",), Heartbeat("A", "B", timestamp_ms), 0)


@pytest.mark.parametrize(("ahead_s", "age_s"), [(0.0, 90), (HOUR_S, 90), (-30.0, 120)])
def test_heartbeats_that_stop_become_old_although_the_clock_of_their_writer_is_ahead(
    clocks: Clocks, observer: FlowObserver, monkeypatch: pytest.MonkeyPatch, ahead_s: float, age_s: float
) -> None:
    poll = observer._heartbeats
    seen = [beat(clocks.now_ms + int(ahead_s * 1000))]
    monkeypatch.setattr(poll, "_watch", SimpleNamespace(look=lambda _timeout_s: seen))
    poll()
    for _ in range(3):
        clocks.wait(30)
        poll()
    (view,) = observer.view().heartbeats
    assert view.age_ms == age_s * 1000
    seen[:] = [beat(clocks.now_ms + int(ahead_s * 1000))]
    poll()
    (view,) = observer.view().heartbeats
    assert view.age_ms == max(0, -ahead_s * 1000)


def test_a_corrected_clock_of_a_writer_does_not_hide_its_heartbeats(clocks: Clocks) -> None:
    records: list[Any] = []
    client: Any = SimpleNamespace(
        heartbeat_topics=lambda: {"heartbeats"},
        replication_policy=lambda: SimpleNamespace(topic_source=lambda _topic: None),
        offset=lambda _topic, _at_ms: 0,
        read=lambda _topic, _timeout_s, start: [one for one in records if one.offset >= start],
    )
    watch = FreshnessWatch(client)

    def write(age_s: float) -> None:
        one = Heartbeat("A", "B", clocks.now_ms - int(age_s * 1000))
        records.append(SimpleNamespace(offset=len(records), key=one.key(), value=one.value()))

    write(-HOUR_S)
    assert watch.look()[0].age_ms == -3_600_000
    write(2.0)
    assert watch.look()[0].age_ms == 2_000
    write(9.0)
    assert watch.look()[0].age_ms == 2_000, "one that was copied again is not newer"


def test_ages_of_a_backlog_do_not_change_when_the_clock_is_set(
    clocks: Clocks, observer: FlowObserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the source does not answer, they are those of its last answer."""
    as_of: list[float] = []
    read = observer._partition_views.read

    def noted(inputs: Any) -> Any:
        as_of.append(inputs.as_of_s)
        return read(inputs)

    monkeypatch.setattr(observer._partition_views, "read", noted)
    observer._source_watch.answered_s, observer._source_watch.answered_ms = clocks.monotonic(), clocks.now_ms
    clocks.wait(20)
    observer._source_watch.error = "timed out"
    for set_by_s in (0.0, HOUR_S, -2 * HOUR_S):
        clocks.wall_s += set_by_s
        observer.view()
    assert as_of == [pytest.approx(1_000.0, abs=0.01)] * 3
