"""The pages. Each is made when somebody opens it, and shown the newest snapshot once a second."""

from __future__ import annotations

from typing import Protocol

from mm2.observer.views import Snapshot


class View(Protocol):
    """Its constructor makes the elements of a page."""

    def show(self, snapshot: Snapshot) -> None:
        """Have them say how things are now."""
