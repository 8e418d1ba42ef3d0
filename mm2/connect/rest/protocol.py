"""HTTP/1.1 of uvicorn with Jetty's additions: stalled connections are closed, protocol errors are JSON and logged."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from mm2.connect.rest.access_log import LOGGER, log, request_line
from mm2.connect.rest.failures import error_answer

#: Of request line and headers together; Jetty's default.
MAX_HEADER_BYTES: Final = 8 * 1024
#: Of messages on a WebSocket.
MAX_MESSAGE_BYTES: Final = 1024 * 1024
#: Time for a client to end its side of a TLS connection when the server stops. asyncio would wait for 30 s.
_GOODBYE_S: Final = 1.0


def stalling_protocol(idle_timeout_s: float) -> type[H11Protocol]:
    """A protocol class for uvicorn that closes a connection when a request stays incomplete or a response unread.

    The time counts from the last byte. Bodies are not included: :class:`mm2.connect.rest.guard.Guard` reads them.
    """

    class StallingProtocol(H11Protocol):
        _stalled: asyncio.TimerHandle | None = None
        _is_ending = False

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._await_bytes()

        def connection_lost(self, exc: Exception | None) -> None:
            self._forget()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            try:
                super().data_received(data)
            except h11.RemoteProtocolError:  # data after a rejected request
                self.transport.close()
            if self.conn.their_state is h11.IDLE:
                self._await_bytes()
            else:
                self._forget()

        def shutdown(self) -> None:
            super().shutdown()
            self._is_ending = True
            _cut_off_soon(self.loop, self.transport)

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self._is_ending:
                _cut_off_soon(self.loop, self.transport)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._await_bytes()

        def resume_writing(self) -> None:
            super().resume_writing()
            self._forget()

        def send_400_response(self, msg: str) -> None:
            # When the error is in the body, a response may have been started already.
            if self.conn.our_state not in {h11.IDLE, h11.SEND_RESPONSE} or self.transport.is_closing():
                self.transport.close()
                return
            answer = error_answer(400, "Bad Request: this is not HTTP as RFC 9112 has it.")
            headers = [*answer.raw_headers, (b"connection", b"close")]
            for event in (
                h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
                h11.Data(data=bytes(answer.body)),
                h11.EndOfMessage(),
            ):
                sent = self.conn.send(event)
                if sent:
                    self.transport.write(sent)
            self.transport.close()
            log.info(request_line(_NO_REQUEST | {"client": self.client}, 400, len(answer.body), 0), logger=LOGGER)

        def _await_bytes(self) -> None:
            self._forget()
            self._stalled = self.loop.call_later(idle_timeout_s, self.transport.abort)

        def _forget(self) -> None:
            if self._stalled is not None:
                self._stalled.cancel()
                self._stalled = None

    return StallingProtocol


def websocket_protocol(*args: Any, **kwargs: Any) -> asyncio.Protocol:
    """The uvicorn protocol for a connection that becomes a WebSocket; imported on first use."""
    from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol  # noqa: PLC0415

    class RefusingProtocol(WebSocketsSansIOProtocol):
        def shutdown(self) -> None:
            super().shutdown()
            _cut_off_soon(self.loop, self.transport)

        async def send(self, message: Any) -> None:
            await super().send(message)
            if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
                self.handshake_complete = True  # or a completed rejection is logged as an application error

    return RefusingProtocol(*args, **kwargs)


def _cut_off_soon(loop: asyncio.AbstractEventLoop, transport: asyncio.Transport) -> None:
    # Without TLS there is no need to wait for the client. Data that is still to be sent keeps its time.
    if transport.is_closing() and transport.get_extra_info("ssl_object") is not None:
        loop.call_later(_GOODBYE_S, transport.abort)


_NO_REQUEST: Final[dict[str, Any]] = {
    "headers": (),
    "raw_path": b"-",
    "query_string": b"",
    "method": "-",
    "http_version": "-",
}
