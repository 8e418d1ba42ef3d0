"""The view of the config topic that a worker of a group acts on, and how it catches up with the topic (spec connect D.7)."""

from __future__ import annotations

import threading
from typing import Final

import structlog

from mm2.config.configdef import AbstractConfig
from mm2.connect.group.membership import GroupMember
from mm2.connect.herder.stages import StageTracker
from mm2.connect.stores.config_state import ClusterConfigState
from mm2.connect.stores.config_store import ConfigStore
from mm2.kafka.errors import KafkaFailure

log = structlog.get_logger(__name__)

_BACKOFF_RETRIES: Final = 5
#: The least pause between two tries to read the config topic; some failures come at once.
_BACKOFF_FLOOR_S = 1.0


class ConfigView:
    """`configs` is looked at by any thread, all else belongs to the herder's.

    What the config log has read already is more than what the herder acts on: between two ticks nothing changes.
    """

    def __init__(
        self,
        store: ConfigStore,
        member: GroupMember,
        stages: StageTracker,
        stopping: threading.Event,
        config: AbstractConfig,
    ) -> None:
        self.configs = ClusterConfigState()
        self._store = store
        self._member = member
        self._stages = stages
        self._stopping = stopping
        self._sync_timeout_s = config.int("worker.sync.timeout.ms") / 1000
        self._max_delay_ms = config.int("scheduled.rebalance.max.delay.ms")
        self._unsync_backoff_s = config.int("worker.unsync.backoff.ms") / 1000
        self._is_readable = True
        self._retries = _BACKOFF_RETRIES

    def take(self) -> None:
        """Act on what has been read."""
        self.configs = self._store.snapshot()

    def refresh(self) -> None:
        """Act on all that is written. Raises KafkaFailure when that cannot be read in ``worker.sync.timeout.ms``."""
        with self._stages.during("reading to the end of the config topic"):
            self._store.refresh(self._sync_timeout_s)
            self.take()

    def doubt(self) -> None:
        """The config topic could not be read or written: nothing goes on before it has been read to its end."""
        self._is_readable = False

    def catch_up(self) -> bool:
        """Where there is doubt, read to the end; False when that failed, and a pause has been made."""
        if not self._is_readable and self.read_to_end():
            self._is_readable = True
        return self._is_readable

    def read_to_end(self) -> bool:
        """`refresh`; False when that failed, and a pause has been made."""
        try:
            self.refresh()
        except KafkaFailure as failure:
            if not self._stopping.is_set():
                log.warning("config topic was not read to its end in time", reason=str(failure))
                self.back_off()
            return False
        self._retries = _BACKOFF_RETRIES
        return True

    def back_off(self) -> None:
        """Pause before the config topic is read again, out of the group where that lets the others go on.

        Work goes on meanwhile, for which the group has to wait for us. With a delay of 0 it does not: it would give the
        work to others while it still runs here. Then we leave only when everything has been stopped.
        """
        reason = "taking too long to read the config topic"
        pause_s = _BACKOFF_FLOOR_S
        if self._member.protocol_version == 0:
            self._member.leave(reason)
            pause_s = self._unsync_backoff_s
        elif self._retries > 0:
            if self._max_delay_ms > 0:
                self._member.leave(reason)
            pause_s = max(pause_s, self._max_delay_ms // 10 // self._retries / 1000)
            self._retries -= 1
        else:
            self._member.revoke_all("could not catch up with the config topic")
            self._member.leave(reason)
            self._retries = _BACKOFF_RETRIES
        with self._stages.during(f"sleeping for a backoff duration of {pause_s * 1000:.0f}ms"):
            self._stopping.wait(pause_s)
