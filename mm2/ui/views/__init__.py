"""The pages. Each is created when it is opened, and updated with the newest snapshot once per second."""

from __future__ import annotations

from typing import Protocol

from mm2.observer.views import Snapshot


class View(Protocol):
    """The constructor creates the elements of a page."""

    def show(self, snapshot: Snapshot) -> None:
        """Update the elements."""
