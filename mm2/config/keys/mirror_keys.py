"""Settings of the three mirror connectors.

Kafka 4.3.0 defines them in ``MirrorConnectorConfig``, ``MirrorSourceConfig``, ``MirrorCheckpointConfig`` and
``MirrorHeartbeatConfig``. Keys that Kafka does not have are in a table of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mm2.config.configdef import ConfigDef, Importance, Type, at_least, distinct, one_of, subset_of
from mm2.config.definitions.validators import REPLICATION_FACTOR, topic_name
from mm2.config.keys.client_keys import CLUSTER_CONFIG
from mm2.config.keys.connector_keys import CONNECTOR_CONFIG
from mm2.config.keys.security_keys import SASL_CONFIG, SECURITY_PROTOCOL_CONFIG, TLS_CONFIG

HIGH, MEDIUM, LOW = Importance.HIGH, Importance.MEDIUM, Importance.LOW
_MIRROR: Final = "org.apache.kafka.connect.mirror"

SOURCE_CONNECTOR: Final = f"{_MIRROR}.MirrorSourceConnector"
HEARTBEAT_CONNECTOR: Final = f"{_MIRROR}.MirrorHeartbeatConnector"
CHECKPOINT_CONNECTOR: Final = f"{_MIRROR}.MirrorCheckpointConnector"
CONNECTOR_CLASSES: Final = (SOURCE_CONNECTOR, HEARTBEAT_CONNECTOR, CHECKPOINT_CONNECTOR)
"""Java names of the connectors of every flow, in the order in which they are configured."""
CONNECTOR_NAMES: Final = tuple(name.rpartition(".")[2] for name in CONNECTOR_CLASSES)
"""The names that MirrorMaker gives them, in the same order."""

REPLICATION_POLICY_CONFIG: Final = (
    ConfigDef()
    .define(
        "replication.policy.class",
        Type.CLASS,
        f"{_MIRROR}.DefaultReplicationPolicy",
        None,
        LOW,
        "Class that names topics on the target.",
    )
    .define("replication.policy.separator", Type.STRING, ".", None, LOW, "Separator between alias and topic.")
    .define(
        "replication.policy.internal.topic.separator.enabled",
        Type.BOOLEAN,
        True,
        None,
        LOW,
        "Use the configured separator in the names of internal topics as well.",
    )
)
FORWARDING_ADMIN_CONFIG: Final = ConfigDef().define(
    "forwarding.admin.class",
    Type.CLASS,
    "org.apache.kafka.clients.admin.ForwardingAdmin",
    None,
    LOW,
    "Class of the admin clients.",
)

MIRROR_CONNECTOR_CONFIG: Final = ConfigDef(
    ConfigDef(CONNECTOR_CONFIG)
    .define("enabled", Type.BOOLEAN, True, None, LOW, "Whether the flow replicates.")
    .define("source.cluster.alias", Type.STRING, importance=HIGH, doc="Alias of the cluster to copy from.")
    .define("target.cluster.alias", Type.STRING, "target", None, HIGH, "Alias of the cluster to copy to.")
    .define("admin.timeout.ms", Type.LONG, 60000, None, LOW, "Time limit of administrative steps."),
    REPLICATION_POLICY_CONFIG,
    FORWARDING_ADMIN_CONFIG,
    ConfigDef().define(
        "metric.reporters",
        Type.LIST,
        "org.apache.kafka.common.metrics.JmxReporter",
        distinct(),
        LOW,
        "Java metrics reporters; no effect here.",
    ),
    SECURITY_PROTOCOL_CONFIG,
    ConfigDef().define("config.providers", Type.LIST, [], distinct(), LOW, "Names of config providers."),
    TLS_CONFIG,
    SASL_CONFIG,
)
"""Keys common to all three connectors, in the order of `config/validate` in Kafka."""

_TOPICS_CONFIG: Final = (
    ConfigDef()
    .define("topics", Type.LIST, ".*", distinct(), HIGH, "Names and regular expressions of topics to replicate.")
    .define(
        "topics.exclude",
        Type.LIST,
        r"mm2.*\.internal,.*\.replica,__.*",
        distinct(),
        HIGH,
        "Topics not to replicate; takes precedence over topics.",
    )
)
_EMIT_SYNCS_CONFIG: Final = ConfigDef().define(
    "emit.offset-syncs.enabled", Type.BOOLEAN, True, None, LOW, "Write offset syncs."
)
_TOPIC_FILTER_CONFIG: Final = ConfigDef().define(
    "topic.filter.class", Type.CLASS, f"{_MIRROR}.DefaultTopicFilter", None, LOW, "Class that selects topics."
)
_POLL_CONFIG: Final = ConfigDef().define(
    "consumer.poll.timeout.ms", Type.LONG, 1000, None, LOW, "Maximum wait of one poll of a task, ms."
)
_SYNCS_PLACE_CONFIG: Final = ConfigDef().define(
    "offset-syncs.topic.location",
    Type.STRING,
    "source",
    one_of("source", "target"),
    LOW,
    "Cluster that keeps the offset-syncs topic; the same for source and checkpoint connector.",
)
_METRIC_NAMES_CONFIG: Final = ConfigDef().define(
    "metric.names.formats",
    Type.LIST,
    "legacy",
    subset_of("legacy", "new"),
    LOW,
    "Names of mirror metrics: legacy, new, or both.",
)

THROTTLE_KEY: Final = "copy.throttle.bytes.per.sec"
TOPIC_THROTTLE_PREFIX: Final = f"{THROTTLE_KEY}."
"""Prefix of a source topic's name: a rate limit for this topic, in addition to that of the flow."""

