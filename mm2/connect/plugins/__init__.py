"""Plugins: what they are, how they are found, and how those of different locations are isolated.

registry    Plugins, the look-up by name, alias and version, and its limits
builtin     the plugins that ship with Kafka, under Java's names
plugin      the kinds of plugins, and one plugin in the registry
scan        the locations that plugin.path names; manifests and scanning
loader      modules of a plugin location, isolated from those of others
process     connectors and tasks in their own process
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
