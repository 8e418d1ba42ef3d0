"""OAuth tokens, with a small web server as the endpoint."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import socket
import threading
import time
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from mm2.kafka.auth.oauth import TokenError, TokenSource, _expiry, unsecured_token
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.settings.sasl_settings import Sasl


def claims_of(token: str) -> dict[str, object]:
    body = token.split(".")[1]
    claims: dict[str, object] = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    return claims


def test_unsecured_token_has_the_claims_of_the_options() -> None:
    sasl = Sasl(
        "OAUTHBEARER",
        options=(
            ("unsecuredLoginStringClaim_sub", "dave"),
            ("unsecuredLoginNumberClaim_level", "3"),
            ("unsecuredLoginListClaim_scope", "|a|b"),
            ("unsecuredLoginLifetimeSeconds", "60"),
            ("unsecuredLoginExtension_tenant", "t1"),
        ),
    )
    token = unsecured_token(sasl, now_s=1_000)
    assert claims_of(token.text) == {"sub": "dave", "level": 3.0, "scope": ["a", "b"], "iat": 1_000, "exp": 1_060}
    assert token.text.endswith(".")
    assert token.expires_at == 1_060
    assert token.extensions == (("tenant", "t1"),)


def test_unsecured_token_without_a_principal_is_refused() -> None:
    with pytest.raises(TokenError, match="claim sub"):
        unsecured_token(Sasl("OAUTHBEARER", options=(("unsecuredLoginStringClaim_x", "y"),)), now_s=0)


@dataclass
class Endpoint:
    url: str
    answers: list[tuple[int, str]] = field(default_factory=list)
    requests: list[tuple[str, str]] = field(default_factory=list)
    encodings: list[str] = field(default_factory=list)
    location: str = ""


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            place.encodings.append(self.headers["Accept-Encoding"])
            place.requests.append((self.headers["Authorization"], body))
            status, answer = place.answers.pop(0) if len(place.answers) > 1 else place.answers[0]
            self.send_response(status)
            if place.location:
                self.send_header("Location", place.location)
            self.end_headers()
            self.wfile.write(answer.encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name the base class gave it
            """Do not log: the tests check the recorded requests."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    place = Endpoint(f"http://127.0.0.1:{server.server_port}/token")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield place
    server.shutdown()
    thread.join()
    server.server_close()


def sasl_for(endpoint: Endpoint) -> Sasl:
    return Sasl(
        "OAUTHBEARER",
        token_endpoint_url=endpoint.url,
        oauth_client_id="id",
        oauth_client_secret="hunter2",
        oauth_scope="kafka",
        login_retry_backoff_ms=10,
    )


def token_for(seconds: float) -> str:
    return unsecured_token(
        Sasl(
            "OAUTHBEARER",
            options=(("unsecuredLoginStringClaim_sub", "x"), ("unsecuredLoginLifetimeSeconds", str(seconds))),
        ),
        now_s=time.time(),
    ).text


def test_client_credentials_are_exchanged_for_a_token_that_is_kept(endpoint: Endpoint) -> None:
    token = token_for(3600)
    endpoint.answers = [(200, json.dumps({"access_token": token}))]
    source = TokenSource(sasl_for(endpoint))
    assert source.token(timeout_s=5).text == token
    assert source.token(timeout_s=5).text == token
    basic = "Basic " + base64.b64encode(b"id:hunter2").decode()
    assert endpoint.requests == [(basic, "grant_type=client_credentials&scope=kafka")]


