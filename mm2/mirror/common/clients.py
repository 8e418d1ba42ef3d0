"""Settings and names of the clients that the mirror connectors open (MirrorConnectorConfig).

In a connector's properties, the settings of the clusters are under `source.cluster.` and `target.cluster.`. Only client
keys (bootstrap, security) count there; all other settings reach a client by the prefix of its kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from mm2.config.keys.client_keys import CLIENT_KEYS
from mm2.config.keys.mirror_keys import default_group
from mm2.copy.progress.ledger import Ledger, LedgerLog, ledger_topic
from mm2.kafka.admin import Admin
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.mirror.common.plugins import admin_class

SOURCE_ALIAS_KEY: Final = "source.cluster.alias"
TARGET_ALIAS_KEY: Final = "target.cluster.alias"
TASK_INDEX_KEY: Final = "task.index"
#: In the properties of a flow whose file has `B.group.id`.
_FILE_GROUP_KEY: Final = "target.cluster.group.id"
_OPPOSITE_GROUP_KEY: Final = "source.cluster.group.id"
_FILE_NAMES: Final = frozenset({"MirrorSourceConnector", "MirrorCheckpointConnector"})


class Side(Enum):
    """The source or the target cluster of the flow."""

    SOURCE = "source"
    TARGET = "target"


class ClientKind(Enum):
    """The kind of a client; the name is the prefix of its keys."""

    ADMIN = "admin"
    CONSUMER = "consumer"
    PRODUCER = "producer"


@dataclass(frozen=True)
class MirrorClients:
    """Clients of one connector, or of one of its tasks (`task` True), from its properties.

    `group` is the Connect group of the worker; None outside of a worker, for a flow of a MirrorMaker file. All methods raise
    ConfigException for a key with a bad value.
    """

    props: Mapping[str, str]
    task: bool = False
    group: str | None = None

    @property
    def source_alias(self) -> str:
        return self.props[SOURCE_ALIAS_KEY]

    @property
    def target_alias(self) -> str:
        return self.props.get(TARGET_ALIAS_KEY, Side.TARGET.value)

    @property
    def flow(self) -> str:
        """`S->T`"""
        return f"{self.source_alias}->{self.target_alias}"

    @property
    def ledger_topic(self) -> str:
        """The ledger of this source connector; for a connector of a MirrorMaker file, that of its flow."""
        if self.are_of_file:
            return ledger_topic(self.source_alias, self.props.get(_FILE_GROUP_KEY, ""))
        return ledger_topic(self.source_alias, self.group or "", self.props.get("name", ""))

    @property
    def opposite_ledger_topic(self) -> str:
        """The ledger of the flow in the opposite direction of the same file."""
        return ledger_topic(self.target_alias, self.props.get(_OPPOSITE_GROUP_KEY, ""))

    @property
    def are_of_file(self) -> bool:
        """Whether the connector is one of a MirrorMaker file. Others do not know each other's names and groups."""
        group = self.props.get(_FILE_GROUP_KEY) or default_group(self.source_alias)
        return self.group is None or (self.group == group and self.props.get("name") in _FILE_NAMES)

    def alias(self, side: Side) -> str:
        return self.source_alias if side is Side.SOURCE else self.target_alias

    def client_id(self, role: str, user_client_id: str | None = None) -> str:
        """`[<user's>|]S->T|<connector>[-<task index>]|<role>`"""
        entity = self.props.get("name", "")
        if self.task:
            entity += f"-{self.props.get(TASK_INDEX_KEY, '?')}"
        own = f"{self.flow}|{entity}|{role}"
        return own if user_client_id is None else f"{user_client_id}|{own}"

    def client_props(self, side: Side, kind: ClientKind, role: str) -> dict[str, str]:
        """Java-style properties of the client, including `client.id`. Contains secrets: do not log."""
        cluster_prefix = f"{side.value}.cluster."
        merged = {key: value for key, value in with_prefix(self.props, cluster_prefix).items() if key in CLIENT_KEYS}
        merged.update(with_prefix(self.props, f"{kind.value}."))
        merged.update(with_prefix(self.props, f"{side.value}.{kind.value}."))
        if kind is ClientKind.CONSUMER:
            merged["enable.auto.commit"] = "false"
            merged.setdefault("auto.offset.reset", "earliest")
        merged["client.id"] = self.client_id(role, merged.get("client.id"))
        return merged

    def settings(self, side: Side, kind: ClientKind, role: str) -> ClientSettings:
        return ClientSettings.from_props(self.client_props(side, kind, role))

    def cluster(self, side: Side, kind: ClientKind, role: str) -> Cluster:
        """Connections to the cluster; nothing is opened yet. The caller closes them."""
        return Cluster(self.settings(side, kind, role), name=self.alias(side))

    def admin(self, side: Side, role: str) -> tuple[Cluster, Admin]:
        """An admin client and its connections, which the caller closes."""
        cluster = self.cluster(side, ClientKind.ADMIN, role)
        return cluster, admin_class(self.props)(cluster)

    def ledger_log(self, side: Side, topic: str, known: tuple[Ledger, Mapping[int, int]] | None = None) -> LedgerLog:
        """What follows a ledger; nothing is opened yet. ``known`` as in `LedgerLog`."""
        settings = self.settings(side, ClientKind.CONSUMER, "ledger-consumer")
        return LedgerLog(settings, topic, name=self.alias(side), known=known)

    def ledger_now(self, side: Side, topic: str, timeout_s: float) -> Ledger:
        """An existing ledger as it is now. Raises KafkaFailure."""
        log = self.ledger_log(side, topic)
        log.start(timeout_s)
        log.stop()
        return log.ledger


def with_prefix(props: Mapping[str, str], prefix: str) -> dict[str, str]:
    """The keys that start with `prefix`, with the prefix removed."""
    return {key[len(prefix) :]: value for key, value in props.items() if key.startswith(prefix) and key != prefix}
