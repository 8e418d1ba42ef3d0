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
class _Requests(Generic[Answer]):
    """`running` is held while a request is in flight; `following` is the next one, which callers may still join."""

    running: threading.Lock = field(default_factory=threading.Lock)
    following: Future[Answer] | None = None
    users: int = 0


class SharedRequests(Generic[Answer]):
    """Single flight, except that a caller never joins a request that is already in flight.

    The answer of that request may be older than the call: a topic that the caller has just created might be missing.
    Later callers wait for it to end and share the next request.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_key: dict[Hashable, _Requests[Answer]] = {}

    def join(self, key: Hashable, deadline: float, fetch: Callable[[], Answer], what: str) -> Answer:
        """The answer of one `fetch` that began after this call.

        Raises the error of `fetch`, or TimeoutFailure at `deadline`.
        """
        while True:
            with self._lock:
                requests = self._by_key.setdefault(key, _Requests())
                requests.users += 1
                answer = requests.following
                leads = answer is None
                if answer is None:
                    answer = requests.following = Future()
            try:
                if leads:
                    self._run(requests, answer, deadline, fetch, what)
                    return answer.result()
                return answer.result(timeout=max(0.0, deadline - time.monotonic()))
            except FutureTimeoutError:
                raise TimeoutFailure(f"{what}: no answer before the timeout.") from None
            except TimeoutFailure:
                # The deadline of another caller ended the request; the deadline of this one may be later.
                if leads or time.monotonic() >= deadline:
                    raise
            finally:
                with self._lock:
                    requests.users -= 1
                    if requests.users == 0:
                        self._by_key.pop(key, None)

    def _run(
        self,
        requests: _Requests[Answer],
        answer: Future[Answer],
        deadline: float,
        fetch: Callable[[], Answer],
        what: str,
    ) -> None:
        may_run = requests.running.acquire(timeout=max(0.0, deadline - time.monotonic()))
        with self._lock:
            requests.following = None
        if not may_run:
            answer.set_exception(TimeoutFailure(f"{what}: no answer before the timeout."))
            return
        try:
            answer.set_result(fetch())
        except BaseException as error:
            answer.set_exception(error)
            if not isinstance(error, Exception):
                raise
        finally:
            requests.running.release()
