"""What each key of Kafka does here: honoured, honoured in part, without effect, or refused.

``key_effects.tsv`` lists every key of Kafka's own definitions (``ConfigDef``) that may stand in a file of MirrorMaker or of a
Connect worker; a test compares the list with Kafka's jars. Keys without effect are reported when a process starts, and
refused keys end it.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Final

from mm2.config.definitions.values import ConfigException
from mm2.config.keys.client_keys import ROLE_CONFIGS
from mm2.config.keys.mirror_keys import CONNECTOR_CLASSES
from mm2.config.keys.rest_keys import LISTENER_PREFIXES

_ANY: Final = "*"


class Effect(StrEnum):
    """What a key does. PARTLY: for some of the clients that it configures; those are named in the reason."""

    HONOURED = "honoured"
    PARTLY = "partly"
    NONE = "none"
    REFUSED = "refused"


class Place(StrEnum):
    """Where a key stands; the clients of mirror connectors differ from those of other connectors."""

    PROCESS = "process"
    MIRROR = "mirror"
    MIRROR_CONSUMER = "mirror consumer"
    MIRROR_PRODUCER = "mirror producer"
    MIRROR_SYNCS = "mirror syncs"
    """The producer of offset syncs."""
    MIRROR_CLUSTER = "mirror cluster"
    """Keys of a whole cluster, of which clients use those of security and the bootstrap servers."""
    WORKER = "worker"
    CONNECTOR = "connector"
    CONSUMER = "consumer"
    PRODUCER = "producer"
    ADMIN = "admin"
    CONVERTER = "converter"
    """Settings of a converter, whichever it is."""


_CLIENT: Final = ("client", "security")
_TABLES: Final[Mapping[Place, tuple[str, ...]]] = {
    Place.PROCESS: ("process", "security"),
    Place.MIRROR: ("mirror", "mirror records", "security"),
    Place.MIRROR_CONSUMER: ("mirror consumer", "consumer", *_CLIENT),
    Place.MIRROR_PRODUCER: ("mirror producer", "producer", *_CLIENT),
    Place.MIRROR_SYNCS: (*_CLIENT, "mirror syncs"),
    Place.MIRROR_CLUSTER: ("security",),
    Place.WORKER: ("worker", "security"),
    Place.CONNECTOR: ("connector",),
    Place.CONSUMER: ("consumer", *_CLIENT),
    Place.PRODUCER: ("producer", *_CLIENT),
    Place.ADMIN: ("admin", *_CLIENT),
    Place.CONVERTER: ("JsonConverter", "StringConverter", "BooleanConverter", "NumberConverter", "ByteArrayConverter"),
}
"""The tables in which a key of each place is looked up, the first one that has it."""


@dataclass(frozen=True, slots=True)
class KeyEffect:
    """One row: ``reason`` unless honoured; with one of the values ``accepted`` nothing is reported or refused."""

    place: str
    key: str
    effect: Effect
    accepted: tuple[str, ...]
    reason: str

    def concerns(self, value: str) -> bool:
        """Whether ``value`` asks for something that is not done. An empty value asks for nothing."""
        text = value.strip().lower()
        return self.effect is not Effect.HONOURED and bool(text) and text not in (one.lower() for one in self.accepted)

    def refusal(self, value: str) -> str:
        """Why ``value`` is refused; "" if it is not."""
        if self.effect is not Effect.REFUSED or not self.concerns(value):
            return ""
        return f"{self.reason}." + (f" Possible here: {', '.join(self.accepted)}." if self.accepted else "")


@dataclass(frozen=True, slots=True)
class KeyUse:
    """A key of a file with its place: ``key`` is without the prefixes that ``shown_as``, the key of the file, has."""

    place: Place
    key: str
    value: str = field(repr=False)
    shown_as: str


@dataclass(frozen=True, slots=True)
class IneffectiveKey:
    """A key of the file without effect, or with effect on some clients only."""

    key: str
    reason: str
    effect: Effect

    def __str__(self) -> str:
        what = "has no effect" if self.effect is Effect.NONE else "has a limited effect"
        return f"Configuration {self.key} {what}: {self.reason}."


@cache
def key_effects() -> tuple[KeyEffect, ...]:
    """The whole table, in its order."""
    text = files("mm2.config.keys").joinpath("key_effects.tsv").read_text(encoding="utf-8")
    return tuple(
        KeyEffect(
            row["place"],
            row["key"],
            Effect(row["effect"]),
            tuple(filter(None, row["accepted"].split(","))),
            row["reason"],
        )
        for row in csv.DictReader(text.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE)
    )


@cache
def _by_place() -> dict[tuple[str, str], KeyEffect]:
    return {(one.place, one.key): one for one in key_effects()}


def effect_of(place: Place, key: str) -> KeyEffect | None:
    """The row of a key; None for a key that Kafka does not define there, such as a setting of a plugin."""
    tables = _by_place()
    for table in _TABLES[place]:
        if found := tables.get((table, key)):
            return found
    prefixes = [key[: end + 1] + _ANY for end, char in enumerate(key) if char == "."]
    for table in _TABLES[place]:
        for pattern in (*reversed(prefixes), _ANY):
            if found := tables.get((table, pattern)):
                return found
    return None


def check_effects(
    uses: Iterable[KeyUse], resolve: Callable[[KeyUse], str] = lambda use: use.value
) -> list[IneffectiveKey]:
    """The keys without effect, in order, each once. Raises ConfigException for the first key that is refused.

    A key that is used in several places has an effect if it has one in any of them. ``resolve`` replaces references to
    values that are stored elsewhere; it is only called for keys that may be listed or refused.
    """
    rows: dict[str, list[KeyEffect | None]] = {}  # None: honoured
    for use in uses:
        row = effect_of(use.place, use.key)
        if row is None:
            continue
        value = "" if row.effect is Effect.HONOURED else resolve(use)
        if reason := row.refusal(value):
            raise ConfigException(use.shown_as, use.value, reason)
        rows.setdefault(use.shown_as, []).append(row if row.concerns(value) else None)
    ineffective = []
    for key, found in rows.items():
        listed = [row for row in found if row is not None]
        if len(listed) == len(found):
            shown = next((row for row in listed if row.effect is Effect.PARTLY), listed[0])
            ineffective.append(IneffectiveKey(key, shown.reason, shown.effect))
    return ineffective


_CONVERTERS: Final = dict.fromkeys(("key.converter.", "value.converter.", "header.converter."), Place.CONVERTER)


def process_uses(given: Iterable[tuple[str, str]]) -> list[KeyUse]:
    """The uses of (key, value) by the process of MirrorMaker itself."""
    clients = dict.fromkeys(LISTENER_PREFIXES, Place.PROCESS)
    return [_use(key, value, key, clients, Place.PROCESS) for key, value in given]


def worker_uses(props: Mapping[str, str]) -> list[KeyUse]:
    """The uses of the keys in the file of a Connect worker, provider references resolved."""
    clients = {f"{role}.": Place(role) for role in ROLE_CONFIGS} | _CONVERTERS
    clients |= dict.fromkeys(LISTENER_PREFIXES, Place.WORKER)
    return [_use(key, value, key, clients, Place.WORKER) for key, value in props.items()]


def connector_uses(props: Mapping[str, str]) -> list[KeyUse]:
    """The uses of the keys in a connector's configuration, provider references resolved."""
    if props.get("connector.class") in CONNECTOR_CLASSES:
        return [_use(key, value, key, _MIRROR_CLIENTS, Place.MIRROR) for key, value in props.items()]
    clients = {f"{role}.override.": Place(role) for role in ROLE_CONFIGS} | _CONVERTERS
    return [_use(key, value, key, clients, Place.CONNECTOR) for key, value in props.items()]


