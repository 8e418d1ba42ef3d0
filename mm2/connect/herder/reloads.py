"""Restarts connectors whose secrets expire (KIP-297; WorkerConfigTransformer of Java)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future

import structlog

from mm2.connect.runtime.worker import Worker
from mm2.connect.stores.config_state import Props

log = structlog.get_logger(__name__)


class Reloads:
    """``restart(connector, delay_s)`` schedules a restart; its future is cancelled when another one replaces it."""

    def __init__(self, worker: Worker, restart: Callable[[str, float], Future[None]]) -> None:
        self._worker = worker
        self._restart = restart
        self._lock = threading.Lock()
        self._scheduled: dict[str, Future[None]] = {}

    def schedule(self, name: str, raw: Props) -> None:
        """Schedule a restart for the time when the first value of this configuration expires.

        Does nothing with ``config.action.reload=none``. Any thread.
        """
        with self._lock:
            earlier = self._scheduled.pop(name, None)
        if earlier is not None:
            earlier.cancel()
        if (raw.get("config.action.reload") or "restart").strip().lower() != "restart":
            return
        try:
            ttls = self._worker.ttls(raw)
        except Exception as error:  # noqa: BLE001 - the start fails with the same error and writes it to the status
            log.debug("no time to live of a configuration", connector=name, reason=str(error))
            return
        if not ttls:
            return
        ttl_ms = min(ttls.values())
        log.info("the connector restarts when its secrets expire", connector=name, in_ms=ttl_ms)
        restart = self._restart(name, ttl_ms / 1000)
        with self._lock:
            self._scheduled[name] = restart
        restart.add_done_callback(lambda done: _report(name, done))


def _report(name: str, done: Future[None]) -> None:
    try:
        done.result()
    except CancelledError:
        return
    except Exception as error:  # noqa: BLE001 - another worker may own it by now
        log.info("the connector was not restarted for its expired secrets", connector=name, reason=str(error))
