"""The permissions that a flow needs on its two clusters, and their purpose. Pure.

The table lists the operations that the code requests from brokers. Permissions of disabled features are not needed.

=======  =====================================================================  ========================================
cluster  right                                                                  for
=======  =====================================================================  ========================================
source   DESCRIBE, READ, DESCRIBE_CONFIGS on the topics to replicate            copying, configs of remote topics
source   DESCRIBE, CREATE, WRITE on the offset-syncs topic, when it is there    offset syncs
source   DESCRIBE on the cluster                                                ACLs (sync.topic.acls.enabled)
source   DESCRIBE on groups                                                     checkpoints
target   DESCRIBE, CREATE, WRITE, READ on remote topics                         copying; READ for exactly once
target   ALTER on remote topics                                                 new partitions
target   DESCRIBE_CONFIGS, ALTER_CONFIGS on remote topics                       configs (sync.topic.configs.enabled)
target   CLUSTER_ACTION on the cluster; DELETE, ALTER_CONFIGS on remote topics  gaps (preserve.offsets)
target   or WRITE on transactional ids                                          the same, more slowly
target   DESCRIBE, ALTER on the cluster                                         ACLs, preserve.offsets.deny.writes
target   DESCRIBE, CREATE, READ, WRITE on the internal topics and the ledger    workers, offsets, output of mm2 commands
target   READ, DESCRIBE on the workers' group                                   assignment of connectors and tasks
target   READ, DESCRIBE on groups                                               sync.group.offsets.enabled
target   WRITE, DESCRIBE on transactional ids                                   transactions (KIP-618)
=======  =====================================================================  ========================================
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from mm2.config.mirror_keys import DENY_WRITES_KEY, PRESERVE_KEY, is_job_on
from mm2.config.worker_keys import WorkerConfig
from mm2.copy.executor.empty_transactions import ID_PREFIX
from mm2.kafka.structs import AclOperation, ResourceType
from mm2.mirror.clients import Side

_TRUE: Final = "true"
_SLOWER: Final = "gaps are filled with empty transactions, which is slower"


class AclState(StrEnum):
    """Whether a permission is granted, as far as known."""

    YES = "allowed"
    NO = "missing"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class RequiredAcl:
    """An operation on resources of one type, and what does not work without it.

    ``names`` are topics, groups or ids; the name of the cluster is ``kafka-cluster``, as in ACLs. ``instead``: what is done
    without it; "" where something does not work.
    """

    side: Side
    kind: ResourceType
    names: tuple[str, ...]
    operation: AclOperation
    purpose: str
    instead: str = ""


@dataclass(frozen=True, slots=True)
class AclStatus:
    """A required ACL and its state.

    For ``missing`` names the operation is denied; for ``unknown`` ones the state could not be read, for the reason in
    ``note``.
    """

    need: RequiredAcl
    missing: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    note: str = ""

    @property
    def allowed(self) -> AclState:
        """The worst state of its names."""
        if self.missing:
            return AclState.NO
        return AclState.UNKNOWN if self.unknown else AclState.YES


@dataclass(frozen=True, slots=True)
class Names:
    """The resources on both clusters, as far as known: ``groups`` are the source's groups that are translated,
    ``former_topics`` are remote topics to which another replication policy copied.
    """

    topics: Collection[str]
    remote_topics: Collection[str]
    former_topics: Collection[str]
    groups: Collection[str]
    syncs_topic: str
    syncs_side: Side
    own_topics: Collection[str]


def required_acls(
    source: Mapping[str, str], checkpoints: Mapping[str, str], worker: WorkerConfig, names: Names, *, replicates: bool
) -> list[RequiredAcl]:
    """Derive the required ACLs from the connectors' properties and the worker's settings.

    A flow that does not replicate (`enabled` is false) has heartbeats only.
    """
    cluster = ("kafka-cluster",)
    topic, group = ResourceType.TOPIC, ResourceType.GROUP
    read, write, describe, create = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.CREATE
    found: list[RequiredAcl] = []

    def need(
        side: Side, kind: ResourceType, some: Iterable[str], operations: Iterable[AclOperation], purpose: str
    ) -> None:
        chosen = tuple(sorted(some))
        found.extend(RequiredAcl(side, kind, chosen, operation, purpose) for operation in operations if chosen)

    own = "workers, positions, and the flow's internal topics"
    need(Side.TARGET, topic, names.own_topics, (describe, create, read, write), own)
    need(Side.TARGET, group, (worker.str("group.id"),), (describe, read), "workers that share the flow")
    if replicates:
        need(Side.SOURCE, topic, names.topics, (describe, read), "copying")
        need(
            Side.SOURCE,
            topic,
            names.topics,
            (AclOperation.DESCRIBE_CONFIGS,),
            "creating remote topics with the configs of their sources",
        )
        need(Side.TARGET, topic, names.remote_topics, (describe, create, write), "copying")
        need(Side.TARGET, topic, names.remote_topics, (read,), "no duplicates after a failure")
        need(Side.TARGET, topic, names.former_topics, (read,), "no duplicates after a change of the replication policy")
        need(Side.TARGET, topic, names.remote_topics, (AclOperation.ALTER,), "adding partitions")
        if is_job_on(source, "sync.topic.configs"):
            configs = (AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS)
            need(Side.TARGET, topic, names.remote_topics, configs, "sync.topic.configs.enabled")
        if _is_on(source, PRESERVE_KEY, "false"):
            found.append(
                RequiredAcl(
                    Side.TARGET, ResourceType.CLUSTER, cluster, AclOperation.CLUSTER_ACTION, PRESERVE_KEY, _SLOWER
                )
            )
            gap_ids, purpose = (f"{ID_PREFIX}*",), f"{PRESERVE_KEY}, without CLUSTER_ACTION"
            need(Side.TARGET, ResourceType.TRANSACTIONAL_ID, gap_ids, (write,), purpose)
            fill = (AclOperation.DELETE, AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS)
            need(Side.TARGET, topic, names.remote_topics, fill, f"{PRESERVE_KEY}, where logs of the source are trimmed")
            if _is_on(source, DENY_WRITES_KEY, "false"):
                need(Side.TARGET, ResourceType.CLUSTER, cluster, (describe, AclOperation.ALTER), DENY_WRITES_KEY)
        if is_job_on(source, "sync.topic.acls"):
            need(Side.SOURCE, ResourceType.CLUSTER, cluster, (describe,), "sync.topic.acls.enabled")
            need(Side.TARGET, ResourceType.CLUSTER, cluster, (describe, AclOperation.ALTER), "sync.topic.acls.enabled")
        if _is_on(source, "emit.offset-syncs.enabled"):
            need(names.syncs_side, topic, (names.syncs_topic,), (describe, create, write, read), "offset syncs")
        if is_job_on(checkpoints, "emit.checkpoints"):
            need(Side.SOURCE, group, names.groups, (describe,), "checkpoints")
            if is_job_on(checkpoints, "sync.group.offsets"):
                need(Side.TARGET, group, names.groups, (describe, read), "sync.group.offsets.enabled")
    if worker.str("exactly.once.source.support").lower() != "disabled":
        workers = worker.str("group.id")
        ids = (f"{workers}-*", f"connect-cluster-{workers}")
        need(Side.TARGET, ResourceType.TRANSACTIONAL_ID, ids, (describe, write), "exactly.once.source.support")
    return found


def _is_on(props: Mapping[str, str], key: str, default: str = _TRUE) -> bool:
    return props.get(key, default).strip().lower() == _TRUE
