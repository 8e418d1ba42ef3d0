"""Spark in this process: its lanes and their micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mm2.observer.views import LaneView, Snapshot
from mm2.ui.elements.parts import Cell, Column, Element, Row, Table, within
from mm2.ui.elements.wording import UNKNOWN, count, seconds

_COLUMNS: Final = (
    Column("Lane", "head"),
    Column("Micro-batch", "number"),
    Column("Running for", "number"),
    Column("Lost", "number"),
    Column("Partitions", "number"),
    Column("Error", "prose"),
)
_MOST: Final = 600


class SparkPage:
    """The Spark of this process."""

    def __init__(self) -> None:
        Element("h1", "Spark")
        Element(
            "p",
            "Copying is done in lanes. Each lane is a Spark job that runs one task after another; the next task is started before the previous one ends. "
            "This page shows the lanes of this process only.",
            "lead",
        )
        with within("dl", "figures"):
            self._state = _figure("State")
            self._master = _figure("Master")
            self._application = _figure("Application")
            self._slots = _figure("Slots")
            self._lanes = _figure("Lanes")
            self._moved = _figure("Partitions moved")
            self._lost = _figure("Micro-batches lost")
        self._error = Element("p", "", "message bad", role="status")
        self._table = Table(
            _COLUMNS, caption="Lanes and their micro-batches", nothing="No lane runs in this process.", rows=_MOST
        )

    def show(self, snapshot: Snapshot) -> None:
        """See View."""
        spark = snapshot.spark
        lanes = () if spark is None else spark.lanes
        if spark is None:
            self._state.show_state("")
        else:
            # Spark is started when it is needed, so "not up" is not an error.
            self._state.show("up" if spark.up else "not up")
            self._state.show_classes("state ok" if spark.up else "state bad" if spark.trouble else "state unknown")
        self._master.show((spark.master if spark else "") or UNKNOWN)
        self._application.show((spark.application_id if spark else "") or UNKNOWN)
        self._slots.show(UNKNOWN if spark is None or spark.slots is None else count(spark.slots))
        self._lanes.show(count(len(lanes)))
        self._moved.show(count(sum(flow.moved_partitions for flow in snapshot.flows)))
        self._lost.show(count(sum(lane.lost_batches for lane in lanes)))
        self._error.show(spark.trouble if spark else "")
        self._error.set_visibility(bool(spark and spark.trouble))
        self._table.show(
            [
                Row(
                    (
                        lane.name,
                        count(lane.batch) if lane.batch else UNKNOWN,
                        seconds(None if lane.since_ms is None else max(0, snapshot.at_ms - lane.since_ms) / 1000),
                        count(lane.lost_batches),
                        count(lane.partitions),
                        Cell(lane.trouble, tone="bad"),
                    )
                )
                for lane in blocked_first(lanes)
            ]
        )


def blocked_first(lanes: Sequence[LaneView]) -> Sequence[LaneView]:
    """Lanes with an error first; otherwise the order is kept."""
    return sorted(lanes, key=lambda lane: not lane.trouble)


def _figure(title: str) -> Element:
    with within("div"):
        Element("dt", title)
        return Element("dd", UNKNOWN)