REMOTE_PARTITIONS_KEY: Final = "remote.partitions.max"
REMOTE_TOPIC_PARTITIONS_KEY: Final = "remote.topic.partitions.max"

PRESERVE_KEY: Final = "preserve.offsets"
PRESERVE_TOPICS_KEY: Final = "preserve.offsets.topics"
DENY_WRITES_KEY: Final = "preserve.offsets.deny.writes"

OWN_CONFIG: Final = (
    ConfigDef()
    .define(
        "copy.batch.duration.ms",
        Type.LONG,
        60000,
        at_least(10),
        LOW,
        "Duration of one Spark micro-batch; an idle one may last ten times as long.",
    )
    .define(
        "copy.lanes", Type.INT, 0, at_least(0), LOW, "Lanes (parallel Spark tasks) per connector task; 0 = automatic."
    )
    .define("copy.commit.interval.ms", Type.LONG, 1000, at_least(1), LOW, "Time between commits of copied positions.")
    .define(
        THROTTLE_KEY, Type.LONG, 0, at_least(0), LOW, "Maximum bytes per second that the flow copies; 0 = no limit."
    )
    .define(
        "start.from",
        Type.STRING,
        "",
        None,
        LOW,
        "Where partitions without a committed position start: a time (ms since 1970 or ISO 8601), or file: and the path "
        "of a list of offsets. Empty, and for partitions that are not listed: auto.offset.reset applies.",
    )
    .define(
        REMOTE_PARTITIONS_KEY,
        Type.INT,
        200000,
        at_least(0),
        LOW,
        "Maximum partitions of all remote topics of the flow. Topics and partitions beyond it are reported and not created, "
        "whatever the source has.",
    )
    .define(
        REMOTE_TOPIC_PARTITIONS_KEY,
        Type.INT,
        10000,
        at_least(1),
        LOW,
        "Maximum partitions of a remote topic. A topic with more on the source is reported and not created.",
    )
    .define(
        "source.data.loss",
        Type.STRING,
        "continue",
        one_of("continue", "stop"),
        LOW,
        "When source offsets were deleted before they were copied, or a topic was recreated: report it and continue, or stop "
        "that partition.",
    )
    .define(
        "partition.error",
        Type.STRING,
        "isolate",
        one_of("isolate", "fail"),
        LOW,
        "When a partition cannot be copied: stop only that partition, or fail the task.",
    )
    .define(
        PRESERVE_KEY,
        Type.BOOLEAN,
        False,
        None,
        LOW,
        "Give every record the same offset on the target as on the source. The remote topics must be empty or written by this "
        "mode, and no other program may write to them. Needs Kafka 2.8 or later and CLUSTER_ACTION on the target, or, slower, WRITE "
        "on transactional ids with the prefix mm2-gaps-.",
    )
    .define(
        PRESERVE_TOPICS_KEY,
        Type.LIST,
        ".*",
        distinct(),
        LOW,
        "Names and regular expressions of source topics to which preserve.offsets applies.",
    )
    .define(
        DENY_WRITES_KEY,
        Type.BOOLEAN,
        False,
        None,
        LOW,
        "With preserve.offsets: leave WRITE on the remote topics to the flow, by an ACL that denies it to each other principal that has "
        "it. mm2 failover and promote remove these ACLs. Needs DESCRIBE and ALTER on the target cluster, and a user name.",
    )
    .define(
        "sync.group.acls.enabled",
        Type.BOOLEAN,
        False,
        None,
        LOW,
        "Also copy ACLs of consumer groups that pass the group filter, together with those of topics.",
    )
    .define(
        "dead.letter.topic",
        Type.STRING,
        "",
        topic_name(empty_allowed=True),
        LOW,
        "Topic on the target for records that cannot be copied, with errors.tolerance=all; empty = "
        "mm2-dead-letters.<source alias>.internal.",
    )
    .define(
        "dead.letter.topic.replication.factor",
        Type.SHORT,
        3,
        REPLICATION_FACTOR,
        LOW,
        "Replication factor of the dead-letter topic. If not set and the cluster has too few brokers: the broker's default.",
    )
    .define(
        "ledger.topic.replication.factor",
        Type.SHORT,
        3,
        REPLICATION_FACTOR,
        LOW,
        "Replication factor of the ledger topic. If not set and the cluster has too few brokers: the broker's default.",
    )
)
"""Keys that Kafka's source connector does not have, except those with :data:`TOPIC_THROTTLE_PREFIX`."""


