"""Logs recurring errors once instead of at every attempt."""

from __future__ import annotations

from collections.abc import Iterable

import structlog

log = structlog.get_logger("mm2.mirror.recurring_errors")


class RecurringErrors:
    """Errors by subject: a warning when new or changed, a debug line when repeated, an info line when resolved.

    Thread-safe: a task's poll and its scheduler share one instance.
    """

    def __init__(self) -> None:
        self._messages: dict[str, str] = {}

    def report(self, subject: str, message: str, *, is_note: bool = False) -> None:
        """Report an error; ``is_note``: replication is not affected."""
        level = log.debug if self._messages.get(subject) == message else log.warning
        self._messages[subject] = message
        level(message)

    def resolve(self, subject: str) -> None:
        """Report that the last attempt with ``subject`` succeeded."""
        if self._messages.pop(subject, None) is not None:
            log.info("An earlier error is resolved.", subject=subject)

    def keep_only(self, prefix: str, subjects: Iterable[str]) -> None:
        """Resolve all subjects that begin with ``prefix`` and are not among ``subjects``."""
        current = set(subjects)
        for subject in list(self._messages):  # a copy made in one step: another thread may add to the dict
            if subject.startswith(prefix) and subject not in current:
                self.resolve(subject)
