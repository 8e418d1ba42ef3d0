"""Sample the committed positions of a flow and compare each with the target's high watermark.

A position in ``mm2-offsets.<source>.internal`` claims that every record below it is on the target permanently, which is true
only for records below the high watermark (acks=all). As soon as a position can be read, ListOffsets asks the leader of the
remote partition for its high watermark. It never falls, so the position was too high when it was written if it is too high now.

A deposed leader may return an old high watermark for seconds. Its response has an older leader epoch than later responses, or
than the records that the position claims; such a sample is uncertain and counted separately (KIP-207 and KIP-320 exclude other
old responses).
"""

from __future__ import annotations

import json
import threading
import time
from array import array
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from confluent_kafka import Consumer, IsolationLevel, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo, OffsetSpec

from tests.faults.oracle import Reader, Rows, lease_of

_CONNECTOR = "MirrorSourceConnector"
_HEADER = "mm2.copy"
_ANSWER_S = 3.0
_TIMES = 5
_LATER_S = 2.0


class Position(NamedTuple):
    """A record of the offsets topic: the next source offset of a partition."""

    topic: str
    partition: int
    offset: int


class Claim(NamedTuple):
    """A position, and the high watermark of the remote partition that was read after it."""

    at_s: float
    topic: str
    partition: int
    position: int
    high_watermark: int
    epoch: int
    """Leader epoch of the response."""


class _Request(NamedTuple):
    """A request for the high watermark: the last time and the number of attempts."""

    position: Position
    requested_s: float
    times: int


@dataclass
class Verdict:
    """Errors of the positions of a partition, one message each."""

    above: list[str] = field(default_factory=list)
    uncertain: list[str] = field(default_factory=list)
    """Above a high watermark that may be a deposed leader's."""


def parse(key: bytes | None, value: bytes | None) -> Position | None:
    """Parse a record of Connect's offsets topic; None for tombstones and other connectors."""
    try:
        connector, where = json.loads(key or b"")
        offset = json.loads(value or b"")["offset"]
        if connector != _CONNECTOR:
            return None
        return Position(str(where["topic"]), int(where["partition"]), int(offset) + 1)
    except (ValueError, KeyError, TypeError):
        return None


def above(
    partition: int, claims: Sequence[Claim], source: Rows, target: Rows, epochs: Sequence[int] | None = None
) -> Verdict:
    """Positions of one partition that claim a record at or above the high watermark.

    `source` and `target` are the records at the end, `epochs` the leader epochs of the batches of `target`. A record that is missing
    on the target is lost, which the oracle reports; of duplicates the first one counts.
    """
    places: dict[int, deque[int]] = {}
    for offset, digest in zip(target.offsets, target.digests, strict=True):
        places.setdefault(digest, deque()).append(offset)
    highest, needed = -1, []
    for digest in source.digests:
        found = places.get(digest)
        highest = max(highest, found.popleft() if found else -1)
        needed.append(highest)
    verdict = Verdict()
    for number, claim in enumerate(claims):
        claimed = bisect_left(source.offsets, claim.position)
        if claimed == 0 or needed[claimed - 1] < claim.high_watermark:
            continue
        first = bisect_left(needed, claim.high_watermark)
        sentence = (
            f"partition {partition}, {_clock(claim.at_s)}: position {claim.position}, high watermark {claim.high_watermark}; the "
            f"{claimed - first:,} records from source offset {source.offsets[first]} on reach target offset {needed[claimed - 1]}"
        )
        later = (other for other in claims[number + 1 :] if other.at_s >= claim.at_s + _LATER_S)
        is_certain = any(other.epoch == claim.epoch for other in later)
        if epochs is not None and epochs[bisect_left(target.offsets, needed[claimed - 1])] > claim.epoch:
            is_certain = False  # written under a later leader: the response came from a deposed one
        (verdict.above if is_certain else verdict.uncertain).append(sentence)
    return verdict


def judge_positions(sampler: PositionSampler, source: str, target: str) -> Verdict:
    """`above` of all partitions; `source` and `target` are bootstrap servers. Raises KafkaException."""
    verdict = Verdict()
    readers = Reader(source, "read_committed"), Reader(target, "read_committed")
    try:
        for (topic, partition), claims in sorted(sampler.claims.items()):
            epochs = array("i")
            wanted = Rows.of(readers[0].messages(topic, partition))
            got = Rows.of(_with_epochs(readers[1].messages(sampler.remote(topic), partition), epochs))
            found = above(partition, claims, wanted, got, epochs)
            verdict.above += [f"{topic} {sentence}" for sentence in found.above]
            verdict.uncertain += [f"{topic} {sentence}" for sentence in found.uncertain]
    finally:
        for reader in readers:
            reader.close()
    return verdict


def _with_epochs(messages: Iterable[Message], epochs: array[int]) -> Iterator[Message]:
    """Append the leader epoch of each message's batch to `epochs`; -1 for none."""
    for message in messages:
        epoch = message.leader_epoch()
        epochs.append(-1 if epoch is None else epoch)
        yield message


