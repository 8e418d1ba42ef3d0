"""Settings of all connectors.

Kafka 4.3.0 defines them in ``ConnectorConfig``, ``SourceConnectorConfig`` and ``SinkConnectorConfig``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from mm2.config.configdef import (
    NO_DEFAULT,
    ConfigDef,
    ConfigException,
    Importance,
    Recommender,
    Type,
    Validator,
    Width,
    at_least,
    distinct,
    non_empty,
    one_of,
    one_of_any_case,
    split_list,
)
from mm2.config.definitions.validators import (
    ISOLATION,
    PARTITIONS,
    PLUGIN_VERSION,
    REPLICATION_FACTOR,
    non_empty_without_control_characters,
    regular_expression,
    regular_expressions,
    unique_aliases,
)

HIGH, MEDIUM, LOW = Importance.HIGH, Importance.MEDIUM, Importance.LOW
SHORT, MID, LONG = Width.SHORT, Width.MEDIUM, Width.LONG
_COMMON, _ERRORS, _TRANSFORMS, _PREDICATES = "Common", "Error Handling", "Transforms", "Predicates"
_CREATION, _EXACTLY_ONCE, _OFFSETS = "Topic Creation", "Exactly Once Support", "offsets.topic"

CLIENT_OVERRIDE_PREFIXES: Final = ("producer.override.", "consumer.override.", "admin.override.")
"""Prefixes of settings for the connector's clients, as far as the worker's override policy allows them."""

ISOLATION_KEY: Final = "plugin.isolation"
"""Not in Kafka.

