"""The plugins that ship with Kafka 4.3.0, under Java's names, and the classes that implement them.

Classes are imported on first use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mm2.connect.plugins.plugin import Plugin, PluginType

_CONNECT: Final = "org.apache.kafka.connect"
_BOTH_CONVERTERS: Final = (PluginType.CONVERTER, PluginType.HEADER_CONVERTER)

_CONVERTERS: Final = {
    f"{_CONNECT}.converters.BooleanConverter": "mm2.connect.converters:BooleanConverter",
    f"{_CONNECT}.converters.ByteArrayConverter": "mm2.connect.converters:ByteArrayConverter",
    f"{_CONNECT}.converters.DoubleConverter": "mm2.connect.converters:DoubleConverter",
    f"{_CONNECT}.converters.FloatConverter": "mm2.connect.converters:FloatConverter",
    f"{_CONNECT}.converters.IntegerConverter": "mm2.connect.converters:IntegerConverter",
    f"{_CONNECT}.converters.LongConverter": "mm2.connect.converters:LongConverter",
    f"{_CONNECT}.converters.ShortConverter": "mm2.connect.converters:ShortConverter",
    f"{_CONNECT}.json.JsonConverter": "mm2.connect.converters:JsonConverter",
    f"{_CONNECT}.storage.StringConverter": "mm2.connect.converters:StringConverter",
}
_HEADER_CONVERTERS: Final = {
    f"{_CONNECT}.storage.SimpleHeaderConverter": "mm2.connect.converters:SimpleHeaderConverter",
}
_OF_KEY_AND_VALUE: Final = (
    "Cast",
    "ExtractField",
    "Flatten",
    "HeaderFrom",
    "HoistField",
    "InsertField",
    "MaskField",
    "ReplaceField",
    "SetSchemaMetadata",
    "TimestampConverter",
)
_TRANSFORMATIONS: Final = {
    f"{_CONNECT}.transforms.{name}": f"mm2.connect.transforms:{name}"
    for name in ("DropHeaders", "Filter", "InsertHeader", "RegexRouter", "TimestampRouter", "ValueToKey")
} | {
    f"{_CONNECT}.transforms.{name}${part}": f"mm2.connect.transforms:{name}{part}"
    for name in _OF_KEY_AND_VALUE
    for part in ("Key", "Value")
}
_PREDICATES: Final = {
    f"{_CONNECT}.transforms.predicates.{name}": f"mm2.connect.predicates:{name}"
    for name in ("HasHeaderKey", "RecordIsTombstone", "TopicNameMatches")
}
_SOURCES: Final = {
    f"{_CONNECT}.mirror.MirrorCheckpointConnector": "mm2.mirror.checkpoint_connector:MirrorCheckpointConnector",
    f"{_CONNECT}.mirror.MirrorHeartbeatConnector": "mm2.mirror.heartbeat:MirrorHeartbeatConnector",
    f"{_CONNECT}.mirror.MirrorSourceConnector": "mm2.mirror.source_connector:MirrorSourceConnector",
    f"{_CONNECT}.tools.MockSourceConnector": "mm2.connect.verifiable:MockSourceConnector",
    f"{_CONNECT}.tools.SchemaSourceConnector": "mm2.connect.verifiable:SchemaSourceConnector",
    f"{_CONNECT}.tools.VerifiableSourceConnector": "mm2.connect.verifiable:VerifiableSourceConnector",
}
_SINKS: Final = {
    f"{_CONNECT}.tools.MockSinkConnector": "mm2.connect.verifiable:MockSinkConnector",
    f"{_CONNECT}.tools.VerifiableSinkConnector": "mm2.connect.verifiable:VerifiableSinkConnector",
}
_TASKS: Final = {
    f"{_CONNECT}.mirror.MirrorCheckpointTask": "mm2.mirror.checkpoint_task:MirrorCheckpointTask",
    f"{_CONNECT}.mirror.MirrorHeartbeatTask": "mm2.mirror.heartbeat:MirrorHeartbeatTask",
    f"{_CONNECT}.mirror.MirrorSourceTask": "mm2.mirror.source_task:MirrorSourceTask",
    f"{_CONNECT}.tools.MockSinkTask": "mm2.connect.verifiable:MockSinkTask",
    f"{_CONNECT}.tools.MockSourceTask": "mm2.connect.verifiable:MockSourceTask",
    f"{_CONNECT}.tools.SchemaSourceTask": "mm2.connect.verifiable:SchemaSourceTask",
    f"{_CONNECT}.tools.VerifiableSinkTask": "mm2.connect.verifiable:VerifiableSinkTask",
    f"{_CONNECT}.tools.VerifiableSourceTask": "mm2.connect.verifiable:VerifiableSourceTask",
}
_PROVIDERS: Final = {
    f"org.apache.kafka.common.config.provider.{name}": f"mm2.config.providers:{name}"
    for name in ("DirectoryConfigProvider", "EnvVarConfigProvider", "FileConfigProvider")
}
_POLICIES: Final = {
    f"{_CONNECT}.connector.policy.{name}ConnectorClientConfigOverridePolicy": (
        f"mm2.connect.override_policies:{name}ConnectorClientConfigOverridePolicy"
    )
    for name in ("All", "Allowlist", "None", "Principal")
}
_EXTENSIONS: Final = {
    f"{_CONNECT}.rest.basic.auth.extension.BasicAuthSecurityRestExtension": (
        "mm2.connect.rest.basic_auth:BasicAuthSecurityRestExtension"
    ),
}
_MIRROR_CLASSES: Final = {
    PluginType.REPLICATION_POLICY: {
        f"{_CONNECT}.mirror.{name}": f"mm2.mirror.policy:{name}"
        for name in ("DefaultReplicationPolicy", "IdentityReplicationPolicy")
    },
    PluginType.TOPIC_FILTER: {f"{_CONNECT}.mirror.DefaultTopicFilter": "mm2.mirror.filters:DefaultTopicFilter"},
    PluginType.GROUP_FILTER: {f"{_CONNECT}.mirror.DefaultGroupFilter": "mm2.mirror.filters:DefaultGroupFilter"},
    PluginType.CONFIG_PROPERTY_FILTER: {
        f"{_CONNECT}.mirror.DefaultConfigPropertyFilter": "mm2.mirror.filters:DefaultConfigPropertyFilter"
    },
    PluginType.FORWARDING_ADMIN: {"org.apache.kafka.clients.admin.ForwardingAdmin": "mm2.kafka.admin:Admin"},
}


# In Kafka, the file connectors are not in the class path: they read and write files with the worker's rights
# (KAFKA-13748).
_FILE_SOURCES: Final = {
    f"{_CONNECT}.file.FileStreamSourceConnector": "mm2.connect.files:FileStreamSourceConnector",
}
_FILE_SINKS: Final = {
    f"{_CONNECT}.file.FileStreamSinkConnector": "mm2.connect.files:FileStreamSinkConnector",
}
_FILE_TASKS: Final = {
    f"{_CONNECT}.file.FileStreamSinkTask": "mm2.connect.files:FileStreamSinkTask",
    f"{_CONNECT}.file.FileStreamSourceTask": "mm2.connect.files:FileStreamSourceTask",
}
FILES_HINT: Final = "the file connectors are not loaded by default, as in Kafka (KAFKA-13748): add connect-file-4.3.0.jar to plugin.path"

_Table = tuple[Mapping[str, str], tuple[PluginType, ...]]


def built_in() -> list[Plugin]:
    """Registry entries for the plugins that every worker has."""
    return _entries(
        (_SINKS, (PluginType.SINK,)),
        (_SOURCES, (PluginType.SOURCE,)),
        (_TASKS, (PluginType.TASK,)),
        (_CONVERTERS, _BOTH_CONVERTERS),
        (_HEADER_CONVERTERS, (PluginType.HEADER_CONVERTER,)),
        (_TRANSFORMATIONS, (PluginType.TRANSFORMATION,)),
        (_PREDICATES, (PluginType.PREDICATE,)),
        (_PROVIDERS, (PluginType.CONFIGPROVIDER,)),
        (_POLICIES, (PluginType.CONNECTOR_CLIENT_CONFIG_OVERRIDE_POLICY,)),
        (_EXTENSIONS, (PluginType.REST_EXTENSION,)),
        *((table, (type_,)) for type_, table in _MIRROR_CLASSES.items()),
    )


def file_plugins() -> list[Plugin]:
    """Registry entries for the file connectors, which a worker has if ``plugin.path`` names Kafka's archive of them."""
    return _entries(
        (_FILE_SINKS, (PluginType.SINK,)),
        (_FILE_SOURCES, (PluginType.SOURCE,)),
        (_FILE_TASKS, (PluginType.TASK,)),
    )


def names_of_files() -> frozenset[str]:
    """The names and aliases of the file connectors and their tasks."""
    return frozenset(name for plugin in file_plugins() for name in (plugin.name, *plugin.aliases))


def _entries(*tables: _Table) -> list[Plugin]:
    return [
        Plugin(name, types[0].base, path, types=types, built_in=True)
        for table, types in tables
        for name, path in table.items()
    ]
