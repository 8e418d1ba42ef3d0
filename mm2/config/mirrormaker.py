"""MirrorMaker's file: derives the settings of every flow from one map of strings (Kafka's ``MirrorMakerConfig``).

The derivations give for each derived key *the key of the file* that it comes from. Values, precedence, and errors with
the key as written in the file are all based on these maps.

=============  =====================================================================================================
key of a file  meaning
=============  =====================================================================================================
``x``          top key
``A.x``        cluster key: the clients of A, and the workers whose target cluster is A
``A->B.x``     flow key: the three connectors of one flow; overrides all other keys for them
=============  =====================================================================================================
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from mm2.config.configdef import (
    AbstractConfig,
    ConfigDef,
    ConfigException,
    ConfigKey,
    Importance,
    Type,
    distinct,
    missing,
    split_list,
)
from mm2.config.definitions.values import trim
from mm2.config.keys.client_keys import CLIENT_KEYS, CLUSTER_CONFIG, ROLE_CONFIGS
from mm2.config.keys.key_effects import Effect, IneffectiveKey, check_effects, flow_uses, process_uses
from mm2.config.keys.mirror_keys import (
    CONNECTOR_CLASSES,
    CONNECTOR_CONFIGS,
    CONNECTOR_KEYS,
    OWN_CONFIG,
    PRESERVE_KEY,
    SOURCE_CONNECTOR,
    THROTTLE_KEY,
    TOPIC_THROTTLE_PREFIX,
    default_group,
)
from mm2.config.keys.rest_keys import LISTENER_PREFIXES, MIRROR_REST_CONFIG
from mm2.config.keys.security_keys import SASL_CONFIG, SECURITY_PROTOCOL_CONFIG, TLS_CONFIG
from mm2.config.keys.worker_keys import DISTRIBUTED_CONFIG, check_signature_accepted
from mm2.config.providers import ConfigTransformer
from mm2.config.unread import KeyReaders

ALLOWED_CLASSES_KEY: Final = "plugin.allowed.classes"
EXACTLY_ONCE_KEY: Final = "exactly.once.source.support"

TOP_CONFIG: Final = (
    ConfigDef()
    .define("clusters", Type.LIST, validator=distinct(), importance=Importance.HIGH, doc="Aliases of all clusters.")
    .define(
        "dedicated.mode.enable.internal.rest",
        Type.BOOLEAN,
        False,
        None,
        Importance.HIGH,
        "Serve the REST resources that the processes of one deployment use among each other.",
    )
    .define("config.providers", Type.LIST, [], distinct(), Importance.LOW, "Names of config providers.")
    .define(
        ALLOWED_CLASSES_KEY,
        Type.LIST,
        [],
        distinct(),
        Importance.LOW,
        "Classes that connector configurations may name besides the three connectors of MirrorMaker, the converters, "
        "transformations and predicates that ship with Kafka, and the classes that this file names; * = all.",
    )
    .include(SECURITY_PROTOCOL_CONFIG)
    .include(TLS_CONFIG)
    .include(SASL_CONFIG)
    .include(MIRROR_REST_CONFIG)
)
"""Keys of the process itself; all of them are checked when the file is read."""

WORKER_PREFIXES: Final = (
    "offset.storage",
    "config.storage",
    "status.storage",
    "key.converter",
    "value.converter",
    "header.converter",
    "task",
    "worker",
    "replication.policy",
)
"""Top keys with these prefixes apply to every worker and override the cluster's own key."""

DEDICATED_WORKER_DEFAULTS: Final = {"scheduled.rebalance.max.delay.ms": "0"}
"""Defaults of workers in a MirrorMaker process that differ from those of other workers.

The tasks of a process that died are reassigned immediately instead of after five minutes.
"""

_PROVIDERS: Final = "config.providers"
_SPARK: Final = "spark."
_ROLES: Final = tuple(ROLE_CONFIGS)
#: Last part of the keys whose values name classes.
_CLASS_KEYS: Final = frozenset({"class", "classes", "type", "converter", "policy"})
_FREE_PREFIXES: Final = (_PROVIDERS, "replication.policy", TOPIC_THROTTLE_PREFIX)
"""Top keys that every connector receives although none declares them."""
BYTE_ARRAY_CONVERTER: Final = "org.apache.kafka.connect.converters.ByteArrayConverter"


