"""Definitions of keys, and configurations checked against them (Kafka's ``ConfigDef`` and ``AbstractConfig``, 4.3.0).

A definition is a table of key, type, default, validator, importance and documentation. Parsing a map of strings gives
one typed value per key. Unknown keys are kept in ``originals``, because they belong to clients and plugins.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Self, TypeVar

from mm2.config.definitions.config_infos import ConfigInfo, ConfigInfos, ConfigKeyInfo, ConfigValue, ConfigValueInfo
from mm2.config.definitions.config_key import ConfigKey, Importance, Recommender, Width
from mm2.config.definitions.validators import (
    Validator,
    at_least,
    between,
    distinct,
    non_empty,
    one_of,
    one_of_any_case,
    subset_of,
)
from mm2.config.definitions.values import (
    NO_DEFAULT,
    ConfigException,
    ConfigType,
    NoSuchClass,
    Password,
    missing,
    parse_type,
    show,
    split_list,
)

__all__ = [
    "NO_DEFAULT",
    "AbstractConfig",
    "ConfigDef",
    "ConfigException",
    "ConfigInfo",
    "ConfigInfos",
    "ConfigKey",
    "ConfigKeyInfo",
    "ConfigValue",
    "ConfigValueInfo",
    "Importance",
    "Password",
    "Recommender",
    "Type",
    "Validator",
    "Width",
    "at_least",
    "between",
    "distinct",
    "missing",
    "non_empty",
    "one_of",
    "one_of_any_case",
    "parse_type",
    "show",
    "split_list",
    "subset_of",
]

#: The name that plugins import, as in Java: ConfigDef.Type.
Type = ConfigType

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class _Embedded:
    """Validator of a row under a prefix."""

    prefix: str
    validator: Validator

    def ensure_valid(self, name: str, value: object) -> None:
        self.validator.ensure_valid(name.removeprefix(self.prefix), value)

    def __str__(self) -> str:
        return str(self.validator)


def _embedded(prefix: str, recommender: Recommender) -> Recommender:
    def own(parsed: Mapping[str, object]) -> dict[str, object]:
        return {name.removeprefix(prefix): value for name, value in parsed.items() if name.startswith(prefix)}

    return Recommender(
        lambda name, parsed: recommender.valid_values(name.removeprefix(prefix), own(parsed)),
        lambda name, parsed: recommender.visible(name.removeprefix(prefix), own(parsed)),
    )


class ConfigDef:
    """A growing table of :class:`ConfigKey`, in the order of definition.

    ``ConfigDef(a, b)`` starts with the rows of both.
    """

    def __init__(self, *bases: ConfigDef) -> None:
        self._keys: dict[str, ConfigKey] = {}
        for base in bases:
            self._keys.update(base.keys)

    def define(
        self,
        name: str,
        type_: ConfigType,
        default: object = NO_DEFAULT,
        validator: Validator | None = None,
        importance: Importance = Importance.LOW,
        doc: str = "",
        *,
        group: str | None = None,
        order: int = -1,
        width: Width = Width.NONE,
        display_name: str | None = None,
        dependents: Iterable[str] = (),
        recommender: Recommender | None = None,
    ) -> Self:
        """Add a row.

        ``default`` may be a string, which is typed here; a default that fails its validator is an error.
        """
        if name in self._keys:
            raise ConfigException(f"Configuration {name} is defined twice.")
        key = ConfigKey(
            name=name,
            type=type_,
            default=NO_DEFAULT,
            validator=validator,
            importance=importance,
            documentation=doc,
            group=group,
            order=order,
            width=width,
            display_name=display_name or name,
            dependents=tuple(dependents),
            recommender=recommender,
        )
        self._keys[name] = key if default is NO_DEFAULT else replace(key, default=key.parse(default))
        return self

    def include(self, other: ConfigDef) -> Self:
        """Add all rows of another definition; a row of the same name is replaced."""
        self._keys.update(other.keys)
        return self

    def embed(self, prefix: str, group: str, order: int, child: ConfigDef, *, errors_in_full: bool = False) -> Self:
        """Add all rows of another definition under a prefix, as Kafka does for the plugins of a connector.

        The rows are in the order of :meth:`sorted_keys`, numbered from ``order`` on, in the group ``group`` (followed
        by their own group, if any). As in Kafka, validators and recommenders receive names without the prefix, so error
        messages have none; with ``errors_in_full`` validators receive the full name.
        """
        for place, key in enumerate(child.sorted_keys(), start=order):
            self._keys[prefix + key.name] = replace(
                key,
                name=prefix + key.name,
                validator=key.validator
                if key.validator is None or errors_in_full
                else _Embedded(prefix, key.validator),
                group=group if key.group is None else f"{group}: {key.group}",
                order=place,
                dependents=tuple(prefix + dependent for dependent in key.dependents),
                recommender=None if key.recommender is None else _embedded(prefix, key.recommender),
            )
        return self

    def sorted_keys(self) -> list[ConfigKey]:
        """The rows in the order of Kafka's documentation.

        By group, by order in it, required keys first, by importance, by name.
        """
        groups = {None: -1} | {group: place for place, group in enumerate(self.groups)}
        importances = list(Importance)
        return sorted(
            self._keys.values(),
            key=lambda key: (
                groups[key.group],
                key.order,
                not key.required,
                importances.index(key.importance),
                key.name,
            ),
        )

    def redefine(self, name: str, **changes: Any) -> Self:
        """Change fields of an inherited row, for example its default (already typed)."""
        self._keys[name] = replace(self._keys[name], **changes)
        return self

    def only(self, names: Iterable[str]) -> ConfigDef:
        """A definition with only these rows, in this definition's order."""
        wanted = frozenset(names)
        part = ConfigDef()
        part._keys = {name: key for name, key in self._keys.items() if name in wanted}
        return part

    @property
    def keys(self) -> Mapping[str, ConfigKey]:
        """Rows by key, in the order of definition."""
        return MappingProxyType(self._keys)

    @property
    def names(self) -> tuple[str, ...]:
        """All keys, in the order of definition."""
        return tuple(self._keys)

    def __contains__(self, name: object) -> bool:
        return name in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    def parse(self, props: Mapping[str, object]) -> dict[str, Any]:
        """Typed values of all keys. Raises the first :class:`ConfigException` in the order of definition."""
        return {name: key.value_in(props) for name, key in self._keys.items()}

    def config_values(self, props: Mapping[str, object]) -> list[ConfigValue]:
        """Every key with its value, its errors and its recommended values (``ConfigDef.validate`` of Kafka).

        As in Kafka, a value that cannot be typed is null for the validator, which may add another error. A dependent
        without a definition is an error of its own.
        """
        values = {name: self._config_value(key, props) for name, key in self._keys.items()}
        for name in self._undefined_dependents():
            text = f"{name} is referred in the dependents, but not defined."
            values[name] = ConfigValue(name, None, errors=[text], visible=False)
        parsed = {name: value.value for name, value in values.items()}
        for name, key in self._keys.items():
            if key.recommender is not None:
                try:
                    values[name].recommended_values = list(key.recommender.valid_values(name, parsed))
                    values[name].visible = key.recommender.visible(name, parsed)
                except ConfigException as error:
                    values[name].errors.append(str(error))
        return list(values.values())

    @staticmethod
    def _config_value(key: ConfigKey, props: Mapping[str, object]) -> ConfigValue:
        errors = []
        value: object = None
        if key.name in props:
            try:
                # Duplicates are kept, as in Kafka; a list of distinct items reports them here.
                value = parse_type(key.name, props[key.name], key.type)
            except ConfigException as error:
                errors.append(str(error))
        elif key.required:
            errors.append(str(missing(key.name)))
        else:
            value = list(key.default) if isinstance(key.default, list | tuple) else key.default
        if key.validator is not None:
            try:
                key.validator.ensure_valid(key.name, value)
            except NoSuchClass as error:
                errors.append(str(error))
                value = None
            except ConfigException as error:
                errors.append(str(error))
        return ConfigValue(key.name, value, errors=errors)

    def _undefined_dependents(self) -> list[str]:
        referred = dict.fromkeys(name for key in self._keys.values() for name in key.dependents)
        return [name for name in referred if name not in self._keys]

    @property
    def groups(self) -> list[str]:
        """The groups of the keys, each once, in the order of definition."""
        return list(dict.fromkeys(key.group for key in self._keys.values() if key.group is not None))

    def config_infos(self, name: str, props: Mapping[str, object]) -> ConfigInfos:
        """The body of REST's ``config/validate`` for these keys alone; ``name`` is the class they belong to."""
        return ConfigInfos.of(name, self._keys, self.config_values(props), self.groups)

    def validate(self, props: Mapping[str, object]) -> list[tuple[str, list[str]]]:
        """(key, error texts) for **every** key, in order; the list of texts is empty for a valid key."""
        return [(value.name, value.errors) for value in self.config_values(props)]


