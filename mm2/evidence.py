"""What may be stated of a cluster, and the evidence for it. Pure.

A statement about a cluster is made only if all of its evidence was read; otherwise its ``without`` takes its place, which states no more than
what is known. Programs take the words from here, so no sentence can be wider than its evidence. `mm2.metrics` gives each metric its
evidence in the same way. docs/STATEMENTS.md is generated from both (`python -m mm2.cli.statements`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final


class Evidence(StrEnum):
    """What was read, and where."""

    SOURCE_LOGS = "source_logs"
    SOURCE_TOPICS = "source_topics"
    LEDGER = "ledger"
    TARGET_LOGS = "target_logs"
    RECORDS = "records"
    GROUPS = "groups"
    HEARTBEATS = "heartbeats"
    WORKERS = "workers"
    CONFIGS = "configs"
    RIGHTS = "rights"
    PROCESS = "process"


#: Each kind of evidence: a short name, and what is read.
READ: Final[Mapping[Evidence, tuple[str, str]]] = {
    Evidence.SOURCE_LOGS: (
        "logs of {source}",
        "log end offsets and topic ids of the source partitions, requested from the source",
    ),
    Evidence.SOURCE_TOPICS: ("topics of {source}", "the topics of the source, and which of them the flow selects"),
    Evidence.LEDGER: ("ledger on {target}", "the flow's ledger on the target, read to its end"),
    Evidence.TARGET_LOGS: (
        "logs of {target}",
        "topic ids and log end offsets of the remote partitions, requested from the target after the ledger was read",
    ),
    Evidence.RECORDS: ("records on both clusters", "every record of the compared range, on both clusters"),
    Evidence.GROUPS: (
        "groups on both clusters",
        "checkpoints, and committed offsets of the groups in them or in the ledger, on both clusters",
    ),
    Evidence.HEARTBEATS: ("heartbeats on {target}", "heartbeats topics of the target"),
    Evidence.WORKERS: (
        "workers of the flow",
        "config and status topics on the target, or the herder of this process: connectors, tasks, their states and assignment",
    ),
    Evidence.CONFIGS: ("configurations on both clusters", "configurations of the topic on both clusters"),
    Evidence.RIGHTS: (
        "authorized operations",
        "what the brokers report that the flow's users may do, and validated requests",
    ),
    Evidence.PROCESS: ("this process", "counters of this process since it started"),
}


@dataclass(frozen=True, slots=True)
class Statement:
    """``where`` it is made. ``text`` if all ``evidence`` was read, ``without`` otherwise; both are format strings."""

    where: str
    evidence: tuple[Evidence, ...]
    text: str
    without: str

    def __call__(self, *, is_known: bool = True, **values: Any) -> str:
        """The sentence. ``is_known``: all evidence was read."""
        return (self.text if is_known else self.without).format(**values)


_LOGS: Final = (Evidence.SOURCE_LOGS, Evidence.LEDGER, Evidence.TARGET_LOGS)
_STATUS: Final = "`status`, page Flows, field `sentence`"

RISK: Final = Statement(
    _STATUS, _LOGS, "If {source} dies now you lose {records}.", "What would be lost is not known{why}."
)
NO_LAG: Final = Statement(f"{_STATUS}: `{{records}}` without lag", _LOGS, "nothing", "no record that is known here")
LAG: Final = Statement(f"{_STATUS}: `{{records}}` with lag", _LOGS, "{records}", "at least {records}")
UNCOMPARED: Final = Statement(
    _STATUS,
    (Evidence.LEDGER, Evidence.TARGET_LOGS),
    "",
    "The logs of {target} were not compared with the ledger in {partitions}: {why}.",
)
LOOKED_AT: Final = Statement(
    "`status`, `lag`, field `evidence`", (), "looked at: {read}", "looked at: {read}; not read: {unread}"
)
GAPS: Final = Statement(
    "`gaps`, last line",
    (Evidence.LEDGER, Evidence.TARGET_LOGS),
    "{reasons}; the logs of {target} reach the positions of the ledger ({at}); records were not compared (mm2 verify)",
    "{reasons}; the logs of {target} were not compared with the ledger in {partitions}: {why}",
)
NO_GAP: Final = Statement(
    "`gaps`: `{reasons}` without gaps", (Evidence.LEDGER,), "the ledger lists no gap", "nothing has been copied yet"
)
