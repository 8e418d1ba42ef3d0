"""Thresholds of `mm2 lag`, and which partitions come first."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace

import pytest

from mm2.cli.common.flow import CommandError
from mm2.cli.show import lag
from mm2.cli.show.lag import Threshold, worst_first
from mm2.copy.states import PartitionState
from mm2.observer.views import FlowState, FlowView, PartitionView, Risk, Snapshot
from mm2.reasons import PauseCode


def partition(
    number: int, records: int | None = None, seconds: float | None = None, size: int | None = None
) -> PartitionView:
    return PartitionView(
        "t", number, "A.t", PartitionState.RUNNING, lag_records=records, lag_seconds=seconds, lag_bytes=size
    )


@pytest.mark.parametrize(
    ("text", "field", "most"),
    [
        ("1000", "lag_records", 1000),
        ("30s", "lag_seconds", 30),
        (" 1.5 m ", "lag_seconds", 90),
        ("2h", "lag_seconds", 7200),
        ("20MB", "lag_bytes", 20_000_000),
        ("1kb", "lag_bytes", 1000),
        ("7 b", "lag_bytes", 7),
    ],
)
def test_a_threshold_counts_records_seconds_or_bytes(text: str, field: str, most: float) -> None:
    assert Threshold.of(text) == Threshold(field, most)


@pytest.mark.parametrize("text", ["", "fast", "-1", "10d", "1e3", "s"])
def test_an_invalid_threshold_is_rejected(text: str) -> None:
    with pytest.raises(CommandError, match="is not a lag"):
        Threshold.of(text)


def test_an_unknown_lag_exceeds_every_threshold() -> None:
    threshold = Threshold.of("10s")
    found = [threshold.is_exceeded(partition(0, 5, seconds)) for seconds in (9.9, 10.0, 10.1, None)]
    assert found == [False, False, True, True]


def test_the_worst_lag_comes_first_and_unknown_lag_before_it() -> None:
    rows = [partition(0, 5, 1.0), partition(1, 9, 2.0), partition(2), partition(3, 7, 1.0), partition(4, 0, 0.0)]
    assert [one.partition for one in worst_first(rows)] == [2, 1, 3, 0, 4]


def test_a_lag_that_may_be_larger_comes_before_an_equal_one_that_is_not() -> None:
    """Those of truncated logs are at least 0, among thousands without lag."""
    rows = [
        partition(0, 0, 0.0),
        replace(partition(1, 0), is_lag_exact=False),
        replace(partition(2, 7), is_lag_exact=False),
    ]
    assert [one.partition for one in worst_first(rows)] == [2, 1, 0]


def run(monkeypatch: pytest.MonkeyPatch, *partitions: PartitionView, risk: Risk, **options: object) -> int:
    """Run `mm2 lag` for one flow with these partitions."""
    flow = FlowView("A", "B", FlowState.RUNNING, "", risk, partitions=partitions)
    monkeypatch.setattr(lag, "look", lambda _: Snapshot(1, "1", (flow,)))
    defaults = {"threshold": None, "top": 0, "topic": None, "json": False, "output": "table"}
    return lag.run(argparse.Namespace(**{**defaults, **options}))


def test_topics_that_the_flow_is_not_to_copy_have_no_lag(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    turned = replace(partition(1), state=PartitionState.PAUSED, pause=PauseCode.TURNED, is_counted=False)
    assert run(monkeypatch, partition(0, 0, 0.0, 0), turned, risk=Risk(0.0, 0, 0, 0), threshold="1s", json=True) == 0
    (flow,) = json.loads(capsys.readouterr().out)["flows"]
    assert ([one["partition"] for one in flow["partitions"]], flow["over_threshold"]) == ([0], 0)


def test_a_source_partition_that_never_had_a_record_has_no_unknown_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    empty, risk = replace(partition(1), source_end=0), Risk(0.0, 0, 0, 0)
    for threshold in (None, "0", "1s", "1MB"):
        assert run(monkeypatch, partition(0, 0, 0.0, 0), empty, risk=risk, threshold=threshold) == 0
        assert run(monkeypatch, replace(empty, is_lag_exact=False), risk=risk, threshold=threshold) == 1
    assert worst_first([empty, partition(0, 1, 1.0), partition(2)])[0].partition == 2


def test_the_sums_of_selected_topics_are_those_of_these_topics(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Given another topic of unknown lag, which the snapshot of `look` does not have any more."""
    rows = (partition(0, 40, 12.5, 400), partition(1, 2, 1.0, 20))
    assert run(monkeypatch, *rows, risk=Risk(90.0, None, None, 71), topic="t") == 0
    assert "A->B: 2 partitions, 42 records, 420 bytes, 12.5 seconds behind" in capsys.readouterr().out
    assert run(monkeypatch, *rows, risk=Risk(90.0, None, None, 71), topic="t", json=True) == 0
    (flow,) = json.loads(capsys.readouterr().out)["flows"]
    assert {name: flow[name] for name in ("records", "records_at_least", "bytes", "seconds")} == {
        "records": 42,
        "records_at_least": 42,
        "bytes": 420,
        "seconds": 12.5,
    }
    assert run(monkeypatch, *rows, risk=Risk(90.0, None, None, 71)) == 1
    assert "at least 71 records" in capsys.readouterr().out
    assert run(monkeypatch, partition(2), risk=Risk(0.0, 0, 0, 0), topic="t") == 1, "its own lag is unknown"
    assert run(monkeypatch, risk=Risk(90.0, None, None, 71), topic="t") == 0, "of another flow"
    assert run(monkeypatch, risk=Risk(), topic="t") == 1, "of a flow that is not known"


def test_a_lag_that_may_be_larger_is_marked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = (replace(partition(0, 40, 1.0, 400), is_lag_exact=False), partition(1, 2, 1.0, 20), partition(2))
    risk = Risk(1.0, None, 420, 42)
    assert run(monkeypatch, *rows, risk=risk) == 1
    out = capsys.readouterr().out
    assert "t-0        at least 40" in out
    assert "t-1                  2" in out
    assert run(monkeypatch, *rows, risk=risk, json=True) == 1
    (flow,) = json.loads(capsys.readouterr().out)["flows"]
    assert {one["partition"]: (one["records"], one["is_exact"]) for one in flow["partitions"]} == {
        0: (40, False),
        1: (2, True),
        2: (None, False),
    }
