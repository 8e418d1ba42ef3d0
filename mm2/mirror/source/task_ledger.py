"""The ledger of a task of the source connector, which its lanes read before they begin, and the topics that the task creates."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

import structlog

from mm2.copy.progress.ledger import Ledger, LedgerLog
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.mirror.common.clients import MirrorClients, Side
from mm2.mirror.common.internal_topics import create_kept_topic
from mm2.mirror.common.recurring_errors import RecurringErrors
from mm2.mirror.topics.own_topics import kept_dead_letters, kept_ledger

log = structlog.get_logger("mm2.mirror.source_task")

_LEDGER_TIMEOUT_S: Final = 30.0
_LEDGER_PATIENCE_S: Final = 15.0
_LEDGER_AGAIN_S: Final = 0.25
_LOOK_TIMEOUT_S: Final = 5.0
_NO_TOPIC: Final = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class TaskLedger:
    """``new`` makes the reader of the topic, ``create_topics`` creates it and the task's other topics where they are missing."""

    def __init__(self, new: Callable[[], LedgerLog], create_topics: Callable[[], None]) -> None:
        self._new = new
        self._create_topics = create_topics
        self._log: LedgerLog | None = None
        self._reading: LedgerLog | None = None  # the same, as soon as reading begins
        self._is_stopped = False
        self._lock = threading.Lock()
        self._deadline = 0.0

    @property
    def known(self) -> Ledger | None:
        """What has been read; None before the first reading has ended."""
        return None if self._log is None else self._log.ledger

    def stop_reading(self) -> None:
        """End a first reading that has not ended, now and later."""
        self._is_stopped = True
        if self._log is None and self._reading is not None:
            self._reading.stop()

    def stop(self) -> None:
        """Stop following the topic."""
        if self._log is not None:
            self._log.stop()

    def read(self) -> Ledger:
        """The current ledger; an empty one when the topic still does not exist after a while. Raises KafkaFailure."""
        with self._lock:
            # Waited for once, not by each lane and after each loss.
            self._deadline = self._deadline or time.monotonic() + _LEDGER_PATIENCE_S
            deadline = self._deadline
            if self._log is None:
                self._create_topics()
            while self._log is None:
                ledger = self._reading = self._new()
                if self._is_stopped:
                    ledger.stop()
                try:
                    ledger.start(_LEDGER_TIMEOUT_S)
                except KafkaFailure as failure:
                    missing = isinstance(failure, BrokerFailure) and failure.code == _NO_TOPIC
                    if not failure.is_final and not missing:
                        raise
                    if not missing or time.monotonic() > deadline:
                        log.warning("There is no ledger: delivery is at-least-once.", reason=str(failure))
                        return Ledger()
                    time.sleep(_LEDGER_AGAIN_S)
                else:
                    self._log = ledger
                    return ledger.ledger
            try:
                self._log.read_to_end(_LEDGER_PATIENCE_S)
            except BrokerFailure as failure:
                if failure.code != _NO_TOPIC:
                    raise
                # Entries that were read stay valid as long as they match the positions, and so do pauses and limits.
                log.warning(
                    "The ledger was deleted and is recreated: records after the last positions are copied again, and gaps of "
                    "partitions that are not being copied are forgotten.",
                    reason=str(failure),
                )
                self._create_topics()
            return self._log.ledger


def existing_ledger(clients: MirrorClients, topic: str) -> Ledger | None:
    """A ledger as it is now; None if there is none. Raises KafkaFailure."""
    cluster, _ = clients.admin(Side.TARGET, "replication-target-admin")
    try:
        if topic not in cluster.metadata([topic], timeout_s=_LOOK_TIMEOUT_S).topics:
            return None
    finally:
        cluster.close()
    return clients.ledger_now(Side.TARGET, topic, _LEDGER_TIMEOUT_S)


def create_own_topics(clients: MirrorClients, recurring: RecurringErrors, *, dead_letters: bool) -> None:
    """Create the topics that this project's connector creates before its tasks start; Java's connector does not.

    Errors are logged only: they show again when the topics are used.
    """
    cluster, admin = clients.admin(Side.TARGET, "replication-target-admin")
    wanted = [kept_ledger(clients), *([kept_dead_letters(clients.props)] if dead_letters else [])]
    try:
        there = cluster.metadata([topic.new.name for topic in wanted], timeout_s=_LOOK_TIMEOUT_S).topics
        for topic in wanted:
            if topic.new.name not in there:
                create_kept_topic(admin, topic, clients.target_alias, recurring)
    except KafkaFailure as failure:
        recurring.report("own topics", f"Topics of the flow {clients.flow} cannot be created: {failure}")
    finally:
        cluster.close()