def topic_throttles(props: Mapping[str, str]) -> dict[str, int]:
    """Bytes per second by source topic, from the keys under :data:`TOPIC_THROTTLE_PREFIX`; 0 = no limit.

    Raises :class:`ConfigException` naming the key.
    """
    throttle = OWN_CONFIG.keys[THROTTLE_KEY]
    limits: dict[str, int] = {}
    for key, value in props.items():
        if key.startswith(TOPIC_THROTTLE_PREFIX):
            limit = throttle.parse(value, shown_as=key)
            if isinstance(limit, int):
                limits[key.removeprefix(TOPIC_THROTTLE_PREFIX)] = limit
    return limits


def _define_job(definition: ConfigDef, name: str, *, enabled: bool, interval_seconds: int, doc: str) -> ConfigDef:
    """The two keys of a periodic job: whether it runs, and its interval (a negative interval also disables it)."""
    return definition.define(f"{name}.enabled", Type.BOOLEAN, enabled, None, LOW, doc).define(
        f"{name}.interval.seconds", Type.LONG, interval_seconds, None, LOW, f"{doc.rstrip('.')}: interval in seconds."
    )


def _source_config() -> ConfigDef:
    definition = ConfigDef(MIRROR_CONNECTOR_CONFIG, _TOPICS_CONFIG).define(
        "config.properties.exclude",
        Type.LIST,
        "follower.replication.throttled.replicas,leader.replication.throttled.replicas,"
        "message.timestamp.difference.max.ms,log.message.timestamp.before.max.ms,log.message.timestamp.after.max.ms,"
        "message.timestamp.type,unclean.leader.election.enable,min.insync.replicas",
        distinct(),
        HIGH,
        "Topic settings that are not copied.",
    )
    definition = ConfigDef(definition, _TOPIC_FILTER_CONFIG).define(
        "config.property.filter.class",
        Type.CLASS,
        f"{_MIRROR}.DefaultConfigPropertyFilter",
        None,
        LOW,
        "Class that selects topic settings.",
    )
    definition = ConfigDef(definition, _POLL_CONFIG)
    _define_job(definition, "refresh.topics", enabled=True, interval_seconds=600, doc="Check for new topics.")
    _define_job(definition, "sync.topic.configs", enabled=True, interval_seconds=600, doc="Copy topic settings.")
    _define_job(definition, "sync.topic.acls", enabled=True, interval_seconds=600, doc="Copy ACLs of topics.")
    definition.define(
        "replication.factor", Type.INT, 2, None, LOW, "Replication factor of new topics; -1 = the broker's default."
    ).define(
        "offset-syncs.topic.replication.factor",
        Type.SHORT,
        3,
        None,
        LOW,
        "Replication factor of the offset-syncs topic.",
    ).define(
        "offset.lag.max",
        Type.LONG,
        100,
        None,
        LOW,
        "Maximum lag of an offset sync in records; 0 = one sync for each record.",
    )
    definition = ConfigDef(definition, _SYNCS_PLACE_CONFIG, _EMIT_SYNCS_CONFIG).define(
        "heartbeats.replication.enabled",
        Type.BOOLEAN,
        True,
        None,
        LOW,
        "Replicate heartbeats topics even if the topic filter excludes them.",
    )
    return ConfigDef(definition, _METRIC_NAMES_CONFIG, OWN_CONFIG)


