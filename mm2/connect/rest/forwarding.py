"""Calls to a herder without blocking the event loop, and forwarding to other workers.

Corresponds to Kafka's HerderRequestHandler and RestClient.
"""

from __future__ import annotations

import asyncio
import functools
import hmac
import json
import urllib.parse
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, ParamSpec, TypeVar

import httpx
import structlog
from starlette.requests import Request
from starlette.responses import Response

from mm2.config.configdef import ConfigException
from mm2.config.keys.rest_keys import WORKER_SECRET_KEY
from mm2.connect.errors import RequestTarget, RequestTimedOut
from mm2.connect.herder.answers import HealthInfo
from mm2.connect.herder.interface import Herder, timed_out
from mm2.connect.herder.request_queue import StagedFuture
from mm2.connect.request_signing import ALGORITHM_HEADER, SIGNATURE_HEADER, SessionKey
from mm2.connect.rest.access.authenticators import is_local_token
from mm2.connect.rest.access.authorization import Access
from mm2.connect.rest.access.roles import Kind, Role
from mm2.connect.rest.access.vouchers import CHALLENGE_HEADER, PROOF_HEADER, new_challenge, proof
from mm2.connect.rest.failures import SERVER_ERROR, JsonAnswer, RestFailure
from mm2.connect.rest.paths import path_of
from mm2.connect.rest.request_values import java_bool
from mm2.connect.tls import client_context

log = structlog.get_logger(__name__)

#: The credentials of the caller. The token of this process is not forwarded: the other worker cannot verify it, and it would
#: leave the machine.
_CREDENTIALS: Final = "authorization"
#: Headers of the caller that are forwarded. The signature covers exactly the bytes that are forwarded.
PASSED_ON: Final = (_CREDENTIALS, SIGNATURE_HEADER.lower(), ALGORITHM_HEADER.lower())
_HTTPS: Final = "https:"
_FORBIDDEN: Final = 403
_CONFLICT: Final = 409
_NO_CONTENT: Final = 204
#: Added to the other worker's own time limit.
_GRACE_S: Final = 10.0
#: Of another worker's response, an offsets list of 300,000 partitions, and of all that are being received. As objects they take ten
#: times as much.
_MOST_BYTES: Final = 32 << 20
_MOST_OF_ALL_BYTES: Final = 2 * _MOST_BYTES


@dataclass(frozen=True)
class RemoteAnswer:
    """Another worker's response with a status below 300."""

    status: int
    body: Any


class RestClient:
    """Connections are not kept open, so a worker that has moved is never contacted at its old address."""

    def __init__(self, props: Mapping[str, str], timeout_s: float) -> None:
        self._props = dict(props)
        self._timeout_s = timeout_s
        self._received_bytes = 0

    async def request(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes, voucher: Mapping[str, str] | None = None
    ) -> RemoteAnswer:
        """Forward a request. ``voucher``: headers that identify its client. Raises RestFailure: the other worker's error, 409 if it is unreachable, else 500."""
        sent = {
            "Accept": "application/json",
            "Accept-Encoding": "identity",  # so that the limit applies to what is stored
            "User-Agent": "kafka-connect",
            **({"Content-Type": "application/json"} if body else {}),
            **{name: headers[name] for name in PASSED_ON if name in headers and not is_local_token(headers[name])},
            **(voucher or {}),
        }
        response, content = await self._exchange(method, url, sent, body)
        return _understood(response, content)

    async def proves(self, base: str, path: str, key: SessionKey) -> bool:
        """Whether the process at the URL ``base`` is a worker that advertises it and holds ``key``. Sends a challenge and nothing else.

        Raises RestFailure: 409 if it is unreachable, else 500.
        """
        challenge = new_challenge()
        sent = {"User-Agent": "kafka-connect", "Accept-Encoding": "identity", CHALLENGE_HEADER: challenge}
        # The body is not read: a worker of Java answers with what the path has, which may be any list.
        response, _ = await self._exchange("GET", f"{base.rstrip('/')}{path}", sent, b"", reads_body=False)
        return hmac.compare_digest(
            response.headers.get(PROOF_HEADER, "").encode(), proof(key, base, challenge).encode()
        )

    async def _exchange(
        self, method: str, url: str, sent: Mapping[str, str], body: bytes, *, reads_body: bool = True
    ) -> tuple[httpx.Response, bytes]:
        """The response and its body. Raises RestFailure."""
        limit_s = self._timeout_s + _GRACE_S
        content = bytearray()
        try:
            async with (
                asyncio.timeout(limit_s),  # that of httpx is for a single read
                httpx.AsyncClient(
                    verify=client_context(self._props) if url.startswith(_HTTPS) else False,
                    timeout=limit_s,
                    follow_redirects=False,
                    trust_env=False,
                ) as client,
                client.stream(method, url, headers=sent, content=body or None) as response,
            ):
                if not reads_body:
                    return response, b""
                async for chunk in response.aiter_raw():
                    content += chunk
                    self._received_bytes += len(chunk)
                    if len(content) > _MOST_BYTES:
                        raise _failed(f"the response has more than {_MOST_BYTES} bytes")
                    if self._received_bytes > _MOST_OF_ALL_BYTES:
                        raise _failed(f"more than {_MOST_OF_ALL_BYTES} bytes of responses are being received")
        except TimeoutError as error:
            log.warning("request not forwarded, no complete response in time", url=url)
            raise _failed(f"no complete response within {limit_s:g} s") from error
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            log.warning("request not forwarded, the target worker is unreachable", url=url, reason=str(error))
            raise RestFailure(
                _CONFLICT,
                "Cannot complete request momentarily because the worker that must handle it is not responding at "
                f"{url.partition('?')[0]}, likely because it has just stopped and a rebalance will follow.",
            ) from error
        except (httpx.HTTPError, httpx.InvalidURL, ConfigException) as error:
            log.exception("request could not be forwarded", url=url)
            message = str(error) or type(error).__name__
            raise _failed(message) from error
        finally:
            self._received_bytes -= len(content)
        return response, bytes(content)


