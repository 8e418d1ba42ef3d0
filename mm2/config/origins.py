"""Origin of each setting of a MirrorMaker process: the key and line of the file, or the default.

The levels in order of precedence:

============  ==========================================================================================================
FLOW          ``A->B.x`` in the file
CLUSTER       ``A.x``
TOP           ``x``
DERIVED       not in the file: MirrorMaker derives it from the names of the flow (``group.id = A-mm2``)
DEFAULT       not in the file: the default of the definition (Kafka's ConfigDef)
============  ==========================================================================================================

For workers, top keys with one of :data:`~mm2.config.mirrormaker.WORKER_PREFIXES` override cluster keys. The origins are
taken from the derivations of :class:`~mm2.config.mirrormaker.MirrorMakerConfig`, not computed again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from mm2.config.configdef import ConfigDef, ConfigKey, Type
from mm2.config.definitions.values import Password, show, without_login
from mm2.config.keys.client_keys import ROLE_CONFIGS
from mm2.config.keys.difference import is_showable
from mm2.config.keys.mirror_keys import CONNECTOR_CLASSES, CONNECTOR_CONFIGS
from mm2.config.keys.worker_keys import DISTRIBUTED_CONFIG
from mm2.config.mirrormaker import (
    DEDICATED_WORKER_DEFAULTS,
    TOP_CONFIG,
    Derived,
    MirrorMakerConfig,
    SourceAndTarget,
)
from mm2.config.providers import is_reference

PROCESS: Final = "process"
WORKER: Final = "worker"
_PROVIDERS: Final = "config.providers"
_SPARK: Final = "spark."
# As in spark.redaction.regex.
_SPARK_SECRET: Final = re.compile(r"(?i)secret|password|token|access[.]?key")
_SIDES: Final = ("source", "target")


class Level(StrEnum):
    """Level of precedence, see the module docstring."""

    FLOW = "flow"
    CLUSTER = "cluster"
    TOP = "top"
    DERIVED = "derived"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Setting:
    """One effective setting.

    ``value`` contains no secret: possible secrets are ``[hidden]``, values of a config provider are shown as their
    reference. ``origin`` is the key of the file and ``line`` its line number; "" and None if the setting is not from
    the file. ``overrides`` are other keys of the file, which would apply without it.
    """

    key: str
    value: str
    level: Level
    origin: str = ""
    line: int | None = None
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SettingsSection:
    """The settings of one part: ``name`` is `PROCESS`, `WORKER`, or that of a connector (``MirrorSourceConnector``)."""

    name: str
    settings: tuple[Setting, ...]


@dataclass(frozen=True, slots=True)
class UnreadKey:
    """A key of the file that no component reads, its line, and the most similar known key ("" for none)."""

    key: str
    line: int | None
    nearest: str


def process_settings(config: MirrorMakerConfig, lines: Mapping[str, int]) -> SettingsSection:
    """Settings of the process itself: clusters, REST, providers, and the ``spark.*`` keys of the file.

    ``lines`` is :func:`~mm2.config.files.properties.property_lines` of the file; {} if unknown.
    """
    given = {key: key for key in config.originals if key in TOP_CONFIG or key.startswith((_SPARK, _PROVIDERS))}
    return SettingsSection(PROCESS, tuple(_settings(config, lambda _: Derived(given, {}), TOP_CONFIG, None, lines)))


def flow_settings(config: MirrorMakerConfig, pair: SourceAndTarget, lines: Mapping[str, int]) -> list[SettingsSection]:
    """Effective settings of one flow: its worker, then its three connectors.

    Each section lists the given settings, then the defaults. ``lines`` as for :func:`process_settings`. Opens no
    connection and calls no provider. `mm2 config` and the dashboard show the result.
    """

    def worker(some: MirrorMakerConfig) -> Derived:
        derived = some.worker_derivation(pair)
        return Derived(derived.origins, {**_not_in(derived.origins, DEDICATED_WORKER_DEFAULTS), **derived.made})

    sections = [SettingsSection(WORKER, tuple(_settings(config, worker, DISTRIBUTED_CONFIG, pair, lines)))]
    for java_class in CONNECTOR_CLASSES:

        def connector(some: MirrorMakerConfig, java_class: str = java_class) -> Derived:
            return some.connector_derivation(pair, java_class)

        found = tuple(_settings(config, connector, CONNECTOR_CONFIGS[java_class], pair, lines))
        sections.append(SettingsSection(java_class.rpartition(".")[2], found))
    return sections


def unread(config: MirrorMakerConfig, lines: Mapping[str, int]) -> list[UnreadKey]:
    """Keys that no component reads, in the file's order."""
    return [UnreadKey(key, lines.get(key), nearest or "") for key, nearest in config.unread_keys()]


