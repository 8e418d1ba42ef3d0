"""Sharing of one request between concurrent callers with the same question."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from mm2.kafka.errors import TimeoutFailure

Answer = TypeVar("Answer")


@dataclass(slots=True)
class _Route(Generic[Answer]):
    """`running` is held while a request is in flight; `boarding` is the next one, which callers may still join."""

    running: threading.Lock = field(default_factory=threading.Lock)
    boarding: Future[Answer] | None = None
    users: int = 0


class Flights(Generic[Answer]):
    """Single flight, except that a caller never joins a request that is already in flight.

    The answer of that request may be older than the call: a topic that the caller has just created might be missing.
    Later callers wait for it to end and share the next request.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._routes: dict[Hashable, _Route[Answer]] = {}

    def join(self, key: Hashable, deadline: float, fetch: Callable[[], Answer], what: str) -> Answer:
        """The answer of one `fetch` that began after this call.

        Raises the error of `fetch`, or TimeoutFailure at `deadline`.
        """
        while True:
            with self._lock:
                route = self._routes.setdefault(key, _Route())
                route.users += 1
                flight = route.boarding
                leads = flight is None
                if flight is None:
                    flight = route.boarding = Future()
            try:
                if leads:
                    self._fly(route, flight, deadline, fetch, what)
                    return flight.result()
                return flight.result(timeout=max(0.0, deadline - time.monotonic()))
            except FutureTimeoutError:
                raise TimeoutFailure(f"{what}: no answer before the timeout.") from None
            except TimeoutFailure:
                # The deadline of another caller ended the request; the deadline of this one may be later.
                if leads or time.monotonic() >= deadline:
                    raise
            finally:
                with self._lock:
                    route.users -= 1
                    if route.users == 0:
                        self._routes.pop(key, None)

    def _fly(
        self, route: _Route[Answer], flight: Future[Answer], deadline: float, fetch: Callable[[], Answer], what: str
    ) -> None:
        takes_off = route.running.acquire(timeout=max(0.0, deadline - time.monotonic()))
        with self._lock:
            route.boarding = None
        if not takes_off:
            flight.set_exception(TimeoutFailure(f"{what}: no answer before the timeout."))
            return
        try:
            flight.set_result(fetch())
        except BaseException as error:
            flight.set_exception(error)
            if not isinstance(error, Exception):
                raise
        finally:
            route.running.release()
