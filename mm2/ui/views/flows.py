"""The first page: one sentence per flow, and the figures behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import quote

from nicegui import ui

from mm2.copy.states import PartitionState
from mm2.evidence import HEARTBEATS, RISK, Evidence, counted
from mm2.observer.curves.history import QUANTILES, History, latency_name
from mm2.observer.curves.long_term import Curves
from mm2.observer.flow_state import looked_at
from mm2.observer.traces import reason_of
from mm2.observer.views import FlowState, FlowView, Snapshot
from mm2.ui.elements.charts import Curve, TimeChart, TimeRange
from mm2.ui.elements.parts import TONES, Element, rank_of, within
from mm2.ui.elements.wording import UNKNOWN, at_least, count, rate, seconds, size
from mm2.ui.heartbeats import BEAT_STEP_MS, Beat, FlowHeartbeats, Heartbeats, heartbeat_of
from mm2.ui.source import PageData

_CURVES: Final = (Curve("50 %", 1, "solid", 2.4), Curve("95 %", 2, "dashed", 1.8), Curve("99 %", 3, "dotted", 1.8))
_LATENCIES: Final = tuple(map(latency_name, QUANTILES))
#: Of many partitions, the logs are read every ten seconds.
_STALE_MS: Final = 30_000
#: A longer sentence is set in a smaller font: it describes several things.
_LONG: Final = 110


class FlowsView:
    """One block per flow, in the order of the snapshot.

    If there are several, their sentences are listed above, worst first.
    """

    def __init__(self, data: PageData, heartbeats: Heartbeats, wanted: Mapping[str, str]) -> None:
        self._history, self._curves = data.history, data.curves
        self._heartbeats = heartbeats
        self._snapshot: Snapshot | None = None
        self._blocks: dict[str, _FlowBlock] = {}
        Element("h1", "Flows", "visually-hidden")
        self._nothing = Element("p", "This process has no flows yet.", "nothing", role="status")
        self._index = within("ul", "index hidden", aria_label="All flows, the worst first")
        self._lines: list[_Line] = []
        with within("div", "tools"):
            self._range = TimeRange(wanted, self._show_again, is_long=self._curves.is_long)
        self._container = within("div")

    def show(self, snapshot: Snapshot) -> None:
        """See View."""
        self._snapshot = snapshot
        for removed in self._blocks.keys() - {flow.name for flow in snapshot.flows}:
            self._blocks.pop(removed).element.delete()
        for flow in snapshot.flows:
            if flow.name not in self._blocks:
                with self._container:
                    self._blocks[flow.name] = _FlowBlock(flow)
            block = self._blocks[flow.name]
            block.show(snapshot.at_ms, flow, self._heartbeats.flow(flow.name))
            self._show_curves(snapshot.at_ms, flow.name, block)
        self._show_index(worst_first(snapshot.flows) if len(snapshot.flows) > 1 else ())
        self._nothing.set_visibility(not snapshot.flows)

    def _show_curves(self, at_ms: int, flow: str, block: _FlowBlock) -> None:
        length_ms = self._range.length_ms
        curves = self._curves.of(flow, "", ("records_per_s", "lag_records", *_LATENCIES), length_ms, at_ms)
        self._range.explain(curves.note)
        block.show_latency(self._history)
        block.show_curves(curves, length_ms)

    def _show_again(self) -> None:
        if self._snapshot is not None:
            self.show(self._snapshot)

    def _show_index(self, flows: Sequence[FlowView]) -> None:
        while len(self._lines) < len(flows):
            with self._index:
                self._lines.append(_Line())
        for line, flow in zip(self._lines, flows, strict=False):
            line.show(flow)
        for line in self._lines[len(flows) :]:
            line.element.show_classes("hidden")
        self._index.show_classes("index" if flows else "index hidden")


class _Line:
    """One line per flow: its name, a link to its block, its state and its sentence."""

    def __init__(self) -> None:
        with within("li") as self.element:
            self._name = Element("a")
            self._state = Element("span")
            self._sentence = Element("span")

    def show(self, flow: FlowView) -> None:
        self.element.show_classes("")
        self._name.show(flow.name)
        self._name.attribute("href", f"#{_anchor(flow)}")
        self._state.show_state(flow.state)
        self._sentence.show(flow.sentence)
        self._sentence.show_classes(f"message {TONES[flow.state]}" if flow.state in _ALARM_STATES else "message")


class _FlowBlock:
    def __init__(self, flow: FlowView) -> None:
        self._name = flow.name
        heading = _anchor(flow)
        with within("section", "flow", aria_labelledby=heading) as self.element:
            with within("div", "which"):
                Element("h2", flow.name, id=heading)
                self._state = Element("span", role="status")
                self._observed = Element("span", "", "muted")
            self._sentence = Element("p", "", "sentence")
            self._errors = within("ul", "errors")
            self._messages: Sequence[str] = ()
            with within("dl", "figures"):
                self._rate = _figure("Records copied")
                self._bytes = _figure("Bytes copied")
                self._lag = _figure("Lag")
                self._latency = _figure("Visible after, 50 % · 99 %")
                self._partitions = _Partitions(f"partitions?flow={quote(flow.name)}")
                # A permanent loss does not affect the flow's state. The sentence reports it for a day; this figure
                # stays.
                self._lost = _link("Lost ranges", f"gaps?flow={quote(flow.name)}")
                self._beat = _figure("Newest heartbeat")
            with within("div", "curves"):
                with within("figure"):
                    Element("figcaption", "Records per second")
                    self._rates = TimeChart(
                        Curve("records/s"), least_step=1.0, label=f"Records per second of {flow.name}"
                    )
                with within("figure"):
                    Element("figcaption", "Lag in records")
                    self._lags = TimeChart(Curve("records"), least_step=1.0, label=f"Lag of {flow.name} in records")
                with within("figure"):
                    with within("figcaption"):
                        Element("span", "Seconds until batches were visible on the target:")
                        # Not at the ends of the curves, which overlap near zero.
                        for curve in _CURVES:
                            Element("span", curve.name, f"legend curve-{curve.color}")
                    self._latencies = TimeChart(
                        *_CURVES, unit=" s", label=f"Seconds until batches of {flow.name} were visible on the target"
                    )
                    self._no_latency = Element("p", "No records were copied by this process in this time.", "empty")
                    self._no_latency.set_visibility(False)
            with within("div", "heartbeats"):
                self._beats_text = Element("span", "", "muted")
                self._strip = ui.html("", sanitize=False, tag="div").classes("strip").props("aria-hidden=true")
        self._marks: tuple[bool | None, ...] = ()
        self._drawn: object = None

    def show(self, at_ms: int, flow: FlowView, heartbeats: FlowHeartbeats) -> None:
        tone = TONES[flow.state]
        self._state.show_state(flow.state)
        self._sentence.show(flow.sentence)
        long = " long" if len(flow.sentence) > _LONG else ""
        self._sentence.show_classes(f"sentence{long}{f' {tone}' if flow.state in _ALARM_STATES else ''}")
        self._observed.show(observed_text(at_ms, flow))
        self._show_errors(flow)
        self._rate.show(rate(flow.records_per_s))
        self._bytes.show(rate_of_bytes(flow.bytes_per_s))
        records, lag_bytes = flow.risk.least, flow.risk.bytes
        shown = at_least(records, is_exact=flow.risk.records is not None)
        self._lag.show(shown + (f" · {size(lag_bytes)}" if records and lag_bytes else ""))
        self._partitions.show(flow)
        lost = flow.lost_ranges if flow.is_ledger_read else None
        self._lost.show(at_least(lost, is_exact=not flow.target_losses))
        self._lost.show_classes("state bad" if flow.lost_ranges or flow.target_losses else "")
        self._show_beats(at_ms, flow, heartbeats)

    def show_latency(self, history: History) -> None:
        """The newest latency."""
        low, _, high = (history.last(self._name, "", name) for name in _LATENCIES)
        self._latency.show(UNKNOWN if low is None else f"{seconds(low)} · {seconds(high)}")

    def show_curves(self, curves: Curves, length_ms: int) -> None:
        """Draw the curves; they change every few seconds."""
        if self._drawn != curves.version:
            self._drawn = curves.version
            points = curves.points
            self._rates.show([points["records_per_s"]], length_ms)
            self._lags.show([points["lag_records"]], length_ms)
            latencies = [points[name] for name in _LATENCIES]
            self._no_latency.set_visibility(not self._latencies.show(latencies, length_ms))

    def _show_errors(self, flow: FlowView) -> None:
        messages = errors(flow)
        if messages != self._messages:
            self._messages = messages
            self._errors.clear()
            with self._errors:
                for sentence in messages:
                    Element("li", sentence)
        self._errors.set_visibility(bool(messages))

    def _show_beats(self, at_ms: int, flow: FlowView, heartbeats: FlowHeartbeats) -> None:
        newest = heartbeat_of(flow)
        self._beat.show(UNKNOWN if newest is None else f"{seconds(newest.age_ms / 1000)} ago")
        beats = heartbeats.beats(at_ms)
        marks = tuple(beat.received for beat in beats)
        if marks != self._marks:
            self._marks = marks
            self._strip.set_content("".join(map(_mark, beats)))
        self._beats_text.show(beats_text(flow, marks))


_ALARM_STATES: Final = frozenset({FlowState.NO_TOPICS, FlowState.DEGRADED, FlowState.STOPPED})


def observed_text(at_ms: int, flow: FlowView) -> str:
    """What the sentence is made of, unless all of it was read just now."""
    times = [one.at_ms for one in flow.evidence if one.what in RISK.evidence]
    is_current = all(time_ms is not None and at_ms - time_ms <= _STALE_MS for time_ms in times)
    return "" if is_current else f"{looked_at(flow, RISK.evidence)}"


def beats_text(flow: FlowView, marks: Sequence[bool | None]) -> str:
    """How many heartbeats were received; a mark of None: none was expected."""
    missed, recorded = marks.count(False), len(marks) - marks.count(None)
    if not recorded:
        return HEARTBEATS(is_known=flow.has_read(Evidence.HEARTBEATS), target=flow.target)
    newest = heartbeat_of(flow)
    copied = newest is not None and newest.hops
    return (
        f"Heartbeats {'copied' if copied else 'written'} by this flow, five minutes: "
        f"{f'missed in {missed} of' if missed else 'received in all'} {counted(recorded, 'interval')} of "
        f"{BEAT_STEP_MS // 1000} seconds"
    )


def worst_first(flows: Sequence[FlowView]) -> Sequence[FlowView]:
    """By state, not by risk: rows would change places each second."""
    return sorted(flows, key=lambda flow: rank_of(flow.state))


def _anchor(flow: FlowView) -> str:
    return f"flow-{quote(flow.name)}"


def rate_of_bytes(value: float | None) -> str:
    """Bytes per second."""
    return UNKNOWN if value is None else f"{size(value)}/s"


def _figure(title: str) -> Element:
    with within("div"):
        Element("dt", title)
        return Element("dd", UNKNOWN)


def _link(title: str, href: str) -> Element:
    with within("div"):
        Element("dt", title)
        with within("dd"):
            return Element("a", UNKNOWN, href=href)


def errors(flow: FlowView) -> tuple[str, ...]:
    """Why a flow is degraded, without what its sentence already contains."""
    clusters = ((flow.source, flow.source_error), (flow.target, flow.target_error))
    failed = [
        f"{one.name}{'' if task is None else f', task {task.id}'} has failed: {reason_of(trace) or 'unknown error'}"
        for one in flow.connectors
        for task, state, trace in (
            (None, one.state, one.trace),
            *((task, task.state, task.trace) for task in one.tasks),
        )
        if state == "FAILED"
    ]
    unhealthy = {state: number for state, number in flow.states.items() if number and TONES[state] == "bad"}
    return (
        *(f"{name}: {error}" for name, error in clusters if error and error not in flow.sentence),
        *(message for message in flow.troubles if message not in {flow.source_error, flow.target_error}),
        *failed,
        *(f"{counted(number, 'partition')} {state}" for state, number in unhealthy.items()),
    )


class _Partitions:
    """The number of partitions, in total and for each state but RUNNING; each number is a link to them."""

    def __init__(self, href: str) -> None:
        self._href = href
        self._shown: Sequence[tuple[str, int]] = ()
        with within("div"):
            Element("dt", "Partitions")
            with within("dd"):
                self._total = Element("a", UNKNOWN, href=href)
            self._others = within("dd", "others")

    def show(self, flow: FlowView) -> None:
        self._total.show(count(sum(flow.states.values()) or None))
        counts = [
            (state, number) for state, number in flow.states.items() if number and state != PartitionState.RUNNING
        ]
        if counts != self._shown:
            self._shown = counts
            self._others.clear()
            with self._others:
                for state, number in sorted(counts, key=lambda one: rank_of(one[0])):
                    Element("a", f"{number:,} {state}", f"state {TONES[state]}", href=f"{self._href}&state={state}")
        self._others.set_visibility(bool(counts))


def _mark(beat: Beat) -> str:
    kind = {True: "", False: ' class="missed"', None: ' class="unrecorded"'}[beat.received]
    return f"<i{kind}></i>"
