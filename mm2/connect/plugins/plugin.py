"""The kinds of plugins, and one plugin in the registry (PluginType and PluginDesc of Java)."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from mm2.config.definitions.versions import Version
from mm2.connect.plugins.loader import PluginLoader, loader_of, swap


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
    #: Of the mirror connectors; Java finds these on the class path of the connectors only.
    REPLICATION_POLICY = "replication_policy"
    TOPIC_FILTER = "topic_filter"
    GROUP_FILTER = "group_filter"
    CONFIG_PROPERTY_FILTER = "config_property_filter"
    FORWARDING_ADMIN = "forwarding_admin"
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
    PluginType.REPLICATION_POLICY: "mm2.mirror.policy:ReplicationPolicy",
    PluginType.TOPIC_FILTER: "mm2.mirror.filters:TopicFilter",
    PluginType.GROUP_FILTER: "mm2.mirror.filters:GroupFilter",
    PluginType.CONFIG_PROPERTY_FILTER: "mm2.mirror.filters:ConfigPropertyFilter",
    PluginType.FORWARDING_ADMIN: "mm2.kafka.admin:Admin",
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


UNDEFINED = "undefined"
"""Version of a plugin that reports none."""
CLASSPATH = "classpath"
"""Location of plugins that are part of the worker or of its environment."""


@dataclass
class Plugin:
    """A class under the name that configurations use; it may not be loaded yet.

    ``kind`` is the base class for look-ups. ``path`` is its dotted path ``module:Class``. ``needs_process``: the reason
    why the plugin can run only in its own process.
    """

    name: str
    kind: type[Any] = field(repr=False)
    path: str
    loader: PluginLoader | None = None
    location: str = CLASSPATH
    types: tuple[PluginType, ...] = ()
    built_in: bool = False
    needs_process: str | None = None
    _class: type[Any] | None = field(default=None, repr=False)
    #: The version that the plugin reports; None: not queried yet.
    told_version: str | None = field(default=None, repr=False)

    @classmethod
    def of_class(cls, name: str, python_class: type[Any], kind: type[Any]) -> Plugin:
        """A class that is already loaded."""
        loader = loader_of(python_class)
        path = f"{python_class.__module__}:{python_class.__qualname__}"
        types = tuple(types_of(python_class))
        location = CLASSPATH if loader is None else str(loader.location)
        return cls(name, kind, path, loader=loader, location=location, types=types, _class=python_class)

    @property
    def python_class(self) -> type[Any]:
        """The class. Raises the errors of importing its module, and AttributeError when the class is missing."""
        if self._class is None:
            self._class = self._load()
        return self._class

    def _load(self) -> type[Any]:
        if self.loader is not None:
            return self.loader.load_class(self.path)
        module_name, _, attribute = self.path.partition(":")
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
        if not isinstance(found, type):
            raise TypeError(f"{self.path} is not a class")
        return found

    @property
    def version(self) -> str:
        """The version of an instance, or of the class when instances have none; "undefined" when that fails."""
        if self.told_version is None:
            self.told_version = version_of(self.python_class, self.loader)
        return self.told_version

    @property
    def order(self) -> tuple[Version, bool]:
        """The newest plugin of a name is used; among equal versions the one in ``plugin.path``."""
        return Version(self.version), self.loader is not None

    @property
    def simple_name(self) -> str:
        """The name without its package; as in Java, nested classes are without their outer class."""
        return self.name.rsplit(".", 1)[-1].rsplit("$", 1)[-1]

    @property
    def aliases(self) -> tuple[str, ...]:
        """Short names: the simple name first, then without the suffix of its kinds."""
        simple = self.simple_name
        suffixes = dict.fromkeys(type_.suffix for type_ in self.types)
        pruned = [simple[:place] for suffix in suffixes if (place := simple.rfind(suffix)) > 0]
        return tuple(dict.fromkeys([simple, *pruned]))


def version_of(python_class: type[Any], loader: PluginLoader | None) -> str:
    """The version of a plugin class, from a temporary instance, as in Java."""
    method: Callable[..., Any] | None = getattr(python_class, "version", None)
    if method is None:
        return UNDEFINED
    try:
        with swap(loader):
            version = python_class().version()
    except Exception:  # noqa: BLE001 - a plugin without a version is still listed
        return UNDEFINED
    return version if isinstance(version, str) and version else UNDEFINED
