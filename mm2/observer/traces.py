"""Reduces the stack trace of a connector or task to one line. Pure."""

from __future__ import annotations

import re
from typing import Final

from mm2.copy.causes import shortened

_LONGEST: Final = 1_000  # characters
#: The module of an error's class; the full trace contains it.
_MODULE: Final = re.compile(r"^(?:[A-Za-z_][\w$]*\.)+(?=[A-Za-z_][\w$]*(?:: |$))")


def reason_of(trace: str) -> str:
    """The line with the error, shortened: the last one of a Python trace, the first one of a Java trace. "" if there is none.

    The status topic may contain both if Java workers share the flow.
    """
    lines = [line.strip() for line in trace.splitlines() if line.strip()]
    if not lines:
        return ""
    return shortened(_MODULE.sub("", lines[-1] if lines[0].startswith("Traceback") else lines[0]), _LONGEST)
