"""The embedded protocol of groups of type ``connect``: what members exchange in JoinGroup and SyncGroup.

  worker state  = version:int16 url:string config-offset:int64 [allocation:nullable bytes, v1+]
  assignment    = version:int16 error:int16 leader:string leader-url:string config-offset:int64
                  assigned:array [revoked:array delay:int32, v1+]
  array element = connector:string tasks:array of int32, where task -1 is the connector instance itself

Big-endian; string = int16 length + UTF-8; array = int32 count + elements (-1 = null). v2 has the same format as v1 and
means that internal requests are signed. In v1 and v2 ``assigned`` contains only what is new for the member.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from mm2.connect.api import ConnectError
from mm2.connect.stores.config_state import ConnectorTaskId

#: Protocol type of the group.
PROTOCOL_TYPE = "connect"
#: Names under which the versions are offered in JoinGroup.
EAGER, COMPATIBLE, SESSIONED = "default", "compatible", "sessioned"
#: Value of a worker's URL when it has no internal REST (MirrorMaker's dedicated mode).
URL_NOT_USED = "NOTUSED"

_VERSIONS = {EAGER: 0, COMPATIBLE: 1, SESSIONED: 2}
_CONNECTOR_TASK = -1

#: Assignment.error
NO_ERROR, CONFIG_MISMATCH = 0, 1


@dataclass(frozen=True)
class WorkerAssignment:
    """What the leader assigns to one member or, as allocation, what a member reports as running."""

    error: int
    leader: str
    leader_url: str
    config_offset: int
    connectors: tuple[str, ...] = ()
    tasks: tuple[ConnectorTaskId, ...] = ()
    revoked_connectors: tuple[str, ...] = ()
    revoked_tasks: tuple[ConnectorTaskId, ...] = ()
    delay_ms: int = 0
    version: int = 2

    @property
    def failed(self) -> bool:
        """Whether the leader could not assign because members' views of the config topic differ."""
        return self.error != NO_ERROR


@dataclass(frozen=True)
class WorkerState:
    """What a member reports when it joins."""

    url: str
    config_offset: int
    allocation: WorkerAssignment | None = None


def version_of(protocol_name: str) -> int:
    """Version number of a protocol name chosen by the broker. Raises ConnectError for an unknown one."""
    try:
        return _VERSIONS[protocol_name]
    except KeyError:
        raise ConnectError(f"The group chose protocol {protocol_name!r}, which Connect does not know") from None


def offered_protocols(connect_protocol: str) -> tuple[str, ...]:
    """Names to offer in JoinGroup for a value of ``connect.protocol``, in order of preference."""
    offers = {
        "sessioned": (SESSIONED, COMPATIBLE, EAGER),
        "compatible": (COMPATIBLE, EAGER),
        "eager": (EAGER,),
    }
    try:
        return offers[connect_protocol.lower()]
    except KeyError:
        raise ConnectError(
            f"Invalid value {connect_protocol} for configuration connect.protocol: must be one of {', '.join(offers)}"
        ) from None


def encode_worker_state(state: WorkerState, protocol_name: str) -> bytes:
    """Metadata for JoinGroup under one protocol name."""
    version = version_of(protocol_name)
    out = bytearray(struct.pack(">h", version))
    _put_string(out, state.url)
    out += struct.pack(">q", state.config_offset)
    if version >= 1:
        if state.allocation is None:
            out += struct.pack(">i", -1)
        else:
            allocation = encode_assignment(state.allocation, version)
            out += struct.pack(">i", len(allocation)) + allocation
    return bytes(out)


def decode_worker_state(data: bytes) -> WorkerState:
    """Read a member's metadata. Raises ConnectError when malformed."""
    reader = _ProtocolReader(data)
    version = reader.version()
    url, offset = reader.string(), reader.int64()
    allocation = None
    if version >= 1 and reader.remaining:
        raw = reader.nullable_bytes()
        allocation = None if raw is None else decode_assignment(raw)
    return WorkerState(url, offset, allocation)


