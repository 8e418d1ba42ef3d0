"""What a user interface may offer for the plugins of a connector (org.apache.kafka.connect.runtime.isolation.PluginsRecommenders)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from mm2.config.configdef import ConfigDef, Recommender
from mm2.connect.api import Connector, Converter, HeaderConverter
from mm2.connect.plugins.kinds import PluginType
from mm2.connect.plugins.registry import Plugins

_CONVERTERS: Final[Sequence[tuple[str, PluginType, type[Any]]]] = (
    ("key.converter", PluginType.CONVERTER, Converter),
    ("value.converter", PluginType.CONVERTER, Converter),
    ("header.converter", PluginType.HEADER_CONVERTER, HeaderConverter),
)


def with_recommendations(base: ConfigDef, plugins: Plugins) -> ConfigDef:
    """The keys of a connector, those that name converters and versions of plugins with the ones there are."""
    definition = ConfigDef(base)
    definition.redefine("connector.plugin.version", recommender=_versions(plugins, "connector.class", Connector))
    for key, type_, kind in _CONVERTERS:
        definition.redefine(key, recommender=_classes(plugins, type_))
        definition.redefine(f"{key}.plugin.version", recommender=_versions(plugins, key, kind))
    return definition


def _classes(plugins: Plugins, type_: PluginType) -> Recommender:
    def valid_values(_name: str, _parsed: Mapping[str, object]) -> list[object]:
        return list(dict.fromkeys(plugin.name for plugin in plugins.list(type_)))

    return Recommender(valid_values)


def _versions(plugins: Plugins, key: str, kind: type[Any]) -> Recommender:
    def valid_values(_name: str, parsed: Mapping[str, object]) -> list[object]:
        named = parsed.get(key)
        return [] if named is None else list(plugins.versions(str(named), kind))

    return Recommender(valid_values)
