"""What differs between two versions of MirrorMaker's file, as lines for people; without what is or may be a secret. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from mm2.config.client_keys import ROLE_CONFIGS
from mm2.config.configdef import ConfigDef, Type
from mm2.config.mirror_keys import CONNECTOR_CONFIGS, MIRROR_CLIENT_CONFIG, TOPIC_THROTTLE_PREFIX
from mm2.config.rest_keys import MIRROR_REST_CONFIG
from mm2.config.values import Password, without_login
from mm2.config.worker_keys import DISTRIBUTED_CONFIG

_SIDES: Final = ("source.cluster.", "target.cluster.")
# The longest first, so that "source.consumer." is not taken for anything else.
_ROLE_PREFIXES: Final = (
    *(f"{side}.{role}." for side in ("source", "target") for role in ROLE_CONFIGS),
    *(f"{role}.override." for role in ROLE_CONFIGS),
    *(f"{role}." for role in ROLE_CONFIGS),
    *_SIDES,
)
_OWN: Final = ("clusters", "dedicated.mode.enable.internal.rest", "config.providers")


def _showable() -> frozenset[str]:
    tables: list[ConfigDef] = [
        *(*CONNECTOR_CONFIGS.values(), *ROLE_CONFIGS.values()),
        *(MIRROR_CLIENT_CONFIG, MIRROR_REST_CONFIG, DISTRIBUTED_CONFIG),
    ]
    names = {name for table in tables for name in table.names}
    secret = {name for table in tables for name, key in table.keys.items() if key.type is Type.PASSWORD}
    return frozenset({*names, *_OWN} - secret)


_SHOWABLE: Final = _showable()
"""Keys whose values are no secrets. Of a key that nobody declares nobody knows what it holds."""


def difference(old: Mapping[str, str], new: Mapping[str, str], aliases: Iterable[str]) -> list[str]:
    """One line for each key that is not the same, sorted: ``key: old -> new``; of a key that is new or gone, ``(none)``.

    ``aliases`` are those of both versions. Values are shown of keys that are known to hold no secret, others as
    ``[hidden]``.
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
    """Whether the value of a key is known to hold no secret; ``prefixes`` are those of clusters and flows, with their dots."""
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
