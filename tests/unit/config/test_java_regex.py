from pathlib import Path

import pytest

from mm2.config.java_regex import PatternError, compile_java

VECTORS = [
    line.split("\t")
    for line in (Path(__file__).parent / "java_regex_vectors.tsv").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
]


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
