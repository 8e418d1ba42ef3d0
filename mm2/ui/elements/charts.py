"""Curves over time, and the range of time that a page shows."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from nicegui import ui

from mm2.ui.elements.parts import Element, set_address, within

#: The ranges of time that a page can show, by their names in addresses: milliseconds and titles.
RANGES: Final[Mapping[str, tuple[int, str]]] = {
    "": (30 * 60_000, "Last 30 minutes"),
    "6h": (6 * 3_600_000, "Last 6 hours"),
    "24h": (24 * 3_600_000, "Last 24 hours"),
}
#: Further ranges, which need a Prometheus.
LONG_RANGES: Final[Mapping[str, tuple[int, str]]] = {
    "7d": (7 * 24 * 3_600_000, "Last 7 days"),
    "30d": (30 * 24 * 3_600_000, "Last 30 days"),
    "90d": (90 * 24 * 3_600_000, "Last 90 days"),
}
#: On the axis of a longer range, days are shown instead of times of day.
_DAYS_FROM_MS: Final = 2 * 24 * 3_600_000
#: The shortest time span of a time axis.
_LEAST_SPAN_MS: Final = 60_000

Points = Sequence[tuple[int, float | None]]


class TimeRange:
    """The choice of a range of time, also of a longer one with ``is_long``; ``change`` is called after a choice."""

    def __init__(self, wanted: Mapping[str, str], change: Callable[[], None], *, is_long: bool = False) -> None:
        self._ranges = {**RANGES, **LONG_RANGES} if is_long else RANGES
        self._name = wanted.get("range", "") if wanted.get("range", "") in self._ranges else ""
        self._change = change
        select = within("select", "range", aria_label="Time range")
        select.on(
            "change", lambda event: self._choose(str(event.args)), js_handler="(event) => emit(event.target.value)"
        )
        with select:
            for name, (_, title) in self._ranges.items():
                Element("option", title, value=name, selected=name == self._name)
        self._note = Element("span", "", "muted", role="status")

    @property
    def length_ms(self) -> int:
        """The length of the range."""
        return self._ranges[self._name][0]

    def explain(self, note: str) -> None:
        """Show where the values come from."""
        self._note.show(note)

    def _choose(self, name: str) -> None:
        if name in self._ranges:
            self._name = name
            set_address({"range": name})
            self._change()


@dataclass(frozen=True, slots=True)
class Curve:
    """One curve of a chart: its name, the number of its colour, and how it is drawn."""

    name: str
    color: int = 1
    kind: str = "solid"
    width: float = 2.0


class TimeChart:
    """Curves over time. The chart is kept, and only its points are replaced."""

    def __init__(self, *curves: Curve, unit: str = "", least_step: float = 0.0, label: str) -> None:
        """``label`` describes the chart for screen readers."""
        self._drawn: tuple[object, ...] = ()
        self._chart = ui.echart(_options(curves, unit, least_step), renderer="svg")
        self._chart.props["role"] = "img"
        self._chart.props["aria-label"] = label

    def show(self, curves: Sequence[Points], length_ms: int) -> bool:
        """Show the points of each curve over a range of time; returns whether there are any values."""
        newest = max((points[-1][0] for points in curves if points), default=None)
        has_values = any(value is not None for points in curves for _, value in points)
        if newest is None or (newest, length_ms) == self._drawn:
            return has_values
        is_first = not self._drawn
        self._drawn = (newest, length_ms)
        first = min(points[0][0] for points in curves if points)
        formatter = "{MM}-{dd}" if length_ms > _DAYS_FROM_MS else "{HH}:{mm}"
        span = {
            "min": max(newest - length_ms, min(first, newest - _LEAST_SPAN_MS)),
            "max": newest,
            "axisLabel": {**_axis_text(), "formatter": formatter},
        }
        series = [{"data": [[at_ms, rounded(value)] for at_ms, value in points]} for points in curves]
        if is_first:
            self._chart.options["xAxis"].update(span)
            for known, new in zip(self._chart.options["series"], series, strict=True):
                known.update(new)
            self._chart.update()
        else:
            self._chart.run_chart_method("setOption", {"series": series, "xAxis": span})
        return has_values


def rounded(value: float | None) -> float | None:
    """A value with four digits."""
    return None if value is None else float(f"{value:.4g}")


def sparkline(values: Sequence[float | None], width: int = 96, height: int = 20) -> str:
    """A small curve as SVG, without a scale; "" without values. Unknown values are gaps."""
    most = max((value for value in values if value is not None), default=None)
    if most is None:
        return ""
    step = width / max(1, len(values) - 1)
    path, is_open = [], False
    for index, value in enumerate(values):
        if value is None:
            is_open = False
            continue
        y = height - 1 - (value / most * (height - 2) if most else 0)
        path.append(f"{'L' if is_open else 'M'}{index * step:.0f} {y:.1f}")
        is_open = True
    return (
        f'<svg class="spark" viewBox="0 0 {width} {height}" width="{width}" height="{height}" aria-hidden="true">'
        f'<path d="{"".join(path)}"/></svg>'
    )


def _axis_text() -> dict[str, Any]:
    return {"color": "var(--muted)", "fontSize": 12, "hideOverlap": True}


def _options(curves: Sequence[Curve], unit: str, least_step: float) -> dict[str, Any]:
    line = {"lineStyle": {"color": "var(--line)"}}
    now_ms = time.time_ns() // 1_000_000
    return {
        "animation": False,
        "useUTC": True,
        "grid": {"left": 8, "right": 22, "top": 12, "bottom": 4, "containLabel": True},
        "xAxis": {
            "type": "time",
            "axisLine": line,
            "axisTick": {"show": False},
            "axisLabel": {**_axis_text(), "formatter": "{HH}:{mm}"},
            "splitNumber": 4,
            "minInterval": 60_000,
            # Set explicitly: without points it would start in 1970.
            "min": now_ms - _LEAST_SPAN_MS,
            "max": now_ms,
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
        "series": [_series(one) for one in curves],
    }


def _series(curve: Curve) -> dict[str, Any]:
    color = f"var(--curve-{curve.color})"
    return {
        "type": "line",
        "name": curve.name,
        "data": [],
        "showSymbol": False,
        "silent": True,
        "connectNulls": False,
        "color": color,
        "lineStyle": {"color": color, "type": curve.kind, "width": curve.width},
    }
