"""Progress of micro-batches as Spark's own listener classes see it."""

from __future__ import annotations

import json
import queue
from typing import Any

import pytest
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from mm2.codec import encode
from mm2.copy.driver.batch import MicroBatch
from mm2.copy.driver.query_progress import Queries
from mm2.copy.progress.session import Start
from tests.unit.copy.driver.test_lane import T0, T1, end, row, spec_of

SPEC = spec_of(60_000)


class Recorded(StreamingQueryListener):
    """What somebody wrote for Structured Streaming."""

    def __init__(self) -> None:
        self.events: queue.Queue[Any] = queue.Queue()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        self.events.put(event)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        self.events.put(event)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        self.events.put(event)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        self.events.put(event)

    def next(self) -> Any:
        return self.events.get(timeout=60)


class Failing(Recorded):
    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        raise ValueError("a fault of the listener")


def batch_of(*rows: Any, starts: dict[Any, int | None]) -> MicroBatch:
    """A micro-batch that has ended with these rows."""
    batch = MicroBatch("A->B MirrorSourceConnector-0 lane 0 batch 1", SPEC, lambda: None)
    batch.start({tp: encode(Start(position)) for tp, position in starts.items()}, [])
    end(batch, *rows)
    return batch


def test_a_listener_of_structured_streaming_gets_the_events_of_a_task() -> None:
    queries, failing, listener = Queries(), Failing(), Recorded()
    queries.listen(failing)
    queries.listen(listener)
    queries.started(SPEC)
    queries.ended(batch_of(row(T0, 40, records=35, bytes=350), row(T1, 7, records=7), starts={T0: 5, T1: None}))
    queries.ended(batch_of(row(T0, 40, records=0), starts={T0: 40}))
    queries.ended(batch_of(row(T0, 41, records=1), starts={T0: 40}))
    queries.terminated(SPEC, "the disk is full")

    started, first, idle, second, ended = (listener.next() for _ in range(5))
    assert (type(started), started.name) == (QueryStartedEvent, "A->B MirrorSourceConnector-0")
    progress = first.progress
    assert (progress.id, progress.runId, progress.name) == (started.id, started.runId, started.name)
    assert (progress.batchId, progress.numInputRows, progress.sink.numOutputRows) == (0, 42, 42)
    (source,) = progress.sources
    assert json.loads(source.startOffset) == {"t": {"0": 5}}
    assert json.loads(source.endOffset) == {"t": {"0": 40, "1": 7}}
    assert json.loads(source.latestOffset) == {"t": {"0": 100, "1": 100}}
    assert source.metrics == {"bytes": "420", "lag": "153", "partitions": "2"}
    assert progress.durationMs["triggerExecution"] >= 1
    assert progress.processedRowsPerSecond > 0
    assert json.loads(progress.json)["numInputRows"] == 42
    assert (type(idle), idle.runId) == (QueryIdleEvent, started.runId)
    assert (second.progress.batchId, second.progress.numInputRows) == (1, 1)
    assert (type(ended), ended.exception) == (QueryTerminatedEvent, "the disk is full")


def test_the_newest_progress_of_each_running_task_is_kept() -> None:
    queries = Queries()
    queries.started(SPEC)
    assert queries.last_progress("A->B") == []
    queries.ended(batch_of(row(T0, 6, records=1), starts={T0: 5}))
    queries.ended(batch_of(row(T0, 6, records=0), starts={T0: 6}))
    (progress,) = queries.last_progress("A->B")
    assert (progress["batchId"], progress["numInputRows"]) == (0, 1)
    assert queries.last_progress("A->C") == []
    queries.terminated(SPEC, "")
    assert queries.last_progress("A->B") == []


def test_the_id_of_a_query_stays_when_its_task_starts_again() -> None:
    queries, listener = Queries(), Recorded()
    queries.listen(listener)
    for _ in range(2):
        queries.started(SPEC)
    first, again = listener.next(), listener.next()
    assert first.id == again.id
    assert first.runId != again.runId


def test_a_micro_batch_that_never_copied_is_no_batch_of_the_query() -> None:
    queries = Queries()
    queries.started(SPEC)
    batch = MicroBatch("lost", SPEC, lambda: None)
    batch.ended("lost")
    queries.ended(batch)
    assert queries.last_progress("A->B") == []


@pytest.mark.parametrize("position", [None, 5])
def test_the_start_of_a_partition_is_shown_if_it_is_known(position: int | None) -> None:
    queries = Queries()
    queries.started(SPEC)
    queries.ended(batch_of(row(T0, 6, records=1), starts={T0: position}))
    (progress,) = queries.last_progress("A->B")
    assert progress["sources"][0]["startOffset"] == (None if position is None else {"t": {"0": 5}})
