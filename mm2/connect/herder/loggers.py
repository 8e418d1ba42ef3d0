"""Changing the level of a logger while the program runs (KIP-495, KIP-976)."""

from __future__ import annotations

import logging
from typing import Final

import structlog

log = structlog.get_logger(__name__)

#: Log4j's names, and the nearest that Python has.
LEVELS: Final = {
    "OFF": logging.CRITICAL + 10,
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": logging.DEBUG,
    "ALL": logging.DEBUG,
}


def set_level(namespace: str, level: str) -> bool:
    """Set the level of a logger and those below it; False when there is no such level."""
    number = LEVELS.get(level.upper())
    if number is None:
        log.warning("unknown log level", namespace=namespace, level=level)
        return False
    logging.getLogger("" if namespace == "root" else namespace).setLevel(number)
    log.info("log level changed", namespace=namespace, level=level.upper())
    return True
