from __future__ import annotations

from typing import TYPE_CHECKING

import javaproperties
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm2.config.configdef import ConfigException
from mm2.config.files.properties import load_properties, parse_properties

if TYPE_CHECKING:
    from pathlib import Path

# Surrogates cannot stand alone in a Java string that came from text.
_TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1\nb : 2\nc 3\n", {"a": "1", "b": "2", "c": "3"}),
        ("# one\n! two\n\n  a = 1", {"a": "1"}),
        ("a=\t  x  ", {"a": "x  "}),
        ("topics=a,\\\n    b,\\\r\n\tc", {"topics": "a,b,c"}),
        ("topics=x\\.y\nexclude=x\\\\.y", {"topics": "x.y", "exclude": "x\\.y"}),
        ("k=\\u0041\\t\\n\\\\", {"k": "A\t\n\\"}),
        ("k\\=1\\ 2=v", {"k=1 2": "v"}),
        ("A->B.enabled = true", {"A->B.enabled": "true"}),
        ("a=1\na=2", {"a": "2"}),
        ("a", {"a": ""}),
        ("a=\\ud83d\\ude00", {"a": "\U0001f600"}),
        ("a=1\rb=2", {"a": "1", "b": "2"}),
    ],
)
def test_syntax_equals_java_s(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected


@given(st.dictionaries(_TEXT, _TEXT))
def test_files_written_by_java_are_read(props: dict[str, str]) -> None:
    assert parse_properties(javaproperties.dumps(props)) == props


def test_file_is_latin_1(tmp_path: Path) -> None:
    file = tmp_path / "mm2.properties"
    file.write_bytes(b"user=Andr\xe9\r\n")
    assert load_properties(file) == {"user": "André"}


def test_a_bad_escape_is_reported_with_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "mm2.properties"
    file.write_text("# head\na=1,\\\n  2\n\nb=\\u12x4\n")
    with pytest.raises(ConfigException, match=r"mm2\.properties, line 5: .*\\u12x4"):
        load_properties(file)


def test_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigException, match=r"Cannot read .*absent\.properties: No such file"):
        load_properties(tmp_path / "absent.properties")
    with pytest.raises(ConfigException, match="Is a directory"):
        load_properties(tmp_path)
