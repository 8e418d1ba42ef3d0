"""The file with users and passwords of BasicAuthSecurityRestExtension: one ``user=password`` or ``user=hash`` per line.

The file is read again when it has changed. A version that cannot be used is logged, and the previous one stays valid.

A hash is verified in a thread, since it takes a fraction of a second and several MB of memory. Successes are remembered,
so that a client with a password in each request, as a scraper, costs one verification per process.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog

from mm2.config.configdef import ConfigException
from mm2.config.properties import file_stamp, parse_properties, property_lines
from mm2.connect.rest.access.password_hashes import PasswordHash, UnusableHash
from mm2.connect.rest.failures import RestFailure

log = structlog.get_logger(__name__)

_MAX_FILE_BYTES: Final = 1024 * 1024
#: Verifications at the same time, each with up to 64 MiB, and those that may wait for them.
_THREADS: Final = 2
_MAX_PENDING: Final = 32
_MAX_REMEMBERED: Final = 128
_POLL_S: Final = 1.0
#: A file whose last write is more recent than this may be incomplete.
_SETTLED_S: Final = 1.0
_UNAVAILABLE: Final = 503


@dataclass(frozen=True)
class Users:
    """The passwords and hashes of one version of the file."""

    entries: Mapping[str, str | PasswordHash] = field(repr=False)
    #: Verified in place of a hash that does not exist, so that the response time does not show which users exist.
    decoy: PasswordHash | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, text: str, source: str) -> Users:
        """The users of a file's text. Raises ConfigException naming ``source`` and the line, never a user or a value."""
        entries: dict[str, str | PasswordHash] = {}
        lines = property_lines(text, source=source)
        for user, value in parse_properties(text, source=source).items():
            try:
                entries[user] = PasswordHash.parse(value) or value
            except UnusableHash as error:
                raise ConfigException(
                    f"{source}, line {lines[user]}: the password hash cannot be used: {error}."
                ) from None
        hashes = [entry for entry in entries.values() if isinstance(entry, PasswordHash)]
        costliest = max(hashes, key=lambda one: one.work, default=None)
        return cls(entries, costliest.decoy() if costliest else None)

    @property
    def in_clear(self) -> int:
        """The number of passwords that are not hashed."""
        return sum(isinstance(entry, str) for entry in self.entries.values())


class Credentials:
    """Users whose passwords can be verified: hashes in threads, with a bounded memory of successes."""

    def __init__(self, users: Users) -> None:
        self._users = users
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="password-hashes")
        self._free = threading.BoundedSemaphore(_MAX_PENDING)
        self._key = secrets.token_bytes(32)
        self._remembered: OrderedDict[bytes, PasswordHash] = OrderedDict()

    async def matches(self, user: str, password: str) -> bool:
        """Whether a user has this password. Raises RestFailure 503 while too many verifications are waiting."""
        users = self._users
        entry = users.entries.get(user)
        if not isinstance(entry, PasswordHash):
            # Compared for unknown users, too, so that the response time reveals nothing.
            same = hmac.compare_digest(password.encode(), (entry or "").encode())
            if (same and entry is not None) or users.decoy is None:
                return same and entry is not None
            await self._verify(users.decoy, password)
            return False
        proof = hmac.digest(self._key, f"{user}\0{password}".encode(), hashlib.sha256)
        if self._remembered.get(proof) == entry:
            self._remembered.move_to_end(proof)
            return True
        if not await self._verify(entry, password):
            return False
        self._remembered[proof] = entry
        while len(self._remembered) > _MAX_REMEMBERED:
            self._remembered.popitem(last=False)
        return True

    async def _verify(self, entry: PasswordHash, password: str) -> bool:
        if not self._free.acquire(blocking=False):
            raise RestFailure(
                _UNAVAILABLE, "Too many logins are being verified; send the request again.", {"Retry-After": "1"}
            )
        done = self._pool.submit(entry.verify, password)
        done.add_done_callback(lambda _: self._free.release())  # also when the client has gone
        return await asyncio.wrap_future(done)


class CredentialsFile(Credentials):
    """The users in a file. Used by one event loop."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigException naming the file, and the line of a hash that cannot be used."""
        self._path = path
        self._loaded = self._seen = file_stamp(path)
        super().__init__(_read(path))
        self._next_poll_s = 0.0
        self._warn()

    async def matches(self, user: str, password: str) -> bool:
        """See Credentials; a changed file is read first."""
        self._refresh()
        return await super().matches(user, password)

    def _refresh(self) -> None:
        now_s = time.monotonic()
        if now_s < self._next_poll_s:
            return
        self._next_poll_s = now_s + _POLL_S
        stamp, before = file_stamp(self._path), self._seen
        self._seen = stamp
        if stamp == self._loaded or not (stamp == before or _is_settled(stamp)):
            return
        self._loaded = stamp
        try:
            self._users = _read(self._path)
        except ConfigException as error:
            log.warning("credentials file cannot be used, the previous version stays valid", reason=str(error))
            return
        log.info("credentials file read again", file=str(self._path))
        self._warn()

    def _warn(self) -> None:
        if not self._users.entries:
            log.warning("credentials file is empty, no user can log in", file=str(self._path))
        if self._users.in_clear:
            log.warning(
                "Passwords are stored in clear text; mm2 hash-password prints a line with a hash.", file=str(self._path)
            )


def _read(path: Path) -> Users:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigException(f"The credentials file {path} cannot be read: {error.strerror}.") from error
    if len(data) > _MAX_FILE_BYTES:
        raise ConfigException(f"The credentials file {path} has more than {_MAX_FILE_BYTES} bytes.")
    return Users.parse(data.decode("latin-1"), str(path))


def _is_settled(stamp: tuple[int, ...] | None) -> bool:
    """Whether the file was last written a moment ago."""
    return stamp is not None and time.time_ns() - stamp[0] > _SETTLED_S * 1e9
