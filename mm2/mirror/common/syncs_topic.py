"""The offset-syncs topic of a flow and the cluster that hosts it (KIP-716)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mm2.config.keys.mirror_keys import MIRROR_SOURCE_CONFIG
from mm2.mirror.common.clients import MirrorClients, Side
from mm2.mirror.common.internal_topics import KeptTopic
from mm2.mirror.common.plugins import replication_policy

SYNCS_FACTOR_KEY: Final = "offset-syncs.topic.replication.factor"
LOCATION_KEY: Final = "offset-syncs.topic.location"
EMIT_SYNCS_KEY: Final = "emit.offset-syncs.enabled"


def syncs_side(props: Mapping[str, str]) -> Side:
    """The cluster that hosts the offset-syncs topic."""
    return Side(props.get(LOCATION_KEY, Side.SOURCE.value))


def kept_syncs(props: Mapping[str, str]) -> KeptTopic:
    """The offset-syncs topic to create. Raises ConfigException for a bad replication factor."""
    return KeptTopic.compacted(syncs_side(props), syncs_topic(props), props, MIRROR_SOURCE_CONFIG, SYNCS_FACTOR_KEY)


def syncs_topic(props: Mapping[str, str]) -> str:
    """The name of the offset-syncs topic; it contains the alias of the cluster that does not host it."""
    clients = MirrorClients(props)
    other = clients.target_alias if syncs_side(props) is Side.SOURCE else clients.source_alias
    return replication_policy(props).offset_syncs_topic(other)
