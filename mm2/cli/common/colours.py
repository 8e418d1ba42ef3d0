"""Colours of states in the text that verbs print on a terminal."""

from __future__ import annotations

import os
import re
from typing import Any, Final, TextIO

from mm2.cli.common.terminal import TerminalStream
from mm2.observer.shown.tones import STATE_TONES, Tone

_GREEN, _YELLOW, _BOLD_RED = "32", "33", "1;31"
_SHOWN: Final = {Tone.OK: _GREEN, Tone.BAD: _BOLD_RED, Tone.CRITICAL: _BOLD_RED}
"""Tones by the parameters of ANSI's SGR sequence; all others are yellow."""

_CODES: Final = {str(state): _SHOWN.get(tone, _YELLOW) for state, tone in STATE_TONES.items()}
_WORDS: Final = re.compile(rf"\b(?:{'|'.join(_CODES)})\b")


def coloured(text: str) -> str:
    """The text with its states in colour."""
    return _WORDS.sub(lambda found: f"\x1b[{_CODES[found[0]]}m{found[0]}\x1b[0m", text)


def colour_states(stream: TextIO, options: Any) -> None:
    """Colour the states that a verb with these options prints, if the stream is a terminal that wants colours.

    As usual, NO_COLOR (https://no-color.org) and TERM=dumb turn them off.
    """
    is_document = getattr(options, "json", False)
    if isinstance(stream, TerminalStream) and not is_document and _has_colours(stream):
        stream.paint = coloured


def _has_colours(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
