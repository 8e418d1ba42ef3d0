"""`mm2 client`: Kafka's MirrorClient and RemoteClusterUtils on the command line."""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from mm2.cli.common.flow import EXIT_NOT_WELL, EXIT_WELL, CommandError, add_config
from mm2.cli.common.output import add_output, write_document
from mm2.cli.common.tables import number, table
from mm2.cli.common.terminal import csv_cell, with_controls
from mm2.cli.common.verbs import examples, seconds
from mm2.config.configdef import ConfigException
from mm2.config.definitions.java_regex import JavaPattern, compile_java
from mm2.config.files.properties import load_properties
from mm2.config.mirrormaker import MirrorMakerConfig
from mm2.config.providers import ConfigTransformer
from mm2.kafka.structs import OffsetAndMetadata, TopicPartition
from mm2.mirror.client import MirrorClient
from mm2.mirror.common.plugins import connect_plugins, plugin_props

_CODES: Final = "Exit code: 0 the query has a result, 1 it has none, 2 it failed."
_TOPICS: Final = {
    "heartbeat-topics": ("the heartbeats topics of the cluster", MirrorClient.heartbeat_topics),
    "checkpoint-topics": ("the checkpoints topics of the cluster", MirrorClient.checkpoint_topics),
    "upstream-clusters": ("aliases of the clusters from which heartbeats arrive", MirrorClient.upstream_clusters),
}

_EXAMPLES: Final = {
    "heartbeat-topics": [
        ("at a cluster of MirrorMaker's file", "mm2 client heartbeat-topics mm2.properties --cluster B")
    ],
    "checkpoint-topics": [("with the properties of a client", "mm2 client checkpoint-topics client.properties")],
    "upstream-clusters": [
        ("from which clusters does B receive records?", "mm2 client upstream-clusters mm2.properties --cluster B")
    ],
    "remote-topics": [
        ("which topics of A are on B?", "mm2 client remote-topics mm2.properties --cluster B --source A")
    ],
    "hops": [("how far is A from C?", "mm2 client hops mm2.properties A --cluster C")],
    "translate-offsets": [
        ("translated offsets of billing on B", "mm2 client translate-offsets mm2.properties A billing --cluster B"),
        (
            "for kafka-consumer-groups --reset-offsets --from-file",
            "mm2 client translate-offsets mm2.properties A --groups '.*' --cluster B --csv > offsets.csv",
        ),
    ],
}

Offsets = Mapping[str, Mapping[TopicPartition, OffsetAndMetadata]]


def client_props(file: Path, alias: str | None) -> dict[str, str]:
    """The client settings of one cluster, from a client's or MirrorMaker's properties.

    Raises CommandError or ConfigException.
    """
    props = load_properties(file)
    if "clusters" not in props:
        if alias is not None:
            raise CommandError(f"{file} is not MirrorMaker's, it has no clusters: remove --cluster {alias}.")
        return _reachable(ConfigTransformer.from_props(props).transform(props), "")
    config = MirrorMakerConfig(props)
    connect_plugins(plugin_props(config, None))
    known = ", ".join(config.clusters) or "none"
    if alias is None:
        raise CommandError(f"{file} is MirrorMaker's: set --cluster to one of its clusters, {known}.")
    if config.unknown_clusters([alias]):
        raise CommandError(f"{file} has no cluster {alias}; its clusters are {known}.")
    return _reachable(config.client_config(alias), f"{alias}.")


def add(verbs: Any) -> None:
    """Declare the command and its arguments."""
    parser = verbs.add_parser(
        "client",
        help="remote topics, heartbeats and checkpoints of a cluster",
        description="Queries of Kafka's MirrorClient: the clusters and topics that are replicated to a cluster, and the "
        "translated offsets of a group. The same in Python: mm2.mirror.client.",
    )
    actions = parser.add_subparsers(metavar="QUESTION", required=True)
    for name, (text, ask) in _TOPICS.items():
        listing = _add(actions, name, text)
        listing.set_defaults(run=run_names, ask=lambda options, client, ask=ask: ask(client))
    remote = _add(actions, "remote-topics", "remote topics of the cluster")
    remote.add_argument("--source", metavar="ALIAS", help="only those replicated from this cluster")
    remote.set_defaults(run=run_names, ask=lambda options, client: client.remote_topics(options.source))
    hops = _add(actions, "hops", "the number of hops from another cluster to this one")
    hops.add_argument("upstream", metavar="ALIAS", help="the cluster that the heartbeats come from")
    hops.set_defaults(run=run_hops)
    offsets = _add(actions, "translate-offsets", "translated offsets of a group of another cluster")
    offsets.add_argument("remote", metavar="ALIAS", help="the cluster on which the group consumes")
    offsets.add_argument("group", metavar="GROUP", nargs="?", help="its name")
    offsets.add_argument(
        "--groups", metavar="REGEX", help="instead of a group: all groups whose whole id matches this expression"
    )
    offsets.add_argument(
        "--csv",
        action="store_true",
        help="as kafka-consumer-groups --reset-offsets --from-file reads it: topic,partition,offset, with --groups the "
        "group in front",
    )
    offsets.add_argument(
        "--exact",
        action="store_true",
        help="with --csv: names as they are, even if a terminal or a spreadsheet would execute them",
    )
    offsets.add_argument(
        "--timeout", metavar="SECONDS", type=seconds, default=30.0, help="for reading the checkpoints (default: 30)"
    )
    offsets.set_defaults(run=run_offsets)