class AbstractConfig:
    """A map of strings read through a definition; raises :class:`ConfigException` for the first bad or missing key.

    Reading a value marks its key as used; :meth:`unused` lists the keys that were never read.
    """

    def __init__(self, definition: ConfigDef, props: Mapping[str, object]) -> None:
        self.definition = definition
        self._originals = dict(props)
        self._values = definition.parse(self._originals)
        self._used: set[builtins.str] = set()

    @property
    def originals(self) -> dict[builtins.str, Any]:
        """The given strings, including unknown keys (a copy)."""
        return dict(self._originals)

    @property
    def values(self) -> Mapping[builtins.str, Any]:
        """All typed values, defaults included. Reading here marks no key as used."""
        return MappingProxyType(self._values)

    def originals_with_prefix(self, prefix: builtins.str, strip: builtins.bool = True) -> dict[builtins.str, Any]:
        """The given keys that start with ``prefix`` and are longer than it; marks them as used."""
        found = {k: v for k, v in self._originals.items() if k.startswith(prefix) and len(k) > len(prefix)}
        self._used.update(found)
        return {k.removeprefix(prefix): v for k, v in found.items()} if strip else found

    def get(self, key: builtins.str) -> Any:
        """The typed value of a defined key; ``None`` where that is its default."""
        if key not in self._values:
            raise ConfigException(f"Unknown configuration '{key}'")
        self._used.add(key)
        return self._values[key]

    def ignore(self, key: builtins.str) -> None:
        """Mark ``key`` as used."""
        self._used.add(key)

    def unused(self) -> set[builtins.str]:
        """Given keys that were never read."""
        return self._originals.keys() - self._used

    def _typed(self, key: builtins.str, kind: type[_Value]) -> _Value:
        value = self.get(key)
        if not isinstance(value, kind):
            raise TypeError(f"{key} is {value!r}, not a {kind.__name__}")
        return value

    def bool(self, key: builtins.str) -> builtins.bool:
        """The value of a BOOLEAN key."""
        return self._typed(key, builtins.bool)

    def int(self, key: builtins.str) -> builtins.int:
        """The value of an INT, SHORT or LONG key that is not null."""
        return self._typed(key, builtins.int)

    def float(self, key: builtins.str) -> builtins.float:
        """The value of a DOUBLE key."""
        return self._typed(key, builtins.float)

    def str(self, key: builtins.str) -> builtins.str:
        """The value of a STRING or CLASS key that is not null."""
        return self._typed(key, builtins.str)

    def list(self, key: builtins.str) -> builtins.list[builtins.str]:
        """The value of a LIST key that is not null (a copy)."""
        return builtins.list(self._typed(key, builtins.list))

    def password(self, key: builtins.str) -> Password | None:
        """The value of a PASSWORD key."""
        value = self.get(key)
        return value if isinstance(value, Password) else None
