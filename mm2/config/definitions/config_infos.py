"""Response of ``PUT …/config/validate`` (Kafka's ``ConfigInfos`` 4.3.0).

As in Kafka, all values are text: numbers, booleans, lists joined by commas, and passwords as ``[hidden]``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mm2.config.definitions.config_key import ConfigKey
from mm2.config.definitions.values import ConfigType, Password, show


@dataclass
class ConfigValue:
    """Validation result of one key: the typed value (``None`` when it is invalid), recommended values, and errors."""

    name: str
    value: object
    recommended_values: list[object] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    visible: bool = True


def shown(value: object, type_: ConfigType | None) -> str | None:
    """A typed value as text for responses; ``None`` stays ``None``."""
    if value is None:
        return None
    if type_ is ConfigType.LIST and isinstance(value, list | tuple):
        return ",".join(map(show, value))
    return show(value)


@dataclass(frozen=True)
class ConfigKeyInfo:
    """Definition of a key in a REST response."""

    name: str
    type: str
    required: bool
    default_value: str | None
    importance: str
    documentation: str
    group: str | None
    order_in_group: int
    width: str
    display_name: str
    dependents: tuple[str, ...]

    @classmethod
    def of(cls, key: ConfigKey) -> ConfigKeyInfo:
        return cls(
            name=key.name,
            type=key.type.value,
            required=key.required,
            default_value=None if key.required else shown(key.default, key.type),
            importance=key.importance.value,
            documentation=key.documentation,
            group=key.group,
            order_in_group=key.order,
            width=key.width.value,
            display_name=key.display_name,
            dependents=key.dependents,
        )


@dataclass(frozen=True)
class ConfigValueInfo:
    """Value of a key in a REST response."""

    name: str
    value: str | None
    recommended_values: tuple[str | None, ...] = ()
    errors: tuple[str, ...] = ()
    visible: bool = True

    @classmethod
    def of(cls, value: ConfigValue, type_: ConfigType | None) -> ConfigValueInfo:
        """``type_`` is that of the key's definition, ``None`` when there is none."""
        item = ConfigType.STRING if type_ is ConfigType.LIST else type_
        return cls(
            name=value.name,
            value=shown(value.value, type_),
            recommended_values=tuple(shown(recommended, item) for recommended in value.recommended_values),
            errors=tuple(value.errors),
            visible=value.visible,
        )

    def hidden(self, written: Callable[[str], str | None], hide: Callable[[str], str]) -> ConfigValueInfo:
        """See :meth:`ConfigInfos.hidden`; passwords stay ``[hidden]``."""
        value, reference = self.value, written(self.name)
        if value is not None and value != Password.HIDDEN:
            value = hide(value) if reference is None else reference
        return replace(
            self,
            value=value,
            recommended_values=tuple(None if one is None else hide(one) for one in self.recommended_values),
            errors=tuple(map(hide, self.errors)),
        )


@dataclass(frozen=True)
class ConfigInfo:
    """Definition and value of one key. Without a definition: an error about an unknown key."""

    definition: ConfigKeyInfo | None
    value: ConfigValueInfo | None


@dataclass(frozen=True)
class ConfigInfos:
    """The whole response. ``name`` is the connector's class."""

    name: str
    error_count: int
    groups: tuple[str, ...] = ()
    configs: tuple[ConfigInfo, ...] = ()

    @classmethod
    def of(
        cls,
        name: str,
        keys: Mapping[str, ConfigKey],
        values: Iterable[ConfigValue],
        groups: Sequence[str] | None = None,
    ) -> ConfigInfos:
        """Combine values with their definitions: first values without one, then all keys in the order of definition.

        ``groups`` are by default those of the keys, each once, in the order of definition.
        """
        all_values = list(values)
        by_name = {value.name: value for value in all_values}
        if groups is None:
            groups = list(dict.fromkeys(key.group for key in keys.values() if key.group is not None))
        undefined = [value for value in all_values if value.name not in keys]
        defined = [
            ConfigInfo(
                ConfigKeyInfo.of(key),
                ConfigValueInfo.of(by_name[key_name], key.type) if key_name in by_name else None,
            )
            for key_name, key in keys.items()
        ]
        known = [value for key_name, value in by_name.items() if key_name in keys]
        return cls(
            name,
            sum(len(value.errors) for value in (*undefined, *known)),
            tuple(groups),
            (*(ConfigInfo(None, ConfigValueInfo.of(value, None)) for value in undefined), *defined),
        )

    @classmethod
    def together(cls, name: str, parts: Iterable[ConfigInfos]) -> ConfigInfos:
        """Merge several responses (Kafka's ``mergeConfigInfos``): each group once, keys in the order of the parts."""
        infos = list(parts)
        return cls(
            name,
            sum(part.error_count for part in infos),
            tuple(dict.fromkeys(group for part in infos for group in part.groups)),
            tuple(config for part in infos for config in part.configs),
        )

    @classmethod
    def under_prefix(cls, keys: Mapping[str, ConfigKey], values: Iterable[ConfigValue], prefix: str) -> ConfigInfos:
        """The keys of a converter or a client, with their ``prefix`` in a connector's configuration.

        Contains only the given ``values``, in their order. As in Kafka, ``error_count`` counts keys with errors here,
        not errors.
        """
        infos = []
        groups: dict[str, None] = {}
        for value in values:
            key = keys.get(value.name)
            definition = None
            if key is not None:
                definition = replace(ConfigKeyInfo.of(key), name=prefix + key.name)
                if key.group is not None:
                    groups[key.group] = None
            renamed = ConfigValue(prefix + value.name, value.value, value.recommended_values, value.errors)
            infos.append(ConfigInfo(definition, ConfigValueInfo.of(renamed, None if key is None else key.type)))
        return cls("", sum(1 for info in infos if info.value and info.value.errors), tuple(groups), tuple(infos))

    def hidden(self, written: Callable[[str], str | None], hide: Callable[[str], str]) -> ConfigInfos:
        """The response with references in place of the values of config providers. Java shows the values.

        ``written`` returns the setting of a key that contains such a value as it was written, ``hide`` replaces the
        values in a text.
        """
        configs = tuple(
            config if config.value is None else replace(config, value=config.value.hidden(written, hide))
            for config in self.configs
        )
        return replace(self, name=hide(self.name), configs=configs)

    @property
    def errors(self) -> list[tuple[str, str]]:
        """All errors as (key, text), in the order of the response."""
        return [(config.value.name, error) for config in self.configs if config.value for error in config.value.errors]
