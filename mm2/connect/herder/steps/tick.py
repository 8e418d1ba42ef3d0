"""One iteration of the loop of a group's worker: the steps of DistributedHerder.tick of Kafka 4.3.0, in its order."""

from __future__ import annotations

import threading
import time

import structlog

from mm2.connect.api import ConnectError
from mm2.connect.group.membership import GroupMember
from mm2.connect.herder.internal_requests import SessionKeys
from mm2.connect.herder.request_queue import NEVER, RequestQueue, StageTracker
from mm2.connect.herder.steps.config_changes import ConfigChanges
from mm2.connect.herder.steps.config_view import ConfigView
from mm2.connect.herder.steps.fencing import LeaderPrivileges
from mm2.connect.herder.steps.rebalances import Rebalances

log = structlog.get_logger("mm2.connect.herder.tick")


class HerderTick:
    """Runs on the herder's thread. ``ready`` is set when the first assignment has been started."""

    def __init__(
        self,
        member: GroupMember,
        view: ConfigView,
        rebalances: Rebalances,
        privileges: LeaderPrivileges,
        session_keys: SessionKeys,
        requests: RequestQueue,
        changes: ConfigChanges,
        stages: StageTracker,
        ready: threading.Event,
    ) -> None:
        self._member = member
        self._view = view
        self._rebalances = rebalances
        self._privileges = privileges
        self._session_keys = session_keys
        self._requests = requests
        self._changes = changes
        self._stages = stages
        self._ready = ready

    def run(self) -> None:
        """Perform the steps that are due, then wait for the next event. Raises ConnectError and KafkaFailure."""
        if not self._view.catch_up():
            return
        with self._stages.during("ensuring membership in the cluster"):
            if not self._member.ensure_active():
                return
        if not self._rebalances.complete():
            return
        if not self._privileges.reclaim(is_leader=self._rebalances.is_leader) or not self._rotate_session_key():
            return
        self._ready.set()
        next_due_s = self._requests.run_due(lambda: self._privileges.fenced)
        self._changes.process_restarts()
        next_due_s = min(next_due_s, self._rebalances.due_s())
        if self._rebalances.is_leader:
            next_due_s = min(next_due_s, self._session_keys.due_s())
        if self._changes.apply():
            return
        self._wait(next_due_s)
        self._rebalances.complete()

    def _wait(self, due_s: float) -> None:
        """Wait for a rebalance or a wake-up, at most until ``due_s``."""
        left_s = None if due_s == NEVER else max(0.0, due_s - time.monotonic())
        until = "" if left_s is None else f"for up to {left_s * 1000:.0f}ms or "
        with self._stages.during(f"polling the group coordinator {until}until interrupted"):
            self._member.poll(left_s)

    def _rotate_session_key(self) -> bool:
        """As leader of a group that signs requests, replace an expired key. False: writing the new key failed."""
        key = self._session_keys.replacement() if self._rebalances.is_leader else None
        if key is None:
            return True
        try:
            self._privileges.put_session_key(key)
        except ConnectError as error:
            log.warning("session key not written", reason=str(error))
            self._view.doubt()
            return False
        self._session_keys.accept(key)
        return True
