"""The view of the config topic that a worker of a group acts on, and how it catches up with the topic."""

from __future__ import annotations

import threading
from typing import Final

import structlog

from mm2.config.configdef import AbstractConfig
from mm2.connect.group.membership import GroupMember
from mm2.connect.herder.request_queue import StageTracker
from mm2.connect.stores.config_state import ClusterConfigState
from mm2.connect.stores.config_store import ConfigStore
from mm2.kafka.errors import KafkaFailure

log = structlog.get_logger("mm2.connect.herder.config_view")

_BACKOFF_RETRIES: Final = 5
#: The minimum pause between two attempts to read the config topic; some failures return immediately.
_BACKOFF_FLOOR_S = 1.0


class ConfigView:
    """Any thread may read `configs`; all other methods belong to the herder's thread.

    The config log may have read further than what the herder acts on: the view does not change between two ticks.
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
        """Act on what has been read so far."""
        self.configs = self._store.snapshot()

    def refresh(self) -> None:
        """Read to the end of the topic and act on it. Raises KafkaFailure after ``worker.sync.timeout.ms``."""
        with self._stages.during("reading to the end of the config topic"):
            self._store.refresh(self._sync_timeout_s)
            self.take()

    def refresh_or_doubt(self) -> None:
        """`refresh` after a write that counts even if it is not read back in time."""
        try:
            self.refresh()
        except KafkaFailure as failure:
            log.warning("config topic was not read to its end after a write", reason=str(failure))
            self.doubt()

    def doubt(self) -> None:
        """The config topic could not be read or written; no further changes are made before it is read to its end."""
        self._is_readable = False

    def catch_up(self) -> bool:
        """Read to the end if the view is in doubt; False when that failed, after a pause."""
        if not self._is_readable and self.read_to_end():
            self._is_readable = True
        return self._is_readable

    def read_to_end(self) -> bool:
        """Same as `refresh`; False when that failed, after a pause."""
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
        """Pause before the config topic is read again, outside of the group if that lets the other members continue.

        Work continues during the pause, and the group has to wait for this member. With a delay of 0, and with the eager
        protocol, the group does not wait: it would reassign work that still runs here. In that case the member leaves only
        when all work has stopped.
        """
        reason = "taking too long to read the config topic"
        pause_s = _BACKOFF_FLOOR_S
        if self._member.protocol_version == 0:
            self._member.revoke_all("could not catch up with the config topic")  # the group reassigns it immediately
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
