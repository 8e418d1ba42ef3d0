"""Generator of docs/CONFIGURATION.md: ``python -m mm2.config.reference > docs/CONFIGURATION.md``.

A test compares the file with its output. The text about one key is in the key's definition, the text about several keys
is here.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from mm2.config.client_keys import ADMIN_CONFIG, CLIENT_CONFIG, CONSUMER_CONFIG, PRODUCER_CONFIG
from mm2.config.configdef import ConfigDef, ConfigKey
from mm2.config.connector_keys import (
    CONNECTOR_CONFIG,
    ISOLATION_KEY,
    SINK_CONNECTOR_CONFIG,
    SOURCE_CONNECTOR_CONFIG,
)
from mm2.config.mirror_keys import (
    MIRROR_CHECKPOINT_CONFIG,
    MIRROR_HEARTBEAT_CONFIG,
    MIRROR_SOURCE_CONFIG,
    OWN_CONFIG,
    THROTTLE_KEY,
)
from mm2.config.mirrormaker import DEDICATED_WORKER_DEFAULTS, TOP_CONFIG
from mm2.config.rest_keys import LOGIN_CONFIG_KEY, MIRROR_REST_CONFIG
from mm2.config.security_keys import SASL_CONFIG, SECURITY_PROTOCOL_CONFIG, TLS_CONFIG
from mm2.config.values import show
from mm2.config.worker_keys import DISTRIBUTED_CONFIG, REST_CONFIG, STANDALONE_CONFIG

OURS: Final = (
    frozenset(OWN_CONFIG.names)
    | (frozenset(MIRROR_REST_CONFIG.names) - frozenset(REST_CONFIG.names))
    | {ISOLATION_KEY} - {LOGIN_CONFIG_KEY}
)
"""Keys that Kafka does not have. (In Java the login configuration is a JVM property.)"""

_SECURITY: Final = ConfigDef(SECURITY_PROTOCOL_CONFIG, TLS_CONFIG, SASL_CONFIG)

_INTRODUCTION: Final = """\
<!-- Made by `python -m mm2.config.reference` from the definitions in mm2/config; a test holds it to them. -->

# Configuration

Every key that the programs read, with Kafka's own name, type and default (4.3.0), unless a row says that it is *ours*. What is given
is checked before anything is started: a bad value ends the start with its key and value, a key that nobody reads is named with the
one that was probably meant. `bin/mm2 config mm2.properties` shows what is in effect and where it comes from.

## Where a key stands

The file is Java's `.properties`: `key = value`, `#` begins a comment, a backslash escapes (write `\\\\.` for `\\.`).

| as | counts for |
| --- | --- |
| `A->B.x` | the connectors of that flow; wins over everything else there |
| `A.x` | the clients of cluster A, and the workers of the flows into A |
| `x` | everything, where nothing above says otherwise |

Of the keys of workers only those that begin with `offset.storage`, `config.storage`, `status.storage`, `key.converter`,
`value.converter`, `header.converter`, `task`, `worker` or `replication.policy` reach them from the top of the file, and these win
over the cluster's; the others stand behind the target, `B.offset.flush.interval.ms`.

Clients: `A.consumer.x`, `A.producer.x` and `A.admin.x` are for the clients of cluster A of that kind, `A->B.consumer.x` and
`A->B.admin.x` for those of a flow (`source.` or `target.` in front: of that side). What writes records, checkpoints and heartbeats
is the producer of Connect's tasks: `B.producer.x` or `A->B.producer.override.x`.

`${provider:path:key}` stands for a value that is kept elsewhere; `config.providers` names the providers, and
[SECURITY.md](SECURITY.md) says more. A key that begins with `spark.` goes to Spark: [SPARK.md](SPARK.md).
"""


@dataclass(frozen=True)
class ReferenceTable:
    """A table of the page: rows of ``definition`` whose keys are not in ``without``."""

    title: str
    text: str
    definition: ConfigDef
    without: Collection[str] = ()

    @property
    def keys(self) -> list[ConfigKey]:
        """The rows in the order of Kafka's own pages: by importance, then by name."""
        order = ["HIGH", "MEDIUM", "LOW"]
        found = [key for name, key in self.definition.keys.items() if name not in self.without]
        return sorted(found, key=lambda key: (not key.required, order.index(key.importance.value), key.name))


