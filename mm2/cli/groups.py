"""`mm2 groups`: which offsets of consumer groups are not on the target, and why."""

from __future__ import annotations

import json
import sys
from typing import Any

from mm2.cli.flow import EXIT_NOT_WELL, EXIT_WELL, Flow, add_flow, table
from mm2.cli.verbs import examples


def add(verbs: Any) -> None:
    """The verb's own arguments."""
    parser = verbs.add_parser(
        "groups",
        help="which offsets of groups are not on the target, and why",
        description="Offsets of consumer groups that have no checkpoint (partitions of the source), or that "
        "sync.group.offsets.enabled does not write (partitions of the target), each with its reason, as the tasks said "
        "last. Exit code: 0 all are there, 1 some are not, 2 the question could not be answered.",
        epilog=examples(
            ("all groups", "mm2 groups mm2.properties 'A->B'"),
            ("one group", "mm2 groups mm2.properties 'A->B' --group billing"),
        ),
    )
    add_flow(parser)
    parser.add_argument("--group", metavar="G", help="only this group")
    parser.set_defaults(run=run)


def run(options: Any) -> int:
    """Exit code. Raises Trouble, ConfigException or KafkaFailure."""
    flow = Flow.of(options.config, options.flow)
    rows = [
        (group, partition, reason)
        for group, reasons in sorted(flow.ledger().group_reasons().items())
        if options.group in {None, group}
        for partition, reason in sorted(reasons.items())
    ]
    if options.json:
        listed = [
            {"group": group, "topic": partition.topic, "partition": partition.partition, "reason": reason}
            for group, partition, reason in rows
        ]
        sys.stdout.write(json.dumps({"flow": str(flow.pair), "offsets": listed}, indent=2, ensure_ascii=False) + "\n")
    elif rows:
        cells = [(group, str(partition), reason) for group, partition, reason in rows]
        table(sys.stdout, ("GROUP", "PARTITION", "REASON"), cells, left=2)
    else:
        sys.stdout.write(f"{flow.pair}: nothing is said to be missing\n")
    return EXIT_NOT_WELL if rows else EXIT_WELL
