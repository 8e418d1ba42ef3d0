"""The leader's right to write to the config topic; with exactly-once support only one worker has it (KIP-618)."""

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
    """Writes as the leader, and reclaims the right to do so after being fenced. Herder's thread."""

    def __init__(self, store: ConfigStore, stages: StageTracker, stopping: threading.Event) -> None:
        self._store = store
        self._stages = stages
        self._stopping = stopping
        self.fenced = False

    def write(self, stage: str, write: Callable[[], None]) -> None:
        """Perform a write reserved to the leader; if another worker has fenced this one, the next tick calls `reclaim`.

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
        """Claim the exclusive right to write."""
        try:
            self._store.claim_write_privileges()
        except ConnectError as error:
            log.warning("no right to write the config topic yet", reason=str(error))
            self.fenced = True
            return False
        self.fenced = False
        return True

    def reclaim(self, *, is_leader: bool) -> bool:
        """Claim the right again if this worker was fenced by a zombie leader; give up if a newer leader fenced it."""
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
