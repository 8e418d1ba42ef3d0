"""The form of data classes in JSON."""

from __future__ import annotations

import importlib
import json
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

import pytest

from mm2.codec import _WRITTEN_AS, decode, encode, stored, written_as


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


class _Lines(NamedTuple):
    size: int


@written_as("name size=lines.size last also-empty=is_empty")
@dataclass(frozen=True, slots=True)
class _Report:
    name: str
    lines: _Lines

    @property
    def is_empty(self) -> bool:
        return not self.lines.size

    @property
    def last(self) -> int | None:
        return self.lines.size - 1 if self.lines.size else None


def test_a_class_can_name_the_keys_that_it_is_written_as() -> None:
    """In this order, from fields, properties and parts."""
    rows = encode({"rows": [_Report("a", _Lines(0)), _Report("b", _Lines(2))]})["rows"]
    assert json.dumps(rows) == (
        '[{"name": "a", "size": 0, "last": null, "also-empty": true}, {"name": "b", "size": 2, "last": 1, "also-empty": false}]'
    )


def _type_at(kind: Any, path: str) -> Any:
    """The annotated type at a path of attributes. Raises KeyError or AttributeError where there is none."""
    for name in path.split("."):
        found = getattr(kind, name, None)
        hints = typing.get_type_hints(found.fget if isinstance(found, property) else kind)
        kind = hints["return" if isinstance(found, property) else name]
    return kind


def test_the_attributes_of_written_keys_exist() -> None:
    for module in (
        "connect.request_signing",
        "connect.stores.config_state",
        "failover.evidence",
        "failover.records.divergence",
        "mirror.client.freshness",
        "verify.report",
    ):
        importlib.import_module(f"mm2.{module}")
    checked = {kind: keys for kind, keys in _WRITTEN_AS.items() if kind.__module__.startswith("mm2.")}
    assert len(checked) >= 10
    for kind, keys in checked.items():
        for one in keys.split():
            key, _, path = one.partition("=")
            assert _type_at(kind, path or key) is not None, (kind, key)
