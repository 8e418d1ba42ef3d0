"""Config providers: externally stored values, referenced as ``${provider:path:key}`` (KIP-297, KIP-421).

``config.providers=a`` names a provider, ``config.providers.a.class`` sets its class and ``config.providers.a.param.*``
its parameters. A reference to an unknown provider stays unchanged. Any other reference that cannot be resolved is an
error; Kafka leaves references to unknown *keys* unchanged, so that for example a login fails later with a less clear
error.
"""

from __future__ import annotations

import importlib
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from mm2.config.properties import load_properties
from mm2.config.values import ConfigException, split_list, trim

__all__ = [
    "ConfigData",
    "ConfigProvider",
    "DirectoryConfigProvider",
    "EnvVarConfigProvider",
    "FileConfigProvider",
    "ProviderError",
]

# ${provider:path:key} or ${provider:key}; no part contains a closing brace, the key may contain colons.
_REFERENCE: Final = re.compile(r"\$\{([^}]*?):(?:([^}]*?):)?([^}]*?)\}")
_PROVIDERS_KEY: Final = "config.providers"
_JAVA_PACKAGE: Final = "org.apache.kafka.common.config.provider"


class ProviderError(Exception):
    """A provider could not answer. The message contains no value of the provider."""


@dataclass(frozen=True)
class ConfigData:
    """Result of a provider (Java's ``ConfigData``)."""

    #: Values by key; secrets.
    data: Mapping[str, str] = field(repr=False)
    #: Time to live in milliseconds; None: unlimited. Connectors that use the values are restarted afterwards.
    ttl_ms: int | None = None


class ConfigProvider(ABC):
    """Provider of values. A plugin: created without arguments, then configured once."""

    def configure(self, params: Mapping[str, str]) -> None:
        """Called once with the settings under ``config.providers.<name>.param.``. Raises :class:`ConfigException`."""
        return

    @abstractmethod
    def get(self, path: str, keys: Collection[str]) -> ConfigData:
        """The values of those ``keys`` at ``path`` that exist; ``path`` is "" if the reference has none.

        Raises :class:`ProviderError` with the reason if it cannot answer.
        """

    def close(self) -> None:
        """Called once when the worker stops."""
        return


@dataclass(frozen=True)
class AllowedPaths:
    """The folders and files that a provider may read; ``None`` = unrestricted (parameter ``allowed.paths``)."""

    roots: tuple[Path, ...] | None = None

    @classmethod
    def of(cls, params: Mapping[str, str]) -> Self:
        """From a provider's parameters. Raises :class:`ConfigException` unless each path is absolute and exists."""
        roots = tuple(map(Path, split_list(params.get("allowed.paths", ""))))
        for root in roots:
            if not root.is_absolute():
                raise ConfigException("allowed.paths", str(root), "Path is not absolute")
            if not root.exists():
                raise ConfigException("allowed.paths", str(root), "Path does not exist")
        return cls(tuple(Path(os.path.normpath(root)) for root in roots) or None)

    def admit(self, path: str) -> Path:
        """``path`` without ``..`` steps. Raises :class:`ProviderError` when it is empty or not allowed."""
        if not path:
            raise ProviderError("the reference names no path")
        wanted = Path(os.path.normpath(path))
        if self.roots is not None and not any(wanted.is_relative_to(root) for root in self.roots):
            raise ProviderError("the path is not below one of allowed.paths")
        return wanted


class FileConfigProvider(ConfigProvider):
    """Values of a ``.properties`` file (UTF-8, as in Java's FileConfigProvider); the path is the file."""

    def __init__(self) -> None:
        self._allowed = AllowedPaths()

    def configure(self, params: Mapping[str, str]) -> None:
        self._allowed = AllowedPaths.of(params)

    def get(self, path: str, keys: Collection[str]) -> ConfigData:
        try:
            props = load_properties(self._allowed.admit(path), encoding="utf-8")
        except ConfigException as error:
            raise ProviderError(str(error)) from error
        return ConfigData({key: props[key] for key in keys if key in props})


class DirectoryConfigProvider(ConfigProvider):
    """The path is a folder, each file in it a key, its whole text (UTF-8, line ends included) the value."""

    def __init__(self) -> None:
        self._allowed = AllowedPaths()

    def configure(self, params: Mapping[str, str]) -> None:
        self._allowed = AllowedPaths.of(params)

    def get(self, path: str, keys: Collection[str]) -> ConfigData:
        folder = self._allowed.admit(path)
        if not folder.is_dir():
            raise ProviderError("the path is not a directory")
        found = {}
        for key in keys:
            file = folder / key
            # A key is a file name: with a slash or as ".." it would leave the folder.
            if file.parent == folder and file.is_file():
                try:
                    found[key] = file.read_bytes().decode()
                except OSError as error:
                    raise ProviderError(f"cannot read {file}: {error.strerror}") from error
                except UnicodeDecodeError as error:
                    raise ProviderError(f"{file} is not UTF-8") from error
        return ConfigData(found)


class EnvVarConfigProvider(ConfigProvider):
    """Environment variables whose whole name matches ``allowlist.pattern`` (default: all); there is no path."""

    def __init__(self) -> None:
        self._allowed = re.compile(".*")

    def configure(self, params: Mapping[str, str]) -> None:
        pattern = params.get("allowlist.pattern", ".*")
        try:
            self._allowed = re.compile(pattern)
        except re.error as error:
            raise ConfigException("allowlist.pattern", pattern, f"Invalid regex: {error}") from error

    def get(self, path: str, keys: Collection[str]) -> ConfigData:
        if path:
            raise ProviderError("environment variables have no path")
        return ConfigData({key: os.environ[key] for key in keys if key in os.environ and self._allowed.fullmatch(key)})


