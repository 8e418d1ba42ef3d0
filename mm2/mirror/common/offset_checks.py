"""Validates Connect offsets that a user wants to write (KIP-875, MirrorUtils)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mm2.connect.api import ConnectError

Offsets = Sequence[tuple[dict[str, Any], dict[str, Any] | None]]
"""Pairs of source partition and offset; None removes the offset."""

_INT32_MAX = 2**31 - 1


def check_source_offsets(offsets: Offsets) -> None:
    """Check MirrorSourceConnector's entries: cluster, topic, partition -> offset >= 0. Raises ConnectError."""
    for partition, offset in _set_entries(offsets):
        _text(partition, "cluster")
        _text(partition, "topic")
        _partition_number(partition)
        if _offset(offset) < 0:
            raise ConnectError(f"The offset of {partition} must not be negative, but is {offset['offset']}")


def check_checkpoint_offsets(offsets: Offsets) -> None:
    """Check MirrorCheckpointConnector's entries: group, topic, partition -> offset 0. Raises ConnectError."""
    for partition, offset in _set_entries(offsets):
        _text(partition, "group")
        _text(partition, "topic")
        _partition_number(partition)
        _zero(partition, offset)


def check_heartbeat_offsets(offsets: Offsets) -> None:
    """Check MirrorHeartbeatConnector's entries: both aliases -> offset 0. Raises ConnectError."""
    for partition, offset in _set_entries(offsets):
        _text(partition, "sourceClusterAlias")
        _text(partition, "targetClusterAlias")
        _zero(partition, offset)


def _set_entries(offsets: Offsets) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """The entries that set an offset. Removed entries may have any form, so that invalid ones can be deleted."""
    entries: list[tuple[Mapping[str, Any], Mapping[str, Any]]] = []
    for partition, offset in offsets:
        if offset is None:
            continue
        if not isinstance(partition, Mapping):
            raise ConnectError("A source partition must not be null")
        entries.append((partition, offset))
    return entries


def _text(partition: Mapping[str, Any], key: str) -> None:
    if not isinstance(partition.get(key), str):
        raise ConnectError(f"The source partition {dict(partition)} must contain a string under '{key}'")


def _partition_number(partition: Mapping[str, Any]) -> None:
    number = partition.get("partition")
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= _INT32_MAX:
        raise ConnectError(f"The source partition {dict(partition)} must contain a number from 0 under 'partition'")


def _offset(offset: Mapping[str, Any]) -> int:
    value = offset.get("offset")
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConnectError(f"The source offset {dict(offset)} must contain a whole number under 'offset'")
    return value


def _zero(partition: Mapping[str, Any], offset: Mapping[str, Any]) -> None:
    if _offset(offset) != 0:
        raise ConnectError(f"The offset of {dict(partition)} can only be 0, but is {offset['offset']}")
