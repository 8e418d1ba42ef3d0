"""Records that contain their identity, and steady streams of them.

A value is: run 8 | producer 2 | partition 2 | sequence 8 | time in ms 8 | last 1 | padding | crc32c 4, big-endian. The
key, one header and the timestamp repeat sequence and time, so that a record with mixed-up parts is detected.
"""

import random
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass

import crc32c
from confluent_kafka import KafkaError, KafkaException, Message, Producer

_HEAD = struct.Struct(">8sHHQQ?")
_CRC = struct.Struct(">I")
SEQUENCE_HEADER = "sequence"
_FLUSH_S = 60.0


class TrafficFailed(Exception):
    """The stream could not be written to the source."""


@dataclass(frozen=True)
class Identity:
    """Identity of a record. `is_last`: the sentinel that ends the partition for that producer."""

    run: bytes
    producer: int
    partition: int
    sequence: int
    time_ms: int
    is_last: bool

    def encode(self, size_bytes: int) -> bytes:
        """A value of that size, padded with bytes that are derived from the identity."""
        head = _HEAD.pack(self.run, self.producer, self.partition, self.sequence, self.time_ms, self.is_last)
        padding = random.Random(self.sequence).randbytes(max(0, size_bytes - _HEAD.size - _CRC.size))
        return head + padding + _CRC.pack(crc32c.crc32c(head + padding))

    @property
    def key(self) -> bytes:
        return b"%d-%d" % (self.producer, self.sequence)


def decode(value: bytes) -> Identity | None:
    """The identity of a value; None when it is damaged."""
    if len(value) < _HEAD.size + _CRC.size:
        return None
    body, (crc,) = value[: -_CRC.size], _CRC.unpack(value[-_CRC.size :])
    if crc32c.crc32c(body) != crc:
        return None
    return Identity(*_HEAD.unpack_from(body))


@dataclass(frozen=True)
class Pace:
    """Number of producers; each writes all due records every `tick_ms` and lingers up to `linger_ms`."""

    producers: int
    tick_ms: float = 20.0
    linger_ms: float = 5.0


class Traffic:
    """Producers that share a rate, each writing round robin to all partitions of a topic, in order and once each."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        *,
        run: bytes,
        rate: float,
        size_bytes: int,
        pace: Pace,
        age_ms: int = 0,
    ) -> None:
        """`age_ms`: age of the record timestamps."""
        self.run = run
        self.rate = rate
        self.partitions = partitions
        self.sent: dict[tuple[int, int], int] = {
            (producer, partition): 0 for producer in range(pace.producers) for partition in range(partitions)
        }
        """Number of records by producer and partition; sequences start at 0."""
        self._topic = topic
        self._size_bytes = size_bytes
        self._tick_s = pace.tick_ms / 1000
        self._age_ms = age_ms
        self._errors: list[KafkaError] = []
        self._stopping = threading.Event()
        self._clients = [
            Producer(
                {
                    "bootstrap.servers": bootstrap,
                    "enable.idempotence": True,  # a retry could reorder or duplicate records otherwise
                    "linger.ms": pace.linger_ms,
                    # A source that has expired the producer of old records accepts any sequence, and so a second batch before
                    # the first one is retried.
                    **({"max.in.flight": 1} if age_ms else {}),
                    "log_level": 2,  # the source stops before its clients; failed records are counted below
                    "on_delivery": self._delivered,
                }
            )
            for _ in range(pace.producers)
        ]
        self._threads = [
            threading.Thread(target=self._run, args=(index,), name=f"traffic-{index}", daemon=True)
            for index in range(pace.producers)
        ]

    @property
    def records(self) -> int:
        return sum(self.sent.values())

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        """Stop, write one sentinel per producer to each partition, and wait for all acknowledgements. Raises TrafficFailed."""
        self.halt()
        for index, client in enumerate(self._clients):
            for partition in range(self.partitions):
                self._send(index, partition, is_last=True)
            if client.flush(_FLUSH_S):
                raise TrafficFailed("The source did not acknowledge all records.")
        if self._errors:
            raise TrafficFailed(f"The source rejected {len(self._errors)} records: {self._errors[0]}.")

    def halt(self) -> None:
        """Stop without sentinels."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _run(self, index: int) -> None:
        rate = self.rate / len(self._clients)
        begin, done = time.monotonic(), 0
        while not self._stopping.wait(self._tick_s):
            due = int((time.monotonic() - begin) * rate)
            for serial in range(done, due):
                self._send(index, serial % self.partitions)
            done = due
            self._clients[index].poll(0)

    def _send(self, index: int, partition: int, *, is_last: bool = False) -> None:
        sequence = self.sent[index, partition]
        identity = Identity(self.run, index, partition, sequence, _now_ms() - self._age_ms, is_last)
        client = self._clients[index]
        while True:
            try:
                client.produce(
                    self._topic,
                    identity.encode(self._size_bytes),
                    identity.key,
                    partition,
                    timestamp=identity.time_ms,
                    headers=[(SEQUENCE_HEADER, b"%d" % sequence)],
                )
                break
            except BufferError:
                client.poll(0.1)
        self.sent[index, partition] = sequence + 1

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._errors.append(error)


class Transactions:
    """Writes transactions to all partitions of a topic and aborts a third of them, until it is stopped.

    It counts no records: the committed records on the source must be on the target. A producer with a fatal error is
    replaced, which aborts its open transaction.
    """

    def __init__(
        self, bootstrap: str, topic: str, partitions: int, *, run: bytes, per_s: float, seed: int, age_ms: int = 0
    ) -> None:
        self.committed = 0
        self.aborted = 0
        self._settings = {
            "bootstrap.servers": bootstrap,
            "transactional.id": f"{topic}-{run.hex()}",
            "transaction.timeout.ms": 60_000,
            "message.timeout.ms": 50_000,  # must be shorter
            "linger.ms": 5,
            "log_level": 0,
        }
        self._topic = topic
        self._partitions = partitions
        self._run_id = run
        self._pause_s = 1 / per_s
        self._age_ms = age_ms
        self._random = random.Random(seed)
        self._sequence = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="transactions", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def halt(self) -> None:
        """Stop after the open transaction."""
        self._stopping.set()
        self._thread.join(180)

    def _run(self) -> None:
        while not self._stopping.is_set():
            with suppress(KafkaException):
                self._produce()

    def _produce(self) -> None:
        """Produce until it is stopped. Raises KafkaException when the producer has failed."""
        producer = Producer(self._settings)
        producer.init_transactions(60)
        while not self._stopping.wait(self._pause_s):
            producer.begin_transaction()
            for partition in range(self._partitions):
                for _ in range(self._random.randrange(1, 6)):
                    identity = Identity(self._run_id, 0, partition, self._sequence, _now_ms() - self._age_ms, False)
                    producer.produce(
                        self._topic, identity.encode(200), identity.key, partition, timestamp=identity.time_ms
                    )
                    self._sequence += 1
            if self._random.random() < 1 / 3:
                producer.flush(30)  # otherwise the records might never be sent
                producer.abort_transaction(60)
                self.aborted += 1
            else:
                producer.commit_transaction(60)
                self.committed += 1


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