_PROVIDERS: Final[Mapping[str, type[ConfigProvider]]] = {
    provider.__name__: provider for provider in (FileConfigProvider, DirectoryConfigProvider, EnvVarConfigProvider)
}

NewProvider = Callable[[str, str], ConfigProvider]
"""Creates a provider from its class name and the configuration key of that name."""


def new_provider(class_name: str, key: str) -> ConfigProvider:
    """Create one of Kafka's own providers, or a Python class by its dotted path. Raises :class:`ConfigException`."""
    known = _PROVIDERS.get(class_name.removeprefix(f"{_JAVA_PACKAGE}."))
    if known is not None:
        return known()
    module_name, _, name = class_name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module_name), name) if module_name else None
    except (ImportError, AttributeError):
        found = None
    if not isinstance(found, type) or not issubclass(found, ConfigProvider):
        known_names = ", ".join(_PROVIDERS)
        reason = (
            f"Known providers are {known_names} in {_JAVA_PACKAGE}, and Python classes that derive from ConfigProvider"
        )
        raise ConfigException(key, class_name, reason)
    return found()


def references(text: str) -> list[tuple[str, str, str]]:
    """The (provider, path, key) of each reference in ``text``."""
    return [(found[1], found[2] or "", found[3]) for found in _REFERENCE.finditer(text)]


@dataclass(frozen=True)
class ConfigTransformerResult:
    """A configuration with its references replaced, and the time to live of the values (Java's class of this name)."""

    data: dict[str, str] = field(repr=False)
    #: Milliseconds by path, for paths whose values expire; the herder restarts the connector after the shortest.
    ttls: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ConfigTransformer:
    """Replaces references by values of the providers that the configuration names."""

    providers: Mapping[str, ConfigProvider] = field(default_factory=dict)

    @classmethod
    def from_props(cls, props: Mapping[str, str], new: NewProvider = new_provider) -> Self:
        """Create the providers of ``config.providers`` in ``props`` with ``new``, which may create them from plugins.

        Raises :class:`ConfigException` for an unknown class or a bad parameter.
        """
        return cls({name: _provider(name, props, new) for name in split_list(props.get(_PROVIDERS_KEY, ""))})

    def transform(self, props: Mapping[str, str]) -> dict[str, str]:
        """``props`` with every reference replaced; each (provider, path) is read once.

        Values are not searched for references.

        Raises :class:`ConfigException`, one sentence with provider, path and key.
        """
        return self.transform_with_ttls(props).data

    def transform_with_ttls(self, props: Mapping[str, str]) -> ConfigTransformerResult:
        """As :meth:`transform`, with the time to live of the providers' values (``ConfigData.ttl`` of Kafka)."""
        wanted: dict[tuple[str, str], dict[str, None]] = {}
        for value in props.values():
            for provider, path, key in references(value):
                if provider in self.providers:
                    wanted.setdefault((provider, path), {})[key] = None
        known = {place: self._read(*place, tuple(keys)) for place, keys in wanted.items()}

        def replace(found: re.Match[str]) -> str:
            values = known.get((found[1], found[2] or ""))
            return found[0] if values is None else values.data[found[3]]

        ttls: dict[str, int] = {}
        for (_, path), values in known.items():
            if values.ttl_ms is not None and values.ttl_ms >= 0:
                ttls[path] = min(values.ttl_ms, ttls.get(path, values.ttl_ms))
        return ConfigTransformerResult({name: _REFERENCE.sub(replace, value) for name, value in props.items()}, ttls)

    def close(self) -> None:
        """Close all providers; an error of one does not prevent closing the others."""
        for provider in self.providers.values():
            provider.close()

    def _read(self, provider: str, path: str, keys: Collection[str]) -> ConfigData:
        where = f"Config provider {provider}" + (f", path {path}" if path else "")
        try:
            values = self.providers[provider].get(path, keys)
        except ProviderError as error:
            raise ConfigException(f"{where}, key {', '.join(keys)}: {error}.") from error
        except Exception as error:
            # A third-party plugin: its message might contain a secret, but without it the error could not be diagnosed.
            raise ConfigException(f"{where}, key {', '.join(keys)}: {type(error).__name__}: {error}.") from error
        if absent := [key for key in keys if key not in values.data]:
            raise ConfigException(f"{where}, key {', '.join(absent)}: there is no such key, or it may not be read.")
        return values


def _provider(name: str, props: Mapping[str, str], new: NewProvider) -> ConfigProvider:
    class_key = f"{_PROVIDERS_KEY}.{name}.class"
    if class_key not in props:
        raise ConfigException(f'Missing required configuration "{class_key}" which has no default value.')
    provider = new(trim(props[class_key]), class_key)
    prefix = f"{_PROVIDERS_KEY}.{name}.param."
    params = {key.removeprefix(prefix): value for key, value in props.items() if key.startswith(prefix)}
    try:
        provider.configure(params)
    except ConfigException as error:
        if error.name in params:
            raise ConfigException(prefix + error.name, error.value, error.reason) from error
        raise
    return provider
