"""Reads series from the HTTP API of a Prometheus (``/api/v1/query_range``), within limits of time and size."""

from __future__ import annotations

import math
import ssl
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any, Final

import httpx

from mm2.config.configdef import ConfigException
from mm2.connect.rest.settings import is_loopback
from mm2.kafka.auth.bounded_http import NoDocument, one_line, read_document
from mm2.kafka.auth.tls import build_ssl_context
from mm2.observer.curves.prometheus_settings import PrometheusSettings

_STEP_TIMEOUT_S: Final = 5.0
#: A series of 300 points has 10 kB.
_MAX_BYTES: Final = 256 * 1024
_OK: Final = 200


class PrometheusFailure(Exception):
    """Prometheus gave no usable answer. The message is for users and contains no secret."""


class Prometheus:
    """Requests to one Prometheus; each method blocks, up to its deadline. Thread-safe."""

    def __init__(self, settings: PrometheusSettings) -> None:
        self._settings = settings

    def read(
        self, expressions: Mapping[str, str], times_s: range, deadline_s: float
    ) -> dict[str, list[tuple[int, float | None]]]:
        """The values of each expression at these times, in ms since the epoch; None where there is none.

        An expression has one series at most. ``deadline_s`` is a time of the monotonic clock. Raises PrometheusFailure.
        """
        with self._client() as client:
            return {name: self._series(client, one, times_s, deadline_s) for name, one in expressions.items()}

    def _client(self) -> httpx.Client:
        settings = self._settings
        try:
            verify: ssl.SSLContext | bool = build_ssl_context(settings.tls) if settings.url[:6] == "https:" else True
        except ConfigException as error:
            raise PrometheusFailure(str(error)) from error
        headers = {}
        if settings.authorization is not None:
            headers["Authorization"] = settings.authorization.value
        # Only the configured host gets the credentials: redirects are not followed, and the proxy of the environment is not
        # used for this machine, which needs no TLS.
        is_local = is_loopback(urllib.parse.urlsplit(settings.url).hostname or "")
        return httpx.Client(
            verify=verify, timeout=_STEP_TIMEOUT_S, follow_redirects=False, headers=headers, trust_env=not is_local
        )

    def _series(
        self, client: httpx.Client, expression: str, times_s: range, deadline_s: float
    ) -> list[tuple[int, float | None]]:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise PrometheusFailure("did not answer in time")
        params = {
            "query": expression,
            "start": str(times_s[0]),
            "end": str(times_s[-1]),
            "step": str(times_s.step),
            "timeout": f"{math.ceil(left_s)}s",
        }
        found = _values(_answer(client, f"{self._settings.url}/api/v1/query_range", params, deadline_s))
        return [(at_s * 1000, found.get(at_s)) for at_s in times_s]


def _answer(client: httpx.Client, url: str, params: Mapping[str, str], deadline_s: float) -> Any:
    try:
        status, document = read_document(client, url, max_bytes=_MAX_BYTES, deadline_s=deadline_s, params=params)
    except NoDocument as failure:
        raise PrometheusFailure(str(failure)) from failure
    if status != _OK:
        reason = document.get("error") if isinstance(document, dict) else None
        raise PrometheusFailure(
            f"answered with HTTP {status}{f': {one_line(reason)}' if isinstance(reason, str) else ''}"
        )
    return document


def _values(document: Any) -> dict[int, float | None]:
    """The points of the only series, by time in seconds; none without a series."""
    try:
        series: Sequence[Any] = document["data"]["result"]
        if not series:
            return {}
        (one,) = series
        return {round(at_s): _number(value) for at_s, value in one["values"]}
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
        raise PrometheusFailure("did not answer with one series") from None


def _number(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None
