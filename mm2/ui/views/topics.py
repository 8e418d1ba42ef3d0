"""The topics of all flows: state, lag and throughput; each links to its page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import urlencode

from mm2.copy.states import HEALTHY, PartitionState
from mm2.evidence import counted
from mm2.observer.curves.history import History
from mm2.observer.shown.topics import SEVERITY, TopicView, topic_views
from mm2.observer.views import FlowView, Snapshot
from mm2.ui.elements.charts import sparkline
from mm2.ui.elements.listing import Listing, Query, Shared
from mm2.ui.elements.meanings import MEANINGS, meaning_page
from mm2.ui.elements.parts import Browser, Cell, Column, Element, Row
from mm2.ui.elements.wording import at_least, count, rate, seconds
from mm2.ui.views.partitions import all_healthy

#: A flow's name and one of its topics.
Entry = tuple[str, TopicView]
_UNHEALTHY: Final = "unhealthy"
_KINDS: Final = {
    "": "All states",
    _UNHEALTHY: "Unhealthy",
    **{state.value: state.value for state in PartitionState},
}
#: Points of a sparkline: ten minutes.
_SPARK_POINTS: Final = 60


def _is_kind(entry: Entry, kind: str) -> bool:
    return entry[1].unhealthy > 0 if kind == _UNHEALTHY else any(state == kind for state in entry[1].states)


_LISTING: Final = Listing[Entry](
    flow=lambda entry: entry[0],
    text=lambda entry: f"{entry[1].topic} {entry[1].remote_topic}",
    kind=_is_kind,
    keys={
        "topic": lambda entry: (entry[1].topic, entry[0]),
        "state": lambda entry: (-SEVERITY[entry[1].state], entry[1].topic),
        "partitions": lambda entry: entry[1].partitions,
        "unhealthy": lambda entry: entry[1].unhealthy,
        "records": lambda entry: entry[1].lag_records,
        "seconds": lambda entry: entry[1].lag_seconds,
        "rate": lambda entry: entry[1].records_per_s,
    },
)


def _gather(snapshot: Snapshot) -> Sequence[Entry]:
    """Worst states first. Not by lag: rows would change places each second."""
    rows = [(flow.name, topic) for flow in snapshot.flows for topic in topic_views(flow.partitions)]
    return sorted(rows, key=lambda row: SEVERITY[row[1].state] if row[1].state not in HEALTHY else len(SEVERITY))


TOPICS: Final = Shared[Snapshot, Entry](_LISTING, _gather)
_COLUMNS: Final = (
    Column("Topic", "head link", "topic"),
    Column("State", "word link", "state"),
    Column("Partitions", "number", "partitions"),
    Column("Unhealthy", "number link", "unhealthy"),
    Column("Lag", "number", "records"),
    Column("Lag in time", "number", "seconds"),
    Column("Copied", "number", "rate"),
    Column("Ten minutes", "drawing"),
)


class TopicsView:
    """The topics of all flows, or of one."""

    def __init__(self, snapshot: Snapshot, history: History, wanted: Mapping[str, str]) -> None:
        self._snapshot = snapshot
        self._history = history
        Element("h1", "Topics")
        self._lead = Element("p", "", "lead")
        self._browser = Browser(
            _COLUMNS,
            lambda query: TOPICS.select(self._snapshot, query),
            self._row,
            flow_of=lambda entry: entry[0],
            query=Query.of(wanted),
            noun="topics",
            caption="Topics of the source and their progress",
            nothing="No topic matches.",
            search="Topic, as in orders or ord*",
            kinds=_KINDS,
            flows=[flow.name for flow in snapshot.flows],
        )

    def show(self, snapshot: Snapshot) -> None:
        """See View."""
        self._snapshot = snapshot
        self._lead.show(lead(TOPICS.select(snapshot, Query()), snapshot.flows))
        self._browser.show()

    def _row(self, entry: Entry) -> Row:
        flow, topic = entry
        (values,) = self._history.newest(flow, [topic.topic], "records_per_s", _SPARK_POINTS)
        partitions = f"partitions?{urlencode({'flow': flow, 'search': topic.topic, 'state': _UNHEALTHY})}"
        return Row(
            (
                Cell(
                    topic.topic,
                    hint=f"to {topic.remote_topic}" if topic.remote_topic else "",
                    href=topic_page(flow, topic.topic),
                ),
                Cell(topic.state, state=True, href=meaning_page(topic.state) if MEANINGS[topic.state].runbook else ""),
                count(topic.partitions),
                Cell(
                    count(topic.unhealthy),
                    tone="bad" if topic.unhealthy else "",
                    href=partitions if topic.unhealthy else "",
                ),
                at_least(topic.lag_records, is_exact=topic.is_lag_exact),
                seconds(topic.lag_seconds),
                rate(topic.records_per_s),
                Cell("", drawing=sparkline(values)),
            )
        )


def topic_page(flow: str, topic: str) -> str:
    """The address of the page of a topic."""
    return f"topic?{urlencode({'flow': flow, 'topic': topic})}"


def lead(rows: Sequence[Entry], flows: Sequence[FlowView]) -> str:
    """The number of topics and partitions, and how many topics need attention."""
    unhealthy = sum(topic.unhealthy > 0 for _, topic in rows)
    partitions = sum(topic.partitions for _, topic in rows)
    health = (
        f", {counted(unhealthy, 'topic')} with unhealthy partitions"
        if unhealthy
        else all_healthy(flows)
        if rows
        else ""
    )
    return f"{counted(len(rows), 'topic')} with {counted(partitions, 'partition')}{health}."
