"""Validation of a connector's configuration before it is stored (AbstractHerder.validateConnectorConfig).

Transformations and predicates add keys to the definition (ConnectorConfig.enrich of Java).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mm2.config.configdef import ConfigDef, ConfigException, ConfigKey, Importance, Recommender, Type, Width, split_list
from mm2.config.definitions.config_infos import ConfigInfos, ConfigValue
from mm2.config.definitions.java_regex import compile_java
from mm2.config.definitions.validators import PLUGIN_VERSION
from mm2.config.definitions.values import parse_type, show
from mm2.config.keys.client_keys import ROLE_CONFIGS
from mm2.config.keys.connector_keys import CONNECTOR_CONFIG, SINK_CONNECTOR_CONFIG, source_connector_config
from mm2.config.keys.key_effects import Place, effect_of
from mm2.config.keys.worker_keys import storage_topics
from mm2.connect.api import (
    ConnectError,
    Connector,
    Converter,
    HeaderConverter,
    Predicate,
    SinkConnector,
    Transformation,
)
from mm2.connect.errors import BadRequest
from mm2.connect.herder.plugin_infos import refusal, require_converters, with_plugins
from mm2.connect.herder.request_queue import StageTracker
from mm2.connect.override_policies import (
    POLICY_KEY,
    ClientType,
    ConnectorClientConfigOverridePolicy,
    ConnectorClientConfigRequest,
)
from mm2.connect.plugins import Plugins
from mm2.connect.plugins.loader import PluginLoader
from mm2.connect.plugins.plugin import PluginType
from mm2.connect.runtime.exactly_once_settings import ExactlyOnceSupport, preflight
from mm2.connect.runtime.worker import Worker
from mm2.connect.stores.config_state import Props

#: Keys that every transformation has in addition to its own.
_STAGE: Final = (
    ConfigDef()
    .define(
        "predicate",
        Type.STRING,
        None,
        None,
        Importance.MEDIUM,
        "The alias of a predicate used to determine whether to apply this transformation.",
    )
    .define("negate", Type.BOOLEAN, False, None, Importance.MEDIUM, "Whether the configured predicate is negated.")
)


_UNSTARTED: Final = "The connector is not started: only its configuration is validated"


@dataclass(frozen=True)
class _Kind:
    """Whether the plugins are transformations or predicates."""

    key: str
    group: str
    base: type[Any]
    type: PluginType
    implicit: ConfigDef


_KINDS: Final = (
    _Kind("transforms", "Transforms", Transformation, PluginType.TRANSFORMATION, _STAGE),
    _Kind("predicates", "Predicates", Predicate, PluginType.PREDICATE, ConfigDef()),
)


@dataclass(frozen=True)
class _TypeValidator:
    """Validates the class of an alias by reading the keys that it defines."""

    check: Callable[[str, object], None]
    text: str

    def ensure_valid(self, name: str, value: object) -> None:
        """See Validator."""
        self.check(name, value)

    def __str__(self) -> str:
        return self.text


def with_aliased_plugins(
    base: ConfigDef, props: Mapping[str, str], plugins: Plugins, loader: PluginLoader | None
) -> ConfigDef:
    """``base`` and, for each alias in ``transforms`` and ``predicates``, its ``type`` and the keys of that class.

    A class that cannot be used is reported as an error of its ``type`` and adds no keys. Classes are looked up in the
    connector's ``loader`` first.
    """
    definition = ConfigDef(base)
    for kind in _KINDS:
        for alias in dict.fromkeys(split_list(props.get(kind.key) or "")):
            _AliasedPlugin(kind, alias, props, plugins, loader).embed_in(definition)
    return definition


@dataclass(frozen=True)
class _AliasedPlugin:
    """A transformation or predicate of a connector, with the keys that its alias yields."""

    kind: _Kind
    alias: str
    props: Mapping[str, str]
    plugins: Plugins
    loader: PluginLoader | None

    @property
    def prefix(self) -> str:
        return f"{self.kind.key}.{self.alias}."

    @property
    def type_key(self) -> str:
        return f"{self.prefix}type"

    @property
    def version_key(self) -> str:
        return f"{self.prefix}plugin.version"

    @property
    def _name(self) -> str:
        return self.kind.base.__name__

    def embed_in(self, definition: ConfigDef) -> None:
        """Add the keys of the alias, and those of the plugin itself if it can be created."""
        if self.type_key in definition:  # a key of the connector with the same name
            return
        group = f"{self.kind.group}: {self.alias}"
        self._define_class_and_version(definition, group)
        try:
            own = self._keys_of(self.props.get(self.type_key) or "")
        except ConfigException:
            return
        rows = ConfigDef(own)
        for row in self.kind.implicit.keys.values():
            if row.name not in rows:
                rows.include(self.kind.implicit.only([row.name]))
        definition.embed(self.prefix, group, 2, rows)

    def _define_class_and_version(self, definition: ConfigDef, group: str) -> None:
        alias, name = self.alias, self._name
        definition.define(
            self.type_key,
            Type.CLASS,
            validator=_TypeValidator(self._check_class, f"valid configs for {alias} {name.lower()}"),
            importance=Importance.HIGH,
            doc=f"Class for the '{alias}' {name.lower()}.",
            group=group,
            order=0,
            width=Width.LONG,
            display_name=f"{name} type for {alias}",
            recommender=Recommender(
                lambda _name, _parsed: [plugin.name for plugin in self.plugins.list(self.kind.type)]
            ),
        )
        definition.define(
            self.version_key,
            Type.STRING,
            next(iter(self._versions()[::-1]), None),
            PLUGIN_VERSION,
            Importance.HIGH,
            f"Version of the '{alias}' {name.lower()}.",
            group=group,
            order=1,
            width=Width.LONG,
            display_name=f"{name} version for {alias}",
            recommender=Recommender(lambda _name, _parsed: list(self._versions())),
        )

    def _versions(self) -> Sequence[str]:
        return self.plugins.versions(str(self.props.get(self.type_key) or ""), self.kind.base)

    def _check_class(self, _key: str, value: object) -> None:
        negate, predicate = f"{self.prefix}negate", f"{self.prefix}predicate"
        if self.kind.base is Transformation and negate in self.props and predicate not in self.props:
            raise ConfigException(
                f"Config '{negate}' was provided but there is no config '{predicate}' defining a predicate to be negated."
            )
        if value is not None:
            self._keys_of(str(value))

    def _keys_of(self, class_name: str) -> ConfigDef:
        """The plugin's own keys. Raises ConfigException."""
        base, key, plugins, loader = self.kind.base, self.type_key, self.plugins, self.loader
        version = self.props.get(self.version_key)
        try:
            plugin = plugins.new(class_name, base, key=key, version=version, loader=loader)
            with plugins.swap(plugins.loader_of(plugin)):
                found = plugin.config()
        except ConnectError as error:
            raise refusal(plugins, class_name, base, key, loader, error) from error
        except Exception as error:
            raise ConfigException(
                key, class_name, f"Error getting config definition from {self._name}: {error}"
            ) from error
        if not isinstance(found, ConfigDef):
            raise ConfigException(key, class_name, f"{self._name} {class_name} returns no config definition")
        return found


