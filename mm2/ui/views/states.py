"""The states of partitions: what they mean, when they end, and what to do."""

from __future__ import annotations

from typing import Final

from mm2.observer.views import Snapshot
from mm2.ui.elements.meanings import MEANINGS
from mm2.ui.elements.parts import Element, within

_RUNBOOKS: Final = "docs/how-to/runbooks"


class StatesView:
    """One entry per state; links beside states lead to it."""

    def __init__(self) -> None:
        Element("h1", "States of a partition")
        Element(
            "p",
            f"The runbooks are pages of the documentation, in {_RUNBOOKS}: diagnosis, steps to take, and when the problem is solved.",
            "lead",
        )
        with within("dl", "meanings"):
            for state, meaning in MEANINGS.items():
                with within("div", id=state.value):
                    with within("dt"):
                        Element("span").show_state(state)
                    with within("dd"):
                        Element("p", meaning.text)
                        if meaning.ends:
                            Element("p", f"Ends: {meaning.ends[0].lower()}{meaning.ends[1:]}.")
                        if meaning.do:
                            Element("p", f"Do: {meaning.do}")
                        if meaning.runbook:
                            Element("p", f"Runbook: {_RUNBOOKS}/{meaning.runbook}.md", "muted")

    def show(self, snapshot: Snapshot) -> None:
        """See View. Does not change."""
