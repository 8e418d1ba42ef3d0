"""The kinds of plugins (org.apache.kafka.connect.runtime.isolation.PluginType)."""

from __future__ import annotations

import importlib
from enum import Enum
from typing import Any


class PluginType(Enum):
    """A kind of plugin, in the order in which REST lists them; the member's value is the name that REST shows."""

    SINK = "sink"
    SOURCE = "source"
    TRANSFORMATION = "transformation"
    PREDICATE = "predicate"
    CONVERTER = "converter"
    HEADER_CONVERTER = "header_converter"
    CONFIGPROVIDER = "configprovider"
    REST_EXTENSION = "rest_extension"
    CONNECTOR_CLIENT_CONFIG_OVERRIDE_POLICY = "connector_client_config_override_policy"
    #: Not a plugin of its own, but its name is stored in task configurations.
    TASK = "task"

    @property
    def base(self) -> type[Any]:
        """The base class of plugins of this kind."""
        module, _, name = _BASES[self].partition(":")
        base: type[Any] = getattr(importlib.import_module(module), name)
        return base

    @property
    def suffix(self) -> str:
        """The suffix that the short alias of a class omits."""
        if self in {PluginType.SINK, PluginType.SOURCE}:
            return "Connector"
        return _BASES[self].partition(":")[2]

    @property
    def is_connector(self) -> bool:
        return self in {PluginType.SINK, PluginType.SOURCE}


_BASES = {
    PluginType.SINK: "mm2.connect.api:SinkConnector",
    PluginType.SOURCE: "mm2.connect.api:SourceConnector",
    PluginType.TRANSFORMATION: "mm2.connect.api:Transformation",
    PluginType.PREDICATE: "mm2.connect.api:Predicate",
    PluginType.CONVERTER: "mm2.connect.api:Converter",
    PluginType.HEADER_CONVERTER: "mm2.connect.api:HeaderConverter",
    PluginType.CONFIGPROVIDER: "mm2.config.providers:ConfigProvider",
    PluginType.REST_EXTENSION: "mm2.connect.rest.extensions:ConnectRestExtension",
    PluginType.CONNECTOR_CLIENT_CONFIG_OVERRIDE_POLICY: (
        "mm2.connect.override_policies:ConnectorClientConfigOverridePolicy"
    ),
    PluginType.TASK: "mm2.connect.api:Task",
}

LISTED = (
    PluginType.SINK,
    PluginType.SOURCE,
    PluginType.TRANSFORMATION,
    PluginType.PREDICATE,
    PluginType.CONVERTER,
    PluginType.HEADER_CONVERTER,
)
"""What ``GET /connector-plugins?connectorsOnly=false`` lists, in its order."""


def types_of(python_class: type[Any]) -> list[PluginType]:
    """The kinds of a class; a class may be a converter and a header converter at the same time."""
    found = []
    for type_ in PluginType:
        try:
            base = type_.base
        except ImportError:
            continue
        if issubclass(python_class, base):
            found.append(type_)
    return found
