"""The executor's lease: what renews it, and what is still done when it ran out long ago."""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

import pytest

from mm2.copy import channel
from mm2.copy.executor.copier import Copier
from mm2.copy.spec import Assignment
from mm2.kafka.errors import BrokerFailure
from mm2.kafka.structs import TopicPartition


def copier() -> Copier:
    return Copier(Assignment("b", "localhost", 1, "00"), 0)


def hear(own: Copier, *messages: dict[str, Any]) -> None:
    async def listen() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(b"".join(map(channel.encode, messages)))
        reader.feed_eof()
        await own._listen(reader, asyncio.get_running_loop().create_future())

    asyncio.run(listen())


def test_an_answer_renews_the_lease_from_the_time_of_the_question() -> None:
    # A process that was frozen finds the answers of long ago.
    own = copier()
    own._last_word, own._asked_at = 100.0, 130.0
    hear(own, {"type": "go"}, {"type": "stop", "drain_s": 3})
    assert own._last_word == 130.0
    own._asked_at = 120.0
    hear(own, {"type": "go"})
    assert own._last_word == 130.0


@pytest.mark.parametrize(("silence_s", "commits"), [(1.0, True), (60.0, False)])
def test_positions_of_long_ago_are_not_committed(silence_s: float, commits: bool) -> None:
    own = copier()
    own._last_word, own._drain_s = time.monotonic() - silence_s, 0.01
    own._syncs = None
    committed: list[int] = []
    own._commit = lambda: committed.append(1)  # type: ignore[method-assign]
    own._positions = cast(Any, type("Idle", (), {"idle": True}))
    asyncio.run(own._drain(cast(Any, None)))
    assert bool(committed) is commits


def test_a_range_is_asked_for_once_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    own, cursor = copier(), cast(Any, type("C", (), {"partition": TopicPartition("t", 0)}))
    asked: list[int] = []

    async def never_answered(_cursor: Any) -> None:
        asked.append(1)

    async def fail_twice() -> None:
        monkeypatch.setattr(own, "_out_of_range", never_answered)
        for _ in range(2):
            own._source_failed(cursor, BrokerFailure.of(1))
            await asyncio.sleep(0)

    asyncio.run(fail_twice())
    assert len(asked) == 1
