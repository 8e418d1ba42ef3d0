"""Finding the class behind a name in a configuration (org.apache.kafka.connect.runtime.isolation.Plugins).

Names may be a Java class name (`org.apache.kafka.connect.mirror.MirrorSourceConnector`), its simple name, the simple
name without the suffix of its kind (`MirrorSource`), or the dotted path of a Python class. Java names are known by
registration only: the program that embeds the runtime registers what it brings, so that this package needs no import
of it.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog

from mm2.connect.api import ConnectError, Connector, Converter, HeaderConverter
from mm2.connect.converters import ByteArrayConverter

log = structlog.get_logger(__name__)

C = TypeVar("C")

#: Suffixes that an alias may leave out, by kind of plugin.
_SUFFIXES: dict[type[Any], tuple[str, ...]] = {
    Connector: ("Connector",),
    Converter: ("Converter",),
    HeaderConverter: ("HeaderConverter", "Converter"),
}


@dataclass(frozen=True)
class Plugin:
    """One registered class under its Java name."""

    java_name: str
    kind: type[Any]
    python_class: type[Any]

    @property
    def simple_name(self) -> str:
        """The Java name without its package; nested classes keep the outer class away, as in Java."""
        return self.java_name.rsplit(".", 1)[-1].rsplit("$", 1)[-1]

    @property
    def aliases(self) -> tuple[str, ...]:
        """Short names, the simple name first."""
        pruned = tuple(
            self.simple_name.removesuffix(suffix)
            for suffix in _SUFFIXES.get(self.kind, ())
            if self.simple_name.endswith(suffix) and self.simple_name != suffix
        )
        return (self.simple_name, *pruned)


class Plugins:
    """A registry of plugin classes. Filled at start-up, only read afterwards."""

    def __init__(self) -> None:
        self._plugins: dict[tuple[type[Any], str], Plugin] = {}
        for kind in (Converter, HeaderConverter):
            self.register("org.apache.kafka.connect.converters.ByteArrayConverter", ByteArrayConverter, kind=kind)

    def register(self, java_name: str, python_class: type[C], *, kind: type[Any]) -> None:
        """Make a class known under a Java class name; ``kind`` is the base it is looked up as.

        Raises ConnectError when the class is not of that kind.
        """
        if not issubclass(python_class, kind):
            raise ConnectError(f"{python_class.__qualname__} is registered as {kind.__name__} but is none")
        self._plugins[kind, java_name] = Plugin(java_name, kind, python_class)

    def __iter__(self) -> Iterator[Plugin]:
        return iter(self._plugins.values())

    def find(self, name: str, kind: type[C], *, key: str) -> type[C]:
        """The class that ``name`` means, where ``key`` is the configuration key it stands at.

        Raises ConnectError, one sentence naming class and key, when there is none, when an alias means several, or
        when the class is of another kind.
        """
        name = name.strip()
        if not name:
            raise ConnectError(f"Configuration {key} names no class")
        exact = self._plugins.get((kind, name))
        if exact is not None:
            return exact.python_class
        candidates = [plugin for plugin in self if plugin.kind is kind and name in plugin.aliases]
        if len(candidates) > 1:
            meant = ", ".join(sorted(plugin.java_name for plugin in candidates))
            raise ConnectError(f"Class {name} of configuration {key} is ambiguous: it could mean {meant}")
        if candidates:
            return candidates[0].python_class
        return self._import(name, kind, key)

    @staticmethod
    def _import(name: str, kind: type[C], key: str) -> type[C]:
        missing = f"Class {name} of configuration {key} could not be found"
        module_name, _, attribute = name.rpartition(".")
        if not module_name:
            raise ConnectError(f"{missing}: no {kind.__name__.lower()} is registered under this name or alias")
        try:
            found = getattr(importlib.import_module(module_name), attribute)
        except (ModuleNotFoundError, AttributeError) as error:
            raise ConnectError(f"{missing}: it is neither a known Java class nor a Python class ({error})") from error
        except Exception as error:
            raise ConnectError(f"Class {name} of configuration {key} could not be loaded: {error}") from error
        if not isinstance(found, type) or not issubclass(found, kind):
            raise ConnectError(f"Class {name} of configuration {key} is not a {kind.__name__}")
        return found

    def new(self, name: str, kind: type[C], *, key: str) -> C:
        """An instance of the class that ``name`` means. Raises as :meth:`find`, also when constructing fails."""
        python_class = self.find(name, kind, key=key)
        try:
            return python_class()
        except Exception as error:
            raise ConnectError(f"Class {name} of configuration {key} could not be instantiated: {error}") from error

    def name_of(self, python_class: type[Any], kind: type[Any]) -> str:
        """The name to store for a class so that every worker finds it: its Java name if it has one, else its dotted path."""
        for plugin in self:
            if plugin.kind is kind and plugin.python_class is python_class:
                return plugin.java_name
        return f"{python_class.__module__}.{python_class.__qualname__}"
