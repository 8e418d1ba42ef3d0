"""Removes secrets from the configurations that the REST interface of a MirrorMaker process returns.

The properties file of a MirrorMaker may be readable by its user only, while every user of the machine can connect to
127.0.0.1. Connector configurations contain the clusters' passwords if the file does. Java's MirrorMaker has no such
interface. A returned configuration can be edited and written back: ``[hidden]`` then stands for the stored value. It is sent only
to the address that it was stored with: a change of the address needs the secret again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from mm2.config.definitions.values import Password, is_hidden, without_login
from mm2.config.keys.difference import is_showable
from mm2.config.providers import references
from mm2.connect.errors import BadRequest, NotFound
from mm2.connect.herder.answers import ConnectorInfo, Created, TaskInfo
from mm2.connect.herder.interface import REQUEST_TIMEOUT_S, Herder
from mm2.connect.herder.request_queue import StagedFuture, Steps
from mm2.connect.stores.config_state import Props, TargetState
from mm2.mirror.rest.rest_rules import is_connection, share_a_cluster

T = TypeVar("T")
S = TypeVar("S")

_REFERENCES: Final = re.compile(r"(?:\$\{[^{}]*\}[\s,]*)+")
#: Keys that the runtime adds or reads and no ConfigDef declares.
_OWN: Final = re.compile(r"task\..*|topic\.creation\..*|(?:transforms|predicates)\.[^.]*\.(?:type|predicate|negate)")


class RedactedHerder:
    """A herder that hides secrets in its results; otherwise it behaves like the wrapped one."""

    def __init__(self, herder: Herder) -> None:
        self._herder = herder
        #: By connector class: its own keys that are not passwords.
        self._declared: dict[str, frozenset[str]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._herder, name)

    def known_connector_info(self, name: str) -> ConnectorInfo:
        """See Herder."""
        return self._info(self._herder.known_connector_info(name))

    def connector_info(self, name: str) -> StagedFuture[ConnectorInfo]:
        """See Herder."""
        return _then(self._herder.connector_info(name), self._info)

    def connector_config(self, name: str) -> StagedFuture[Props]:
        """See Herder."""
        return _then(self._herder.connector_config(name), self._shown)

    def task_configs(self, name: str) -> StagedFuture[list[TaskInfo]]:
        """See Herder."""
        return _then(
            self._herder.task_configs(name),
            lambda tasks: [replace(task, config=self._shown(task.config)) for task in tasks],
        )

    def put_connector_config(
        self, name: str, config: Props, *, allow_replace: bool, target_state: TargetState | None = None
    ) -> StagedFuture[Created]:
        """See Herder.

        If the new configuration contains hidden values, waits for the stored one. Raises BadRequest if there is none.
        """
        whole = self._restored(name, config, is_whole=True)
        made = self._herder.put_connector_config(name, whole, allow_replace=allow_replace, target_state=target_state)
        return _then(made, self._created)

    def patch_connector_config(self, name: str, patch: Props) -> StagedFuture[Created]:
        """See Herder, and :meth:`put_connector_config`."""
        return _then(self._herder.patch_connector_config(name, self._restored(name, patch)), self._created)

    def _created(self, created: Created) -> Created:
        return replace(created, info=self._info(created.info))

    def _info(self, info: ConnectorInfo) -> ConnectorInfo:
        return replace(info, config=self._shown(info.config))

    def _shown(self, config: Mapping[str, str | None]) -> dict[str, str | None]:
        declared = self._declared_by(config.get("connector.class"))
        return {key: None if value is None else _text(key, value, declared) for key, value in config.items()}

    def _restored(self, name: str, config: Props, *, is_whole: bool = False) -> dict[str, str | None]:
        is_needed = is_whole or any(map(is_connection, config))
        if not is_needed and not any(value is not None and is_hidden(value) for value in config.values()):
            return dict(config)
        try:
            stored = dict(self._herder.connector_config(name).result(REQUEST_TIMEOUT_S))
        except NotFound:
            stored = {}
        shown = self._shown(stored)
        whole = {key: stored[key] if key in stored and shown[key] == value else value for key, value in config.items()}
        for key, value in config.items():
            if value is not None and is_hidden(value) and (key not in stored or shown[key] != value):
                raise BadRequest(
                    f"{key} holds {Password.HIDDEN}, which stands for the stored secret, but there is none in the "
                    f"configuration of {name}."
                )
        self._check_addresses(stored, shown, config, whole if is_whole else {**stored, **whole})
        return whole

    def _check_addresses(self, stored: Props, shown: Props, given: Props, new: Props) -> None:
        """Raise BadRequest if stored secrets, which the client may not know, would be sent elsewhere or in another way."""
        moved = sorted(
            key
            for key in stored.keys() | new.keys()
            if is_connection(key) and shown.get(key) != Password.HIDDEN and stored.get(key) != new.get(key)
        )
        kept = sorted(
            key
            for key, value in stored.items()
            if value is not None
            and new.get(key) == value
            and (shown[key] != value or bool(references(value)))
            and (key not in given or given[key] == shown[key])
        )
        for key in moved:
            if affected := [secret for secret in kept if share_a_cluster(key, secret)]:
                raise BadRequest(
                    f"{key} decides where secrets are sent, so a change of it needs them again, as values and not as "
                    f"{Password.HIDDEN} or a reference: {', '.join(affected)}."
                )

    def _declared_by(self, class_name: str | None) -> frozenset[str]:
        if class_name is None:
            return frozenset()
        known = self._declared.get(class_name)
        if known is None:
            try:
                rows = self._herder.plugin_config(class_name)
            except Exception:  # noqa: BLE001 - a plugin may raise anything; then its keys are not known
                rows = []
            known = frozenset(str(row["name"]) for row in rows if row.get("type") != "PASSWORD")
            self._declared[class_name] = known
        return known


def _text(key: str, value: str, declared: frozenset[str]) -> str:
    if not value or _REFERENCES.fullmatch(value):
        return value
    if key in declared or is_showable(key) or _OWN.fullmatch(key):
        return without_login(value)
    return Password.HIDDEN


def _then(step: StagedFuture[S], shape: Callable[[S], T]) -> StagedFuture[T]:
    steps: Steps[T] = Steps("hiding secrets")
    steps.after(step, lambda outcome: steps.end(shape(outcome)))
    return steps.outcome
