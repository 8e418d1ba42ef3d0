"""System properties of Java, which Kafka's scripts take as ``-Dname=value`` from the environment variable KAFKA_OPTS."""

from __future__ import annotations

import os
import shlex


def system_property(name: str, options: str | None = None) -> str | None:
    """The value of ``-Dname=value`` in KAFKA_OPTS, or in other `options`; the last one counts. None when it is not set."""
    text = os.environ.get("KAFKA_OPTS", "") if options is None else options
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    found = [word.partition("=")[2] for word in words if word.startswith(f"-D{name}=")]
    return found[-1] if found else None
