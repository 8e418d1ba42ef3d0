"""The permissions that a flow, and each command of ``mm2``, needs on its two clusters, and their purpose. Pure.

`RIGHTS` is the only list: `mm2 plan` and docs/reference/rights.md are derived from it. It has the operations that the code requests
from brokers. READ, WRITE, DELETE and ALTER include
DESCRIBE, and ALTER_CONFIGS includes DESCRIBE_CONFIGS.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from mm2.config.keys.mirror_keys import DENY_WRITES_KEY, PRESERVE_KEY, is_job_on
from mm2.config.keys.worker_keys import WorkerConfig
from mm2.copy.empty_transactions import ID_PREFIX
from mm2.kafka.structs import AclOperation, ResourceType
from mm2.mirror.common.clients import Side

_TRUE: Final = "true"
_READ, _WRITE, _CREATE, _DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE, AclOperation.DESCRIBE
_ALTER, _DELETE, _ACTION = AclOperation.ALTER, AclOperation.DELETE, AclOperation.CLUSTER_ACTION
_DESCRIBE_CONFIGS, _ALTER_CONFIGS = AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS


class Feature(StrEnum):
    """What needs rights: parts of a flow, then commands. The values are the headings of docs/reference/rights.md."""

    WORKERS = "Workers of the flow"
    HEARTBEATS = "Heartbeats (`emit.heartbeats.enabled`)"
    COPYING = "Copying"
    PRESERVED = "Preserved offsets (`preserve.offsets`)"
    DENIALS = "Denied writes (`preserve.offsets.deny.writes`)"
    TRANSACTIONS = "Exactly once (`exactly.once.source.support`)"
    DEAD_LETTERS = "Dead letters (`errors.tolerance=all`)"
    CONFIGS = "Topic configurations (`sync.topic.configs.enabled`)"
    ACLS = "ACLs (`sync.topic.acls.enabled`)"
    SYNCS = "Offset syncs (`emit.offset-syncs.enabled`)"
    CHECKPOINTS = "Checkpoints (`emit.checkpoints.enabled`)"
    GROUPS = "Group offsets (`sync.group.offsets.enabled`)"
    STATUS = "`mm2 status`, `topics`, `lag`, `groups`"
    GAPS = "`mm2 gaps`"
    TRANSLATE = "`mm2 client translate-offsets`"
    LEDGER_NOTES = "`mm2 accept-source`, `throttle`, `pause` and `resume` with `--topic`"
    VERIFY = "`mm2 verify`"
    FAILOVER = "`mm2 failover`"
    FAILBACK = "`mm2 failback`"
    PROMOTE = "`mm2 promote`"


class Resource(StrEnum):
    """Resources on a cluster. The values are their names on docs/reference/rights.md, with the default policy."""

    SELECTED_TOPICS = "the topics to copy"
    REMOTE_TOPICS = "the remote topics"
    SYNCS_TOPIC = "topic `mm2-offset-syncs.B.internal`"
    STORES = "topics `mm2-configs.A.internal`, `mm2-offsets.A.internal`, `mm2-status.A.internal`"
    LEDGER = "topic `mm2-ledger.A.internal` (a connector on a Connect cluster: prefix `mm2-ledger-`)"
    OPPOSITE_LEDGER = "topic `mm2-ledger.B.internal` of the flow in the other direction, if there is one"
    CHECKPOINTS_TOPIC = "topic `A.checkpoints.internal`"
    HEARTBEATS_TOPIC = "topic `heartbeats`"
    DEAD_LETTERS_TOPIC = "topic `mm2-dead-letters.A.internal`"
    WORKER_GROUP = "group `A-mm2`"
    GROUPS = "the groups to translate"
    WORKER_IDS = "transactional ids with the prefix `A-mm2-`, and `connect-cluster-A-mm2`"
    GAP_IDS = "transactional ids with the prefix `mm2-gaps-`"
    CLUSTER = "the cluster"

    @property
    def kind(self) -> ResourceType:
        """The type of the resource in ACLs."""
        return _KINDS.get(self, ResourceType.TOPIC)


_KINDS: Final = {
    Resource.WORKER_GROUP: ResourceType.GROUP,
    Resource.GROUPS: ResourceType.GROUP,
    Resource.WORKER_IDS: ResourceType.TRANSACTIONAL_ID,
    Resource.GAP_IDS: ResourceType.TRANSACTIONAL_ID,
    Resource.CLUSTER: ResourceType.CLUSTER,
}
#: Topics on the target that a flow creates for itself.
OWN_TOPICS: Final = (
    Resource.STORES,
    Resource.HEARTBEATS_TOPIC,
    Resource.LEDGER,
    Resource.CHECKPOINTS_TOPIC,
    Resource.DEAD_LETTERS_TOPIC,
)


class AclState(StrEnum):
    """Whether a permission is granted, as far as known."""

    YES = "allowed"
    NO = "missing"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Right:
    """Operations on a resource that a feature needs.

    ``without``: what does not work otherwise. ``instead``: what is done otherwise, "" where something does not work.
    """

    feature: Feature
    side: Side
    resource: Resource
    operations: tuple[AclOperation, ...]
    purpose: str
    without: str
    instead: str = ""


_SLOWER: Final = "gaps are filled with empty transactions, which is slower"
_ASSUMED: Final = "15 minutes are assumed: partitions with records older than 13 minutes have one batch in flight"
_SOURCE, _TARGET = Side.SOURCE, Side.TARGET
_OWN: Final = "workers, positions, and the flow's internal topics"
_NO_START: Final = "the flow does not start"
_NO_COMMAND: Final = "the command fails"
_NOT_SHOWN: Final = "not shown"

RIGHTS: Final = (
    Right(Feature.WORKERS, _TARGET, Resource.STORES, (_DESCRIBE, _CREATE, _READ, _WRITE), _OWN, _NO_START),
    Right(
        Feature.WORKERS,
        _TARGET,
        Resource.WORKER_GROUP,
        (_DESCRIBE, _READ),
        "workers that share the flow",
        _NO_START,
    ),
    Right(
        Feature.HEARTBEATS,
        _TARGET,
        Resource.HEARTBEATS_TOPIC,
        (_DESCRIBE, _CREATE, _WRITE),
        "heartbeats",
        "no heartbeats",
    ),
    Right(Feature.COPYING, _SOURCE, Resource.SELECTED_TOPICS, (_DESCRIBE, _READ), "copying", "UNAUTHORIZED"),
    Right(
        Feature.COPYING,
        _SOURCE,
        Resource.SELECTED_TOPICS,
        (_DESCRIBE_CONFIGS,),
        "creating remote topics with the configs of their sources",
        "new topics are not created on B",
    ),
    Right(Feature.COPYING, _TARGET, Resource.REMOTE_TOPICS, (_DESCRIBE, _CREATE, _WRITE), "copying", "UNAUTHORIZED"),
    Right(
        Feature.COPYING,
        _TARGET,
        Resource.REMOTE_TOPICS,
        (_READ,),
        "no duplicates after a failure",
        "at-least-once; the partition's note reports it",
    ),
    Right(
        Feature.COPYING,
        _TARGET,
        Resource.REMOTE_TOPICS,
        (_ALTER,),
        "adding partitions",
        "partitions are not added",
    ),
    Right(
        Feature.COPYING,
        _TARGET,
        Resource.LEDGER,
        (_DESCRIBE, _CREATE, _READ, _WRITE),
        _OWN,
        "at-least-once; the partition's note reports it",
    ),
    Right(
        Feature.COPYING,
        _TARGET,
        Resource.CLUSTER,
        (_DESCRIBE_CONFIGS,),
        "reading producer.id.expiration.ms",
        _ASSUMED,
        _ASSUMED,
    ),
    Right(Feature.PRESERVED, _TARGET, Resource.CLUSTER, (_ACTION,), PRESERVE_KEY, _SLOWER, _SLOWER),
    Right(
        Feature.PRESERVED,
        _TARGET,
        Resource.GAP_IDS,
        (_WRITE,),
        f"{PRESERVE_KEY}, without CLUSTER_ACTION",
        "partitions with gaps are UNAUTHORIZED",
    ),
    Right(
        Feature.PRESERVED,
        _TARGET,
        Resource.REMOTE_TOPICS,
        (_DELETE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS),
        f"{PRESERVE_KEY}, where logs of the source are trimmed",
        "offsets before the first record are filled with markers, which takes longer",
    ),
    Right(
        Feature.PRESERVED,
        _TARGET,
        Resource.LEDGER,
        (_READ,),
        f"{PRESERVE_KEY}, where logs of the source are trimmed",
        "the topics of the flow are not copied while one of them has to be filled",
    ),
    Right(
        Feature.DENIALS,
        _TARGET,
        Resource.CLUSTER,
        (_DESCRIBE, _ALTER),
        DENY_WRITES_KEY,
        "these topics are not copied, and the connector fails",
    ),
    Right(
        Feature.TRANSACTIONS,
        _TARGET,
        Resource.WORKER_IDS,
        (_DESCRIBE, _WRITE),
        "exactly.once.source.support",
        "nothing is copied",
    ),
    Right(
        Feature.DEAD_LETTERS,
        _TARGET,
        Resource.DEAD_LETTERS_TOPIC,
        (_DESCRIBE, _CREATE, _WRITE),
        "records that cannot be copied",
        "a partition with such a record stops",
    ),
    Right(
        Feature.CONFIGS,
        _TARGET,
        Resource.REMOTE_TOPICS,
        (_DESCRIBE_CONFIGS, _ALTER_CONFIGS),
        "sync.topic.configs.enabled",
        "configurations are not synced",
    ),
    Right(
        Feature.ACLS,
        _SOURCE,
        Resource.CLUSTER,
        (_DESCRIBE,),
        "sync.topic.acls.enabled",
        "ACLs are not synced",
    ),
    Right(
        Feature.ACLS,
        _TARGET,
        Resource.CLUSTER,
        (_DESCRIBE, _ALTER),
        "sync.topic.acls.enabled",
        "ACLs are not synced",
    ),
    # On B with offset-syncs.topic.location=target.
    Right(
        Feature.SYNCS,
        _SOURCE,
        Resource.SYNCS_TOPIC,
        (_DESCRIBE, _CREATE, _WRITE, _READ),
        "offset syncs",
        "no offset syncs; offsets are translated by the ledger",
    ),
    Right(
        Feature.CHECKPOINTS,
        _SOURCE,
        Resource.GROUPS,
        (_DESCRIBE,),
        "checkpoints",
        "no checkpoints of these groups",
    ),
    Right(
        Feature.CHECKPOINTS,
        _TARGET,
        Resource.CHECKPOINTS_TOPIC,
        (_DESCRIBE, _CREATE, _READ, _WRITE),
        _OWN,
        "no checkpoints",
    ),
    Right(
        Feature.CHECKPOINTS,
        _SOURCE,
        Resource.OPPOSITE_LEDGER,
        (_READ,),
        "exact offsets of groups that return from B",
        "these offsets are not translated exactly",
    ),
    Right(
        Feature.GROUPS,
        _TARGET,
        Resource.GROUPS,
        (_DESCRIBE, _READ),
        "sync.group.offsets.enabled",
        "their offsets are not committed on B",
    ),
    Right(
        Feature.GROUPS,
        _TARGET,
        Resource.REMOTE_TOPICS,
        (_READ,),
        "sync.group.offsets.enabled",
        "offsets in these topics are not committed on B",
    ),
    *(
        Right(Feature.STATUS, side, resource, (operation,), "shown values", _NOT_SHOWN)
        for side, resource, operation in (
            (_SOURCE, Resource.SELECTED_TOPICS, _DESCRIBE),
            (_SOURCE, Resource.GROUPS, _DESCRIBE),
            (_TARGET, Resource.REMOTE_TOPICS, _DESCRIBE),
            (_TARGET, Resource.GROUPS, _DESCRIBE),
            (_TARGET, Resource.WORKER_GROUP, _DESCRIBE),
            (_TARGET, Resource.STORES, _READ),
            (_TARGET, Resource.LEDGER, _READ),
            (_TARGET, Resource.CHECKPOINTS_TOPIC, _READ),
            (_TARGET, Resource.HEARTBEATS_TOPIC, _READ),
        )
    ),
    Right(Feature.GAPS, _TARGET, Resource.LEDGER, (_READ,), "gaps", _NO_COMMAND),
    Right(Feature.GAPS, _TARGET, Resource.REMOTE_TOPICS, (_DESCRIBE,), "what the target still has", "reported"),
    Right(Feature.TRANSLATE, _TARGET, Resource.CHECKPOINTS_TOPIC, (_READ,), "checkpoints", _NO_COMMAND),
    Right(Feature.LEDGER_NOTES, _TARGET, Resource.LEDGER, (_READ, _WRITE), "notes in the ledger", _NO_COMMAND),
    Right(
        Feature.VERIFY,
        _SOURCE,
        Resource.SELECTED_TOPICS,
        (_READ,),
        "comparing records",
        "these topics are not compared",
    ),
    Right(
        Feature.VERIFY,
        _SOURCE,
        Resource.SELECTED_TOPICS,
        (_DESCRIBE_CONFIGS,),
        "compacted topics",
        "offsets that compaction removed are differences",
    ),
    Right(
        Feature.VERIFY,
        _TARGET,
        Resource.REMOTE_TOPICS,
        (_READ,),
        "comparing records",
        "these topics are not compared",
    ),
    Right(
        Feature.VERIFY,
        _TARGET,
        Resource.REMOTE_TOPICS,
        (_DESCRIBE_CONFIGS,),
        "compacted topics",
        "offsets that compaction removed are differences",
    ),
    Right(Feature.VERIFY, _TARGET, Resource.LEDGER, (_READ,), "explaining differences", _NO_COMMAND),
    Right(Feature.VERIFY, _TARGET, Resource.LEDGER, (_WRITE,), "`--record`", _NO_COMMAND),
    *(
        Right(feature, side, resource, operations, purpose, without)
        for feature in (Feature.FAILOVER, Feature.FAILBACK, Feature.PROMOTE)
        for side, resource, operations, purpose, without in (
            (_SOURCE, Resource.SELECTED_TOPICS, (_DESCRIBE,), "what is not copied yet", "reported as not known"),
            (_SOURCE, Resource.OPPOSITE_LEDGER, (_READ,), "exact offsets", "reported"),
            (_TARGET, Resource.REMOTE_TOPICS, (_READ,), "records of other producers", "reported as not known"),
            (_TARGET, Resource.LEDGER, (_READ, _WRITE), "stopping and resuming copying", _NO_COMMAND),
            (_TARGET, Resource.STORES, (_READ,), "whether tasks have stopped or resumed copying", "reported"),
            (_TARGET, Resource.WORKER_GROUP, (_DESCRIBE,), "whether a process is running", "reported"),
        )
    ),
    Right(
        Feature.FAILOVER, _SOURCE, Resource.GROUPS, (_DESCRIBE,), "offsets of groups", "the last checkpoints are used"
    ),
    Right(Feature.FAILOVER, _SOURCE, Resource.SYNCS_TOPIC, (_READ,), "offsets of groups", "reported"),
    Right(Feature.FAILOVER, _TARGET, Resource.CHECKPOINTS_TOPIC, (_READ,), "offsets of groups", "reported"),
    Right(Feature.FAILOVER, _TARGET, Resource.HEARTBEATS_TOPIC, (_READ,), "how old the copies are", "not known"),
    Right(Feature.FAILOVER, _TARGET, Resource.GROUPS, (_DESCRIBE, _READ), "committing offsets", "not committed"),
    Right(Feature.FAILBACK, _SOURCE, Resource.SELECTED_TOPICS, (_READ,), "comparing records", "reported as not known"),
    Right(
        Feature.FAILBACK,
        _SOURCE,
        Resource.OPPOSITE_LEDGER,
        (_WRITE,),
        "topics of equal names that are copied back",
        _NO_COMMAND,
    ),
)


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
    """The names of resources on both clusters, as far as known.

    `Resource.GROUPS` are the source's groups that are translated. Those of the worker and the constant ones are added by `required_acls`.
    """

    by_resource: Mapping[Resource, Collection[str]]
    syncs_side: Side = Side.SOURCE


def features(
    source: Mapping[str, str], checkpoints: Mapping[str, str], worker: WorkerConfig, *, replicates: bool
) -> frozenset[Feature]:
    """The enabled features of a flow. One that does not replicate (`enabled` is false) has heartbeats only."""
    enabled = {Feature.WORKERS: True, Feature.HEARTBEATS: True}
    enabled[Feature.TRANSACTIONS] = worker.str("exactly.once.source.support").lower() != "disabled"
    if replicates:
        is_preserved = _is_on(source, PRESERVE_KEY, "false")
        has_checkpoints = is_job_on(checkpoints, "emit.checkpoints")
        enabled |= {
            Feature.COPYING: True,
            Feature.PRESERVED: is_preserved,
            Feature.DENIALS: is_preserved and _is_on(source, DENY_WRITES_KEY, "false"),
            Feature.DEAD_LETTERS: source.get("errors.tolerance", "").strip().lower() == "all",
            Feature.CONFIGS: is_job_on(source, "sync.topic.configs"),
            Feature.ACLS: is_job_on(source, "sync.topic.acls"),
            Feature.SYNCS: _is_on(source, "emit.offset-syncs.enabled"),
            Feature.CHECKPOINTS: has_checkpoints,
            Feature.GROUPS: has_checkpoints and is_job_on(checkpoints, "sync.group.offsets"),
        }
    return frozenset(feature for feature, is_on in enabled.items() if is_on)


def required_acls(wanted: Collection[Feature], workers: str, names: Names) -> list[RequiredAcl]:
    """The ACLs for these features, each once. Resources without a name need none. ``workers`` is the group of the workers."""
    known: dict[Resource, Collection[str]] = {
        **names.by_resource,
        Resource.WORKER_GROUP: (workers,),
        Resource.WORKER_IDS: (f"{workers}-*", f"connect-cluster-{workers}"),
        Resource.GAP_IDS: (f"{ID_PREFIX}*",),
        Resource.CLUSTER: ("kafka-cluster",),
    }
    found: dict[tuple[object, ...], RequiredAcl] = {}
    for right in RIGHTS:
        chosen = tuple(sorted(known.get(right.resource, ())))
        side = names.syncs_side if right.resource is Resource.SYNCS_TOPIC else right.side
        if right.feature in wanted and chosen:
            for operation in right.operations:
                needed = RequiredAcl(side, right.resource.kind, chosen, operation, right.purpose, right.instead)
                found.setdefault((side, needed.kind, chosen, operation), needed)
    return list(found.values())


def _is_on(props: Mapping[str, str], key: str, default: str = _TRUE) -> bool:
    return props.get(key, default).strip().lower() == _TRUE
