"""Formats numbers for people. An unknown value is a dash, never a zero."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from mm2.evidence import utc_time

UNKNOWN: Final = "–"  # noqa: RUF001 - the dash of a table
RANGE: Final = UNKNOWN

_BYTES: Final = ((1_000_000_000_000, "TB"), (1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB"))
_SIZE: Final = re.compile(r"([0-9]{1,12})\s*([kmg]?)b?")
_FACTORS: Final = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000}
_MINUTE: Final = 60
_HOUR: Final = 3_600
_DAY: Final = 86_400
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_SHORT: Final = 6


def count(value: float | None) -> str:
    """``12,345``."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def at_least(value: float | None, *, is_exact: bool) -> str:
    """``12,345``, or ``at least 12,345`` if there may be more."""
    return count(value) if is_exact or value is None else f"at least {count(value)}"


def size(value: float | None) -> str:
    """Bytes in powers of a thousand: ``1.2 MB``."""
    if value is None:
        return UNKNOWN
    for unit, name in _BYTES:
        if value >= unit:
            return f"{value / unit:,.1f} {name}"
    return f"{value:,.0f} B"


def bytes_of(text: str) -> int | None:
    """The number of ``500000``, ``500k``, ``20MB``; None for any other text."""
    found = _SIZE.fullmatch(text.strip().lower())
    return None if found is None else int(found[1]) * _FACTORS[found[2]]


def rate(value: float | None) -> str:
    """Per second: ``12,400/s``; below ten with one decimal."""
    if value is None:
        return UNKNOWN
    return f"{value:,.1f}/s" if 0.05 <= value < 10 else f"{value:,.0f}/s"


def seconds(value: float | None) -> str:
    """``0.4 s``, ``42 s``, ``12 min 5 s``, ``5 h 12 min``, ``3 d 4 h``."""
    if value is None:
        return UNKNOWN
    if not value:
        return "0 s"
    if value < 1:
        return f"{value * 1000:,.0f} ms"
    if value < 10:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return _two(whole, _MINUTE, "min", 1, "s")
    if whole < _DAY:
        return _two(whole, _HOUR, "h", _MINUTE, "min")
    return _two(whole, _DAY, "d", _HOUR, "h")


def clock(at_ms: int | None) -> str:
    """The time of day in UTC, as logs have it: ``06:12:31``."""
    return UNKNOWN if at_ms is None else utc_time(at_ms, "%H:%M:%S")


def moment(at_ms: int | None) -> str:
    """Day and time in UTC: ``2026-11-22 06:12:31 UTC``."""
    return UNKNOWN if at_ms is None else utc_time(at_ms)


def worker_name(worker_id: str, all_ids: Iterable[str]) -> str:
    """A short name for ``<host>/S->T/<uuid>``: the host, and the beginning of the UUID if several workers have the same name."""
    host, last = worker_id.partition("/")[0], worker_id.rpartition("/")[2]
    if not _UUID.fullmatch(last):
        return worker_id
    name = host if "->" not in host and host != last else last[:_SHORT]
    others = {one for one in all_ids if one != worker_id and one.split("/")[0] == host}
    return f"{name} ({last[:_SHORT]})" if others else name


def _two(whole: int, large: int, large_name: str, small: int, small_name: str) -> str:
    rest = whole % large // small
    return f"{whole // large} {large_name}" + (f" {rest} {small_name}" if rest else "")
