"""The decision of a user where copying continues after the source has been replaced by another cluster, as a note in the ledger.

  {"note":["source-cluster"]}   {"id":"<cluster id>","from_start":false,"at_ms":1700000000000}

A flow's positions are valid in the cluster that was copied. If another cluster has the alias, because it was rebuilt or a backup was
restored under another id, its partitions stop (SOURCE_REPLACED) until ``mm2 accept-source`` has written this note.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import Final

from mm2.copy.progress.ledger import Ledger, note_record
from mm2.copy.progress.segments import Trail
from mm2.copy.progress.session import Start
from mm2.kafka.records.record import Record

_NOTE: Final = "source-cluster"


@dataclass(frozen=True, slots=True)
class AcceptedSource:
    """The cluster that was accepted. ``from_start``: copying begins again, as with a new flow; otherwise it continues at its positions."""

    cluster_id: str
    from_start: bool

    def record(self) -> Record:
        """The note for the ledger."""
        value = {"id": self.cluster_id, "from_start": self.from_start, "at_ms": time.time_ns() // 1_000_000}
        return note_record(_NOTE, (), value)

    def start(self, start: Start) -> Start:
        """The start of a partition that was copied from another cluster; the same start for any other.

        Records that were copied after the last commit are copied again: the accepted cluster may have others.
        """
        entry = start.entry
        if entry is None or entry.copy_id.cluster in {"", self.cluster_id}:
            return start
        entry = entry.replace(session=None, condition=None, copy_id=entry.copy_id._replace(cluster=self.cluster_id))
        if not self.from_start:
            return dataclasses.replace(start, entry=entry, clean=False, moved=True)
        trail = Trail(start.chunk, entry.gaps, start.unwritten)
        trail.restart()
        return dataclasses.replace(
            start,
            position=None,
            entry=entry,
            chunk=trail.newest,
            clean=False,
            moved=True,
            unwritten=trail.unwritten(),
        )


def accepted_source(ledger: Ledger) -> AcceptedSource | None:
    """The newest decision; None if there is none, or if it is not readable."""
    note = ledger.notes(_NOTE).get((), {})
    cluster_id, from_start = note.get("id"), note.get("from_start")
    if not (isinstance(cluster_id, str) and cluster_id and isinstance(from_start, bool)):
        return None
    return AcceptedSource(cluster_id, from_start)