def sections() -> list[ReferenceTable]:
    """The whole page except its introduction."""
    mirror = {*CONNECTOR_CONFIG.names, *_SECURITY.names}
    source = {*MIRROR_SOURCE_CONFIG.names}
    common = {*MIRROR_CHECKPOINT_CONFIG.names} & source & {*MIRROR_HEARTBEAT_CONFIG.names}
    client = {*CLIENT_CONFIG.names}
    dedicated = ", ".join(f"`{key}` is {value}" for key, value in DEDICATED_WORKER_DEFAULTS.items())
    return [
        ReferenceTable(
            "The process",
            "At the top of the file only.",
            TOP_CONFIG,
            {*_SECURITY.names, *MIRROR_REST_CONFIG.names},
        ),
        ReferenceTable(
            "All three connectors of a flow",
            "At the top of the file for all flows, behind `A->B.` for one. `S->T.enabled` switches a flow on; without it there are "
            "heartbeats at most.",
            MIRROR_SOURCE_CONFIG.only(common),
            mirror,
        ),
        ReferenceTable(
            "Copying: MirrorSourceConnector",
            "",
            MIRROR_SOURCE_CONFIG,
            mirror | common | {*OWN_CONFIG.names},
        ),
        ReferenceTable(
            "Copying: ours",
            f"Behind `{THROTTLE_KEY}.` the name of a topic of the source may stand: a limit for that topic, beside that of the flow.",
            OWN_CONFIG,
        ),
        ReferenceTable(
            "Consumer groups: MirrorCheckpointConnector",
            "It reads `topics`, `topics.exclude` and `emit.offset-syncs.enabled`, too.",
            MIRROR_CHECKPOINT_CONFIG,
            mirror | source,
        ),
        ReferenceTable("Heartbeats: MirrorHeartbeatConnector", "", MIRROR_HEARTBEAT_CONFIG, mirror | common),
        ReferenceTable(
            "REST",
            "At the top of the file. Keys of TLS count for the listeners behind `listeners.https.` (and `admin.listeners.https.`). "
            "Without `listeners` a MirrorMaker process listens at 127.0.0.1, port 8083 or the next that is free; Connect's workers "
            "at the default below.",
            MIRROR_REST_CONFIG,
        ),
        ReferenceTable(
            "Every client",
            "Of a cluster, `A.x`; of one kind, `A.consumer.x`. TCP buffers that the file does not give are left to the kernel.",
            CLIENT_CONFIG,
            {*_SECURITY.names},
        ),
        ReferenceTable(
            "Consumers",
            "What copies reads from the source with these keys as far as they have a meaning for bytes; where the file does not say "
            "`auto.offset.reset`, a partition without a position is copied from its beginning.",
            CONSUMER_CONFIG,
            client,
        ),
        ReferenceTable(
            "Producers",
            'Batches that are copied keep the codec and the grouping of the source, whatever stands here: COMPATIBILITY.md, "Copying".',
            PRODUCER_CONFIG,
            client,
        ),
        ReferenceTable("Admin clients", "", ADMIN_CONFIG, client),
        ReferenceTable(
            "Logging in: TLS and SASL",
            "Of a cluster, `A.x`, or at the top for all: [SECURITY.md](SECURITY.md).",
            _SECURITY,
        ),
        ReferenceTable(
            "Workers",
            "Of Connect's worker of each flow (`B.x`), and of bin/connect-distributed. In a MirrorMaker process names of topics and "
            f"groups have defaults made of the flow's (`mm2-offsets.A.internal`), and {dedicated} unless the file says otherwise.",
            DISTRIBUTED_CONFIG,
            {*_SECURITY.names, *MIRROR_REST_CONFIG.names, *client},
        ),
        ReferenceTable(
            "Workers of bin/connect-standalone",
            "Beside those of the table before that have nothing to do with topics and groups.",
            STANDALONE_CONFIG,
            {*DISTRIBUTED_CONFIG.names},
        ),
        ReferenceTable(
            "Every connector", "In its own configuration; for the mirror connectors in the file.", CONNECTOR_CONFIG
        ),
        ReferenceTable("Source connectors", "", SOURCE_CONNECTOR_CONFIG, {*CONNECTOR_CONFIG.names}),
        ReferenceTable("Sink connectors", "", SINK_CONNECTOR_CONFIG, {*CONNECTOR_CONFIG.names}),
    ]


def page() -> str:
    """The content of the file."""
    return "\n".join([_INTRODUCTION, *(line for section in sections() for line in _table(section))])


def _table(section: ReferenceTable) -> Iterable[str]:
    yield f"## {section.title}\n"
    if section.text:
        yield f"{section.text}\n"
    yield "| key | type | default | valid | importance | says |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for key in section.keys:
        ours = "*Ours.* " if key.name in OURS else ""
        valid = "" if key.validator is None or _is_bare(key.validator) else _cell(str(key.validator))
        cells = (f"`{key.name}`", key.type.value.lower(), _default(key), valid, key.importance.value.lower())
        yield f"| {' | '.join(cells)} | {ours}{_cell(key.documentation)} |"
    yield ""


def _default(key: ConfigKey) -> str:
    if key.required:
        return "*required*"
    if key.default is None:
        return ""
    # As written in a file: without the brackets of Java's messages.
    text = ",".join(map(show, key.default)) if isinstance(key.default, list | tuple) else show(key.default)
    return f"`{_one_line(text)}`" if text else "*empty*"


def _is_bare(validator: object) -> bool:
    """Whether the validator has no description."""
    return type(validator).__str__ is object.__str__ or str(validator).startswith(type(validator).__name__)


def _cell(text: str) -> str:
    return _one_line(text).replace("<", "&lt;")


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(page())
