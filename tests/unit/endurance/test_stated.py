from __future__ import annotations

import json
from typing import Any

import pytest

from mm2.copy.states import PartitionState
from tests.endurance.copy_counts import Copy, Count, count_of
from tests.endurance.stated import Answer, Stated

_TOPIC = "t"
_COPY = Copy("A.t", (_TOPIC,), by_process=True)
_WHOLE = count_of(range(10), 10)
_LACKING = count_of(range(6), 10)


def _answer(code: int, document: Any) -> Answer:
    return Answer(code, json.dumps(document), "")


def _stated(
    *,
    verdict: str,
    state: str = "RUNNING",
    sentence: str = "",
    gaps: int = 0,
    lag: int | None = 0,
    missing: int = 4,
    pending: int = 0,
) -> Stated:
    """What is stated about ten records. ``missing`` is that of a verdict of differences, ``pending`` are not copied yet."""
    row = {"topic": _TOPIC, "state": state, "position": 10, "gaps": {}}
    lags = [{"topic": _TOPIC, "records": lag, "is_exact": lag is not None}]
    compared = {"topic": _TOPIC, "verdict": verdict, "first_offset": 0, "last_offset": 9}
    differences = {"missing": missing} if verdict == "different" else {}
    explained = {"not copied yet": pending} if pending else {}
    return Stated(
        _answer(0, {"flows": [{"sentence": sentence, "partitions": [row]}]}),
        _answer(0, {"partitions": [{**compared, "differences": differences, "explained": explained}]}),
        {_TOPIC: _answer(gaps, {"partitions": [{"position": 10}]})},
        {_TOPIC: _answer(0, {"flows": [{"partitions": lags}]})},
    )


def _false(stated: Stated, count: Count, copy: Copy = _COPY) -> list[str]:
    """The verbs with a false statement, in order."""
    return [one.verb for one in stated.statements({copy: {_TOPIC: count}}) if one.is_false]


_NOTHING_LOST = _stated(sentence="If A dies now you lose nothing.", verdict="equal")
_LOST = _stated(state=PartitionState.LOST_RANGE, gaps=1, lag=None, verdict="different")


def test_statements_that_agree_with_the_count_are_not_false() -> None:
    assert _false(_NOTHING_LOST, _WHOLE) == []
    assert _false(_LOST, _LACKING) == []
    assert len(list(_NOTHING_LOST.statements({_COPY: {_TOPIC: _WHOLE}}))) == 5
    assert len(list(_LOST.statements({_COPY: {_TOPIC: _LACKING}}))) == 3


def test_each_statement_that_excludes_a_loss_is_false_when_records_are_missing() -> None:
    assert _false(_NOTHING_LOST, _LACKING) == ["status", "status", "gaps", "lag", "verify"]


def test_each_statement_that_names_a_loss_is_false_when_none_is_missing() -> None:
    assert _false(_LOST, _WHOLE) == ["status", "gaps", "verify"]


def test_a_wrong_number_is_false() -> None:
    assert _false(_LOST, count_of(range(7), 10)) == ["verify"]
    assert _false(_stated(lag=1, verdict="trouble"), _WHOLE) == ["lag"]


def test_records_that_verify_reports_as_not_copied_yet_are_not_counted_as_differences() -> None:
    stated = _stated(state=PartitionState.LOST_RANGE, gaps=1, lag=None, verdict="different", missing=3, pending=1)
    assert _false(stated, _LACKING) == []


def test_a_verdict_on_a_merge_is_false() -> None:
    merge = Copy("A.t-all", (_TOPIC, "u"), by_process=True)
    assert _false(_NOTHING_LOST, _WHOLE, merge) == ["verify"]
    assert _false(_stated(verdict="trouble"), _WHOLE, merge) == []


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([b"t:0", b"u:0", b"t:1", b"u:1"], {"t": (0, 0, 0, 0), "u": (0, 0, 0, 0)}),
        ([b"t:1", b"u:0", b"t:0", b"t:1"], {"t": (0, 1, 1, 0), "u": (1, 0, 0, 0)}),
        ([b"foreign", None, b"u:1"], {"t": (2, 0, 0, 2), "u": (1, 0, 0, 2)}),
    ],
)
def test_the_records_of_a_merge_are_counted_by_source_topic(
    values: list[bytes | None], expected: dict[str, tuple[int, int, int, int]]
) -> None:
    counts = Copy("all", ("t", "u"), by_process=True).counts(values, {"t": 2, "u": 2})
    found = {topic: (len(one.missing), one.doubled, one.disordered, one.foreign) for topic, one in counts.items()}
    assert found == expected
