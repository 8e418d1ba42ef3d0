"""Settings of a distributed Connect worker (Kafka's ``DistributedConfig`` 4.3.0, with the keys that 4.4.0 has added)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from mm2.config.configdef import (
    AbstractConfig,
    ConfigDef,
    ConfigException,
    Importance,
    Type,
    at_least,
    between,
    distinct,
    one_of,
    one_of_any_case,
    show,
)
from mm2.config.definitions.validators import PARTITIONS, REPLICATION_FACTOR, Check
from mm2.config.keys.client_keys import CLIENT_CONFIG
from mm2.config.keys.security_keys import SASL_CONFIG, TLS_CONFIG

HIGH, MEDIUM, LOW = Importance.HIGH, Importance.MEDIUM, Importance.LOW
_INT_MAX: Final = 2**31 - 1
_JMX_REPORTER: Final = "org.apache.kafka.common.metrics.JmxReporter"

HMAC_ALGORITHMS: Final = {
    "HmacMD5": "md5",
    "HmacSHA1": "sha1",
    "HmacSHA224": "sha224",
    "HmacSHA256": "sha256",
    "HmacSHA384": "sha384",
    "HmacSHA512": "sha512",
}
"""Java names of the signature algorithms for requests between workers → names for :mod:`hmac`."""

TOPIC_CREATION_KEY: Final = "internal.topics.automatic.creation.enable"

STORAGE_PREFIXES: Final = ("config.storage.", "offset.storage.", "status.storage.")
"""Prefixes of topic settings for an internal topic; declared worker keys are excluded."""

CONVERTER_PREFIXES: Final = ("key.converter.", "value.converter.", "header.converter.")
"""Prefixes of a converter's own settings."""


def _listeners() -> Check:
    def ensure(name: str, value: object) -> None:
        if not isinstance(value, list) or not value:
            raise ConfigException(
                f"Invalid value for {name}, at least one URL is expected, ex: http://localhost:8080,https://localhost:8443."
            )
        if not all(map(str.strip, value)):
            raise ConfigException(f"Empty URL found when parsing {name} list.")

    return Check(ensure, "List of comma-separated URLs, ex: http://localhost:8080,https://localhost:8443.")


_HEADER_ACTIONS: Final = ("set", "add", "setDate", "addDate")
# A comma inside double quotes does not end a rule.
_RULE: Final = re.compile(r'(?:[^,"]|"[^"]*")+')


def parse_response_headers(text: str) -> list[tuple[str, str, str]]:
    """The rules of ``response.http.headers.config`` as (action, header name, value).

    Raises :class:`ConfigException`.
    """
    return [_header_rule(rule.strip().strip('"').strip()) for rule in _RULE.findall(text)]


def _header_rule(rule: str) -> tuple[str, str, str]:
    action, blank, header = rule.partition(" ")
    if not blank:
        raise ConfigException(
            f"Invalid format of header config '{rule}'. Expected: '[action] [header name]:[header value]'"
        )
    if action not in _HEADER_ACTIONS:
        raise ConfigException(
            f"Invalid header config action: '{action}'. Expected one of [{', '.join(_HEADER_ACTIONS)}]"
        )
    header = header.strip()
    name, colon, value = header.partition(":")
    if not colon:
        raise ConfigException(
            f"Invalid format of header name and header value pair '{header}'. Expected: '[header name]:[header value]'"
        )
    name = name.strip()
    if not name or re.search(r"\s", name):
        raise ConfigException(f"Invalid header name '{name}'. The '[header name]' cannot contain whitespace")
    return action, name, value.strip()


def _response_headers() -> Check:
    def ensure(_name: str, value: object) -> None:
        parse_response_headers(str(value))

    return Check(
        ensure,
        "Comma-separated header rules, where each header rule is of the form '[action] [header name]:[header value]' "
        "and optionally surrounded by double quotes if any part of a header rule contains a comma",
    )


def _hmac(description: str) -> Check:
    def ensure(name: str, value: object) -> None:
        if value not in HMAC_ALGORITHMS:
            raise ConfigException(
                name,
                value,
                f"the algorithm is not supported by this worker; the supported algorithms are: {show([*HMAC_ALGORITHMS])}",
            )

    return Check(ensure, description)


def _hmacs() -> Check:
    one = _hmac("")

    def ensure(name: str, value: object) -> None:
        items = value if isinstance(value, list) else []
        if not items:
            raise ConfigException(name, value, "At least one signature verification algorithm must be provided")
        for item in items:
            one.ensure_valid(name, item)

    return Check(ensure, "A list of one or more MAC algorithms, each supported by the worker")


