"""The state and the sentence of a flow."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import pytest

from mm2.copy.states import PartitionState
from mm2.observer.flow_state import FlowInputs, duration, state_of, summary_of
from mm2.observer.partitions import Partitions
from mm2.observer.views import ConnectorView, FlowState, LossView, Risk
from mm2.reasons import PauseCode

NOON_MS = 1_700_000_000_000  # 22:13:20 UTC
HEALTHY = FlowInputs("A", "B", True, Partitions(states=Counter({PartitionState.RUNNING: 3}), risk=Risk(0.0, 0, 0)))
FAILED = ConnectorView("c", "source", "FAILED", "w")
RETENTION = LossView("t", 0, 300, 899, "retention", NOON_MS)


def like(inputs: FlowInputs = HEALTHY, **changes: object) -> FlowInputs:
    """With changes of it, of its partitions and of its work."""
    parts: dict[str, object] = {}
    for name in ("partitions", "work"):
        part: Any = getattr(inputs, name)
        own = {one.name: changes.pop(one.name) for one in dataclasses.fields(part) if one.name in changes}
        parts[name] = dataclasses.replace(part, **own)
    return dataclasses.replace(inputs, **parts, **changes)  # type: ignore[arg-type]


BEHIND = like(risk=Risk(4.2, 3400, 9))


@pytest.mark.parametrize(
    ("inputs", "state", "sentence"),
    [
        (HEALTHY, FlowState.RUNNING, "If A dies now you lose nothing."),
        (BEHIND, FlowState.RUNNING, "If A dies now you lose 4.2 seconds, 3,400 records."),
        (like(risk=Risk(0.3, 1, 9)), FlowState.RUNNING, "If A dies now you lose 0.3 seconds, 1 record."),
        (
            like(risk=Risk(None, 7, 9, 7, 28.8)),
            FlowState.RUNNING,
            "If A dies now you lose at least 29 seconds, 7 records.",
        ),
        (
            like(risk=Risk(None, 7, 9)),
            FlowState.RUNNING,
            "If A dies now you lose 7 records; the age of the oldest is not known yet.",
        ),
        (
            like(seen=False, risk=Risk(), states={}),
            FlowState.UNKNOWN,
            "What would be lost is not known yet.",
        ),
        (
            like(seen=False, risk=Risk(), states={}, target_error="B does not answer."),
            FlowState.DEGRADED,
            "What would be lost is not known: B does not answer.",
        ),
        (
            like(risk=Risk(), states={}, unknown="B has no ledger of what comes from A"),
            FlowState.UNKNOWN,
            "What would be lost is not known: B has no ledger of what comes from A.",
        ),
        (
            like(BEHIND, source_error="timed out", source_error_since_ms=NOON_MS),
            FlowState.DEGRADED,
            "A has not answered since 2023-11-14 22:13:20 UTC. If it died then, you lost 4.2 seconds, 3,400 records.",
        ),
        (
            like(source_error="timed out", source_error_since_ms=NOON_MS),
            FlowState.DEGRADED,
            "A has not answered since 2023-11-14 22:13:20 UTC. If it died then, you lost nothing.",
        ),
        (
            like(risk=Risk(4.2, None, 9, 3400), source_error="timed out", source_error_since_ms=NOON_MS),
            FlowState.DEGRADED,
            "A has not answered since 2023-11-14 22:13:20 UTC. If it died then, you lost 4.2 seconds, at least 3,400 records.",
        ),
        (
            like(risk=Risk(0.0, None, 0, 0), source_error="timed out"),
            FlowState.DEGRADED,
            "A does not answer. If it died then, you lost no record that is known here.",
        ),
        (
            like(BEHIND, target_error="timed out", target_error_since_ms=NOON_MS),
            FlowState.DEGRADED,
            "If A dies now you lose 4.2 seconds, 3,400 records. B has not answered since 2023-11-14 22:13:20 UTC.",
        ),
        (
            like(BEHIND, idle_reason="all tasks have failed: ConnectError: no."),
            FlowState.STOPPED,
            "Nothing is copied: all tasks have failed: ConnectError: no. If A dies now you lose 4.2 seconds, 3,400 records.",
        ),
        (
            like(BEHIND, held="paused", idle_reason="its tasks are assigned to no worker"),
            FlowState.PAUSED,
            "Copying is paused. If A dies now you lose 4.2 seconds, 3,400 records.",
        ),
        (
            like(unbegun=1),
            FlowState.RUNNING,
            "If A dies now you lose all records of 1 partition not copied yet.",
        ),
        (
            like(risk=Risk(), unbegun=4),
            FlowState.CATCHING_UP,
            "If A dies now you lose all records of 4 partitions not copied yet.",
        ),
        (
            like(BEHIND, unbegun=2),
            FlowState.RUNNING,
            "If A dies now you lose 4.2 seconds, 3,400 records, and 2 partitions not copied yet.",
        ),
        (
            like(BEHIND, differences={"missing": 1_200, "doubled": 0, "altered value": 1}),
            FlowState.DEGRADED,
            (
                "If A dies now you lose 4.2 seconds, 3,400 records. "
                "B differs from A: 1,200 missing, 1 altered value, found by mm2 verify."
            ),
        ),
        (like(differences={"missing": 0}), FlowState.RUNNING, "If A dies now you lose nothing."),
        (
            like(states={}, nothing_selected="A has no topics"),
            FlowState.NO_TOPICS,
            "Nothing is copied: A has no topics. If A dies now you lose nothing.",
        ),
        (
            like(
                states={PartitionState.RUNNING: 1, PartitionState.PAUSED: 78},
                pauses={PauseCode.PROMOTED: 77, PauseCode.USER: 1},
                heartbeats=1,
            ),
            FlowState.PAUSED,
            (
                "78 of 78 partitions are paused and not copied: 77 promoted by mm2 failover or mm2 promote (mm2 failback), "
                "1 by a user (mm2 resume). If A dies now you lose nothing."
            ),
        ),
        (
            like(states={PartitionState.RUNNING: 78, PartitionState.PAUSED: 1}, pauses={PauseCode.USER: 1}),
            FlowState.RUNNING,
            ("1 of 79 partitions are paused and not copied: 1 by a user (mm2 resume). If A dies now you lose nothing."),
        ),
    ],
)
def test_the_summary_sentence_describes_the_state(inputs: FlowInputs, state: FlowState, sentence: str) -> None:
    assert (state_of(inputs), summary_of(inputs)) == (state, sentence)


@pytest.mark.parametrize(
    ("inputs", "state"),
    [
        (like(states={PartitionState.RUNNING: 9, PartitionState.UNAUTHORIZED: 1}), FlowState.DEGRADED),
        (like(states={PartitionState.RUNNING: 9, PartitionState.PAUSED: 1}), FlowState.RUNNING),
        (like(states={PartitionState.PAUSED: 2}), FlowState.PAUSED),
        (like(states={PartitionState.RUNNING: 9, PartitionState.CATCHING_UP: 1}), FlowState.CATCHING_UP),
        (like(states={PartitionState.RUNNING: 9, PartitionState.THROTTLED: 1}), FlowState.CATCHING_UP),
        (like(connectors=(FAILED,)), FlowState.DEGRADED),
        (like(troubles=("t-0 has something to copy and does not go on",)), FlowState.DEGRADED),
        (like(held="stopped", connectors=(FAILED,)), FlowState.PAUSED),
        (like(states={}), FlowState.RUNNING),
    ],
)
def test_the_worst_state_is_reported(inputs: FlowInputs, state: FlowState) -> None:
    assert state_of(inputs) is state


@pytest.mark.parametrize(
    ("losses", "output"),
    [
        (
            (RETENTION,),
            "offsets 300 to 899 of t-0, deleted on A before they were copied",
        ),
        (
            (LossView("t", 1, 7, 7, "recreated", NOON_MS), RETENTION),
            "601 offsets in 2 ranges of 2 partitions, the newest offset 7 of t-1, lost when the topic was recreated on A",
        ),
        (
            (LossView("t", 0, 5, 6, "truncated", NOON_MS), RETENTION),
            "602 offsets in 2 ranges, the newest offsets 5 to 6 of t-0, truncated on A after they were copied",
        ),
    ],
)
def test_permanent_losses_are_reported_last_and_do_not_degrade_the_flow(
    losses: tuple[LossView, ...], output: str
) -> None:
    inputs = like(BEHIND, losses=losses)
    lost = f"Permanently lost within the last day: {output} (found 2023-11-14 22:13 UTC); see mm2 gaps."
    assert summary_of(inputs) == f"{summary_of(BEHIND)} {lost}"
    assert state_of(inputs) is FlowState.RUNNING


@pytest.mark.parametrize(
    ("seconds", "output"),
    [
        (0, "0.0 seconds"),
        (9.94, "9.9 seconds"),
        (119, "119 seconds"),
        (121, "2 minutes"),
        (7_201, "2 hours"),
        (1e6, "12 days"),
    ],
)
def test_durations_are_readable(seconds: float, output: str) -> None:
    assert duration(seconds) == output
