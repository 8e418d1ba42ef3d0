"""Config providers: externally stored values, referenced as ``${provider:path:key}`` (KIP-297, KIP-421).

``config.providers=a`` names a provider, ``config.providers.a.class`` sets its class and ``config.providers.a.param.*``
its parameters. A reference to an unknown provider stays unchanged. Any other reference that cannot be resolved is an
error; Kafka leaves references to unknown *keys* unchanged, so that for example a login fails later with a less clear
error.
"""

from __future__ import annotations

import importlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, Self

from mm2.config.definitions.java_regex import JavaPattern, PatternError, compile_java
from mm2.config.definitions.values import ConfigException, split_list, trim
from mm2.config.files.properties import parse_properties
from mm2.config.files.provider_values import ProviderValues, ResolvedSetting, remember
from mm2.config.files.regular_file import UnusableFile, read_regular_file

__all__ = [
    "ConfigData",
    "ConfigProvider",
    "DirectoryConfigProvider",
    "EnvVarConfigProvider",
    "FileConfigProvider",
    "ProviderError",
]

_PROVIDERS_KEY: Final = "config.providers"
#: Of a file with values; the largest Secret of Kubernetes.
_MOST_BYTES: Final = 1024 * 1024
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

    @property
    def is_restricted(self) -> bool:
        """Whether its parameters limit what it reads. Clients of REST may use only such providers in MirrorMaker.

        True by default: a provider of another kind reads a store with access rules of its own.
        """
        return True

    def close(self) -> None:
        """Called once when the worker stops."""
        return


@dataclass(frozen=True)
class AllowedPaths:
    """The folders and files that a provider may read; ``None`` = unrestricted (parameter ``allowed.paths``).

    Unlike Kafka's class of this name, symbolic links are resolved before the check.
    """

    roots: tuple[Path, ...] | None = None

    @classmethod
    def of(cls, params: Mapping[str, str]) -> Self:
        """From a provider's parameters. Raises :class:`ConfigException` unless each path is absolute and exists."""
        roots = tuple(map(Path, split_list(params.get("allowed.paths", ""))))
        for root in roots:
            if not root.is_absolute():
                raise ConfigException("allowed.paths", str(root), "Path is not absolute")
            if not os.path.exists(root):  # noqa: PTH110 - Path.exists raises PermissionError
                raise ConfigException("allowed.paths", str(root), "Path does not exist")
        return cls(tuple(root.resolve() for root in roots) or None)

    def admit(self, path: str) -> Path:
        """``path`` without ``..`` steps and links. Raises :class:`ProviderError` when it is empty or not allowed."""
        if not path:
            raise ProviderError("the reference names no path")
        # As in Java, ".." removes the name before it, also that of a link.
        return self._checked(Path(os.path.realpath(os.path.normpath(path))))

    def read(self, path: Path) -> str:
        """The text (UTF-8) of an admitted regular file. Raises :class:`ProviderError`.

        The location of the opened file is checked again, so that a link that is replaced meanwhile has no effect.
        """
        try:
            content = read_regular_file(
                path, _MOST_BYTES, lambda descriptor: self._checked(_location(descriptor, path))
            )
        except OSError as error:
            raise ProviderError(f"Cannot read {path}: {error.strerror}") from error
        except UnusableFile as error:
            raise ProviderError(f"{path} {error}") from error
        try:
            return str(content, "utf-8")
        except UnicodeDecodeError as error:
            raise ProviderError(f"{path} is not UTF-8") from error

    def _checked(self, path: Path) -> Path:
        if self.roots is not None and not any(path.is_relative_to(root) for root in self.roots):
            raise ProviderError("the path is not below one of allowed.paths")
        return path


def _location(descriptor: int, path: Path) -> Path:
    """Where an opened file is, without links."""
    try:
        return Path(f"/proc/self/fd/{descriptor}").readlink()
    except OSError:  # not Linux
        real = Path(os.path.realpath(path))
        if not os.path.samestat(os.fstat(descriptor), os.lstat(real)):
            raise ProviderError("the file was replaced while it was opened") from None
        return real


class _PathsProvider(ConfigProvider):
    """Reads files, below ``allowed.paths`` if that is given."""

    def __init__(self) -> None:
        self._allowed = AllowedPaths()

    def configure(self, params: Mapping[str, str]) -> None:
        self._allowed = AllowedPaths.of(params)

    @property
    def is_restricted(self) -> bool:
        return self._allowed.roots is not None


class FileConfigProvider(_PathsProvider):
    """Values of a ``.properties`` file (UTF-8, as in Java's FileConfigProvider); the path is the file."""

    def get(self, path: str, keys: Collection[str]) -> ConfigData:
        file = self._allowed.admit(path)
        try:
            props = parse_properties(self._allowed.read(file), source=str(file))
        except ConfigException as error:
            raise ProviderError(str(error)) from error
        return ConfigData({key: props[key] for key in keys if key in props})


class DirectoryConfigProvider(_PathsProvider):
    """The path is a folder, each file in it a key, its whole text (UTF-8, line ends included) the value."""

    def get(self, path: str, keys: Collection[str]) -> ConfigData:
        folder = self._allowed.admit(path)
        if not folder.is_dir():
            raise ProviderError("the path is not a directory")
        found = {}
        for key in keys:
            file = folder / key
            # A key is a file name: with a slash or as ".." it would leave the folder.
            if file.parent == folder and file.is_file():
                found[key] = self._allowed.read(self._allowed.admit(str(file)))
        return ConfigData(found)


