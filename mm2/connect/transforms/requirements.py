"""Checks of values for transformations (org.apache.kafka.connect.transforms.util.Requirements)."""

from __future__ import annotations

from typing import Any

from mm2.connect.data.errors import DataError
from mm2.connect.data.record import ConnectRecord, SinkRecord
from mm2.connect.data.struct import Struct


def require_map(value: Any, purpose: str) -> dict[str, Any]:
    """Raises DataError when it is not a map."""
    if not isinstance(value, dict):
        raise DataError(
            f"Only Map objects supported in absence of schema for [{purpose}], found: {type(value).__name__}"
        )
    return value


def require_struct(value: Any, purpose: str) -> Struct:
    """Raises DataError when it is not a struct."""
    if not isinstance(value, Struct):
        raise DataError(f"Only Struct objects supported for [{purpose}], found: {type(value).__name__}")
    return value


def require_struct_or_none(value: Any, purpose: str) -> Struct | None:
    """Raises DataError when it is neither a struct nor None."""
    return None if value is None else require_struct(value, purpose)


def require_map_or_none(value: Any, purpose: str) -> dict[str, Any] | None:
    """Raises DataError when it is neither a map nor None."""
    return None if value is None else require_map(value, purpose)


def require_sink_record(record: ConnectRecord, purpose: str) -> SinkRecord:
    """Raises DataError when it is from a source connector."""
    if not isinstance(record, SinkRecord):
        raise DataError(f"Only SinkRecord supported for [{purpose}], found: {type(record).__name__}")
    return record
