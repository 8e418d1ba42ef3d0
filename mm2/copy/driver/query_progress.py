"""Progress of micro-batches in the form of Spark's StreamingQueryProgress, for listeners, REST and the log.

A *query* is the copying of one task. Each of its micro-batches, of any lane, is a batch of the query when it has ended; one without
records counts as an idle trigger, as in Spark.
"""

from __future__ import annotations

import functools
import logging
import queue
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import structlog

from mm2.copy.driver.batch import MicroBatch
from mm2.copy.spec import CopySpec, PartitionProgress
from mm2.kafka.structs import TopicPartition

#: Of ids that stay the same when a task starts again, as Spark's do with a checkpoint.
_IDS: Final = uuid.UUID("6d6d3200-0000-4000-8000-000000000000")
#: A listener that does not return must not fill the memory.
_MOST_EVENTS: Final = 4096
_NAME: Final = "mm2.copy.driver.query_progress"
_LEVEL: Final = logging.getLogger(_NAME)


@dataclass(slots=True)
class _Query:
    flow: str
    name: str
    id: str
    run_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    batches: int = 0
    last: Callable[[], dict[str, Any]] | None = None  # made where it is asked for: a lane waits for `Queries.ended`


class Queries:
    """The queries of this process. Thread-safe. Listeners are called one after another, on a thread of their own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queries: dict[str, _Query] = {}
        self._listeners: list[Any] = []
        self._events: queue.Queue[tuple[str, dict[str, Any]]] = queue.Queue(_MOST_EVENTS)
        self._thread: threading.Thread | None = None
        self._log = structlog.get_logger(_NAME)

    def listen(self, listener: Any) -> None:
        """Call this `pyspark.sql.streaming.StreamingQueryListener` from now on."""
        with self._lock:
            self._listeners.append(listener)
            if self._thread is None:
                self._thread = threading.Thread(target=self._call, name="query-listeners", daemon=True)
                self._thread.start()

    def remove(self, listener: Any) -> None:
        """Do not call this listener any more."""
        with self._lock:
            self._listeners = [known for known in self._listeners if known is not listener]

    def last_progress(self, flow: str) -> list[dict[str, Any]]:
        """The newest progress of each running task of a flow that has copied records."""
        with self._lock:
            queries = [query for _, query in sorted(self._queries.items()) if query.flow == flow]
            found = [query.last for query in queries if query.last is not None]
        return [made() for made in found]

    def started(self, spec: CopySpec) -> None:
        """A task starts to copy."""
        name = _name(spec)
        query = _Query(spec.flow, name, str(uuid.uuid5(_IDS, f"{spec.group} {name}")))
        with self._lock:
            self._queries[name] = query
        self._post(
            "Started", {"id": query.id, "runId": query.run_id, "name": query.name, "timestamp": _time(time.time())}
        )

    def ended(self, batch: MicroBatch) -> None:
        """A micro-batch that had started to copy has ended."""
        if batch.copying_since_s is None:
            return
        ended_s, name = time.time(), _name(batch.spec)
        records = sum(row.records for row in _rows(batch))
        with self._lock:
            query = self._queries.get(name)
            if query is None:
                return
            if records:
                ids = {"id": query.id, "runId": query.run_id, "name": name, "batchId": query.batches}
                last = query.last = functools.partial(_progress_of, ids, batch, batch.copying_since_s, ended_s)
                query.batches += 1
        if not records:
            self._post("Idle", {"id": query.id, "runId": query.run_id, "timestamp": _time(ended_s)})
            return
        if _LEVEL.isEnabledFor(logging.DEBUG):
            self._log.debug("micro-batch progress", progress=last())
        if self._listeners:
            self._post("Progress", last())

    def terminated(self, spec: CopySpec, failure: str) -> None:
        """A task has ended; ``failure`` is why, if it failed."""
        with self._lock:
            query = self._queries.pop(_name(spec), None)
        if query is not None:
            error = failure or None
            ended = {"id": query.id, "runId": query.run_id, "exception": error, "errorClassOnException": None}
            self._post("Terminated", ended)

    def _post(self, kind: str, event: dict[str, Any]) -> None:
        if self._listeners:
            try:
                self._events.put_nowait((kind, event))
            except queue.Full:
                self._log.warning("a query listener does not return: an event is dropped", kind=kind)

    def _call(self) -> None:
        from pyspark.sql.streaming import listener as api  # noqa: PLC0415  (takes long, and is needed by listeners only)

        while True:
            kind, event = self._events.get()
            made: Any
            if kind == "Progress":
                made = api.QueryProgressEvent(api.StreamingQueryProgress.fromJson(event))
            else:
                made = getattr(api, f"Query{kind}Event").fromJson(event)
            with self._lock:
                listeners = list(self._listeners)
            for listener in listeners:
                try:
                    getattr(listener, f"onQuery{kind}")(made)
                except Exception:  # noqa: BLE001  (code of users; copying continues)
                    self._log.exception("a query listener failed", kind=kind)


def _rows(batch: MicroBatch) -> list[PartitionProgress]:
    return [row for tp, row in list(batch.progress.items()) if tp in batch.started]


def _progress_of(ids: Mapping[str, Any], batch: MicroBatch, began_s: float, ended_s: float) -> dict[str, Any]:
    """What a micro-batch has copied between these times, with the field names of StreamingQueryProgress. ``startOffset`` has only
    partitions that had a position before.
    """
    rows = _rows(batch)
    records, seconds = sum(row.records for row in rows), max(0.001, ended_s - began_s)
    rates = {
        "numInputRows": records,
        "inputRowsPerSecond": records / seconds,
        "processedRowsPerSecond": records / seconds,
    }
    source = {
        "description": f"Kafka {batch.spec.source_alias}, {batch.name}",
        "startOffset": _offsets(batch.begun) or None,
        "endOffset": _offsets({row.source: row.position for row in rows if row.position >= 0}),
        "latestOffset": _offsets({row.source: row.high_watermark for row in rows if row.high_watermark >= 0}),
        **rates,
        "metrics": {
            "bytes": str(sum(row.bytes for row in rows)),
            "lag": str(sum(row.lag for row in rows)),
            "partitions": str(len(rows)),
        },
    }
    return {
        **ids,
        "timestamp": _time(began_s),
        "batchDuration": round(seconds * 1000),
        "durationMs": {"triggerExecution": round(seconds * 1000)},
        "eventTime": {},
        "stateOperators": [],
        "observedMetrics": {},
        **rates,
        "sources": [source],
        "sink": {"description": f"Kafka {batch.spec.target_alias}", "numOutputRows": records, "metrics": {}},
    }


def _offsets(found: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """As Spark's Kafka source: topic, partition, offset."""
    topics: dict[str, dict[str, int]] = {}
    for tp, offset in sorted(found.items()):
        topics.setdefault(tp.topic, {})[str(tp.partition)] = offset
    return topics


def _name(spec: CopySpec) -> str:
    return f"{spec.flow} {spec.connector}-{spec.task_id}"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
