"""Client of the REST interface of a running MirrorMaker process, for commands that change something."""

from __future__ import annotations

import base64
import os
import ssl
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import httpx

from mm2.cli.common.flow import CommandError
from mm2.config.files.properties import load_properties
from mm2.config.keys.mirror_keys import SOURCE_CONNECTOR
from mm2.config.mirrormaker import MirrorMakerConfig, SourceAndTarget
from mm2.connect.rest.local_processes import Process, UntrustedFolder, processes, token_of
from mm2.connect.rest.settings import is_loopback
from mm2.connect.tls import LISTENERS_PREFIX, client_context
from mm2.kafka.auth.bounded_http import HttpAnswer, exchange
from mm2.mirror.rest.flow_paths import encoded, flow_path

PASSWORD_VARIABLE: Final = "MM2_REST_PASSWORD"  # noqa: S105 - its name, not a password
TOKEN_VARIABLE: Final = "MM2_REST_TOKEN"  # noqa: S105 - its name, not a token
KEY_PASSWORD_VARIABLE: Final = "MM2_REST_KEY_PASSWORD"  # noqa: S105 - its name, not a password
#: Of a single read, and of a whole request.
_TIMEOUT_S: Final = 30.0
_LONGEST_S: Final = 60.0
_MOST_BYTES: Final = 16 * 1024 * 1024
Addresses: TypeAlias = tuple[frozenset[str], frozenset[str]]
#: Another process of the flow may succeed: this one is not the leader, or is stopping.
_ASK_ANOTHER: Final = frozenset({409, 500, 502, 503})


def add_access(parser: Any) -> None:
    """Add the arguments that select a process, and the credentials."""
    parser.add_argument(
        "--url",
        metavar="URL",
        help="the REST interface of the process, http://host:8083; default: that of your processes on this machine that run the "
        "flow between the clusters of the file (mm2 processes)",
    )
    parser.add_argument(
        "--user",
        metavar="NAME",
        help=f"the user to authenticate as; the password is read from {PASSWORD_VARIABLE}. Without this option, the token in "
        f"{TOKEN_VARIABLE}, or for a process of yours on this machine the one that mm2 token prints",
    )
    parser.add_argument(
        "--cacert",
        metavar="FILE",
        help="the CA certificates for https, as PEM; default: the stores of listeners.https.ssl.* in the file, "
        "or of ssl.*, else those of the system",
    )
    parser.add_argument(
        "--cert",
        metavar="FILE",
        help="the client certificate with its key, as PEM or PKCS12; default: that of the same stores "
        f"of the file. The password of the key is read from {KEY_PASSWORD_VARIABLE}",
    )


@dataclass(frozen=True)
class RestLogin:
    """The credentials of requests. ``authorization`` is the header; ``local`` are the processes whose tokens may be sent."""

    authorization: str | None
    local: Sequence[Process] = ()

    @classmethod
    def of(cls, options: Any) -> RestLogin:
        """For the arguments of `add_access`. Raises CommandError, UntrustedFolder."""
        if options.user is not None:
            if PASSWORD_VARIABLE not in os.environ:
                raise CommandError(
                    f"The password of {options.user} must be in the environment variable {PASSWORD_VARIABLE}."
                )
            pair = f"{options.user}:{os.environ[PASSWORD_VARIABLE]}".encode()
            return cls(f"Basic {base64.b64encode(pair).decode()}", _local(options))
        token = os.environ.get(TOKEN_VARIABLE)
        return cls(None if token is None else f"Bearer {token}", _local(options))

    def published(self, url: str) -> str:
        """``url`` with the published address of the process that it names, if the token of that process is to be sent.

        The name localhost may resolve to an address at which another user of the machine listens on the same port.
        """
        if self.authorization is not None:
            return url
        found = next((process for process in self.local if _is_name_of(url, process.url)), None)
        if found is None:
            return url
        return urllib.parse.urlsplit(url)._replace(netloc=urllib.parse.urlsplit(found.url).netloc).geturl()

    def headers(self, url: str) -> dict[str, str]:
        """The headers of a request. A token of a process is sent to the address that this process has published only."""
        if self.authorization is not None:
            return {"Authorization": self.authorization}
        for process in self.local:
            token = token_of(process) if _server(url) == _server(process.url) else None
            if token is not None:
                return {"Authorization": f"Bearer {token}"}
        return {}


def _local(options: Any) -> Sequence[Process]:
    try:
        return processes()
    except UntrustedFolder:
        if options.url is None:
            raise
        return ()


def _server(url: str) -> tuple[str, str, int | None]:
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port


def _is_name_of(url: str, published: str) -> bool:
    """Whether a URL with the name localhost is that of a process with a loopback address, or the other way round."""
    (scheme, host, port), (own_scheme, own_host, own_port) = _server(url), _server(published)
    is_same_port = (scheme, port) == (own_scheme, own_port)
    return is_same_port and "localhost" in {host, own_host} and is_loopback(host) and is_loopback(own_host)


def tls_of(process: Process) -> ssl.SSLContext | bool:
    """How to verify the certificate of a process: by the stores of its file. Raises ConfigException."""
    if not process.url.startswith("https:"):
        return False
    raw = load_properties(Path(process.file))
    return client_context(raw if "clusters" not in raw else MirrorMakerConfig(raw).rest_props())