def _settings(
    config: MirrorMakerConfig,
    derive: Callable[[MirrorMakerConfig], Derived],
    definition: ConfigDef,
    pair: SourceAndTarget | None,
    lines: Mapping[str, int],
) -> Iterator[Setting]:
    derived, props = derive(config), config.originals
    declared = [key for key in definition.names if key in derived.origins or key in derived.made]
    others = sorted({*derived.origins, *derived.made} - {*declared})
    for key in (*declared, *others):
        origin = derived.origins.get(key)
        if origin is None:
            yield Setting(key, derived.made[key], Level.DERIVED)
            continue
        names = (key, *_without_side(key))
        level = Level.TOP if origin in names else Level.FLOW if origin == f"{pair}.{key}" else Level.CLUSTER
        overridden = () if pair is None else _overridden(config, derive, key, origin, _prefixed(names, pair))
        value = _shown(key, props[origin], definition.keys.get(key))
        yield Setting(key, value, level, origin, lines.get(origin), overridden)
    for key in definition.names:
        if key not in declared and not definition.keys[key].required:
            yield Setting(key, _default(definition.keys[key]), Level.DEFAULT)


def _overridden(
    config: MirrorMakerConfig,
    derive: Callable[[MirrorMakerConfig], Derived],
    key: str,
    origin: str,
    candidates: Collection[str],
) -> tuple[str, ...]:
    """The keys that would give the setting without the one that does, in order; found by removing one after another."""
    found: list[str] = []
    props = config.originals
    while any(name != origin and name in props for name in candidates):
        del props[origin]
        config = config.without(origin)
        after = derive(config).origins.get(key)
        if after is None:
            break
        found.append(after)
        origin = after
    return tuple(found)


def _prefixed(names: Iterable[str], pair: SourceAndTarget) -> list[str]:
    prefixes = (f"{pair}.", f"{pair.source}.", f"{pair.target}.", "")
    return [prefix + name for name in names for prefix in prefixes]


def _not_in(given: Collection[str], defaults: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in defaults.items() if key not in given}


def _without_side(key: str) -> list[str]:
    """``source.cluster.x`` → ``x``; ``source.consumer.x`` → ``consumer.x`` and ``x``: possible spellings in a file."""
    found = []
    for side in _SIDES:
        if key.startswith(f"{side}.cluster."):
            found.append(key.removeprefix(f"{side}.cluster."))
        for role in ROLE_CONFIGS:
            if key.startswith(f"{side}.{role}."):
                found += [key.removeprefix(f"{side}."), key.removeprefix(f"{side}.{role}.")]
    for role in ROLE_CONFIGS:
        if key.startswith(f"{role}."):
            found.append(key.removeprefix(f"{role}."))
    return found


def _shown(key: str, text: str, known: ConfigKey | None) -> str:
    if is_reference(text.strip()):
        return text.strip()
    if known is not None:
        return Password.HIDDEN if known.type is Type.PASSWORD else without_login(text)
    if key.startswith(f"{_PROVIDERS}.") and key.endswith(".class"):
        return text
    of_spark = key.startswith(_SPARK) and _SPARK_SECRET.search(key) is None
    return without_login(text) if of_spark or is_showable(key) else Password.HIDDEN


def _default(key: ConfigKey) -> str:
    value = key.default
    if isinstance(value, list | tuple):
        return ",".join(map(show, value))
    return show(value)


def matching(sections: Iterable[SettingsSection], text: str) -> list[SettingsSection]:
    """Only settings whose key contains ``text``; omits sections without any."""
    found = [SettingsSection(part.name, tuple(one for one in part.settings if text in one.key)) for part in sections]
    return [part for part in found if part.settings]
