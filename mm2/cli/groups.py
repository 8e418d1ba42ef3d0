"""`mm2 groups`: offsets of consumer groups that are not on the target, and the reasons."""

from __future__ import annotations

import json
import sys
from typing import Any

from mm2.cli.flow import EXIT_NOT_WELL, EXIT_WELL, ConfiguredFlow, add_flow, table
from mm2.cli.verbs import examples
from mm2.kafka.errors import BrokerFailure
from mm2.mirror.client import MirrorClient
from mm2.mirror.clients import ClientKind, MirrorClients, Side
from mm2.mirror.discovery import vanished


def add(verbs: Any) -> None:
    """Declare the command and its arguments."""
    parser = verbs.add_parser(
        "groups",
        help="group offsets that are not on the target, and why",
        description="Offsets of consumer groups that have no checkpoint (partitions of the source), or that "
        "sync.group.offsets.enabled does not write (partitions of the target), each with the reason that the "
        "tasks reported last. Exit code: 0 there are none, 1 there are some, or the given group is unknown, 2"
        " the command failed.",
        epilog=examples(
            ("all groups", "mm2 groups mm2.properties 'A->B'"),
            ("one group", "mm2 groups mm2.properties 'A->B' --group billing"),
        ),
    )
    add_flow(parser)
    parser.add_argument("--group", metavar="G", help="only this group")
    parser.set_defaults(run=run)


def run(options: Any) -> int:
    """Run the command; returns the exit code. Raises CommandError, ConfigException or KafkaFailure."""
    flow = ConfiguredFlow.of(options.config, options.flow)
    rows = [
        (group, partition, reason)
        for group, reasons in sorted(flow.ledger().group_reasons().items())
        if options.group in {None, group}
        for partition, reason in sorted(reasons.items())
    ]
    is_unknown = options.group is not None and not rows and not _has_checkpoint(flow, options.group)
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
        sys.stdout.write(json.dumps({"flow": str(flow.pair), "offsets": listed}, indent=2, ensure_ascii=False) + "\n")
    elif rows:
        cells = [(group, str(partition), reason.message) for group, partition, reason in rows]
        table(sys.stdout, ("GROUP", "PARTITION", "REASON"), cells, left=2)
    elif not is_unknown:
        sys.stdout.write(f"{flow.pair}: no missing offsets are reported\n")
    if is_unknown:
        sys.stderr.write(
            f"mm2: {flow.pair} has no checkpoint of {options.group} and reports no reason: the group is not selected (groups, groups.exclude), has "
            "committed no offsets of replicated topics, or does not exist.\n"
        )
    return EXIT_NOT_WELL if rows or is_unknown else EXIT_WELL


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
