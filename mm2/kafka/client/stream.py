"""Blocking reads and writes on one socket, plain or TLS, with a deadline on every wait."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import time
from collections.abc import Sequence
from typing import Final

from mm2.kafka.errors import DisconnectedFailure, TimeoutFailure, TlsFailure

Buffer = bytes | bytearray | memoryview

_IOV_MAX: Final = os.sysconf("SC_IOV_MAX")
_TLS_JOIN_BYTES: Final = 16_384  # one TLS record


def remaining_ms(deadline: float) -> int:
    """Whole milliseconds until a `time.monotonic()` deadline, rounded up, for poll; 0 when it has passed."""
    return max(0, -int((time.monotonic() - deadline) * 1000 // 1))


class Stream:
    """A connected non-blocking socket that is used as a blocking one. `who` names the peer in messages."""

    def __init__(self, sock: socket.socket, who: str) -> None:
        self.sock = sock
        self._tls = sock if isinstance(sock, ssl.SSLSocket) else None
        self._who = who
        self._poll = select.poll()
        self._poll.register(sock.fileno(), 0)
        self._has_read = False
        self.closed = False

    def fileno(self) -> int:
        return self.sock.fileno()

    def has_pending(self) -> bool:
        """True when decrypted bytes wait inside the TLS layer, where poll cannot see them."""
        return self._tls is not None and not self.closed and self._tls.pending() > 0

    def is_idle(self) -> bool:
        """True when the peer has neither sent data nor closed the connection, as expected between two requests.

        If data is available, one byte of it is consumed: the stream is unusable afterwards.
        """
        if self.closed:
            return False
        try:
            self.sock.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except (OSError, ValueError):
            return False
        return False

    def read_into(self, view: memoryview, deadline: float, *, rest_s: float = 0.0) -> None:
        """Fill the whole view. Raises TimeoutFailure, DisconnectedFailure or TlsFailure.

        Any failure closes the stream, except a timeout before the first byte when `rest_s` is given. `rest_s` is the
        number of seconds that the rest may take after the first byte, if that is later than the deadline.
        """
        position = 0
        size = len(view)
        try:
            while position < size:
                try:
                    count = self.sock.recv_into(view[position:])
                except (BlockingIOError, ssl.SSLWantReadError):
                    self._wait_or_fail(select.POLLIN, deadline, "sent nothing")
                except ssl.SSLWantWriteError:
                    self._wait_or_fail(select.POLLOUT, deadline, "took no bytes")
                else:
                    if count == 0:
                        raise DisconnectedFailure(f"The {self._who} closed the connection.")
                    if rest_s and position == 0:
                        deadline = max(deadline, time.monotonic() + rest_s)
                    position += count
                    self._has_read = True
        except (OSError, ValueError) as error:
            raise self._failure(error) from error
        except TimeoutFailure:
            if position or not rest_s:
                self.close()
            raise
        except DisconnectedFailure:
            self.close()
            raise

    def write(self, buffers: Sequence[Buffer], deadline: float) -> None:
        """Send all buffers in order without joining them (TLS: small neighbours are joined into one record).

        Raises as `read_into` does; after a failure an unknown part has been sent and the stream is closed.
        """
        views = [view for view in map(_byte_view, buffers) if view]
        try:
            if self._tls is not None:
                for piece in _joined(views):
                    self._send_all(piece, deadline)
            else:
                self._send_vectors(views, deadline)
        except (OSError, ValueError) as error:
            raise self._failure(error) from error
        except TimeoutFailure:
            self.close()
            raise

    def abort(self) -> None:
        """End the connection from any thread: a call that is blocked on it fails at once. `close` must still follow."""
        with contextlib.suppress(OSError, ValueError):
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.sock.close()

    def _send_vectors(self, views: list[memoryview], deadline: float) -> None:
        first = 0
        while first < len(views):
            try:
                sent = self.sock.sendmsg(views[first : first + _IOV_MAX])
            except BlockingIOError:
                self._wait_or_fail(select.POLLOUT, deadline, "took no bytes")
                continue
            while sent:
                size = len(views[first])
                if sent < size:
                    views[first] = views[first][sent:]
                    break
                sent -= size
                first += 1

    def _send_all(self, piece: Buffer, deadline: float) -> None:
        view = memoryview(piece)
        while view:
            try:
                view = view[self.sock.send(view) :]
            except (BlockingIOError, ssl.SSLWantWriteError):
                self._wait_or_fail(select.POLLOUT, deadline, "took no bytes")
            except ssl.SSLWantReadError:
                self._wait_or_fail(select.POLLIN, deadline, "sent no answer")

    def _wait(self, events: int, deadline: float) -> bool:
        self._poll.modify(self.sock.fileno(), events)
        return bool(self._poll.poll(remaining_ms(deadline)))

    def _wait_or_fail(self, events: int, deadline: float, what: str) -> None:
        if not self._wait(events, deadline):
            raise TimeoutFailure(f"The {self._who} {what} before the timeout.")

    def _failure(self, error: Exception) -> Exception:
        """The failure for an error of the socket; a closed socket raises ValueError."""
        was_closed = self.closed or self.sock.fileno() < 0
        self.close()
        if was_closed or isinstance(error, ValueError):
            return DisconnectedFailure(f"The connection to the {self._who} was closed on our side.")
        if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            # With TLS 1.3 the peer may reject our certificate before its first byte. Later errors are broken connections.
            kind = DisconnectedFailure if self._has_read else TlsFailure
            return kind(f"The {self._who} ended the TLS session: {tls_reason(error)}.")
        reason = os.strerror(error.errno).lower() if isinstance(error, OSError) and error.errno else "end of stream"
        return DisconnectedFailure(f"The connection to the {self._who} broke: {reason}.")


def tls_reason(error: ssl.SSLError) -> str:
    """OpenSSL's reason for an error, in terms that an administrator can search for."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message.rstrip(".")
    return error.reason.replace("_", " ").lower().rstrip(".") if error.reason else str(error).rstrip(".")


def _byte_view(buffer: Buffer) -> memoryview:
    view = memoryview(buffer)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def _joined(views: Sequence[memoryview]) -> list[Buffer]:
    """The same bytes with small neighbours joined up to the size of a TLS record.

    Each send would otherwise use a TLS record of its own.
    """
    pieces: list[Buffer] = []
    small: list[memoryview] = []
    small_bytes = 0
    for view in views:
        if small and small_bytes + len(view) > _TLS_JOIN_BYTES:
            pieces.append(b"".join(small))
            small, small_bytes = [], 0
        if len(view) > _TLS_JOIN_BYTES:
            pieces.append(view)
        else:
            small.append(view)
            small_bytes += len(view)
    if small:
        pieces.append(b"".join(small))
    return pieces
