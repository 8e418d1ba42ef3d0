"""Decides when failed connectors and tasks are restarted. Pure.

In Connect a failure is final until a user restarts the connector or task through REST. A dedicated MirrorMaker has no
REST interface in Java: a permission that was missing for five seconds would end the heartbeats for good (KAFKA-14250).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

FIRST_DELAY_S: Final = 10.0
LONGEST_DELAY_S: Final = 300.0
#: After this time without a failure, the next failure counts as the first one.
FORGET_AFTER_S: Final = 600.0

_FAILED: Final = "FAILED"


@dataclass(slots=True)
class _Case:
    due_s: float
    delay_s: float
    seen_s: float


@dataclass(slots=True)
class Restarts:
    """The failures of one flow. Times are seconds of one monotonic clock."""

    _cases: dict[str, _Case] = field(default_factory=dict)

    def due(self, status: Mapping[str, Any], now_s: float) -> list[str]:
        """The connectors to restart now, their failed parts only, from a herder's `status()`. Called by the leader."""
        failed = {name for name, connector in status["connectors"].items() if _has_failed(connector)}
        for name in [name for name, case in self._cases.items() if now_s - case.seen_s > FORGET_AFTER_S]:
            del self._cases[name]
        due = []
        for name in sorted(failed):
            case = self._cases.get(name)
            if case is None:
                case = self._cases[name] = _Case(now_s + FIRST_DELAY_S, FIRST_DELAY_S, now_s)
            elif now_s - case.seen_s > FIRST_DELAY_S:
                # It had worked in between: the delay starts with this failure.
                case.due_s = now_s + case.delay_s
            case.seen_s = now_s
            if now_s >= case.due_s and status["leader"]:
                case.delay_s = min(case.delay_s * 2, LONGEST_DELAY_S)
                case.due_s = now_s + case.delay_s
                due.append(name)
        return due


def _has_failed(connector: Mapping[str, Any]) -> bool:
    parts = [connector["connector"], *connector["tasks"]]
    return any(part["state"] == _FAILED for part in parts)
