from __future__ import annotations

import pytest

from mm2.config.keys.mirror_keys import CONNECTOR_KEYS
from mm2.config.mirrormaker import TOP_CONFIG, MirrorMakerConfig

HEARTBEATS_OFF = {"emit.heartbeats.enabled": "false", "A->B.enabled": "true"}


def unread(*keys: str, **props: str) -> list[tuple[str, str | None]]:
    return MirrorMakerConfig({"clusters": "A,B", **props, **dict.fromkeys(keys, "1")}).unread_keys()


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        # Right key, wrong place.
        ("group.id", "A.group.id"),
        ("client.id", "A.client.id"),
        ("offset.flush.interval.ms", "A.offset.flush.interval.ms"),
        ("exactly.once.source.support", "A.exactly.once.source.support"),
        ("plugin.path", "A.plugin.path"),
        ("producer.linger.ms", "A.producer.linger.ms"),
        ("consumer.fetch.min.bytes", "A.consumer.fetch.min.bytes"),
        ("admin.retries", "A.admin.retries"),
        ("producer.override.acks", "A->B.producer.override.acks"),
        ("exactly.once.support", "A->B.exactly.once.support"),
        ("transaction.boundary.interval.ms", "A->B.transaction.boundary.interval.ms"),
        ("topic.creation.default.partitions", "A->B.topic.creation.default.partitions"),
        ("offsets.storage.topic", "A->B.offsets.storage.topic"),
        ("use.defaults.from", "A->B.use.defaults.from"),
        ("A.topics", "A->B.topics"),
        ("B.tasks.max", "B->A.tasks.max"),
        ("A.copy.throttle.bytes.per.sec.orders", "A->B.copy.throttle.bytes.per.sec.orders"),
        ("copy.throttle.byte.per.sec", "copy.throttle.bytes.per.sec"),
        ("A->B.start.form", "A->B.start.from"),
        ("B.producer.override.acks", "A->B.producer.override.acks"),
        ("A.max.poll.records", "A.consumer.max.poll.records"),
        ("B.listeners", "listeners"),
        ("B.rest.advertised.port", "rest.advertised.port"),
        ("B.connector.client.config.override.policy", None),
        ("A->B.group.id", "B.group.id"),
        ("A->B.offset.storage.replication.factor", "B.offset.storage.replication.factor"),
        ("A->B.source.cluster.request.timeout.ms", None),
        # Misspelt.
        ("task.max", "tasks.max"),
        ("sync.topic.acl.enabled", "sync.topic.acls.enabled"),
        ("A.boostrap.servers", "A.bootstrap.servers"),
        ("A.consumer.max.poll.record", "A.consumer.max.poll.records"),
        ("A->B.topic", "A->B.topics"),
        ("A->B.offset.lagmax", "A->B.offset.lag.max"),
        ("A->B.source.consumer.fetch.minbytes", "A->B.source.consumer.fetch.min.bytes"),
        ("A->B.emit.heartbeats", "A->B.emit.heartbeats.enabled"),
        ("A->B.source.cluster.bootstrap.server", "A->B.source.cluster.bootstrap.servers"),
        ("offset.storage.partition", "offset.storage.partitions"),
        ("B.offset.storage.replicationfactor", "B.offset.storage.replication.factor"),
        ("listeners.https.ssl.keystore.lokation", "listeners.https.ssl.keystore.location"),
        ("rest.oauthbearer.ssl.truststore.lokation", "rest.oauthbearer.ssl.truststore.location"),
        ("dashboard.prometheus.ssl.truststore.lokation", "dashboard.prometheus.ssl.truststore.location"),
        ("dashboard.prometheus.uri", "dashboard.prometheus.url"),
        ("rest.oauthbearer.exspected.issuer", "rest.oauthbearer.expected.issuer"),
        ("cluster", "clusters"),
        # Of older releases.
        ("topics.blacklist", "topics.exclude"),
        ("A->B.groups.blacklist", "A->B.groups.exclude"),
        ("A.topics.blacklist", "A->B.topics.exclude"),
        # Of clusters that are not there.
        ("C->B.enabled", "A->B.enabled"),
        ("A->A.enabled", "A->B.enabled"),
        ("C.bootstrap.servers", "A.bootstrap.servers"),
        ("config.providers.other.class", "config.providers"),
        # Keys that no part reads.
        ("qqqq.zzzz", None),
    ],
)
def test_unread_keys_come_with_the_nearest_known_key(key: str, nearest: str | None) -> None:
    found = unread(key)
    assert [name for name, _ in found] == [key]
    assert nearest is None or found == [(key, nearest)]
    assert key != "qqqq.zzzz" or found == [(key, None)]


