"""Consumer groups: their offsets on the source and on the target, and why an offset is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from mm2.evidence import CONTINUES, NO_GROUPS, TRANSLATED, counted
from mm2.observer.groups import if_moved
from mm2.observer.views import FlowView, GroupView, Snapshot
from mm2.reasons import MoveCode
from mm2.ui.elements.listing import Listing, Query, Shared
from mm2.ui.elements.parts import Browser, Cell, Column, Element, Row
from mm2.ui.elements.wording import UNKNOWN, count

Entry = tuple[str, GroupView]
_UNTRANSLATED: Final = "untranslated"
KINDS: Final = {"": "All offsets", _UNTRANSLATED: "Not translated yet", "translated": "Translated"}


def worst_first(entries: Sequence[Entry]) -> Sequence[Entry]:
    """Offsets that are not translated first, then those that are not written on the target."""
    return sorted(entries, key=lambda row: (row[1].translated is not None, not row[1].reason))


GROUPS: Final = Shared[Snapshot, Entry](
    Listing[Entry](
        flow=lambda entry: entry[0],
        text=lambda entry: f"{entry[1].group} {entry[1].topic}-{entry[1].partition} {entry[1].reason}",
        kind=lambda entry, kind: (entry[1].translated is None) == (kind == _UNTRANSLATED),
        keys={
            "group": lambda entry: (entry[1].group, entry[1].topic, entry[1].partition),
            "topic": lambda entry: (entry[1].topic, entry[1].partition, entry[1].group),
            "source": lambda entry: entry[1].source_offset,
            "translated": lambda entry: entry[1].translated,
            "target": lambda entry: entry[1].target_offset,
            "source_lag": lambda entry: entry[1].source_lag,
            "target_lag": lambda entry: entry[1].target_lag,
            "moved": lambda entry: None if entry[1].if_moved is None else str(entry[1].if_moved),
            "reason": lambda entry: entry[1].reason or None,
        },
    ),
    lambda snapshot: worst_first([(flow.name, view) for flow in snapshot.flows for view in flow.groups]),
)
COLUMNS: Final = (
    Column("Group", "head", "group"),
    Column("Topic and partition", "", "topic"),
    Column("Offset on the source", "number", "source"),
    Column("Lag", "number", "source_lag"),
    Column("Translated", "number", "translated"),
    Column("Offset on the target", "number", "target"),
    Column("Lag there", "number", "target_lag"),
    Column("If moved now", "prose", "moved"),
    Column("Reason", "prose", "reason"),
)


class GroupsView:
    """The groups of all flows, or of one."""

    def __init__(self, snapshot: Snapshot, wanted: Mapping[str, str]) -> None:
        flows = [flow.name for flow in snapshot.flows]
        self._snapshot = snapshot
        Element("h1", "Groups")
        self._lead = Element("p", "", "lead")
        self._browser = Browser(
            COLUMNS,
            lambda query: GROUPS.select(self._snapshot, query),
            row_of,
            flow_of=lambda entry: entry[0],
            query=Query.of(wanted),
            noun="offsets",
            caption="Consumer groups and their offsets on both clusters",
            nothing="No group matches.",
            search="Group, topic or reason",
            kinds=KINDS,
            flows=flows,
        )

    def show(self, snapshot: Snapshot) -> None:
        """See View."""
        self._snapshot = snapshot
        self._lead.show(lead(snapshot.flows))
        self._browser.show()


def row_of(entry: Entry) -> Row:
    """The row of a group in one partition."""
    _, view = entry
    return Row(
        (
            view.group,
            Cell(f"{view.topic}-{view.partition}", hint=f"to {view.remote_topic}"),
            count(view.source_offset),
            count(view.source_lag),
            count(view.translated),
            count(view.target_offset),
            count(view.target_lag),
            if_moved(view) or UNKNOWN,
            view.reason,
        )
    )


def lead(flows: Sequence[FlowView]) -> str:
    """How many offsets there are, what consumers would do on the target, and which of this is not known."""
    views = [view for flow in flows for view in flow.groups]
    groups = len({(flow.name, view.group) for flow in flows for view in flow.groups})
    missing = sum(view.translated is None for view in views)
    sentences = []
    if views:
        translated = TRANSLATED(is_known=not missing, missing=f"{missing:,}")
        offsets = counted(len(views), "committed offset")
        sentences.append(f"{counted(groups, 'group')} with {offsets}; {translated}. {_moved(views)}")
    elif not any(flow.groups_error for flow in flows):
        sentences.append(NO_GROUPS(flows=", ".join(flow.name for flow in flows)))
    return " ".join((*sentences, *filter(None, map(unknown, flows))))


def unknown(flow: FlowView) -> str:
    """Which offsets of groups are not known, or not those of now; "" if all are."""
    found = []
    if flow.groups_error:
        found.append(NO_GROUPS(is_known=False, flows=flow.name, why=flow.groups_error.rstrip(".")))
    found += [
        f"{cluster} does not respond: offsets of groups of {flow.name} on {cluster} are those of its last answer."
        for cluster, error in ((flow.source, flow.source_error), (flow.target, flow.target_error))
        if error
    ]
    return " ".join(found)


def _moved(views: Sequence[GroupView]) -> str:
    """What consumers would do on the target now. Only mm2 failover and the sync of group offsets commit translated offsets there."""
    known = [view.if_moved for view in views if view.if_moved is not None]
    if not known:
        return CONTINUES(is_known=False)
    differing = [code for code in known if code is not MoveCode.CONTINUES]
    if not differing:
        return CONTINUES()
    return (
        f"If their consumers moved to the target now, {counted(len(differing), 'offset')} would not be the translated one: "
        "mm2 failover commits that first."
    )
