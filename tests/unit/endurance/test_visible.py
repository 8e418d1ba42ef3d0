"""Quantiles of latencies that are kept as counts by milliseconds."""

import json
from pathlib import Path

from tests.endurance.visible import Latency, Watch, summary


def test_quantiles_count_each_record() -> None:
    assert summary([{"1": 50, "7": 49}, {"1": 0, "900": 1}]) == Latency(100, 1, 7, 900, 900)
    assert summary([]) == Latency(0, None, None, None, None)


def test_seconds_with_a_fault_are_excluded(tmp_path: Path) -> None:
    watch = Watch.__new__(Watch)
    watch._file = tmp_path / "latency.jsonl"
    rows = [{"at": 100, "ms": {"3": 10}}, {"at": 105, "ms": {"5000": 10}}, {"at": 112, "ms": {"4": 10}}]
    watch._file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert watch.latency([(104.2, 110.0)]) == Latency(20, 3, 4, 4, 4)
    assert watch.latency([]).max_ms == 5000
    assert watch.last() == (112.0, Latency(10, 4, 4, 4, 4))


def test_no_last_second_exists_before_the_first_record(tmp_path: Path) -> None:
    watch = Watch.__new__(Watch)
    watch._file = tmp_path / "latency.jsonl"
    assert watch.last() == (0.0, Latency(0, None, None, None, None))
    watch._file.write_text("")
    assert watch.last()[0] == 0.0
