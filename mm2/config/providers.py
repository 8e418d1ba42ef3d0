"""Config providers: values that are kept elsewhere and referred to as ``${provider:path:key}`` (KIP-297, KIP-421).

``config.providers=a`` names a provider, ``config.providers.a.class`` says which, ``config.providers.a.param.*`` sets it up.
A reference to a provider nobody named stays as it is. Everything else that does not resolve is an error: the text of a
reference in place of a password would only fail later, and less clearly (Kafka leaves unknown *keys* as they are).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol, Self

from mm2.config.properties import load_properties
from mm2.config.values import ConfigException, split_list, trim

# ${provider:path:key} or ${provider:key}; none of the parts holds a closing brace, the key may hold colons.
_REFERENCE: Final = re.compile(r"\$\{([^}]*?):(?:([^}]*?):)?([^}]*?)\}")
_PROVIDERS_KEY: Final = "config.providers"
_JAVA_PACKAGE: Final = "org.apache.kafka.common.config.provider"


class ProviderError(Exception):
    """Why a provider could not answer; holds no value of the provider's. Never leaves this module."""


class ConfigProvider(Protocol):
    """Where values are kept."""

    def get(self, path: str, keys: Collection[str]) -> dict[str, str]:
        """The values of those ``keys`` at ``path`` that exist. Raises :class:`ProviderError`."""


@dataclass(frozen=True)
class AllowedPaths:
    """The folders and files a provider may read below; ``None`` = anywhere (parameter ``allowed.paths``)."""

    roots: tuple[Path, ...] | None = None

    @classmethod
    def of(cls, params: Mapping[str, str], provider: str) -> Self:
        """From a provider's parameters. Raises :class:`ConfigException` unless each path is absolute and exists."""
        roots = tuple(map(Path, split_list(params.get("allowed.paths", ""))))
        for root in roots:
            name = f"{_PROVIDERS_KEY}.{provider}.param.allowed.paths"
            if not root.is_absolute():
                raise ConfigException(name, str(root), "Path is not absolute")
            if not root.exists():
                raise ConfigException(name, str(root), "Path does not exist")
        return cls(tuple(Path(os.path.normpath(root)) for root in roots) or None)

    def admit(self, path: str) -> Path:
        """``path`` without ``..`` steps. Raises :class:`ProviderError` when it is empty or outside."""
        if not path:
            raise ProviderError("the reference names no path")
        wanted = Path(os.path.normpath(path))
        if self.roots is not None and not any(wanted.is_relative_to(root) for root in self.roots):
            raise ProviderError("the path is not below one of allowed.paths")
        return wanted


@dataclass(frozen=True)
class FileProvider:
    """Values of a ``.properties`` file (UTF-8, as Java's FileConfigProvider reads it); the path is the file."""

    allowed: AllowedPaths

    @classmethod
    def configured(cls, params: Mapping[str, str], provider: str) -> Self:
        return cls(AllowedPaths.of(params, provider))

    def get(self, path: str, keys: Collection[str]) -> dict[str, str]:
        try:
            props = load_properties(self.allowed.admit(path), encoding="utf-8")
        except ConfigException as error:
            raise ProviderError(str(error)) from error
        return {key: props[key] for key in keys if key in props}


@dataclass(frozen=True)
class DirectoryProvider:
    """The path is a folder, each file in it a key, its whole text (UTF-8, line ends included) the value."""

    allowed: AllowedPaths

    @classmethod
    def configured(cls, params: Mapping[str, str], provider: str) -> Self:
        return cls(AllowedPaths.of(params, provider))

    def get(self, path: str, keys: Collection[str]) -> dict[str, str]:
        folder = self.allowed.admit(path)
        if not folder.is_dir():
            raise ProviderError("the path is not a directory")
        found = {}
        for key in keys:
            file = folder / key
            # A key is a name in the folder: with a slash or as ".." it would reach out of it.
            if file.parent == folder and file.is_file():
                try:
                    found[key] = file.read_bytes().decode()
                except OSError as error:
                    raise ProviderError(f"cannot read {file}: {error.strerror}") from error
                except UnicodeDecodeError as error:
                    raise ProviderError(f"{file} is not UTF-8") from error
        return found


