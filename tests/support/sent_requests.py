"""Records the requests that Kafka clients of this process send, as bytes on their connections."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pytest

from mm2.kafka.client.stream import Buffer, Stream

_HEADER: Final = struct.Struct(">ihhih")  # size, API key, version, correlation id, length of the client id


@dataclass(frozen=True)
class SentRequest:
    """One request: its header, and its body with the tagged fields of a flexible header (KIP-482)."""

    api_key: int
    version: int
    client_id: str
    body: bytes

    @classmethod
    def of(cls, frame: bytes) -> SentRequest:
        _, api_key, version, _, length = _HEADER.unpack_from(frame)
        start, end = _HEADER.size, _HEADER.size + max(0, length)
        return cls(api_key, version, frame[start:end].decode(), frame[end:])

    def decoded(self, kind: Any) -> Any:
        """The request as an object of this class of kafka-python."""
        tags = 1 if kind.flexible_version_q(self.version) else 0
        return kind.decode(memoryview(self.body)[tags:], version=self.version)


class SentRequests:
    """All requests so far, of all threads."""

    def __init__(self) -> None:
        self.all: list[SentRequest] = []

    def of(self, kind: Any, client_id: str | None = None) -> list[Any]:
        """The requests of one kind in order, decoded; only those of one client."""
        found = [one for one in list(self.all) if one.api_key == kind.API_KEY]
        return [one.decoded(kind) for one in found if client_id is None or one.client_id == client_id]


@contextmanager
def recorded() -> Iterator[SentRequests]:
    """Record what is sent inside the `with` block; requests are sent unchanged."""
    requests, write = SentRequests(), Stream.write

    def recording(stream: Stream, buffers: Sequence[Buffer], deadline: float) -> None:
        requests.all.append(SentRequest.of(b"".join(bytes(buffer) for buffer in buffers)))
        write(stream, buffers, deadline)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stream, "write", recording)
        yield requests
