"""The first page: one sentence per flow, and the figures behind it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

from nicegui import ui

from mm2.copy.states import PartitionState
from mm2.observer.traces import reason_of
from mm2.observer.views import FlowState, FlowView, Snapshot
from mm2.ui.history import BEAT_STEP_MS, Beat, FlowHistory, History, Point, heartbeat_of
from mm2.ui.parts import TONES, Element, rank_of, within
from mm2.ui.wording import UNKNOWN, clock, count, plural, rate, seconds, size

_CURVES: Final = (("50 %", "solid", 2.4), ("95 %", "dashed", 1.8), ("99 %", "dotted", 1.8))
_STALE_MS: Final = 10_000
#: The shortest time span of a time axis.
_LEAST_SPAN_MS: Final = 60_000
#: A longer sentence is set in a smaller font: it describes several things.
_LONG: Final = 110


class FlowsView:
    """One block per flow, in the order of the snapshot.

    If there are several, their sentences are listed above, worst first.
    """

    def __init__(self, history: History) -> None:
        self._history = history
        self._blocks: dict[str, _FlowBlock] = {}
        Element("h1", "Flows", "visually-hidden")
        self._nothing = Element("p", "This process has no flows yet.", "nothing", role="status")
        self._index = within("ul", "index hidden", aria_label="All flows, the worst first")
        self._lines: list[_Line] = []
        self._container = within("div")

    def show(self, snapshot: Snapshot) -> None:
        """See View."""
        for removed in self._blocks.keys() - {flow.name for flow in snapshot.flows}:
            self._blocks.pop(removed).element.delete()
        for flow in snapshot.flows:
            if flow.name not in self._blocks:
                with self._container:
                    self._blocks[flow.name] = _FlowBlock(flow)
            self._blocks[flow.name].show(snapshot.at_ms, flow, self._history.flow(flow.name))
        self._show_index(worst_first(snapshot.flows) if len(snapshot.flows) > 1 else ())
        self._nothing.set_visibility(not snapshot.flows)

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
                    self._rates = ui.echart(_rate_options(), renderer="svg")
                with within("figure"):
                    with within("figcaption"):
                        Element("span", "Seconds until batches were visible on the target:")
                        # Not at the ends of the curves, which overlap near zero.
                        for index, (name, _, _) in enumerate(_CURVES):
                            Element("span", name, f"legend curve-{index + 1}")
                    self._latencies = ui.echart(_latency_options(), renderer="svg")
                    self._no_latency = Element("p", "No records were copied by this process in this time.", "empty")
                    self._no_latency.set_visibility(False)
            with within("div", "heartbeats"):
                self._beats_text = Element("span", "", "muted")
                self._strip = ui.html("", sanitize=False, tag="div").classes("strip").props("aria-hidden=true")
        self._drawn: int | None = None
        self._marks: tuple[bool | None, ...] = ()

    def show(self, at_ms: int, flow: FlowView, history: FlowHistory) -> None:
        tone = TONES[flow.state]
        self._state.show_state(flow.state)
        self._sentence.show(flow.sentence)
        long = " long" if len(flow.sentence) > _LONG else ""
        self._sentence.show_classes(f"sentence{long}{f' {tone}' if flow.state in _ALARM_STATES else ''}")
        is_stale = flow.observed_ms is not None and at_ms - flow.observed_ms > _STALE_MS
        self._observed.show(f"last observed at {clock(flow.observed_ms)} UTC" if is_stale else "")
        self._show_errors(flow)
        self._rate.show(rate(flow.records_per_s))
        self._bytes.show(rate_of_bytes(flow.bytes_per_s))
        records, lag_bytes = flow.risk.least, flow.risk.bytes
        shown = count(records) if records is None or flow.risk.records is not None else f"at least {count(records)}"
        self._lag.show(shown + (f" · {size(lag_bytes)}" if records and lag_bytes else ""))
        newest = next((point for point in reversed(history.points) if point.latency_s[0] is not None), None)
        self._latency.show(
            UNKNOWN if newest is None else f"{seconds(newest.latency_s[0])} · {seconds(newest.latency_s[2])}"
        )
        self._partitions.show(flow)
        self._lost.show(count(flow.lost_ranges))
        self._lost.show_classes("state bad" if flow.lost_ranges else "")
        self._show_beats(at_ms, flow, history)
        self._show_curves(history.points)

    def _show_errors(self, flow: FlowView) -> None:
        messages = errors(flow)
        if messages != self._messages:
            self._messages = messages
            self._errors.clear()
            with self._errors:
                for sentence in messages:
                    Element("li", sentence)
        self._errors.set_visibility(bool(messages))

    def _show_beats(self, at_ms: int, flow: FlowView, history: FlowHistory) -> None:
        newest = heartbeat_of(flow)
        self._beat.show(UNKNOWN if newest is None else f"{seconds(newest.age_ms / 1000)} ago")
        beats = history.beats(at_ms)
        marks = tuple(beat.received for beat in beats)
        if marks != self._marks:
            self._marks = marks
            self._strip.set_content("".join(map(_mark, beats)))
        missed, recorded = marks.count(False), len(marks) - marks.count(None)
        if not recorded:
            text = "No heartbeats have been received."
        else:
            copied = newest is not None and newest.hops
            text = (
                f"Heartbeats {'copied' if copied else 'written'} by this flow, five minutes: "
                f"{f'missed in {missed} of' if missed else 'received in all'} {plural(recorded, 'interval')} of "
                f"{BEAT_STEP_MS // 1000} seconds"
            )
        self._beats_text.show(text)

    def _show_curves(self, points: Sequence[Point]) -> None:
        newest = points[-1].at_ms if points else None
        if newest is None or newest == self._drawn:
            return
        first = self._drawn is None
        self._drawn = newest
        self._no_latency.set_visibility(all(point.latency_s[0] is None for point in points))
        rates: dict[str, Any] = {
            "series": [{"data": [[point.at_ms, _rounded(point.records_per_s)] for point in points]}]
        }
        latencies: dict[str, Any] = {
            "series": [
                {"data": [[point.at_ms, _rounded(point.latency_s[index])] for point in points]}
                for index in range(len(_CURVES))
            ]
        }
        span = {"xAxis": _span(min(points[0].at_ms, newest - _LEAST_SPAN_MS), newest)}
        for chart, change in ((self._rates, rates | span), (self._latencies, latencies | span)):
            if first:
                chart.options["xAxis"].update(span["xAxis"])
                for series, new in zip(chart.options["series"], change["series"], strict=True):
                    series.update(new)
                chart.update()
            else:
                # The chart is kept; only the points are replaced.
                chart.run_chart_method("setOption", change)


_ALARM_STATES: Final = frozenset({FlowState.DEGRADED, FlowState.STOPPED})


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
        *(f"{plural(number, 'partition')} {state}" for state, number in unhealthy.items()),
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


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def _axis_text() -> dict[str, Any]:
    return {"color": "var(--muted)", "fontSize": 12, "hideOverlap": True}


def _span(first_ms: int, last_ms: int) -> dict[str, int]:
    """The range of the time axis. Set explicitly: without points it would start in 1970."""
    return {"min": first_ms, "max": last_ms}


def _options(series: list[dict[str, Any]], unit: str, least_step: float = 0.0) -> dict[str, Any]:
    line = {"lineStyle": {"color": "var(--line)"}}
    now_ms = time.time_ns() // 1_000_000
    return {
        "animation": False,
        "useUTC": True,
        "grid": {"left": 8, "right": 12, "top": 12, "bottom": 4, "containLabel": True},
        "xAxis": {
            "type": "time",
            "axisLine": line,
            "axisTick": {"show": False},
            "axisLabel": {**_axis_text(), "formatter": "{HH}:{mm}"},
            "splitNumber": 4,
            "minInterval": 60_000,
            **_span(now_ms - _LEAST_SPAN_MS, now_ms),
        },
        "yAxis": {
            "type": "value",
            "min": 0,
            "splitNumber": 3,
            "minInterval": least_step,
            "splitLine": line,
            "axisLabel": {**_axis_text(), "formatter": f"{{value}}{unit}"},
        },
        "tooltip": {
            "trigger": "axis",
            "confine": True,
            "transitionDuration": 0,
            "backgroundColor": "var(--raised)",
            "borderColor": "var(--line)",
            "textStyle": {"color": "var(--ink)", "fontSize": 13},
        },
        "series": series,
    }


def _series(name: str, color: str, kind: str, width: float) -> dict[str, Any]:
    return {
        "type": "line",
        "name": name,
        "data": [],
        "showSymbol": False,
        "silent": True,
        "connectNulls": False,
        "color": color,
        "lineStyle": {"color": color, "type": kind, "width": width},
    }


def _rate_options() -> dict[str, Any]:
    return _options([_series("records/s", "var(--curve-1)", "solid", 2.0)], "", least_step=1.0)


def _latency_options() -> dict[str, Any]:
    return _options(
        [_series(name, f"var(--curve-{index + 1})", kind, width) for index, (name, kind, width) in enumerate(_CURVES)],
        " s",
    )
