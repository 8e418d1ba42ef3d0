"""States are coloured on a terminal, and nowhere else."""

from __future__ import annotations

import argparse
import io

import pytest

from mm2.cli.common.colours import colour_states, coloured
from mm2.cli.common.terminal import TerminalStream
from mm2.copy.states import PartitionState
from mm2.observer.views import FlowState
from mm2.ui.elements.parts import TONES


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")


def written(stream: io.StringIO, text: str, **options: bool) -> str:
    wrapped = TerminalStream(stream)
    colour_states(wrapped, argparse.Namespace(**options))  # type: ignore[arg-type]  # a text stream by its methods
    wrapped.write(text)
    return stream.getvalue()


@pytest.mark.parametrize("state", [*PartitionState, *FlowState])
def test_every_state_has_a_colour(state: str) -> None:
    assert coloured(f"orders-0  {state}\n").startswith("orders-0  \x1b[")


@pytest.mark.parametrize(
    ("state", "tone", "code"),
    [
        ("RUNNING", "ok", "32"),
        ("PREPARING", "busy", "33"),
        ("BLOCKED_BY_OPEN_TXN", "warning", "33"),
        ("PAUSED", "paused", "33"),
        ("UNKNOWN", "unknown", "33"),
        ("RESTARTING", "busy", "33"),
        ("TOO_LARGE", "bad", "1;31"),
        ("STOPPED", "critical", "1;31"),
    ],
)
def test_terminals_and_pages_show_a_state_in_the_same_tone(state: str, tone: str, code: str) -> None:
    """The tone is a class of the stylesheet."""
    assert coloured(state) == f"\x1b[{code}m{state}\x1b[0m"
    assert f"state {TONES[state]}" == f"state {tone}"


def test_reasons_of_gaps_are_not_coloured_as_states() -> None:
    assert coloured("missing, quarantined") == "missing, quarantined"


def test_colours_do_not_change_the_text() -> None:
    assert coloured("A->B  RUNNING  fine") == "A->B  \x1b[32mRUNNING\x1b[0m  fine"
    assert coloured("RUNNINGS and a_PAUSED_topic") == "RUNNINGS and a_PAUSED_topic"


def test_only_terminals_get_colours() -> None:
    assert written(Terminal(), "RUNNING") == "\x1b[32mRUNNING\x1b[0m"
    assert written(io.StringIO(), "RUNNING") == "RUNNING"


def test_documents_have_no_colours() -> None:
    assert written(Terminal(), "RUNNING", json=True) == "RUNNING"


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colours_can_be_turned_off(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    assert written(Terminal(), "RUNNING") == "RUNNING"


def test_a_name_of_a_cluster_cannot_add_its_own() -> None:
    assert written(Terminal(), "\x1b[31mx RUNNING") == "\\u001b[31mx \x1b[32mRUNNING\x1b[0m"
