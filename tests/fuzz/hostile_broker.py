"""A broker of one topic whose answers are valid, damaged, too large, endless, late or somebody else's, by a seed.

It speaks the protocol: it reads framed requests, knows their versions, and encodes its answers with kafka-python's
schemas before it damages them. Handshakes are valid most of the time, otherwise no other request would follow.
"""

from __future__ import annotations

import contextlib
import importlib
import random
import socket
import struct
import threading
import time
from collections import Counter
from functools import cache, lru_cache
from types import SimpleNamespace
from typing import Any, Final
from uuid import UUID

from kafka.protocol.consumer import FetchRequest
from kafka.protocol.metadata import ApiVersionsRequest

from mm2.kafka.records.record import Record, encode_batch
from mm2.kafka.wire.primitives import INT32, INT64
from tests.faults.wire import read_frame
from tests.fuzz.mutation import Mutator, seal
from tests.support import bombs

TOPIC: Final = "t"
_ID: Final = UUID(int=1)
_MIB: Final = 1 << 20
_MODULES: Final = ("metadata", "consumer", "admin", "producer", "sasl")
_FETCH: Final = FetchRequest.API_KEY
_HEADER: Final = struct.Struct(">hhi")
_PLAIN: Final = 2
#: Of Fetch answers. Each bomb costs the client as much time as dozens of other answers.
_BOMB_SHARE: Final = 0.05
#: Of Fetch answers: those that report a truncated log, which keeps a client from reading the records (KIP-595).
_DIVERGING_SHARE: Final = 0.1
_NOT_FOUND: Final = ("diverging_epoch", "current_leader", "snapshot_id")
_NAMES: Final[dict[str, Any]] = {
    "name": TOPIC,
    "topic": TOPIC,
    "topic_id": _ID,
    "host": "127.0.0.1",
    "node_id": 1,
    "broker_id": 1,
    "leader_id": 1,
    "controller_id": 1,
    "resource_name": TOPIC,
    "resource_type": 2,
    "group_id": "g",
    "group_state": "Empty",
    "key": "g",
    "preferred_read_replica": -1,
    "error_message": None,
    "high_watermark": 1_000,
    "last_stable_offset": 1_000,
    "offset": 1_000,
    "committed_offset": 5,
}


@cache
def response_classes() -> dict[int, Any]:
    """kafka-python's class of each answer, by API key."""
    found: dict[int, Any] = {}
    for module in _MODULES:
        for name, one in vars(importlib.import_module(f"kafka.protocol.{module}")).items():
            if name.endswith("Response") and isinstance(getattr(one, "API_KEY", None), int):
                found.setdefault(one.API_KEY, one)
    return found


@cache
def record_sets() -> tuple[bytes, ...]:
    """What a Fetch answer contains: `_PLAIN` valid ones, then one of each kind of bomb."""
    plain = [Record(b"k%d" % index, b"v" * 50, (("h", b"x"),), 1000 + index) for index in range(20)]
    return (
        bytes(encode_batch(plain)),
        bytes(encode_batch(plain, codec="zstd")),
        bytes(bombs.zeros("zstd", 512 * _MIB)),
        bytes(bombs.zeros("gzip", 128 * _MIB)),
        bytes(bombs.zeros("lz4", 128 * _MIB)),
        bytes(bombs.zeros("snappy", 128 * _MIB)),
        bytes(bombs.many_records()),
        bytes(bombs.many_headers(10_000_000)),
        bytes(bombs.claimed_count()),
        bytes(bombs.message_set(bombs.GZIP, bombs.gzip_zeros(128 * _MIB))),
    )


@lru_cache(maxsize=1024)
def valid_answer(key: int, version: int, port: int, record_set: int, *, diverges: bool = False) -> bytes:
    """A valid answer after the correlation id. Encoding it takes longer than all the rest; ``record_set`` is an index."""
    response = response_classes()[key]
    content = _Content(port, record_sets()[record_set], diverges=diverges)
    values = {field.name: content.value(field) for field in response._struct._fields}
    if key == ApiVersionsRequest.API_KEY:
        values["api_keys"] = [
            response.ApiVersion(api_key=key, min_version=one.min_version, max_version=one.max_version)
            for key, one in response_classes().items()
        ]
    body = bytes(response(version=version, **values).encode())
    is_flexible = response.flexible_version_q(version) and key != ApiVersionsRequest.API_KEY
    return (b"\x00" if is_flexible else b"") + body


