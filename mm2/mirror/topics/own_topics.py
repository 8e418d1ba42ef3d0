"""Topics on the target that Java's MirrorMaker does not have, the ledger and the dead-letter topic, and the names that a flow reserves.

Their default names begin with ``mm2`` and end in ``.internal``, so Java treats them as its internal topics and does not
replicate them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from mm2.config.keys.mirror_keys import MIRROR_SOURCE_CONFIG
from mm2.config.keys.worker_keys import storage_topics
from mm2.copy.progress.ledger import LEDGER_CONFIGS, LEDGER_NAMES
from mm2.kafka.structs import NewTopic
from mm2.mirror.common.clients import SOURCE_ALIAS_KEY, TARGET_ALIAS_KEY, MirrorClients, Side, with_prefix
from mm2.mirror.common.internal_topics import KeptTopic
from mm2.mirror.policy import ReplicationPolicy

LEDGER_FACTOR_KEY: Final = "ledger.topic.replication.factor"
DEAD_LETTER_KEY: Final = "dead.letter.topic"
DEAD_LETTER_FACTOR_KEY: Final = "dead.letter.topic.replication.factor"

_DEAD_LETTER_CONFIGS: Final = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    # A record that is too large for its remote topic must fit here. By default brokers accept no larger request than
    # this.
    "max.message.bytes": str(100 << 20),
}
#: Of any flow and any process, also with another separator than that of the policy.
_MIRROR_MAKER: Final = re.compile(r"mm2-(.*[^A-Za-z0-9])?internal")
_DEAD_LETTERS: Final = re.compile(r"mm2-dead-letters\..+\.internal")


def dead_letter_topic(props: Mapping[str, str]) -> str:
    """The topic for records that the flow with these connector properties cannot copy."""
    return props.get(DEAD_LETTER_KEY, "").strip() or f"mm2-dead-letters.{props[SOURCE_ALIAS_KEY]}.internal"


def is_own_topic(topic: str) -> bool:
    """Whether this is the default name of a ledger or a dead-letter topic, of any flow.

    Like the names of Connect's topics, these keep their dots whatever the separator is. A policy with another separator
    does not recognize them as internal.
    """
    return bool(LEDGER_NAMES.fullmatch(topic) or _DEAD_LETTERS.fullmatch(topic))


def reserved_topics(
    policy: ReplicationPolicy, props: Mapping[str, str], worker: frozenset[str] = frozenset()
) -> frozenset[str]:
    """The names that no topic copied by a source connector may have on the target. ``worker`` are the topics of its worker.

    `is_reserved` also has those that can be told from the name.
    """
    aliases = props[SOURCE_ALIAS_KEY], props.get(TARGET_ALIAS_KEY, Side.TARGET.value)
    return (
        worker
        | storage_topics(with_prefix(props, "target.cluster."))  # `B.config.storage.topic` of a MirrorMaker file
        | {dead_letter_topic(props), props.get("offsets.storage.topic", "").strip()}
        | {name(alias) for alias in aliases for name in (policy.checkpoints_topic, policy.offset_syncs_topic)}
    )


def is_reserved(topic: str, remote: str, policy: ReplicationPolicy, reserved: frozenset[str]) -> bool:
    """Whether a flow, its process or its worker may use for itself what would be the remote topic of the source's ``topic``.

    A record there configures connectors, signs requests between workers, or moves the offsets of groups. A client that may
    create topics on the source chooses their names, and the names of remote topics with them. Java does not check this.
    """
    if policy.is_heartbeats_topic(remote):
        return not policy.is_heartbeats_topic(topic)
    return (
        remote in reserved
        or is_own_topic(remote)
        or bool(_MIRROR_MAKER.fullmatch(remote))
        or policy.is_internal_topic(remote)
    )


def kept_ledger(clients: MirrorClients) -> KeptTopic:
    """The ledger topic of a source connector, to be created. Raises ConfigException.

    A properties file written for Java does not set the replication factors of the ledger and the dead-letter topic, and
    its cluster may have a single broker: then the broker's default is used.
    """
    new = NewTopic(clients.ledger_topic, 1, configs=LEDGER_CONFIGS)
    return KeptTopic.of(Side.TARGET, new, clients.props, MIRROR_SOURCE_CONFIG, LEDGER_FACTOR_KEY)


def kept_dead_letters(props: Mapping[str, str]) -> KeptTopic:
    """The dead-letter topic of the flow, to be created. Raises ConfigException."""
    new = NewTopic(dead_letter_topic(props), 1, configs=_DEAD_LETTER_CONFIGS)
    return KeptTopic.of(Side.TARGET, new, props, MIRROR_SOURCE_CONFIG, DEAD_LETTER_FACTOR_KEY)