@dataclass(frozen=True)
class EnvironmentProvider:
    """Environment variables whose whole name matches ``allowlist.pattern`` (default: all); there is no path."""

    environment: Mapping[str, str]
    allowed: re.Pattern[str]

    @classmethod
    def configured(cls, params: Mapping[str, str], provider: str) -> Self:
        pattern = params.get("allowlist.pattern", ".*")
        try:
            return cls(os.environ, re.compile(pattern))
        except re.error as error:
            name = f"{_PROVIDERS_KEY}.{provider}.param.allowlist.pattern"
            raise ConfigException(name, pattern, f"Invalid regex: {error}") from error

    def get(self, path: str, keys: Collection[str]) -> dict[str, str]:
        if path:
            raise ProviderError("environment variables have no path")
        return {key: self.environment[key] for key in keys if key in self.environment and self.allowed.fullmatch(key)}


_PROVIDERS: Final[dict[str, Callable[[Mapping[str, str], str], ConfigProvider]]] = {
    "FileConfigProvider": FileProvider.configured,
    "DirectoryConfigProvider": DirectoryProvider.configured,
    "EnvVarConfigProvider": EnvironmentProvider.configured,
}


def references(text: str) -> list[tuple[str, str, str]]:
    """The (provider, path, key) of each reference in ``text``."""
    return [(found[1], found[2] or "", found[3]) for found in _REFERENCE.finditer(text)]


@dataclass(frozen=True)
class ConfigTransformer:
    """Replaces references by values, by means of the providers that the configuration itself names."""

    providers: Mapping[str, ConfigProvider] = field(default_factory=dict)

    @classmethod
    def from_props(cls, props: Mapping[str, str]) -> Self:
        """The providers of ``config.providers`` in ``props``. Raises :class:`ConfigException` for an unknown class."""
        return cls({name: _provider(name, props) for name in split_list(props.get(_PROVIDERS_KEY, ""))})

    def transform(self, props: Mapping[str, str]) -> dict[str, str]:
        """``props`` with every reference replaced, each (provider, path) read once; what a value brings is not looked at again.

        Raises :class:`ConfigException`, one sentence with provider, path and key.
        """
        wanted: dict[tuple[str, str], dict[str, None]] = {}
        for value in props.values():
            for provider, path, key in references(value):
                if provider in self.providers:
                    wanted.setdefault((provider, path), {})[key] = None
        known = {place: self._read(*place, tuple(keys)) for place, keys in wanted.items()}

        def replace(found: re.Match[str]) -> str:
            values = known.get((found[1], found[2] or ""))
            return found[0] if values is None else values[found[3]]

        return {name: _REFERENCE.sub(replace, value) for name, value in props.items()}

    def _read(self, provider: str, path: str, keys: Collection[str]) -> dict[str, str]:
        where = f"Config provider {provider}" + (f", path {path}" if path else "")
        try:
            values = self.providers[provider].get(path, keys)
        except ProviderError as error:
            raise ConfigException(f"{where}, key {', '.join(keys)}: {error}.") from error
        if absent := [key for key in keys if key not in values]:
            raise ConfigException(f"{where}, key {', '.join(absent)}: there is no such key, or it may not be read.")
        return values


def _provider(name: str, props: Mapping[str, str]) -> ConfigProvider:
    class_key = f"{_PROVIDERS_KEY}.{name}.class"
    if class_key not in props:
        raise ConfigException(f'Missing required configuration "{class_key}" which has no default value.')
    class_name = trim(props[class_key])
    make = _PROVIDERS.get(class_name.removeprefix(f"{_JAVA_PACKAGE}."))
    if make is None:
        raise ConfigException(class_key, class_name, f"Known providers are {', '.join(_PROVIDERS)} in {_JAVA_PACKAGE}")
    prefix = f"{_PROVIDERS_KEY}.{name}.param."
    params = {key.removeprefix(prefix): value for key, value in props.items() if key.startswith(prefix)}
    return make(params, name)
