"""Plugins: what they are, where they are found, and how those of different locations are kept apart.

registry     Plugins, the look-up by name, alias and version
builtin      what ships with Kafka, under Java's names
kinds        the kinds of plugins
plugin       one plugin as the registry knows it
locations    what plugin.path points at
scan         manifests and scanning
loader       modules of a plugin location, apart from those of others
extensions   compiled modules in plugin locations
"""

from mm2.connect.plugins.kinds import PluginType
from mm2.connect.plugins.loader import PluginLoader
from mm2.connect.plugins.plugin import Plugin
from mm2.connect.plugins.registry import Plugins, VersionedPluginError

__all__ = [
    "Plugin",
    "PluginLoader",
    "PluginType",
    "Plugins",
    "VersionedPluginError",
]
