"""A REST extension for HTTP basic authentication (Kafka's connect-basic-auth-extension).

It reads Java's login configuration: the file that ``java.security.auth.login.config`` names, in the worker's settings
or, as with Java's scripts, as ``-D`` in the environment variable KAFKA_OPTS. In this file it reads the entry
`KafkaConnect`:

    KafkaConnect {
        org.apache.kafka.connect.rest.basic.auth.extension.PropertyFileLoginModule required
        file="/path/to/credentials.properties";
    };

The credentials file has one ``user=password`` per line. With an empty file there are no users: Java then accepts all
requests, here clients have the role of ``rest.unauthenticated.access``. Unlike in Java, a password may be a hash, and the
file is read again when it changes. Passwords never appear in logs or messages.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

from starlette.datastructures import Headers

from mm2 import __version__
from mm2.config.configdef import ConfigException
from mm2.config.java_options import system_property
from mm2.config.rest_keys import LOGIN_CONFIG_KEY
from mm2.connect.rest.access.credentials import Credentials, CredentialsFile, Users
from mm2.connect.rest.access.principal import Authenticator, Kind, Principal, RequestPeer, WrongCredentials
from mm2.connect.rest.access.throttle import FailureThrottle
from mm2.connect.rest.extensions import ConnectRestExtension, ConnectRestExtensionContext
from mm2.kafka.jaas import JaasError, parse_jaas

LOGIN_MODULE: Final = "org.apache.kafka.connect.rest.basic.auth.extension.PropertyFileLoginModule"
_ENTRY: Final = "KafkaConnect"
_SECTION: Final = re.compile(
    r"""(?P<name>[\w.-]+)\s*\{(?P<body>(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^"'}])*)\}\s*;"""
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
        # One after the other: guesses that are sent at the same time would all be verified before the first one fails.
        async with self._turns.setdefault((user, peer.address), asyncio.Lock()):
            self._throttle.check(user, peer.address)
            if not (user and await self._credentials.matches(user, password)):
                self._throttle.failed(user, peer.address)
                raise WrongCredentials("the user is unknown or the password is wrong", user)
            self._throttle.succeeded(user, peer.address)
        return Principal(user, Kind.PASSWORD)


def load_credentials(configs: Mapping[str, str]) -> CredentialsFile:
    """The credentials that the login configuration names. Raises ConfigException naming the file."""
    location = configs.get(LOGIN_CONFIG_KEY) or system_property(LOGIN_CONFIG_KEY)
    if not location:
        raise ConfigException(
            f"BasicAuthSecurityRestExtension needs a login configuration: set {LOGIN_CONFIG_KEY} to its file, or in the "
            f"environment as KAFKA_OPTS=-D{LOGIN_CONFIG_KEY}=FILE."
        )
    text = _read(LOGIN_CONFIG_KEY, location)
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


def _read(key: str, location: str) -> str:
    try:
        return Path(location).read_text("latin-1")
    except OSError as error:
        raise ConfigException(key, location, f"the file cannot be read: {error.strerror}") from error


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