def _checkpoint_config() -> ConfigDef:
    definition = ConfigDef(MIRROR_CONNECTOR_CONFIG, _POLL_CONFIG)
    definition.define("groups", Type.LIST, ".*", distinct(), HIGH, "Names and regular expressions of groups.").define(
        "groups.exclude",
        Type.LIST,
        "console-consumer-.*,connect-.*,__.*",
        distinct(),
        HIGH,
        "Excluded groups; takes precedence over groups.",
    ).define("group.filter.class", Type.CLASS, f"{_MIRROR}.DefaultGroupFilter", None, LOW, "Class that selects groups.")
    _define_job(definition, "refresh.groups", enabled=True, interval_seconds=600, doc="Check for new groups.")
    _define_job(definition, "emit.checkpoints", enabled=True, interval_seconds=60, doc="Write checkpoints.")
    _define_job(
        definition,
        "sync.group.offsets",
        enabled=False,
        interval_seconds=60,
        doc="Write translated offsets of inactive groups to the target.",
    )
    definition.define(
        "checkpoints.topic.replication.factor", Type.SHORT, 3, None, LOW, "Replication factor of the checkpoints topic."
    )
    return ConfigDef(definition, _SYNCS_PLACE_CONFIG, _TOPIC_FILTER_CONFIG, _METRIC_NAMES_CONFIG).define(
        "tombstone.dead.groups.enabled",
        Type.BOOLEAN,
        False,
        None,
        LOW,
        "Write tombstones for checkpoints of groups that were deleted on the source. Java's MirrorClient cannot read these tombstones.",
    )


MIRROR_SOURCE_CONFIG: Final = _source_config()
"""Keys of MirrorSourceConnector, including those that Kafka does not have."""

MIRROR_CHECKPOINT_CONFIG: Final = _checkpoint_config()
"""Keys of MirrorCheckpointConnector.

As in Kafka, it also reads ``topics``, ``topics.exclude`` (its topic filter) and ``emit.offset-syncs.enabled`` without
declaring them.
"""

MIRROR_HEARTBEAT_CONFIG: Final = _define_job(
    ConfigDef(MIRROR_CONNECTOR_CONFIG), "emit.heartbeats", enabled=True, interval_seconds=1, doc="Write heartbeats."
).define("heartbeats.topic.replication.factor", Type.SHORT, 3, None, LOW, "Replication factor of the heartbeats topic.")
"""Keys of MirrorHeartbeatConnector."""

MIRROR_SOURCE_TASK_CONFIG: Final = (
    ConfigDef(MIRROR_SOURCE_CONFIG)
    .define(
        "task.assigned.partitions",
        Type.LIST,
        validator=distinct(empty_allowed=False),
        doc="Partitions of a task, as topic-partition.",
    )
    .define("task.index", Type.INT, None, None, LOW, "Number of the task.")
)
"""Configuration of a MirrorSourceConnector task."""

MIRROR_CHECKPOINT_TASK_CONFIG: Final = (
    ConfigDef(MIRROR_CHECKPOINT_CONFIG)
    .define("task.assigned.groups", Type.LIST, validator=distinct(empty_allowed=False), doc="Groups of a task.")
    .define("task.assigned.share.groups", Type.LIST, "", None, LOW, "Share groups of a task; not in Java.")
    .define("task.index", Type.INT, None, None, LOW, "Number of the task.")
)
"""Configuration of a MirrorCheckpointConnector task."""

CONNECTOR_CONFIGS: Final = {
    SOURCE_CONNECTOR: MIRROR_SOURCE_CONFIG,
    HEARTBEAT_CONNECTOR: MIRROR_HEARTBEAT_CONFIG,
    CHECKPOINT_CONNECTOR: MIRROR_CHECKPOINT_CONFIG,
}
"""Definition of each connector by its Java name."""

CONNECTOR_KEYS: Final = frozenset(name for definition in CONNECTOR_CONFIGS.values() for name in definition.names)
"""Every key that any of the three connectors declares; at the top of the file these are defaults of all flows."""


def is_job_on(props: Mapping[str, str], job: str) -> bool:
    """Whether a connector with these properties runs this periodic job: enabled, and its interval is not negative."""
    key = f"{job}.enabled"
    (default, *_) = (str(one.keys[key].default) for one in CONNECTOR_CONFIGS.values() if key in one)
    is_enabled = props.get(key, default).strip().lower() == "true"
    return is_enabled and not props.get(f"{job}.interval.seconds", "").strip().startswith("-")


MIRROR_CLIENT_CONFIG: Final = ConfigDef(CLUSTER_CONFIG, REPLICATION_POLICY_CONFIG, FORWARDING_ADMIN_CONFIG)
"""Keys of MirrorClient, the client library for one cluster (Kafka's ``MirrorClientConfig``)."""

RENAMED: Final = {
    "topics.blacklist": "topics.exclude",
    "topics.whitelist": "topics",
    "groups.blacklist": "groups.exclude",
    "config.properties.blacklist": "config.properties.exclude",
}
"""Keys of older releases → their current names; Kafka 4 no longer reads the old ones."""


def default_group(source_alias: str) -> str:
    """The Connect group of the workers of a flow in a MirrorMaker file that has no ``B.group.id``."""
    return f"{source_alias}-mm2"
