"""States are coloured on a terminal, and nowhere else."""

from __future__ import annotations

import argparse
import io

import pytest

from mm2.cli.colours import colour_states, coloured
from mm2.cli.terminal import TerminalStream
from mm2.copy.states import PartitionState
from mm2.observer.views import FlowState


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
