"""A REST extension for HTTP basic authentication (Kafka's connect-basic-auth-extension), and its file of users.

It reads Java's login configuration: the file that ``java.security.auth.login.config`` names, in the worker's settings
or, as with Java's scripts, as ``-D`` in the environment variable KAFKA_OPTS. In this file it reads the entry
`KafkaConnect`:

    KafkaConnect {
        org.apache.kafka.connect.rest.basic.auth.extension.PropertyFileLoginModule required
        file="/path/to/credentials.properties";
    };

The credentials file has one ``user=password`` or ``user=hash`` per line. With an empty file there are no users: Java then
accepts all requests, here clients have the role of ``rest.unauthenticated.access``. Unlike in Java, a password may be a
hash, and the file is read again when it has changed. A version that cannot be used is logged, and the previous one stays
valid. Passwords never appear in logs or messages.

A hash is verified in a thread, since it takes a fraction of a second and several MB of memory. Successes are remembered,
so that a client with a password in each request, as a scraper, costs one verification per process.

Guesses of passwords are limited: per user name and address, per name, per address, and for all addresses with failures
together. An address identifies no client, but nearly all guesses come from addresses that the users of the names do not
have: however many fail elsewhere, an address without failures is only limited by the verifications at the same time.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import math
import re
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

import structlog
from starlette.datastructures import Headers

from mm2 import __version__
from mm2.config.configdef import ConfigException
from mm2.config.files.java_options import system_property
from mm2.config.files.properties import file_stamp, parse_properties, property_lines
from mm2.config.keys.rest_keys import LOGIN_CONFIG_KEY
from mm2.connect.rest.access.password_hashes import PasswordHash, UnusableHash
from mm2.connect.rest.access.roles import Authenticator, Kind, Principal, RequestPeer, TooManyFailures, WrongCredentials
from mm2.connect.rest.extensions import ConnectRestExtension, ConnectRestExtensionContext
from mm2.connect.rest.failures import RestFailure
from mm2.kafka.settings.jaas import JaasError, parse_jaas

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

LOGIN_MODULE: Final = "org.apache.kafka.connect.rest.basic.auth.extension.PropertyFileLoginModule"
_ENTRY: Final = "KafkaConnect"
_SECTION: Final = re.compile(
    r"""(?P<name>[\w.-]+)\s*\{(?P<body>(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^"'}])*)\}\s*;"""
)

#: Of the throttle.
_MOST_BUCKETS: Final = 3_000
_MOST_BURSTS: Final = 2


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
        super().__init__(_users_in(path))
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
            self._users = _users_in(self._path)
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


class BasicAuthSecurityRestExtension(ConnectRestExtension):
    """Authenticates users of a file by ``Authorization: Basic``."""

    def __init__(self) -> None:
        self._credentials = Credentials(Users({}))

    def configure(self, configs: Mapping[str, str]) -> None:
        """Read login configuration and credentials. Raises ConfigException naming the file."""
        self._credentials = load_credentials(configs)

    def register(self, context: ConnectRestExtensionContext) -> None:
        """See ConnectRestExtension: it has no resources."""

    def authenticators(self) -> Sequence[Authenticator]:
        """One for passwords, also while the credentials file is empty."""
        return [PasswordAuthenticator(self._credentials)]

    def version(self) -> str:
        """See ConnectRestExtension."""
        return __version__


class PasswordAuthenticator:
    """``Authorization: Basic`` (RFC 7617), with a limit on guesses."""

    def __init__(self, credentials: Credentials, throttle: FailureThrottle | None = None) -> None:
        self._credentials = credentials
        self._throttle = FailureThrottle() if throttle is None else throttle
        #: By user name and address, for as long as a request uses it.
        self._turns: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    @property
    def challenge(self) -> str | None:
        """See Authenticator; the realm is Java's."""
        return 'Basic realm="Kafka Connect"'

    async def authenticate(self, headers: Headers, peer: RequestPeer) -> Principal | None:
        """See Authenticator."""
        found = _user_and_password(headers.get("authorization"))
        if found is None:
            return None
        user, password = found
        address = _client_of(peer.address)
        # One after the other: guesses that are sent at the same time would all be verified before the first one fails.
        async with self._turns.setdefault((user, address), asyncio.Lock()):
            self._throttle.check(user, address)
            if not (user and await self._credentials.matches(user, password)):
                self._throttle.failed(user, address)
                raise WrongCredentials("the user is unknown or the password is wrong", user)
            self._throttle.succeeded(user, address)
        return Principal(user, Kind.PASSWORD)


def load_credentials(configs: Mapping[str, str]) -> CredentialsFile:
    """The credentials that the login configuration names. Raises ConfigException naming the file."""
    location = configs.get(LOGIN_CONFIG_KEY) or system_property(LOGIN_CONFIG_KEY)
    if not location:
        raise ConfigException(
            f"BasicAuthSecurityRestExtension needs a login configuration: set {LOGIN_CONFIG_KEY} to its file, or in the "
            f"environment as KAFKA_OPTS=-D{LOGIN_CONFIG_KEY}=FILE."
        )
    text = _text_of(LOGIN_CONFIG_KEY, location)
    bodies = [match["body"] for match in _SECTION.finditer(text) if match["name"] == _ENTRY]
    if not bodies:
        raise ConfigException(LOGIN_CONFIG_KEY, location, f"there is no entry {_ENTRY} {{ … }}; in the file")
    try:
        entry = parse_jaas(bodies[0])
    except JaasError as error:
        raise ConfigException(LOGIN_CONFIG_KEY, location, f"entry {_ENTRY}: {error}") from None
    if entry.module.rpartition(".")[2] != LOGIN_MODULE.rpartition(".")[2]:
        raise ConfigException(
            LOGIN_CONFIG_KEY, location, f"entry {_ENTRY}: the only supported login module is {LOGIN_MODULE}"
        )
    file = entry.options.get("file", "").strip()
    if not file:
        raise ConfigException(LOGIN_CONFIG_KEY, location, f'entry {_ENTRY}: the option file="…" is missing')
    return CredentialsFile(Path(file))


@dataclass(frozen=True)
class Allowance:
    """``burst`` failures at once, then one in ``period_s``."""

    burst: int
    period_s: float


#: Of one name at one address.
PER_CLIENT: Final = Allowance(5, 10.0)
#: Of one name at all addresses: one attacker cannot use it up, so it does not exclude the user at another address.
PER_NAME: Final = Allowance(20, 2.5)
#: Of one address, for all names.
PER_ADDRESS: Final = Allowance(15, 5.0)
#: Of all addresses. Refuses only those with failures of their own, so attackers do not exclude other users.
ALL: Final = Allowance(50, 0.5)

#: A name and an address; None: all of them.
_Key = tuple[str | None, str | None]


class FailureThrottle:
    """Counts failures as token buckets; one failure is forgotten after each period. Not thread-safe.

    Memory is bounded: the names and addresses that failed least recently are forgotten.
    """

    def __init__(
        self,
        per_client: Allowance = PER_CLIENT,
        everything: Allowance = ALL,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._per_client = per_client
        self._now_s = now_s
        self._buckets: OrderedDict[_Key, _Bucket] = OrderedDict()
        self._all = _Bucket(everything, now_s())

    def check(self, name: str, address: str = "") -> None:
        """Call before credentials are verified. Raises TooManyFailures."""
        now_s = self._now_s()
        found = [self._buckets[key] for key in self._allowances(name, address) if key in self._buckets]
        own = self._buckets.get((None, address))
        if own is not None and not own.is_empty(now_s):
            found.append(self._all)
        wait_s = max((bucket.wait_s(now_s) for bucket in found), default=0.0)
        if wait_s > 0:
            raise TooManyFailures(math.ceil(wait_s), name)

    def failed(self, name: str, address: str = "") -> None:
        """Count a failure."""
        now_s = self._now_s()
        for key, allowance in self._allowances(name, address).items():
            bucket = self._buckets.pop(key, None) or _Bucket(allowance, now_s)
            self._buckets[key] = bucket
            bucket.add(now_s)
        while len(self._buckets) > _MOST_BUCKETS:
            self._buckets.popitem(last=False)
        self._all.add(now_s)

    def succeeded(self, name: str, address: str = "") -> None:
        """Forget the failures of a name at an address; not those of the address, whose client may guess other names."""
        self._buckets.pop((name, address), None)

    def _allowances(self, name: str, address: str) -> dict[_Key, Allowance]:
        return {(name, address): self._per_client, (name, None): PER_NAME, (None, address): PER_ADDRESS}


class _Bucket:
    def __init__(self, allowance: Allowance, now_s: float) -> None:
        self._allowance = allowance
        self._level = 0.0
        self._at_s = now_s

    def add(self, now_s: float) -> None:
        self._drain(now_s)
        # Above the burst: attempts that were being verified at the same time count, too.
        self._level = min(self._level + 1, _MOST_BURSTS * self._allowance.burst)

    def wait_s(self, now_s: float) -> float:
        self._drain(now_s)
        return max(0.0, (self._level - self._allowance.burst + 1) * self._allowance.period_s)

    def is_empty(self, now_s: float) -> bool:
        """Whether all failures are forgotten."""
        self._drain(now_s)
        return self._level == 0.0

    def _drain(self, now_s: float) -> None:
        self._level = max(0.0, self._level - (now_s - self._at_s) / self._allowance.period_s)
        self._at_s = now_s


def _users_in(path: Path) -> Users:
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


def _text_of(key: str, location: str) -> str:
    try:
        return Path(location).read_text("latin-1")
    except OSError as error:
        raise ConfigException(key, location, f"the file cannot be read: {error.strerror}") from error


def _client_of(address: str) -> str:
    """One client for all loopback addresses: each user of this machine can send from any of them. See `peer_of`."""
    return "127.0.0.0/8" if address.startswith("127.") or address == "::/64" else address


def _user_and_password(authorization: str | None) -> tuple[str, str] | None:
    """User and password of a header; None if it is not of this scheme, empty ones if it is malformed."""
    method, _, encoded = (authorization or "").partition(" ")
    if method.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).decode("utf-8").partition(":")
    except (binascii.Error, ValueError):
        return "", ""
    return (user, password) if user and colon else ("", "")
