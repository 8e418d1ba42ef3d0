from __future__ import annotations

import pytest

from mm2.config.definitions.versions import InvalidVersionRange, Version, version_requirement

ORDERED = [
    "undefined",
    "1.0-SNAPSHOT",
    "1.0a1",
    "1.0-beta-2",
    "1.0rc1",
    "1.0",
    "1.0.post1",
    "1.0.1",
    "1.9",
    "1.10",
    "2",
]


def test_versions_have_python_s_order_and_java_s_are_parsed() -> None:
    assert sorted(sorted(ORDERED), key=Version) == ORDERED
    assert Version("1.0") == Version("1.0.0") == Version("1.0.Final")
    assert len({Version("1.0"), Version("1.0.0")}) == 1


@pytest.mark.parametrize(
    ("spec", "inside", "outside"),
    [
        ("1.0", ["1.0", "1.0.0"], ["1.0.1", "0.9"]),
        ("[1.0]", ["1.0"], ["1.1"]),
        ("[1.0,2.0)", ["1.0", "1.9.9"], ["2.0", "0.9"]),
        ("(1.0,2.0]", ["1.1", "2.0"], ["1.0", "2.1"]),
        ("[1.5,)", ["1.5", "99"], ["1.4"]),
        ("(,1.0],[1.2,)", ["0.1", "1.0", "1.2"], ["1.1"]),
        ("[1.0,2.0),(2.0,3.0]", ["1.5", "3.0"], ["2.0"]),
    ],
)
def test_a_range_contains_what_maven_s_contains(spec: str, inside: list[str], outside: list[str]) -> None:
    wanted = version_requirement(spec)
    assert wanted is not None
    assert [version in wanted for version in inside] == [True] * len(inside)
    assert [version in wanted for version in outside] == [False] * len(outside)
    assert "undefined" not in wanted or spec.startswith("(,")


@pytest.mark.parametrize("spec", [None, "", " ", "latest"])
def test_no_requirement_allows_every_version(spec: str | None) -> None:
    assert version_requirement(spec) is None


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("[1.0", "Unbounded range: [1.0"),
        ("(1.0)", "Single version must be surrounded by []: (1.0)"),
        ("[2.0,1.0]", "Range defies version ordering: [2.0,1.0]"),
        ("[1.0,2.0],[1.5,3.0]", "Ranges overlap: [1.0,2.0],[1.5,3.0]"),
        ("[1.0,2.0]x", "Only fully-qualified sets allowed in multiple set scenario: [1.0,2.0]x"),
        ("1.0]", "Not a version: '1.0]'"),
    ],
)
def test_an_invalid_range_is_rejected_with_maven_s_text(spec: str, text: str) -> None:
    with pytest.raises(InvalidVersionRange) as raised:
        version_requirement(spec)
    assert str(raised.value) == text
