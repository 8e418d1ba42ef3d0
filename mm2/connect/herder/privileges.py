"""The leader's right to write the config topic, which with exactly-once only one worker has (KIP-618)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import structlog

from mm2.connect.api import ConnectError
from mm2.connect.herder.stages import StageTracker
from mm2.connect.stores.config_store import ConfigStore, PrivilegedWriteError

log = structlog.get_logger(__name__)

_CLAIM_AGAIN_S: Final = 0.25


class LeaderPrivileges:
    """Writes as the leader, and gets the right to do so back when a zombie of an older leader took it. Herder's thread."""

    def __init__(self, store: ConfigStore, stages: StageTracker, stopping: threading.Event) -> None:
        self._store = store
        self._stages = stages
        self._stopping = stopping
        self.fenced = False

    def write(self, stage: str, write: Callable[[], None]) -> None:
        """Write what only a leader may; when another one has fenced us, `reclaim` sees to it in the next tick.

        Raises ConnectError.
        """
        with self._stages.during(stage):
            try:
                write()
            except PrivilegedWriteError as error:
                log.warning("the leader could not write to the config topic and claims it again", reason=str(error))
                self.fenced = True
                raise

    def claim(self) -> bool:
        """Become the only one that may write."""
        try:
            self._store.claim_write_privileges()
        except ConnectError as error:
            log.warning("no right to write the config topic yet", reason=str(error))
            self.fenced = True
            return False
        self.fenced = False
        return True

    def reclaim(self, *, is_leader: bool) -> bool:
        """After having been fenced: by a zombie that has led before us, or rightly, by a newer leader."""
        if not self.fenced:
            return True
        if not is_leader:
            self.fenced = False
            return True
        with self._stages.during("reclaiming write privileges for the config topic"):
            claimed = self.claim()
            if not claimed:
                self._stopping.wait(_CLAIM_AGAIN_S)
            return claimed
