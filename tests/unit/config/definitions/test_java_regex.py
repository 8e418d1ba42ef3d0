from pathlib import Path

import pytest

from mm2.config.definitions.java_regex import PatternError, compile_java

VECTORS = [
    line.split("\t")
    for line in (Path(__file__).parents[1] / "java_regex_vectors.tsv").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
]

_LINES = (
    "a\rb",
    "a\nb",
    "a\x85b",
    "a\u2028b",
    "ab",
    "a\r\nb",
    "a\n",
    "a\r",
    "a\r\n",
    "a",
    "a\nc\rd",
    "a\rc\nd",
    "a\rb\r",
    "x",
    "a\u2029",
)


@pytest.mark.parametrize("vector", VECTORS, ids=[vector[0] for vector in VECTORS])
def test_a_pattern_matches_like_java_s(vector: list[str]) -> None:
    pattern, answers, *names = vector
    if answers in {"ERR", "NONE"}:
        with pytest.raises(PatternError):
            compile_java(pattern)
    else:
        compiled = compile_java(pattern)
        assert "".join(str(int(compiled.fullmatch(name) is not None)) for name in names) == answers


def test_the_error_names_pattern_and_reason() -> None:
    with pytest.raises(PatternError, match=r"unclosed character class at position 4 in the pattern 'x\[ab'"):
        compile_java("x[ab")


@pytest.mark.parametrize(
    ("pattern", "answers"),  # of Matcher.matches for each of _LINES (Java 17.0.15)
    [
        (r".*", "000010000100010"),
        (r"a.b", "000000000000000"),
        (r"(?s)a.b", "111100000000000"),
        (r"(?s:a.)b.", "000000000000000"),
        (r"(?-s)a.b", "000000000000000"),
        (r"(?s)a(?-s:.)b", "000000000000000"),
        (r"(?s)(a|(?-s).)c.d", "000000000000000"),
        (r"a$.*", "000000000100000"),
        (r"(?s)a$.*", "000000111100001"),
        (r"(?m)a$.*", "000000000100000"),
        (r"(?sm)a$.b", "111100000000000"),
        (r"(?sm)a.^b", "111100000000000"),
        (r"x|(?s)a.", "000010110000011"),
        (r"((?s)a.)b.", "000000000000000"),
        (r"[^b]*", "000000111111011"),
        (r"(?s)a$.", "000000110000001"),
        (r"a$\n", "000000100000000"),
    ],
)
def test_line_terminators_are_java_s(pattern: str, answers: str) -> None:
    compiled = compile_java(pattern)
    assert "".join(str(int(compiled.fullmatch(line) is not None)) for line in _LINES) == answers
