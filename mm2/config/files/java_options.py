"""Environment variables of Kafka's scripts: system properties of Java (``-Dname=value`` in KAFKA_OPTS), and those without effect."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from typing import Final

_WITHOUT_EFFECT: Final = {
    "KAFKA_HEAP_OPTS": "only Spark has a Java heap, which spark.driver.memory sets",
    "KAFKA_LOG4J_OPTS": "--log-level, --log-format and REST's /admin/loggers set up the log",
    "KAFKA_LOG4J_CMD_OPTS": "--log-level, --log-format and REST's /admin/loggers set up the log",
    "KAFKA_JVM_PERFORMANCE_OPTS": "the worker does not run on a JVM",
    "KAFKA_GC_LOG_OPTS": "the worker does not run on a JVM",
    "KAFKA_DEBUG": "the worker does not run on a JVM",
    "KAFKA_JMX_OPTS": "metrics are served over HTTP at /metrics",
    "JMX_PORT": "metrics are served over HTTP at /metrics",
}


def ineffective_variables(environment: Mapping[str, str] = os.environ) -> list[str]:
    """A sentence for each variable of Kafka's scripts that is set and has no effect."""
    return [
        f"The environment variable {name} has no effect: {reason}."
        for name, reason in _WITHOUT_EFFECT.items()
        if environment.get(name)
    ]


def system_property(name: str, options: str | None = None) -> str | None:
    """The value of ``-Dname=value`` in KAFKA_OPTS, or in other `options`; the last one counts. None when it is not set."""
    text = os.environ.get("KAFKA_OPTS", "") if options is None else options
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    found = [word.partition("=")[2] for word in words if word.startswith(f"-D{name}=")]
    return found[-1] if found else None
