"""One topic of a flow: partitions, lag and throughput over time, configuration differences and groups."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final
from urllib.parse import urlencode

from nicegui import ui

from mm2.config.mirrormaker import SourceAndTarget
from mm2.connect.rest.access.authorization import Access
from mm2.connect.rest.access.roles import Role
from mm2.copy.states import PartitionState
from mm2.evidence import CONFIGS_EQUAL, counted
from mm2.kafka.errors import KafkaFailure
from mm2.mirror.topics.config_sync import ConfigDifference
from mm2.observer.shown.tones import Tone
from mm2.observer.shown.topics import TopicView, topic_view
from mm2.observer.views import FlowView, PartitionView, Snapshot
from mm2.reasons import PauseCode
from mm2.ui.elements.actions import (
    LIMIT_TOPIC,
    PAUSE_TOPIC,
    RESUME_TOPIC,
    UNLIMIT_TOPIC,
    Action,
    Actions,
    TopicSubject,
)
from mm2.ui.elements.charts import Curve, TimeChart, TimeRange
from mm2.ui.elements.listing import Query, page_of
from mm2.ui.elements.meanings import MEANINGS, meaning_page
from mm2.ui.elements.parts import PAGE_ROWS, TONES, Browser, Column, Confirmation, Element, Row, Table, within
from mm2.ui.elements.wording import UNKNOWN, at_least, bytes_of, count, rate, seconds, size
from mm2.ui.source import PageData
from mm2.ui.views import groups, partitions

_CONFIGS: Final = (
    Column("Property", "head name"),
    Column("On the source"),
    Column("On the target"),
    Column("Sync", "prose"),
)
#: Partitions in the map; more of them have no place on a screen.
_MAPPED: Final = 2_000
#: Differences are read again after this time, while the page is open.
_REFRESH_S: Final = 60.0
#: Upper limits of the lags that have the same shade in the map.
_SHADES: Final = (0, 1_000, 100_000)


class TopicPage:
    """The page of one topic; its name and its flow are in the address."""

    def __init__(
        self, snapshot: Snapshot, data: PageData, wanted: Mapping[str, str], actions: Actions, access: Access
    ) -> None:
        self._actions, self._access = actions, access
        self._flow, self._topic = wanted.get("flow", ""), wanted.get("topic", "")
        self._data, self._curves = data, data.curves
        self._snapshot = snapshot
        self._remote = ""
        self._marks: Sequence[str] = ()
        self._drawn: object = None
        self._make_head()
        with within("div") as self._content:
            self._make_figures()
            self._make_map()
            self._make_curves(wanted)
            self._make_tables(wanted)
        ui.timer(_REFRESH_S, self._read_configs, immediate=False)
        ui.timer(0.1, self._read_configs, once=True)

    def _make_head(self) -> None:
        with within("p", "path"):
            Element("a", "Topics", href=f"topics?{urlencode({'flow': self._flow})}" if self._flow else "topics")
            Element("span", self._flow, "muted")
        with within("div", "which"):
            Element("h1", self._topic or "No topic")
            self._state = Element("span", role="status")
            self._why = Element("a", "What this state means", "muted hidden")
            self._make_buttons()
        self._message = Element("p", "", "message", role="status")
        self._confirmation = Confirmation()
        self._lead = Element("p", "", "lead")
        self._missing = Element("p", "", "nothing hidden", role="status")

    def _make_buttons(self) -> None:
        may_act = self._access.allows(Role.OPERATOR)
        self._buttons: dict[Action, Element] = {}
        with within("span", "buttons"):
            for action in (PAUSE_TOPIC, RESUME_TOPIC, LIMIT_TOPIC, UNLIMIT_TOPIC):
                button = Element("button", action.name, "plain", type="button", disabled=True)
                if may_act:
                    button.on("click", lambda _, action=action: self._ask(action), args=[])
                    self._buttons[action] = button
                else:
                    button.attribute("title", f"needs the role {Role.OPERATOR}")

    async def _ask(self, action: Action) -> None:
        source, _, target = self._flow.partition("->")
        subject = TopicSubject(SourceAndTarget(source, target), self._topic)
        question = f"{action.name}: {subject}"
        body: dict[str, object] = {"bytes_per_s": None} if action is UNLIMIT_TOPIC else {}
        if action is LIMIT_TOPIC:
            text = await self._confirmation.ask_value(question, action.consequence, action.name)
            limit = None if text is None else bytes_of(text)
            if limit is None:
                wrong = (
                    "" if text is None else "Not a number of bytes per second; write for instance 500000, 500k or 20MB."
                )
                self._report(wrong, "bad")
                return
            body["bytes_per_s"] = limit
        elif not await self._confirmation.ask(question, action.consequence, action.name, is_destructive=False):
            return
        self._report(f"{action.name}: {subject} …")
        succeeded, message = await self._actions.do(action, subject, self._access, body)
        self._report(message, "ok" if succeeded else "bad")

    def _report(self, text: str, tone: str = "") -> None:
        self._message.show(text)
        self._message.show_classes(f"message {tone}".strip())

    def _show_buttons(self, views: Sequence[PartitionView], limit: int | None) -> None:
        applies = effective_actions(views, limit)
        for action, button in self._buttons.items():
            button.attribute("disabled", action not in applies)

    def _make_figures(self) -> None:
        with within("dl", "figures"):
            self._figures = {
                title: _figure(title)
                for title in (
                    "Partitions",
                    "Unhealthy",
                    "Lag",
                    "Lag in time",
                    "Records copied",
                    "Bytes copied",
                    "Lost ranges",
                    "Foreign records",
                    "Limit",
                )
            }

    def _make_map(self) -> None:
        Element("h2", "Partitions", id="map")
        with within("p", "map-legend muted"):
            for name, title in (
                ("s0", "no lag"),
                ("s1", "up to 1,000 records"),
                ("s2", "up to 100,000"),
                ("s3", "more"),
            ):
                Element("i", "", f"ok {name}")
                Element("span", title)
            Element("i", "", "unknown s0")
            Element("span", "unknown lag")
            Element("i", "", "bad s0")
            Element("span", "unhealthy")
        self._map = ui.html("", sanitize=False, tag="div").classes("map").props("aria-hidden=true")
        self._unmapped = Element("p", "", "muted hidden")

    def _make_curves(self, wanted: Mapping[str, str]) -> None:
        with within("div", "tools"):
            self._range = TimeRange(wanted, self._show_curves, is_long=self._curves.is_long)
        with within("div", "curves"):
            with within("figure"):
                Element("figcaption", "Records per second")
                self._rates = TimeChart(
                    Curve("records/s"), least_step=1.0, label=f"Records per second of {self._topic}"
                )
            with within("figure"):
                Element("figcaption", "Lag in records")
                self._lags = TimeChart(Curve("records"), least_step=1.0, label=f"Lag of {self._topic} in records")
            with within("figure"):
                Element("figcaption", "Unhealthy partitions")
                self._unhealthy = TimeChart(
                    Curve("partitions", 3), least_step=1.0, label=f"Unhealthy partitions of {self._topic}"
                )

    def _make_tables(self, wanted: Mapping[str, str]) -> None:
        Element("h2", "Each partition")
        self._browser = Browser(
            partitions.COLUMNS,
            self._selected,
            partitions.row_of,
            flow_of=lambda entry: entry[0],
            query=replace(Query.of(wanted), flow=""),
            noun="partitions",
            caption=f"Partitions of {self._topic}",
            nothing="No partition matches.",
            search="Partition or reason",
            kinds=partitions.KINDS,
        )
        Element("h2", "Configuration")
        self._configs_text = Element("p", "Reading …", "lead", role="status")
        self._configs = Table(_CONFIGS, caption="Properties with another value on the remote topic", nothing="")
        Element("h2", "Consumer groups")
        self._groups_unknown = Element("p", "", "lead hidden", role="status")
        self._groups = Table(
            groups.COLUMNS,
            caption=f"Consumer groups of {self._topic}",
            nothing="No committed offsets of this topic are known.",
        )
        self._more_groups = Element(
            "a", "", "hidden", href=f"groups?{urlencode({'flow': self._flow, 'search': self._topic})}"
        )

    def _selected(self, query: Query) -> Sequence[partitions.Entry]:
        flow = self._snapshot.flow(self._flow)
        own = [] if flow is None else [(flow.name, one) for one in flow.partitions if one.topic == self._topic]
        return partitions.LISTING.select(own, query)

    def show(self, snapshot: Snapshot) -> None:
        """See View."""
        self._snapshot = snapshot
        flow = snapshot.flow(self._flow)
        views = [] if flow is None else [one for one in flow.partitions if one.topic == self._topic]
        self._content.show_classes("" if views else "hidden")
        self._missing.show_classes("hidden" if views else "nothing")
        if flow is None or not views:
            what = (
                f"no topic {self._topic} is copied by {self._flow}"
                if flow is not None
                else f"no flow {self._flow or 'was named'}"
            )
            self._missing.show(f"In this process, {what}.")
            self._lead.show("")
            self._state.show_classes("hidden")
            return
        topic = topic_view(self._topic, views)
        self._remote = topic.remote_topic
        self._show_head(topic, views)
        limit = flow.throttles.get(self._topic)
        self._show_buttons(views, limit)
        self._figures["Limit"].show("of the file" if limit is None else f"{size(limit)}/s" if limit else "none")
        self._show_map(views)
        self._show_curves()
        self._browser.show()
        self._show_groups(flow)

    def _show_head(self, topic: TopicView, views: Sequence[PartitionView]) -> None:
        self._state.show_state(topic.state)
        has_page = bool(MEANINGS[topic.state].runbook)
        self._why.attribute("href", meaning_page(topic.state) if has_page else None)
        self._why.show_classes("muted" if has_page else "hidden")
        texts = {
            one.note if one.state is PartitionState.PREPARING else one.reason
            for one in views
            if one.state is topic.state
        }
        reasons = sorted(filter(None, texts))
        reason = (
            f" {reasons[0]}{f', and {len(reasons) - 1} more reasons' if len(reasons) > 1 else ''}" if reasons else ""
        )
        target = f"Copied to {topic.remote_topic}." if topic.remote_topic else "Not copied yet."
        self._lead.show(f"{target}{reason}{promotion_advice(self._flow, views)}")
        shown = self._figures
        shown["Partitions"].show(count(topic.partitions))
        shown["Unhealthy"].show(count(topic.unhealthy))
        shown["Unhealthy"].show_classes("state bad" if topic.unhealthy else "")
        shown["Lag"].show(
            at_least(topic.lag_records, is_exact=topic.is_lag_exact)
            + (f" · {size(topic.lag_bytes)}" if topic.lag_records and topic.lag_bytes else "")
        )
        shown["Lag in time"].show(seconds(topic.lag_seconds))
        shown["Records copied"].show(rate(topic.records_per_s))
        shown["Bytes copied"].show(UNKNOWN if topic.bytes_per_s is None else f"{size(topic.bytes_per_s)}/s")
        shown["Lost ranges"].show(count(topic.lost_ranges))
        shown["Lost ranges"].show_classes("state bad" if topic.lost_ranges else "")
        shown["Foreign records"].show(count(topic.foreign_records))

    def _show_map(self, views: Sequence[PartitionView]) -> None:
        # Numbers and states only; names of topics may contain anything.
        marks = list(map(mark_of, views[:_MAPPED]))
        if marks != self._marks:
            self._marks = marks
            self._map.set_content("".join(marks))
        rest = len(views) - len(marks)
        self._unmapped.show(f"and {counted(rest, 'more partition')}")
        self._unmapped.show_classes("muted" if rest else "hidden")

    def _show_curves(self) -> None:
        length_ms = self._range.length_ms
        charts = {"records_per_s": self._rates, "lag_records": self._lags, "unhealthy": self._unhealthy}
        found = self._curves.of(self._flow, self._topic, tuple(charts), length_ms, self._snapshot.at_ms)
        self._range.explain(found.note)
        if self._drawn == found.version:
            return
        self._drawn = found.version
        for name, chart in charts.items():
            chart.show([found.points[name]], length_ms)

    def _show_groups(self, flow: FlowView) -> None:
        unknown = groups.unknown(flow)
        self._groups_unknown.show(unknown)
        self._groups_unknown.show_classes("lead" if unknown else "lead hidden")
        found = [one for one in flow.groups if one.topic == self._topic]
        page = page_of(groups.worst_first([(self._flow, one) for one in found]), 0, PAGE_ROWS)
        self._groups.show([groups.row_of(entry) for entry in page.rows])
        rest = page.total - len(page.rows)
        self._more_groups.show(f"{counted(rest, 'more offset')} of groups")
        self._more_groups.show_classes("" if rest else "hidden")

    async def _read_configs(self) -> None:
        if not self._remote:
            self._configs_text.show("There is no remote topic yet.")
            return
        try:
            found = await asyncio.to_thread(self._data.differences, self._flow, self._topic, self._remote)
        except KafkaFailure as failure:
            self._configs_text.show(CONFIGS_EQUAL(is_known=False, why=failure))
            self._configs_text.show_classes("message bad")
            return
        self._configs_text.show_classes("lead")
        text = (
            f"{counted(len(found), 'property')} with another value on {self._remote}."
            if found
            else CONFIGS_EQUAL(topic=self._topic, remote=self._remote)
        )
        self._configs_text.show(text)
        self._configs.show([_config(one) for one in found])


def effective_actions(views: Sequence[PartitionView], limit: int | None) -> frozenset[Action]:
    """The actions that would change something for the topic with these partitions.

    The pause of a user ends with Resume. A promotion does not, and neither does a pause or stop of the connector.
    """
    pauses = {one.pause for one in views}
    found = {LIMIT_TOPIC}
    if pauses & {None, PauseCode.FLOW}:
        found.add(PAUSE_TOPIC)
    if PauseCode.USER in pauses:
        found.add(RESUME_TOPIC)
    if limit is not None:
        found.add(UNLIMIT_TOPIC)
    return frozenset(found)


def promotion_advice(flow: str, views: Sequence[PartitionView]) -> str:
    """What continues a promoted topic, after a space; "" for any other topic."""
    if not any(one.pause is PauseCode.PROMOTED for one in views):
        return ""
    return f" Resume does not continue it; mm2 failback '{flow}' ends the promotion."


def _config(one: ConfigDifference) -> Row:
    values = [UNKNOWN if value is None else value or '""' for value in (one.source, one.target)]
    return Row((one.name, *values, "ends the difference next time" if one.is_synced else "not by this flow"))


def mark_of(view: PartitionView) -> str:
    """The mark of a partition in the map. That its lag is not known shows only where it is healthy."""
    lag = view.known_lag
    tone = TONES.get(view.state, Tone.UNKNOWN)
    if lag is None and tone in {Tone.OK, Tone.BUSY}:
        tone = Tone.UNKNOWN
    shade = sum(lag > limit for limit in _SHADES) if lag is not None else 0
    return f'<i class="{tone} s{shade}" title="{view.partition}: {view.state}"></i>'


def _figure(title: str) -> Element:
    with within("div"):
        Element("dt", title)
        return Element("dd", UNKNOWN)
