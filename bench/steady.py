"""A process that writes to a topic at a steady rate; each record contains its creation time.

    python -P bench/steady.py HOST:PORT TOPIC PARTITIONS RATE BATCH_RECORDS

A batch each millisecond (less often below 1,000 records a second), to one partition after another, as producers with a
sticky partitioner do. With BATCH_RECORDS above 0 batches of that size, in at most 2,500 requests a second with a batch for
one or more partitions each, as producers with ``linger.ms=0`` do. A batch is made by hand from a template, so that the producer takes next to nothing from those that are
measured. Runs until SIGTERM.
"""

import gc
import select
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.stamps import MARK, STAMP, STAMPS, VALUE_BYTES
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.client.connection import Connection
from mm2.kafka.records.batch import HEADER_BYTES, assemble
from mm2.kafka.records.record import Record, encode_batch
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import TopicPartition
from mm2.kafka.wire import produce

_BY_NAME = 12
"""The last version of Produce that needs no topic ids."""
_REQUESTS_S = 2500


class Template:
    """The records of one batch; all that changes from one batch to the next is the time."""

    def __init__(self, records: int) -> None:
        value = MARK + bytes(STAMP.size) + b"." * (VALUE_BYTES - len(MARK) - STAMP.size)
        now_ms = int(time.time() * 1000)
        self._count = records
        self._block = bytearray(encode_batch([Record(None, value, (), now_ms)] * records)[HEADER_BYTES:])
        self._places = [match.start(1) for match in STAMPS.finditer(self._block)]

    def batch(self) -> bytearray:
        """A batch with the current time."""
        stamp = time.monotonic_ns()
        for place in self._places:
            STAMP.pack_into(self._block, place, stamp)
        now_ms = int(time.time() * 1000)
        return assemble(self._block, count=self._count, attributes=0, base_timestamp=now_ms, max_timestamp=now_ms)


def main(bootstrap: str, topic: str, partitions: int, rate: int, batch_records: int) -> None:
    """Writes until SIGTERM."""
    batches_s = rate // batch_records if batch_records else min(rate, 1000)
    batches = min(partitions, -(-batches_s // _REQUESTS_S))  # of each request
    ticks_s = batches_s / batches
    template = Template(batch_records or rate // batches_s)
    cluster = Cluster(ClientSettings.from_props({"bootstrap.servers": bootstrap}, client_id="steady"), name="A")
    cluster.metadata((topic,))
    connection = cluster.open_connection(cluster.leader(topic, 0))
    version = connection.version_of(produce.REQUEST, _BY_NAME)
    running = [True]
    signal.signal(signal.SIGTERM, lambda *_: running.clear())
    gc.freeze()
    gc.disable()
    begin = time.monotonic()
    tick = 0
    while running:
        tick += 1
        time.sleep(max(0.0, begin + tick / ticks_s - time.monotonic()))
        connection.send_buffers(
            produce.request(
                version,
                connection.next_correlation_id(),
                connection.client_id,
                {
                    TopicPartition(topic, number % partitions): template.batch()
                    for number in range(tick * batches, (tick + 1) * batches)
                },
                acks=1,
                timeout_ms=30_000,
            )
        )
        _take_answers(connection, version)
    cluster.close()


def _take_answers(connection: Connection, version: int) -> None:
    while select.select([connection], [], [], 0)[0]:
        for produced in produce.response(version, connection.receive_frame(bytearray(4096), timeout_s=10)):
            if produced.error_code:
                raise SystemExit(f"The source refuses a batch with error {produced.error_code}.")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
