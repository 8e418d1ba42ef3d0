"""Finds the class for a name in a configuration (org.apache.kafka.connect.runtime.isolation.Plugins), within limits.

MirrorMaker's workers need few classes, and REST is no place to add more.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import structlog

from mm2.config.definitions.values import ConfigException, split_list
from mm2.config.definitions.versions import InvalidVersionRange, VersionRange, version_requirement
from mm2.config.keys.connector_keys import ISOLATION_KEY
from mm2.config.providers import ConfigProvider
from mm2.connect.api import Connector, Task
from mm2.connect.errors import ConnectError
from mm2.connect.plugins import loader as loaders
from mm2.connect.plugins.builtin import FILES_HINT, built_in, file_plugins, names_of_files
from mm2.connect.plugins.loader import PluginLoader, not_loadable_twice
from mm2.connect.plugins.plugin import LISTED, Plugin, PluginType, version_of
from mm2.connect.plugins.process.remote import RemoteSinkTask, RemoteSourceTask, remote_class
from mm2.connect.plugins.scan import discover, names_file_archive, plugin_locations, read_discovery

log = structlog.get_logger(__name__)

#: Admits all classes.
EVERY_CLASS = "*"
_LIMITED_TYPES = frozenset({PluginType.SINK, PluginType.SOURCE, PluginType.TASK})

CONNECTOR_KEY: Final = "connector.class"
TASK_KEY: Final = "task.class"
PROCESS: Final = "process"
"""Value of ``plugin.isolation`` for a process of its own."""

C = TypeVar("C")


class ClassNotAllowed(ConnectError):
    """The registry may not load this class."""


@dataclass(frozen=True)
class PluginLimits:
    """Which classes may be loaded: ``always``, those that ``key`` admits, and what ships with Kafka.

    The last does not include connectors and tasks: a connector that ships with Kafka can read files, for example.
    """

    always: frozenset[str]
    admitted: frozenset[str]
    #: The setting that admits classes.
    key: str

    def admits(self, name: str, known: Iterable[Plugin] = ()) -> bool:
        """Whether the class with this full name may be loaded; ``known`` are the registered plugins of that name."""
        plugins = list(known)
        names = {EVERY_CLASS, name, *(alias for plugin in plugins for alias in plugin.aliases)}
        if name in self.always or not self.admitted.isdisjoint(names):
            return True
        return bool(plugins) and all(plug.built_in and _LIMITED_TYPES.isdisjoint(plug.types) for plug in plugins)

    def require(self, name: str, known: Iterable[Plugin], key: str) -> None:
        """Raises ClassNotAllowed that names the setting, if the class of configuration ``key`` may not be loaded."""
        if not self.admits(name, known):
            raise ClassNotAllowed(
                f"Class {name} of configuration {key} is not allowed in a MirrorMaker process: add it to {self.key} in "
                "the properties file."
            )


class VersionedPluginError(ConnectError):
    """A plugin exists, but not in a requested version; ``available`` lists the existing versions."""

    def __init__(self, sentence: str, available: list[str]) -> None:
        super().__init__(sentence)
        self.available = available


class PluginLoadError(ConnectError):
    """A plugin's class exists, but importing it raised an exception."""


