"""Connection pool of one cluster, by address. A connection is used by one thread at a time."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from mm2.kafka.backoff import Backoff
from mm2.kafka.client.connection import Connection
from mm2.kafka.errors import DisconnectedFailure, KafkaFailure, TimeoutFailure, UnsupportedVersion
from mm2.kafka.settings.client_settings import ClientSettings, address_text

Address = tuple[str, int]

#: Of one cluster. A malicious broker can list other addresses in each of its answers.
MOST_IDLE: Final = 500
MOST_FAILING: Final = 1000
_MOST_DOUBLINGS: Final = 16


@dataclass(slots=True)
class _BackedOff:
    """Back-off of an address after `failures` consecutive failed attempts; not tried again before `until`."""

    failures: int
    until: float
    reason: KafkaFailure


class Pool:
    """Thread-safe. A connection on which a request failed is closed and never reused."""

    def __init__(self, settings: ClientSettings, cluster: str) -> None:
        self._settings = settings
        self._cluster = cluster
        self._backoff = Backoff(settings.reconnect_backoff_ms, settings.reconnect_backoff_max_ms)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._idle: dict[Address, list[tuple[Connection, float]]] = {}
        self._lent: set[Connection] = set()
        self._failing: dict[Address, _BackedOff] = {}

    @property
    def closed(self) -> bool:
        return self._ended.is_set()

    @contextlib.contextmanager
    def lease(self, address: Address, deadline: float) -> Iterator[Connection]:
        """Lease a connection to the address for the duration of the block. Raises what `take` raises."""
        with self.lent(self.take(address, deadline)) as connection:
            yield connection

    def take(self, address: Address, deadline: float) -> Connection:
        """An idle connection that is still alive, or a new one. Return it with `lent` or `give_back`.

        Waits for the back-off of the address. Raises the ConnectFailure family or AuthenticationFailure.
        """
        while True:
            with self._lock:
                self._ensure_open()
                idle = self._idle.get(address)
                connection, since = idle.pop() if idle else (None, 0.0)
                if connection is not None:
                    self._lent.add(connection)
            if connection is None:
                break
            if not self._is_old(since) and not connection.is_stale():
                return connection
            self._discard(connection)
        connection = self.open(address, deadline)
        with self._lock:
            self._lent.add(connection)
        if self.closed:
            # The pool was closed in between and did not close this connection.
            self._discard(connection)
            self._ensure_open()
        return connection

    @contextlib.contextmanager
    def lent(self, connection: Connection) -> Iterator[Connection]:
        """Return a leased connection at the end of the block: to the pool on success, otherwise it is closed."""
        try:
            yield connection
        except UnsupportedVersion:
            # Raised before anything was sent.
            self.give_back(connection)
            raise
        except TimeoutFailure as failure:
            # The broker may hang: try other brokers before it. Or a load balancer has dropped idle connections without a
            # notice: each of the others to this address would cost a timeout, too.
            address = (connection.host, connection.port)
            self._note(address, failure)
            self._discard(connection)
            self._close_idle(address)
            raise
        except BaseException:
            self._discard(connection)
            raise
        self.give_back(connection)

    def give_back(self, connection: Connection) -> None:
        """Return a leased connection; one that is closed or has a request in flight is dropped."""
        if connection.closed or connection.in_flight:
            self._discard(connection)
            return
        now = time.monotonic()
        with self._lock:
            self._lent.discard(connection)
            unwanted = self._take_old()
            if self.closed:
                unwanted.append(connection)
            else:
                self._idle.setdefault((connection.host, connection.port), []).append((connection, now))
        for other in unwanted:
            other.close()

    def open(self, address: Address, deadline: float) -> Connection:
        """A new connection that does not belong to the pool. Waits and raises as `take` does."""
        self._wait_for_turn(address, deadline)
        with self._lock:
            backed_off = self._failing.get(address)
        failures = backed_off.failures if backed_off else 0
        setup_ms = min(
            self._settings.connection_setup_timeout_ms * 2 ** min(failures, _MOST_DOUBLINGS),
            self._settings.connection_setup_timeout_max_ms,
        )
        host, port = address
        try:
            connection = Connection.open(
                host,
                port,
                self._settings,
                timeout_s=max(0.0, min(deadline - time.monotonic(), setup_ms / 1000)),
                cluster=self._cluster,
                failures=failures,
            )
        except KafkaFailure as failure:
            self._note(address, failure)
            raise
        with self._lock:
            self._failing.pop(address, None)
        return connection

    def preference(self, address: Address) -> int:
        """Rank of an address: 0 with an idle connection, 1 without one, 2 after a recent failure.

        Try lower ranks first.
        """
        with self._lock:
            if self._idle.get(address):
                return 0
            return 2 if address in self._failing else 1

    def sleep(self, delay_s: float) -> None:
        """Sleep, at most until the pool is closed. Raises DisconnectedFailure when it is closed."""
        if self._ended.wait(delay_s):
            self._ensure_open()

    def close(self) -> None:
        """Close idle connections and abort leased ones; later calls raise DisconnectedFailure."""
        self._ended.set()
        with self._lock:
            idle = [connection for entries in self._idle.values() for connection, _ in entries]
            self._idle.clear()
            lent = list(self._lent)
        for connection in idle:
            connection.close()
        for connection in lent:
            connection.abort()

    def _note(self, address: Address, reason: KafkaFailure) -> None:
        with self._lock:
            backed_off = self._failing.pop(address, None)
            failures = backed_off.failures if backed_off else 0
            until = time.monotonic() + self._backoff.delay_s(failures)
            self._failing[address] = _BackedOff(failures + 1, until, reason)
            if len(self._failing) > MOST_FAILING:
                del self._failing[next(iter(self._failing))]  # the one that failed least recently

    def _ensure_open(self) -> None:
        if self.closed:
            raise DisconnectedFailure(f"The client of cluster {self._cluster} is closed.")

    def _wait_for_turn(self, address: Address, deadline: float) -> None:
        self._ensure_open()
        with self._lock:
            backed_off = self._failing.get(address)
        if backed_off is None:
            return
        delay_s = backed_off.until - time.monotonic()
        if delay_s <= 0:
            return
        if time.monotonic() + delay_s >= deadline:
            raise TimeoutFailure(
                f"The timeout expired before the back-off of the broker {address_text(*address)} of cluster {self._cluster} ended; "
                f"last time: {backed_off.reason}"
            )
        self.sleep(delay_s)

    def _is_old(self, since: float) -> bool:
        limit_ms = self._settings.connections_max_idle_ms
        return limit_ms >= 0 and time.monotonic() - since > limit_ms / 1000

    def _take_old(self) -> list[Connection]:
        """Remove connections that have been idle too long, and the oldest one at the limit.

        Called with the lock held; the caller closes them.
        """
        old: list[Connection] = []
        for address, entries in list(self._idle.items()):
            old.extend(connection for connection, since in entries if self._is_old(since))
            kept = [entry for entry in entries if not self._is_old(entry[1])]
            if kept:
                self._idle[address] = kept
            else:
                del self._idle[address]
        if sum(map(len, self._idle.values())) >= MOST_IDLE:
            oldest = min(self._idle, key=lambda address: self._idle[address][0][1])
            old.append(self._idle[oldest].pop(0)[0])
            if not self._idle[oldest]:
                del self._idle[oldest]
        return old

    def _close_idle(self, address: Address) -> None:
        with self._lock:
            idle = self._idle.pop(address, [])
        for connection, _ in idle:
            connection.close()

    def _discard(self, connection: Connection) -> None:
        with self._lock:
            self._lent.discard(connection)
        connection.close()