def encode_assignment(assignment: WorkerAssignment, version: int) -> bytes:
    """Bytes for SyncGroup (or for the allocation inside a worker state)."""
    out = bytearray(struct.pack(">hh", version, assignment.error))
    _put_string(out, assignment.leader)
    _put_string(out, assignment.leader_url)
    out += struct.pack(">q", assignment.config_offset)
    _put_work(out, assignment.connectors, assignment.tasks)
    if version >= 1:
        _put_work(out, assignment.revoked_connectors, assignment.revoked_tasks)
        out += struct.pack(">i", assignment.delay_ms)
    return bytes(out)


def decode_assignment(data: bytes) -> WorkerAssignment:
    """Read an assignment; fields that an older version lacks are empty. Raises ConnectError when malformed."""
    reader = _ProtocolReader(data)
    version = reader.version()
    error, leader, url, offset = reader.int16(), reader.string(), reader.string(), reader.int64()
    connectors, tasks = reader.work()
    revoked_connectors: tuple[str, ...] = ()
    revoked_tasks: tuple[ConnectorTaskId, ...] = ()
    delay = 0
    if version >= 1:
        if reader.remaining:
            revoked_connectors, revoked_tasks = reader.work()
        if reader.remaining:
            delay = reader.int32()
    return WorkerAssignment(
        error, leader, url, offset, connectors, tasks, revoked_connectors, revoked_tasks, delay, version
    )


def _put_string(out: bytearray, text: str) -> None:
    raw = text.encode("utf-8")
    out += struct.pack(">h", len(raw)) + raw


def _put_work(out: bytearray, connectors: Iterable[str], tasks: Iterable[ConnectorTaskId]) -> None:
    # One element per connector, the connector instance first. Same order as Java's LinkedHashMap.
    by_connector: dict[str, list[int]] = {}
    for connector in connectors:
        by_connector.setdefault(connector, []).append(_CONNECTOR_TASK)
    for connector, task in tasks:
        by_connector.setdefault(connector, []).append(task)
    out += struct.pack(">i", len(by_connector))
    for connector, numbers in by_connector.items():
        _put_string(out, connector)
        out += struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)


class _ProtocolReader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    @property
    def remaining(self) -> int:
        return len(self._data) - self._position

    def _take(self, size: int) -> bytes:
        if size < 0 or size > self.remaining:
            raise ConnectError(
                f"Malformed group message: {size} bytes expected at {self._position}, {self.remaining} left"
            )
        self._position += size
        return self._data[self._position - size : self._position]

    def _number(self, layout: str) -> int:
        value: int = struct.unpack(layout, self._take(struct.calcsize(layout)))[0]
        return value

    def int16(self) -> int:
        return self._number(">h")

    def int32(self) -> int:
        return self._number(">i")

    def int64(self) -> int:
        return self._number(">q")

    def version(self) -> int:
        version = self.int16()
        if version < 0:
            raise ConnectError(f"Malformed group message: version {version}")
        return version

    def string(self) -> str:
        try:
            return self._take(self.int16()).decode("utf-8")
        except UnicodeDecodeError as error:
            raise ConnectError(f"Malformed group message: {error}") from error

    def nullable_bytes(self) -> bytes | None:
        size = self.int32()
        return None if size == -1 else self._take(size)

    def work(self) -> tuple[tuple[str, ...], tuple[ConnectorTaskId, ...]]:
        connectors: list[str] = []
        tasks: list[ConnectorTaskId] = []
        for _ in range(max(0, self.int32())):
            connector = self.string()
            for _ in range(max(0, self.int32())):
                number = self.int32()
                if number == _CONNECTOR_TASK:
                    connectors.append(connector)
                else:
                    tasks.append(ConnectorTaskId(connector, number))
        return tuple(connectors), tuple(tasks)
