"""Kafka's own converters, transformations and predicates and ours agree on thousands of random values and configurations."""

import datetime as dt
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mm2.connect.data.logical import ms_of
from mm2.sandbox.jars import KAFKA_VERSION
from tests.integration.connect_cases import NESTED_KEYS, Case, all_cases
from tests.integration.connect_values import settled
from tests.integration.java_source import run_source
from tests.support.java import CONNECT_VERSION

FIRST, LAST = dt.datetime.min.replace(tzinfo=dt.UTC), dt.datetime.max.replace(tzinfo=dt.UTC)
SEED = 20261120
ORACLE = Path(__file__).parents[1] / "java" / "ConnectOracle.java"

#: The minimum number of results of a group that are not errors, on both sides.
GROUPS = {
    "definitions": 38,
    "json writes": 500,
    "json reads": 500,
    "odd json": 40,
    **{
        f"{name}Converter writes": 60
        for name in ("Short", "Integer", "Long", "Float", "Double", "Boolean", "ByteArray")
    },
    "StringConverter writes": 100,
    **{f"{name}Converter reads": 20 for name in ("Short", "Integer", "Long", "Float", "Double", "Boolean")},
    "ByteArrayConverter reads": 150,
    "StringConverter reads": 150,
    "encodings": 45,
    "projections": 150,
    "header texts": 500,
    "parsed texts": 1500,
    **dict.fromkeys(("Cast", "ExtractField", "Flatten", "HeaderFrom", "InsertField", "MaskField", "ReplaceField"), 80),
    "HoistField": 300,
    "SetSchemaMetadata": 60,
    "TimestampConverter": 60,
    "DropHeaders": 150,
    "Filter": 150,
    "InsertHeader": 150,
    "ValueToKey": 50,
    "RegexRouter": 60,
    "TimestampRouter": 150,
    "predicates": 200,
    NESTED_KEYS: 60,
}

Answered = Mapping[str, list[tuple[Case, Any]]]


@pytest.fixture(scope="module", params=[KAFKA_VERSION, pytest.param(CONNECT_VERSION, marks=pytest.mark.slow)])
def answered(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Answered:
    """Every case with the result of that version of Java's Connect, by group."""
    folder = tmp_path_factory.mktemp("oracle")
    is_newest = request.param == CONNECT_VERSION
    cases = [case for case in all_cases(SEED) if is_newest or case.group != NESTED_KEYS]
    (folder / "cases").write_text("".join(json.dumps(case.asked) + "\n" for case in cases))
    place = ("-Duser.timezone=UTC", "-Duser.language=en", "-Duser.country=US")
    run_source(ORACLE, str(folder / "cases"), str(folder / "answers"), options=place, version=request.param)
    answers = (folder / "answers").read_text().splitlines()
    groups: dict[str, list[tuple[Case, Any]]] = {}
    for case, answer in zip(cases, answers, strict=True):
        groups.setdefault(case.group, []).append((case, settled(json.loads(answer))))
    return groups


def is_error(answer: Any) -> bool:
    return isinstance(answer, dict) and answer.keys() == {"error"}


def is_beyond_python(answer: Any) -> bool:
    """Whether it contains a time in a year that Python's dates do not support."""
    if isinstance(answer, dict) and answer.keys() == {"ms"}:
        return not ms_of(FIRST) <= int(answer["ms"]) <= ms_of(LAST)
    parts = answer.values() if isinstance(answer, dict) else answer if isinstance(answer, list) else ()
    return any(map(is_beyond_python, parts))


@pytest.mark.slow
def test_every_group_is_compared(answered: Answered) -> None:
    assert answered.keys() | {NESTED_KEYS} == GROUPS.keys()


@pytest.mark.parametrize("group", GROUPS)
def test_group_types_are_read_like_java(answered: Answered, group: str) -> None:
    if group == NESTED_KEYS and group not in answered:
        pytest.skip("they came with Kafka 4.4")
    both = answered[group]
    different = [
        {"asked": case.asked, "ours": case.ours, "java": java}
        for case, java in both
        if case.ours != java and not (is_error(case.ours) and is_error(java)) and not is_beyond_python(java)
    ]
    assert not different, f"{len(different)} of {len(both)}, e.g.:\n" + "\n".join(map(str, different[:3]))
    assert sum(not is_error(java) for _, java in both) >= GROUPS[group]
