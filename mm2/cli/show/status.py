"""`mm2 status`: what would be lost if the source failed now, and the state of each flow and its partitions."""

from __future__ import annotations

import dataclasses
import io
import math
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from mm2.cli.common.colours import coloured
from mm2.cli.common.flow import (
    EXIT_ERROR,
    EXIT_NOT_WELL,
    EXIT_WELL,
    CommandError,
    add_file,
    add_topics,
    pair_of,
    pattern_argument,
    read_config,
)
from mm2.cli.common.output import is_wide, write_document
from mm2.cli.common.tables import (
    ALL_ROWS,
    COLLAPSED_ABOVE,
    TableRow,
    at_least,
    number,
    records_at_risk,
    seconds_at_risk,
    short_table,
    table,
)
from mm2.cli.common.terminal import visible, with_controls
from mm2.cli.common.verbs import examples, seconds
from mm2.config.definitions.java_regex import JavaPattern
from mm2.copy.causes import Cause, StoppedPartition, alike, cause_of, sentences_of, shortened
from mm2.copy.states import HEALTHY, PartitionState
from mm2.evidence import utc_time
from mm2.kafka.structs import TopicPartition
from mm2.observer.flow_state import looked_at
from mm2.observer.observer import observe_once
from mm2.observer.shown.topics import SEVERITY, TopicView, topic_views
from mm2.observer.traces import reason_of
from mm2.observer.views import FlowState, FlowView, PartitionView, Snapshot
from mm2.ui.elements.meanings import MEANINGS

_WATCH_S: Final = 2.0
#: More partitions with the same cause, or more failed tasks of a connector, are one line.
_ONE_BY_ONE: Final = 3
_FINE: Final = frozenset({FlowState.RUNNING, FlowState.CATCHING_UP})

#: Empty rather than null where they were not read, for scripts that iterate over them.
_LISTS: Final = frozenset({"partitions", "groups"})
#: Fields of `mm2.observer.views` that only a process knows; those of a flow are `FlowView.unread`.
_OF_PROCESS: Final = {"snapshot": ("reloads", "certificates"), "partition": ("records", "bytes")}


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
            ("one flow with its partitions, or its topics if there are many", "mm2 status mm2.properties 'A->B'"),
            ("all partitions of some topics", "mm2 status mm2.properties 'A->B' --topic 'orders.*'"),
            ("refresh every two seconds, until Ctrl-C", "mm2 status mm2.properties --watch"),
            ("for a script", "mm2 status mm2.properties --json | jq '.flows[] | {name, state, risk, losses}'"),
        ),
    )
    add_file(parser, flow="?", wide=True)
    parser.add_argument(
        "--watch",
        metavar="SECONDS",
        nargs="?",
        type=seconds,
        const=_WATCH_S,
        help=f"refresh at this interval (default: {_WATCH_S:g}), until Ctrl-C",
    )
    add_topics(parser)
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
    config = read_config(options.config)
    file, name = options.config, options.flow
    pairs = config.replicating_pairs() if name is None else [pair_of(config, file, name)]
    if not pairs:
        raise CommandError(config.disabled_message)
    pattern = pattern_argument("topic", options.topic)
    snapshot = observe_once(config, [str(pair) for pair in pairs], timeout_s=options.timeout)
    return snapshot if pattern is None else selected(snapshot, pattern, options.topic)


def selected(snapshot: Snapshot, pattern: JavaPattern, text: str) -> Snapshot:
    """Only the partitions of matching topics; the figures of the flows stay.

    Raises CommandError if there are none, unless a cluster that does not answer may have them.
    """
    flows = tuple(
        dataclasses.replace(flow, partitions=tuple(one for one in flow.partitions if pattern.fullmatch(one.topic)))
        for flow in snapshot.flows
    )
    is_unknown = any(one.target_error or (one.source_error and not one.partitions) for one in snapshot.flows)
    if not is_unknown and not any(flow.partitions for flow in flows):
        raise CommandError(f"No topic of {', '.join(flow.name for flow in flows)} matches --topic {text}.")
    return dataclasses.replace(snapshot, flows=flows)


def run(options: Any) -> int:
    """Run the command; returns the exit code. Raises CommandError, ConfigException or KafkaFailure."""
    if options.watch is None:
        return _show(look(options), options, sys.stdout)
    return _watch(lambda: look(options), options)


def exit_code(snapshot: Snapshot) -> int:
    """The worst of all flows. A loss within the last day counts, whatever the flow's state is now."""
    if any(flow.target_error or flow.state is FlowState.UNKNOWN for flow in snapshot.flows):
        return EXIT_ERROR
    return EXIT_WELL if all(flow.state in _FINE and not flow.losses for flow in snapshot.flows) else EXIT_NOT_WELL