def _add(actions: Any, name: str, text: str) -> Any:
    parser = actions.add_parser(
        name, help=text, description=f"{text[0].upper()}{text[1:]}. {_CODES}", epilog=examples(*_EXAMPLES[name])
    )
    add_config(parser, metavar="FILE", text="properties file of a client, or MirrorMaker's")
    parser.add_argument("--cluster", metavar="ALIAS", help="the cluster, if FILE is MirrorMaker's")
    add_output(parser)
    return parser


def run_names(options: Any) -> int:
    """Run the command; returns the exit code. Raises CommandError, ConfigException or KafkaFailure."""
    with MirrorClient(client_props(options.config, options.cluster)) as client:
        names = sorted(options.ask(options, client))
    if options.json:
        write_document(options, names, ascii_only=True)
    else:
        sys.stdout.writelines(f"{name}\n" for name in names)
    return EXIT_WELL if names else EXIT_NOT_WELL


def run_hops(options: Any) -> int:
    """Run the command; returns the exit code. Raises CommandError, ConfigException or KafkaFailure."""
    with MirrorClient(client_props(options.config, options.cluster)) as client:
        hops = client.replication_hops(options.upstream)
    sys.stdout.write(f"{hops}\n")  # also valid JSON and YAML
    return EXIT_WELL if hops >= 0 else EXIT_NOT_WELL


def run_offsets(options: Any) -> int:
    """Run the command; returns the exit code. Raises CommandError, ConfigException or KafkaFailure."""
    if (options.group is None) == (options.groups is None):
        raise CommandError("Name a group, or give an expression for many: --groups REGEX.")
    with MirrorClient(client_props(options.config, options.cluster)) as client:
        if options.groups is None:
            one = client.remote_consumer_offsets(options.group, options.remote, options.timeout)
            found: Offsets = {options.group: one} if one else {}
        else:
            found = client.remote_consumer_offsets(_pattern(options.groups), options.remote, options.timeout)
    if options.json:
        rows = [
            {"group": group, "topic": topic, "partition": partition, "offset": at.offset, "metadata": at.metadata}
            for group, topic, partition, at in _rows(found)
        ]
        write_document(options, rows, ascii_only=True)
    elif options.csv:
        _write_csv(found, with_group=options.groups is not None, exact=options.exact)
    elif found:
        cells = [(group, topic, str(part), number(at.offset), at.metadata) for group, topic, part, at in _rows(found)]
        table(sys.stdout, ("GROUP", "TOPIC", "PARTITION", "OFFSET", "METADATA"), cells, left=2)
    else:
        wanted = options.group or options.groups
        sys.stderr.write(f"There is no checkpoint of {wanted} from {options.remote}.\n")
    return EXIT_WELL if found else EXIT_NOT_WELL


def _write_csv(found: Offsets, *, with_group: bool, exact: bool) -> None:
    """Write the offsets as CSV.

    Unless ``exact``, names that a terminal or a spreadsheet would execute are escaped; Kafka does not know these.
    """
    # Without quotation marks, readers take a carriage return for the end of a line.
    has_returns = exact and any("\r" in group for group in found)
    writer = csv.writer(
        with_controls(sys.stdout) if exact else sys.stdout,
        lineterminator="\n",
        quoting=csv.QUOTE_NONNUMERIC if has_returns else csv.QUOTE_MINIMAL,
    )
    escaped: set[str] = set()
    for group, topic, partition, at in _rows(found):
        names = [group, topic] if with_group else [topic]
        shown = names if exact else list(map(csv_cell, names))
        escaped.update(one for one, name in zip(shown, names, strict=True) if one != name)
        writer.writerow([*shown, partition, at.offset])
    if escaped:
        sys.stderr.write(
            f"mm2: {number(len(escaped))} names are escaped, because a terminal or a spreadsheet would execute them; "
            "kafka-consumer-groups does not know these names. --exact writes them unchanged.\n"
        )


def _rows(found: Offsets) -> Iterable[tuple[str, str, int, OffsetAndMetadata]]:
    for group, offsets in sorted(found.items()):
        for (topic, partition), at in sorted(offsets.items()):
            yield group, topic, partition, at


def _pattern(text: str) -> JavaPattern:
    try:
        return compile_java(text)
    except (re.error, ValueError) as error:
        raise CommandError(f"--groups {text}: {error}") from error


def _reachable(props: dict[str, str], prefix: str) -> dict[str, str]:
    if not props.get("bootstrap.servers"):
        raise ConfigException(f'Missing required configuration "{prefix}bootstrap.servers".')
    return props
