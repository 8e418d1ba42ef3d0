"""Limits the classes that a registry loads by name: MirrorMaker's workers need few, and REST is no place to add more."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mm2.connect.errors import ConnectError
from mm2.connect.plugins.plugin import Plugin, PluginType

#: Admits all classes.
EVERY_CLASS = "*"
_LIMITED_TYPES = frozenset({PluginType.SINK, PluginType.SOURCE, PluginType.TASK})


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
