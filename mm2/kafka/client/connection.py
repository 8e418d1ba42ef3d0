"""One blocking connection to one broker. Every wait has a deadline.

Requests are kafka-python's schema objects; the hot path sends and receives whole frames without them. A connection is
used by one thread at a time; only `abort` may be called from another.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import structlog
from kafka.protocol.metadata import ApiVersionsRequest
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from mm2 import __version__
from mm2.kafka.auth.sasl import SaslError, login
from mm2.kafka.client.answer_checks import check_fields, check_frame, decode, largest_answer
from mm2.kafka.client.dial import NO_KEY_HINT, dial
from mm2.kafka.client.stream import Buffer, Stream
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import (
    AuthenticationFailure,
    BrokerFailure,
    CorruptBatch,
    DisconnectedFailure,
    TimeoutFailure,
    TlsFailure,
    UnreadableAnswer,
    UnsupportedVersion,
    in_message,
)
from mm2.kafka.settings.client_settings import ClientSettings, address_text
from mm2.kafka.wire import metadata
from mm2.kafka.wire.primitives import Reader

log = structlog.get_logger("mm2.kafka.connection")

_SIZE: Final = struct.Struct(">i")
_REAUTHENTICATE_AT: Final = 0.85  # of the session lifetime; Java reauthenticates between 85 and 95 %
_MIN_SESSION_MS: Final = 1_000
_ONE_AT_A_TIME: Final = threading.Lock()
_GROWTH_BYTES: Final = 8 << 20  # of a receive buffer, before more of a frame has arrived


@dataclass(frozen=True, slots=True)
class _InFlight:
    correlation_id: int
    response_class: Any
    name: str


class Connection:
    """An open connection with negotiated API versions, authenticated if the settings require it.

    Any failure closes it, with one exception: a timeout before the first byte of an answer (`receive`, `receive_frame`)
    leaves the connection usable, so that the caller can wait for a long poll in slices.
    """

    def __init__(self, stream: Stream, host: str, port: int, settings: ClientSettings, who: str) -> None:
        self.host = host
        self.port = port
        self.client_id = settings.client_id
        self.who = who
        self._stream = stream
        self._settings = settings
        self._versions: dict[int, tuple[int, int]] = {}
        self._topics = metadata.KnownTopics()
        self._in_flight: deque[_InFlight] = deque()
        self._correlation_id = 0
        self._reauthenticate_at: float | None = None
        self._answered = False
        self._size = bytearray(_SIZE.size)

    @classmethod
    def open(
        cls, host: str, port: int, settings: ClientSettings, *, timeout_s: float, cluster: str = "", failures: int = 0
    ) -> Self:
        """Connect, negotiate versions and authenticate under one deadline.

        `cluster` only names the cluster in messages. `failures`: see `dial`.

        Raises the ConnectFailure family, AuthenticationFailure or UnsupportedVersion, each within `timeout_s` seconds.
        """
        deadline = time.monotonic() + timeout_s
        who = f"broker {in_message(address_text(host, port))}" + (f" of cluster {cluster}" if cluster else "")
        stream = dial(host, port, settings, deadline=deadline, who=who, failures=failures)
        connection = cls(stream, host, port, settings, who)
        try:
            connection._negotiate(deadline)
            if settings.sasl is not None:
                connection._authenticate(deadline)
        except BaseException:
            connection.close()
            raise
        return connection

    @property
    def closed(self) -> bool:
        return self._stream.closed

    @property
    def in_flight(self) -> int:
        """Number of requests sent with `send` whose answer has not been received."""
        return len(self._in_flight)

    @property
    def sock(self) -> socket.socket:
        """The non-blocking socket, an `ssl.SSLSocket` with TLS, for callers that drive it from their own event loop."""
        return self._stream.sock

    def fileno(self) -> int:
        return self._stream.fileno()

    def has_pending(self) -> bool:
        """True when received bytes wait in the TLS layer, which poll on `fileno` cannot see."""
        return self._stream.has_pending()

    def is_stale(self) -> bool:
        """True when an idle connection is unusable: the broker closed it or sent data without a request."""
        return not self._stream.is_idle()

    def next_correlation_id(self) -> int:
        """A new id for a frame of the caller; ids are unique within the connection until they wrap at 2³¹."""
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        return self._correlation_id

    def version_of(self, request: Any, max_version: int | None = None) -> int:
        """Newest version of a request class (or object) that client and broker support, at most `max_version`.

        Limits of a request object (`min_version`, `max_version` at construction) apply too. Raises UnsupportedVersion.
        """
        low, high = request.valid_versions
        if not isinstance(request, type):
            low = max(low, request._min_version or 0)  # noqa: SLF001 - kafka-python offers no other way to read it
            high = min(high, high if request._max_version is None else request._max_version)  # noqa: SLF001
        if max_version is not None:
            high = min(high, max_version)
        broker_low, broker_high = self._versions.get(request.API_KEY, (0, -1))
        version = int(min(high, broker_high))
        if version < low or version < broker_low:
            offer = f"offers versions {broker_low} to {broker_high} of" if broker_high >= 0 else "does not know"
            wanted = f"wanted is one from {low} to {high}" if low <= high else f"wanted is at most {high}"
            raise UnsupportedVersion.of(
                ErrorCode.UNSUPPORTED_VERSION,
                f"it {offer} {_api_name(request)}, {wanted}",
                subject=self.who[0].upper() + self.who[1:],
            )
        return version

    def request(self, request: Any, *, timeout_s: float | None = None) -> Any:
        """Send a request and return its answer (None for Produce with acks 0). No other request may be in flight.

        `timeout_s` defaults to `request.timeout.ms`. The caller checks the error codes in the answer. Raises the
        ConnectFailure family. A timeout closes the connection, because the answer could still arrive.
        """
        if self._in_flight:
            raise RuntimeError("request() while answers are outstanding: use send() and receive()")
        deadline = time.monotonic() + (self._default_timeout_s if timeout_s is None else timeout_s)
        self.maybe_reauthenticate()
        if time.monotonic() >= deadline:
            raise TimeoutFailure(
                f"The timeout of a {_api_name(request)} request to the {self.who} expired before it was sent."
            )
        version = request.API_VERSION
        return self._exchange(request, self.version_of(request) if version is None else version, deadline)

    def send(self, request: Any) -> int:
        """Send a request without waiting for the answer and return its id.

        `receive` returns the answers in this order.
        """
        self.maybe_reauthenticate()
        version = request.API_VERSION
        return self._send(
            request,
            self.version_of(request) if version is None else version,
            time.monotonic() + self._default_timeout_s,
        )

    def receive(self, *, timeout_s: float) -> Any:
        """Answer of the oldest request in flight.

        Raises TimeoutFailure when its first byte does not come within `timeout_s`.
        """
        if not self._in_flight:
            raise RuntimeError("receive() with nothing in flight")
        return self._receive(time.monotonic() + timeout_s)

    def send_buffers(self, buffers: Sequence[Buffer]) -> None:
        """Send one complete frame, size and header included, from several buffers.

        No buffer is copied, except small ones with TLS. Returns when the kernel has accepted all bytes; raises after
        `request.timeout.ms` without free space in its send buffer.
        """
        self._stream.write(buffers, time.monotonic() + self._default_timeout_s)

    def receive_frame(self, buffer: bytearray, *, timeout_s: float) -> memoryview:
        """Read one frame into `buffer` and return a view of it, without its size prefix.

        The buffer grows when needed, so no view of an earlier frame may exist. `timeout_s` is the wait for the first
        byte; the rest of the frame has `request.timeout.ms`. Raises TimeoutFailure (connection still usable when no
        byte had come), DisconnectedFailure, or CorruptBatch for a size that is negative or above the limit.
        """
        size = self._read_size(time.monotonic() + timeout_s, self._settings.max_frame_bytes)
        self._read_frame(buffer, size, time.monotonic() + self._default_timeout_s)
        self._answered = True
        return memoryview(buffer)[:size]

    def _read_frame(self, buffer: bytearray, size: int, deadline: float) -> None:
        """Read so many bytes to the start of `buffer`, which grows when needed."""
        received = 0
        while received < size:
            if received == len(buffer) or not buffer:
                self._grow(buffer, size)
            # In steps: the size is only a claim, and memory is taken for what has arrived.
            stop = min(size, len(buffer))
            with memoryview(buffer) as whole, whole[received:stop] as view:
                self._stream.read_into(view, deadline)
            received = stop

    def _grow(self, buffer: bytearray, size: int) -> None:
        wanted = min(size, len(buffer) + _GROWTH_BYTES)
        doubled = min(2 * len(buffer), self._settings.max_frame_bytes, len(buffer) + _GROWTH_BYTES)
        try:
            buffer.extend(bytes(max(wanted, doubled) - len(buffer)))
        except BufferError:
            self.close()
            raise

    def maybe_reauthenticate(self, *, timeout_s: float | None = None) -> None:
        """Authenticate again on the live connection after 85 % of the session lifetime (KIP-368).

        Does nothing while answers of `send` are outstanding. Users of raw frames may call it only when they have none
        outstanding. `timeout_s` defaults to `request.timeout.ms`; a failure closes the connection.
        """
        if self._reauthenticate_at is None or self._in_flight or time.monotonic() < self._reauthenticate_at:
            return
        log.debug("reauthenticating", broker=self.who)
        try:
            self._authenticate(time.monotonic() + (self._default_timeout_s if timeout_s is None else timeout_s))
        except BaseException:
            self.close()
            raise

    @property
    def session_is_over(self) -> bool:
        """True after the session lifetime: the broker may close the connection unless it is authenticated again."""
        return self._reauthenticate_at is not None and time.monotonic() >= self._reauthenticate_at

    def abort(self) -> None:
        """Abort the connection from any thread: a caller that is blocked on it gets a DisconnectedFailure."""
        self._stream.abort()

    def close(self) -> None:
        self._in_flight.clear()
        self._stream.close()

    @property
    def _default_timeout_s(self) -> float:
        return self._settings.request_timeout_ms / 1000

    def _exchange(self, request: Any, version: int, deadline: float) -> Any:
        self._send(request, version, deadline)
        if not self._in_flight:
            return None
        try:
            return self._receive(deadline)
        except BaseException:
            self.close()
            raise

    def _send(self, request: Any, version: int, deadline: float) -> int:
        correlation_id = self.next_correlation_id()
        pinned = request.API_VERSION is not None
        request.API_VERSION = version
        request.with_header(correlation_id=correlation_id, client_id=self.client_id)
        frame = request.encode(header=True, framed=True)
        response_class = response_class_of(request)
        if not pinned:
            # The same object may be sent again to a broker that supports other versions.
            request._version = None  # noqa: SLF001 - the property cannot be unset
        try:
            self._stream.write((frame,), deadline)
        except (DisconnectedFailure, TlsFailure) as error:
            raise self._explained(error) from error
        except BaseException:
            self.close()
            raise
        if request.expect_response():
            self._in_flight.append(_InFlight(correlation_id, response_class, _api_name(request)))
        return correlation_id

    def _receive(self, deadline: float) -> Any:
        oldest = self._in_flight[0]
        try:
            limit = min(largest_answer(oldest.name), self._settings.max_frame_bytes)
            size = self._read_size(deadline, limit, f"an answer to a {oldest.name} request")
        except TimeoutFailure as error:
            raise TimeoutFailure(f"The {self.who} did not answer a {oldest.name} request in time.") from error
        except (DisconnectedFailure, TlsFailure) as error:
            raise self._explained(error) from error
        buffer = bytearray()
        self._read_frame(buffer, size, max(deadline, time.monotonic() + self._default_timeout_s))
        frame = memoryview(buffer)[:size]
        self._in_flight.popleft()
        try:
            check_frame(frame)
            correlation_id, position = _read_header(frame, oldest.response_class)
            if correlation_id == oldest.correlation_id:
                response = _decoded(frame[position:], oldest.response_class, self._topics)
                self._answered = self._answered or oldest.name not in _HANDSHAKES
                return response
        except Exception as error:  # any bytes may have been sent, and the decoder asserts some of its assumptions
            self.close()
            reason = f": {error}" if isinstance(error, CorruptBatch) else ""
            raise UnreadableAnswer(
                f"The {self.who} sent an answer to a {oldest.name} request that cannot be read{reason}."
            ) from error
        raise self.out_of_turn(correlation_id, oldest.correlation_id)

    def out_of_turn(self, answered: int | None, due: int) -> UnreadableAnswer:
        """Close the connection, whose state is unknown after an answer with another correlation id than the one that was due.

        Returns the failure to raise.
        """
        self.close()
        return UnreadableAnswer(f"The {self.who} answered request {answered} when {due} was due.")

    def _read_size(self, deadline: float, limit: int, what: str = "a frame") -> int:
        """Size of the next frame, at most ``limit``. A TimeoutFailure before its first byte leaves the connection open."""
        if self.closed:
            raise DisconnectedFailure(f"The connection to the {self.who} is closed.")
        self._stream.read_into(memoryview(self._size), deadline, rest_s=self._default_timeout_s)
        (size,) = _SIZE.unpack(self._size)
        if 0 <= size <= limit and not self._looks_like_tls():
            return int(size)
        self.close()
        if self._looks_like_tls():
            raise TlsFailure(f"The {self.who} uses TLS on this port: set security.protocol to SSL or SASL_SSL.")
        if bytes(self._size) == b"HTTP":
            raise UnreadableAnswer(f"The {self.who} is a web server.")
        raise UnreadableAnswer(f"The {self.who} sent {what} of {size} bytes, the limit is {limit}.")

    def _looks_like_tls(self) -> bool:
        """Whether the first frame starts with a TLS alert or handshake record."""
        return (
            not self._answered and self._settings.tls is None and self._size[0] in {0x15, 0x16} and self._size[1] == 3
        )

    def _explained(self, error: DisconnectedFailure | TlsFailure) -> DisconnectedFailure | TlsFailure:
        """The same failure; with the usual cause if the broker closed the connection before its first answer."""
        tls = self._settings.tls
        if self._answered:
            return error
        if isinstance(error, TlsFailure):
            # With TLS 1.3 the broker checks our certificate after our side of the handshake has finished.
            return TlsFailure(f"{error}{NO_KEY_HINT}") if tls is not None and not tls.has_key else error
        if not self._versions:
            hint = (
                "without any response, as a listener with another security.protocol or a server other than Kafka does"
            )
        elif self._settings.sasl is None:
            hint = "at the first request, as a listener that requires SASL does: check the port and security.protocol"
        else:
            return error
        return DisconnectedFailure(f"The {self.who} closed the connection {hint}.")

    def _negotiate(self, deadline: float) -> None:
        """Request the versions of all APIs.

        A broker that does not support our version of ApiVersions answers in version 0 with UNSUPPORTED_VERSION and the versions
        that it supports (KIP-511).
        """
        version = ApiVersionsRequest.max_version
        while True:
            request = ApiVersionsRequest(client_software_name="mm2-python", client_software_version=__version__)
            response = self._exchange(request, version, deadline)
            code = response.error_code
            if code == ErrorCode.UNSUPPORTED_VERSION and version > 0:
                offered = [api.max_version for api in response.api_keys if api.api_key == ApiVersionsRequest.API_KEY]
                version = min(offered[0], version - 1) if offered else 0
                continue
            if code:
                raise BrokerFailure.of(code, subject=f"ApiVersions at {self.who}")
            self._versions = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
            return

    def _authenticate(self, deadline: float) -> None:
        """SaslHandshake and SaslAuthenticate (KIP-43, KIP-152); stores the session lifetime (KIP-368)."""
        sasl = self._settings.sasl
        assert sasl is not None  # noqa: S101 - only called with SASL settings
        handshake = SaslHandshakeRequest(mechanism=sasl.mechanism)
        answer = self._exchange(handshake, self.version_of(SaslHandshakeRequest), deadline)
        if answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            enabled = in_message(", ".join(answer.mechanisms)) or "none"
            raise AuthenticationFailure(
                f"The {self.who} does not accept the SASL mechanism {sasl.mechanism}, enabled there: {enabled}."
            )
        if answer.error_code == ErrorCode.ILLEGAL_SASL_STATE:
            raise AuthenticationFailure(
                f"The {self.who} does not use SASL on this port: check the port and security.protocol."
            )
        if answer.error_code:
            raise AuthenticationFailure(
                str(BrokerFailure.of(answer.error_code, subject=f"SASL handshake with {self.who}"))
            )
        version = self.version_of(SaslAuthenticateRequest)
        try:
            mechanism = login(sasl, self.host, timeout_s=max(0.1, deadline - time.monotonic()))
            lifetime_ms = 0
            while not mechanism.is_done():
                answer = self._exchange(SaslAuthenticateRequest(auth_bytes=mechanism.auth_bytes()), version, deadline)
                if answer.error_code:
                    message = answer.error_message or BrokerFailure.of(answer.error_code).message
                    raise SaslError(message if mechanism.refusal in message else f"{message}, {mechanism.refusal}")
                lifetime_ms = answer.session_lifetime_ms
                mechanism.receive(bytes(answer.auth_bytes))
            if not mechanism.is_authenticated():
                raise SaslError("the broker did not prove that the login succeeded")
        except SaslError as error:
            text = in_message(str(error).rstrip("."))
            raise AuthenticationFailure(
                f"Login with SASL {sasl.mechanism} at the {self.who} failed: {text}."
            ) from error
        self._reauthenticate_at = None
        if lifetime_ms > 0:
            self._reauthenticate_at = time.monotonic() + max(lifetime_ms, _MIN_SESSION_MS) * _REAUTHENTICATE_AT / 1000


_HANDSHAKES: Final = frozenset({"ApiVersions", "SaslHandshake", "SaslAuthenticate"})


def _api_name(request: Any) -> str:
    return str(request.name).removesuffix("Request")


def response_class_of(request: Any) -> Any:
    """The class that decodes the answer to a request whose header and version are set.

    kafka-python creates the class of a version on first use and registers it by a weak reference only. Two concurrent
    threads may create two classes. If the registered one is garbage-collected, this process can never decode an answer
    of that kind again. A lock prevents that.
    """
    with _ONE_AT_A_TIME:
        return request.header.get_response_class()


def _decoded(body: memoryview, response_class: Any, topics: metadata.KnownTopics) -> Any:
    if response_class.API_KEY == metadata.API_KEY:
        return metadata.decode(body, response_class._class_version, topics)  # noqa: SLF001 - as in _read_header
    response = decode(body, response_class)
    check_fields(response)
    return response


def _read_header(frame: memoryview, response_class: Any) -> tuple[int, int]:
    """Correlation id and the position of the body.

    Flexible versions have tagged fields between header and body, which are skipped. ApiVersions answers never have
    them, so that any client can read them.
    """
    (correlation_id,) = _SIZE.unpack_from(frame)
    reader = Reader(frame, _SIZE.size)
    # The version of a versioned class has no public name.
    if response_class.API_KEY != ApiVersionsRequest.API_KEY and response_class.flexible_version_q(
        response_class._class_version  # noqa: SLF001
    ):
        reader.tags()
    return correlation_id, reader.at
