"""Which client settings connectors may change with ``producer.override.*`` and the like (KIP-458, KIP-1188).

A policy is a plugin, named by the worker's ``connector.client.config.override.policy``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, Final

import structlog

import mm2
from mm2.config.configdef import ConfigDef, ConfigValue, Importance, Type, distinct

__all__ = [
    "AllConnectorClientConfigOverridePolicy",
    "AllowlistConnectorClientConfigOverridePolicy",
    "ClientType",
    "ConnectorClientConfigOverridePolicy",
    "ConnectorClientConfigRequest",
    "NoneConnectorClientConfigOverridePolicy",
    "PrincipalConnectorClientConfigOverridePolicy",
]

log = structlog.get_logger(__name__)

POLICY_KEY: Final = "connector.client.config.override.policy"
ALLOWLIST_KEY: Final = "connector.client.config.override.allowlist"


class ClientType(Enum):
    """Kinds of clients; the member's value is the prefix of their overrides, without ``.override.``."""

    PRODUCER = "producer"
    CONSUMER = "consumer"
    ADMIN = "admin"


@dataclass(frozen=True)
class ConnectorClientConfigRequest:
    """The overrides that a connector requests for one of its clients."""

    connector: str
    #: ``source`` or ``sink``.
    connector_type: str
    connector_class: type[Any]
    client_type: ClientType
    #: Values by key of the client, the prefix removed; typed where the client defines the key.
    client_props: Mapping[str, object] = field(repr=False)


class ConnectorClientConfigOverridePolicy(ABC):
    """Validates overrides. A plugin: created without arguments, configured once with the worker's settings."""

    def configure(self, props: Mapping[str, str]) -> None:
        """Called once. Raises ConfigException."""
        return

    @abstractmethod
    def validate(self, request: ConnectorClientConfigRequest) -> list[ConfigValue]:
        """One value for each key of the request, with errors where it is rejected."""

    def close(self) -> None:
        """Called once when the worker stops."""
        return


class _ByKey(ConnectorClientConfigOverridePolicy):
    """Decides by the key alone."""

    policy_name: ClassVar[str]

    def version(self) -> str:
        return mm2.__version__

    @abstractmethod
    def is_allowed(self, key: str) -> bool:
        """Whether a client's key may be overridden."""

    def validate(self, request: ConnectorClientConfigRequest) -> list[ConfigValue]:
        return [self._judged(key, value) for key, value in request.client_props.items()]

    def _judged(self, key: str, value: object) -> ConfigValue:
        judged = ConfigValue(key, value)
        if not self.is_allowed(key):
            judged.errors.append(
                f"The '{self.policy_name}' policy does not allow '{key}' to be overridden in the connector configuration."
            )
        return judged


class AllConnectorClientConfigOverridePolicy(_ByKey):
    """Allows all overrides."""

    policy_name = "All"

    def is_allowed(self, key: str) -> bool:
        return True


class NoneConnectorClientConfigOverridePolicy(_ByKey):
    """Allows no overrides."""

    policy_name = "None"

    def is_allowed(self, key: str) -> bool:
        return False


class PrincipalConnectorClientConfigOverridePolicy(_ByKey):
    """Allows only the keys that define the connector's principal."""

    policy_name = "Principal"
    _ALLOWED: Final = frozenset({"sasl.jaas.config", "sasl.mechanism", "security.protocol"})

    def is_allowed(self, key: str) -> bool:
        return key in self._ALLOWED


class AllowlistConnectorClientConfigOverridePolicy(_ByKey):
    """Allows only the keys of ``connector.client.config.override.allowlist``."""

    policy_name = "Allowlist"
    _DEFINITION: Final = ConfigDef().define(
        ALLOWLIST_KEY,
        Type.LIST,
        [],
        distinct(),
        Importance.MEDIUM,
        "Client settings that connectors may override; empty = none.",
    )

    def __init__(self) -> None:
        self._allowed: frozenset[str] = frozenset()

    def configure(self, props: Mapping[str, str]) -> None:
        self._allowed = frozenset(self._DEFINITION.parse(props)[ALLOWLIST_KEY])
        log.info("connectors may override these client settings", keys=sorted(self._allowed))

    def is_allowed(self, key: str) -> bool:
        return key in self._allowed