class Plugins:
    """A registry of plugin classes. Filled at startup, only read afterwards; safe to read from any thread.

    A name may be a class name (Java's for plugins that ship with Kafka, otherwise the dotted path), its simple name, or
    that without the suffix of its kind (``MirrorSource``), if it matches only one class. Without ``props`` the registry
    contains the plugins of this package; with the worker's, also those of ``plugin.path`` and of the environment's
    entry points.
    """

    def __init__(self, props: Mapping[str, object] | None = None) -> None:
        """Raises ConnectError under ``plugin.discovery=hybrid_fail`` when a plugin has no manifest."""
        self._plugins: dict[str, list[Plugin]] = {}
        self._aliases: dict[str, Sequence[str]] | None = None
        #: None: all classes may be loaded. See :meth:`limit`.
        self.limits: PluginLimits | None = None
        self._default_isolation = str((props or {}).get(ISOLATION_KEY) or "loader")
        for plugin in built_in():
            self._add(plugin)
        if props is not None:
            entries = split_list(str(props.get("plugin.path") or ""))
            if names_file_archive(entries):
                for plugin in file_plugins():
                    self._add(plugin)
            locations = plugin_locations(entries)
            for plugin in discover(locations, read_discovery(props)):
                self._add(plugin)
                log.info("added plugin", plugin=plugin.name, location=plugin.location)
            self._report_ambiguous()

    def register(self, java_name: str, python_class: type[C], *, kind: type[Any]) -> None:
        """Register a class under a name; ``kind`` is the base class for look-ups.

        Replaces an earlier class of that name. Raises ConnectError when the class is not of that kind.
        """
        if not issubclass(python_class, kind):
            raise ConnectError(
                f"{python_class.__qualname__} cannot be registered as {kind.__name__}: it does not derive from it"
            )
        others = self._plugins.get(java_name, [])
        self._plugins[java_name] = [
            plugin for plugin in others if plugin.loader is not None or not issubclass(plugin.kind, kind)
        ]
        self._add(Plugin.of_class(java_name, python_class, kind))

    def limit(self, limits: PluginLimits) -> None:
        """Load only the classes that the limits admit from now on. Tasks follow the rule of their connector."""
        self.limits = limits

    def _add(self, plugin: Plugin) -> None:
        self._plugins.setdefault(plugin.name, []).append(plugin)
        self._aliases = None

    def __iter__(self) -> Iterator[Plugin]:
        return (plugin for plugins in self._plugins.values() for plugin in plugins)

    # -- look-up

    def find(
        self,
        name: str,
        kind: type[C],
        *,
        key: str,
        version: str | None = None,
        loader: PluginLoader | None = None,
    ) -> type[C]:
        """The class for ``name``, where ``key`` is the configuration key that contains the name.

        ``version`` is the value of the key's ``….plugin.version``. ``loader`` is searched first: a connector's, for the
        converters and transformations of its configuration. Raises ConnectError, one sentence naming class and key,
        when there is no such class, when an alias is ambiguous, when the class is of another kind, or when it cannot be
        loaded; VersionedPluginError when there are only other versions.
        """
        return self._load(self.plugin(name, kind, key=key, version=version, loader=loader), kind, key)

    def plugin(
        self,
        name: str,
        kind: type[Any],
        *,
        key: str,
        version: str | None = None,
        loader: PluginLoader | None = None,
    ) -> Plugin:
        """The plugin that :meth:`find` finds, with version, location and loader. Raises the same."""
        name = name.strip()
        if not name:
            raise ConnectError(f"Configuration {key} names no class")
        wanted = _requirement(version, key)
        full = self._full_name(name, kind, key)
        if self.limits is not None and kind is not Task:
            self.limits.require(full, self._plugins.get(full, ()), key)
        known = [plugin for plugin in self._plugins.get(full, ()) if _may_be(plugin, kind)]
        own: Sequence[Plugin] = [plugin for plugin in known if plugin.loader is loader] if loader is not None else []
        if loader is not None and not own:
            own = _unlisted(loader, full, kind)
        for candidates in (own, known):
            found = _newest(candidates, wanted)
            if found is not None:
                return found
        if not known and not own:
            found = self._imported(full, kind, key)
            if wanted is None or found.version in wanted:
                return found
            known = [found]
        raise _wrong_version(full, wanted, [*own, *known])

    def is_registered(self, name: str, kind: type[Any]) -> bool:
        """Whether :meth:`find` finds this name or alias without importing a module that is not registered."""
        with contextlib.suppress(ConnectError):
            full = self._full_name(name.strip(), kind, "")
            return any(_may_be(plugin, kind) for plugin in self._plugins.get(full, ()))
        return False

    def _full_name(self, name: str, kind: type[Any], key: str) -> str:
        if name in self._plugins:
            return name
        candidates = self._names_of_alias(name)
        of_kind = [full for full in candidates if any(_may_be(plugin, kind) for plugin in self._plugins[full])]
        if len(of_kind) > 1:
            raise ConnectError(
                f"More than one {kind.__name__.lower()} matches alias {name} of configuration {key}. Please use full package "
                f"and class name instead. Classes found: {', '.join(sorted(of_kind))}"
            )
        return of_kind[0] if of_kind else name

    def _names_of_alias(self, alias: str) -> Sequence[str]:
        if self._aliases is None:
            aliases: dict[str, dict[str, None]] = {}
            for plugin in self:
                for short in plugin.aliases:
                    aliases.setdefault(short, {})[plugin.name] = None
            self._aliases = {short: list(names) for short, names in aliases.items()}
        return self._aliases.get(alias, [])

    def _report_ambiguous(self) -> None:
        self._names_of_alias("")
        for alias, names in (self._aliases or {}).items():
            # Aliases that are ambiguous only among built-in plugins, such as Key and Value, are not logged.
            if len(names) > 1 and any(not plugin.built_in for name in names for plugin in self._plugins[name]):
                log.info("ambiguous plugin alias is ignored", alias=alias, classes=sorted(names))

    def _imported(self, name: str, kind: type[Any], key: str) -> Plugin:
        """A Python class of the environment that is not registered."""
        missing = f"Class {name} of configuration {key} could not be found"
        module_name, _, attribute = name.rpartition(".")
        if name in names_of_files():
            raise ConnectError(f"{missing}: {FILES_HINT}")
        if not module_name:
            raise ConnectError(f"{missing}: {self._nothing_matches(name, kind)}")
        try:
            found = getattr(importlib.import_module(module_name), attribute)
        except (ModuleNotFoundError, AttributeError) as error:
            raise ConnectError(f"{missing}: it is neither a known Java class nor a Python class ({error})") from error
        except Exception as error:
            raise PluginLoadError(f"Class {name} of configuration {key} could not be loaded: {error}") from error
        if not isinstance(found, type) or not issubclass(found, kind):
            raise ConnectError(f"Class {name} of configuration {key} is not a {kind.__name__}")
        if f"{found.__module__}:{found.__qualname__}" in {plugin.path for plugin in file_plugins()}:
            raise ConnectError(f"{missing}: {FILES_HINT}")
        return Plugin.of_class(name, found, kind)

    def _nothing_matches(self, name: str, kind: type[Any]) -> str:
        if not issubclass(kind, Connector):
            return f"no {kind.__name__.lower()} is registered under this name or alias"
        known = {plugin.name for plugin in self if _may_be(plugin, kind) and self._is_admitted(plugin)}
        available = ", ".join(sorted(known))
        return (
            f"Failed to find any class that implements Connector and which name matches {name}, "
            f"available connectors are: {available}"
        )

    @staticmethod
    def _load(plugin: Plugin, kind: type[C], key: str) -> type[C]:
        try:
            with loaders.swap(plugin.loader):
                # For callers that need its kind or its keys; new_connector() rejects it without process isolation.
                found = plugin.python_class if plugin.needs_process is None else remote_class(plugin)
        except Exception as error:
            reason = not_loadable_twice(error) or error
            raise PluginLoadError(
                f"Class {plugin.name} of configuration {key} could not be loaded: {reason}"
            ) from error
        if not issubclass(found, kind):
            raise ConnectError(f"Class {plugin.name} of configuration {key} is not a {kind.__name__}")
        return found

    # -- instances

    def new(
        self,
        name: str,
        kind: type[C],
        *,
        key: str,
        version: str | None = None,
        loader: PluginLoader | None = None,
    ) -> C:
        """An instance of the class for ``name``. Raises like :meth:`find`, also when constructing fails."""
        python_class = self.find(name, kind, key=key, version=version, loader=loader)
        return self._made(lambda: python_class, name, key)

    def new_connector(self, props: Mapping[str, str]) -> Connector:
        """An instance of ``connector.class`` in the version of ``connector.plugin.version``.

        Runs in its own process with ``plugin.isolation=process``. Raises like :meth:`new`.
        """
        plugin = self._connector(props)
        if self._isolation(props) == PROCESS:
            elsewhere: Connector = self._made(lambda: remote_class(plugin), plugin.name, CONNECTOR_KEY)
            return elsewhere
        if plugin.needs_process is not None:
            raise ConnectError(f"Class {plugin.name} of configuration {CONNECTOR_KEY}: {plugin.needs_process}")
        return self._made(lambda: self._load(plugin, Connector, CONNECTOR_KEY), plugin.name, CONNECTOR_KEY)

    def new_task(self, name: str, connector_props: Mapping[str, str]) -> Task:
        """An instance of the task class ``name`` of the connector with these ``connector_props``.

        Runs in its own process if the connector does. Raises like :meth:`new`.
        """
        connector = self._connector(connector_props)
        if self.limits is not None and connector.name in self.limits.always:
            # The task classes of other connectors need not be listed in addition to the connector.
            self.limits.require(name, (), TASK_KEY)
        if self._isolation(connector_props) != PROCESS:
            return self.new(name, Task, key=TASK_KEY, loader=connector.loader)
        known = self._plugins.get(name)
        path = known[0].path if known else ":".join(name.rsplit(".", 1))
        task = Plugin(name, Task, path, loader=connector.loader, location=connector.location)
        kind = RemoteSinkTask if PluginType.SINK in connector.types else RemoteSourceTask
        elsewhere: Task = self._made(lambda: remote_class(task, kind), name, TASK_KEY)
        return elsewhere

    def new_provider(self, name: str, key: str) -> ConfigProvider:
        """A config provider, for `ConfigTransformer.from_props`. Raises ConfigException."""
        try:
            return self.new(name, ConfigProvider, key=key)
        except ConnectError as error:
            raise ConfigException(key, name, str(error)) from error

    def connector_loader(self, props: Mapping[str, str]) -> PluginLoader | None:
        """The loader of a connector's modules, to be passed to :meth:`new` and :meth:`swap`.

        Raises ConnectError when there is no such connector.
        """
        return self._connector(props).loader

    def _connector(self, props: Mapping[str, str]) -> Plugin:
        version = props.get("connector.plugin.version")
        return self.plugin(props.get(CONNECTOR_KEY) or "", Connector, key=CONNECTOR_KEY, version=version)

    def _isolation(self, props: Mapping[str, str]) -> str:
        return props.get(ISOLATION_KEY) or self._default_isolation

    @staticmethod
    def _made(find: Callable[[], type[C]], name: str, key: str) -> C:
        try:
            python_class = find()
            with loaders.swap(loaders.loader_of(python_class)):
                return python_class()
        except Exception as error:
            reason = not_loadable_twice(error) or error
            raise ConnectError(f"Class {name} of configuration {key} could not be instantiated: {reason}") from error

    @staticmethod
    def swap(loader: PluginLoader | None) -> AbstractContextManager[None]:
        """Set ``loader`` for this thread within a block; use it around every call into a plugin's code."""
        return loaders.swap(loader)

    @staticmethod
    def loader_of(plugin: object) -> PluginLoader | None:
        """The loader of a plugin's class or instance; None when it is not from a plugin location."""
        return loaders.loader_of(plugin)

    # -- available plugins

    def list(self, *types: PluginType) -> Sequence[Plugin]:
        """The plugins of the given kinds, by default those that REST lists, in its order.

        Plugins that cannot be loaded are omitted.
        """
        listed = []
        for type_ in types or LISTED:
            of_type = [plug for plug in self if type_ in plug.types and self._is_admitted(plug) and _loadable(plug)]
            listed += sorted(of_type, key=lambda plugin: (plugin.name, *plugin.order))
        return listed

    def _is_admitted(self, plugin: Plugin) -> bool:
        return self.limits is None or self.limits.admits(plugin.name, self._plugins.get(plugin.name, ()))

    def listing(self, *, connectors_only: bool = True) -> Sequence[dict[str, str]]:
        """The body of ``GET /connector-plugins``."""
        entries = []
        for type_ in LISTED:
            if connectors_only and not type_.is_connector:
                continue
            for plugin in self.list(type_):
                entry = {"class": plugin.name, "type": type_.value}
                if plugin.version != "undefined":
                    entry["version"] = plugin.version
                entries.append(entry)
        return entries

    def versions(self, name: str, kind: type[Any]) -> Sequence[str]:
        """The available versions of a class, given by name or alias, oldest first; empty for an unknown one."""
        try:
            full = self._full_name(name.strip(), kind, "")
        except ConnectError:
            return []
        plugins = [plugin for plugin in self._plugins.get(full, ()) if _may_be(plugin, kind) and _loadable(plugin)]
        return list(dict.fromkeys(plugin.version for plugin in sorted(plugins, key=lambda plugin: plugin.order)))

    def name_of(self, python_class: type[Any], kind: type[Any]) -> str:
        """The name to store for a class so that every worker finds it: registered name, otherwise dotted path."""
        elsewhere: str | None = getattr(python_class, "plugin_name", None)
        if elsewhere is not None:
            return elsewhere
        for plugin in self:
            if (
                plugin.path.rpartition(":")[2] == python_class.__qualname__
                and _may_be(plugin, kind)
                and _loadable(plugin)
                and plugin.python_class is python_class
            ):
                return plugin.name
        loader = loaders.loader_of(python_class)
        module = python_class.__module__ if loader is None else loader.public_name(python_class.__module__)
        return f"{module}.{python_class.__qualname__}"


