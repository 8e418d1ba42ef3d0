"""Shared code of the `mm2` commands: a flow of a properties file, its clusters, and its ledger."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mm2.cli.common.option_sources import variable_of
from mm2.cli.common.output import add_output
from mm2.config.configdef import ConfigException
from mm2.config.definitions.java_regex import JavaPattern
from mm2.config.files.properties import load_properties
from mm2.config.keys.mirror_keys import SOURCE_CONNECTOR
from mm2.config.mirrormaker import MirrorMakerConfig, SourceAndTarget
from mm2.config.providers import ConfigTransformer
from mm2.copy.progress.ledger import Ledger
from mm2.kafka.admin import Admin
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, value_of
from mm2.mirror.common.clients import MirrorClients, Side
from mm2.mirror.common.plugins import connect_plugins, plugin_props
from mm2.mirror.filters import pattern_list

EXIT_WELL: Final = 0
EXIT_NOT_WELL: Final = 1
EXIT_ERROR: Final = 2
EXIT_INTERRUPTED: Final = 130
#: The environment variable with the default of the file argument; `mm2.cli.common.option_sources` reads it.
FILE_VARIABLE: Final = variable_of("file")

_PREFLIGHT_S: Final = 5.0
_READ_S: Final = 60.0


class CommandError(Exception):
    """The command failed; the message is for the user."""


def add_config(parser: Any, *, metavar: str = "mm2.properties", text: str = "MirrorMaker 2's properties file") -> None:
    """Add the argument for the file, the first of the verb; `FILE_VARIABLE` contains its default."""
    parser.takes_file = True
    parser.add_argument("config", metavar=metavar, type=Path, help=f"{text} (default: that in {FILE_VARIABLE})")


def add_file(parser: Any, *, flow: str | None = None, wide: bool = False) -> None:
    """Add arguments for the file and a flow, and the output format.

    With ``flow`` "?" it is optional, and none means all. ``wide``: see `add_output`.
    """
    add_config(parser)
    hint = "the flow, in quotes because shells treat > as a redirection; also A/B or A:B"
    every = "" if flow is None else " (default: all flows)"
    parser.add_argument("flow", metavar="'A->B'", nargs=flow, help=hint + every).completer = flows_of_file
    add_output(parser, wide=wide)


def add_flow(parser: Any, *, wide: bool = False) -> None:
    """Add the arguments for the file and a flow, and the output format."""
    add_file(parser, wide=wide)


def add_topics(parser: Any) -> None:
    """Add the argument that selects topics; see `pattern_argument`."""
    parser.add_argument(
        "--topic", metavar="PATTERNS", help="only these topics of the source: Java patterns, with commas between them"
    )


def pattern_argument(name: str, text: str | None) -> JavaPattern | None:
    """The patterns of an argument as one; None without it. Raises ConfigException for an invalid pattern, CommandError for none."""
    if text is None:
        return None
    pattern = pattern_list(f"--{name}", text)
    if pattern is None:
        raise CommandError(f"--{name} is empty; omit it to select all.")
    return pattern


def read_config(file: Path) -> MirrorMakerConfig:
    """MirrorMaker's file; its policies and filters are found as the process finds them. Raises ConfigException or ConnectError."""
    config = MirrorMakerConfig(load_properties(file))
    connect_plugins(plugin_props(config, None))
    return config


def flows_of_file(parsed_args: Any, **_: Any) -> list[str]:
    """Completions of a flow for a shell; empty if the file cannot be read."""
    try:
        return [str(pair) for pair in MirrorMakerConfig(load_properties(parsed_args.config)).cluster_pairs()]
    except (ConfigException, TypeError, AttributeError):
        return []


def pair_of(config: MirrorMakerConfig, file: Path, name: str) -> SourceAndTarget:
    """The flow ``A->B`` of the file, enabled or not; also written ``A/B`` or ``A:B``. Raises CommandError."""
    pairs = {str(pair): pair for pair in config.possible_pairs()}
    spelled = {f"{pair.source}{sign}{pair.target}": pair for sign in ":/" for pair in pairs.values()}
    wanted = "".join(name.split())
    pair = pairs.get(wanted) or spelled.get(wanted)
    if pair is not None:
        return pair
    if wanted.endswith("-") and wanted[:-1] in config.clusters:
        raise CommandError(
            f"{name} is the beginning of a flow: without quotes a shell takes > as a redirection, and has written the output to a "
            f"file. Delete that file, and write the flow in quotes, '{wanted}>B', or with a slash, {wanted[:-1]}/B."
        )
    known = ", ".join(pairs) or "none"
    raise CommandError(f"{file} has no flow {name}; its flows are {known}. (A flow stands in quotes: 'A->B'.)")


@dataclass(frozen=True)
class ConfiguredFlow:
    """A flow of the file; ``props`` are its source connector's, with references resolved. Contains secrets."""

    pair: SourceAndTarget
    props: Mapping[str, str]

    @classmethod
    def of(cls, file: Path, name: str) -> ConfiguredFlow:
        """The flow ``A->B``, enabled or not. Raises CommandError or ConfigException."""
        config = read_config(file)
        pair = pair_of(config, file, name)
        props = ConfigTransformer.from_props(config.originals).transform(
            config.connector_config(pair, SOURCE_CONNECTOR)
        )
        for alias in (pair.source, pair.target):
            if not config.client_config(alias).get("bootstrap.servers"):
                raise ConfigException(f'Missing required configuration "{alias}.bootstrap.servers".')
        return cls(pair, props)

    def ledger(self) -> Ledger:
        """The flow's ledger as it is now. Raises CommandError or KafkaFailure."""
        clients = MirrorClients(self.props)
        topic = clients.ledger_topic
        with self.cluster(Side.TARGET) as admin:
            # A reader would wait for a missing topic, since it might be new.
            found = admin.describe_topics([topic])[topic]
        if isinstance(found, BrokerFailure) and found.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            sentence = f"Cluster {self.pair.target} has no ledger {topic}: nothing has been copied there yet, "
            raise CommandError(f"{sentence}not by this version, or the topic was deleted.")
        value_of(found)
        return clients.ledger_now(Side.TARGET, topic, _READ_S)

    @contextmanager
    def cluster(self, side: Side) -> Iterator[Admin]:
        """A client of one of the clusters, after it has answered. Raises KafkaFailure if it does not within seconds."""
        cluster, admin = MirrorClients(self.props).admin(side, f"mm2-cli-{side.value}-admin")
        with answering(cluster):
            yield admin


@contextmanager
def answering(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, after it has answered; closed at the end.

    Raises KafkaFailure if it does not answer within seconds.
    """
    try:
        cluster.preflight(_PREFLIGHT_S)
        yield cluster
    finally:
        cluster.close()
