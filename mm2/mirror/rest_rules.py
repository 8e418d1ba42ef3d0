"""What clients of the REST interface of a MirrorMaker process may configure: less than the properties file.

The file belongs to the operator, who can run any code in the process anyway. A client of REST may change connectors, but
a class name is code that runs in the process, a reference to a config provider is a file or a variable of the process,
and ``start.from`` may name a file. A secret that REST shows as hidden must not be sent to an address that the client chooses.
Java's MirrorMaker has no such interface.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mm2.config.config_infos import ConfigInfos
from mm2.config.mirrormaker import ALLOWED_CLASSES_KEY
from mm2.config.providers import references
from mm2.connect.errors import BadRequest, Forbidden
from mm2.connect.herder.answers import Created
from mm2.connect.herder.interface import Herder
from mm2.connect.herder.request_queue import StagedFuture
from mm2.connect.plugins.registry import EVERY_CLASS
from mm2.connect.stores.config_state import Props, TargetState
from mm2.mirror.plugins import CLASS_KEYS, ships
from mm2.mirror.start_from import START_FROM_KEY, names_file

_CLASS: Final = "connector.class"
#: Where the secrets of a connector are sent, how they are protected there, and what handles them.
_CONNECTION: Final = re.compile(
    r"(?:.*\.)?(?:bootstrap\.(?:servers|controllers)|security\.(?:protocol|providers)|s(?:asl|sl)\..+)|spark\..+"
    r"|(?:.*[._])?(?:ur[li]s?|endpoints?|hosts?|address(?:es)?)",
    re.IGNORECASE,
)


def is_connection(key: str) -> bool:
    """Whether a key decides to which address, by which protocol or with which trust secrets are sent."""
    return _CONNECTION.fullmatch(key) is not None


def _alias(class_name: str) -> str:
    """The shortest name of a connector class."""
    return class_name.strip().rpartition(".")[2].removesuffix("Connector")


@dataclass(frozen=True)
class RestRules:
    """The rules of one flow; both functions return the current state, since the file may change.

    Classes of the Connect runtime are limited by :class:`~mm2.connect.plugins.registry.PluginLimits`.
    """

    #: The classes that the file admits.
    classes: Callable[[], frozenset[str]]
    #: The configurations that the file contains, by connector: references not resolved.
    written: Callable[[], Mapping[str, Mapping[str, str]]]
    #: By config provider: whether its parameters limit what it reads.
    providers: Mapping[str, bool]

    def check(self, name: str, config: Props, *, is_whole: bool = False) -> None:
        """Raises BadRequest for a class, a reference, a file or an address that REST must not set.

        ``is_whole``: the configuration replaces the stored one, so keys that it lacks are removed.
        """
        own = self.written().get(name, {})
        removed = own.keys() - config.keys() if is_whole else ()
        for key, value in {**config, **dict.fromkeys(removed)}.items():
            if value == own.get(key):
                continue
            if own and is_connection(key):
                raise BadRequest(
                    f"{key} of {name} cannot be changed through REST: {name} is a connector of the properties file, which sets how "
                    "its clusters are reached."
                )
            if value is None:
                continue
            self._check_references(key, value)
            self._check_class(key, value)
            if own and key == _CLASS and _alias(value) != _alias(own.get(key, "")):
                raise BadRequest(
                    f"{key} of {name} cannot be changed through REST: {name} is a connector of the properties file."
                )
            if key == START_FROM_KEY and names_file(value):
                raise BadRequest(
                    f"{key} names a file of the process: set it in the properties file. Through REST it may be a time."
                )

    def _check_references(self, key: str, text: str) -> None:
        for provider, _, _ in references(text):
            if not self.providers.get(provider, True):
                raise BadRequest(
                    f"{key} refers to the config provider {provider}, which may read everything that the process can read: "
                    f"set config.providers.{provider}.param.allowed.paths (or allowlist.pattern of an "
                    "EnvVarConfigProvider) in the properties file to use it through REST."
                )

    def _check_class(self, key: str, text: str) -> None:
        if key not in CLASS_KEYS or ships(key, text):
            return
        if self.classes().isdisjoint({text.strip(), EVERY_CLASS}):
            raise BadRequest(
                f"Class {text} of configuration {key} is not allowed in a MirrorMaker process: add it to "
                f"{ALLOWED_CLASSES_KEY} in the properties file."
            )


class RestrictedHerder:
    """A herder that checks the configurations it is given by :class:`RestRules`; otherwise like the wrapped one."""

    def __init__(self, herder: Herder, rules: RestRules) -> None:
        self._herder = herder
        self._rules = rules

    def __getattr__(self, name: str) -> Any:
        return getattr(self._herder, name)

    def put_connector_config(
        self, name: str, config: Props, *, allow_replace: bool, target_state: TargetState | None = None
    ) -> StagedFuture[Created]:
        """See Herder. Raises BadRequest."""
        self._rules.check(name, config, is_whole=True)
        return self._herder.put_connector_config(name, config, allow_replace=allow_replace, target_state=target_state)

    def patch_connector_config(self, name: str, patch: Props) -> StagedFuture[Created]:
        """See Herder. Raises BadRequest."""
        self._rules.check(name, patch)
        return self._herder.patch_connector_config(name, patch)

    def delete_connector_config(self, name: str) -> StagedFuture[None]:
        """See Herder. Raises Forbidden for a connector of the file, which the next leader would create again."""
        if name in self._rules.written():
            raise Forbidden(
                f"{name} cannot be deleted through REST: it is a connector of the properties file. Stop it (mm2 stop), or change the file."
            )
        return self._herder.delete_connector_config(name)

    def validate_connector_config(self, config: Props) -> StagedFuture[ConfigInfos]:
        """See Herder. Raises BadRequest."""
        self._rules.check(config.get("name") or "", config)
        return self._herder.validate_connector_config(config)
