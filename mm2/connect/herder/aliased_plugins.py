"""The keys that transformations and predicates add to a connector's configuration (ConnectorConfig.enrich of Java)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mm2.config.configdef import ConfigDef, ConfigException, Importance, Recommender, Type, Width, split_list
from mm2.config.validators import PLUGIN_VERSION
from mm2.connect.api import ConnectError, Predicate, Transformation
from mm2.connect.plugins import Plugins
from mm2.connect.plugins.kinds import PluginType
from mm2.connect.plugins.loader import PluginLoader
from mm2.connect.plugins.recommended import refusal

#: Keys that every transformation has in addition to its own.
_STAGE: Final = (
    ConfigDef()
    .define(
        "predicate",
        Type.STRING,
        None,
        None,
        Importance.MEDIUM,
        "The alias of a predicate used to determine whether to apply this transformation.",
    )
    .define("negate", Type.BOOLEAN, False, None, Importance.MEDIUM, "Whether the configured predicate is negated.")
)


@dataclass(frozen=True)
class _Kind:
    """Whether the plugins are transformations or predicates."""

    key: str
    group: str
    base: type[Any]
    type: PluginType
    implicit: ConfigDef


_KINDS: Final = (
    _Kind("transforms", "Transforms", Transformation, PluginType.TRANSFORMATION, _STAGE),
    _Kind("predicates", "Predicates", Predicate, PluginType.PREDICATE, ConfigDef()),
)


@dataclass(frozen=True)
class _TypeValidator:
    """Validates the class of an alias by reading the keys that it defines."""

    check: Callable[[str, object], None]
    text: str

    def ensure_valid(self, name: str, value: object) -> None:
        """See Validator."""
        self.check(name, value)

    def __str__(self) -> str:
        return self.text


def with_aliased_plugins(
    base: ConfigDef, props: Mapping[str, str], plugins: Plugins, loader: PluginLoader | None
) -> ConfigDef:
    """``base`` and, for each alias in ``transforms`` and ``predicates``, its ``type`` and the keys of that class.

    A class that cannot be used is reported as an error of its ``type`` and adds no keys. Classes are looked up in the
    connector's ``loader`` first.
    """
    definition = ConfigDef(base)
    for kind in _KINDS:
        for alias in dict.fromkeys(split_list(props.get(kind.key) or "")):
            _embed(definition, kind, alias, props, plugins, loader)
    return definition


def _embed(
    definition: ConfigDef,
    kind: _Kind,
    alias: str,
    props: Mapping[str, str],
    plugins: Plugins,
    loader: PluginLoader | None,
) -> None:
    prefix, group, name = f"{kind.key}.{alias}.", f"{kind.group}: {alias}", kind.base.__name__
    type_key, version_key = f"{prefix}type", f"{prefix}plugin.version"

    def keys_of(class_name: str) -> ConfigDef:
        version = props.get(version_key)
        try:
            plugin = plugins.new(class_name, kind.base, key=type_key, version=version, loader=loader)
            with plugins.swap(plugins.loader_of(plugin)):
                found = plugin.config()
        except ConnectError as error:
            raise refusal(plugins, class_name, kind.base, type_key, loader, error) from error
        except Exception as error:
            raise ConfigException(
                type_key, class_name, f"Error getting config definition from {name}: {error}"
            ) from error
        if not isinstance(found, ConfigDef):
            raise ConfigException(type_key, class_name, f"{name} {class_name} gives no config definition")
        return found

    def check(_key: str, value: object) -> None:
        negate, predicate = f"{prefix}negate", f"{prefix}predicate"
        if kind.base is Transformation and negate in props and predicate not in props:
            raise ConfigException(
                f"Config '{negate}' was provided but there is no config '{predicate}' defining a predicate to be negated."
            )
        if value is not None:
            keys_of(str(value))

    def versions() -> Sequence[str]:
        return plugins.versions(str(props.get(type_key) or ""), kind.base)

    if type_key in definition:  # a key of the connector with the same name
        return
    definition.define(
        type_key,
        Type.CLASS,
        validator=_TypeValidator(check, f"valid configs for {alias} {name.lower()}"),
        importance=Importance.HIGH,
        doc=f"Class for the '{alias}' {name.lower()}.",
        group=group,
        order=0,
        width=Width.LONG,
        display_name=f"{name} type for {alias}",
        recommender=Recommender(lambda _name, _parsed: [plugin.name for plugin in plugins.list(kind.type)]),
    )
    definition.define(
        version_key,
        Type.STRING,
        next(iter(versions()[::-1]), None),
        PLUGIN_VERSION,
        Importance.HIGH,
        f"Version of the '{alias}' {name.lower()}.",
        group=group,
        order=1,
        width=Width.LONG,
        display_name=f"{name} version for {alias}",
        recommender=Recommender(lambda _name, _parsed: list(versions())),
    )
    try:
        own = keys_of(props.get(type_key) or "")
    except ConfigException:
        return
    rows = ConfigDef(own)
    for row in kind.implicit.keys.values():
        if row.name not in rows:
            rows.include(kind.implicit.only([row.name]))
    definition.embed(prefix, group, 2, rows)