def flow_uses(worker: Iterable[tuple[str, str, str]], connector: Iterable[tuple[str, str, str]]) -> list[KeyUse]:
    """The uses of the keys of one flow in MirrorMaker's file: (derived key, value, key of the file) of both parts."""
    # The worker's producers write the records, and heartbeats and checkpoints; its consumers belong to sinks.
    clients = {"producer.": Place.MIRROR_PRODUCER, "consumer.": Place.MIRROR_CONSUMER, "admin.": Place.ADMIN}
    clients |= _CONVERTERS
    return [
        *(_use(key, value, shown_as, clients, Place.WORKER) for key, value, shown_as in worker),
        *(_use(key, value, shown_as, _MIRROR_CLIENTS, Place.MIRROR) for key, value, shown_as in connector),
    ]


_MIRROR_CLIENTS: Final = {
    "producer.override.": Place.MIRROR_PRODUCER,
    "consumer.override.": Place.MIRROR_CONSUMER,
    "admin.override.": Place.ADMIN,
    **{
        f"{side}{role}.": place
        for side in ("source.", "target.", "")
        for role, place in (
            ("producer", Place.MIRROR_SYNCS),
            ("consumer", Place.MIRROR_CONSUMER),
            ("admin", Place.ADMIN),
        )
    },
    **dict.fromkeys(("source.cluster.", "target.cluster."), Place.MIRROR_CLUSTER),
    **_CONVERTERS,
}
"""Prefixes of the clients of a mirror connector; the first one that matches applies."""
# Keys of connectors that begin like those of a client.
_NO_CLIENTS: Final = frozenset(
    {"admin.timeout.ms", "consumer.poll.timeout.ms", "source.cluster.alias", "target.cluster.alias"}
)


def _use(key: str, value: str, shown_as: str, clients: Mapping[str, Place], otherwise: Place) -> KeyUse:
    if key not in _NO_CLIENTS:
        for prefix, place in clients.items():
            if key.startswith(prefix):
                return KeyUse(place, key.removeprefix(prefix), value, shown_as)
    return KeyUse(otherwise, key, value, shown_as)
