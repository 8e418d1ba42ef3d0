"""`mm2 status`: what would be lost if the source failed now, and the state of each flow and its partitions."""

from __future__ import annotations

import dataclasses
import io
import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from mm2.cli.flow import EXIT_NOT_WELL, EXIT_TROUBLE, EXIT_WELL, CommandError, add_file, number, pair_of, table
from mm2.cli.terminal import visible, with_controls
from mm2.cli.verbs import examples, seconds
from mm2.config.mirrormaker import MirrorMakerConfig
from mm2.config.properties import load_properties
from mm2.copy.states import HEALTHY
from mm2.observer.observer import observe_once
from mm2.observer.traces import reason_of
from mm2.observer.views import FlowState, FlowView, PartitionView, Snapshot

_WATCH_S: Final = 2.0
_FINE: Final = frozenset({FlowState.RUNNING, FlowState.CATCHING_UP})
_COLOURS: Final = {
    "green": ("RUNNING",),
    "yellow": ("CATCHING_UP", "PAUSED", "THROTTLED", "UNKNOWN", "BLOCKED_BY_OPEN_TXN"),
    "bold red": (
        "DEGRADED", "STOPPED", "UNREACHABLE", "UNAUTHORIZED", "CORRUPT", "TOO_LARGE", "OVER_LIMIT", "LOST_RANGE",
        "DELETED", "RECREATED", "INCONSISTENT", "DIVERGED", "TARGET_FULL", "REFUSED", "FAILED",
    ),
}  # fmt: skip


def add(verbs: Any) -> None:
    """Declare the command and its arguments."""
    parser = verbs.add_parser(
        "status",
        help="data at risk and state of each flow",
        description="The data at risk and the state of each flow, read from its two clusters, wherever it runs. With a "
        "flow, also its partitions. Exit code: 0 everything is copied or catching up, 1 something is not, or "
        "records were lost within the last 24 hours (mm2 gaps also shows older losses), 2 the command failed,"
        " for instance because a target is unavailable.",
        epilog=examples(
            ("all flows of the file", "mm2 status mm2.properties"),
            ("one flow, partition by partition", "mm2 status mm2.properties 'A->B'"),
            ("refresh every two seconds, until Ctrl-C", "mm2 status mm2.properties --watch"),
            ("for a script", "mm2 status mm2.properties --json | jq '.flows[] | {name, state, risk, losses}'"),
        ),
    )
    add_file(parser, flow="?")
    parser.add_argument(
        "--watch",
        metavar="SECONDS",
        nargs="?",
        type=seconds,
        const=_WATCH_S,
        help=f"refresh at this interval (default: {_WATCH_S:g}), until Ctrl-C",
    )
    add_timeout(parser)
    parser.set_defaults(run=run)


def add_timeout(parser: Any) -> None:
    """Add the argument for the timeout."""
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=seconds,
        default=15.0,
        help="how long to wait for the clusters (default: 15)",
    )


def look(options: Any) -> Snapshot:
    """Observe the flows that the command line names. Raises CommandError, ConfigException or KafkaFailure."""
    config = MirrorMakerConfig(load_properties(options.config))
    file, name = options.config, options.flow
    pairs = config.replicating_pairs() if name is None else [pair_of(config, file, name)]
    if not pairs:
        raise CommandError(f"{file} has no enabled flow; enable one with SOURCE->TARGET.enabled = true.")
    return observe_once(config, [str(pair) for pair in pairs], timeout_s=options.timeout)


def run(options: Any) -> int:
    """Run the command; returns the exit code. Raises CommandError, ConfigException or KafkaFailure."""
    if options.watch is None:
        return _show(look(options), options, sys.stdout)
    return _watch(lambda: look(options), options)


def exit_code(snapshot: Snapshot) -> int:
    """The worst of all flows. A loss within the last day counts, whatever the flow's state is now."""
    if any(flow.target_error or flow.state is FlowState.UNKNOWN for flow in snapshot.flows):
        return EXIT_TROUBLE
    return EXIT_WELL if all(flow.state in _FINE and not flow.losses for flow in snapshot.flows) else EXIT_NOT_WELL


def document(snapshot: Snapshot) -> dict[str, Any]:
    """The snapshot as JSON: the fields of `mm2.observer.views`, and the name of each flow."""
    data = dataclasses.asdict(snapshot)
    data["flows"] = [{"name": flow.name, **fields} for flow, fields in zip(snapshot.flows, data["flows"], strict=True)]
    return data


def print_json(data: object, out: TextIO | None = None) -> None:
    """Print a value as JSON; sets become sorted lists."""
    (out or sys.stdout).write(json.dumps(data, indent=2, ensure_ascii=False, default=sorted) + "\n")


