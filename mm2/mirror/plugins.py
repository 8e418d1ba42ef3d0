"""Resolves class names in MirrorMaker configurations: a Java class name maps to our class of the same simple name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mm2.config.configdef import ConfigException
from mm2.connect.api import ConnectError
from mm2.connect.plugins import Plugins
from mm2.kafka.admin import Admin
from mm2.mirror.filters import (
    ConfigPropertyFilter,
    DefaultConfigPropertyFilter,
    DefaultGroupFilter,
    DefaultTopicFilter,
    GroupFilter,
    TopicFilter,
)
from mm2.mirror.policy import DefaultReplicationPolicy, IdentityReplicationPolicy, ReplicationPolicy

JAVA_PACKAGE: Final = "org.apache.kafka.connect.mirror"

POLICY_KEY: Final = "replication.policy.class"
TOPIC_FILTER_KEY: Final = "topic.filter.class"
GROUP_FILTER_KEY: Final = "group.filter.class"
CONFIG_PROPERTY_FILTER_KEY: Final = "config.property.filter.class"
ADMIN_KEY: Final = "forwarding.admin.class"

CLASS_KEYS: Final[Mapping[str, type[Any]]] = {
    POLICY_KEY: ReplicationPolicy,
    TOPIC_FILTER_KEY: TopicFilter,
    GROUP_FILTER_KEY: GroupFilter,
    CONFIG_PROPERTY_FILTER_KEY: ConfigPropertyFilter,
    ADMIN_KEY: Admin,
}
"""The keys of the mirror connectors that name classes, with the kind of the class."""


def _registry() -> Plugins:
    plugins = Plugins()
    for policy in (DefaultReplicationPolicy, IdentityReplicationPolicy):
        plugins.register(f"{JAVA_PACKAGE}.{policy.__name__}", policy, kind=ReplicationPolicy)
    plugins.register(f"{JAVA_PACKAGE}.DefaultTopicFilter", DefaultTopicFilter, kind=TopicFilter)
    plugins.register(f"{JAVA_PACKAGE}.DefaultGroupFilter", DefaultGroupFilter, kind=GroupFilter)
    plugins.register(
        f"{JAVA_PACKAGE}.DefaultConfigPropertyFilter", DefaultConfigPropertyFilter, kind=ConfigPropertyFilter
    )
    plugins.register("org.apache.kafka.clients.admin.ForwardingAdmin", Admin, kind=Admin)
    return plugins


_PLUGINS: Final = _registry()


def _configured(key: str, kind: type[Any], default: str, props: Mapping[str, str]) -> Any:
    name = props.get(key, default)
    plugin = _PLUGINS.new(name, kind, key=key)
    try:
        plugin.configure(props)
    except (ConfigException, ConnectError):
        raise
    except Exception as error:  # an exception of a custom class must only affect its user
        reason = f"{type(error).__name__}: {error}"
        raise ConnectError(f"Class {name} of configuration {key} cannot be configured: {reason}") from error
    return plugin


def ships(key: str, name: str) -> bool:
    """Whether a class of one of :data:`CLASS_KEYS` is part of this package."""
    return _PLUGINS.is_registered(name, CLASS_KEYS[key])


# Each of these raises ConnectError if the class cannot be loaded, ConfigException if it rejects the properties.


def replication_policy(props: Mapping[str, str]) -> ReplicationPolicy:
    configured: ReplicationPolicy = _configured(POLICY_KEY, ReplicationPolicy, "DefaultReplicationPolicy", props)
    return configured


def topic_filter(props: Mapping[str, str]) -> TopicFilter:
    configured: TopicFilter = _configured(TOPIC_FILTER_KEY, TopicFilter, "DefaultTopicFilter", props)
    return configured


def group_filter(props: Mapping[str, str]) -> GroupFilter:
    configured: GroupFilter = _configured(GROUP_FILTER_KEY, GroupFilter, "DefaultGroupFilter", props)
    return configured


def config_property_filter(props: Mapping[str, str]) -> ConfigPropertyFilter:
    configured: ConfigPropertyFilter = _configured(
        CONFIG_PROPERTY_FILTER_KEY, ConfigPropertyFilter, "DefaultConfigPropertyFilter", props
    )
    return configured


def admin_class(props: Mapping[str, str]) -> type[Admin]:
    """The class of the mirror admins; a custom one is a subclass of `mm2.kafka.admin.Admin` (KIP-787)."""
    return _PLUGINS.find(props.get(ADMIN_KEY, "ForwardingAdmin"), Admin, key=ADMIN_KEY)
