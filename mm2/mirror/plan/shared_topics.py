"""Which remote topics other flows into the same target copy to, too: flows of the file, and those that have a ledger on the target."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from mm2.config.configdef import ConfigException
from mm2.config.mirrormaker import SourceAndTarget
from mm2.connect.api import ConnectError
from mm2.kafka.admin import Admin
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.structs import TopicPartition
from mm2.mirror.common.clients import MirrorClients, Side
from mm2.mirror.groups.other_flows import OtherFlows
from mm2.mirror.source_connector import topic_selection
from mm2.mirror.topics.selection import TopicSelection

_PREFLIGHT_S: Final = 5.0
#: Of flows of other files only this number of partitions of a topic is compared.
_COMPARED: Final = 100


def shared_topics(
    clients: MirrorClients,
    target: Admin,
    selection: TopicSelection,
    topics: Collection[str],
    flows: Mapping[SourceAndTarget, Mapping[str, str]],
) -> dict[str, set[str]]:
    """Names of other flows by remote topic of these source topics. ``flows`` are the source connectors of the file's other flows.

    Raises KafkaFailure if the target does not answer.
    """
    remotes = set(map(selection.remote, topics))
    found: dict[str, set[str]] = {}
    for pair, props in flows.items():
        for remote in remotes & _remotes_of(pair, props, topics):
            found.setdefault(remote, set()).add(str(pair))
    others = OtherFlows(clients, target, selection.policy, can_share=not selection.names_show_origin)
    others.read(None)
    for remote in remotes:
        for index in range(_COMPARED):
            if names := others.names_of(TopicPartition(remote, index)):
                found.setdefault(remote, set()).update(names)
    return found


def _remotes_of(pair: SourceAndTarget, props: Mapping[str, str], topics: Collection[str]) -> set[str]:
    """The remote topics of another flow; if its source does not answer, of topics with these names."""
    try:
        selection = topic_selection(props)
        if selection.names_show_origin:
            return set()
        cluster, source = MirrorClients(props).admin(Side.SOURCE, "plan-other-source-admin")
    except (ConfigException, ConnectError, KafkaFailure):
        return set()  # its own preview reports this
    try:
        cluster.preflight(_PREFLIGHT_S)
        names: Collection[str] = source.list_topics()
    except KafkaFailure:
        names = topics
    finally:
        cluster.close()
    return {selection.remote(name) for name in names if selection.should_replicate(name)}
