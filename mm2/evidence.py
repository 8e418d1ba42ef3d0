"""What may be stated of a cluster, and the evidence for it. Pure.

A statement about a cluster is made only if all of its evidence was read; otherwise its ``without`` takes its place, which states no more than
what is known. Programs take the words from here, so no sentence can be wider than its evidence. `mm2.metrics` gives each metric its
evidence in the same way. docs/reference/statements.md is generated from both (`python -m mm2.cli.statements`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
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
        "group, config and status topics of its workers on the target, or the herder of this process: connectors, tasks, states, assignment",
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


def counted(count: int, thing: str) -> str:
    """``1 record``, ``1,200 records``, ``2 properties``."""
    return f"{count:,} {thing if count == 1 else f'{thing}s'.replace('tys', 'ties')}"


def utc_time(at_ms: int, form: str = "%Y-%m-%d %H:%M:%S UTC") -> str:
    """A time as text; as a number if no calendar has it: other clients write times, too."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime(form)
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"


_LOGS: Final = (Evidence.SOURCE_LOGS, Evidence.LEDGER, Evidence.TARGET_LOGS)
_STATUS: Final = "`status`, page Flows, field `sentence`"

IDLE: Final = Statement(
    f"{_STATUS}: no worker copies",
    (Evidence.WORKERS,),
    "Nothing is copied: {why}.",
    "Its workers are not known: {why}.",
)
RISK: Final = Statement(
    _STATUS, _LOGS, "If {source} dies now you lose {records}.", "What would be lost is not known{why}."
)
NO_LAG: Final = Statement(f"{_STATUS}: `{{records}}` without lag", _LOGS, "nothing", "no record that is known here")
LAG: Final = Statement(f"{_STATUS}: `{{records}}` with lag", _LOGS, "{records}", "at least {records}")
UNCOMPARED: Final = Statement(
    f"{_STATUS}; `plan`, notes",
    (Evidence.LEDGER, Evidence.TARGET_LOGS),
    "",
    "The logs of {target} were not compared with the ledger in {partitions}: {why}.",
)
NOT_COPIED_BACK: Final = Statement(
    f"{_STATUS}: topics that came from the target under the same name",
    (Evidence.SOURCE_TOPICS, Evidence.RECORDS),
    "",
    "{source} has {topics} that came from {target}: records that other producers wrote to them are not copied, and were not counted here "
    "(mm2 failover --dry-run).",
)
LOOKED_AT: Final = Statement(
    "`status`, `lag`, `topics`, `groups`, page Flows; field `evidence`",
    (),
    "looked at: {read}",
    "looked at: {read}; not read: {unread}",
)
HEALTHY: Final = Statement(
    "pages Partitions and Topics, first line",
    (*_LOGS, Evidence.WORKERS),
    ", all healthy",
    ", none known to be unhealthy",
)
GAPS: Final = Statement(
    "`gaps`, last line",
    (Evidence.LEDGER, Evidence.TARGET_LOGS),
    "{reasons}; the logs of {target} reach the positions of the ledger ({at}); records were not compared (mm2 verify)",
    "{reasons}; the logs of {target} were not compared with the ledger in {partitions}: {why}",
)
NO_GAP: Final = Statement(
    "`gaps`: `{reasons}` without gaps and lost ranges",
    (Evidence.LEDGER,),
    "the ledger lists no gap",
    "nothing has been copied yet",
)
NO_LOSS: Final = Statement(
    "page Gaps, first line",
    (Evidence.LEDGER,),
    "No lost range is in the ledgers.",
    "The ledger of {flow} has not been read yet: nothing is known of this flow.",
)
NO_REASON: Final = Statement(
    "page Gaps, empty table",
    (Evidence.LEDGER,),
    "No gap is in the ledgers that were read.",
    "No ledger has been read yet.",
)
VERIFIED: Final = Statement(
    "`verify`, last line",
    (Evidence.RECORDS,),
    "{verdict}",
    "nothing could be compared: no record of the range is on both sides",
)
VERIFIED_PAGE: Final = Statement(
    "`verify --html`, first line",
    (Evidence.RECORDS,),
    "All compared records are equal, and all records that are on one side only are explained.",
    "Nothing could be compared: no record of the range is on both sides.",
)
NO_GROUP_REASON: Final = Statement(
    "`groups`, last line",
    (Evidence.LEDGER, Evidence.GROUPS),
    "no reason for a missing offset is in the ledger",
    "not all offsets of groups are known: {why}",
)
NO_GROUPS: Final = Statement(
    "page Groups, first line",
    (Evidence.LEDGER, Evidence.GROUPS),
    "No consumer group has a checkpoint of {flows}, or a reason in the ledger why it has none.",
    "Not all offsets of groups of {flows} are known: {why}.",
)
TRANSLATED: Final = Statement(
    "page Groups, first line", (Evidence.GROUPS,), "all have a checkpoint", "{missing} of them not translated yet"
)
CONTINUES: Final = Statement(
    "page Groups, first line",
    (Evidence.GROUPS, Evidence.TARGET_LOGS),
    "On the target, all would continue at the translated offset.",
    "Their offsets on the target are not known.",
)
CONFIGS_EQUAL: Final = Statement(
    "`topics --topic`, page Topic",
    (Evidence.CONFIGS,),
    "The configurations of {topic} and {remote} are equal, apart from sensitive properties, whose values brokers do not return.",
    "The configuration of the remote topic could not be compared: {why}",
)
NO_TOPICS: Final = Statement(
    "`topics`, without a topic",
    (Evidence.LEDGER, Evidence.SOURCE_TOPICS, Evidence.WORKERS),
    "No topics are copied yet: none is in the ledger, assigned to a task, or selected on the source.",
    "Which topics are copied is not known: {why}",
)
NO_STEPS: Final = Statement(
    "`plan`, without a step",
    (Evidence.SOURCE_TOPICS, Evidence.CONFIGS, Evidence.RIGHTS),
    "nothing to create or change",
    "nothing is known to be created or changed",
)
NO_PROBLEM: Final = Statement(
    "`plan`, last line",
    (Evidence.RIGHTS,),
    "; no problem was found",
    "; no problem was found in what the brokers report",
)
HEARTBEATS: Final = Statement(
    "page Flows, heartbeats",
    (Evidence.HEARTBEATS,),
    "No heartbeats have been received.",
    "The heartbeats of {target} have not been read yet.",
)
FRESH: Final = Statement(
    "`heartbeats`, column VERDICT",
    (Evidence.HEARTBEATS, Evidence.SOURCE_TOPICS),
    "fresh",
    "written without {source}, which does not answer",
)
LEFT: Final = Statement(
    "`failover`, `failback`, `promote`: records on the source only",
    _LOGS,
    "{records}",
    "at least {records} known to {target}, and those written to {source} since the last contact",
)
MISSING_ZERO: Final = Statement(
    "the same: topics that are not listed",
    _LOGS,
    "with MISSING 0, and none in an error state",
    "with MISSING at least 0, and none in an error state",
)

STATEMENTS: Final[Mapping[str, Statement]] = {
    name: value for name, value in list(globals().items()) if isinstance(value, Statement)
}
