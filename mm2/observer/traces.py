"""The trace of a connector or task in one line. Pure."""

from __future__ import annotations

import re
from typing import Final

#: Of the class of an error: whoever wants to know where it lives opens the trace.
_MODULE: Final = re.compile(r"^(?:[A-Za-z_][\w$]*\.)+(?=[A-Za-z_][\w$]*(?:: |$))")


def reason_of(trace: str) -> str:
    """The line that says what it was: the last one, as Python has it; of Java's, which workers of both kinds leave in one status topic, the
    first. "" when there is none."""
    lines = [line.strip() for line in trace.splitlines() if line.strip()]
    if not lines:
        return ""
    return _MODULE.sub("", lines[-1] if lines[0].startswith("Traceback") else lines[0])
