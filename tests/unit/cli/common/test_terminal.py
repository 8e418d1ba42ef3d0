"""No text of a cluster is executed by a terminal or a spreadsheet."""

from __future__ import annotations

import io
import json
import re
import sys
import unicodedata

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from mm2.cli.common.tables import table
from mm2.cli.common.terminal import TerminalStream, csv_cell, terminal_output, visible, visible_cell, visible_line
from mm2.cli.logs import configure_logging

HOSTILE = "\x1b]0;owned\x07\x9b2J\x1b[31m\u202egnp\u200b\x7f\r\x08\u2066x\ufeff\ud800\U000e0041"
# What a terminal executes or hides: control, format and surrogate characters, line and paragraph separators.
EXECUTED = {"Cc", "Cf", "Cs", "Zl", "Zp"}
HARMLESS = {"\n", "\t"}


def executed(text: str) -> list[str]:
    return [char for char in text if char not in HARMLESS and unicodedata.category(char) in EXECUTED]


def test_control_characters_are_shown() -> None:
    assert visible("a\x1b[2Jb\x9bc\u202ed\U000e0041") == r"a\u001b[2Jb\u009bc\u202ed\udb40\udc41"
    assert visible("été 日本 \U0001f600\n\ta") == "été 日本 \U0001f600\n\ta"
    assert visible_line("a\n\tb") == r"a\u000a\u0009b"


@given(st.text(alphabet=st.one_of(st.sampled_from(HOSTILE + "\n\tab"), st.characters(max_codepoint=0xFF))))
def test_no_text_contains_a_character_that_is_executed(text: str) -> None:
    assert executed(visible(text)) == []
    visible(text).encode()


@given(st.text(alphabet=st.sampled_from(HOSTILE + 'ab"\\\n')))
def test_json_documents_stay_valid(text: str) -> None:
    document = visible(json.dumps({"group": text}, ensure_ascii=False))
    assert json.loads(document) == {"group": text}
    assert executed(document) == []


def test_cells_of_a_table_are_on_one_line_and_have_a_limited_width() -> None:
    out = io.StringIO()
    table(out, ("GROUP", "LAG"), [(HOSTILE + "\nforged line", "1"), ("x" * 1_000_000, "2")])
    lines = out.getvalue().splitlines()
    assert (len(lines), executed(out.getvalue())) == (3, [])
    assert max(map(len, lines)) < 400
    assert "(1,000,000 characters)" in lines[2]
    assert visible_cell("short") == "short"


def test_standard_output_shows_control_characters_in_every_encoding(capsys: pytest.CaptureFixture[str]) -> None:
    with terminal_output():
        sys.stdout.write(f"{HOSTILE}\n")
        sys.stdout.writelines([HOSTILE])
        sys.stderr.write(HOSTILE)
    captured = capsys.readouterr()
    assert executed(captured.out + captured.err) == []
    raw = io.BytesIO()
    ascii_only = io.TextIOWrapper(raw, "ascii", write_through=True)
    TerminalStream(ascii_only).write("é\x1b")
    assert raw.getvalue() == rb"\xe9\u001b"


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_logs_show_control_characters_and_no_forged_lines(log_format: str) -> None:
    out = io.StringIO()
    configure_logging(log_format, "info", stream=out)
    log = structlog.get_logger("x")
    try:
        raise ValueError(f"{HOSTILE}\n2026-01-01 00:00:00 [error    ] forged")
    except ValueError:
        log.exception("event %s", HOSTILE, group=HOSTILE, names=[HOSTILE], by={HOSTILE: {HOSTILE}})
    log.info("%s", f"{HOSTILE}\n2026-01-01 00:00:00 [error    ] forged")
    text = out.getvalue()
    assert executed(text) == []
    assert not re.search(r"^2026-01-01 00:00:00 \[error", text, re.MULTILINE)
    if log_format == "json":
        assert json.loads(text.splitlines()[0])["event"].startswith("event ")


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"),
        ("+1+1", "'+1+1"),
        ("-topic", "'-topic"),
        ("@SUM(1)", "'@SUM(1)"),
        ("\t=1", r"'\u0009=1"),
        ("\r=1", r"'\u000d=1"),
        ("\uff1d1", "'\uff1d1"),
        ("-12", "-12"),
        ("+1.5", "+1.5"),
        ("orders", "orders"),
        ("a\x1b", r"a\u001b"),
    ],
)
def test_a_cell_of_a_csv_file_is_no_formula(text: str, cell: str) -> None:
    assert csv_cell(text) == cell