class EnvVarConfigProvider(ConfigProvider):
    """Environment variables whose whole name matches ``allowlist.pattern`` (default: all); there is no path."""

    def __init__(self) -> None:
        self._allowed: JavaPattern | None = None

    def configure(self, params: Mapping[str, str]) -> None:
        pattern = params.get("allowlist.pattern")
        try:
            self._allowed = None if pattern is None else compile_java(pattern)
        except PatternError as error:
            raise ConfigException("allowlist.pattern", pattern, f"Invalid regex: {error}") from error

    @property
    def is_restricted(self) -> bool:
        return self._allowed is not None

    def get(self, path: str, keys: Collection[str]) -> ConfigData:
        if path:
            raise ProviderError("environment variables have no path")
        return ConfigData({key: os.environ[key] for key in keys if key in os.environ and self._admits(key)})

    def _admits(self, key: str) -> bool:
        return self._allowed is None or self._allowed.fullmatch(key) is not None


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


class _Reference(NamedTuple):
    """``${provider:path:key}`` or ``${provider:key}`` at ``start:end`` of a text."""

    start: int
    end: int
    provider: str
    path: str
    key: str


def references(text: str) -> list[tuple[str, str, str]]:
    """The (provider, path, key) of each reference in ``text``."""
    return [(found.provider, found.path, found.key) for found in _references(text)]


def is_reference(text: str) -> bool:
    """Whether the text is one reference, without text beside it, which may be part of a secret."""
    return [(found.start, found.end) for found in _references(text)] == [(0, len(text))]


def _references(text: str) -> Iterator[_Reference]:
    """As Kafka's ConfigTransformer finds them: no part contains a closing brace, the key may contain colons.

    Not by a regular expression, which needs cubic time for a text of REST that contains many colons and no brace.
    """
    at = 0
    while (brace := text.find("}", at)) >= 0:
        start = text.find("${", at, brace)
        provider, colon, rest = text[start + 2 : brace].partition(":")
        if start >= 0 and colon:
            path, has_path, key = rest.partition(":")
            yield _Reference(start, brace + 1, provider, *((path, key) if has_path else ("", rest)))
        at = brace + 1


class FreshValues(Mapping[str, str]):
    """A configuration whose references are resolved at each access to a setting that contains one.

    ``resolve`` resolves the whole configuration.
    """

    def __init__(self, written: Mapping[str, str], resolve: Callable[[], Mapping[str, str]]) -> None:
        self._written = written
        self._resolve = resolve

    def __getitem__(self, key: str) -> str:
        written = self._written[key]
        return self._resolve()[key] if references(written) else written

    def __iter__(self) -> Iterator[str]:
        return iter(self._written)

    def __len__(self) -> int:
        return len(self._written)


@dataclass(frozen=True)
class ConfigTransformerResult:
    """A configuration with its references replaced, and the time to live of the values (Java's class of this name)."""

    data: dict[str, str] = field(repr=False)
    #: Milliseconds by path, for paths whose values expire; the herder restarts the connector after the shortest.
    ttls: Mapping[str, int] = field(default_factory=dict)
    #: The settings that contain values of providers, to be kept out of texts.
    values: ProviderValues = field(default_factory=ProviderValues)


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

    @property
    def restricted(self) -> dict[str, bool]:
        """By name of the provider: whether its parameters limit what it reads (:attr:`ConfigProvider.is_restricted`)."""
        return {name: provider.is_restricted for name, provider in self.providers.items()}

    def transform(self, props: Mapping[str, str]) -> dict[str, str]:
        """``props`` with every reference replaced; each (provider, path) is read once.

        Values are not searched for references.

        Raises :class:`ConfigException`, one sentence with provider, path and key.
        """
        return self.resolve(props).data

    def resolve(self, props: Mapping[str, str]) -> ConfigTransformerResult:
        """As :meth:`transform`, with the values that must not be shown, and their time to live (Kafka's ``ConfigData.ttl``).

        The values are removed from the logs of this process from now on.
        """
        wanted: dict[tuple[str, str], dict[str, None]] = {}
        for value in props.values():
            for provider, path, key in references(value):
                if provider in self.providers:
                    wanted.setdefault((provider, path), {})[key] = None
        known = {place: self._read(*place, tuple(keys)) for place, keys in wanted.items()}

        settings = {}
        for name, value in props.items():
            texts, parts, at = [], [], 0
            for found in _references(value):
                if found.provider in self.providers:
                    secret = known[found.provider, found.path].data[found.key]
                    parts.append((secret, value[found.start : found.end]))
                    texts += [value[at : found.start], secret]
                    at = found.end
            if parts:
                settings[name] = ResolvedSetting(value, "".join([*texts, value[at:]]), tuple(parts))
        provided = ProviderValues(settings)
        remember(provided)
        ttls: dict[str, int] = {}
        for (_, path), values in known.items():
            if values.ttl_ms is not None and values.ttl_ms >= 0:
                ttls[path] = min(values.ttl_ms, ttls.get(path, values.ttl_ms))
        data = {name: settings[name].resolved if name in settings else value for name, value in props.items()}
        return ConfigTransformerResult(data, ttls, provided)

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
