"""Plugins: what they are, how they are found, and how those of different locations are isolated.

registry     Plugins, the look-up by name, alias and version
builtin      the plugins that ship with Kafka, under Java's names
kinds        the kinds of plugins
plugin       one plugin in the registry
locations    the locations that plugin.path names
scan         manifests and scanning
loader       modules of a plugin location, isolated from those of others
extensions   compiled modules in plugin locations
"""

from mm2.connect.plugins.loader import PluginLoader
from mm2.connect.plugins.plugin import Plugin, PluginType
from mm2.connect.plugins.registry import Plugins, VersionedPluginError

__all__ = [
    "Plugin",
    "PluginLoader",
    "PluginType",
    "Plugins",
    "VersionedPluginError",
]
