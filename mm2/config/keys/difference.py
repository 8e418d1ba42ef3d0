"""Difference between two versions of MirrorMaker's file as readable lines, without values that may be secrets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from mm2.config.configdef import ConfigDef, Type
from mm2.config.definitions.values import Password, without_login
from mm2.config.keys.client_keys import ROLE_CONFIGS
from mm2.config.keys.mirror_keys import CONNECTOR_CONFIGS, MIRROR_CLIENT_CONFIG, TOPIC_THROTTLE_PREFIX
from mm2.config.keys.rest_keys import MIRROR_REST_CONFIG
from mm2.config.keys.worker_keys import DISTRIBUTED_CONFIG

_SIDES: Final = ("source.cluster.", "target.cluster.")
# Longest first: "source.consumer." contains shorter prefixes.
_ROLE_PREFIXES: Final = (
    *(f"{side}.{role}." for side in ("source", "target") for role in ROLE_CONFIGS),
    *(f"{role}.override." for role in ROLE_CONFIGS),
    *(f"{role}." for role in ROLE_CONFIGS),
    *_SIDES,
)
_OWN: Final = ("clusters", "dedicated.mode.enable.internal.rest", "config.providers", "plugin.allowed.classes")


def _showable() -> frozenset[str]:
    tables: list[ConfigDef] = [
        *(*CONNECTOR_CONFIGS.values(), *ROLE_CONFIGS.values()),
        *(MIRROR_CLIENT_CONFIG, MIRROR_REST_CONFIG, DISTRIBUTED_CONFIG),
    ]
    names = {name for table in tables for name in table.names}
    secret = {name for table in tables for name, key in table.keys.items() if key.type is Type.PASSWORD}
    return frozenset({*names, *_OWN} - secret)


_SHOWABLE: Final = _showable()
"""Keys whose values are not secrets. Values of undeclared keys may be secrets."""


def difference(old: Mapping[str, str], new: Mapping[str, str], aliases: Iterable[str]) -> list[str]:
    """One line for each changed key, sorted: ``key: old -> new``, with ``(none)`` for an added or removed key.

    ``aliases`` are those of both versions. Values that may be secrets are shown as ``[hidden]``.
    """
    names = sorted(aliases, key=len, reverse=True)
    prefixes = [*(f"{one}->{other}." for one in names for other in names), *(f"{name}." for name in names)]
    lines = []
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key):
            shown = is_showable(key, prefixes)
            lines.append(f"{key}: {_text(old.get(key), shown=shown)} -> {_text(new.get(key), shown=shown)}")
    return lines


def is_showable(key: str, prefixes: Iterable[str] = ()) -> bool:
    """Whether the value of a key cannot be a secret.

    ``prefixes`` are those of clusters and flows, including the dot.
    """
    for prefix in prefixes:
        if key.startswith(prefix):
            key = key.removeprefix(prefix)
            break
    for prefix in _ROLE_PREFIXES:
        if key.startswith(prefix):
            key = key.removeprefix(prefix)
            break
    return key in _SHOWABLE or key.startswith(TOPIC_THROTTLE_PREFIX)


def _text(value: str | None, *, shown: bool) -> str:
    if value is None:
        return "(none)"
    return without_login(value) if shown else Password.HIDDEN