def _connect_protocol() -> Check:
    def ensure(name: str, value: object) -> None:
        if value not in {"eager", "compatible", "sessioned"}:
            raise ConfigException(name, value, "Invalid Connect protocol compatibility")

    return Check(ensure, "[eager, compatible, sessioned]")


INTERNAL_REST_CONFIG: Final = (
    ConfigDef()
    .define("listeners", Type.LIST, "http://:8083", _listeners(), LOW, "URLs the REST server listens on.")
    .define("rest.advertised.host.name", Type.STRING, None, None, LOW, "Host name for requests of other workers.")
    .define("rest.advertised.port", Type.INT, None, None, LOW, "Port for requests of other workers.")
    .define(
        "rest.advertised.listener",
        Type.STRING,
        None,
        None,
        LOW,
        "Listener for requests of other workers: http or https.",
    )
    .define("access.control.allow.origin", Type.STRING, "", None, LOW, "Origins allowed to call REST from browsers.")
    .define("access.control.allow.methods", Type.STRING, "", None, LOW, "Methods allowed for these origins.")
    .define(
        "response.http.headers.config", Type.STRING, "", _response_headers(), LOW, "Headers added to REST responses."
    )
    .define(
        "ssl.client.auth",
        Type.STRING,
        "none",
        one_of("required", "requested", "none"),
        LOW,
        "Whether clients of https listeners must present a certificate.",
    )
)
"""REST keys that MirrorMaker's own server has, too."""

REST_CONFIG: Final = (
    ConfigDef(INTERNAL_REST_CONFIG)
    .define(
        "rest.extension.classes",
        Type.LIST,
        [],
        distinct(),
        LOW,
        "Classes of REST extensions: Python classes, or BasicAuthSecurityRestExtension by its Java name.",
    )
    .define(
        "admin.listeners",
        Type.LIST,
        None,
        distinct(null_allowed=True),
        LOW,
        "URLs of the admin resources; absent = on all listeners, empty = disabled.",
    )
)

WORKER_CONFIG: Final = (
    ConfigDef(CLIENT_CONFIG.only(["bootstrap.servers", "client.dns.lookup"]))
    .define("key.converter", Type.CLASS, importance=HIGH, doc="Converter of record keys.")
    .define("key.converter.plugin.version", Type.STRING, None, None, LOW, "Version of that converter.")
    .define("value.converter", Type.CLASS, importance=HIGH, doc="Converter of record values.")
    .define("value.converter.plugin.version", Type.STRING, None, None, LOW, "Version of that converter.")
    .define("task.shutdown.graceful.timeout.ms", Type.LONG, 5000, None, LOW, "Timeout for stopping all tasks.")
    .define("offset.flush.interval.ms", Type.LONG, 60000, None, LOW, "Time between commits of source offsets.")
    .define("offset.flush.timeout.ms", Type.LONG, 5000, None, LOW, "Timeout of a commit of source offsets.")
    .define(
        "plugin.path", Type.LIST, None, distinct(empty_allowed=False, null_allowed=True), LOW, "Directories of plugins."
    )
    .define(
        "plugin.discovery",
        Type.STRING,
        "hybrid_warn",
        one_of_any_case("ONLY_SCAN", "SERVICE_LOAD", "HYBRID_WARN", "HYBRID_FAIL"),
        LOW,
        "How plugins are discovered.",
    )
    .define(
        "plugin.isolation",
        Type.STRING,
        "loader",
        one_of("loader", "process"),
        LOW,
        "Not a Kafka key. loader: connectors run in the worker's process with separate modules; process: each connector runs in a "
        "separate process. A connector can override it.",
    )
    .define("metrics.sample.window.ms", Type.LONG, 30000, at_least(0), LOW, "Length of a metrics sample.")
    .define("metrics.num.samples", Type.INT, 2, at_least(1), LOW, "Samples kept per metric.")
    .define("metrics.recording.level", Type.STRING, "INFO", one_of("INFO", "DEBUG"), LOW, "Detail of the metrics.")
    .define("metric.reporters", Type.LIST, _JMX_REPORTER, distinct(), LOW, "Java metrics reporters; no effect here.")
    .define(
        "header.converter",
        Type.CLASS,
        "org.apache.kafka.connect.storage.SimpleHeaderConverter",
        None,
        LOW,
        "Converter of record headers.",
    )
    .define("header.converter.plugin.version", Type.STRING, None, None, LOW, "Version of that converter.")
    .define("config.providers", Type.LIST, [], distinct(), LOW, "Names of config providers.")
    .define(
        "connector.client.config.override.policy",
        Type.STRING,
        "All",
        None,
        MEDIUM,
        "Which client settings connectors may override: All, None, Principal, Allowlist, or a class.",
    )
    .define(
        "connector.client.config.override.allowlist",
        Type.LIST,
        [],
        distinct(),
        MEDIUM,
        "Client keys that the policy Allowlist permits.",
    )
    .define("topic.creation.enable", Type.BOOLEAN, True, None, LOW, "Let source connectors create their topics.")
    .define("topic.tracking.enable", Type.BOOLEAN, True, None, LOW, "Record which topics a connector has used.")
    .define(
        "topic.tracking.allow.reset", Type.BOOLEAN, True, None, LOW, "Let users reset the topics used by a connector."
    )
)

