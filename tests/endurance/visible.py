"""Measure the latency from the producer to a consumer of a topic.

It runs in a separate process, so that it waits for no lock, and uses the same clock as the producer.

It writes one line of JSON per second: the time (epoch seconds) and the number of records by latency in milliseconds.
"""

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen

from confluent_kafka import OFFSET_END, Consumer, TopicPartition

from mm2.sandbox.process import end, spawn

ROOT = Path(__file__).parents[2]
_LONGEST_LINE = 1 << 16
"""Upper bound in bytes: a second has at most some thousand different latencies, of a dozen characters each."""


@dataclass(frozen=True)
class Latency:
    """Milliseconds from the record's timestamp to its arrival, over `records`; None where there are none."""

    records: int
    p50_ms: int | None
    p99_ms: int | None
    p999_ms: int | None
    max_ms: int | None


class Watch:
    """The measuring process. `latency` can be called while it runs."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, file: Path) -> None:
        self._file = file
        command = [sys.executable, "-P", "-m", "tests.endurance.visible", bootstrap, topic, str(partitions), str(file)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self._process: Popen[bytes] = spawn(command, output=file.with_suffix(".log"), environment=environment)

    def stop(self) -> None:
        end(self._process)

    def last(self) -> tuple[float, Latency]:
        """The last completed second: its begin (epoch seconds; 0 before the first) and its latency."""
        if not self._file.exists():
            return 0.0, summary([])
        with self._file.open("rb") as file:
            file.seek(max(0, self._file.stat().st_size - _LONGEST_LINE))
            whole = _whole_lines(file.read())
        if not whole:
            return 0.0, summary([])
        row = json.loads(whole[-1])
        return float(row["at"]), summary([row["ms"]])

    def latency(self, excluded: Sequence[tuple[float, float]]) -> Latency:
        """Latency over all seconds outside the excluded times (epoch seconds)."""
        lines = _whole_lines(self._file.read_bytes()) if self._file.exists() else []
        rows = [json.loads(line) for line in lines]
        return summary(row["ms"] for row in rows if not any(begin <= row["at"] <= after for begin, after in excluded))


def _whole_lines(text: bytes) -> list[bytes]:
    """All lines except an incomplete last one."""
    return text.rpartition(b"\n")[0].splitlines()


def summary(rows: Iterable[Mapping[str, int]]) -> Latency:
    """Quantiles over counts by milliseconds."""
    total: Counter[int] = Counter()
    for row in rows:
        for ms, count in row.items():
            total[int(ms)] += count
    records = total.total()
    ordered = sorted(total.items())

    def quantile(share: float) -> int | None:
        seen = 0
        for ms, count in ordered:
            seen += count
            if seen >= share * records:
                return ms
        return None

    return Latency(records, quantile(0.5), quantile(0.99), quantile(0.999), ordered[-1][0] if ordered else None)


def _rounded(ms: int) -> int:
    """Milliseconds, in steps of 100 from one second on: lines stay short while a backlog arrives."""
    return max(0, ms) if ms < 1000 else ms // 100 * 100


def main(bootstrap: str, topic: str, partitions: int, file: Path) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "visible",  # required by the client, never used
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 100,
            "fetch.min.bytes": 1,
            "fetch.error.backoff.ms": 50,
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, index, OFFSET_END) for index in range(partitions)])
    counts: Counter[int] = Counter()
    second = int(time.time())
    with file.open("w") as out:
        while True:
            first = consumer.poll(0.1)
            # Only records that have already arrived: a wait here would be measured as latency.
            for message in () if first is None else (first, *consumer.consume(500, 0)):
                if message.error() is None:
                    counts[_rounded(int(time.time() * 1000) - message.timestamp()[1])] += 1
            if int(time.time()) != second:
                out.write(json.dumps({"at": second, "ms": dict(sorted(counts.items()))}) + "\n")
                out.flush()
                counts.clear()
                second = int(time.time())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
