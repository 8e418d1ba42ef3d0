"""Data classes of the Kafka client: immutable, picklable, without behaviour."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple

from mm2.kafka.errors import BrokerFailure

#: Characters of the longest name that brokers allow for a topic.
MAX_TOPIC_NAME: Final = 249

#: Special timestamps of `Admin.list_offsets` (ListOffsets protocol).
EARLIEST = -2
LATEST = -1


class TopicPartition(NamedTuple):
    """One partition, written "topic-partition" as Kafka does."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class Broker:
    """Address of a broker; `rack` None when it has none."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """`leader` is -1 while there is none, `leader_epoch` -1 when the broker is too old to report it. `offline` are the
    replicas on brokers or disks that have failed.
    """

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...] = ()

    def has_online(self, node: int) -> bool:
        """Whether this broker has a replica that has not failed."""
        return node in self.replicas and node not in self.offline


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """`topic_id` is Kafka's text form (see `topic_id_text`), "" when the broker has no topic ids."""

    name: str
    topic_id: str
    internal: bool
    partitions: Mapping[int, PartitionInfo]


@dataclass(frozen=True, slots=True)
class Metadata:
    """One Metadata answer. A topic is either in `topics` or in `errors`."""

    cluster_id: str | None
    controller_id: int
    brokers: Mapping[int, Broker]
    topics: Mapping[str, TopicInfo]
    errors: Mapping[str, BrokerFailure] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NewTopic:
    """-1 for `partitions` or `replication_factor` means the broker's default (KIP-464)."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)


class ConfigSource(IntEnum):
    """Source of a config value (DescribeConfigs protocol)."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    DYNAMIC_CLIENT_METRICS_CONFIG = 7
    DYNAMIC_GROUP_CONFIG = 8


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """`value` is None for sensitive entries and unset ones. `is_default` as in Java: the source is DEFAULT_CONFIG."""

    name: str
    value: str | None
    source: ConfigSource
    is_default: bool
    read_only: bool
    sensitive: bool


class AlterOpType(IntEnum):
    """Operations of IncrementalAlterConfigs (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class AlterOp:
    """One change of a topic config; `value` is None for DELETE."""

    name: str
    value: str | None
    op: AlterOpType = AlterOpType.SET


@dataclass(frozen=True, slots=True)
class OffsetInfo:
    """Answer of ListOffsets; `offset` -1 when no record is that recent, `timestamp` -1 for EARLIEST and LATEST."""

    offset: int
    timestamp: int
    leader_epoch: int


class EpochEnd(NamedTuple):
    """Answer of OffsetForLeaderEpoch (KIP-101).

    The newest epoch in the log that is not newer than the requested one, and its end offset. Both are -1 when every
    epoch in the log is older than the requested one.
    """

    leader_epoch: int
    end_offset: int

    @property
    def is_defined(self) -> bool:
        """Whether the log has an end offset for the epoch."""
        return self.leader_epoch >= 0 and self.end_offset >= 0


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """A committed group offset; `leader_epoch` -1 when unknown."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class GroupListing:
    """`state` and `group_type` are "" when the broker is too old to report them (ListGroups 4 and 5)."""

    group_id: str
    protocol_type: str
    state: str
    group_type: str


@dataclass(frozen=True, slots=True)
class DescribedMember:
    """`metadata` and `assignment` are the bytes of the group's embedded protocol."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """`members` is None when this client cannot read the members of the group's protocol (KIP-848 groups)."""

    group_id: str
    protocol_type: str
    protocol: str
    state: str
    group_type: str
    members: tuple[DescribedMember, ...] | None


@dataclass(frozen=True, slots=True)
class ProducerState:
    """State of a producer in a partition (DescribeProducers, KIP-664); -1 for absent values."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_transaction_start_offset: int


class ProducerIdentity(NamedTuple):
    """Producer id and epoch as returned by InitProducerId."""

    producer_id: int
    producer_epoch: int


class ResourceType(IntEnum):
    """Resource types of ACLs."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """Pattern types of ACLs (KIP-290)."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(IntEnum):
    """Operations of ACLs."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class AclPermission(IntEnum):
    """Permission types of ACLs."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


@dataclass(frozen=True, slots=True)
class AclBinding:
    """One ACL: whether `principal` from `host` may perform an operation on a resource."""

    resource_type: ResourceType
    resource_name: str
    pattern_type: PatternType
    principal: str
    host: str
    operation: AclOperation
    permission: AclPermission


@dataclass(frozen=True, slots=True)
class AclFilter:
    """Filter for describing or deleting ACLs; None and ANY match everything."""

    resource_type: ResourceType = ResourceType.ANY
    resource_name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: AclPermission = AclPermission.ANY


_ZERO_ID = uuid.UUID(int=0)


def topic_id_text(topic_id: uuid.UUID | None) -> str:
    """Text form of a topic id as Kafka prints it (URL-safe base64 without padding); "" for none or zero."""
    if topic_id is None or topic_id == _ZERO_ID:
        return ""
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode("ascii")


def topic_id_bytes(text: str) -> bytes:
    """The 16 bytes of a topic id in a request; zeros for ""."""
    return base64.urlsafe_b64decode(text + "==") if text else _ZERO_ID.bytes
