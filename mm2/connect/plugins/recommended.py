"""The keys of a connector that name plugins, with what only a registry knows (KIP-891; Java's ``enrichedConfigDef``): which there
are, in which versions, which the worker has by default, and whether a class is there at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mm2.config.configdef import ConfigDef, ConfigException, Recommender
from mm2.connect.api import ConnectError, Connector, Converter, HeaderConverter
from mm2.connect.plugins.kinds import PluginType
from mm2.connect.plugins.loader import PluginLoader
from mm2.connect.plugins.registry import Plugins

_CONVERTERS: Final[Sequence[tuple[str, PluginType, type[Any]]]] = (
    ("key.converter", PluginType.CONVERTER, Converter),
    ("value.converter", PluginType.CONVERTER, Converter),
    ("header.converter", PluginType.HEADER_CONVERTER, HeaderConverter),
)


@dataclass(frozen=True)
class _IsClass:
    """A validator: the class is there, and is what it has to be. Texts are Kafka's."""

    plugins: Plugins
    kind: type[Any]
    loader: PluginLoader | None

    def ensure_valid(self, name: str, value: object) -> None:
        if value is None:
            return
        text = str(value)
        try:
            self.plugins.find(text, self.kind, key=name, loader=self.loader)
        except ConnectError as error:
            if not self._exists(text, name):
                raise ConfigException(name, text, f"Class {text} could not be found.") from error
            if not self._loads(text, name):
                raise ConfigException(name, text, str(error)) from error
            raise ConfigException(
                f"Class class {text} does not implement the {self.kind.__name__} interface"
            ) from error

    def _exists(self, text: str, name: str) -> bool:
        try:
            self.plugins.plugin(text, object, key=name, loader=self.loader)
        except ConnectError as error:
            return "could not be loaded" in str(error)
        return True

    def _loads(self, text: str, name: str) -> bool:
        try:
            self.plugins.find(text, object, key=name, loader=self.loader)
        except ConnectError:
            return False
        return True

    def __str__(self) -> str:
        return f"A concrete subclass of {self.kind.__name__}, A class with a public, no-argument constructor"


def with_plugins(
    base: ConfigDef,
    plugins: Plugins,
    props: Mapping[str, str],
    worker: Mapping[str, object],
    loader: PluginLoader | None = None,
) -> ConfigDef:
    """The keys of a connector for its configuration ``props``, where ``worker`` has the worker's typed settings and ``loader``
    is the connector's: converters are those that the connector names, else the worker's, in the newest version there is.
    """
    definition = ConfigDef(base)
    definition.redefine("connector.plugin.version", recommender=_versions(plugins, "connector.class", Connector))
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

    return Recommender(valid_values)