_NOTHING_ENABLED: Final = "The file enables no flow, so nothing is copied: processes write only heartbeats. Enable one with SOURCE->TARGET.enabled = true."


@dataclass(frozen=True, order=True)
class SourceAndTarget:
    """A flow by its clusters' aliases; ``str`` gives ``A->B``."""

    source: str
    target: str

    def __str__(self) -> str:
        return f"{self.source}->{self.target}"


@dataclass(frozen=True)
class Derived:
    """Derived settings: from the file (derived key → key of the file), and made by MirrorMaker itself (key → value)."""

    origins: dict[str, str]
    made: dict[str, str]

    def origin(self, key: str, otherwise: str) -> str:
        """The key of the file that ``key`` comes from; ``otherwise`` if it is not in the file."""
        return self.origins.get(key, otherwise)


class MirrorMakerConfig:
    """The whole configuration of a MirrorMaker process.

    Raises :class:`ConfigException` when a key of :data:`TOP_CONFIG` is wrong or a provider cannot be created. Settings
    of single flows are checked by :meth:`validate`.
    """

    def __init__(self, props: Mapping[str, str]) -> None:
        self._props = dict(props)
        self._transformer = ConfigTransformer.from_props(self._props)
        self._switches: dict[str, str] = {}
        declared = {key: value for key, value in self._props.items() if key in TOP_CONFIG}
        # First key by key, because these errors do not show values of providers.
        self._check(TOP_CONFIG, Derived({key: key for key in declared}, {}), "")
        self._top = AbstractConfig(TOP_CONFIG, self._transformer.transform(declared))

    @property
    def originals(self) -> dict[str, str]:
        """The file's keys and values, references not resolved (a copy)."""
        return dict(self._props)

    def without(self, key: str) -> Self:
        """The same configuration without one key of the file, not checked again."""
        other = copy.copy(self)
        other._props = {name: value for name, value in self._props.items() if name != key}  # noqa: SLF001
        return other

    @property
    def top(self) -> AbstractConfig:
        """The process's own settings (:data:`TOP_CONFIG`), references resolved."""
        return self._top

    @property
    def clusters(self) -> tuple[str, ...]:
        """All aliases, in the file's order, each once."""
        return tuple(self._top.list("clusters"))

    @property
    def internal_rest(self) -> bool:
        """Whether the processes of this deployment send REST requests to each other."""
        return self._top.bool("dedicated.mode.enable.internal.rest")

    def named_classes(self) -> frozenset[str]:
        """The classes that connector configurations may name: those of :data:`ALLOWED_CLASSES_KEY` and of the file."""
        named = {key: value for key, value in self._props.items() if key.rpartition(".")[2] in _CLASS_KEYS}
        values = self._transformer.transform(named).values()
        return frozenset(
            [*self._top.list(ALLOWED_CLASSES_KEY), *(item for text in values for item in split_list(text))]
        )

    def rest_props(self) -> dict[str, str]:
        """Settings of the REST server: its own keys, ``listeners.https.*`` and ``ssl.*`` of the top level, resolved."""
        wanted = {
            key: value
            for key, value in self._props.items()
            if key in MIRROR_REST_CONFIG or key in TLS_CONFIG or key.startswith(LISTENER_PREFIXES)
        }
        return self._transformer.transform(wanted)

    def spark_props(self) -> dict[str, str]:
        """The top keys ``spark.*``, resolved.

        Excludes the keys of a cluster named ``spark``, because Spark shows its settings.
        """
        readers = self._readers()
        return self._transformer.transform(
            {
                key: value
                for key, value in self._props.items()
                if key.startswith(_SPARK)
                and not ("spark" in self.clusters and readers.knows_cluster_key("spark", key.removeprefix(_SPARK)))
            }
        )

    def cluster_pairs(self) -> list[SourceAndTarget]:
        """The flows that exist: replication is enabled, or heartbeats are, which is the default."""
        return [pair for pair in self.possible_pairs() if self._replicates(pair) or self._emits_heartbeats(pair)]

    def possible_pairs(self) -> list[SourceAndTarget]:
        """Every ordered pair of two different clusters."""
        return [SourceAndTarget(s, t) for s in self.clusters for t in self.clusters if s != t]

    @property
    def disabled_message(self) -> str:
        """A message if the file enables no flow, so that nothing is copied; "" otherwise."""
        return "" if self.replicating_pairs() else _NOTHING_ENABLED

    def replicating_pairs(self) -> list[SourceAndTarget]:
        """The flows that replicate topics; the other :meth:`cluster_pairs` only emit heartbeats.

        As in Java, connectors ignore blanks around the value and read the top key too, but neither creates a flow.
        """
        return [
            pair for pair in self.cluster_pairs() if _is_true(trim(self._switch("false", f"{pair}.enabled", "enabled")))
        ]

    def unknown_clusters(self, aliases: Iterable[str]) -> list[str]:
        """Those of ``aliases`` that are not in ``clusters``."""
        return [alias for alias in aliases if alias not in self.clusters]

    def cluster_props(self, alias: str) -> dict[str, str]:
        """All settings of one cluster, references not resolved."""
        return self._raw(self._cluster(alias))

    def client_config(self, alias: str) -> dict[str, str]:
        """Settings of :data:`~mm2.config.keys.mirror_keys.MIRROR_CLIENT_CONFIG` for one cluster, references resolved.

        The cluster's keys override top keys.
        """
        return self._transformer.transform({**self._props, **self.cluster_props(alias)})

    def worker_config(self, pair: SourceAndTarget) -> dict[str, str]:
        """Settings of the flow's Connect worker, which uses the target cluster, references resolved."""
        return self._worker_values(self._worker(pair))

    def connector_config(self, pair: SourceAndTarget, java_class_name: str) -> dict[str, str]:
        """Settings of one connector of the flow, references **not** resolved, as stored in the config topic."""
        return self._raw(self._connector(pair, java_class_name))

    def worker_derivation(self, pair: SourceAndTarget) -> Derived:
        """The key of the file that each setting of :meth:`worker_config` comes from."""
        return self._worker(pair)

    def connector_derivation(self, pair: SourceAndTarget, java_class_name: str) -> Derived:
        """The key of the file that each setting of :meth:`connector_config` comes from."""
        return self._connector(pair, java_class_name)

    def unread_keys(self) -> list[tuple[str, str | None]]:
        """Keys of the file that no component reads, each with the most similar known key, in the file's order."""
        return self._readers().unread(self._props)

    def ineffective_keys(self, targets: Iterable[str] | None = None) -> list[IneffectiveKey]:
        """Keys of Kafka in the file that have no effect here, or a limited one, with the reason.

        Concerns the process and the flows into ``targets`` (``None`` = all). Raises :class:`ConfigException` for a key
        that is refused, because it asks for something that is not done here.
        """
        uses = process_uses((key, value) for key, value in self._props.items() if _is_of_process(key))
        for pair in self._pairs_into(targets):
            parts = (self._worker(pair), self._connector(pair, CONNECTOR_CLASSES[0]))
            uses += flow_uses(*(((k, self._props[o], o) for k, o in part.origins.items()) for part in parts))
        found = check_effects(uses, lambda use: self._transformer.transform({use.shown_as: use.value})[use.shown_as])
        idle = self._readers().without_worker(self._props)
        return [
            *found,
            *(
                IneffectiveKey(key, f"no flow into {alias} runs, so {alias} has no worker", Effect.NONE)
                for key, alias in idle
            ),
        ]

    def _pairs_into(self, targets: Iterable[str] | None) -> list[SourceAndTarget]:
        wanted = None if targets is None else frozenset(targets)
        return [pair for pair in self.cluster_pairs() if wanted is None or pair.target in wanted]

    def validate(self, targets: Iterable[str] | None = None) -> None:
        """Check the typed settings of every flow into ``targets`` (``None`` = all): workers, connectors, clients.

        Raises :class:`ConfigException` for the first bad or missing setting, with Kafka's text and the key and value as
        written in the file. If a provider gave the value, the error shows the reference instead.
        """
        wanted = None if targets is None else frozenset(targets)
        if self.internal_rest and "listeners" in self._props and not self._resolved("listeners").strip():
            reason = "dedicated.mode.enable.internal.rest = true needs a port for the other processes to reach"
            raise ConfigException("listeners", self._props["listeners"], reason)
        for pair in self._pairs_into(wanted):
            self._validate_worker(pair)
            self._validate_connectors(pair)
            self._validate_preserved_offsets(pair)
        self.ineffective_keys(wanted)

    # -- derivation ----------------------------------------------------------------------------------------------------

    def _replicates(self, pair: SourceAndTarget) -> bool:
        return _is_true(self._switch("false", f"{pair}.enabled"))

    def _emits_heartbeats(self, pair: SourceAndTarget) -> bool:
        key = "emit.heartbeats.enabled"
        return _is_true(self._switch("true", f"{pair}.{key}", key))

    def _switch(self, default: str, *keys: str) -> str:
        """The value of the first of these keys that the file has. References are resolved once: the flows stay the same."""
        key = next((key for key in keys if key in self._props), None)
        if key is None:
            return default
        if key not in self._switches:
            self._switches[key] = self._resolved(key)
        return self._switches[key]

    def _resolved(self, key: str) -> str:
        """The value of a key of the file, references resolved."""
        return self._transformer.transform({key: self._props[key]})[key]

    def _with_prefix(self, prefix: str) -> dict[str, str]:
        """Key without ``prefix`` → key of the file."""
        return {key.removeprefix(prefix): key for key in self._props if key.startswith(prefix)}

    def _cluster(self, alias: str) -> Derived:
        own = self._with_prefix(f"{alias}.")
        origins = dict(own)
        for key in CLIENT_KEYS & own.keys():
            for role in _ROLES:
                origins.setdefault(f"{role}.{key}", own[key])
        for key in CLIENT_KEYS & self._props.keys():
            for derived in (key, *(f"{role}.{key}" for role in _ROLES)):
                origins.setdefault(derived, key)
        return Derived(origins, {})

    def _worker(self, pair: SourceAndTarget) -> Derived:
        origins = self._cluster(pair.target).origins
        origins.update({key: key for key in self._props if key.startswith((*WORKER_PREFIXES, _PROVIDERS))})
        defaults = {
            "client.id": str(pair),
            "group.id": default_group(pair.source),
            "offset.storage.topic": f"mm2-offsets.{pair.source}.internal",
            "status.storage.topic": f"mm2-status.{pair.source}.internal",
            "config.storage.topic": f"mm2-configs.{pair.source}.internal",
            "key.converter": BYTE_ARRAY_CONVERTER,
            "value.converter": BYTE_ARRAY_CONVERTER,
            "header.converter": BYTE_ARRAY_CONVERTER,
        }
        return Derived(origins, {key: value for key, value in defaults.items() if key not in origins})

    def _worker_values(self, worker: Derived) -> dict[str, str]:
        values = self._raw(worker)
        # The providers' own settings stay unresolved: the worker creates its own providers from them.
        untouched = {key: values[key] for key in worker.origins if worker.origins[key].startswith(_PROVIDERS)}
        return {**self._transformer.transform({k: v for k, v in values.items() if k not in untouched}), **untouched}

    def _connector(self, pair: SourceAndTarget, java_class_name: str) -> Derived:
        origins = {key: key for key in self._props if key in CONNECTOR_KEYS}
        origins.update({key: key for key in self._props if key.startswith(_FREE_PREFIXES)})
        for side, alias in (("source", pair.source), ("target", pair.target)):
            for key, origin in self._cluster(alias).origins.items():
                # Kafka checks only the prefix, so "administrator" counts as a client's key, too.
                origins[f"{side}.{key}" if key.startswith(_ROLES) else f"{side}.cluster.{key}"] = origin
        made = {
            "name": java_class_name.rpartition(".")[2],
            "connector.class": java_class_name,
            "source.cluster.alias": pair.source,
            "target.cluster.alias": pair.target,
            "enabled": "false",
        }
        origins.update(self._with_prefix(f"{pair}."))
        return Derived(origins, {key: value for key, value in made.items() if key not in origins})

    def _raw(self, derived: Derived) -> dict[str, str]:
        return {key: self._props[origin] for key, origin in derived.origins.items()} | derived.made

    def _readers(self) -> KeyReaders:
        return KeyReaders(
            clusters=self.clusters,
            flows=tuple((pair.source, pair.target) for pair in self.possible_pairs()),
            worker_clusters=frozenset(pair.target for pair in self.cluster_pairs()),
            providers=tuple(self._top.list(_PROVIDERS)),
            top_keys=frozenset(TOP_CONFIG.names),
        )

    # -- checks --------------------------------------------------------------------------------------------------------

    def _validate_worker(self, pair: SourceAndTarget) -> None:
        worker = self._worker(pair)
        values = self._check(DISTRIBUTED_CONFIG, worker, f"{pair.target}.")
        signature = "inter.worker.signature.algorithm"
        check_signature_accepted(values, name=worker.origin(signature, signature))
        for role, definition in ROLE_CONFIGS.items():
            self._check_given(definition, worker, f"{role}.")

    def _validate_connectors(self, pair: SourceAndTarget) -> None:
        for java_class_name in CONNECTOR_CLASSES:
            connector = self._connector(pair, java_class_name)
            # As the herder validates it, which would reject it otherwise.
            self._check(CONNECTOR_CONFIGS[java_class_name], connector, f"{pair}.", merges_duplicates=False)
        # The clients' settings and the limits of single topics are the same in all three connectors.
        for key, origin in connector.origins.items():
            if key.startswith(TOPIC_THROTTLE_PREFIX):
                self._parse(OWN_CONFIG.keys[THROTTLE_KEY], origin)
        for side, alias in (("source", pair.source), ("target", pair.target)):
            self._check(CLUSTER_CONFIG, connector, f"{alias}.", prefix=f"{side}.cluster.")
            for role, definition in ROLE_CONFIGS.items():
                self._check_given(definition, connector, f"{side}.{role}.")
        for role, definition in ROLE_CONFIGS.items():
            self._check_given(definition, connector, f"{role}.")
            self._check_given(definition, connector, f"{role}.override.")

    def _validate_preserved_offsets(self, pair: SourceAndTarget) -> None:
        """Transactions would write their markers at offsets of the source's records."""
        preserve = self._value(self._connector(pair, SOURCE_CONNECTOR), PRESERVE_KEY)
        if not _is_true(preserve or "false"):
            return
        worker = self._worker(pair)
        exactly_once = self._value(worker, EXACTLY_ONCE_KEY) or ""
        if exactly_once.strip().lower() == "enabled":
            reason = (
                f"{PRESERVE_KEY} of {pair} cannot be combined with it, because transactions write markers between the records, and "
                "it is not needed: the offset of a record on the target shows what has been copied"
            )
            raise ConfigException(worker.origin(EXACTLY_ONCE_KEY, EXACTLY_ONCE_KEY), exactly_once, reason)

    def _value(self, derived: Derived, key: str) -> str | None:
        """The value of a derived key, references resolved; None: it is not set."""
        origin = derived.origins.get(key)
        return None if origin is None else self._resolved(origin)

    def _check_given(self, definition: ConfigDef, derived: Derived, prefix: str) -> None:
        """Check the given keys under ``prefix``; missing keys are no error."""
        given = (key.removeprefix(prefix) for key in derived.origins if key.startswith(prefix))
        self._check(definition.only(given), derived, "", prefix=prefix)

    def _check(
        self, definition: ConfigDef, derived: Derived, scope: str, *, prefix: str = "", merges_duplicates: bool = True
    ) -> dict[str, Any]:
        """Typed values of ``definition`` from the keys under ``prefix``.

        ``scope`` is the prefix of a missing key in errors.
        """
        values: dict[str, Any] = {}
        for name, key in definition.keys.items():
            derived_name = prefix + name
            if derived_name in derived.origins:
                values[name] = self._parse(key, derived.origins[derived_name], merges_duplicates=merges_duplicates)
            elif derived_name in derived.made:
                values[name] = key.parse(derived.made[derived_name])
            elif key.required:
                raise missing(f"{scope}{name}")
            else:
                values[name] = key.default
        return values

    def _parse(self, key: ConfigKey, origin: str, *, merges_duplicates: bool = True) -> object:
        raw = self._props[origin]
        value = self._transformer.transform({origin: raw})[origin]
        try:
            return key.parse(value, shown_as=origin, merges_duplicates=merges_duplicates)
        except ConfigException:
            if value == raw:
                raise
        # Outside of the handler, so that the exception context does not contain the value.
        bounds = f" and {key.validator}" if key.validator is not None and str(key.validator) else ""
        raise ConfigException(origin, raw, f"The referenced value is not of type {key.type.value}{bounds}")


def _is_of_process(key: str) -> bool:
    return key in TOP_CONFIG or key.startswith(LISTENER_PREFIXES)


def _is_true(text: str) -> bool:
    """Java's ``Boolean.parseBoolean``: blanks are not trimmed, everything but ``true`` is false."""
    return text.lower() == "true"