def test_a_proxy_of_the_environment_is_not_used(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Java. Over http it would see the client's secret."""
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    endpoint.answers = [(200, json.dumps({"access_token": token_for(3600)}))]
    TokenSource(sasl_for(endpoint)).token(timeout_s=60)
    assert len(endpoint.requests) == 1


def test_a_redirect_to_another_url_is_not_followed(endpoint: Endpoint) -> None:
    """The other URL is not among those that the operator has allowed."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        endpoint.location = f"http://127.0.0.1:{other.getsockname()[1]}/token"
        endpoint.answers = [(302, ""), (307, ""), (400, "")]
        with pytest.raises(TokenError, match="refused with HTTP 400"):
            TokenSource(sasl_for(endpoint)).token(timeout_s=5)
        assert len(endpoint.requests) == 3
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            other.accept()


def test_a_token_close_to_expiry_is_refreshed(endpoint: Endpoint) -> None:
    endpoint.answers = [(200, json.dumps({"access_token": token_for(-1)}))]
    source = TokenSource(sasl_for(endpoint))
    source.token(timeout_s=5)
    source.token(timeout_s=5)
    assert len(endpoint.requests) == 2


@pytest.mark.parametrize(
    ("given", "lifetime_s", "expected_s"),
    [
        ({}, 10_000, (8_000, 8_500)),  # window 0.8, jitter 0.05
        ({"window.factor": "0.5", "window.jitter": "0"}, 10_000, (5_000, 5_000)),
        ({"window.jitter": "0", "buffer.seconds": "3600"}, 10_000, (6_400, 6_400)),
        ({"window.factor": "0.5", "window.jitter": "0", "min.period.seconds": "900"}, 1_500, (900, 900)),
        ({"window.jitter": "0", "min.period.seconds": "900", "buffer.seconds": "3600"}, 4_000, (3_200, 3_200)),
    ],
)
def test_a_token_is_refreshed_within_the_configured_window(
    endpoint: Endpoint,
    given: dict[str, str],
    lifetime_s: int,
    expected_s: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = sasl_for(endpoint).token_endpoint_url or ""
    monkeypatch.setenv("KAFKA_OPTS", f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={url}")
    props = {
        "bootstrap.servers": "localhost:1",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": url,
        "sasl.oauthbearer.client.credentials.client.id": "id",
        "sasl.oauthbearer.client.credentials.client.secret": "secret",
        **{f"sasl.login.refresh.{key}": value for key, value in given.items()},
    }
    sasl = ClientSettings.from_props(props).sasl
    assert sasl is not None
    endpoint.answers = [(200, json.dumps({"access_token": token_for(lifetime_s)}))]
    source = TokenSource(sasl)
    before = time.time()
    source.token(timeout_s=5)
    expires_at = _expiry(token_for(lifetime_s))
    assert expires_at is not None
    # The claim has whole seconds, and the token was requested between the two times.
    low, high = expected_s
    assert before + low - 3 <= source._refresh_at <= time.time() + high + 3


def test_a_valid_token_is_used_while_the_endpoint_fails(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mm2.kafka.auth.oauth._GLANCE_S", 0.05)
    source = TokenSource(replace(sasl_for(endpoint), login_refresh_window_factor=0.5))
    endpoint.answers = [(200, json.dumps({"access_token": token_for(20)})), (503, "")]
    first = source.token(timeout_s=5)
    source._refresh_at = 0.0  # half of its lifetime has passed
    for _ in range(3):
        assert source.token(timeout_s=5) == first
    asked = len(endpoint.requests)
    assert source.token(timeout_s=5) == first
    assert len(endpoint.requests) == asked, "not with every login"
    endpoint.answers = [(401, "{}")]
    source._token, source._refresh_at = replace(first, expires_at=time.time() + 1), 0.0
    with pytest.raises(TokenError, match="HTTP 401"):
        source.token(timeout_s=5)


def test_temporary_errors_are_retried(endpoint: Endpoint) -> None:
    token = token_for(60)
    endpoint.answers = [(503, ""), (500, ""), (200, json.dumps({"access_token": token}))]
    assert TokenSource(sasl_for(endpoint)).token(timeout_s=5).text == token


def configured(url: str, **more: str) -> TokenSource:
    """A source of tokens with these keys; underscores stand for dots."""
    client = "sasl.oauthbearer.client.credentials.client"
    props = {
        "bootstrap.servers": "localhost:1",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": url,
        f"{client}.id": "my id",
        f"{client}.secret": "se/cret",
        **{key.replace("_", "."): value for key, value in more.items()},
    }
    with pytest.MonkeyPatch.context() as patch:
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={url}"
        files = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.files={more.get('sasl_oauthbearer_assertion_private_key_file')}"
        patch.setenv("KAFKA_OPTS", f"{allowed} {files}")
        sasl = ClientSettings.from_props(props).sasl
    assert sasl is not None
    return TokenSource(sasl)


@pytest.mark.parametrize(
    ("settings", "delays_s"),
    [
        ({}, [0.1, 0.2, 0.4]),
        ({"sasl_login_retry_backoff_ms": "300"}, [0.3, 0.6, 1.2]),
        ({"sasl_login_retry_backoff_max_ms": "150"}, [0.1, 0.15, 0.15]),
    ],
    ids=["default", "sasl.login.retry.backoff.ms", "sasl.login.retry.backoff.max.ms"],
)
def test_the_endpoint_is_asked_again_after_the_configured_backoff(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], delays_s: list[float]
) -> None:
    waits: list[float] = []
    sleep, own_thread = time.sleep, threading.current_thread()

    def noting(seconds: float) -> None:
        if threading.current_thread() is own_thread:
            waits.append(seconds)
        else:
            sleep(seconds)

    monkeypatch.setattr("mm2.kafka.auth.oauth.time.sleep", noting)
    endpoint.answers = [(503, "")] * 3 + [(200, json.dumps({"access_token": token_for(60)}))]
    configured(endpoint.url, **settings).token(timeout_s=600)
    for waited_s, delay_s in zip(waits, delays_s, strict=True):
        assert 0.8 * delay_s <= waited_s <= 1.2 * delay_s


@pytest.mark.parametrize(
    ("settings", "connect_s", "read_s"),
    [
        ({}, 10, 600),
        ({"sasl_login_connect_timeout_ms": "2000"}, 2, 600),
        ({"sasl_login_read_timeout_ms": "3000"}, 10, 3),
    ],
    ids=["default", "sasl.login.connect.timeout.ms", "sasl.login.read.timeout.ms"],
)
def test_requests_to_the_endpoint_have_the_configured_timeouts(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], connect_s: float, read_s: float
) -> None:
    client, given = httpx.Client, list[httpx.Timeout]()

    def noting(**options: Any) -> httpx.Client:
        given.append(options["timeout"])
        return client(**options)

    monkeypatch.setattr(httpx, "Client", noting)
    endpoint.answers = [(200, json.dumps({"access_token": token_for(60)}))]
    configured(endpoint.url, **settings).token(timeout_s=600)
    (timeout,) = given
    assert timeout.connect == connect_s
    assert timeout.read == pytest.approx(read_s, abs=30 if read_s == 600 else 0)


def test_an_endpoint_without_a_response_is_asked_again_after_the_read_timeout() -> None:
    """The default is all the time that the login has left."""
    token = token_for(60)
    body = json.dumps({"access_token": token}).encode()
    answer = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError), server.accept()[0]:  # without an answer
                while True:
                    with server.accept()[0] as connection:
                        connection.recv(1 << 16)
                        connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/token"
        source = configured(url, sasl_login_read_timeout_ms="200", sasl_login_retry_backoff_ms="1")
        assert source.token(timeout_s=600).text == token


@pytest.mark.parametrize(
    ("settings", "credentials"),
    [({}, b"my id:se/cret"), ({"sasl_oauthbearer_header_urlencode": "true"}, b"my+id:se%2Fcret")],
)
def test_client_credentials_are_url_encoded_on_request(
    endpoint: Endpoint, settings: dict[str, str], credentials: bytes
) -> None:
    endpoint.answers = [(200, json.dumps({"access_token": token_for(60)}))]
    configured(endpoint.url, **settings).token(timeout_s=5)
    ((authorization, _),) = endpoint.requests
    assert base64.b64decode(authorization.removeprefix("Basic ")) == credentials


@pytest.mark.parametrize(
    ("settings", "expires_s", "before_s", "has_id"),
    [
        ({}, 300, 60, False),
        ({"claim_exp_seconds": "77"}, 77, 60, False),
        ({"claim_nbf_seconds": "7"}, 300, 7, False),
        ({"claim_jti_include": "true"}, 300, 60, True),
    ],
    ids=["default", "claim.exp.seconds", "claim.nbf.seconds", "claim.jti.include"],
)
def test_an_assertion_has_the_configured_claims(
    endpoint: Endpoint, tmp_path: Path, settings: dict[str, str], expires_s: int, before_s: int, has_id: bool
) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    file = tmp_path / "key.pem"
    file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    prefix = "sasl_oauthbearer_assertion"
    given = {f"{prefix}_{name}": value for name, value in settings.items()}
    endpoint.answers = [(200, json.dumps({"access_token": token_for(60)}))]
    source = configured(endpoint.url, **{f"{prefix}_claim_iss": "me", f"{prefix}_private_key_file": str(file), **given})
    source.token(timeout_s=5)
    ((_, body),) = endpoint.requests
    claims = claims_of(urllib.parse.parse_qs(body)["client_assertion"][0])
    issued = int(str(claims["iat"]))
    assert (int(str(claims["exp"])) - issued, issued - int(str(claims["nbf"]))) == (expires_s, before_s)
    assert ("jti" in claims) is has_id


def test_a_rejection_is_final_and_contains_the_reason_without_the_secret(endpoint: Endpoint) -> None:
    endpoint.answers = [(401, json.dumps({"error": "invalid_client"}))]
    with pytest.raises(TokenError, match="HTTP 401, invalid_client") as raised:
        TokenSource(sasl_for(endpoint)).token(timeout_s=5)
    assert "hunter2" not in str(raised.value)
    assert len(endpoint.requests) == 1


@pytest.mark.parametrize("answer", ["{}", "[]", "no", '{"access_token": ""}'])
def test_answer_without_a_token_is_refused(endpoint: Endpoint, answer: str) -> None:
    endpoint.answers = [(200, answer)]
    with pytest.raises(TokenError, match="token endpoint"):
        TokenSource(sasl_for(endpoint)).token(timeout_s=5)


def test_the_answer_of_an_endpoint_has_a_limit_and_is_not_decompressed(endpoint: Endpoint) -> None:
    endpoint.answers = [(200, json.dumps({"access_token": token_for(60)}) + " " * 1024 * 1024)]
    with pytest.raises(TokenError, match=r"answered with more than 1048576 bytes"):
        TokenSource(sasl_for(endpoint)).token(timeout_s=60)
    assert len(endpoint.requests) == 1
    assert endpoint.encodings == ["identity"]


def test_an_unresponsive_endpoint_fails_at_the_deadline() -> None:
    sasl = Sasl("OAUTHBEARER", token_endpoint_url="http://127.0.0.1:1/t", oauth_client_id="a", oauth_client_secret="b")
    with pytest.raises(TokenError, match="gave no answer"):
        TokenSource(sasl).token(timeout_s=0.3)


def test_user_and_password_in_the_url_are_neither_used_nor_printed(endpoint: Endpoint) -> None:
    endpoint.answers = [(200, json.dumps({"access_token": token_for(60)})), (401, "{}")]
    sasl = sasl_for(endpoint)
    own = replace(sasl, token_endpoint_url=endpoint.url.replace("://", "://somebody:hunter3@"))
    TokenSource(sasl).token(timeout_s=5)
    with pytest.raises(TokenError, match="HTTP 401") as raised:
        TokenSource(own).token(timeout_s=5)
    assert "hunter3" not in str(raised.value)
    # The client's credentials, not those in the URL.
    assert endpoint.requests[0] == endpoint.requests[1]


@pytest.mark.parametrize("content", [b"\xff", b"", b"a" * (1024 * 1024 + 1)], ids=["binary", "empty", "large"])
def test_a_token_file_that_cannot_be_used_fails_the_login(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(TokenError, match=re.escape(f"the token file {path} is")):
        TokenSource(Sasl("OAUTHBEARER", token_endpoint_url=path.as_uri())).token(timeout_s=5)