def document(snapshot: Snapshot) -> dict[str, Any]:
    """The snapshot as JSON: the fields of `mm2.observer.views`, and the name of each flow.

    What only the process that runs a flow knows is null: 0 would differ from its ``/overview``.
    """
    data = dataclasses.asdict(snapshot) | dict.fromkeys(_OF_PROCESS["snapshot"])
    data["flows"] = [
        {"name": flow.name, **fields, **dict.fromkeys(flow.unread - _LISTS)}
        for flow, fields in zip(snapshot.flows, data["flows"], strict=True)
    ]
    for flow in data["flows"]:
        for partition in flow["partitions"]:
            partition.update(dict.fromkeys(_OF_PROCESS["partition"]))
    return data


def _show(snapshot: Snapshot, options: Any, out: TextIO) -> int:
    if options.json:
        write_document(options, document(snapshot), out, is_one_of_many=options.watch is not None)
    else:
        out.writelines(block.text for block in _blocks(snapshot, options))
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
                live.update(_coloured(snapshot, options), refresh=True)
                time.sleep(options.watch)
    except (KeyboardInterrupt, BrokenPipeError):
        return code


def _coloured(snapshot: Snapshot, options: Any) -> Group:
    """The status for a terminal of any width: sentences are wrapped, and rows of tables cut off."""
    blocks = [_Block(f"{utc_time(snapshot.at_ms)}\n"), *_blocks(snapshot, options)]
    texts = []
    for block in blocks:
        text = coloured(visible(block.text)).removesuffix("\n")
        texts.append(Text.from_ansi(text, no_wrap=block.is_table, overflow="ellipsis" if block.is_table else None))
    return Group(*texts)


@dataclass(frozen=True, slots=True)
class _Block:
    """Lines of the output: a table, or sentences."""

    text: str
    is_table: bool = False


def _blocks(snapshot: Snapshot, options: Any) -> Iterator[_Block]:
    wide = is_wide(options)
    partitions = options.flow is not None or options.topic is not None or wide
    by_topic = options.topic is None and not wide
    return _flow_blocks(snapshot.flows, partitions=partitions, by_topic=by_topic, wide=wide)


def _flow_blocks(flows: Sequence[FlowView], *, partitions: bool, by_topic: bool, wide: bool) -> Iterator[_Block]:
    """The sentences first, then the figures. ``by_topic``: many partitions are shown as one line for each topic. ``wide`` adds columns."""
    yield _Block("".join(f"{flow.name}  {flow.state}  {flow.sentence}\n" for flow in flows))
    if looked := "".join(f"{flow.name}  {text}\n" for flow in flows if (text := looked_at(flow))):
        yield _Block(f"\n{looked}")
    out = _after_empty_line()
    header = ("FLOW", "PARTITIONS", "UNHEALTHY", "LAG", "SECONDS", "BYTES", "BYTES/S", "LOST", "FOREIGN", "TASKS")
    table(out, header, [_flow_row(flow) for flow in flows])
    yield _Block(out.getvalue(), is_table=True)
    for flow in flows:
        is_collapsed = by_topic and len(flow.partitions) > COLLAPSED_ABOVE
        if partitions and flow.partitions:
            out = _after_empty_line()
            if is_collapsed:
                _write_topics(out, flow.partitions)
            else:
                write_partitions(out, flow.partitions, wide=wide)
            yield _Block(out.getvalue(), is_table=True)
        messages = _messages(flow, wide=wide)
        shown = messages[:COLLAPSED_ABOVE] if is_collapsed else messages
        out = io.StringIO()
        out.writelines(shown)
        if len(shown) < len(messages):
            out.write(
                f"{flow.name}  {number(len(messages) - len(shown))} more reasons or notes: --topic or --output wide\n"
            )
        _write_errors(out, flow)
        if out.tell():
            yield _Block(out.getvalue())


def _after_empty_line() -> io.StringIO:
    out = io.StringIO()
    out.write("\n")
    return out


def _messages(flow: FlowView, *, wide: bool) -> list[str]:
    """One line for each partition that is not healthy or has a note; one for several with the same cause, unless ``wide``."""
    rows = [
        StoppedPartition(TopicPartition(one.topic, one.partition), one.state, one.reason, one.since_ms)
        if one.state not in HEALTHY
        else StoppedPartition(TopicPartition(one.topic, one.partition), "", one.note)
        for one in flow.partitions
        if one.state not in HEALTHY or one.note
    ]
    lines = []
    for group in [rows] if wide else alike(rows):
        if wide or len(group) <= _ONE_BY_ONE:
            lines += [_message(flow.name, str(one.source), cause_of([one])) for one in group]
        else:
            cause = cause_of(group)
            lines.append(_message(flow.name, f"{number(len(group))} partitions", cause))
            if cause.state in MEANINGS:
                lines.append(
                    f"{flow.name}  what to do: {MEANINGS[PartitionState(cause.state)].do} Each of them: --output wide\n"
                )
    return lines


