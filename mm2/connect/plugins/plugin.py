"""One plugin in the registry (org.apache.kafka.connect.runtime.isolation.PluginDesc)."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mm2.config.versions import Version
from mm2.connect.plugins.kinds import PluginType, types_of
from mm2.connect.plugins.loader import PluginLoader, loader_of, swap

UNDEFINED = "undefined"
"""Version of a plugin that tells none."""
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
            raise TypeError(f"{self.path} is no class")
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
            told = python_class().version()
    except Exception:  # noqa: BLE001 - a plugin without a version is still listed
        return UNDEFINED
    return told if isinstance(told, str) and told else UNDEFINED
