"""Topics that take longer to read than a request may take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from mm2.copy import long_log
from mm2.copy.long_log import LongLog
from mm2.kafka.errors import TimeoutFailure
from mm2.kafka.log import LogProgress


class SlowTopic:
    """A topic with an end; each attempt to read it gets so many offsets further, and then times out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, end: int, *steps: int) -> None:
        self.end = end
        self.steps = list(steps)
        self.attempts: list[int] = []
        self.stopped = 0
        monkeypatch.setattr(long_log, "KafkaBasedLog", self._log)
        self.log = LongLog(object(), "ledger", on_record=lambda _: None)  # type: ignore[arg-type]

    def _log(self, _cluster: Any, _topic: str, *, begin: Mapping[int, int] | None, **_: Any) -> Any:
        return Attempt(self, 0 if begin is None else begin[0])


class Attempt:
    def __init__(self, topic: SlowTopic, begin: int) -> None:
        self.topic, self.begin, self.at = topic, begin, begin

    @property
    def positions(self) -> dict[int, int]:
        return {0: self.at}

    @property
    def progress(self) -> LogProgress:
        return LogProgress(self.at - self.begin, self.topic.end - self.begin)

    def start(self, _timeout_s: float) -> None:
        self.topic.attempts.append(self.begin)
        self.at += self.topic.steps.pop(0)
        if self.at < self.topic.end:
            raise TimeoutFailure("not read to its end")

    def stop(self) -> None:
        self.topic.stopped += 1


def test_reading_continues_where_the_time_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = SlowTopic(monkeypatch, 100, 40, 40, 20)
    topic.log.start(1.0)
    assert topic.attempts == [0, 40, 80]
    assert topic.log.positions == {0: 100}


def test_reading_fails_when_nothing_more_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = SlowTopic(monkeypatch, 100, 40, 0)
    with pytest.raises(TimeoutFailure):
        topic.log.start(1.0)
    assert topic.attempts == [0, 40]


def test_a_stop_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = SlowTopic(monkeypatch, 100, 40)
    topic.log.stop()
    with pytest.raises(TimeoutFailure):
        topic.log.start(1.0)
    assert topic.attempts == [0]
    assert topic.stopped == 1
