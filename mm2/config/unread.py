"""Keys of MirrorMaker's file that no component reads: misspelt keys and misplaced keys.

Kafka ignores such keys silently. They cannot be distinguished reliably from settings of custom filters, policies and
interceptors, which are not declared. Where such settings are possible, only a key very similar to a known one is
reported.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from mm2.config.keys.client_keys import CLIENT_KEYS, CONSUMER_CONFIG, ROLE_CONFIGS
from mm2.config.keys.connector_keys import CLIENT_OVERRIDE_PREFIXES, SOURCE_CONNECTOR_CONFIG, TOPIC_CREATION_PREFIX
from mm2.config.keys.mirror_keys import CONNECTOR_KEYS, MIRROR_CLIENT_CONFIG, RENAMED, TOPIC_THROTTLE_PREFIX
from mm2.config.keys.rest_keys import OIDC_PREFIX, PROMETHEUS_PREFIX
from mm2.config.keys.security_keys import TLS_CONFIG
from mm2.config.keys.worker_keys import (
    CONVERTER_PREFIXES,
    DISTRIBUTED_CONFIG,
    INTERNAL_REST_CONFIG,
    REST_CONFIG,
    STORAGE_PREFIXES,
    TOPIC_KEYS,
)

_ALIKE: Final = 0.6
"""Similarity (difflib's ratio) at which a known key is suggested for a key that is certainly unread."""
_MISSPELT: Final = 0.88
"""Similarity at which a key that might be a custom setting is reported as misspelt.

topics.include/topics.exclude has 0.86.
"""

_PROVIDERS: Final = "config.providers"
_HTTPS_LISTENER: Final = "listeners.https."
_OVERRIDE: Final = "override."
_CLUSTER_SIDES: Final = ("source.cluster.", "target.cluster.")
# Longest first: "source.consumer." must not be taken for another prefix.
_FLOW_CLIENT_PREFIXES: Final = {
    **{f"{side}.{role}.": role for side in ("source", "target") for role in ROLE_CONFIGS},
    **{prefix: prefix.partition(".")[0] for prefix in CLIENT_OVERRIDE_PREFIXES},
    **{f"{role}.": role for role in ROLE_CONFIGS},
}
_CLUSTER_CLIENT_PREFIXES: Final = {f"{role}.": role for role in ROLE_CONFIGS}
_POLICY_PREFIX: Final = "replication.policy."

FLOW_KEYS: Final = frozenset({*CONNECTOR_KEYS, *SOURCE_CONNECTOR_CONFIG.names, "use.defaults.from"})
"""Keys of the mirror connectors; those outside CONNECTOR_KEYS only as flow keys."""
_FREE_FLOW_PREFIXES: Final = (
    "transforms.",
    "predicates.",
    TOPIC_CREATION_PREFIX,
    *CONVERTER_PREFIXES,
    _POLICY_PREFIX,
    f"{_PROVIDERS}.",
)
_IGNORED_WORKER_KEYS: Final = frozenset(
    {*REST_CONFIG.names, "connector.client.config.override.policy", "connector.client.config.override.allowlist"}
)
"""Worker keys without effect in dedicated mode: REST is read from the top level, and connectors may override all."""
_WORKER_KEYS: Final = frozenset(DISTRIBUTED_CONFIG.names) - _IGNORED_WORKER_KEYS
_COPIED_WORKER_KEYS: Final = frozenset(
    key for key in _WORKER_KEYS if key.startswith((*STORAGE_PREFIXES, *CONVERTER_PREFIXES, "task", "worker"))
) | {"key.converter", "value.converter", "header.converter"}
_FREE_WORKER_PREFIXES: Final = (*CONVERTER_PREFIXES, _POLICY_PREFIX, "metrics.context.")


@dataclass(frozen=True)
class _Verdict:
    read: bool
    nearest: str | None = None

    def under(self, prefix: str) -> _Verdict:
        """The same verdict with ``prefix`` before the nearest key."""
        return self if self.nearest is None else _Verdict(self.read, prefix + self.nearest)


_READ: Final = _Verdict(read=True)


def _unread(nearest: str | None) -> _Verdict:
    return _Verdict(read=False, nearest=nearest)


def unread_message(file: Path, key: str, nearest: str | None) -> str:
    """The message about a key that no part of a process reads."""
    return f"Unknown key {key} in {file}.{f' Did you mean {nearest}?' if nearest else ''}"


def _nearest(key: str, known: Iterable[str], cutoff: float) -> str | None:
    matches = difflib.get_close_matches(key, list(known), 5, cutoff)
    # Of equally similar keys the alphabetically first, so that the result is deterministic.
    return min(matches, key=lambda match: (-difflib.SequenceMatcher(None, match, key).ratio(), match), default=None)


def _unless_misspelt(key: str, known: Iterable[str]) -> _Verdict:
    """Assume that the key is read, unless it is very similar to a known key."""
    if key in (names := frozenset(known)):
        return _READ
    near = _nearest(key, names, _MISSPELT)
    return _READ if near is None else _unread(near)


@dataclass(frozen=True)
class KeyReaders:
    """Keys that the components of a deployment read, for one set of clusters."""

    clusters: tuple[str, ...]
    flows: tuple[tuple[str, str], ...]
    """Every possible (source, target); disabled flows may have keys."""
    worker_clusters: frozenset[str]
    """Clusters with a Connect worker: the targets of flows that exist."""
    providers: tuple[str, ...]
    top_keys: frozenset[str]
    """Keys of the process itself."""

    def unread(self, keys: Iterable[str]) -> list[tuple[str, str | None]]:
        """(key, nearest known key) of all ``keys`` that no component reads, in the given order."""
        return [(key, verdict.nearest) for key, verdict in self._judged(keys).items() if not verdict.read]

    def without_worker(self, keys: Iterable[str]) -> list[tuple[str, str]]:
        """(key, alias) of the worker keys of clusters that have no worker, because no flow into them runs."""
        return [
            (key, alias)
            for key in keys
            for alias in self.clusters
            if alias not in self.worker_clusters and key.startswith(f"{alias}.")
            if key.removeprefix(f"{alias}.") in _WORKER_KEYS and self._judge(key).read
            if key.removeprefix(f"{alias}.") not in MIRROR_CLIENT_CONFIG
        ]

    def knows_cluster_key(self, alias: str, rest: str) -> bool:
        """Whether ``rest`` is a setting of a cluster rather than any other key that begins with its alias."""
        verdict = self._cluster(alias, rest)
        return verdict.read or verdict.nearest is not None

    def _judged(self, keys: Iterable[str]) -> Mapping[str, _Verdict]:
        return {key: self._judge(key) for key in keys}

    def _judge(self, key: str) -> _Verdict:
        verdicts = [self._flow(s, t, key.removeprefix(p)) for s, t in self.flows if key.startswith(p := f"{s}->{t}.")]
        # An alias may begin with another alias and a dot, so a key can belong to two clusters: try the longer alias
        # first.
        longest_first = sorted(self.clusters, key=len, reverse=True)
        verdicts += [self._cluster(a, key.removeprefix(p)) for a in longest_first if key.startswith(p := f"{a}.")]
        top = self._top(key)
        if top.read or any(verdict.read for verdict in verdicts):
            return _READ
        return verdicts[0] if verdicts else top

    # -- flow keys -----------------------------------------------------------------------------------------------------

    def _flow(self, source: str, target: str, rest: str) -> _Verdict:
        flow = f"{source}->{target}."
        if rest in FLOW_KEYS or rest.startswith(TOPIC_THROTTLE_PREFIX):
            return _READ
        for prefix, role in _FLOW_CLIENT_PREFIXES.items():
            if rest.startswith(prefix):
                return _client(role, rest.removeprefix(prefix)).under(flow + prefix)
        for prefix in _CLUSTER_SIDES:
            if rest.startswith(prefix):
                name = rest.removeprefix(prefix)
                return (
                    _READ if name in CLIENT_KEYS else _unread(_nearest(name, CLIENT_KEYS, _ALIKE)).under(flow + prefix)
                )
        if rest in _WORKER_KEYS or rest.startswith(STORAGE_PREFIXES):
            return _unread(f"{target}.{rest}")
        if rest in RENAMED:
            return _unread(flow + RENAMED[rest])
        if rest.startswith(_FREE_FLOW_PREFIXES):
            return _unless_misspelt(rest, FLOW_KEYS).under(flow)
        # Kafka's own documentation uses "emit.heartbeats = true".
        if f"{rest}.enabled" in FLOW_KEYS:
            return _unread(f"{flow}{rest}.enabled")
        return _unless_misspelt(rest, FLOW_KEYS).under(flow)

    # -- cluster keys --------------------------------------------------------------------------------------------------

    def _cluster(self, alias: str, rest: str) -> _Verdict:
        if rest in MIRROR_CLIENT_CONFIG:
            return _READ
        if rest in _IGNORED_WORKER_KEYS or rest.startswith(_HTTPS_LISTENER):
            # REST server keys belong to the top level.
            return _unread(rest if rest in INTERNAL_REST_CONFIG or rest.startswith(_HTTPS_LISTENER) else None)
        for prefix, role in _CLUSTER_CLIENT_PREFIXES.items():
            if rest.startswith(prefix + _OVERRIDE):
                return _unread(f"{self._flow_at(alias, as_target=True)}{rest}")
            if rest.startswith(prefix):
                return _client(role, rest.removeprefix(prefix)).under(f"{alias}.{prefix}")
        if rest in _WORKER_KEYS or rest.startswith((*STORAGE_PREFIXES, *_FREE_WORKER_PREFIXES, f"{_PROVIDERS}.")):
            return self._worker(alias, rest)
        if rest in RENAMED:
            return _unread(self._flow_at(alias) + RENAMED[rest])
        if rest in FLOW_KEYS or rest.startswith(TOPIC_THROTTLE_PREFIX):
            return _unread(self._flow_at(alias) + rest)
        if rest in CONSUMER_CONFIG:
            return _unread(f"{alias}.consumer.{rest}")
        return _unread(_nearest(rest, self._cluster_keys, _ALIKE)).under(f"{alias}.")

    def _worker(self, alias: str, rest: str) -> _Verdict:
        """A key for the workers on ``alias``, if there are any."""
        if alias not in self.worker_clusters and rest in CONSUMER_CONFIG:
            return _unread(f"{alias}.consumer.{rest}")
        return _storage(rest).under(f"{alias}.")

    def _flow_at(self, alias: str, *, as_target: bool = False) -> str:
        """``A->B.`` of the first flow from (or to) ``alias``; empty if there is none."""
        return next((f"{s}->{t}." for s, t in self.flows if alias == (t if as_target else s)), "")

    @cached_property
    def _cluster_keys(self) -> frozenset[str]:
        clients = (f"{role}.{name}" for role, definition in ROLE_CONFIGS.items() for name in definition.names)
        return frozenset({*MIRROR_CLIENT_CONFIG.names, *_WORKER_KEYS, *clients})

    # -- top keys ------------------------------------------------------------------------------------------------------

    def _top(self, key: str) -> _Verdict:
        if key in self.top_keys or key in CONNECTOR_KEYS or key in CLIENT_KEYS:
            return _READ
        if key.startswith(("spark.", TOPIC_THROTTLE_PREFIX)):
            return _READ
        if key.startswith(f"{_PROVIDERS}."):
            known = [f"{_PROVIDERS}.{name}." for name in self.providers]
            return _READ if key.startswith(tuple(known)) else _unread(_PROVIDERS)
        for prefix in (_HTTPS_LISTENER, f"{OIDC_PREFIX}ssl.", f"{PROMETHEUS_PREFIX}ssl."):
            if key.startswith(prefix):
                return _tls(key, prefix.removesuffix("ssl."))
        if key in _COPIED_WORKER_KEYS or key.startswith((*STORAGE_PREFIXES, *CONVERTER_PREFIXES, _POLICY_PREFIX)):
            return _storage(key)
        return _unread(self._nearest_top(key))

    def _nearest_top(self, key: str) -> str | None:
        if key in RENAMED:
            return RENAMED[key]
        worker_at = next((alias for alias in self.clusters if alias in self.worker_clusters), None)
        flow = next((f"{s}->{t}." for s, t in self.flows), None)
        # Right key, wrong level: settings of workers and clients belong to a cluster, those of connectors to a flow.
        if key.startswith((*CLIENT_OVERRIDE_PREFIXES, TOPIC_CREATION_PREFIX)) or key in FLOW_KEYS:
            return None if flow is None else flow + key
        if key in _WORKER_KEYS or (key.startswith(tuple(_CLUSTER_CLIENT_PREFIXES)) and key in self._cluster_keys):
            return None if worker_at is None else f"{worker_at}.{key}"
        return _nearest(
            key, {*self.top_keys, *CONNECTOR_KEYS, *CLIENT_KEYS, *_COPIED_WORKER_KEYS, *self._alike(key)}, _ALIKE
        )

    def _alike(self, key: str) -> set[str]:
        """Known keys of known clusters and flows with the same last part as ``key``, whose first part is unknown."""
        cluster_of, dot, rest = key.partition(".")
        if "->" in cluster_of:
            return {f"{s}->{t}.{rest}" for s, t in self.flows if rest in FLOW_KEYS}
        return {f"{alias}.{rest}" for alias in self.clusters if dot and rest in self._cluster_keys}


def _client(role: str, name: str) -> _Verdict:
    """A setting of a client; interceptors may have settings of their own."""
    return _unless_misspelt(name, ROLE_CONFIGS[role].names)


def _tls(key: str, prefix: str) -> _Verdict:
    name = key.removeprefix(prefix)
    if name in TLS_CONFIG or (name == "ssl.client.auth" and prefix == _HTTPS_LISTENER):
        return _READ
    return _unread(_nearest(name, TLS_CONFIG.names, _ALIKE)).under(prefix)


def _storage(key: str) -> _Verdict:
    """A worker key; below the storage prefixes any key may be a topic setting, except a misspelt worker key."""
    if key in DISTRIBUTED_CONFIG or not key.startswith(STORAGE_PREFIXES):
        return _READ
    prefix = next(prefix for prefix in STORAGE_PREFIXES if key.startswith(prefix))
    if key.removeprefix(prefix) in TOPIC_KEYS:
        return _READ
    return _unless_misspelt(key, DISTRIBUTED_CONFIG.names)
