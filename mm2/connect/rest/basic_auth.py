"""A REST extension for HTTP basic authentication (Kafka's connect-basic-auth-extension).

It reads Java's login configuration: the file that ``java.security.auth.login.config`` names, in the worker's settings
or, as with Java's scripts, as ``-D`` in the environment variable KAFKA_OPTS. In this file it reads the entry
`KafkaConnect`:

    KafkaConnect {
        org.apache.kafka.connect.rest.basic.auth.extension.PropertyFileLoginModule required
        file="/path/to/credentials.properties";
    };

The credentials file has one ``user=password`` per line; with an empty file all requests are accepted, as in Java. It is
read when the worker starts. User names and passwords never appear in logs or messages.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from mm2 import __version__
from mm2.config.configdef import ConfigException
from mm2.config.java_options import system_property
from mm2.config.properties import parse_properties
from mm2.config.rest_keys import LOGIN_CONFIG_KEY
from mm2.connect.rest.dispatch import resource_path
from mm2.connect.rest.extensions import ConnectRestExtension, ConnectRestExtensionContext
from mm2.connect.rest.failures import error_answer
from mm2.kafka.jaas import JaasError, parse_jaas

log = structlog.get_logger(__name__)

LOGIN_MODULE: Final = "org.apache.kafka.connect.rest.basic.auth.extension.PropertyFileLoginModule"
_ENTRY: Final = "KafkaConnect"
_SECTION: Final = re.compile(
    r"""(?P<name>[\w.-]+)\s*\{(?P<body>(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^"'}])*)\}\s*;"""
)
INTERNAL_PATHS: Final = {
    "POST": re.compile(r"(?:/[^/]+){0,3}/connectors/[^/]+/tasks"),
    "PUT": re.compile(r"(?:/[^/]+){0,3}/connectors/[^/]+/fence"),
}
"""Paths of worker-to-worker requests by method; they are signed instead. In MirrorMaker they begin with the flow."""
_UNAUTHORIZED: Final = 401


@dataclass(frozen=True)
class Credentials:
    """The users that are authenticated."""

    passwords: Mapping[str, str] = field(repr=False)

    def allow(self, authorization: str | None) -> str | None:
        """The user of an Authorization header, "-" when authentication is disabled, None when it fails."""
        if not self.passwords:
            return "-"
        user, password = _user_and_password(authorization)
        # Compared for unknown users, too, so that the response time reveals nothing.
        expected = self.passwords.get(user, "")
        same = hmac.compare_digest(password.encode(), expected.encode())
        return user if same and user in self.passwords else None


class BasicAuthSecurityRestExtension(ConnectRestExtension):
    """Rejects requests without valid ``Authorization: Basic`` credentials with 401."""

    def __init__(self) -> None:
        self._credentials = Credentials({})

    def configure(self, configs: Mapping[str, str]) -> None:
        """Read login configuration and credentials. Raises ConfigException naming the file."""
        self._credentials = load_credentials(configs)

    def register(self, context: ConnectRestExtensionContext) -> None:
        """See ConnectRestExtension."""
        context.configurable.register(lambda app: BasicAuth(app, self._credentials))

    @property
    def authenticates(self) -> bool:
        """False when the credentials file is empty."""
        return bool(self._credentials.passwords)

    def version(self) -> str:
        """See ConnectRestExtension."""
        return __version__


class BasicAuth:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, credentials: Credentials) -> None:
        self._app = app
        self._credentials = credentials

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        path = resource_path(scope["raw_path"].decode("latin-1"))  # the path that will be matched
        internal = INTERNAL_PATHS.get(scope.get("method", ""))  # a WebSocket has no method
        if internal is None or not internal.fullmatch(path):
            user = self._credentials.allow(Headers(scope=scope).get("authorization"))
            if user is None:
                log.debug("request rejected, invalid credentials", path=path)
                refusal = error_answer(
                    _UNAUTHORIZED,
                    "User cannot access the resource.",
                    {"WWW-Authenticate": 'Basic realm="Kafka Connect"'},
                )
                await refusal(scope, receive, send)
                return
            scope.setdefault("state", {})["user"] = user
        await self._app(scope, receive, send)


def load_credentials(configs: Mapping[str, str]) -> Credentials:
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
    passwords = parse_properties(_read(f"file of {_ENTRY}", file), source=file)
    if not passwords:
        log.warning("credentials file is empty, all requests are accepted", file=file)
    return Credentials(dict(passwords))


def _read(key: str, location: str) -> str:
    try:
        return Path(location).read_text("latin-1")
    except OSError as error:
        raise ConfigException(key, location, f"the file cannot be read: {error.strerror}") from error


def _user_and_password(authorization: str | None) -> tuple[str, str]:
    method, _, encoded = (authorization or "").partition(" ")
    if method.lower() != "basic":
        return "", ""
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).decode("utf-8").partition(":")
    except (binascii.Error, ValueError):
        return "", ""
    return (user, password) if user and colon else ("", "")
