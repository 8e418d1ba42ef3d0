r"""Text on its way to a terminal: control characters of names and messages are shown, not executed.

Group ids, client ids, metadata of offsets and messages of brokers may contain any character. ``visible`` shows the
characters that a terminal executes or hides as in JSON (``\u001b``), so that JSON documents stay valid.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, Final, TextIO

# C0, DEL and C1 without tab and line feed; soft hyphen; bidirectional and zero width characters; line and paragraph
# separators; interlinear annotations; tags; unpaired surrogates, which cannot be encoded.
_EXECUTED: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
_LINE: Final = re.compile("[\t\n]")
#: Tab, carriage return and line feed, too: spreadsheets skip them. The last four are the full-width forms.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_NUMBER: Final = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?")
#: Characters of a cell in a table; JSON documents contain the whole text.
_WIDEST_CELL: Final = 256


def visible(text: str) -> str:
    """``text`` with visible escapes of all characters that a terminal executes or hides, except tab and line feed."""
    return _EXECUTED.sub(_escape, text)


def visible_line(text: str) -> str:
    """As :func:`visible`, on one line without tabs."""
    return _LINE.sub(_escape, visible(text))


def visible_cell(text: str) -> str:
    """As :func:`visible_line`, shortened to a width that a table can have."""
    shown = visible_line(text[: _WIDEST_CELL + 1])
    return shown if len(text) <= _WIDEST_CELL else f"{shown[:_WIDEST_CELL]}… ({len(text):,} characters)"


def csv_cell(text: str) -> str:
    """As :func:`visible_line`, and not a formula: spreadsheets evaluate cells that begin with one of ``= + - @``.

    Such a cell gets an apostrophe in front, unless it is a plain number.
    """
    shown = visible_line(text)
    return f"'{shown}" if text.startswith(_FORMULA) and not _NUMBER.fullmatch(text) else shown


def _escape(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


class TerminalStream:
    """A text stream that writes visible text only. Everything else is as in the wrapped stream.

    ``paint`` adds colours to the visible text.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.paint: Callable[[str], str] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @property
    def wrapped(self) -> TextIO:
        """The wrapped stream."""
        return self._stream

    def write(self, text: str) -> int:
        """Write the text; what the stream's encoding lacks is escaped, too."""
        encoding = self._stream.encoding or "utf-8"
        shown = visible(text).encode(encoding, "backslashreplace").decode(encoding)
        self._stream.write(shown if self.paint is None else self.paint(shown))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write all lines."""
        for line in lines:
            self.write(line)


@contextmanager
def terminal_output() -> Iterator[None]:
    """A block in which standard output and error write visible text only."""
    with redirect_stdout(_wrapped(sys.stdout)), redirect_stderr(_wrapped(sys.stderr)):
        yield


def with_controls(stream: TextIO) -> TextIO:
    """The stream for text of this program that contains colours or carriage returns."""
    return stream.wrapped if isinstance(stream, TerminalStream) else stream


def _wrapped(stream: TextIO) -> Any:
    return stream if isinstance(stream, TerminalStream) else TerminalStream(stream)