``loader`` isolates a plugin's modules in the worker's process, ``process`` runs it in its own process.
"""

_Row = tuple[str, Type, object, Validator | None, Importance, str, int, Width, str, str]


def _rows(base: ConfigDef, rows: Iterable[_Row]) -> ConfigDef:
    """Add rows to ``base``.

    A row is key, type, default, validator, importance, group, order, width, display name and documentation.
    """
    definition = ConfigDef(base)
    for name, type_, default, validator, importance, group, order, width, display_name, doc in rows:
        definition.define(
            name,
            type_,
            default,
            validator,
            importance,
            doc,
            group=group,
            order=order,
            width=width,
            display_name=display_name,
        )
    return definition


def _converter_rows(part: str, order: int) -> tuple[_Row, _Row]:
    name, key = part.capitalize(), f"{part}.converter"
    what = "headers" if part == "header" else f"{part}s"
    return (
        (
            key,
            Type.CLASS,
            None,
            None,
            LOW,
            _COMMON,
            order,
            SHORT,
            f"{name} converter class",
            f"Class that turns {what} into bytes and back, or its alias; absent = the worker's converter with its settings.",
        ),
        (
            f"{key}.plugin.version",
            Type.STRING,
            None,
            PLUGIN_VERSION,
            LOW,
            _COMMON,
            order + 1,
            SHORT,
            f"{name} converter version",
            f"Version of the class at {key}: one version, a range such as [1.0,2.0), or latest; absent = the newest.",
        ),
    )


def _version_of(class_key: str) -> Recommender:
    return Recommender(lambda _name, _parsed: [], lambda _name, parsed: parsed.get(class_key) is not None)


CONNECTOR_CONFIG: Final = _rows(
    ConfigDef(),
    (
        (
            "name",
            Type.STRING,
            NO_DEFAULT,
            non_empty_without_control_characters(),
            HIGH,
            _COMMON,
            1,
            MID,
            "Connector name",
            "Name of the connector, unique in its Connect cluster.",
        ),
        (
            "connector.class",
            Type.STRING,
            NO_DEFAULT,
            None,
            HIGH,
            _COMMON,
            2,
            LONG,
            "Connector class",
            "Class of the connector, or its alias: the class name without its package, with or without Connector at its end.",
        ),
        (
            "connector.plugin.version",
            Type.STRING,
            None,
            PLUGIN_VERSION,
            MEDIUM,
            _COMMON,
            3,
            MID,
            "Connector version",
            "Version of that class: one version, a range such as [1.0,2.0), or latest; absent = the newest there is.",
        ),
        (
            "tasks.max",
            Type.INT,
            1,
            at_least(1),
            HIGH,
            _COMMON,
            4,
            SHORT,
            "Tasks max",
            "Maximum number of tasks of the connector.",
        ),
        (
            "tasks.max.enforce",
            Type.BOOLEAN,
            True,
            None,
            LOW,
            _COMMON,
            5,
            SHORT,
            "Enforce tasks max",
            "Deprecated. Whether a connector that generates more tasks than tasks.max fails; false = a warning is logged.",
        ),
        *_converter_rows("key", 6),
        *_converter_rows("value", 8),
        *_converter_rows("header", 10),
        (
            "transforms",
            Type.LIST,
            [],
            unique_aliases("transformation aliases"),
            LOW,
            _TRANSFORMS,
            12,
            LONG,
            "Transforms",
            "Names of the transformations applied to each record, in order; transforms.<name>.type is the class.",
        ),
        (
            "predicates",
            Type.LIST,
            [],
            unique_aliases("predicate aliases"),
            LOW,
            _PREDICATES,
            13,
            LONG,
            "Predicates",
            "Names of the predicates that transformations refer to; predicates.<name>.type is the class.",
        ),
        (
            "config.action.reload",
            Type.STRING,
            "restart",
            one_of("none", "restart"),
            LOW,
            _COMMON,
            14,
            MID,
            "Reload Action",
            "What happens when a value from a config provider expires: restart the connector, or none.",
        ),
        (
            "errors.retry.timeout",
            Type.LONG,
            0,
            None,
            MEDIUM,
            _ERRORS,
            1,
            MID,
            "Retry Timeout for Errors",
            "How long a failed operation is retried, in milliseconds; 0 = no retries, -1 = no limit.",
        ),
        (
            "errors.retry.delay.max.ms",
            Type.LONG,
            60000,
            None,
            MEDIUM,
            _ERRORS,
            2,
            MID,
            "Maximum Delay Between Retries for Errors",
            "Maximum delay between two retries, in milliseconds; delays grow exponentially up to it, with jitter.",
        ),
        (
            "errors.tolerance",
            Type.STRING,
            "none",
            one_of("none", "all"),
            MEDIUM,
            _ERRORS,
            3,
            SHORT,
            "Error Tolerance",
            "none = the first record that cannot be processed fails the task; all = such records are skipped.",
        ),
        (
            "errors.log.enable",
            Type.BOOLEAN,
            False,
            None,
            MEDIUM,
            _ERRORS,
            4,
            SHORT,
            "Log Errors",
            "Log each error; false = only errors that are not tolerated.",
        ),
        (
            "errors.log.include.messages",
            Type.BOOLEAN,
            False,
            None,
            MEDIUM,
            _ERRORS,
            5,
            SHORT,
            "Log Error Details",
            "Also log the topic, partition, offset and timestamp of the record.",
        ),
        (
            ISOLATION_KEY,
            Type.STRING,
            None,
            ISOLATION,
            LOW,
            _COMMON,
            15,
            SHORT,
            "Plugin isolation",
            "Not a Kafka key. loader = in the worker's process; process = in a separate process; absent = the worker's plugin.isolation.",
        ),
    ),
)
"""Keys of any connector."""

for _class_key in ("connector.class", "key.converter", "value.converter", "header.converter"):
    # A plugin.version key recommends versions of the plugin in its class key. As in Kafka, this also holds where a
    # connector declares all these keys itself.
    CONNECTOR_CONFIG.redefine(
        "connector.plugin.version" if _class_key == "connector.class" else f"{_class_key}.plugin.version",
        recommender=_version_of(_class_key),
    )

SOURCE_CONNECTOR_CONFIG: Final = _rows(
    CONNECTOR_CONFIG,
    (
        (
            "topic.creation.groups",
            Type.LIST,
            [],
            unique_aliases("topic creation groups"),
            LOW,
            _CREATION,
            1,
            LONG,
            "Topic Creation Groups",
            "Names of groups of topics that are created with the same settings; topic.creation.<name>.include selects the topics.",
        ),
        (
            "exactly.once.support",
            Type.STRING,
            "requested",
            one_of_any_case("REQUIRED", "REQUESTED"),
            MEDIUM,
            _EXACTLY_ONCE,
            2,
            SHORT,
            "Exactly once support",
            "required = the configuration is rejected unless the connector reports exactly-once support for it.",
        ),
        (
            "transaction.boundary",
            Type.STRING,
            "poll",
            one_of_any_case("INTERVAL", "POLL", "CONNECTOR"),
            MEDIUM,
            _EXACTLY_ONCE,
            3,
            SHORT,
            "Transaction Boundary",
            "What ends a transaction: each poll, an interval, or the connector.",
        ),
        (
            "transaction.boundary.interval.ms",
            Type.LONG,
            None,
            at_least(0, nullable=True),
            LOW,
            _EXACTLY_ONCE,
            4,
            SHORT,
            "Transaction boundary interval",
            "Milliseconds between transactions if the boundary is an interval; absent = offset.flush.interval.ms.",
        ),
        (
            "offsets.storage.topic",
            Type.STRING,
            None,
            non_empty(),
            LOW,
            _OFFSETS,
            1,
            LONG,
            "Offsets topic",
            "Separate topic for the offsets of this connector; absent = the worker's.",
        ),
    ),
)
"""Keys of a source connector."""

SINK_CONNECTOR_CONFIG: Final = _rows(
    CONNECTOR_CONFIG,
    (
        ("topics", Type.LIST, [], distinct(), HIGH, _COMMON, 4, LONG, "Topics", "Topics to read."),
        (
            "topics.regex",
            Type.STRING,
            "",
            regular_expression(),
            HIGH,
            _COMMON,
            4,
            LONG,
            "Topics regex",
            "Java regular expression for the names of topics to read; alternative to topics.",
        ),
        (
            "errors.deadletterqueue.topic.name",
            Type.STRING,
            "",
            None,
            MEDIUM,
            _ERRORS,
            6,
            MID,
            "Dead Letter Queue Topic Name",
            "Topic for records that cannot be processed; empty = no dead letter queue.",
        ),
        (
            "errors.deadletterqueue.topic.replication.factor",
            Type.SHORT,
            3,
            None,
            MEDIUM,
            _ERRORS,
            7,
            MID,
            "Dead Letter Queue Topic Replication Factor",
            "Replication factor of that topic if it is created.",
        ),
        (
            "errors.deadletterqueue.context.headers.enable",
            Type.BOOLEAN,
            False,
            None,
            MEDIUM,
            _ERRORS,
            8,
            MID,
            "Enable Error Context Headers",
            "Add headers with the prefix __connect.errors. that describe the error and its context.",
        ),
    ),
)
"""Keys of a sink connector."""

TOPIC_CREATION_PREFIX: Final = "topic.creation."
_DEFAULT_GROUP: Final = "default"


def source_connector_config(props: Mapping[str, str]) -> ConfigDef:
    """Build :data:`SOURCE_CONNECTOR_CONFIG` with the rows of the topic creation groups in ``props``.

    Any ``topic.creation.*`` key creates the group ``default``, whose partitions and replicas are then required. They
    are the defaults of the other groups.
    """
    definition = ConfigDef(SOURCE_CONNECTOR_CONFIG)
    named = split_list(props.get("topic.creation.groups") or "")
    # Duplicates are one error, that of the list.
    if len(set(named)) < len(named) or not any(key.startswith(TOPIC_CREATION_PREFIX) for key in props):
        return definition
    groups = [group for group in named if group != _DEFAULT_GROUP]
    for group in dict.fromkeys([_DEFAULT_GROUP, *groups]):
        # Kafka names the group of keys twice.
        name = group if group == _DEFAULT_GROUP else f"{_CREATION}: {group}"
        rows = _rows(ConfigDef(), _creation_rows(name, props, is_default=group == _DEFAULT_GROUP))
        definition.embed(f"{TOPIC_CREATION_PREFIX}{group}.", name, 0, rows, errors_in_full=True)
    return definition


def _creation_rows(name: str, props: Mapping[str, str], *, is_default: bool) -> list[_Row]:
    patterns = None if is_default else regular_expressions()

    def default(suffix: str) -> object:
        return NO_DEFAULT if is_default else props.get(f"{TOPIC_CREATION_PREFIX}{_DEFAULT_GROUP}.{suffix}", "-1")

    return [
        (
            "include",
            Type.LIST,
            [".*"] if is_default else [],
            patterns,
            LOW,
            name,
            0,
            LONG,
            f"Inclusion Topic Pattern for {name}",
            "Patterns of the names of topics that are created with these settings.",
        ),
        (
            "exclude",
            Type.LIST,
            [],
            patterns,
            LOW,
            name,
            1,
            LONG,
            f"Exclusion Topic Pattern for {name}",
            "Patterns of topic names that are excluded; takes precedence over include.",
        ),
        (
            "replication.factor",
            Type.SHORT,
            default("replication.factor"),
            REPLICATION_FACTOR,
            LOW,
            name,
            2,
            LONG,
            f"Replication Factor for Topics in {name}",
            "Replication factor of topics created with these settings; -1 = the broker's default.",
        ),
        (
            "partitions",
            Type.INT,
            default("partitions"),
            PARTITIONS,
            LOW,
            name,
            3,
            LONG,
            f"Partition Count for Topics in {name}",
            "Partitions of topics that are created so; -1 = the broker's default.",
        ),
    ]


def check_sink_topics(props: Mapping[str, str]) -> None:
    """Require exactly one of ``topics`` and ``topics.regex``. Raises :class:`ConfigException` with Kafka's text."""
    named, pattern = bool(split_list(props.get("topics", ""))), bool(props.get("topics.regex", "").strip())
    if named and pattern:
        raise ConfigException(
            "topics", props["topics"], "topics and topics.regex are mutually exclusive options, but both are set."
        )
    if not named and not pattern:
        raise ConfigException("topics", props.get("topics"), "Must configure one of topics or topics.regex")
