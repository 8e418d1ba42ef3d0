"""What clients of the REST interface of a MirrorMaker process may configure: less than the properties file.

The file belongs to the operator, who can run any code in the process anyway. A client of REST may change connectors, but
a class name is code that runs in the process, a reference to a config provider is a file or a variable of the process,
and ``start.from`` may name a file. A secret that REST shows as hidden must not be sent to an address that the client chooses;
neither must a value of a config provider that the file uses.
Java's MirrorMaker has no such interface.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mm2.config.definitions.config_infos import ConfigInfos
from mm2.config.mirrormaker import ALLOWED_CLASSES_KEY
from mm2.config.providers import references
from mm2.connect.errors import BadRequest, Forbidden, NotFound
from mm2.connect.herder.answers import Created
from mm2.connect.herder.interface import REQUEST_TIMEOUT_S, Herder
from mm2.connect.herder.request_queue import StagedFuture
from mm2.connect.plugins.registry import EVERY_CLASS
from mm2.connect.stores.config_state import Props, TargetState
from mm2.mirror.common.plugins import CLASS_KEYS, ships
from mm2.mirror.source.start_from import START_FROM_KEY, names_file

_SIDES: Final = frozenset({"source", "target"})
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


def share_a_cluster(key: str, other: str) -> bool:
    """Whether two keys may concern the same cluster of a connector."""
    sides = {name.partition(".")[0] for name in (key, other)} & _SIDES
    return len(sides) < len(_SIDES)


def _alias(class_name: str) -> str:
    """The shortest name of a connector class."""
    return class_name.strip().rpartition(".")[2].removesuffix("Connector")


@dataclass(frozen=True)
class _Source:
    """What a reference reads, whichever provider does: a file or a key in it, or any other path and key."""

    place: tuple[int, int] | str
    key: str | None

    def overlaps(self, other: _Source) -> bool:
        """Whether they may read the same value. A whole file (key None) contains all of its keys."""
        return self.place == other.place and (self.key == other.key or None in {self.key, other.key})


def _sources(text: str) -> Iterator[_Source]:
    for _, path, key in references(text):
        yield _Source(path, key)
        for file, part in ((path, key), (os.path.join(path, key), None)):  # noqa: PTH118 - the key may be absolute
            if path and (place := _file_at(file)) is not None:
                yield _Source(place, part)


def _file_at(path: str) -> tuple[int, int] | None:
    """Device and inode of a regular file, so that neither links nor other spellings of a path make a difference."""
    try:
        # As the providers do: ".." removes the name before it, also that of a link.
        real = os.path.realpath(os.path.normpath(path))
        found = os.stat(real)  # noqa: PTH116 - beside the other functions of os
    except (OSError, ValueError):
        return None
    return (found.st_dev, found.st_ino) if os.path.isfile(real) else None  # noqa: PTH113


def _sends_alike(key: str, config: Props, other: Mapping[str, str]) -> bool:
    """Whether a value under ``key`` goes where that of the other configuration goes."""
    return config.get(key) == other.get(key) and all(
        config.get(one) == other.get(one)
        for one in config.keys() | other.keys()
        if is_connection(one) and share_a_cluster(one, key)
    )


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
    #: All values of the file: references not resolved.
    values: Callable[[], Iterable[str]] = tuple

    def check(self, name: str, config: Props, *, is_whole: bool = False, stored: Props | None = None) -> None:
        """Raises BadRequest for a class, a reference, a file or an address that REST must not set.

        ``is_whole``: the configuration replaces the stored one, so keys that it lacks are removed. Otherwise it changes
        ``stored``, by default that of the file.
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
        self._check_addresses(name, dict(config) if is_whole else {**(own if stored is None else stored), **config})

    def _check_addresses(self, name: str, config: Props) -> None:
        """A value of a config provider that the file uses goes only where a connector of the file sends it."""
        used = {source for value in self.values() for source in _sources(value)}
        for key, value in config.items():
            found = value is not None and any(one.overlaps(other) for one in _sources(value) for other in used)
            if found and not any(_sends_alike(key, config, other) for other in self.written().values()):
                raise BadRequest(
                    f"{key} of {name} refers to a value that the properties file uses. Through REST it may be used only as a "
                    "connector of the file uses it: under the same key and with the same addresses and settings of the connection."
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
        self._rules.check(name, patch, stored=self._stored(name))
        return self._herder.patch_connector_config(name, patch)

    def _stored(self, name: str) -> Props:
        """The stored configuration, {} without one."""
        try:
            return self._herder.connector_config(name).result(REQUEST_TIMEOUT_S)
        except NotFound:
            return {}

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
