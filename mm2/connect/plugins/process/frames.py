"""Messages between a worker and the process of a plugin, over a pair of sockets.

length  4 bytes, big-endian
body    CBOR (RFC 8949), see `values`; it never contains code to execute
"""

from __future__ import annotations

import socket
import struct
from typing import Any, Final

from mm2.connect.plugins.process.values import Decoding, Encoding

_LENGTH: Final = struct.Struct(">I")
_LARGEST: Final = 2**31 - 1


class PeerGone(Exception):
    """The other side has closed its end or has died."""


class FrameSocket:
    """One end of the pair: `send` is for one thread at a time, `receive` for another."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._reader = sock.makefile("rb", buffering=1 << 16)
        self._encoding = Encoding()
        self._decoding = Decoding()

    def send(self, message: list[Any]) -> None:
        """Raises PeerGone, and TypeError for a value that cannot be encoded; nothing is sent then."""
        body = self._encoding.encode(message)
        if len(body) > _LARGEST:
            raise TypeError(f"A message of {len(body)} bytes is too large for the process of a plugin")
        try:
            self._socket.sendall(_LENGTH.pack(len(body)) + body)
        except OSError as error:
            raise PeerGone(str(error)) from error

    def receive(self) -> list[Any]:
        """The next message. Raises PeerGone."""
        body = self._read(_LENGTH.unpack(self._read(_LENGTH.size))[0])
        try:
            message = self._decoding.decode(body)
        except ValueError as error:
            raise PeerGone(f"a message that cannot be read: {error}") from error
        if not isinstance(message, list):
            raise PeerGone("a message of another kind")
        return message

    def _read(self, size: int) -> bytes:
        try:
            data: bytes = self._reader.read(size)
        except (OSError, ValueError) as error:
            raise PeerGone(str(error)) from error
        if len(data) < size:
            raise PeerGone("end of the connection")
        return data

    def close(self) -> None:
        """Close the connection; threads blocked in `receive` on both sides get PeerGone."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return
        finally:
            self._socket.close()
