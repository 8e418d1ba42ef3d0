"""A process that reads two topics, source and target, and prints how long after their creation the records became visible.

    python -P bench/watcher.py PARTITIONS SECONDS SOURCE SOURCE_TOPIC [TARGET TARGET_TOPIC]

One thread reads both with raw fetches that the brokers answer as soon as there is one record, so both are measured by
the same clock, and what the machine does to either shows in both. Prints one JSON object: for `source` and `target` each
`records`, `p50`, `p99`, `p999` and `max` in ms, and `seconds`, the maximum of what was made in each second. What was made
in the time is waited for, or a standstill at the end would go unseen.
"""

import gc
import json
import select
import struct
import sys
import time
from array import array
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.stamps import STAMPS
from mm2.kafka.admin import Admin
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.client.connection import Connection
from mm2.kafka.errors import BrokerFailure
from mm2.kafka.records.batch import iter_batches
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import LATEST, TopicInfo, TopicPartition, topic_id_bytes
from mm2.kafka.wire import fetch
from mm2.kafka.wire.fetch import FetchSession, Position

_PARTITION_BYTES = 1 << 20
_FETCH_BYTES = 4 << 20
_NS_PER_US = 1000
_NS_PER_S = 1_000_000_000
_GRACE_S = 30
_ANSWER_S = 60.0


class Side:
    """One topic on one broker, read from its end on."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, seconds: int) -> None:
        self._cluster = Cluster(
            ClientSettings.from_props({"bootstrap.servers": bootstrap}, client_id="watcher"), name="W"
        )
        wanted = [TopicPartition(topic, partition) for partition in range(partitions)]
        admin = Admin(self._cluster)
        info = admin.describe_topics([topic])[topic]
        if not isinstance(info, TopicInfo):
            raise info
        self._positions: dict[TopicPartition, int] = {}
        for tp, end in admin.list_offsets(dict.fromkeys(wanted, LATEST)).items():
            if isinstance(end, Exception):
                raise end
            self._positions[tp] = end.offset
        self._epochs = {tp: info.partitions[tp.partition].leader_epoch for tp in wanted}
        self._session = FetchSession({topic: topic_id_bytes(info.topic_id)})
        self._buffer = bytearray(_FETCH_BYTES)
        self.connection: Connection = self._cluster.open_connection(self._cluster.leader(topic, 0))
        self._version = self.connection.version_of(fetch.REQUEST, fetch.MAX_VERSION)
        self._latencies_us = array("I")
        self._seconds_us = [0] * seconds
        self.latest_ns = 0
        """When the youngest of all records that were seen was made."""

    def ask(self) -> None:
        """Sends the next fetch."""
        wanted = {tp: Position(offset, self._epochs[tp], _PARTITION_BYTES) for tp, offset in self._positions.items()}
        frame = self._session.request(
            self._version,
            self.connection.next_correlation_id(),
            self.connection.client_id,
            wanted,
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=_FETCH_BYTES,
            read_committed=False,
        )
        self.connection.send_buffers([frame])

    def receive(self) -> tuple[memoryview, int]:
        """The answer, and when it was there."""
        frame = self.connection.receive_frame(self._buffer, timeout_s=_ANSWER_S)
        return frame, time.monotonic_ns()

    def read(self, frame: memoryview, at_ns: int, begin_ns: int) -> None:
        """Advance, request more, and only then process the records. Records created outside the period are ignored."""
        found: list[bytes] = []
        for fetched in self._session.response(self._version, frame):
            if fetched.error_code:
                raise BrokerFailure.of(fetched.error_code, subject=str(fetched.topic_partition))
            for batch in iter_batches(fetched.records):
                last = batch.base_offset if batch.header is None else batch.header.last_offset
                if last >= self._positions[fetched.topic_partition]:
                    self._positions[fetched.topic_partition] = last + 1
                    found.append(bytes(batch.data))
        self.ask()
        for data in found:
            stamps = STAMPS.findall(data)
            for made_ns in struct.unpack(f">{len(stamps)}q", b"".join(stamps)):
                second = (made_ns - begin_ns) // _NS_PER_S
                self.latest_ns = max(self.latest_ns, made_ns)
                if 0 <= second < len(self._seconds_us):
                    latency_us = (at_ns - made_ns) // _NS_PER_US
                    self._latencies_us.append(latency_us)
                    self._seconds_us[second] = max(self._seconds_us[second], latency_us)

    @property
    def records(self) -> int:
        """Number of records created in the period that were read."""
        return len(self._latencies_us)

    def report(self) -> dict[str, object]:
        """The report that the module describes."""
        ordered = sorted(self._latencies_us)
        if not ordered:
            raise SystemExit("Nothing arrived.")

        def at(share: float) -> float:
            return ordered[min(len(ordered) - 1, int(share * len(ordered)))] / 1000

        return {
            "records": len(ordered),
            "p50": at(0.5),
            "p99": at(0.99),
            "p999": at(0.999),
            "max": ordered[-1] / 1000,
            "seconds": [longest / 1000 for longest in self._seconds_us],
        }


def main(partitions: int, seconds: int, topics: list[tuple[str, str]]) -> None:
    """Read for that long and print the report. `topics`: bootstrap address and name, of the source and of the target."""
    sides = [Side(*one, partitions, seconds) for one in topics]
    by_file = {side.connection.fileno(): side for side in sides}
    poll = select.poll()
    for side in sides:
        side.ask()
        poll.register(side.connection.fileno(), select.POLLIN)
    gc.freeze()
    gc.disable()  # a garbage collection here would be measured as a delay
    begin_ns = time.monotonic_ns()
    end_ns = begin_ns + seconds * _NS_PER_S
    source, *targets = sides
    while time.monotonic_ns() < end_ns + _GRACE_S * _NS_PER_S and (
        source.latest_ns < end_ns + _NS_PER_S or any(target.records < source.records for target in targets)
    ):
        ready = [by_file[file] for file, _ in poll.poll(500)]
        for side, (frame, at_ns) in [(side, side.receive()) for side in ready]:
            side.read(frame, at_ns, begin_ns)
    print(json.dumps({name: side.report() for name, side in zip(("source", "target"), sides, strict=False)}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), list(zip(sys.argv[3::2], sys.argv[4::2], strict=True)))