STANDALONE_CONFIG: Final = ConfigDef(WORKER_CONFIG, TLS_CONFIG, REST_CONFIG).define(
    "offset.storage.file.filename", Type.STRING, importance=HIGH, doc="File that keeps the offsets."
)
"""All keys of a standalone worker."""

_CLIENT_PART: Final = CLIENT_CONFIG.only(
    [
        "client.id",
        "metadata.max.age.ms",
        "send.buffer.bytes",
        "receive.buffer.bytes",
        "reconnect.backoff.ms",
        "reconnect.backoff.max.ms",
        "retry.backoff.ms",
        "retry.backoff.max.ms",
        "request.timeout.ms",
        "socket.connection.setup.timeout.ms",
        "socket.connection.setup.timeout.max.ms",
        "connections.max.idle.ms",
        "security.protocol",
        "metadata.recovery.strategy",
        "metadata.recovery.rebootstrap.trigger.ms",
        "metadata.cluster.check.enable",
        "bootstrap.resolve.timeout.ms",
    ]
)

DISTRIBUTED_CONFIG: Final = (
    ConfigDef(WORKER_CONFIG, TLS_CONFIG, REST_CONFIG, _CLIENT_PART, SASL_CONFIG)
    .redefine("receive.buffer.bytes", default=32768)
    .redefine("request.timeout.ms", default=40000)
    .redefine("client.id", importance=LOW)
    .redefine("bootstrap.resolve.timeout.ms", importance=LOW)
    .redefine("socket.connection.setup.timeout.ms", validator=at_least(0), importance=LOW)
    .redefine("socket.connection.setup.timeout.max.ms", validator=at_least(0), importance=LOW)
    .define("group.id", Type.STRING, importance=HIGH, doc="Group id of the workers of one Connect cluster.")
    .define(
        "session.timeout.ms", Type.INT, 10000, None, HIGH, "A worker that sends no heartbeat for this long is removed."
    )
    .define(
        "rebalance.timeout.ms",
        Type.INT,
        60000,
        None,
        HIGH,
        "Timeout for workers to join after a rebalance has started.",
    )
    .define("heartbeat.interval.ms", Type.INT, 3000, None, HIGH, "Time between heartbeats to the group.")
    .define(
        "exactly.once.source.support",
        Type.STRING,
        "disabled",
        one_of_any_case("DISABLED", "ENABLED", "PREPARING"),
        HIGH,
        "Whether source tasks write records and offsets in one transaction.",
    )
    .define(
        "worker.sync.timeout.ms",
        Type.INT,
        3000,
        None,
        MEDIUM,
        "Timeout for a worker to catch up with the config topic.",
    )
    .define(
        "worker.unsync.backoff.ms",
        Type.INT,
        300000,
        None,
        MEDIUM,
        "A worker that failed to catch up waits this long before it rejoins.",
    )
    .define(
        TOPIC_CREATION_KEY,
        Type.BOOLEAN,
        True,
        importance=MEDIUM,
        doc="Create missing topics of offsets, configurations and statuses, and those in offsets.storage.topic of connectors. "
        "false: a missing topic is an error.",
    )
    .define("offset.storage.topic", Type.STRING, importance=HIGH, doc="Topic of source offsets.")
    .define("offset.storage.partitions", Type.INT, 25, PARTITIONS, LOW, "Partitions of a new offsets topic.")
    .define("offset.storage.replication.factor", Type.SHORT, 3, REPLICATION_FACTOR, LOW, "Its replication factor.")
    .define("config.storage.topic", Type.STRING, importance=HIGH, doc="Topic of connector configurations.")
    .define("config.storage.replication.factor", Type.SHORT, 3, REPLICATION_FACTOR, LOW, "Its replication factor.")
    .define("status.storage.topic", Type.STRING, importance=HIGH, doc="Topic of connector and task statuses.")
    .define("status.storage.partitions", Type.INT, 5, PARTITIONS, LOW, "Partitions of a new status topic.")
    .define("status.storage.replication.factor", Type.SHORT, 3, REPLICATION_FACTOR, LOW, "Its replication factor.")
    .define("connect.protocol", Type.STRING, "sessioned", _connect_protocol(), LOW, "Version of the group protocol.")
    .define(
        "scheduled.rebalance.max.delay.ms",
        Type.INT,
        300000,
        between(0, _INT_MAX),
        LOW,
        "How long the tasks of a worker that left the group stay unassigned, in case it returns.",
    )
    .define(
        "inter.worker.key.ttl.ms",
        Type.INT,
        3600000,
        between(0, _INT_MAX),
        LOW,
        "Lifetime of a session key; 0 = no limit.",
    )
    .define(
        "inter.worker.key.generation.algorithm",
        Type.STRING,
        "HmacSHA256",
        _hmac("Any KeyGenerator algorithm supported by the worker"),
        LOW,
        "Algorithm that generates session keys.",
    )
    .define(
        "inter.worker.key.size",
        Type.INT,
        None,
        None,
        LOW,
        "Size of a session key in bits; absent = the algorithm's default.",
    )
    .define(
        "inter.worker.signature.algorithm",
        Type.STRING,
        "HmacSHA256",
        _hmac("Any MAC algorithm supported by the worker"),
        LOW,
        "Signature algorithm of requests between workers.",
    )
    .define(
        "inter.worker.verification.algorithms",
        Type.LIST,
        "HmacSHA256",
        _hmacs(),
        LOW,
        "Accepted signature algorithms.",
    )
)
"""All keys of a distributed worker."""