class PositionSampler:
    """Follows the offsets topic of a flow and samples each position in its own thread."""

    def __init__(self, bootstrap: str, source_alias: str) -> None:
        self.claims: dict[tuple[str, int], list[Claim]] = {}
        self.latest: dict[tuple[str, int], int] = {}
        """The valid position by source topic and partition; one with a smaller lease was written late."""
        self.sampled = 0
        self.unanswered = 0
        """Positions without a response of a leader in time."""
        self.back: list[str] = []
        """Messages about positions below their predecessor; not an error by themselves."""
        self.failures: Counter[str] = Counter()
        self._leases: dict[tuple[str, int], tuple[int, ...]] = {}
        self._topic = f"mm2-offsets.{source_alias}.internal"
        self._alias = source_alias
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "positions",  # required by the client, never used
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 10,
                "fetch.error.backoff.ms": 20,
                "topic.metadata.refresh.interval.ms": 5000,
                "log_level": 0,
            }
        )
        self._waiting: list[tuple[_Request, Future[ListOffsetsResultInfo]]] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="positions", daemon=True)

    def remote(self, topic: str) -> str:
        return f"{self._alias}.{topic}"

    def start(self) -> None:
        self._thread.start()

    def halt(self) -> None:
        if not self._stopping.is_set():
            self._stopping.set()
            self._thread.join(60)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                if not self._assigned():
                    self._stopping.wait(0.5)
                    continue
                while not self._stopping.is_set():
                    self._once()
            except KafkaException as exc:  # an offsets topic without a leader: retried later
                self.failures[str(exc)] += 1
        with suppress(KafkaException, RuntimeError):
            self._consumer.close()

    def _assigned(self) -> bool:
        found = self._consumer.list_topics(timeout=5).topics.get(self._topic)
        if found is None or found.error is not None:
            return False
        if not self._consumer.assignment():
            self._consumer.assign([TopicPartition(self._topic, number, 0) for number in found.partitions])
        return True

    def _once(self) -> None:
        newest: dict[tuple[str, int], Position] = {}
        for message in self._consumer.consume(1000, 0.05):
            if message.error() is not None:
                self.failures[str(message.error())] += 1
                continue
            key, value = message.key(), message.value()
            position = parse(
                key if isinstance(key, bytes) else None,
                value if isinstance(value, bytes) else None,
            )
            if position is not None:
                self._note(position, _lease(message))
                newest[position.topic, position.partition] = position
        for position in newest.values():
            self._request(position)
        self._collect()

    def _note(self, position: Position, lease: tuple[int, ...]) -> None:
        where = (position.topic, position.partition)
        before = self.latest.get(where, -1)
        if position.offset < before:
            self.back.append(
                f"{_clock(time.time())} {position.topic}-{position.partition}: {position.offset} after {before}, "
                f"lease {lease} after {self._leases.get(where, ())}"
            )
        if lease and lease < self._leases.get(where, ()):
            return  # it was written late
        self._leases[where] = lease or self._leases.get(where, ())
        self.latest[where] = position.offset

    def _request(self, position: Position, times: int = 1) -> None:
        remote = TopicPartition(self.remote(position.topic), position.partition)
        latest: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        answers = self._admin.list_offsets(
            {remote: latest}, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=_ANSWER_S
        )
        self._waiting += [(_Request(position, time.time(), times), answer) for answer in answers.values()]

    def _collect(self) -> None:
        done = [row for row in self._waiting if row[1].done()]
        self._waiting = [row for row in self._waiting if not row[1].done()]
        for request, answer in done:
            position = request.position
            try:
                found = answer.result()
            except KafkaException as exc:
                self.failures[str(exc)] += 1
                self._retry(request)
                continue
            if found.offset < 0:  # an error that librdkafka does not raise
                self.failures["no offset"] += 1
                self._retry(request)
                continue
            self.sampled += 1
            epoch = -1 if found.leader_epoch is None else int(found.leader_epoch)
            claim = Claim(request.requested_s, *position, int(found.offset), epoch)
            self.claims.setdefault((position.topic, position.partition), []).append(claim)

    def _retry(self, request: _Request) -> None:
        """Request again: the high watermark never decreases, so a later response is valid too."""
        if request.times >= _TIMES or self._stopping.is_set():
            self.unanswered += 1
            return
        # The admin client keeps a rejected epoch (FENCED_LEADER_EPOCH) until it requests metadata.
        with suppress(KafkaException):
            self._admin.list_topics(self.remote(request.position.topic), timeout=1)
        self._request(request.position, request.times + 1)


def _lease(message: Message) -> tuple[int, ...]:
    headers: Any = message.headers() or []
    return next((lease_of(value or b"") for name, value in headers if name == _HEADER), ())


def _clock(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%H:%M:%S.%f")[:-3]
