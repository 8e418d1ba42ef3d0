"""Which curves the pages get, and what is asked of Prometheus for them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import pytest

from mm2.metrics import flows
from mm2.observer.curves.history import FlowSample, History
from mm2.observer.curves.long_term import OWN_MS, CurveSource, LongTermHistory, Points, expressions_of, times
from mm2.observer.curves.prometheus import PrometheusFailure
from tests.support.waiting import wait_until

FLOW = "A->B"
NOW_S: Final = 1_800_000_123.0
NAMES = ("records_per_s", "lag_records")
WEEK_MS = 7 * 24 * 3_600_000


class Reader:
    """Answers each read in turn: with a value for all points, None for unknown ones, or with a failure."""

    def __init__(self, *answers: float | str | None) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[Mapping[str, str], range]] = []

    def read(self, expressions: Mapping[str, str], times_s: range, deadline_s: float) -> Mapping[str, Points]:
        assert deadline_s > 0
        answer = self.answers[len(self.asked)]
        self.asked.append((expressions, times_s))
        if isinstance(answer, str):
            raise PrometheusFailure(answer)
        return {name: [(at_s * 1000, answer) for at_s in times_s] for name in expressions}


class Clock:
    now_s = NOW_S

    def __call__(self) -> float:
        return self.now_s


def source_of(*answers: float | str | None) -> tuple[CurveSource, Reader, Clock]:
    history = History()
    history.add(int(NOW_S * 1000), {FLOW: FlowSample(records_per_s=7.0)})
    reader, clock = Reader(*answers), Clock()
    return CurveSource(history, LongTermHistory(reader, clock=clock)), reader, clock


def values(source: CurveSource, length_ms: int = WEEK_MS) -> tuple[list[float | None], str]:
    found = source.of(FLOW, "", NAMES, length_ms, int(NOW_S * 1000))
    return [value for _, value in found.points["records_per_s"]], found.note


def waited(source: CurveSource, note: str, length_ms: int = WEEK_MS) -> list[float | None]:
    wait_until(lambda: values(source, length_ms)[1].startswith(note), 30, detail=lambda: values(source, length_ms)[1])
    return values(source, length_ms)[0]


def test_the_process_answers_without_a_prometheus_and_for_the_shortest_range() -> None:
    source, reader, _ = source_of()
    assert values(source, OWN_MS) == ([7.0], "")
    own = CurveSource(History(), None)
    assert (own.is_long, source.is_long) == (False, True)
    assert values(own) == ([], "")
    assert reader.asked == []


def test_prometheus_answers_for_longer_ranges_and_the_process_until_then() -> None:
    source, reader, _ = source_of(3.0)
    assert values(source) == ([7.0], "Reading from Prometheus …")
    assert waited(source, "From Prometheus.") == [3.0] * 301
    assert len(reader.asked) == 1, "viewers share the answer"
    (_, times_s) = reader.asked[0]
    assert (times_s.step, times_s[-1] - times_s[0]) == (2016, 300 * 2016)
    assert NOW_S - 2016 < times_s[-1] <= NOW_S


def test_a_failure_leaves_the_newest_answer_and_is_shown() -> None:
    source, reader, clock = source_of("answered with HTTP 500", 3.0, "did not answer in time")
    assert waited(source, "Prometheus answered with HTTP 500. These are") == [7.0]
    assert len(reader.asked) == 1, "not asked again before some time has passed"
    clock.now_s += 31
    assert waited(source, "From Prometheus.") == [3.0] * 301
    clock.now_s += 301
    assert waited(source, "From Prometheus. It did not answer in time, so newer values") == [3.0] * 301


def test_a_prometheus_without_values_is_no_reason_for_an_empty_page() -> None:
    source, _, _ = source_of(None)
    assert waited(source, "Prometheus has no values for this time.") == [7.0]


def test_the_points_do_not_move_between_two_reads() -> None:
    assert set(times(NOW_S, WEEK_MS)[1:]) < set(times(NOW_S + 2000, WEEK_MS)) | {times(NOW_S, WEEK_MS)[-1]}
    assert len(times(NOW_S, WEEK_MS)) == 301


@pytest.mark.parametrize("topic", ["", "orders"])
def test_the_metrics_of_the_expressions_exist(topic: str) -> None:
    expressions = expressions_of(FLOW, topic, 60, "").values()
    named = {name for one in expressions for name in re.findall(r"\bmm2_\w+", one)}
    known = {one.name for one in vars(flows).values() if hasattr(one, "name")}
    assert {name.removesuffix("_bucket") for name in named} <= known
    assert all("[300s]" in one for one in expressions), "a rate needs two samples"


def test_names_cannot_change_an_expression() -> None:
    found = expressions_of("A->B", 'x"} or {y="\\', 60, 'env="prod"')["records_per_s"]
    assert 'topic="x\\"} or {y=\\"\\\\"}' in found
    assert 'target="B",env="prod",topic=' in found