def _failed(reason: str) -> RestFailure:
    return RestFailure(SERVER_ERROR, f"IO Error trying to forward REST request: {reason}")


def _understood(response: httpx.Response, content: bytes) -> RemoteAnswer:
    if response.status_code == _NO_CONTENT:
        return RemoteAnswer(_NO_CONTENT, None)
    try:
        answer = json.loads(content) if content else None
    except (ValueError, RecursionError):
        answer = None
        if response.is_success:
            raise RestFailure(
                SERVER_ERROR, "Error trying to forward REST request: the other worker's response is not valid JSON"
            ) from None
    if response.is_success:
        return RemoteAnswer(response.status_code, answer)
    if response.is_error:
        message = answer.get("message") if isinstance(answer, Mapping) else None
        raise RestFailure(response.status_code, message or f"HTTP {response.status_code} {response.reason_phrase}")
    raise RestFailure(SERVER_ERROR, f"Unexpected status code when handling forwarded request: {response.status_code}")


P = ParamSpec("P")
T = TypeVar("T")

#: Concurrent calls into a herder; those that wait for its thread do not count.
_THREADS: Final = 64
_HEALTH_THREADS: Final = 2


class Requests:
    """Calls a herder from the event loop. One per server; ``close`` releases its threads."""

    def __init__(self, client: RestClient, timeout_s: float) -> None:
        self._client = client
        self.timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="rest")
        self._healths: weakref.WeakKeyDictionary[Herder, Future[StagedFuture[HealthInfo]]] = weakref.WeakKeyDictionary()
        #: Not shared, so that calls that hang do not delay the health.
        self._health_threads = ThreadPoolExecutor(_HEALTH_THREADS, thread_name_prefix="rest-health")

    def close(self) -> None:
        """Do not wait for running calls."""
        for threads in (self._threads, self._health_threads):
            threads.shutdown(wait=False, cancel_futures=True)

    async def ask(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of a blocking method, called on a thread, since a store or a plugin may take time.

        Raises its exceptions, and RequestTimedOut when it takes too long.
        """
        return await self._outcome(self._threads.submit(functools.partial(call, *args, **kwargs)))

    async def complete(self, call: Callable[P, Future[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of a method that returns a future. Raises the future's error, or RequestTimedOut."""
        return await self._outcome(await self.ask(call, *args, **kwargs))

    async def health(self, herder: Herder, timeout_s: float) -> HealthInfo:
        """Whether the herder's thread responds within the time; otherwise the stage in progress."""
        check = self._health_in_progress(herder)
        future = await self._outcome(check)
        try:
            return await self._outcome(future, timeout_s)
        except RequestTimedOut:
            if self._healths.get(herder) is check:
                del self._healths[herder]
            details = future.stage().summary()
            return HealthInfo.unhealthy(details) if herder.is_ready else HealthInfo.starting(details)

    def _health_in_progress(self, herder: Herder) -> Future[StagedFuture[HealthInfo]]:
        """All clients wait for the same check: unauthenticated ones could start any number while the herder is busy."""
        found = self._healths.get(herder)
        if found is None or (found.done() and (found.exception() is not None or found.result().done())):
            found = self._healths[herder] = self._health_threads.submit(herder.health)
        return found

    async def complete_or_forward(
        self, request: Request, call: Callable[P, Future[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T | RemoteAnswer:
        """Like :meth:`complete`; if another worker must handle the request, its response to the same request.

        ``forward`` is absent in requests of clients, true at the first hop and false at the second, which does not
        forward. Raises RestFailure.
        """
        try:
            return await self.complete(call, *args, **kwargs)
        except RequestTarget as elsewhere:
            forward = java_bool(request.query_params.get("forward"), None)
            if forward is False:
                log.warning(
                    "request not forwarded, it has been forwarded twice",
                    method=request.method,
                    path=request.url.path,
                )
                raise RestFailure(
                    _CONFLICT, "Cannot complete request because of a conflicting operation (e.g. worker rebalance)"
                ) from elsewhere
            # A process without internal REST advertises a placeholder instead of a URL.
            if not (elsewhere.forward_url or "").startswith("http"):
                raise RestFailure(
                    _CONFLICT,
                    "Cannot complete request momentarily due to no known leader URL, likely because a rebalance was "
                    "underway.",
                ) from elsewhere
            return await self._forward(request, str(elsewhere.forward_url), recursive=forward is None)

    async def _forward(self, request: Request, base: str, *, recursive: bool) -> RemoteAnswer:
        """Forward a request to the worker at the URL ``base``, which the group names. Raises RestFailure.

        Any client with READ on the group can name a URL. So a worker proves itself before it gets credentials or a body.
        """
        access, headers = Access.of(request.scope), dict(request.headers)
        is_proved = await self._is_proved(
            access, base, request.scope["raw_path"].decode("latin-1"), path_of(request.scope)
        )
        if not is_proved:
            headers.pop(_CREDENTIALS, None)
            if not access.is_anonymous or access.role is Role.NONE:
                raise RestFailure(
                    _CONFLICT,
                    f"Cannot complete request because the worker at {base}, which must handle it, has not proved that it has the "
                    "session key of the group. Send the request to that worker. Workers that run Java cannot prove it.",
                )
        url = forwarded_url(base, request.scope, recursive=recursive)
        body = await request.body()
        voucher = (
            access.voucher(base, request.method, httpx.URL(url).raw_path.decode("ascii"), body) if is_proved else None
        )
        if voucher is None and not _can_be_verified(access, headers, base):
            kind = "session" if access.is_session else access.principal.kind
            raise RestFailure(
                _FORBIDDEN,
                f"The worker at {base} must handle this request, and cannot verify credentials of the kind {kind}, which are valid "
                f"for this process only. Send the request to that worker, or set {WORKER_SECRET_KEY} in the files of all workers.",
            )
        log.debug("forwarding request", method=request.method, url=url)
        return await self._client.request(request.method, url, headers, body, voucher)

    async def _is_proved(self, access: Access, base: str, raw_path: str, path: str) -> bool:
        """Whether the worker at ``base`` belongs to this one. Raises RestFailure, also for http if this worker uses https."""
        control = access.control
        if control is not None and control.own_url.startswith(_HTTPS) and not base.startswith(_HTTPS):
            raise RestFailure(
                _CONFLICT,
                f"Cannot complete request because the worker at {base}, which must handle it, uses no TLS, and this worker does. "
                "Send the request to that worker.",
            )
        key = None if control is None else control.proof_key(path)
        return key is not None and await self._client.proves(base, raw_path, key)

    async def _outcome(self, future: Future[T], timeout_s: float | None = None) -> T:
        # Not asyncio.wrap_future: on a timeout it cancels the herder's future.
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def wake(_: Future[T]) -> None:
            try:
                loop.call_soon_threadsafe(done.set)
            except RuntimeError:  # the server has stopped meanwhile
                log.debug("herder responded after the request had ended")

        future.add_done_callback(wake)
        try:
            await asyncio.wait_for(done.wait(), self.timeout_s if timeout_s is None else timeout_s)
        except TimeoutError:
            raise timed_out(future) from None
        return future.result()


def _can_be_verified(access: Access, headers: Mapping[str, str], base: str) -> bool:
    """Whether the worker at ``base`` can authenticate the client of a request, or needs not."""
    if access.is_anonymous:
        return True
    if access.is_session:
        return False
    if access.principal.kind is Kind.CERTIFICATE:
        # As in Java: the other worker verifies the certificate of this one, which has checked the role of the client.
        return base.startswith(_HTTPS)
    credentials = headers.get(_CREDENTIALS, "")
    return bool(credentials) and not is_local_token(credentials)


def forwarded_url(base: str, scope: Mapping[str, Any], *, recursive: bool) -> str:
    """The URL for forwarding a request: the same path, and whether the other worker may forward it again."""
    query = [
        (key, value)
        for key, value in urllib.parse.parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if key != "forward"
    ]
    query.append(("forward", str(recursive).lower()))
    path = scope["raw_path"].decode("latin-1")
    return f"{base.rstrip('/')}{path}?{urllib.parse.urlencode(query)}"


def relayed(outcome: Any, status: int, shape: Callable[[Any], Any]) -> Response:
    """The response for a result of :meth:`Requests.complete_or_forward`.

    ``status`` and ``shape(outcome)``, or the other worker's response.
    """
    if isinstance(outcome, RemoteAnswer):
        return (
            JsonAnswer(outcome.body, outcome.status)
            if outcome.body is not None
            else Response(status_code=outcome.status)
        )
    return JsonAnswer(shape(outcome), status)


def relayed_nothing(outcome: Any) -> Response:
    """204, from this worker or from the one that handled the request."""
    return Response(status_code=outcome.status if isinstance(outcome, RemoteAnswer) else _NO_CONTENT)
