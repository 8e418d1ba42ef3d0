"""Workers: the processes that share the work of a flow."""

from __future__ import annotations

from typing import Final

from mm2.observer.views import Snapshot
from mm2.ui.parts import Column, Part, Row, Table
from mm2.ui.wording import count

_COLUMNS: Final = (
    Column("Worker", "head"),
    Column("Flow"),
    Column("Role", "word"),
    Column("Connectors", "number"),
    Column("Tasks", "number"),
)
_MOST: Final = 500


class WorkersView:
    """One row for each worker of each flow."""

    def __init__(self) -> None:
        Part("h1", "Workers")
        Part(
            "p",
            "Processes that share the work of a flow. One leads: it deals the work out. When one goes, the others take over what it had.",
            "lead",
        )
        self._table = Table(
            _COLUMNS, caption="Workers of all flows", nothing="No worker is in a group yet.", rows=_MOST
        )

    def show(self, snapshot: Snapshot) -> None:
        """See View."""
        self._table.show(
            [
                Row(
                    (
                        worker.worker_id,
                        flow.name,
                        " · ".join(
                            filter(
                                None,
                                ("leads" if worker.is_leader else "follows", "this process" if worker.is_this else ""),
                            )
                        ),
                        count(worker.connectors),
                        count(worker.tasks),
                    )
                )
                for flow in snapshot.flows
                for worker in flow.workers
            ]
        )
