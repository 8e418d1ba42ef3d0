"""Which buttons of the page of a topic are enabled, and what it advises."""

from __future__ import annotations

import pytest

from mm2.copy.states import PartitionState
from mm2.observer.views import PartitionView
from mm2.reasons import PauseCode
from mm2.ui.elements.actions import LIMIT_TOPIC, PAUSE_TOPIC, RESUME_TOPIC, UNLIMIT_TOPIC, Action
from mm2.ui.views.topic import effective_actions, promotion_advice


def partitions(*pauses: PauseCode | None) -> list[PartitionView]:
    return [
        PartitionView("t", number, "t", PartitionState.RUNNING if code is None else PartitionState.PAUSED, pause=code)
        for number, code in enumerate(pauses)
    ]


@pytest.mark.parametrize(
    ("pauses", "actions"),
    [
        ((None, None), {PAUSE_TOPIC}),
        ((None, PauseCode.USER), {PAUSE_TOPIC, RESUME_TOPIC}),
        ((PauseCode.USER, PauseCode.USER), {RESUME_TOPIC}),
        ((PauseCode.FLOW,), {PAUSE_TOPIC}),
        ((PauseCode.PROMOTED,), set()),
        ((PauseCode.TURNED,), set()),
        ((PauseCode.NOT_SELECTED,), set()),
    ],
)
def test_a_button_is_enabled_where_it_would_change_something(
    pauses: tuple[PauseCode | None, ...], actions: set[Action]
) -> None:
    assert effective_actions(partitions(*pauses), None) == actions | {LIMIT_TOPIC}
    assert effective_actions(partitions(*pauses), 500) == actions | {LIMIT_TOPIC, UNLIMIT_TOPIC}


def test_the_page_of_a_promoted_topic_names_the_command_that_continues_it() -> None:
    advice = " Resume does not continue it; mm2 failback 'A->B' ends the promotion."
    assert promotion_advice("A->B", partitions(PauseCode.PROMOTED)) == advice
    assert promotion_advice("A->B", partitions(PauseCode.USER, None)) == ""