def fetch_offset(frame: bytes) -> int:
    """The offset of the first partition in a Fetch request; 0 if it lists none."""
    (version,) = struct.unpack_from(">h", frame, 2)
    request = FetchRequest.decode(memoryview(frame), version=version, header=True)
    offsets = [one.fetch_offset for topic in request.topics for one in topic.partitions]
    return max(0, offsets[0]) if offsets else 0


class _Fetching(threading.local):
    """The Fetch request that a thread answers."""

    offset = 0


class HostileBroker:
    """Listens at ``port`` from construction to `close`. ``answers`` counts what was sent, by kind.

    ``honesty`` is the additional share of valid answers to everything but Fetch: the larger, the further a client gets
    that has to succeed with several requests in a row.
    """

    def __init__(self, seed: int, honesty: float = 0.0) -> None:
        self.honesty = honesty
        self._random = random.Random(seed)
        record_sets()  # takes a second
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self.answers: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._fetching = _Fetching()
        self._kinds = (
            (self._valid, 24),
            (self._damaged, 60),
            (self._huge_array, 20),
            (self._cut, 10),
            (self._other_id, 4),
            (self._claimed_size, 6),
            (self._endless_integer, 2),
            (self._noise, 6),
            (self._dripping, 0.4),
            (self._closing, 4),
            (self._endless, 0.05),
        )
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Stop listening. Connections end with their clients."""
        self._closed.set()
        self._listener.close()

    # -- connections

    def _accept(self) -> None:
        while not self._closed.is_set():
            with contextlib.suppress(OSError):
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError, struct.error), connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(30)
            while (frame := read_frame(connection)) is not None:
                key, version, correlation_id = _HEADER.unpack_from(frame)
                self._fetching.offset = fetch_offset(frame) if key == _FETCH else 0
                with self._lock:
                    act = self._choose(key)
                    self.answers[act.__name__.strip("_")] += 1
                if not act(connection, key, version, correlation_id):
                    return

    def _choose(self, key: int) -> Any:
        if key == ApiVersionsRequest.API_KEY and self._random.random() < 0.97:
            return self._valid
        if key != _FETCH and self.honesty and self._random.random() < self.honesty:
            return self._valid
        kinds, weights = zip(*self._kinds, strict=True)
        return self._random.choices(kinds, weights)[0]

    def _answer(self, key: int, version: int) -> bytes:
        """A valid answer after the correlation id. Records begin at the offset that was requested."""
        record_set = self._random.randrange(_PLAIN)
        if key == _FETCH and self._random.random() < _BOMB_SHARE:
            record_set = self._random.randrange(_PLAIN, len(record_sets()))
        diverges = key == _FETCH and self._random.random() < _DIVERGING_SHARE
        answer = valid_answer(key, version, self.port, record_set, diverges=diverges)
        if key != _FETCH:
            return answer
        start = answer.index(record_sets()[record_set])
        return answer[:start] + INT64.pack(self._fetching.offset) + answer[start + INT64.size :]

    # -- kinds of answers; False closes the connection

    def _send(self, connection: socket.socket, correlation_id: int, body: bytes) -> bool:
        connection.sendall(INT32.pack(len(body) + 4) + INT32.pack(correlation_id) + body)
        return True

    def _valid(self, connection: socket.socket, key: int, version: int, correlation_id: int) -> bool:
        return self._send(connection, correlation_id, self._answer(key, version))

    def _damaged(self, connection: socket.socket, key: int, version: int, correlation_id: int) -> bool:
        data = Mutator([self._answer(key, version)], self._random).next()
        if key == _FETCH and self._random.random() < 0.5:
            seal(data)
        return self._send(connection, correlation_id, bytes(data))

    def _huge_array(self, connection: socket.socket, key: int, version: int, correlation_id: int) -> bool:
        data = bytearray(self._answer(key, version))
        at = self._random.randrange(len(data))
        number = self._random.choice(
            (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x07", b"\x7f\xff", b"\xfe\xff\xff\xff\x0f")
        )
        data[at : at + self._random.choice((1, len(number)))] = number
        return self._send(connection, correlation_id, bytes(data))

    def _cut(self, connection: socket.socket, key: int, version: int, correlation_id: int) -> bool:
        data = self._answer(key, version)
        return self._send(connection, correlation_id, data[: self._random.randrange(len(data))])

    def _other_id(self, connection: socket.socket, key: int, version: int, correlation_id: int) -> bool:
        return self._send(
            connection, correlation_id + self._random.choice((-1, 1, 1 << 20)), self._answer(key, version)
        )

    def _claimed_size(self, connection: socket.socket, key: int, version: int, correlation_id: int) -> bool:
        size = self._random.choice((2**31 - 1, 256 * _MIB, 200 * _MIB, 32 * _MIB, 0, 3, -1, -(2**31)))
        connection.sendall(INT32.pack(size) + INT32.pack(correlation_id) + self._answer(key, version))
        return False

    def _endless_integer(self, connection: socket.socket, key: int, version: int, correlation_id: int) -> bool:
        data = self._answer(key, version)
        at = self._random.randrange(len(data))
        return self._send(connection, correlation_id, data[:at] + b"\xff" * _MIB + data[at:])

    def _noise(self, connection: socket.socket, key: int, version: int, correlation_id: int) -> bool:
        del key, version
        noise = self._random.choice((b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x15\x03\x01\x00\x02\x02\x28", None))
        if noise is not None:
            connection.sendall(noise)
            return False
        return self._send(connection, correlation_id, self._random.randbytes(self._random.randrange(2_000)))

    def _dripping(self, connection: socket.socket, key: int, version: int, correlation_id: int) -> bool:
        """One byte after another, for longer than the client waits."""
        data = self._answer(key, version)
        for byte in INT32.pack(len(data) + 4) + INT32.pack(correlation_id) + data:
            connection.sendall(bytes((byte,)))
            time.sleep(0.05)
        return True

    def _closing(self, connection: socket.socket, key: int, version: int, correlation_id: int) -> bool:
        del connection, key, version, correlation_id
        return False

    def _endless(self, connection: socket.socket, key: int, version: int, correlation_id: int) -> bool:
        """As many of the smallest items as 64 MB hold, in a frame of a size that may be accepted."""
        data = self._answer(key, version)
        size = self._random.choice((64 * _MIB, 31 * _MIB, 7 * _MIB))
        at = self._random.randrange(len(data))
        item = data[at : at + 30]
        number = self._random.choice((b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x07"))
        return self._send(connection, correlation_id, data[:at] + number + item * (size // max(1, len(item))))


class _Content:
    """Plausible values for the fields of an answer."""

    def __init__(self, port: int, records: bytes, *, diverges: bool) -> None:
        self._fixed = {**_NAMES, "port": port, "records": records}
        self._absent = () if diverges else _NOT_FOUND

    def value(self, field: Any) -> Any:
        if field.name in self._absent:
            return field.default
        inner = getattr(field, "array_of", None)
        if inner is not None and getattr(inner, "_fields", None):
            return [self._struct(inner)]
        if inner is not None:
            return [_plain(inner, field.name)]
        if getattr(field, "_fields", None):
            return self._struct(field)
        if field.name.endswith("authorized_operations"):
            return set()
        if field.name in self._fixed:
            return self._fixed[field.name]
        return field.default if getattr(field, "_type", None) is None else _plain(field, field.name)

    def _struct(self, struct_: Any) -> SimpleNamespace:
        return SimpleNamespace(**{one.name: self.value(one) for one in struct_._fields}, tags=None)


def _plain(field: Any, name: str) -> Any:
    """A value of a primitive type."""
    kind = str(getattr(field, "_type", field))
    if "UUID" in kind:
        return _ID
    if "String" in kind:
        return TOPIC
    if "Bytes" in kind:
        return b"\x00\x01"
    if "Boolean" in kind:
        return False
    return 1 if name.endswith(("nodes", "replicas")) else 0
