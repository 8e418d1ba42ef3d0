"""The body of a verification's Spark task: compares its ranges in order and reports each to the driver.

The job arrives over the progress channel of copying (`mm2.copy.channel`), since it contains the clusters' credentials.
The messages:

==== executor → driver ======================================================================
  {"type": "progress", "bytes": n}                        bytes read since the last message, both sides
  {"type": "range", "number": n, "findings": {…}}         a range was compared
  {"type": "range", "number": n, "error": "…"}            a range could not be compared
  {"type": "final"}                                       all ranges are done
=============================================================================================

If the driver has ended, the task ends at its next message.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final, Self

from mm2.codec import decode, encode
from mm2.copy import channel
from mm2.copy.changes import ChangeFailed
from mm2.copy.spec import Assignment, OtherVersion, PartitionSpec
from mm2.kafka.client.channel import BufferPool
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.errors import KafkaFailure
from mm2.verify.changes import RepeatedChanges
from mm2.verify.comparing.comparison import Comparison, originals
from mm2.verify.comparing.findings import Findings
from mm2.verify.comparing.spans import Span, SpanSet
from mm2.verify.pace import RateLimit
from mm2.verify.reading import RangeReader

_OPEN_TIMEOUT_S: Final = 10.0
_REPORT_EVERY_S: Final = 1.0
_KEPT_BYTES: Final = 128 << 20  # receive buffers of both sides


def run(assignments: Iterable[str]) -> Iterator[str]:
    """Run the job and yield its result as JSON. Never raises, since a retry by Spark would read everything again."""
    from pyspark import TaskContext  # noqa: PLC0415  (not available outside a task)

    context = TaskContext.get()
    attempt = 0 if context is None else context.attemptNumber()
    for text in list(assignments):
        try:
            with DriverConnection.open(Assignment.of(text), attempt) as connection:
                _RangeComparer(connection).run()
        except OtherVersion as error:
            yield json.dumps({"state": "failed", "reason": str(error)})
        except Exception as error:  # noqa: BLE001
            yield json.dumps({"state": "failed", "reason": f"{type(error).__name__}: {error}"})
        else:
            yield json.dumps({"state": "done"})


class DriverConnection:
    """The executor's end of the progress channel. ``spans`` is the job."""

    def __init__(self, connection: socket.socket, spans: SpanSet) -> None:
        self.spans = spans
        self._connection = connection

    @classmethod
    def open(cls, assignment: Assignment, attempt: int) -> Self:
        """Connect with mutual authentication. Raises OSError or ValueError."""
        connection = socket.create_connection((assignment.host, assignment.port), timeout=_OPEN_TIMEOUT_S)
        try:
            if assignment.fingerprint:
                secured = channel.client_tls().wrap_socket(connection)
                connection = secured
                channel.verify_pin(secured, assignment.fingerprint)
            with connection.makefile("rb") as lines:
                challenge = channel.decode(lines.readline(channel.MAX_LINE_BYTES))["nonce"]
                own = channel.nonce()
                mac = channel.proof(assignment.secret, "executor", challenge, assignment.batch, attempt)
                hello = {"batch": assignment.batch, "attempt": attempt, "nonce": own, "mac": mac}
                connection.sendall(channel.encode(hello))
                answer = channel.decode(lines.readline(channel.MAX_LINE_BYTES))
            if not channel.proves(answer.get("mac"), assignment.secret, "driver", own):
                message = "the peer of the progress channel is not the driver"
                raise ValueError(message)
            return cls(connection, decode(SpanSet, answer["spec"]))
        except BaseException:
            connection.close()
            raise

    def send(self, message: dict[str, Any]) -> None:
        """Send a message to the driver. Raises OSError if the connection is closed."""
        self._connection.sendall(channel.encode(message))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._connection.close()


class _RangeComparer:
    """Compares the ranges of one task."""

    def __init__(self, connection: DriverConnection) -> None:
        self._connection = connection
        self._job = connection.spans
        self._reported_at = 0.0
        self._reported_bytes = 0
        self._done_bytes = 0
        self._readers: list[RangeReader] = []
        self._buffers = BufferPool(_KEPT_BYTES)
        self._pace = RateLimit(self._job.rate, self._report_progress)
        self._changes: RepeatedChanges | None = None

    def run(self) -> None:
        """Compare all ranges. Raises OSError if the connection to the driver is closed."""
        job = self._job
        source = Cluster(job.source, name=job.source_alias)
        target = Cluster(job.target, name=job.target_alias)
        try:
            if job.changes is not None:
                limit = job.source.decompression_max_bytes
                self._changes = RepeatedChanges(job.changes, job.patience_s, self._report_progress, limit)
            for number, span in job.spans:
                try:
                    result: dict[str, Any] = {"findings": encode(self._compare(span, source, target))}
                except (KafkaFailure, ChangeFailed) as failure:
                    result = {"error": str(failure)}
                self._connection.send({"type": "range", "number": number, **result})
            self._report_progress(at_once=True)
            self._connection.send({"type": "final"})
        finally:
            source.close()
            target.close()
            if self._changes is not None:
                self._changes.close()

    def _compare(self, span: Span, source: Cluster, target: Cluster) -> Findings:
        piece = span.piece
        mine = self._reader(source, span, piece.first, piece.after)
        theirs = self._reader(target, span, piece.target_first, piece.target_after)
        change = None
        if self._changes is not None:
            change = self._changes.of(PartitionSpec(span.topic, span.partition, span.remote_topic, span.named))
        limit = source.settings.decompression_max_bytes
        comparison = Comparison(span, mine, theirs, change, limit)
        try:
            if not comparison.run():
                whole = self._reader(source, span, *span.whole)
                comparison.resolve(
                    originals(whole, *span.whole, comparison.wanted, self._report_progress, change, limit)
                )
        finally:
            read = sum(reader.bytes for reader in self._readers)
            for reader in self._readers:
                reader.close()
            self._readers.clear()
            self._done_bytes += read
        comparison.findings.bytes = read
        return comparison.findings

    def _reader(self, cluster: Cluster, span: Span, first: int, after: int) -> RangeReader:
        job = self._job
        is_source = cluster.name == job.source_alias
        reader = RangeReader(
            cluster,
            self._buffers,
            span.source if is_source else span.target,
            first,
            after,
            # The target is read like by its consumers: aborted transactions of the copier are skipped.
            read_committed=job.read_committed or not is_source,
            pace=self._pace,
            patience_s=job.patience_s,
            on_response=self._report_progress,
        )
        self._readers.append(reader)
        return reader

    def _report_progress(self, *, at_once: bool = False) -> None:
        """Report the number of bytes read, once a second. Raises OSError if the connection is closed."""
        now = time.monotonic()
        if at_once or now - self._reported_at >= _REPORT_EVERY_S:
            self._reported_at = now
            read = self._done_bytes + sum(reader.bytes for reader in self._readers)
            self._connection.send({"type": "progress", "bytes": read - self._reported_bytes})
            self._reported_bytes = read
