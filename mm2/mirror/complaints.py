"""Saying a lasting trouble once, not at every try."""

from __future__ import annotations

from collections.abc import Iterable

import structlog

log = structlog.get_logger(__name__)


class Complaints:
    """Sentences by subject: a warning when new or changed, a debug line when repeated, an info line when it is over.

    May be used by several threads, such as a task's poll and its scheduler.
    """

    def __init__(self) -> None:
        self._said: dict[str, str] = {}

    def say(self, subject: str, sentence: str) -> None:
        level = log.debug if self._said.get(subject) == sentence else log.warning
        self._said[subject] = sentence
        level(sentence)

    def over(self, subject: str) -> None:
        """The trouble with `subject`, if there was any, is gone."""
        if self._said.pop(subject, None) is not None:
            log.info("Earlier trouble is over.", subject=subject)

    def keep_only(self, prefix: str, subjects: Iterable[str]) -> None:
        """Everything under `prefix` that is not among `subjects` is over."""
        current = set(subjects)
        for subject in list(self._said):  # a copy, made in one go: another thread may add to it
            if subject.startswith(prefix) and subject not in current:
                self.over(subject)
