"""Requests a connector's task configs and publishes those that have changed."""

from __future__ import annotations

import contextvars
import hashlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final, Protocol

import structlog

from mm2.connect.api import RetriableError
from mm2.connect.errors import NotLeader
from mm2.connect.herder.internal_requests import RequestRefused
from mm2.connect.herder.request_queue import StagedFuture
from mm2.connect.runtime.worker import TooManyTasks, Worker
from mm2.connect.stores.config_state import ClusterConfigState, Props, TargetState

log = structlog.get_logger(__name__)

_BACKOFF_S: Final = 0.25
_BACKOFF_MAX_S: Final = 60.0
_FORBIDDEN: Final = 403
#: For this many attempts a rejected signature is most likely caused by an outdated key (a minute, as in Java).
_KEY_TRIES: Final = 8


def backoff_s(attempts: int) -> float:
    """The delay after the ``attempts``-th failure (from 0)."""
    return min(_BACKOFF_MAX_S, _BACKOFF_S * 2.0 ** min(attempts, 30))


class Publisher(Protocol):
    """What a reconfiguration needs from its herder."""

    def configs(self) -> ClusterConfigState:
        """The herder's view. Any thread."""

    def later(self, action: Callable[[], None], stage: str, *, delay_s: float = 0.0) -> StagedFuture[None]:
        """Run an action on the herder's thread. Any thread."""

    def publish_task_configs(self, connector: str, configs: Sequence[Props]) -> Future[None]:
        """Write the task configs or send them to the leader, on the herder's thread; does not wait for the result."""


@dataclass
class _Round:
    """One connector's reconfiguration in progress."""

    attempts: int = 0
    #: Requested again while it was in progress.
    again: bool = False
    #: The next attempt, while waiting for it.
    waiting: StagedFuture[None] | None = None
    #: Called when the round has ended, or has failed for the first time.
    callers: list[Callable[[], None]] = field(default_factory=list)


@dataclass(frozen=True)
class _Made:
    """The task configs that a connector has made."""

    #: The connector's config as stored.
    raw: Props
    #: Of that config with the values of config providers.
    digest: bytes
    configs: Sequence[Props]


