"""The classes that the keys of the mirror connectors name, found among the plugins of the process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from mm2.config.configdef import ConfigDef, ConfigException, Type
from mm2.config.definitions.values import NoSuchClass, split_list
from mm2.config.keys.connector_keys import CONNECTOR_CONFIG
from mm2.config.keys.key_effects import Place, effect_of
from mm2.config.keys.mirror_keys import CONNECTOR_CLASSES
from mm2.config.mirrormaker import ALLOWED_CLASSES_KEY, MirrorMakerConfig
from mm2.connect.api import ConnectError
from mm2.connect.herder.plugin_infos import refusal
from mm2.connect.plugins import Plugins
from mm2.connect.plugins.registry import CONNECTOR_KEY, PluginLimits
from mm2.kafka.admin import Admin
from mm2.mirror.filters import ConfigPropertyFilter, GroupFilter, TopicFilter
from mm2.mirror.policy import ReplicationPolicy

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


_SHIPPED: Final = Plugins()
_process = _SHIPPED


def use(plugins: Plugins) -> None:
    """Find the classes of this process in ``plugins`` from now on: those of ``plugin.path``, within its limits.

    Without it, they are found among the plugins of this package and of the environment.
    """
    global _process  # noqa: PLW0603 - a process has one plugin.path, as Java has one class path
    _process = plugins


def plugin_props(config: MirrorMakerConfig, targets: Sequence[str] | None) -> dict[str, str]:
    """Where the plugins of all flows are: the workers share one registry."""
    workers = [
        config.worker_config(pair) for pair in config.cluster_pairs() if targets is None or pair.target in targets
    ]
    paths = dict.fromkeys(path for worker in workers for path in split_list(worker.get("plugin.path") or ""))
    discovery = [worker["plugin.discovery"] for worker in workers if "plugin.discovery" in worker]
    return {"plugin.path": ",".join(paths)} | ({"plugin.discovery": discovery[0]} if discovery else {}) if paths else {}


def connect_plugins(props: Mapping[str, str] | None = None) -> Plugins:
    """The classes that this process finds by name from now on; ``props`` may name further places (``plugin.path``)."""
    plugins = Plugins(props or None)
    use(plugins)
    return plugins


def plugin_limits(config: MirrorMakerConfig) -> PluginLimits:
    """The classes that the workers of this process load: those of MirrorMaker, and those that the file names."""
    own = frozenset([*CONNECTOR_CLASSES, *(f"{name.removesuffix('Connector')}Task" for name in CONNECTOR_CLASSES)])
    return PluginLimits(own, config.named_classes(), ALLOWED_CLASSES_KEY)


def _configured(key: str, kind: type[Any], default: str, props: Mapping[str, str]) -> Any:
    name = props.get(key, default)
    plugin = _process.new(name, kind, key=key)
    try:
        with _process.swap(_process.loader_of(plugin)):
            plugin.configure(props)
    except (ConfigException, ConnectError):
        raise
    except Exception as error:  # an exception of a custom class must only affect its user
        reason = f"{type(error).__name__}: {error}"
        raise ConnectError(f"Class {name} of configuration {key} cannot be configured: {reason}") from error
    return plugin


def ships(key: str, name: str) -> bool:
    """Whether a class of one of :data:`CLASS_KEYS` is part of this package."""
    return _SHIPPED.is_registered(name, CLASS_KEYS[key])


def unusable_classes(props: Mapping[str, str], definition: ConfigDef) -> dict[str, ConfigException]:
    """The error of each class in ``props`` that cannot be used, by key. Messages are Kafka's."""
    errors: dict[str, ConfigException] = {}
    for key in _class_keys(definition):
        try:
            _USABLE.ensure_valid(key, props.get(key, "").strip())
        except ConfigException as error:
            errors[key] = error
    return errors


def with_class_checks(definition: ConfigDef) -> ConfigDef:
    """The definition with a validator that looks each class up."""
    checked = ConfigDef(definition)
    for key in _class_keys(definition):
        checked.redefine(key, validator=_USABLE)
    return checked


def _class_keys(definition: ConfigDef) -> list[str]:
    return [key for key, row in definition.keys.items() if row.type is Type.CLASS and key != CONNECTOR_KEY]


class _Usable:
    """The class can be used. Classes of TLS and SASL are Java's: those whose work is done here count as known."""

    def ensure_valid(self, name: str, value: object) -> None:
        """See Validator."""
        if not isinstance(value, str) or not value:
            return
        kind = CLASS_KEYS.get(name, object if name in CONNECTOR_CONFIG else None)
        if kind is not None:
            try:
                _process.find(value, kind, key=name)
            except ConnectError as error:
                raise refusal(_process, value, kind, name, None, error) from error
        elif (effect := effect_of(Place.MIRROR, name)) is not None and value not in effect.accepted:
            raise NoSuchClass(name, value, f"Class {value} could not be found.")


_USABLE: Final = _Usable()


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
    return _process.find(props.get(ADMIN_KEY, "ForwardingAdmin"), Admin, key=ADMIN_KEY)