def _requirement(version: str | None, key: str) -> VersionRange | None:
    try:
        return version_requirement(version)
    except InvalidVersionRange as error:
        raise ConnectError(
            f"Version {version} of the class at {key} is neither a version nor a range: {error}"
        ) from error


def _may_be(plugin: Plugin, kind: type[Any]) -> bool:
    """Whether a plugin can be of a kind, as far as that is known without loading it."""
    bases = (plugin.kind, *(type_.base for type_ in plugin.types))
    return any(issubclass(base, kind) or issubclass(kind, base) for base in bases if base is not object)


def _unlisted(loader: PluginLoader, name: str, kind: type[Any]) -> Sequence[Plugin]:
    """A class of a plugin location that is in no manifest, e.g. the task of its connector."""
    try:
        found = loader.load_class(name)
    except (ModuleNotFoundError, AttributeError, TypeError):
        return []
    except Exception as error:
        reason = not_loadable_twice(error) or error
        raise PluginLoadError(f"Class {name} of {loader.location} could not be loaded: {reason}") from error
    return [Plugin.of_class(name, found, kind)] if issubclass(found, kind) else []


def _newest(candidates: Sequence[Plugin], wanted: VersionRange | None) -> Plugin | None:
    if wanted is not None:
        candidates = [plugin for plugin in candidates if plugin.version in wanted]
    if len(candidates) < 2:
        return candidates[0] if candidates else None
    return max(candidates, key=lambda plugin: plugin.order)


def _wrong_version(name: str, wanted: VersionRange | None, there: list[Plugin]) -> VersionedPluginError:
    available = list(dict.fromkeys(plugin.version for plugin in sorted(there, key=lambda plugin: plugin.order)))
    return VersionedPluginError(
        f"Plugin {name} not found that matches the version range {wanted}, available versions: [{', '.join(available)}]",
        available,
    )


def _loadable(plugin: Plugin) -> bool:
    if plugin.needs_process is not None:
        return True
    try:
        _ = plugin.python_class
    except Exception as error:  # noqa: BLE001 - one invalid plugin must not affect the others
        log.debug("plugin cannot be loaded and is not listed", plugin=plugin.name, reason=str(error))
        return False
    return True


__all__ = ["Plugins", "VersionedPluginError", "version_of"]