_CLASS: Final = "connector.class"
_NULL: Final = "Null value can not be supplied as the configuration value."
_DLQ: Final = "errors.deadletterqueue.topic.name"
_CONVERTERS: Final = (
    ("header.converter", HeaderConverter, "header converter", "header"),
    ("key.converter", Converter, "key converter", "key"),
    ("value.converter", Converter, "value converter", "value"),
)


@dataclass(frozen=True)
class _UnstartedContext:
    """The context of a connector whose configuration is validated: it knows the worker, and can request nothing."""

    group_id: str
    worker_topics: frozenset[str]

    def request_task_reconfiguration(self) -> None:
        """Raises ConnectError."""
        raise ConnectError(_UNSTARTED)

    def stored_task_configs(self) -> list[dict[str, str]]:
        """None: the configuration is not that of a running connector."""
        return []

    def raise_error(self, exc: Exception) -> None:
        """Raises ConnectError."""
        raise ConnectError(_UNSTARTED) from exc


class ConnectorValidation:
    """Validates a configuration with every plugin in it.

    Calls may block indefinitely, so run them on separate threads; the tracker names the plugin in progress.
    ``group_id`` is None for a standalone worker. Raises ConfigException for a converter of the worker that cannot be used.
    """

    def __init__(self, worker: Worker, group_id: str | None) -> None:
        config = worker.config
        require_converters(worker.plugins, config.values)
        self._worker = worker
        self._plugins = worker.plugins
        self._group_id = group_id
        self._context = _UnstartedContext(group_id or "", storage_topics(worker.config.originals))
        self._support = ExactlyOnceSupport.DISABLED if group_id is None else ExactlyOnceSupport.of(config)
        self._policy = self._plugins.new(
            config.str(POLICY_KEY),
            ConnectorClientConfigOverridePolicy,
            key=POLICY_KEY,
        )
        self._policy.configure({key: str(value) for key, value in config.originals.items()})

    def close(self) -> None:
        """Close the override policy."""
        self._policy.close()

    def validate(self, raw: Props, stages: StageTracker) -> ConfigInfos:
        """The result of ``config/validate``, with references in place of the values of config providers.

        Raises BadRequest when validation is not possible, and otherwise what plugins raise.
        """
        with stages.during("resolving transformed configuration properties for the connector"):
            resolution = self._worker.resolution(raw)
        values = resolution.values
        with values.hidden_in_errors():
            return self._of_class(raw, resolution.data, stages).hidden(values.written, values.hide)

    def _of_class(self, raw: Props, props: Mapping[str, str], stages: StageTracker) -> ConfigInfos:
        name = props.get(_CLASS)
        if name is None:
            raise BadRequest(f"Connector config {sorted(raw)} contains no connector type")
        try:
            with stages.during("instantiating the connector for validation"):
                connector, loader = self._plugins.new_connector(props), self._plugins.connector_loader(props)
        except ConnectError as error:
            return _unusable(name, props, error)
        # Not by initialize(), which Java does not call before validate(), and which plugins may extend.
        connector.context = self._context
        with self._plugins.swap(loader):
            return self._validate(name, raw, props, connector, loader, stages)

    def _validate(
        self,
        name: str,
        raw: Props,
        props: Mapping[str, str],
        connector: Connector,
        loader: PluginLoader | None,
        stages: StageTracker,
    ) -> ConfigInfos:
        sink = isinstance(connector, SinkConnector)
        base = SINK_CONNECTOR_CONFIG if sink else source_connector_config(props)
        base = with_plugins(base, self._plugins, props, self._worker.config.values, loader)
        kind = "sink" if sink else "source"
        with stages.during(f"validating {kind} connector-specific properties for the connector"):
            definition = with_aliased_plugins(base, props, self._plugins, loader)
            # A JSON null is not the same as no key: Java's validators get the null, and the default does not apply.
            nulls = [key for key, value in raw.items() if value is None]
            given: dict[str, str | None] = {**props, **dict.fromkeys(nulls)}
            values = {value.name: value for value in definition.config_values(given)}
            if sink:
                self._check_sink(props, values)
            else:
                _add(values, props, preflight(connector, props, self._support))
        _add(values, props, [(key, _NULL) for key in nulls])

        with stages.during("retrieving the configuration definition from the connector"):
            own: Any = connector.config()
        if not isinstance(own, ConfigDef):
            raise BadRequest(f"{type(connector).__qualname__}.config() must return a ConfigDef that is not null.")
        with stages.during("performing multi-property validation for the connector"):
            problems: Any = connector.validate(props)
        if problems is None:
            raise BadRequest(f"{type(connector).__qualname__}.validate() must return a Config that is not null.")
        for value in own.config_values(given):
            if value.name not in nulls:
                value.errors = []  # the connector's own validation has reported these errors
            values[value.name] = value
        # As in Java, an error for a key that the connector does not declare is reported without the key's value.
        _add(values, {}, [(key, problem) for key, problem in problems if key not in nulls])

        parts = [self._converter_part(props, values, loader, stages, *converter) for converter in _CONVERTERS]
        keys: dict[str, ConfigKey] = {**definition.keys, **own.keys}
        groups = list(dict.fromkeys([*definition.groups, *own.groups]))
        infos = ConfigInfos.of(name, keys, values.values(), groups)
        overrides = [self._override_part(role, props, connector, kind, stages) for role in self._roles(sink, props)]
        return ConfigInfos.together(name, [infos, *overrides, *(part for part in parts if part is not None)])

    # -- sinks

    def _check_sink(self, props: Mapping[str, str], values: dict[str, ConfigValue]) -> None:
        named, pattern = props.get("topics", "").strip(), props.get("topics.regex", "").strip()
        dead_letters = props.get(_DLQ, "").strip()
        problems: list[tuple[str, str]] = []
        if named and pattern:
            message = "topics and topics.regex are mutually exclusive options, but both are set."
            problems += [("topics", message), ("topics.regex", message)]
        if not named and not pattern:
            message = "Must configure one of topics or topics.regex"
            problems += [("topics", message), ("topics.regex", message)]
        if dead_letters and dead_letters in split_list(named):
            message = f"The DLQ topic '{dead_letters}' may not be included in the list of topics ('topics={show(split_list(named))}')"
            problems.append(("topics", f"{message} consumed by the connector"))
        if dead_letters and pattern and _matches(pattern, dead_letters):
            message = f"The DLQ topic '{dead_letters}' may not be matched by the regex for the topics"
            problems.append(("topics.regex", f"{message} ('topics.regex={pattern}') consumed by the connector"))
        if self._group_id is not None:
            problems += _group_problems(props, self._group_id)
        _add(values, props, problems)

    # -- converters

    def _converter_part(
        self,
        props: Mapping[str, str],
        values: Mapping[str, ConfigValue],
        loader: PluginLoader | None,
        stages: StageTracker,
        key: str,
        base: type[Any],
        what: str,
        converter_type: str,
    ) -> ConfigInfos | None:
        """Keys of the connector's own converter; None when it has none, or the converter cannot be used."""
        class_name, value = props.get(key), values.get(key)
        if class_name is None or value is None or value.errors:
            return None
        version = props.get(f"{key}.plugin.version")
        try:
            with stages.during(f"instantiating the connector's {what} for validation"):
                converter = self._plugins.new(class_name, base, key=key, version=version, loader=loader)
        except ConnectError as error:
            value.errors.append(f"Failed to load class {class_name}: {error}")
            return None
        try:
            with self._plugins.swap(self._plugins.loader_of(converter)):
                with stages.during(f"retrieving the configuration definition from the connector's {what}"):
                    definition = converter.config()
                if definition is None:
                    return None
                own = {"converter.type": converter_type, **_under(f"{key}.", props)}
                with stages.during(f"performing config validation for the connector's {what}"):
                    found = definition.config_values(own)
        except Exception as error:  # noqa: BLE001 - plugins may raise any exception
            value.errors.append(f"Failed to perform config validation for {what}: {error}")
            return None
        finally:
            _close(converter)
        return ConfigInfos.under_prefix(definition.keys, found, f"{key}.")

    # -- clients

    def _roles(self, sink: bool, props: Mapping[str, str]) -> list[ClientType]:
        """The clients that a connector uses."""
        dead_letters = sink and bool(props.get(_DLQ, "").strip())
        own_offsets = not sink and (
            self._support is ExactlyOnceSupport.ENABLED or bool(props.get("offsets.storage.topic", "").strip())
        )
        creates = not sink and any(key.startswith("topic.creation.") for key in props)
        roles = []
        if not sink or dead_letters:
            roles.append(ClientType.PRODUCER)
        if creates or dead_letters or own_offsets:
            roles.append(ClientType.ADMIN)
        if sink or own_offsets:
            roles.append(ClientType.CONSUMER)
        return roles

    def _override_part(
        self, role: ClientType, props: Mapping[str, str], connector: Connector, kind: str, stages: StageTracker
    ) -> ConfigInfos:
        definition, prefix = ROLE_CONFIGS[role.value], f"{role.value}.override."
        with stages.during(f"validating {role.value} config overrides for the connector"):
            wanted: dict[str, object] = {}
            wrong: list[ConfigValue] = []
            for key, text in _under(prefix, props).items():
                try:
                    known = definition.keys.get(key)
                    wanted[key] = text if known is None else parse_type(key, text, known.type)
                except ConfigException as error:
                    wrong.append(ConfigValue(key, None, errors=[str(error)]))
            request = ConnectorClientConfigRequest(props.get("name", ""), kind, type(connector), role, wanted)
            judged = list(self._policy.validate(request))
            for value in judged:
                row = effect_of(Place(role.value), value.name)
                if row is not None and (reason := row.refusal(str(wanted.get(value.name) or ""))):
                    value.errors.append(str(ConfigException(f"{prefix}{value.name}", wanted[value.name], reason)))
        return ConfigInfos.under_prefix(definition.keys, [*judged, *wrong], prefix)