@dataclass(frozen=True)
class FlowRest:
    """The connectors of one flow, through any of its processes. ``props`` contain the TLS settings."""

    pair: SourceAndTarget
    urls: Sequence[str]
    props: Mapping[str, str] = field(repr=False)
    login: RestLogin = field(repr=False)

    @classmethod
    def of(cls, options: Any, config: MirrorMakerConfig, pair: SourceAndTarget) -> FlowRest:
        """The client for the arguments of `add_access`. Raises CommandError or ConfigException."""
        login = RestLogin.of(options)
        props = _own_tls(options) or config.rest_props()
        if options.url is not None:
            return cls(pair, [login.published(_checked(options.url))], props, login)
        found = cls(pair, [process.url for process in login.local if str(pair) in process.flows], props, login)
        wanted = _addresses(config.connector_config(pair, SOURCE_CONNECTOR))
        # Another file may use the same aliases for other clusters.
        own = [url for url in found.urls if found._addresses_at(url) in {None, wanted}]
        if not own:
            other = f" ({found.urls[0]} runs a flow of that name between other clusters)" if found.urls else ""
            raise CommandError(
                f"None of your processes on this machine runs {pair}{other}, or it has no REST interface: set --url."
            )
        return replace(found, urls=own)

    def connectors(self) -> list[str]:
        """The names of the connectors. Raises CommandError."""
        return sorted(self._ask("GET", "/connectors"))

    def status(self, connector: str) -> dict[str, Any]:
        """The status in the form of REST: name, connector, tasks, type. Raises CommandError."""
        return dict(self._ask("GET", f"/connectors/{encoded(connector)}/status"))

    def change(self, method: str, connector: str, action: str) -> None:
        """Send a request such as ``PUT pause``. Raises CommandError."""
        self._ask(method, f"/connectors/{encoded(connector)}/{action}")

    def _addresses_at(self, url: str) -> Addresses | None:
        """The addresses of the clusters between which that process runs the flow; None if it does not return them."""
        try:
            answer = self._send("GET", f"{url.rstrip('/')}{flow_path(self.pair)}/connectors?expand=info")
            return next((_addresses(one["info"]["config"]) for one in answer.document().values()), None)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, AttributeError, KeyError, TypeError):
            return None

    def _ask(self, method: str, path: str) -> Any:
        refusals: list[str] = []
        for url in self.urls:
            place = f"{url.rstrip('/')}{flow_path(self.pair)}{path}"
            try:
                response = self._send(method, place)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                refusals.append(_unreached(url, error))
                continue
            document = response.document()
            if response.is_success and (document is not None or not response.content):
                return document
            refusals.append(f"{url} answers {response.status}: {_error_of(response)}")
            if response.status not in _ASK_ANOTHER:
                break
        raise CommandError(" ".join(refusals))

    def _send(self, method: str, place: str) -> HttpAnswer:
        verify = client_context(self.props) if place.startswith("https:") else False
        return ask(method, place, self.login.headers(place), verify)


def ask(method: str, url: str, headers: Mapping[str, str], verify: ssl.SSLContext | bool) -> HttpAnswer:
    """Send a request to a process. Raises httpx.HTTPError, httpx.InvalidURL."""
    deadline_s = time.monotonic() + _LONGEST_S
    # No proxy of the environment: these are for external addresses.
    with httpx.Client(verify=verify, timeout=_TIMEOUT_S, trust_env=False) as client:
        return exchange(client, method, url, max_bytes=_MOST_BYTES, deadline_s=deadline_s, headers=headers)


def _addresses(props: Mapping[str, str]) -> Addresses:
    """The addresses of a connector's source and target, independent of the order of their brokers."""
    source, target = (
        frozenset(one.strip() for one in props.get(f"{side}.cluster.bootstrap.servers", "").split(","))
        for side in ("source", "target")
    )
    return source, target


def _own_tls(options: Any) -> dict[str, str]:
    """The settings of ``--cacert`` and ``--cert``; with either of them, those of the file are ignored."""
    password = os.environ.get(KEY_PASSWORD_VARIABLE)
    own = {"ssl.truststore.location": options.cacert, "ssl.keystore.location": options.cert}
    if options.cert is not None:
        own |= {"ssl.keystore.password": password, "ssl.key.password": password}
    return {LISTENERS_PREFIX + key: value for key, value in own.items() if value is not None}


def _unreached(url: str, error: BaseException) -> str:
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    if cause is None and url.startswith("https:") and isinstance(error, (httpx.RemoteProtocolError, httpx.ReadError)):
        # In TLS 1.3 the handshake of the client completes before the server has checked the client certificate.
        return f"{url} closed the connection: it requires a client certificate or rejects the one sent; set --cert."
    if cause is None:
        return f"No response from {url}: {str(error).rstrip('.') or type(error).__name__}."
    why = cause.verify_message if isinstance(cause, ssl.SSLCertVerificationError) else cause.reason or str(cause)
    return f"The TLS handshake with {url} failed: {why.rstrip('.')}; check --cacert and --cert."


def _error_of(response: HttpAnswer) -> str:
    if response.status == 401:
        return f"it requires authentication; set --user, and the password in {PASSWORD_VARIABLE}, or a token in {TOKEN_VARIABLE}."
    try:
        message = str(response.document()["message"])
    except (KeyError, TypeError):
        return "this is not a MirrorMaker process that runs the flow." if response.status == 404 else response.reason
    return message


def _checked(url: str) -> str:
    try:
        parts = urllib.parse.urlsplit(url)
        is_valid = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:  # a port that is no number or too large, or an address in incomplete brackets
        is_valid = False
    if not is_valid:
        raise CommandError(f"--url {url}: write it as http://host:8083.")
    if parts.username or parts.password:
        raise CommandError(
            f"--url contains credentials, which other users of this machine can see: set --user, and the password in {PASSWORD_VARIABLE}."
        )
    return url
