"""`mm2 groups`: offsets of consumer groups on both clusters, what would happen if they moved now, and missing offsets."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, TextIO

from mm2.cli.common.flow import (
    EXIT_ERROR,
    EXIT_NOT_WELL,
    EXIT_WELL,
    CommandError,
    ConfiguredFlow,
    add_flow,
    pair_of,
    read_config,
)
from mm2.cli.common.output import is_wide, write_document
from mm2.cli.common.tables import number, table
from mm2.cli.common.verbs import examples
from mm2.cli.show.status import add_timeout
from mm2.config.keys.mirror_keys import CHECKPOINT_CONNECTOR, is_job_on
from mm2.config.mirrormaker import MirrorMakerConfig
from mm2.evidence import NO_GROUP_REASON, Evidence
from mm2.kafka.errors import BrokerFailure
from mm2.mirror.client import MirrorClient
from mm2.mirror.common.clients import ClientKind, MirrorClients, Side
from mm2.mirror.common.discovery import vanished
from mm2.mirror.topics.topic_limits import left_out_groups
from mm2.observer.flow_state import looked_at
from mm2.observer.groups import if_moved
from mm2.observer.observer import observe_once
from mm2.observer.views import FlowView, GroupView

_SYNC_KEY = "sync.group.offsets.enabled"


def add(verbs: Any) -> None:
    """Declare the command and its arguments."""
    parser = verbs.add_parser(
        "groups",
        help="group offsets on both clusters, and why some are not on the target",
        description="The committed offset of each consumer group on the source, its translation by the last checkpoint, and the "
        "committed offset on the target, with the lag on both clusters, and what the group would do if its consumers moved to the "
        "target now, without mm2 failover. Then the offsets that have no checkpoint (partitions of the source), or that "
        "sync.group.offsets.enabled does not write (partitions of the target), each with the reason that the "
        "tasks reported last, and how many groups are left out because their ids are too long. Exit code: 0 there are no reasons, 1 there "
        "are some, or groups are left out, or the given group is unknown, 2 "
        "the command failed, or not all offsets could be read for another reason than a source that does not answer.",
        epilog=examples(
            ("all groups", "mm2 groups mm2.properties 'A->B'"),
            ("one group", "mm2 groups mm2.properties 'A->B' --group billing"),
        ),
    )
    add_flow(parser, wide=True)
    parser.add_argument("--group", metavar="G", help="only this group")
    add_timeout(parser)
    parser.set_defaults(run=run)


def run(options: Any) -> int:
    """Run the command; returns the exit code. Raises CommandError, ConfigException or KafkaFailure."""
    flow = ConfiguredFlow.of(options.config, options.flow)
    ledger = flow.ledger()
    left_out = left_out_groups(ledger)
    rows = [
        (group, partition, reason)
        for group, reasons in sorted(ledger.group_reasons().items())
        if options.group in {None, group}
        for partition, reason in sorted(reasons.items())
    ]
    is_unknown = options.group is not None and not rows and not _has_checkpoint(flow, options.group)
    config = read_config(options.config)
    (view,) = observe_once(config, [str(flow.pair)], timeout_s=options.timeout).flows
    if view.target_error:
        raise CommandError(view.target_error)
    unread = next((one.error for one in view.evidence if one.what is Evidence.GROUPS), "").rstrip(".")
    groups = [one for one in view.groups if options.group in {None, one.group}]
    if options.json:
        listed = [
            {
                "group": group,
                "topic": partition.topic,
                "partition": partition.partition,
                "reason": reason.message,
                "code": reason.code,
            }
            for group, partition, reason in rows
        ]
        document = {
            "flow": str(flow.pair),
            "offsets": listed,
            "groups": groups,
            "groups_error": view.groups_error or None,
            "left_out": left_out or None,
            "evidence": [one for one in view.evidence if one.what in NO_GROUP_REASON.evidence],
        }
        write_document(options, document)
    else:
        _write_groups(view, groups, is_synced=_is_synced(config, options), wide=is_wide(options))
        if rows:
            cells = [(group, str(partition), reason.message) for group, partition, reason in rows]
            table(sys.stdout, ("GROUP", "PARTITION", "REASON"), cells, left=2)
        elif not is_unknown and not view.groups_error and not left_out:
            sys.stdout.write(f"{flow.pair}: {NO_GROUP_REASON()}{f'; {unread}' if unread else ''}\n")
    if left_out:
        sys.stderr.write(f"mm2: {flow.pair}: {left_out}.\n")
    if view.source_error:
        sys.stderr.write(f"mm2: {flow.pair}: {view.source_error}\n")
    if view.groups_error:
        sys.stderr.write(f"mm2: {flow.pair}: {NO_GROUP_REASON(is_known=False, why=view.groups_error)}\n")
        return EXIT_ERROR
    if is_unknown:
        why = unread or (
            "the group is not selected (groups, groups.exclude), has committed no offsets of replicated topics, or does not exist"
        )
        sys.stderr.write(f"mm2: {flow.pair} has no checkpoint of {options.group} and reports no reason: {why}.\n")
    return EXIT_NOT_WELL if rows or is_unknown or left_out else EXIT_WELL


def _is_synced(config: MirrorMakerConfig, options: Any) -> bool:
    pair = pair_of(config, options.config, options.flow)
    return is_job_on(config.connector_config(pair, CHECKPOINT_CONNECTOR), "sync.group.offsets")


def _write_groups(view: FlowView, groups: Sequence[GroupView], *, is_synced: bool, wide: bool) -> None:
    if not groups:
        return
    group_table(sys.stdout, view, groups, wide=wide)
    if not is_synced:
        sys.stdout.write(
            f"{_SYNC_KEY}=false: translated offsets are not committed on {view.target}; mm2 failover commits them.\n"
        )
    if text := looked_at(view, NO_GROUP_REASON.evidence):
        sys.stdout.write(f"{view.name}: {text}\n")
    sys.stdout.write("\n")


def group_table(out: TextIO, view: FlowView, groups: Sequence[GroupView], *, wide: bool = False) -> None:
    """Print one line for each group and partition; ``wide`` adds the remote topic and the reason."""
    header = ["GROUP", "PARTITION", f"ON {view.source}", "LAG", "TRANSLATED", f"ON {view.target}", "LAG"]
    header += ["REMOTE TOPIC", "REASON", "IF MOVED NOW"] if wide else ["IF MOVED NOW"]
    rows = [
        (
            one.group,
            f"{one.topic}-{one.partition}",
            number(one.source_offset),
            number(one.source_lag),
            number(one.translated),
            number(one.target_offset),
            number(one.target_lag),
            *((one.remote_topic or "-", one.reason or "-") if wide else ()),
            if_moved(one) or "not known",
        )
        for one in groups
    ]
    table(out, tuple(header), rows, left=2)


def _has_checkpoint(flow: ConfiguredFlow, group: str) -> bool:
    """Whether the group has a checkpoint on the target. Raises KafkaFailure."""
    clients = MirrorClients(flow.props)
    props = {**flow.props, **clients.client_props(Side.TARGET, ClientKind.CONSUMER, "mm2-cli-checkpoints")}
    try:
        with MirrorClient(props) as client:
            return bool(client.remote_consumer_offsets(group, flow.pair.source))
    except BrokerFailure as failure:
        if not vanished(failure):
            raise
        return False  # the checkpoints topic does not exist