def require_valid(infos: ConfigInfos) -> None:
    """Raises BadRequest that lists all errors."""
    if not infos.error_count:
        return
    errors = "\n".join(message for _, message in infos.errors)
    raise BadRequest(
        f"Connector configuration is invalid and contains the following {infos.error_count} error(s):\n{errors}\nYou can also find "
        "the above list of errors at the endpoint `/connector-plugins/{connectorType}/config/validate`"
    )


def _unusable(name: str, props: Mapping[str, str], error: ConnectError) -> ConfigInfos:
    """The connector cannot be used: report the reason, and validate the keys that all connectors share."""
    values = {value.name: value for value in CONNECTOR_CONFIG.config_values(props)}
    values[_CLASS].errors.append(str(error))
    return ConfigInfos.of(name, CONNECTOR_CONFIG.keys, values.values(), CONNECTOR_CONFIG.groups)


def _add(values: dict[str, ConfigValue], props: Mapping[str, str], problems: Iterable[tuple[str, str]]) -> None:
    for key, message in problems:
        value = values.get(key)
        if value is None:
            value = values[key] = ConfigValue(key, props.get(key))
        if message not in value.errors:
            value.errors.append(message)


def _group_problems(props: Mapping[str, str], worker_group: str) -> list[tuple[str, str]]:
    """The consumers of a sink must not be in the group of the workers."""
    key, name = "consumer.override.group.id", props.get("name")
    if key in props:
        if props[key] != worker_group:
            return []
        return [(key, f"Consumer group {worker_group} conflicts with Connect worker group {worker_group}")]
    if f"connect-{name}" != worker_group:
        return []
    message = f"Consumer group for sink connector named {name} conflicts with Connect worker group {worker_group}"
    return [("name", message)]


def _matches(pattern: str, topic: str) -> bool:
    try:
        return compile_java(pattern).fullmatch(topic) is not None
    except ValueError:
        return False  # the key's own validator reports it


def _under(prefix: str, props: Mapping[str, str]) -> dict[str, str]:
    return {key.removeprefix(prefix): value for key, value in props.items() if key.startswith(prefix) and key != prefix}


def _close(plugin: Any) -> None:
    close = getattr(plugin, "close", None)
    if callable(close):
        close()
