"""What REST reports about installed plugins, and what a connector's keys that name plugins may be.

The latter is KIP-891's, Java's ``enrichedConfigDef``: the available plugins and versions, the worker's defaults, and a
check that the class exists.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mm2.codec import encode
from mm2.config.configdef import ConfigDef, ConfigException, Recommender
from mm2.config.definitions.config_infos import ConfigKeyInfo
from mm2.config.definitions.values import NoSuchClass
from mm2.config.definitions.versions import InvalidVersionRange, version_requirement
from mm2.config.keys.connector_keys import SINK_CONNECTOR_CONFIG, SOURCE_CONNECTOR_CONFIG
from mm2.connect.api import (
    ConnectError,
    Connector,
    Converter,
    HeaderConverter,
    Predicate,
    SinkConnector,
    SourceConnector,
    Transformation,
)
from mm2.connect.errors import BadRequest, NotFound
from mm2.connect.herder.answers import ConnectorType, PluginInfo
from mm2.connect.plugins.loader import PluginLoader
from mm2.connect.plugins.plugin import LISTED, PluginType
from mm2.connect.plugins.registry import ClassNotAllowed, PluginLoadError, Plugins, VersionedPluginError

_CONVERTERS: Final[Sequence[tuple[str, PluginType, type[Any]]]] = (
    ("key.converter", PluginType.CONVERTER, Converter),
    ("value.converter", PluginType.CONVERTER, Converter),
    ("header.converter", PluginType.HEADER_CONVERTER, HeaderConverter),
)


class PluginInfos:
    """Thread-safe. The kind of each connector class is looked up once."""

    def __init__(self, plugins: Plugins) -> None:
        self._plugins = plugins
        self._types: dict[tuple[str, str | None], ConnectorType] = {}

    def connector_type(self, props: Mapping[str, str | None]) -> ConnectorType:
        """Type of the connector with this configuration; UNKNOWN when this worker cannot load its class."""
        name, version = props.get("connector.class"), props.get("connector.plugin.version")
        if not name:
            return ConnectorType.UNKNOWN
        known = self._types.get((name, version))
        if known is not None:
            return known
        try:
            found = self._plugins.find(name, Connector, key="connector.class", version=version)
        except ConnectError:
            return ConnectorType.UNKNOWN
        type_ = ConnectorType.UNKNOWN
        if issubclass(found, SinkConnector):
            type_ = ConnectorType.SINK
        elif issubclass(found, SourceConnector):
            type_ = ConnectorType.SOURCE
        self._types[name, version] = type_
        return type_

    def all(self, *, connectors_only: bool) -> list[PluginInfo]:
        """See `Herder.connector_plugins`."""
        return [
            PluginInfo(plugin.name, type_.value, plugin.version)
            for type_ in LISTED
            if type_.is_connector or not connectors_only
            for plugin in self._plugins.list(type_)
        ]

    def config(self, name: str, version: str | None) -> list[dict[str, Any]]:
        """See `Herder.plugin_config`. Raises NotFound or BadRequest."""
        try:
            version_requirement(version)
        except InvalidVersionRange as error:
            raise BadRequest(f"{version} is neither a version nor a range of versions: {error}") from error
        kinds = (SinkConnector, SourceConnector, Converter, HeaderConverter, Transformation, Predicate)
        plugin: object = None
        # By kind, since an alias may match a connector and its task.
        for kind in (*kinds, object):
            with contextlib.suppress(ConnectError):
                plugin = self._plugins.new(name, kind, key="plugin", version=version)
                break
        if plugin is None:
            raise NotFound(f"Unknown plugin {name}.")
        if not isinstance(plugin, kinds):
            raise BadRequest(
                f"Invalid plugin class {name}. Valid types are sink, source, converter, header_converter, transformation, "
                "predicate."
            )
        with self._plugins.swap(self._plugins.loader_of(plugin)):
            definition = plugin.config()
        keys = dict(definition.keys) if definition is not None else {}
        if isinstance(plugin, Connector):
            base = SINK_CONNECTOR_CONFIG if isinstance(plugin, SinkConnector) else SOURCE_CONNECTOR_CONFIG
            keys.update({key: row for key, row in base.keys.items() if key not in keys})
        return [encode(ConfigKeyInfo.of(row)) for row in keys.values()]


@dataclass(frozen=True)
class _IsClass:
    """A validator: the class exists and is of the required kind. Messages are Kafka's."""

    plugins: Plugins
    kind: type[Any]
    loader: PluginLoader | None

    def ensure_valid(self, name: str, value: object) -> None:
        if value is None:
            return
        try:
            self.plugins.find(str(value), self.kind, key=name, loader=self.loader)
        except ConnectError as error:
            raise refusal(self.plugins, str(value), self.kind, name, self.loader, error) from error

    def __str__(self) -> str:
        return f"A concrete subclass of {self.kind.__name__}, A class with a public, no-argument constructor"


