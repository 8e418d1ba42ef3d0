"""Levels of loggers, shown and changed at runtime (KIP-495, KIP-976; Java's Loggers).

Names are those of Python's loggers, ``mm2.connect…``; levels are Log4j's, which users and tools send.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

import structlog

from mm2.config.withheld_logs import AUDIT, is_withheld
from mm2.connect.errors import BadRequest, NotFound
from mm2.connect.herder.answers import LoggerLevel

log = structlog.get_logger(__name__)

ROOT: Final = "root"
TRACE: Final = 5
#: Log4j's names, and their numbers in Python.
LEVELS: Final = {
    "OFF": logging.CRITICAL + 10,
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": TRACE,
    "ALL": 1,
}
#: Python creates an object for each dotted prefix of a name, and deletes no logger.
_MAX_NAME_CHARS: Final = 255
_MAX_DOTS: Final = 32
_MAX_CREATED: Final = 1_000


class Loggers:
    """The loggers of this process and when their levels were changed by request. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._modified_ms: dict[str, int] = {}
        #: Loggers that `set_level` has created.
        self._created = 0

    def level(self, name: str) -> LoggerLevel | None:
        """The effective level of a logger; None when no such logger has been created yet."""
        logger = _known(name)
        if logger is None:
            return None
        with self._lock:
            return LoggerLevel(_name(logger.getEffectiveLevel()), self._modified_ms.get(logger.name))

    def all_levels(self) -> dict[str, LoggerLevel]:
        """Loggers with their own level, sorted by name."""
        with self._lock:
            return {
                logger.name: LoggerLevel(_name(logger.level), self._modified_ms.get(logger.name))
                for logger in sorted(_all(), key=lambda logger: logger.name)
                if logger.level != logging.NOTSET
            }

    def set_level(self, namespace: str, level: str) -> list[str]:
        """Set the level of a logger and of all loggers whose names begin with its name; returns them, sorted.

        The logger is created when it does not exist; "root" means all. Loggers of libraries that log
        secrets (`mm2.config.withheld_logs`) get WARN instead of a finer level. The audit log keeps the level that the process
        was started with. Raises what `check` raises.
        """
        with self._lock:
            number = self.check(namespace, level)
            if _known(namespace) is None:
                self._created += 1
                logging.getLogger(namespace)
        log.info("log level changes", namespace=namespace, level=level.upper())
        audit = logging.getLogger(AUDIT)
        audit.setLevel(audit.getEffectiveLevel())  # it does not inherit what is set now
        if namespace.lower() == ROOT:
            affected = _all()
        else:
            affected = [logger for logger in _all() if logger.name.startswith(namespace)]
        affected = [logger for logger in affected if logger is not audit]
        now_ms = time.time_ns() // 1_000_000
        with self._lock:
            for logger in affected:
                wanted = max(number, logging.WARNING) if is_withheld(logger.name) else number
                if logger.getEffectiveLevel() != wanted or logger.level == logging.NOTSET:
                    if logger.getEffectiveLevel() != wanted:
                        self._modified_ms[logger.name] = now_ms
                    logger.setLevel(wanted)
        return sorted(logger.name for logger in affected)

    def check(self, namespace: str, level: str) -> int:
        """Python's number for one of Log4j's levels, case-insensitive; the name is one that `set_level` accepts.

        Raises NotFound for an unknown level, BadRequest for a name that is too long, or for a new one of too many.
        """
        number = LEVELS.get(level.strip().upper())
        if number is None:
            raise NotFound(f"invalid log level '{level}'.")
        if len(namespace) > _MAX_NAME_CHARS or namespace.count(".") > _MAX_DOTS:
            raise BadRequest(f"The name of a logger has at most {_MAX_NAME_CHARS} characters and {_MAX_DOTS} dots.")
        if self._created >= _MAX_CREATED and _known(namespace) is None:
            raise BadRequest(
                f"Logger {namespace} does not exist, and requests have already created {_MAX_CREATED} loggers, the most "
                "that they can create."
            )
        return number


def _all() -> list[logging.Logger]:
    # Iterate over a copy: other threads may create loggers meanwhile.
    named = [logger for logger in list(logging.root.manager.loggerDict.values()) if isinstance(logger, logging.Logger)]
    return [logging.root, *named]


def _known(name: str) -> logging.Logger | None:
    if name.lower() == ROOT:
        return logging.root
    found = logging.root.manager.loggerDict.get(name)
    return found if isinstance(found, logging.Logger) else None


def _name(number: int) -> str:
    """The name of a level; for a level that Log4j does not have, the next finer one."""
    return next(name for name, known in LEVELS.items() if known <= max(number, LEVELS["ALL"]))
