"""Settings of Kafka clients, Kafka 4.3.0 with the keys that 4.4.0 has added.

Definitions follow ``CommonClientConfigs``, ``ConsumerConfig``, ``ProducerConfig`` and ``AdminClientConfig``.
:data:`CLIENT_KEYS` are the keys that MirrorMaker passes from a cluster to its clients (Kafka's
``MirrorClientConfig.CLIENT_CONFIG_DEF``). The tables of the three client kinds serve to check values and to find
misspelt prefixed keys such as ``A.consumer.max.poll.records``.
"""

from __future__ import annotations

import re
from typing import Final

from mm2.config.configdef import (
    ConfigDef,
    ConfigException,
    Importance,
    Type,
    at_least,
    between,
    distinct,
    non_empty,
    one_of,
    one_of_any_case,
)
from mm2.config.definitions.validators import Check
from mm2.config.keys.security_keys import SASL_CONFIG, SECURITY_PROTOCOL_CONFIG, TLS_CONFIG

HIGH, MEDIUM, LOW = Importance.HIGH, Importance.MEDIUM, Importance.LOW
_JMX_REPORTER: Final = "org.apache.kafka.common.metrics.JmxReporter"
_INT_MAX: Final = 2**31 - 1

_BOOTSTRAP: Final = ConfigDef().define(
    "bootstrap.servers",
    Type.LIST,
    validator=distinct(empty_allowed=False),
    importance=HIGH,
    doc="host:port of some brokers of the cluster, for the first connection.",
)

CLUSTER_CONFIG: Final = ConfigDef(_BOOTSTRAP, SECURITY_PROTOCOL_CONFIG, TLS_CONFIG, SASL_CONFIG)
"""Bootstrap servers and security settings of a cluster."""

CLIENT_KEYS: Final = frozenset(CLUSTER_CONFIG.names)
"""MirrorMaker's *client keys*: the keys that a cluster's clients inherit from ``A.<key>`` or from the top level."""

CLIENT_CONFIG: Final = (
    ConfigDef(CLUSTER_CONFIG)
    .define(
        "client.dns.lookup",
        Type.STRING,
        "use_all_dns_ips",
        one_of("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"),
        MEDIUM,
        "Try all addresses of a host name, or replace bootstrap host names by their canonical names.",
    )
    .define("client.id", Type.STRING, "", None, MEDIUM, "Name of the client in the brokers' logs and quotas.")
    .define(
        "metadata.max.age.ms",
        Type.LONG,
        300000,
        at_least(0),
        LOW,
        "Maximum age of cluster metadata before it is refreshed.",
    )
    .define("send.buffer.bytes", Type.INT, 131072, at_least(-1), MEDIUM, "TCP send buffer; -1 = the system's.")
    .define("receive.buffer.bytes", Type.INT, 65536, at_least(-1), MEDIUM, "TCP receive buffer; -1 = the system's.")
    .define(
        "reconnect.backoff.ms", Type.LONG, 50, at_least(0), LOW, "Initial back-off before reconnecting to a broker."
    )
    .define("reconnect.backoff.max.ms", Type.LONG, 1000, at_least(0), LOW, "Maximum back-off; it grows exponentially.")
    .define("retry.backoff.ms", Type.LONG, 100, at_least(0), LOW, "Initial back-off before a request is retried.")
    .define("retry.backoff.max.ms", Type.LONG, 1000, at_least(0), LOW, "Maximum back-off; it grows exponentially.")
    .define("request.timeout.ms", Type.INT, 30000, at_least(0), MEDIUM, "Timeout of a request.")
    .define("socket.connection.setup.timeout.ms", Type.LONG, 10000, None, MEDIUM, "Timeout of a connection attempt.")
    .define(
        "socket.connection.setup.timeout.max.ms",
        Type.LONG,
        30000,
        None,
        MEDIUM,
        "Maximum of this timeout; it grows with failures.",
    )
    .define("connections.max.idle.ms", Type.LONG, 540000, None, MEDIUM, "Idle connections are closed after this.")
    .define("enable.metrics.push", Type.BOOLEAN, True, None, LOW, "Send client metrics to the cluster (KIP-714).")
    .define("metrics.sample.window.ms", Type.LONG, 30000, at_least(0), LOW, "Length of a metrics sample.")
    .define("metrics.num.samples", Type.INT, 2, at_least(1), LOW, "Samples kept per metric.")
    .define(
        "metrics.recording.level", Type.STRING, "INFO", one_of("INFO", "DEBUG", "TRACE"), LOW, "Detail of the metrics."
    )
    .define("metric.reporters", Type.LIST, _JMX_REPORTER, distinct(), LOW, "Java metrics reporters; no effect here.")
    .define("security.providers", Type.STRING, None, None, LOW, "Java security providers; no effect here.")
    .define(
        "metadata.recovery.strategy",
        Type.STRING,
        "rebootstrap",
        one_of_any_case("REBOOTSTRAP", "NONE"),
        LOW,
        "Action if no known broker answers: start again with the bootstrap servers, or none.",
    )
    .define(
        "metadata.recovery.rebootstrap.trigger.ms",
        Type.LONG,
        300000,
        at_least(0),
        LOW,
        "Time without metadata after which the client starts again with the bootstrap servers.",
    )
    .define(
        "metadata.cluster.check.enable",
        Type.BOOLEAN,
        True,
        None,
        LOW,
        "Send the expected cluster and node with the first request, so that a broker since 4.4 rejects a misrouted client.",
    )
    .define(
        "bootstrap.resolve.timeout.ms",
        Type.LONG,
        0,
        at_least(0),
        HIGH,
        "Time for retries of the resolution of bootstrap servers in the background; 0: it is part of the start.",
    )
    .define("config.providers", Type.LIST, [], distinct(), LOW, "Names of config providers.")
)
"""Keys common to all kinds of clients, with the consumer's defaults where they differ."""


