"""Generator of mixed web shop records: all codecs, keys and null keys, headers, tombstones, large values.

The content is derived from a seed, so that two runs write the same records; only the timestamps differ.
"""

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mm2.codec import json_bytes
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.producer.producer import Producer
from mm2.kafka.records.record import Headers, Record
from mm2.kafka.structs import NewTopic

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

_SEND_RECORDS = 200
_PRODUCTS = ("kettle", "lamp", "bicycle", "Füller", "tea", "chair", "書道セット", "radio")
_PAGES = ("/", "/search", "/cart", "/checkout", "/product", "/account")
_MAGIC_PDF = b"%PDF-1.7\n"


@dataclass(frozen=True)
class StreamTopic:
    """One topic of the stream.

    `make(random, serial, now_ms)` returns its next record; `share` is its part of the rate.
    """

    name: str
    partitions: int
    share: float
    make: Callable[[random.Random, int, int], Record]
    configs: Mapping[str, str] = field(default_factory=dict)

    @property
    def new_topic(self) -> NewTopic:
        """The topic for `Admin.create_topics`."""
        return NewTopic(self.name, self.partitions, 1, dict(self.configs))


def _order(rng: random.Random, serial: int, now_ms: int) -> Record:
    lines = [(rng.choice(_PRODUCTS), rng.randint(1, 5), rng.randint(100, 99_999)) for _ in range(rng.randint(1, 6))]
    order = {
        "order": serial,
        "customer": rng.randrange(5_000),
        "state": rng.choice(("placed", "paid", "sent", "returned")),
        "lines": [{"product": name, "quantity": count, "price": cents / 100} for name, count, cents in lines],
        "total": sum(count * cents for _, count, cents in lines) / 100,
        "placed_at": now_ms,
    }
    headers: Headers = (
        ("content-type", b"application/json"),
        ("trace-id", rng.randbytes(16)),
        *((("retry", b"1"), ("retry", b"2")) if serial % 50 == 0 else ()),  # a name may repeat, the order counts
        *((("campaign", None),) if serial % 20 == 0 else ()),
    )
    return Record(f"order-{serial // 3}".encode(), json_bytes(order), headers, now_ms)


def _click(rng: random.Random, serial: int, now_ms: int) -> Record:
    click = {
        "session": f"{rng.randrange(2_000):08x}",
        "page": rng.choice(_PAGES),
        "product": rng.choice(_PRODUCTS) if serial % 3 == 0 else None,
        "at": now_ms,
    }
    # Most clicks have no key; some producers set the timestamp to the time of the event.
    key = None if serial % 4 else str(click["session"]).encode()
    return Record(key, json_bytes(click), (), now_ms - (rng.randrange(3_600_000) if serial % 500 == 0 else 0))


def _customer(rng: random.Random, serial: int, now_ms: int) -> Record:
    number = rng.randrange(5_000)
    key = f"customer-{number}".encode()
    if serial % 10 == 0:
        return Record(key, None, (("reason", b"forgotten on request"),), now_ms)
    if serial % 97 == 0:
        return Record(b"", b"", (), now_ms)
    return Record(
        key, json_bytes({"customer": number, "name": f"N° {number}", "mail": f"c{number}@shop.test"}), (), now_ms
    )


def _invoice(rng: random.Random, serial: int, now_ms: int) -> Record:
    size = rng.choice((4_000, 20_000, 60_000, 400_000 if serial % 40 == 0 else 8_000))
    body = _MAGIC_PDF + rng.randbytes(size // 2) + b"\0" * (size // 2)
    return Record(f"invoice-{serial}".encode(), body, (("content-type", b"application/pdf"),), now_ms)


TOPICS = (
    StreamTopic("orders", 4, 0.29, _order, {"retention.ms": "172800000"}),
    StreamTopic("clicks", 8, 0.65, _click, {"compression.type": "producer", "segment.bytes": "16777216"}),
    StreamTopic("customers", 3, 0.05, _customer, {"cleanup.policy": "compact", "min.compaction.lag.ms": "3600000"}),
    StreamTopic("invoices", 2, 0.01, _invoice, {"max.message.bytes": "2097152"}),
)


def records_of(topic: StreamTopic, seed: int, now_ms: Callable[[], int]) -> Iterator[Record]:
    """The endless records of one topic. `now_ms` is called for each."""
    rng = random.Random(f"{seed}-{topic.name}")
    for serial in itertools.count():
        yield topic.make(rng, serial, now_ms())


class Pump:
    """Writes the stream to a cluster at a steady rate: one thread per topic, each batch with the next codec.

    `rate` is in records per second over all topics. `written` counts acknowledged records per topic.
    """

    def __init__(self, cluster: Cluster, *, rate: float, topics: Sequence[StreamTopic] = TOPICS, seed: int = 1) -> None:
        self.written = dict.fromkeys((topic.name for topic in topics), 0)
        self.failure: KafkaFailure | None = None
        self._producers = [Producer(cluster, codec=codec) for codec in CODECS]
        self._stopping = threading.Event()
        self._streams = {topic.name: records_of(topic, seed, _now_ms) for topic in topics}
        self._rates = {topic.name: rate * topic.share for topic in topics}
        self._threads: list[threading.Thread] = []

    @property
    def records(self) -> int:
        return sum(self.written.values())

    def start(self) -> None:
        """Start, or continue after `stop`."""
        self._stopping.clear()
        self._threads = [
            threading.Thread(target=self._run, args=(name,), name=f"pump-{name}", daemon=True) for name in self.written
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop after the batches in flight. Raises KafkaFailure when a write has failed."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        if self.failure is not None:
            raise self.failure

    def abandon(self) -> None:
        """Stop immediately, also when the cluster does not respond; never raises."""
        self._stopping.set()
        for producer in self._producers:
            producer.close()
        for thread in self._threads:
            thread.join(2)

    def _run(self, topic: str) -> None:
        begin = time.monotonic()
        before = self.written[topic]
        codecs = itertools.cycle(self._producers)
        try:
            while not self._stopping.wait(0.02):
                due = int((time.monotonic() - begin) * self._rates[topic]) + before - self.written[topic]
                while due > 0 and not self._stopping.is_set():
                    records = list(itertools.islice(self._streams[topic], min(due, _SEND_RECORDS)))
                    next(codecs).send(topic, records, timeout_s=30)
                    self.written[topic] += len(records)
                    due -= len(records)
        except KafkaFailure as exc:
            self.failure = exc


def _now_ms() -> int:
    return int(time.time() * 1000)
