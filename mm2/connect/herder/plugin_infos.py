"""What REST reports about installed plugins: names, kinds and configuration keys."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from mm2.config.config_infos import ConfigKeyInfo
from mm2.config.connector_keys import SINK_CONNECTOR_CONFIG, SOURCE_CONNECTOR_CONFIG
from mm2.config.versions import InvalidVersionRange, version_requirement
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
from mm2.connect.plugins import Plugins
from mm2.connect.plugins.plugin import LISTED


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
        return [ConfigKeyInfo.of(row).as_json() for row in keys.values()]