@pytest.mark.parametrize(
    "key",
    [
        *sorted(CONNECTOR_KEYS),
        *sorted({*TOP_CONFIG.names} - CONNECTOR_KEYS),
        "bootstrap.servers",
        "spark.executor.memory",
        "listeners.https.ssl.keystore.location",
        "listeners.https.ssl.client.auth",
        "rest.oauthbearer.expected.issuer",
        "rest.oauthbearer.ssl.truststore.location",
        "dashboard.prometheus.ssl.truststore.location",
        "offset.storage.replication.factor",
        "offset.storage.segment.bytes",
        "status.storage.some.future.topic.setting",
        "key.converter.schemas.enable",
        "header.converter",
        "task.shutdown.graceful.timeout.ms",
        "worker.unsync.backoff.ms",
        "replication.policy.my.setting",
        "A.bootstrap.servers",
        "A.sasl.oauthbearer.token.endpoint.url",
        "A.consumer.isolation.level",
        "A.consumer.request.timeout.ms",
        "A.consumer.interceptor.acme.url",
        "A.admin.default.api.timeout.ms",
        "B.producer.compression.type",
        "B.group.id",
        "B.exactly.once.source.support",
        "B.offset.flush.interval.ms",
        "B.offset.storage.cleanup.policy",
        "B.key.converter.schemas.enable",
        "B.metrics.context.team",
        "A.replication.policy.separator",
        "A.forwarding.admin.class",
        "A->B.enabled",
        "A->B.topics",
        "A->B.use.defaults.from",
        "A->B.exactly.once.support",
        "A->B.topic.creation.default.partitions",
        "A->B.transforms.route.type",
        "A->B.producer.override.batch.size",
        "A->B.source.consumer.fetch.min.bytes",
        "A->B.target.admin.retries",
        "A->B.consumer.max.poll.records",
        "A->B.source.cluster.bootstrap.servers",
        "A->B.my.filter.allow.list",
        "A->B.topics.include",
        "A->B.replication.policy.my.setting",
        "A->B.copy.lanes",
        "A->B.copy.throttle.bytes.per.sec.orders.eu",
        "copy.throttle.bytes.per.sec.orders.eu",
        "B->A.topics",
    ],
)
def test_used_keys_are_not_reported(key: str) -> None:
    assert MirrorMakerConfig({"clusters": "A,B"})._readers().unread([key]) == []


def test_worker_keys_of_a_cluster_without_workers_have_no_effect_and_are_not_unknown() -> None:
    keys = ("A.offset.storage.replication.factor", "A.scheduled.rebalance.max.delay.ms", "B.group.id")
    assert unread(*keys, "A.request.timeout.ms", **HEARTBEATS_OFF) == [
        ("A.request.timeout.ms", "A.consumer.request.timeout.ms")
    ]
    props = {"clusters": "A,B", "A->B.enabled": "true", **dict.fromkeys(keys, "1"), **HEARTBEATS_OFF}
    reason = "no flow into A runs, so A has no worker"
    assert [(one.key, one.reason) for one in MirrorMakerConfig(props).ineffective_keys()] == [
        (key, reason) for key in keys[:2]
    ]


def test_a_disabled_flow_may_have_keys() -> None:
    assert unread("B->A.topics", **HEARTBEATS_OFF) == []


def test_keys_of_configured_providers_are_not_reported() -> None:
    props = {
        "config.providers": "env",
        "config.providers.env.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
        "config.providers.env.param.allowlist.pattern": "MM2_.*",
    }
    assert unread(**props) == []


def test_the_order_is_that_of_the_file() -> None:
    assert [key for key, _ in unread("zzz", "topics", "aaa")] == ["zzz", "aaa"]


def test_a_key_that_matches_two_aliases_is_checked_for_both() -> None:
    config = MirrorMakerConfig(
        {"clusters": "us,us.west", "us.west.bootstrap.servers": "x:1", "us.west.boostrap.servers": "y:1"}
    )
    assert config.unread_keys() == [("us.west.boostrap.servers", "us.west.bootstrap.servers")]


def test_no_flow_is_suggested_for_a_single_cluster() -> None:
    config = MirrorMakerConfig({"clusters": "A", "exactly.once.support": "required", "A.topics": "t"})
    assert config.unread_keys() == [("exactly.once.support", None), ("A.topics", "topics")]
