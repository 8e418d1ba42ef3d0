"""The workers of each flow, and the expiry dates of this process's certificates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mm2.observer.views import Snapshot
from mm2.ui.elements.parts import Cell, Column, Element, Row, Table
from mm2.ui.elements.wording import count, moment, seconds, worker_name

_COLUMNS: Final = (
    Column("Worker", "head"),
    Column("Flow"),
    Column("Role", "word"),
    Column("Connectors", "number"),
    Column("Tasks", "number"),
)
_CERTIFICATES: Final = (
    Column("File", "head"),
    Column("For"),
    Column("Flow"),
    Column("Expires"),
    Column("In", "number"),
    Column("Note"),
)
_MOST: Final = 500
_LISTENERS: Final = "listeners of this process"


class WorkersView:
    """One row per worker and flow."""

    def __init__(self) -> None:
        Element("h1", "Workers")
        Element(
            "p",
            "Processes that share the tasks of a flow. The leader assigns them. When a worker leaves the group, its tasks are reassigned.",
            "lead",
        )
        self._table = Table(
            _COLUMNS, caption="Workers of all flows", nothing="No worker has joined a group yet.", rows=_MOST
        )
        Element("h2", "Certificates")
        self._certificates = Table(
            _CERTIFICATES,
            caption="Certificates that this process uses",
            nothing="This process uses no certificates.",
            rows=_MOST,
        )

    def show(self, snapshot: Snapshot) -> None:
        """See View."""
        self._table.show(
            [
                Row(
                    (
                        Cell(
                            worker_name(worker.worker_id, [one.worker_id for one in flow.workers]),
                            hint=worker.worker_id,
                        ),
                        flow.name,
                        " · ".join(
                            filter(
                                None,
                                (
                                    "leader" if worker.is_leader else "follower",
                                    "this process" if worker.is_this else "",
                                ),
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
        self._certificates.show(certificates(snapshot))


def certificates(snapshot: Snapshot) -> Sequence[Row]:
    """Certificates by expiry date, the earliest first."""
    return [
        Row(
            (
                one.file,
                f"cluster {one.cluster}" if one.cluster else _LISTENERS,
                f"{one.source}->{one.target}" if one.source else "",
                moment(one.expires_ms),
                "expired" if one.expires_ms <= snapshot.at_ms else seconds((one.expires_ms - snapshot.at_ms) / 1000),
                f"replaced, but not in use: {one.problem}" if one.problem else "",
            )
        )
        for one in sorted(snapshot.certificates, key=lambda one: one.expires_ms)
    ]