_BY_DURATION: Final = re.compile(r"by_duration:P(?=.)(\d+D)?(T(?=.)(\d+H)?(\d+M)?(\d+([.,]\d*)?S)?)?", re.IGNORECASE)


def _auto_offset_reset() -> Check:
    """latest, earliest, none, or ``by_duration:`` and an ISO 8601 duration (KIP-1106)."""

    def ensure(name: str, value: object) -> None:
        text = str(value)
        if text not in {"latest", "earliest", "none"} and not _BY_DURATION.fullmatch(text):
            raise ConfigException(
                name,
                value,
                f"Invalid value `{text}` for configuration {name}. The value must be either 'earliest', 'latest', "
                "'none' or of the format 'by_duration:<PnDTnHnMn.nS.>'.",
            )

    return Check(ensure, "[latest, earliest, none, by_duration:PnDTnHnMn.nS]")


CONSUMER_CONFIG: Final = (
    ConfigDef(CLIENT_CONFIG)
    .define("group.id", Type.STRING, None, None, HIGH, "Consumer group.")
    .define("group.instance.id", Type.STRING, None, non_empty(), MEDIUM, "Name of a static member.")
    .define(
        "session.timeout.ms", Type.INT, 45000, None, HIGH, "A member that sends no heartbeat for this long is removed."
    )
    .define("heartbeat.interval.ms", Type.INT, 3000, None, HIGH, "Time between heartbeats.")
    .define(
        "partition.assignment.strategy",
        Type.LIST,
        "org.apache.kafka.clients.consumer.RangeAssignor,org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
        distinct(),
        MEDIUM,
        "Partition assignors of the group.",
    )
    .define("enable.auto.commit", Type.BOOLEAN, True, None, MEDIUM, "Commit offsets in the background.")
    .define("auto.commit.interval.ms", Type.INT, 5000, at_least(0), LOW, "Interval between these commits.")
    .define(
        "client.rack",
        Type.STRING,
        "",
        None,
        LOW,
        "Rack of the client: records are read from a replica in this rack if the brokers' replica.selector.class selects one.",
    )
    .define("max.partition.fetch.bytes", Type.INT, 1048576, at_least(0), HIGH, "Maximum bytes per partition and fetch.")
    .define(
        "decompression.max.bytes",
        Type.INT,
        67108864,
        between(1, _INT_MAX),
        MEDIUM,
        "Memory for the records of one batch after decompression. Only batches that have to be decompressed are "
        "limited. A partition with a larger batch is OVER_LIMIT; a sink task that reads one fails.",
    )
    .define(
        "fetch.min.bytes", Type.INT, 1, at_least(0), HIGH, "Minimum bytes that the broker waits for before it answers."
    )
    .define("fetch.max.bytes", Type.INT, 52428800, at_least(0), MEDIUM, "Maximum bytes per fetch.")
    .define("fetch.max.wait.ms", Type.INT, 500, at_least(0), LOW, "Maximum wait for fetch.min.bytes.")
    .define(
        "auto.offset.reset",
        Type.STRING,
        "latest",
        _auto_offset_reset(),
        MEDIUM,
        "Where to start without a committed offset.",
    )
    .define("check.crcs", Type.BOOLEAN, True, None, LOW, "Verify the checksums of fetched batches.")
    .define("key.deserializer", Type.CLASS, None, None, HIGH, "Set by MirrorMaker.")
    .define("value.deserializer", Type.CLASS, None, None, HIGH, "Set by MirrorMaker.")
    .define("default.api.timeout.ms", Type.INT, 60000, at_least(0), MEDIUM, "Time limit of blocking calls.")
    .define("interceptor.classes", Type.LIST, [], distinct(), LOW, "Java interceptors; refused here.")
    .define("max.poll.records", Type.INT, 500, at_least(1), MEDIUM, "Maximum records per poll.")
    .define("max.poll.interval.ms", Type.INT, 300000, at_least(1), MEDIUM, "Maximum time between polls.")
    .define("exclude.internal.topics", Type.BOOLEAN, True, None, MEDIUM, "Pattern subscriptions skip internal topics.")
    .define(
        "isolation.level",
        Type.STRING,
        "read_uncommitted",
        one_of("read_committed", "read_uncommitted"),
        MEDIUM,
        "Whether records of open and aborted transactions are consumed.",
    )
    .define(
        "allow.auto.create.topics",
        Type.BOOLEAN,
        True,
        None,
        MEDIUM,
        "Let brokers create requested topics that do not exist.",
    )
    .define("group.protocol", Type.STRING, "classic", one_of_any_case("CONSUMER", "CLASSIC"), HIGH, "Group protocol.")
    .define("group.remote.assignor", Type.STRING, None, None, MEDIUM, "Assignor of the broker.")
    .define(
        "share.acknowledgement.mode",
        Type.STRING,
        "implicit",
        one_of("implicit", "explicit"),
        MEDIUM,
        "Share groups only.",
    )
    .define(
        "share.acquire.mode",
        Type.STRING,
        "batch_optimized",
        one_of_any_case("BATCH_OPTIMIZED", "RECORD_LIMIT"),
        MEDIUM,
        "Share groups only.",
    )
)
"""Keys of a consumer; MirrorMaker sets the deserializers itself, so here they are not required."""