def _show(snapshot: Snapshot, options: Any, out: TextIO) -> int:
    if options.json:
        print_json(document(snapshot), out)
    else:
        write_flows(out, snapshot.flows, partitions=options.flow is not None)
    return exit_code(snapshot)


def _watch(ask: Callable[[], Snapshot], options: Any) -> int:
    """Print the status repeatedly; Ctrl-C ends it with the exit code of the last one."""
    console, code = Console(file=with_controls(sys.stdout)), EXIT_WELL
    # A shell ignores SIGINT for background processes.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if options.json or not console.is_terminal:
            while True:
                code = _show(ask(), options, sys.stdout)
                sys.stdout.write("" if options.json else "\n")
                sys.stdout.flush()
                time.sleep(options.watch)
        with Live(console=console, auto_refresh=False) as live:
            while True:
                snapshot = ask()
                code = exit_code(snapshot)
                live.update(_coloured(snapshot, partitions=options.flow is not None), refresh=True)
                time.sleep(options.watch)
    except (KeyboardInterrupt, BrokenPipeError):
        return code


def _coloured(snapshot: Snapshot, *, partitions: bool) -> Text:
    out = io.StringIO()
    out.write(f"{_time(snapshot.at_ms)}\n")
    write_flows(out, snapshot.flows, partitions=partitions)
    text = Text(visible(out.getvalue()), no_wrap=True, overflow="ellipsis")
    for style, words in _COLOURS.items():
        text.highlight_regex(rf"\b({'|'.join(words)})\b", style)
    return text


def write_flows(out: TextIO, flows: Sequence[FlowView], *, partitions: bool) -> None:
    """Print the sentences first, then the figures."""
    out.writelines(f"{flow.name}  {flow.state}  {flow.sentence}\n" for flow in flows)
    out.write("\n")
    header = ("FLOW", "PARTITIONS", "UNHEALTHY", "LAG", "SECONDS", "BYTES", "BYTES/S", "LOST", "FOREIGN", "TASKS")
    table(out, header, [_flow_row(flow) for flow in flows])
    for flow in flows:
        if partitions and flow.partitions:
            out.write("\n")
            _write_partitions(out, flow.partitions)
        for one in flow.partitions:
            if one.state not in HEALTHY:
                since = f" since {_time(one.since_ms)}" if one.since_ms is not None else ""
                out.write(f"{flow.name}  {one.topic}-{one.partition}  {one.state}{since}: {one.reason}\n")
            elif one.note:
                out.write(f"{flow.name}  {one.topic}-{one.partition}  {one.note}\n")
        _write_errors(out, flow)


def _flow_row(flow: FlowView) -> tuple[str, ...]:
    tasks = [task for connector in flow.connectors for task in connector.tasks]
    running = sum(task.state == "RUNNING" for task in tasks)
    return (
        flow.name,
        number(len(flow.partitions)),
        number(sum(one.state not in HEALTHY for one in flow.partitions)),
        number(flow.risk.records),
        _seconds(flow.risk.seconds),
        number(flow.risk.bytes),
        _whole(flow.bytes_per_s),
        number(flow.lost_ranges),
        number(flow.foreign_records),
        f"{running} of {len(tasks)} running" if flow.connectors else "-",
    )


def _write_partitions(out: TextIO, partitions: Sequence[PartitionView]) -> None:
    header = ("PARTITION", "POSITION", "SOURCE END", "LAG", "SECONDS", "TARGET OFFSET", "VERIFIED", "BYTES/S", "STATE")
    rows = [
        (
            f"{one.topic}-{one.partition}",
            number(one.position),
            number(one.source_end),
            number(one.lag_records),
            _seconds(one.lag_seconds),
            number(one.target_offset),
            number(one.verified_offset),
            _whole(one.bytes_per_s),
            str(one.state),
        )
        for one in partitions
    ]
    table(out, header, rows)


def _write_errors(out: TextIO, flow: FlowView) -> None:
    for connector in flow.connectors:
        for name, state, trace in (
            (connector.name, connector.state, connector.trace),
            *((f"{connector.name}-{task.id}", task.state, task.trace) for task in connector.tasks),
        ):
            if state != "RUNNING":
                why = reason_of(trace)
                out.write(f"{flow.name}  {name}  {state}{': ' if why else ''}{why}\n")
    for error in (*flow.troubles, flow.source_error, flow.target_error):
        if error:
            out.write(f"{flow.name}  {error}\n")


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:,.1f}"


def _whole(value: float | None) -> str:
    return number(None if value is None else int(value))


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
