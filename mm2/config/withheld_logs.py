"""The logger whose level does not change while a process runs, and libraries of which only warnings and errors are logged, at any level: their finer lines contain cookies, tokens and requests.

A module of its own, because the command line and the REST resource of log levels share it.
"""

from __future__ import annotations

from typing import Final

#: The audit log of REST. A client of REST must not be able to switch it off.
AUDIT: Final = "mm2.audit"
WITHHELD: Final = ("engineio", "httpcore", "httpx", "kafka", "py4j", "socketio", "uvicorn", "websockets")


def is_withheld(name: str) -> bool:
    """Whether a logger belongs to one of these libraries."""
    return name.partition(".")[0] in WITHHELD
