"""`mm2 accept-source`: decide where copying continues after the source has been replaced by another cluster."""

from __future__ import annotations

import sys
from typing import Any

from mm2.cli.common.flow import EXIT_WELL, CommandError, ConfiguredFlow, add_flow
from mm2.cli.common.output import write_document
from mm2.cli.common.verbs import examples
from mm2.mirror.common.clients import MirrorClients, Side
from mm2.mirror.notes.ledgers import write_to_ledger
from mm2.mirror.notes.source_cluster import AcceptedSource


def add(verbs: Any) -> None:
    """Declare the command and its arguments."""
    parser = verbs.add_parser(
        "accept-source",
        help="continue after the source was replaced by another cluster",
        description="Partitions stop as SOURCE_REPLACED if the source has another cluster id than the cluster that was copied, because "
        "its offsets may be those of other records. This command accepts the cluster that answers now. Running tasks apply it within "
        "seconds. Exit code: 0 done, also if nothing had to be accepted, 2 the command failed.",
        epilog=examples(
            ("a new, empty source: copy it from its start", "mm2 accept-source mm2.properties 'A->B' --from-start"),
            (
                "the same records at the same offsets, such as a restored backup",
                "mm2 accept-source mm2.properties 'A->B' --keep-positions",
            ),
        ),
    )
    add_flow(parser)
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument(
        "--keep-positions",
        action="store_true",
        help="continue at the flow's positions: the records before them are the same",
    )
    how.add_argument(
        "--from-start",
        action="store_true",
        help="begin again as a new flow does (auto.offset.reset); what was copied before stays on the target",
    )
    parser.set_defaults(run=run)


def run(options: Any) -> int:
    """Run the command; returns the exit code. Raises CommandError, ConfigException or KafkaFailure."""
    flow = ConfiguredFlow.of(options.config, options.flow)
    with flow.cluster(Side.SOURCE) as admin:
        cluster_id = admin.describe_cluster().cluster_id
    if not cluster_id:
        raise CommandError(f"Cluster {flow.pair.source} has no cluster id: its version is not supported here.")
    ledger = flow.ledger()
    entries = [entry for tp in ledger.partitions() if (entry := ledger.entry(tp)) is not None]
    others = [entry for entry in entries if entry.copy_id.cluster not in {"", cluster_id}]
    if others:
        write_to_ledger(MirrorClients(flow.props), [AcceptedSource(cluster_id, options.from_start).record()])
    if options.json:
        document = {"flow": str(flow.pair), "cluster_id": cluster_id, "from_start": options.from_start}
        write_document(options, {**document, "partitions": len(others)}, ascii_only=True)
        return EXIT_WELL
    if not others:
        sys.stdout.write(f"{flow.pair}: nothing to accept: every partition was copied from cluster {cluster_id}\n")
        return EXIT_WELL
    known = ", ".join(sorted({entry.copy_id.cluster for entry in others}))
    where = "copying begins again" if options.from_start else "copying continues at the positions"
    sys.stdout.write(
        f"{flow.pair}: cluster {cluster_id} is accepted as {flow.pair.source} instead of {known} for {len(others)} partitions; {where}\n"
    )
    return EXIT_WELL
