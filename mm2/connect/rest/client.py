"""Forwards requests to other workers (Kafka's RestClient)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import httpx
import structlog

from mm2.config.configdef import ConfigException
from mm2.connect.request_signing import ALGORITHM_HEADER, SIGNATURE_HEADER
from mm2.connect.rest.failures import SERVER_ERROR, RestFailure
from mm2.connect.tls import client_context

log = structlog.get_logger(__name__)

#: Headers of the caller that are forwarded. The signature covers exactly the bytes that are forwarded.
PASSED_ON: Final = ("authorization", SIGNATURE_HEADER.lower(), ALGORITHM_HEADER.lower())
_CONFLICT: Final = 409
_NO_CONTENT: Final = 204
#: Added to the other worker's own time limit.
_GRACE_S: Final = 10.0


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

    async def request(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> RemoteAnswer:
        """Forward a request. Raises RestFailure: the other worker's error, 409 if it is unreachable, else 500."""
        sent = {
            "Accept": "application/json",
            "User-Agent": "kafka-connect",
            **({"Content-Type": "application/json"} if body else {}),
            **{name: headers[name] for name in PASSED_ON if name in headers},
        }
        try:
            async with httpx.AsyncClient(
                verify=client_context(self._props) if url.startswith("https:") else False,
                timeout=self._timeout_s + _GRACE_S,
                follow_redirects=False,
                trust_env=False,
            ) as client:
                response = await client.request(method, url, headers=sent, content=body or None)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            log.warning("The worker that a request is passed on to is not there.", url=url, reason=str(error))
            raise RestFailure(
                _CONFLICT,
                "Cannot complete request momentarily because the worker that has to do it does not answer at "
                f"{url.partition('?')[0]}, likely because it has just stopped and a rebalance will follow.",
            ) from error
        except (httpx.HTTPError, httpx.InvalidURL, ConfigException) as error:
            log.exception("A request could not be passed on.", url=url)
            said = str(error) or type(error).__name__
            raise RestFailure(SERVER_ERROR, f"IO Error trying to forward REST request: {said}") from error
        return _understood(response)


def _understood(response: httpx.Response) -> RemoteAnswer:
    if response.status_code == _NO_CONTENT:
        return RemoteAnswer(_NO_CONTENT, None)
    try:
        answer = response.json() if response.content else None
    except ValueError:
        answer = None
        if response.is_success:
            raise RestFailure(
                SERVER_ERROR, "Error trying to forward REST request: the other worker's answer is no JSON"
            ) from None
    if response.is_success:
        return RemoteAnswer(response.status_code, answer)
    if response.is_error:
        said = answer.get("message") if isinstance(answer, Mapping) else None
        raise RestFailure(response.status_code, said or f"HTTP {response.status_code} {response.reason_phrase}")
    raise RestFailure(SERVER_ERROR, f"Unexpected status code when handling forwarded request: {response.status_code}")