TOPIC_KEYS: Final = frozenset(
    {
        "cleanup.policy",
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.type",
        "compression.zstd.level",
        "delete.retention.ms",
        "file.delete.delay.ms",
        "flush.messages",
        "flush.ms",
        "follower.replication.throttled.replicas",
        "index.interval.bytes",
        "leader.replication.throttled.replicas",
        "local.retention.bytes",
        "local.retention.ms",
        "max.compaction.lag.ms",
        "max.message.bytes",
        "message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms",
        "message.timestamp.type",
        "min.cleanable.dirty.ratio",
        "min.compaction.lag.ms",
        "min.insync.replicas",
        "preallocate",
        "remote.copy.disable",
        "remote.delete.on.disable",
        "remote.storage.enable",
        "retention.bytes",
        "retention.ms",
        "segment.bytes",
        "segment.index.bytes",
        "segment.jitter.ms",
        "segment.ms",
        "unclean.leader.election.enable",
    }
)
"""Settings of a topic (Kafka's ``TopicConfig``)."""


def storage_topics(worker: Mapping[str, object]) -> frozenset[str]:
    """The topics in which a worker with these properties keeps configurations, offsets and statuses."""
    names = (str(worker.get(f"{prefix}topic", "")).strip() for prefix in STORAGE_PREFIXES)
    return frozenset(filter(None, names))


class WorkerConfig(AbstractConfig):
    """The settings of one distributed worker, provider references already resolved.

    Raises :class:`ConfigException` for the first bad or missing key, and when the worker would reject its own
    signature.
    """

    def __init__(self, props: Mapping[str, object]) -> None:
        super().__init__(DISTRIBUTED_CONFIG, props)
        check_signature_accepted(self.values)

    def storage_topic_settings(self, prefix: str) -> dict[str, str]:
        """Settings of a new internal topic: keys under ``prefix`` that are not worker keys.

        ``prefix`` is one of :data:`STORAGE_PREFIXES`.
        """
        declared = {"topic", "partitions", "replication.factor"}
        return {k: str(v) for k, v in self.originals_with_prefix(prefix).items() if k not in declared}


class StandaloneConfig(WorkerConfig):
    """The settings of a standalone worker, provider references already resolved: no group and no internal topics.

    Raises :class:`ConfigException` for the first bad or missing key.
    """

    def __init__(self, props: Mapping[str, object]) -> None:
        AbstractConfig.__init__(self, STANDALONE_CONFIG, props)


_LEAST_KEY_BITS: Final = 40
"""Of the generators of HMAC keys in Java."""


def check_signature_accepted(values: Mapping[str, object], *, name: str = "inter.worker.signature.algorithm") -> None:
    """Require that a worker can generate session keys and accepts its own signatures; ``name`` is the key in the error."""
    size_bits = values["inter.worker.key.size"]
    if isinstance(size_bits, int) and size_bits < _LEAST_KEY_BITS:
        generator = values["inter.worker.key.generation.algorithm"]
        raise ConfigException(
            f"Unable to create key generator with algorithm {generator} and key size {size_bits}: Key length must be at "
            f"least {_LEAST_KEY_BITS} bits"
        )
    algorithm = values["inter.worker.signature.algorithm"]
    accepted = values["inter.worker.verification.algorithms"]
    if isinstance(accepted, list) and algorithm not in accepted:
        raise ConfigException(
            name, algorithm, "Signature algorithm must be present in inter.worker.verification.algorithms list"
        )