def refusal(
    plugins: Plugins, name: str, kind: type[Any], key: str, loader: PluginLoader | None, error: ConnectError
) -> ConfigException:
    """Kafka's validation message for the class ``name`` at ``key`` whose look-up failed with ``error``."""
    if isinstance(error, VersionedPluginError | ClassNotAllowed):
        return ConfigException(str(error))
    try:
        plugins.find(name, object, key=key, loader=loader)
    except PluginLoadError as failure:
        return ConfigException(key, name, str(failure))
    except ConnectError:
        return NoSuchClass(key, name, f"Class {name} could not be found.")
    return ConfigException(f"Class class {name} does not implement the {kind.__name__} interface")


def require_converters(plugins: Plugins, worker: Mapping[str, object]) -> None:
    """Raises ConfigException for a converter in a worker's typed settings that cannot be used."""
    for key, _, kind in _CONVERTERS:
        name, version = str(worker[key]), worker.get(f"{key}.plugin.version")
        try:
            plugins.find(name, kind, key=key, version=None if version is None else str(version))
        except ConnectError as error:
            raise refusal(plugins, name, kind, key, None, error) from error


def with_plugins(
    base: ConfigDef,
    plugins: Plugins,
    props: Mapping[str, str],
    worker: Mapping[str, object],
    loader: PluginLoader | None = None,
) -> ConfigDef:
    """The keys of a connector with the configuration ``props``, its converters' defaults included.

    ``worker`` contains the worker's typed settings; ``loader`` is the connector's. Converters are those that the
    connector names, otherwise the worker's, in the newest available version.
    """
    definition = ConfigDef(base)
    newest = plugins.versions(props.get("connector.class") or "", Connector)[::-1]
    definition.redefine(
        "connector.plugin.version",
        default=next(iter(newest), None),
        recommender=_versions(plugins, "connector.class", Connector),
    )
    for key, type_, kind in _CONVERTERS:
        default = _full_name(plugins, worker.get(key), kind, key)
        versions = plugins.versions(props.get(key) or default or "", kind)
        version = None if props.get(key) else worker.get(f"{key}.plugin.version")
        definition.redefine(
            key, default=default, validator=_IsClass(plugins, kind, loader), recommender=_classes(plugins, type_)
        )
        definition.redefine(
            f"{key}.plugin.version",
            default=version or next(iter(versions[::-1]), None),
            recommender=_versions(plugins, key, kind),
        )
    return definition


def _full_name(plugins: Plugins, name: object, kind: type[Any], key: str) -> str | None:
    if not isinstance(name, str) or not name:
        return None
    try:
        return plugins.plugin(name, kind, key=key).name
    except ConnectError:
        return name


def _classes(plugins: Plugins, type_: PluginType) -> Recommender:
    def valid_values(_name: str, _parsed: Mapping[str, object]) -> list[object]:
        return list(dict.fromkeys(plugin.name for plugin in plugins.list(type_)))

    return Recommender(valid_values)


def _versions(plugins: Plugins, key: str, kind: type[Any]) -> Recommender:
    def valid_values(_name: str, parsed: Mapping[str, object]) -> list[object]:
        named = parsed.get(key)
        return [] if named is None else list(plugins.versions(str(named), kind))

    return Recommender(valid_values, lambda _name, parsed: parsed.get(key) is not None)