class TaskReconfiguration:
    """At most one round per connector at a time, retried with exponential back-off until it succeeds.

    The task configs are also published, which restarts the tasks, when the values of config providers have changed.

    Unlike in Java, ``task_configs`` runs on its own thread, so a slow connector does not block others.
    """

    def __init__(self, worker: Worker, publisher: Publisher) -> None:
        self._worker = worker
        self._publisher = publisher
        self._lock = threading.Lock()
        self._rounds: dict[str, _Round] = {}
        #: Of the connector configs that the tasks of each connector have been started with, as far as is known here.
        self._digests: dict[str, bytes] = {}

    def request(self, name: str, *, fresh: bool = False, then: Callable[[], None] | None = None) -> None:
        """Request task configs of a connector that runs here, and publish them if they have changed. Any thread.

        ``fresh``: the connector's instance is new; results of an older instance are ignored. ``then`` is called when
        the round is complete, or has failed once and will be retried.
        """
        callers = [] if then is None else [then]
        with self._lock:
            known = self._rounds.get(name)
            if known is not None and known.waiting is None and not fresh:
                known.again = True
                known.callers += callers
                return
            if known is not None and known.waiting is not None:
                known.waiting.cancel()
            callers += [] if known is None else known.callers
            this = self._rounds[name] = _Round(callers=callers)
        self._ask_apart(name, this)

    def _ask_apart(self, name: str, this: _Round) -> None:
        context = contextvars.copy_context()
        threading.Thread(
            target=lambda: context.run(self._ask, name, this), name=f"reconfigure-{name}", daemon=True
        ).start()

    def _ask(self, name: str, this: _Round) -> None:
        raw = self._publisher.configs().connector_config(name)
        if raw is None or not self._is_due(name):
            log.info("connector does not run here, its tasks are not reconfigured", connector=name)
            self._digests.pop(name, None)
            self._end(name, this)
            return
        try:
            resolved = self._worker.resolve(raw)
            made = _Made(raw, _digest(resolved), self._worker.task_configs(name, raw, resolved))
        except TooManyTasks:
            self._end(name, this)  # the connector has failed
        except Exception as error:  # noqa: BLE001 - retried after any error of a plugin
            self._retry_later(name, this, error)
        else:
            stage = f"publishing {len(made.configs)} task configs of connector {name}"
            asked = self._publisher.later(lambda: self._publish(name, this, made), stage)
            asked.add_done_callback(lambda done: self._on_refused(name, this, done))

    def _publish(self, name: str, this: _Round, made: _Made) -> None:
        """On the herder's thread."""
        if not self._is_current(name, this):
            return
        configs = self._publisher.configs()
        if configs.connector_config(name) != made.raw:
            this.again = True  # the connector restarts, so this result is outdated
            self._end(name, this)
            return
        # The first round here: the tasks run with the values of this moment, as far as is known.
        new_values = self._digests.setdefault(name, made.digest) != made.digest
        if not self._is_due(name) or not (new_values or changed(configs, name, made.configs)):
            self._end(name, this)
            return
        log.info(
            "task configs changed",
            connector=name,
            tasks=len(made.configs),
            before=configs.task_counts.get(name, 0),
            new_provider_values=new_values,
        )
        try:
            written = self._publisher.publish_task_configs(name, made.configs)
        except Exception as error:  # noqa: BLE001 - retried
            self._retry_later(name, this, error)
            return
        written.add_done_callback(lambda done: self._on_written(name, this, made.digest, done))

    def _on_refused(self, name: str, this: _Round, done: Future[None]) -> None:
        if done.cancelled() or done.exception() is not None:  # the herder is stopping
            self._end(name, this)

    def _on_written(self, name: str, this: _Round, digest: bytes, done: Future[None]) -> None:
        error = done.exception()
        if isinstance(error, Exception):
            self._retry_later(name, this, error)
        else:
            self._digests[name] = digest
            self._end(name, this)

    def _is_current(self, name: str, this: _Round) -> bool:
        with self._lock:
            return self._rounds.get(name) is this

    def _is_due(self, name: str) -> bool:
        target = self._publisher.configs().target_state(name)
        return target is TargetState.STARTED and self._worker.is_running(name)

    def _retry_later(self, name: str, this: _Round, error: Exception) -> None:
        delay_s = backoff_s(this.attempts)
        old_key = isinstance(error, RequestRefused) and error.status == _FORBIDDEN and this.attempts < _KEY_TRIES
        if old_key:
            log.debug(
                "task configs rejected, probably signed with an old session key", connector=name, retry_in_s=delay_s
            )
        elif isinstance(error, NotLeader | RequestRefused):
            log.warning("task configs not published", connector=name, reason=str(error), retry_in_s=delay_s)
        elif isinstance(error, RetriableError):
            log.info("task configs not known yet", connector=name, reason=str(error), retry_in_s=delay_s)
        else:
            log.error("task configs not published", connector=name, retry_in_s=delay_s, exc_info=error)

        def retry() -> None:
            with self._lock:
                if self._rounds.get(name) is not this:
                    return
                this.waiting = None
            self._ask_apart(name, this)

        with self._lock:
            if self._rounds.get(name) is not this:
                return
            callers, this.callers = this.callers, []
            this.attempts += 1
            this.again = False
            this.waiting = self._publisher.later(retry, f"reconfiguring the tasks of connector {name}", delay_s=delay_s)
        for caller in callers:
            caller()

    def _end(self, name: str, this: _Round) -> None:
        with self._lock:
            if self._rounds.get(name) is not this:
                return
            del self._rounds[name]
            callers, this.callers = this.callers, []
        if this.again:
            self.request(name)
        for caller in callers:
            caller()


def changed(configs: ClusterConfigState, name: str, made: Sequence[Props]) -> bool:
    """Whether task configs differ from the stored ones, or the connector's config from the one they were made for.

    The latter detects changes that only the runtime reads, such as converters and transformations.
    """
    if configs.applied_connector_configs.get(name) != configs.connector_config(name):
        return True
    if len(made) != configs.task_counts.get(name, 0) or name in configs.inconsistent:
        return True
    return [dict(props) for props in made] != [dict(props) for props in configs.all_task_configs(name)]


def _digest(resolved: Mapping[str, str]) -> bytes:
    return hashlib.sha256(json.dumps(sorted(resolved.items())).encode()).digest()