def _gzip_level() -> Check:
    def ensure(name: str, value: object) -> None:
        if not isinstance(value, int) or not (value == -1 or 1 <= value <= 9):
            raise ConfigException(name, value, "Value must be between 1 and 9 or equal to -1")

    return Check(ensure, "[1,...,9] or -1")


PRODUCER_CONFIG: Final = (
    ConfigDef(CLIENT_CONFIG)
    .redefine("receive.buffer.bytes", default=32768)
    .define("buffer.memory", Type.LONG, 33554432, at_least(0), HIGH, "Memory for records that wait to be sent.")
    .define(
        "buffer.memory.allocation.strategy",
        Type.STRING,
        "full",
        one_of_any_case("FULL", "INCREMENTAL"),
        MEDIUM,
        "Memory of a new batch: batch.size at once, or as its records need it.",
    )
    .define("retries", Type.INT, _INT_MAX, between(0, _INT_MAX), HIGH, "Maximum retries of a failed send.")
    .define("acks", Type.STRING, "all", one_of("all", "-1", "0", "1"), LOW, "Replicas that must acknowledge a record.")
    .define(
        "compression.type",
        Type.STRING,
        "none",
        one_of("none", "gzip", "snappy", "lz4", "zstd"),
        HIGH,
        "Compression codec of new batches.",
    )
    .define("compression.gzip.level", Type.INT, -1, _gzip_level(), MEDIUM, "Compression level of gzip.")
    .define("compression.lz4.level", Type.INT, 9, between(1, 17), MEDIUM, "Compression level of lz4.")
    .define("compression.zstd.level", Type.INT, 3, between(-131072, 22), MEDIUM, "Compression level of zstd.")
    .define("batch.size", Type.INT, 16384, at_least(0), MEDIUM, "Maximum bytes of a batch.")
    .define("partitioner.adaptive.partitioning.enable", Type.BOOLEAN, True, None, LOW, "Prefer fast brokers.")
    .define("partitioner.availability.timeout.ms", Type.LONG, 0, at_least(0), LOW, "Avoid brokers slower than this.")
    .define("partitioner.rack.aware", Type.BOOLEAN, False, None, LOW, "Prefer partitions with a leader in client.rack.")
    .define("client.rack", Type.STRING, "", None, LOW, "Rack of the client.")
    .define("partitioner.ignore.keys", Type.BOOLEAN, False, None, MEDIUM, "Ignore the key when a partition is chosen.")
    .define("linger.ms", Type.LONG, 5, at_least(0), MEDIUM, "Time to wait for more records of a batch.")
    .define("delivery.timeout.ms", Type.INT, 120000, at_least(0), MEDIUM, "Time limit of a send with all retries.")
    .define("max.request.size", Type.INT, 1048576, at_least(0), MEDIUM, "Maximum bytes of a request.")
    .define("max.block.ms", Type.LONG, 60000, at_least(0), MEDIUM, "Maximum time that a send may block.")
    .define(
        "metadata.max.idle.ms",
        Type.LONG,
        300000,
        at_least(5000),
        LOW,
        "Time after which metadata of unused topics is discarded.",
    )
    .define(
        "max.in.flight.requests.per.connection",
        Type.INT,
        5,
        at_least(1),
        LOW,
        "Maximum requests in flight per connection.",
    )
    .define("key.serializer", Type.CLASS, None, None, HIGH, "Set by MirrorMaker.")
    .define("value.serializer", Type.CLASS, None, None, HIGH, "Set by MirrorMaker.")
    .define("partitioner.class", Type.CLASS, None, None, MEDIUM, "Java partitioner; cannot be used here.")
    .define("interceptor.classes", Type.LIST, [], distinct(), LOW, "Java interceptors; refused here.")
    .define("enable.idempotence", Type.BOOLEAN, True, None, LOW, "Brokers detect retries and write each record once.")
    .define("transaction.timeout.ms", Type.INT, 60000, None, LOW, "The broker aborts transactions that take longer.")
    .define(
        "transactional.id",
        Type.STRING,
        None,
        non_empty(),
        LOW,
        "Transactional id, which identifies the producer across restarts.",
    )
    .define("transaction.two.phase.commit.enable", Type.BOOLEAN, False, None, LOW, "External transaction coordinator.")
)
"""Keys of a producer; MirrorMaker sets the serializers itself, so here they are not required."""

ADMIN_CONFIG: Final = (
    ConfigDef(CLIENT_CONFIG)
    .redefine("bootstrap.servers", default=[], validator=distinct())
    .redefine("connections.max.idle.ms", default=300000)
    .redefine("enable.metrics.push", default=False)
    .define(
        "bootstrap.controllers",
        Type.LIST,
        [],
        distinct(),
        HIGH,
        "host:port of controllers, to connect to instead of brokers.",
    )
    .define("retries", Type.INT, _INT_MAX, between(0, _INT_MAX), LOW, "Maximum retries of a failed request.")
    .define(
        "default.api.timeout.ms",
        Type.INT,
        60000,
        at_least(0),
        MEDIUM,
        "Time limit of a call with its retries; not set = request.timeout.ms.",
    )
)
"""Keys of an admin client."""

ROLE_CONFIGS: Final = {"producer": PRODUCER_CONFIG, "consumer": CONSUMER_CONFIG, "admin": ADMIN_CONFIG}
"""Definitions of client settings by the prefix of the client kind."""
