"""Settings every connector has (spec connect §E.2; Kafka's ``ConnectorConfig`` and its source and sink forms, 4.3.0)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mm2.config.configdef import (
    ConfigDef,
    ConfigException,
    Importance,
    Type,
    at_least,
    distinct,
    non_empty,
    one_of,
    one_of_any_case,
    split_list,
)
from mm2.config.validators import (
    PARTITIONS,
    REPLICATION_FACTOR,
    non_empty_without_control_characters,
    regular_expression,
    unique_aliases,
)

HIGH, MEDIUM, LOW = Importance.HIGH, Importance.MEDIUM, Importance.LOW
_COMMON, _ERRORS, _TRANSFORMS, _PREDICATES = "Common", "Error Handling", "Transforms", "Predicates"
_CREATION, _EXACTLY_ONCE, _OFFSETS = "Topic Creation", "Exactly Once Support", "offsets.topic"

CLIENT_OVERRIDE_PREFIXES: Final = ("producer.override.", "consumer.override.", "admin.override.")
"""What follows these goes to the connector's clients, as far as the worker's override policy lets it."""

CONNECTOR_CONFIG: Final = (
    ConfigDef()
    .define(
        "name",
        Type.STRING,
        validator=non_empty_without_control_characters(),
        importance=HIGH,
        doc="Name of the connector, unique in its Connect cluster.",
        group=_COMMON,
    )
    .define("connector.class", Type.STRING, importance=HIGH, doc="Class of the connector, or its alias.", group=_COMMON)
    .define(
        "connector.plugin.version", Type.STRING, None, None, MEDIUM, "Version or range of the class.", group=_COMMON
    )
    .define("tasks.max", Type.INT, 1, at_least(1), HIGH, "Most tasks to cut the work into.", group=_COMMON)
    .define("tasks.max.enforce", Type.BOOLEAN, True, None, LOW, "Refuse more tasks than that.", group=_COMMON)
    .define("key.converter", Type.CLASS, None, None, LOW, "Converter of keys; absent = the worker's.", group=_COMMON)
    .define("key.converter.plugin.version", Type.STRING, None, None, LOW, "Version of it.", group=_COMMON)
    .define(
        "value.converter", Type.CLASS, None, None, LOW, "Converter of values; absent = the worker's.", group=_COMMON
    )
    .define("value.converter.plugin.version", Type.STRING, None, None, LOW, "Version of it.", group=_COMMON)
    .define(
        "header.converter", Type.CLASS, None, None, LOW, "Converter of headers; absent = the worker's.", group=_COMMON
    )
    .define("header.converter.plugin.version", Type.STRING, None, None, LOW, "Version of it.", group=_COMMON)
    .define(
        "transforms",
        Type.LIST,
        [],
        unique_aliases("transformation aliases"),
        LOW,
        "Names of transformations, in order.",
        group=_TRANSFORMS,
    )
    .define(
        "predicates",
        Type.LIST,
        [],
        unique_aliases("predicate aliases"),
        LOW,
        "Names of predicates for transformations.",
        group=_PREDICATES,
    )
    .define(
        "config.action.reload",
        Type.STRING,
        "restart",
        one_of("none", "restart"),
        LOW,
        "What to do when a value from a config provider expires.",
        group=_COMMON,
    )
    .define(
        "errors.retry.timeout",
        Type.LONG,
        0,
        None,
        MEDIUM,
        "How long a failed step is repeated, milliseconds; -1 = for ever.",
        group=_ERRORS,
    )
    .define(
        "errors.retry.delay.max.ms", Type.LONG, 60000, None, MEDIUM, "Longest pause between repetitions.", group=_ERRORS
    )
    .define(
        "errors.tolerance",
        Type.STRING,
        "none",
        one_of("none", "all"),
        MEDIUM,
        "none = the first bad record fails the task; all = bad records are skipped.",
        group=_ERRORS,
    )
    .define("errors.log.enable", Type.BOOLEAN, False, None, MEDIUM, "Log every bad record.", group=_ERRORS)
    .define("errors.log.include.messages", Type.BOOLEAN, False, None, MEDIUM, "Log what the record was.", group=_ERRORS)
)
"""Keys of any connector."""

SOURCE_CONNECTOR_CONFIG: Final = (
    ConfigDef(CONNECTOR_CONFIG)
    .define(
        "topic.creation.groups",
        Type.LIST,
        [],
        unique_aliases("topic creation groups"),
        LOW,
        "Names of groups of topics that are created alike.",
        group=_CREATION,
    )
    .define(
        "exactly.once.support",
        Type.STRING,
        "requested",
        one_of_any_case("REQUIRED", "REQUESTED"),
        MEDIUM,
        "required = refuse to start when the connector cannot do exactly-once.",
        group=_EXACTLY_ONCE,
    )
    .define(
        "transaction.boundary",
        Type.STRING,
        "poll",
        one_of_any_case("INTERVAL", "POLL", "CONNECTOR"),
        MEDIUM,
        "What ends a transaction: a poll, an interval, or the connector.",
        group=_EXACTLY_ONCE,
    )
    .define(
        "transaction.boundary.interval.ms",
        Type.LONG,
        None,
        at_least(0, nullable=True),
        LOW,
        "That interval; absent = offset.flush.interval.ms.",
        group=_EXACTLY_ONCE,
    )
    .define("offsets.storage.topic", Type.STRING, None, non_empty(), LOW, "Own topic for offsets.", group=_OFFSETS)
)
"""Keys of a source connector."""

SINK_CONNECTOR_CONFIG: Final = (
    ConfigDef(CONNECTOR_CONFIG)
    .define("topics", Type.LIST, [], distinct(), HIGH, "Topics to read.", group=_COMMON)
    .define("topics.regex", Type.STRING, "", regular_expression(), HIGH, "Pattern of topics to read.", group=_COMMON)
    .define("errors.deadletterqueue.topic.name", Type.STRING, "", None, MEDIUM, "Topic for bad records.", group=_ERRORS)
    .define(
        "errors.deadletterqueue.topic.replication.factor", Type.SHORT, 3, None, MEDIUM, "Replicas of it.", group=_ERRORS
    )
    .define(
        "errors.deadletterqueue.context.headers.enable",
        Type.BOOLEAN,
        False,
        None,
        MEDIUM,
        "Tell in headers what went wrong.",
        group=_ERRORS,
    )
)
"""Keys of a sink connector."""

TOPIC_CREATION_PREFIX: Final = "topic.creation."
_DEFAULT_GROUP: Final = "default"


def source_connector_config(props: Mapping[str, str]) -> ConfigDef:
    """:data:`SOURCE_CONNECTOR_CONFIG` and the rows of the topic creation groups that ``props`` ask for.

    Any ``topic.creation.*`` key makes the group ``default`` exist, whose partitions and replicas are then required; the
    other groups fall back on them.
    """
    definition = ConfigDef(SOURCE_CONNECTOR_CONFIG)
    if not any(key.startswith(TOPIC_CREATION_PREFIX) for key in props):
        return definition
    groups = [group for group in split_list(props.get("topic.creation.groups") or "") if group != _DEFAULT_GROUP]
    for group in dict.fromkeys([_DEFAULT_GROUP, *groups]):
        prefix = f"{TOPIC_CREATION_PREFIX}{group}."
        is_default = group == _DEFAULT_GROUP
        definition.define(f"{prefix}include", Type.LIST, [".*"] if is_default else [], None, LOW, "Patterns of topics.")
        definition.define(f"{prefix}exclude", Type.LIST, [], None, LOW, "Patterns of topics left out.")
        for suffix, type_, validator in (
            ("replication.factor", Type.SHORT, REPLICATION_FACTOR),
            ("partitions", Type.INT, PARTITIONS),
        ):
            if is_default:
                definition.define(prefix + suffix, type_, validator=validator, doc="Of topics that are created.")
            else:
                fallback = props.get(f"{TOPIC_CREATION_PREFIX}{_DEFAULT_GROUP}.{suffix}", "-1")
                definition.define(prefix + suffix, type_, fallback, validator, LOW, "Of topics that are created.")
    return definition


def check_sink_topics(props: Mapping[str, str]) -> None:
    """Exactly one of ``topics`` and ``topics.regex``. Raises :class:`ConfigException` with Kafka's text."""
    named, pattern = bool(split_list(props.get("topics", ""))), bool(props.get("topics.regex", "").strip())
    if named and pattern:
        raise ConfigException(
            "topics", props["topics"], "topics and topics.regex are mutually exclusive options, but both are set."
        )
    if not named and not pattern:
        raise ConfigException("topics", props.get("topics"), "Must configure one of topics or topics.regex")
