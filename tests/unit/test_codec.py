"""The form of data classes in JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

import pytest

from mm2.codec import decode, encode, stored


class Colour(StrEnum):
    RED = "red"


class Row(NamedTuple):
    first: int
    second: str = ""


@dataclass(frozen=True)
class Inner:
    values: tuple[int, ...] = ()
    rate: float = 0.0


@dataclass(frozen=True)
class Outer:
    topic: str = field(metadata=stored("target.topic"))
    row: Row
    epoch: int = field(default=-1, metadata=stored("target.epoch"))
    known: int = field(default=-1, metadata=stored("target.known", same_as="epoch"))
    inner: Inner | None = field(default=None, metadata=stored(omits_default=True))
    spread: Row = field(default=Row(0), metadata=stored(parts=("seen", "seen_in")))
    counts: Mapping[Colour, int] = field(default_factory=dict)
    pairs: tuple[tuple[str, int], ...] = ()
    secret: str = field(default="", metadata=stored(is_left_out=True))


WRITTEN = {
    "target": {"topic": "t", "epoch": 3},
    "row": [1, ""],
    "seen": 5,
    "counts": {"red": 2},
    "pairs": [["a", 1]],
}
READ = Outer("t", Row(1), 3, 3, None, Row(5), {Colour.RED: 2}, (("a", 1),), "hidden")


def test_values_of_a_class_as_json_and_back() -> None:
    assert encode(READ) == WRITTEN
    assert decode(Outer, json.loads(json.dumps(WRITTEN))) == Outer(**{**vars(READ), "secret": ""})
    full = Outer("t", Row(1, "x"), 3, 4, Inner((1, 2), 0.5), Row(5, "place"))
    assert encode(full)["target"] == {"topic": "t", "epoch": 3, "known": 4}
    assert (encode(full)["seen"], encode(full)["seen_in"]) == (5, "place")
    assert decode(Outer, json.loads(json.dumps(encode(full)))) == full


def test_keys_that_are_missing_or_unknown() -> None:
    assert decode(Outer, {"target": {"topic": "t"}, "row": [1], "of_a_newer_version": 1}) == Outer("t", Row(1))
    assert decode(Outer, {"target": {"topic": "t", "epoch": 7}, "row": [1]}).known == 7


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"target": {}}, "Outer.target.topic is missing"),
        ({"target": 1}, "Outer: 1"),
        ({"row": []}, "Outer.row: []"),
        ({"row": [1, "x", 2]}, "Outer.row: [1, 'x', 2]"),
        ({"row": [True]}, "Outer.row.first: True"),
        ({"row": [1.0]}, "Outer.row.first: 1.0"),
        ({"row": {"first": 1}}, "Outer.row: {'first': 1}"),
        ({"inner": {"rate": "1"}}, "Outer.inner.rate: '1'"),
        ({"inner": []}, r"Outer.inner: []"),
        ({"counts": {"blue": 1}}, "Outer.counts: 'blue'"),
        ({"pairs": [["a"]]}, "Outer.pairs: ['a']"),
        ({"seen": "x"}, "Outer.seen.first: 'x'"),
        ({"row": "x" * 500}, f"Outer.row: '{'x' * 99}"),
    ],
)
def test_the_place_of_a_wrong_value_is_named(change: dict[str, Any], place: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  (the text is compared below)
        decode(Outer, {**WRITTEN, **change})
    assert str(caught.value) == place


def test_what_has_no_form_is_refused() -> None:
    assert encode([{1}, b"\x00\xff", Colour.RED, None, 1.5]) == [[1], "AP8=", "red", None, 1.5]
    with pytest.raises(TypeError, match="object has no JSON form"):
        encode({"a": object()})