def _message(flow: str, what: str, cause: Cause) -> str:
    since = f" since {utc_time(cause.since_ms)}" if cause.since_ms is not None else ""
    state = f"{cause.state}{since}: " if cause.state else ""
    return f"{flow}  {what}  {state}{shortened(cause.reason)}\n"


def _flow_row(flow: FlowView) -> tuple[str, ...]:
    tasks = [task for connector in flow.connectors for task in connector.tasks]
    running = sum(task.state == "RUNNING" for task in tasks)
    return (
        flow.name,
        number(len(flow.partitions)),
        number(sum(one.is_unhealthy for one in flow.partitions)),
        records_at_risk(flow.risk),
        seconds_at_risk(flow.risk),
        number(flow.risk.bytes),
        _whole(flow.bytes_per_s),
        at_least(flow.lost_ranges if flow.is_ledger_read else None, is_exact=not flow.target_losses),
        number(flow.foreign_records if flow.is_ledger_read else None),
        f"{running} of {len(tasks)} running" if flow.connectors else "-",
    )


def write_partitions(out: TextIO, partitions: Sequence[PartitionView], *, wide: bool = False) -> None:
    """Print one line for each partition; ``wide`` adds the remote topic, the task, and what was lost or is not ours."""
    header = ["PARTITION", "STATE", "POSITION", "SOURCE END", "LAG", "SECONDS", "TARGET OFFSET", "VERIFIED", "BYTES/S"]
    header += ["LAG BYTES", "LOST", "FOREIGN", "TASK", "REMOTE TOPIC"] if wide else []
    rows = [
        (
            f"{one.topic}-{one.partition}",
            str(one.state),
            number(one.position),
            number(one.source_end),
            at_least(one.lag_records, is_exact=one.is_lag_exact),
            _seconds(one.lag_seconds),
            number(one.target_offset),
            number(one.verified_offset),
            _whole(one.bytes_per_s),
            *(_more(one) if wide else ()),
        )
        for one in partitions
    ]
    table(out, tuple(header), rows, left=2, is_last_left=wide)


def _more(one: PartitionView) -> tuple[str, ...]:
    counts = (one.lag_bytes, one.lost_ranges, one.foreign_records, one.task)
    return (*map(number, counts), one.remote_topic or "-")


def _write_topics(out: TextIO, partitions: Sequence[PartitionView]) -> None:
    """One line for each topic, as far as it needs attention; ``--topic`` shows its partitions."""
    header = ("TOPIC", "PARTITIONS", "UNHEALTHY", "LAG", "SECONDS", "BYTES/S", "STATES")
    topics = topic_views(partitions)
    rows = [
        TableRow(
            (
                one.topic,
                number(one.partitions),
                number(one.unhealthy),
                at_least(one.lag_records, is_exact=one.is_lag_exact),
                _seconds(one.lag_seconds),
                _whole(one.bytes_per_s),
                ", ".join(f"{state} {number(count)}" for state, count in sorted(one.states.items())),
            ),
            _urgency(one),
        )
        for one in topics
    ]
    hint = f"--topic PATTERNS or {ALL_ROWS}"
    short_table(out, header, rows, things="topics", well="RUNNING and with lag 0", hint=hint)
    out.write(f"{number(len(partitions))} partitions of {number(len(topics))} topics; one by one: --topic\n")


def _urgency(topic: TopicView) -> tuple[float, ...] | None:
    """By state, then by lag, an unknown one first, and one that may be larger; None: all partitions are running, without lag."""
    if topic.state is PartitionState.RUNNING and topic.lag_records == 0 and topic.is_lag_exact:
        return None
    lag = -math.inf if topic.lag_records is None else -topic.lag_records
    return SEVERITY[topic.state], lag, topic.is_lag_exact


def _write_errors(out: TextIO, flow: FlowView) -> None:
    for connector in flow.connectors:
        if connector.state != "RUNNING":
            out.write(_failure(flow, connector.name, connector.state, reason_of(connector.trace)))
        tasks = [task for task in connector.tasks if task.state != "RUNNING"]
        out.writelines(
            _failure(flow, f"{connector.name}-{task.id}", task.state, reason_of(task.trace))
            for task in tasks[:_ONE_BY_ONE]
        )
        if more := Counter(task.state for task in tasks[_ONE_BY_ONE:]):
            shown = ", ".join(f"{number(count)} {state}" for state, count in more.items())
            out.write(f"{flow.name}  {connector.name}  more tasks: {shown}\n")
    above = sentences_of(list(flow.causes))  # printed with the partitions
    for error in (*flow.troubles, flow.source_error, flow.target_error):
        if error and error not in above:
            out.write(f"{flow.name}  {shortened(error)}\n")


def _failure(flow: FlowView, name: str, state: str, why: str) -> str:
    return f"{flow.name}  {name}  {state}{': ' if why else ''}{shortened(why)}\n"


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:,.1f}"


def _whole(value: float | None) -> str:
    return number(None if value is None else int(value))
