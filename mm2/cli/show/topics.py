"""`mm2 topics`: the source topics of flows, or one of them with its partitions, configuration differences and groups."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, TextIO

from mm2.cli.common.flow import EXIT_ERROR, EXIT_NOT_WELL, EXIT_WELL, CommandError, ConfiguredFlow, add_file
from mm2.cli.common.output import is_wide, write_document
from mm2.cli.common.tables import at_least, number, table
from mm2.cli.common.verbs import examples
from mm2.cli.show.groups import group_table
from mm2.cli.show.status import add_timeout, look, write_partitions
from mm2.codec import encode
from mm2.copy.causes import shortened
from mm2.copy.states import HEALTHY
from mm2.evidence import CONFIGS_EQUAL, NO_TOPICS, READ, RISK
from mm2.kafka.errors import KafkaFailure
from mm2.mirror.topics.config_sync import ConfigDifference
from mm2.observer.flow_state import looked_at
from mm2.observer.shown.topics import TopicView, config_differences, topic_view, topic_views
from mm2.observer.views import FlowView, PartitionView, Snapshot


def add(verbs: Any) -> None:
    """Declare the command and its arguments."""
    parser = verbs.add_parser(
        "topics",
        help="topics of each flow; or one topic with partitions, configuration differences and groups",
        description="One line for each topic of the source that a flow copies: its partitions and how many are not healthy, its remote "
        "topic, the worst state of its partitions, and its lag. With --topic, one topic: its partitions, the configuration of its remote "
        "topic where it differs from that of the source, and the consumer groups that read it. Exit code: 0 all partitions shown are "
        "healthy, 1 one is not, 2 the command failed.",
        epilog=examples(
            ("all topics of all flows", "mm2 topics mm2.properties"),
            ("with bytes, seconds and losses", "mm2 topics mm2.properties 'A->B' --output wide"),
            ("one topic", "mm2 topics mm2.properties 'A->B' --topic orders"),
            (
                "topics that are not healthy, for a script",
                "mm2 topics mm2.properties --json | jq '.topics[] | select(.unhealthy > 0) | .topic'",
            ),
        ),
    )
    add_file(parser, flow="?", wide=True)
    parser.add_argument("--topic", metavar="T", help="describe this topic of the source")
    add_timeout(parser)
    parser.set_defaults(run=run)


def run(options: Any) -> int:
    """Run the command; returns the exit code. Raises CommandError, ConfigException or KafkaFailure."""
    if options.topic is None:
        return _list(options)
    if options.flow is None:
        raise CommandError("--topic requires a flow, as in 'A->B'.")
    return _describe(options)


def _list(options: Any) -> int:
    snapshot = look(options)
    rows = [(flow, topic) for flow in snapshot.flows for topic in topic_views(flow.partitions)]
    if options.json:
        topics = [{"flow": flow.name, **encode(topic)} for flow, topic in rows]
        evidence = {flow.name: flow.evidence for flow in snapshot.flows}
        write_document(options, {"at_ms": snapshot.at_ms, "topics": topics, "evidence": evidence})
    elif rows or not any(flow.source_error or flow.target_error for flow in snapshot.flows):
        write_topics(
            sys.stdout, rows, with_flow=len(snapshot.flows) > 1, wide=is_wide(options), why=unread_evidence(snapshot)
        )
        for flow in snapshot.flows:
            if text := looked_at(flow, RISK.evidence):
                sys.stdout.write(f"{flow.name}: {text}\n")
    return exit_code(snapshot, [topic for _, topic in rows])


def _describe(options: Any) -> int:
    topic = options.topic
    flow = ConfiguredFlow.of(options.config, options.flow)
    options.topic = None  # the name of a topic, which is not a pattern
    snapshot = look(options)
    (view,) = snapshot.flows
    partitions = [one for one in view.partitions if one.topic == topic]
    if not partitions:
        if view.target_error:
            raise CommandError(view.target_error)
        raise CommandError(f"{view.name} has no topic {topic}; mm2 topics without --topic lists those that it copies.")
    summary = topic_view(topic, partitions)
    differences, error = _differences(flow, summary)
    groups = [one for one in view.groups if one.topic == topic]
    if options.json:
        described = {
            "flow": view.name,
            **encode(summary),
            "partitions": partitions,
            "config_differences": differences,
            "config_error": error or None,
            "groups": groups,
        }
        write_document(options, {"at_ms": snapshot.at_ms, "topic": described})
    else:
        out = sys.stdout
        write_topics(out, [(view, summary)], with_flow=False, wide=True)
        out.write("\n")
        write_partitions(out, partitions, wide=is_wide(options))
        _write_reasons(out, partitions)
        out.write("\n")
        write_differences(out, view, summary, differences, error)
        if groups:
            out.write("\n")
            group_table(out, view, groups)
    if view.groups_error:
        sys.stderr.write(f"mm2: {view.name}: not all offsets of groups are known: {view.groups_error}\n")
    return exit_code(snapshot, [summary])


def _differences(flow: ConfiguredFlow, topic: TopicView) -> tuple[Sequence[ConfigDifference] | None, str]:
    """The differences, or None and why they are not known."""
    if not topic.remote_topic:
        return None, "nothing has been copied yet"
    try:
        return config_differences(flow.props, topic.topic, topic.remote_topic), ""
    except KafkaFailure as failure:
        return None, str(failure)


def exit_code(snapshot: Snapshot, topics: Sequence[TopicView]) -> int:
    """The exit code for these topics; the errors of clusters are printed. Without any topic of a source they are not known."""
    for flow in snapshot.flows:
        for error in filter(None, (flow.source_error, flow.target_error)):
            sys.stderr.write(f"mm2: {flow.name}: {error}\n")
    if any(flow.target_error or (flow.source_error and not flow.partitions) for flow in snapshot.flows):
        return EXIT_ERROR
    return EXIT_NOT_WELL if any(topic.unhealthy for topic in topics) else EXIT_WELL


def write_topics(
    out: TextIO, rows: Sequence[tuple[FlowView, TopicView]], *, with_flow: bool, wide: bool, why: str = ""
) -> None:
    """Print one line for each topic; ``wide`` adds columns. ``why``: why it is not known that there is none; "": it is known."""
    header: tuple[str, ...] = ("TOPIC", "PARTITIONS", "UNHEALTHY", "LAG", "BYTES/S", "STATE", "REMOTE TOPIC")
    if wide:
        header = (*header[:4], "SECONDS", "BYTES", "BYTES/S", "LOST", "FOREIGN", *header[5:])
    cells = [(*((flow.name,) if with_flow else ()), *_cells(topic, wide=wide)) for flow, topic in rows]
    if cells:
        table(out, (*(("FLOW",) if with_flow else ()), *header), cells, left=2 if with_flow else 1)
    else:
        out.write(f"{NO_TOPICS(is_known=not why, why=why)}\n")


def unread_evidence(snapshot: Snapshot) -> str:
    """What was not read of that which shows the topics of flows."""
    unread = [
        READ[what][0].format(source=flow.source, target=flow.target)
        for flow in snapshot.flows
        for what in NO_TOPICS.evidence
        if not flow.has_read(what)
    ]
    return f"not read: {', '.join(unread)}" if unread else ""


def _cells(topic: TopicView, *, wide: bool) -> tuple[str, ...]:
    rate = number(None if topic.bytes_per_s is None else int(topic.bytes_per_s))
    seconds = "-" if topic.lag_seconds is None else f"{topic.lag_seconds:,.1f}"
    lag = (number(topic.partitions), number(topic.unhealthy), at_least(topic.lag_records, is_exact=topic.is_lag_exact))
    more = (seconds, number(topic.lag_bytes), rate, number(topic.lost_ranges), number(topic.foreign_records))
    return (topic.topic, *lag, *(more if wide else (rate,)), str(topic.state), topic.remote_topic or "-")


def _write_reasons(out: TextIO, partitions: Sequence[PartitionView]) -> None:
    for one in partitions:
        text = one.reason if one.state not in HEALTHY else one.note
        if text:
            out.write(f"{one.topic}-{one.partition}  {one.state}: {shortened(text)}\n")


def write_differences(
    out: TextIO, view: FlowView, topic: TopicView, differences: Sequence[ConfigDifference] | None, error: str
) -> None:
    """Print how the configs of a remote topic differ; ``differences`` None: that is not known, because of the ``error``."""
    if differences is None:
        out.write(f"{CONFIGS_EQUAL(is_known=False, why=error)}\n")
    elif not differences:
        out.write(f"{CONFIGS_EQUAL(topic=topic.topic, remote=topic.remote_topic)}\n")
    else:
        rows = [
            (one.name, _value(one.source), _value(one.target), "at the next sync" if one.is_synced else "not copied")
            for one in differences
        ]
        table(out, ("CONFIG", f"ON {view.source}", f"ON {view.target}", ""), rows, left=3)


def _value(value: str | None) -> str:
    return "-" if value is None else value or '""'
