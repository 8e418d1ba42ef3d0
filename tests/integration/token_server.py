"""An identity provider on loopback: a token endpoint, its public keys (RFC 7517), and a description of both (OpenID Connect
Discovery).

Clients authenticate with a secret (RFC 6749 §4.4) or a signed assertion (RFC 7523 §2.2), or exchange an assertion (§2.1).
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
import urllib.parse
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from tests.support.web_server import WebServer

CLIENT_ID = "mirror"
AUDIENCE = "kafka"
_KEY_ID = "one"
_JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_CLIENT_ASSERTION = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"


class TokenServer(WebServer):
    """`issued`: all issued tokens; each is valid for `lifetime_s`. `got`: the paths of all GET requests.

    `published` are further public keys as JWK, `described` replaces members of the description, and `answers` the response for
    a path: status and body. While `released` is not set, GET requests get no response.

    `client_key` is the public key of the client's assertions. With `tls`, the endpoint is an https URL. With
    `like`, tokens are signed and named as those of the other server.
    """

    def __init__(
        self,
        client_secret: str,
        *,
        lifetime_s: int = 60,
        client_key: rsa.RSAPublicKey | ec.EllipticCurvePublicKey | None = None,
        tls: ssl.SSLContext | None = None,
        like: TokenServer | None = None,
    ) -> None:
        self.issued: list[str] = []
        self.forms: list[dict[str, str]] = []
        self.got: list[str] = []
        self.published: list[Any] = []
        self.described: dict[str, Any] = {}
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.released = threading.Event()
        self.released.set()
        self.key_id = _KEY_ID
        self._client_key = client_key
        self._lifetime_s = lifetime_s
        self.key: rsa.RSAPrivateKey = (
            like.key if like else rsa.generate_private_key(public_exponent=65537, key_size=2048)
        )
        self._issuer = like
        self._login = "Basic " + base64.b64encode(f"{CLIENT_ID}:{client_secret}".encode()).decode()
        super().__init__(self._handler(), tls=tls)

    @property
    def token_url(self) -> str:
        return f"{self.url}/token"

    @property
    def keys_url(self) -> str:
        return f"{self.url}/keys"

    @property
    def configuration_url(self) -> str:
        return f"{self.url}/.well-known/openid-configuration"

    def rotate(self) -> None:
        """Replace the key; the previous one is no longer published."""
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.key_id += "+"

    def token(self, header: Mapping[str, Any] | None = None, /, **changed: Any) -> str:
        """A token signed with RS256; header and claims can be replaced, and a claim that is None is left out."""
        now = int(time.time())
        claims = {"iss": (self._issuer or self).url, "sub": CLIENT_ID, "aud": AUDIENCE, "scope": "copy", "iat": now}
        claims |= {"exp": now + self._lifetime_s, **changed}
        claims = {name: value for name, value in claims.items() if value is not None}
        parts = [{"alg": "RS256", "kid": self.key_id, **(header or {})}, claims]
        text = ".".join(_base64url(json.dumps(part).encode()) for part in parts)
        signature = self.key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{text}.{_base64url(signature)}"

    def _token(self) -> str:
        self.issued.append(self.token())
        return self.issued[-1]

    def _refusal(self, form: dict[str, str], authorization: str | None) -> str:
        """The OAuth error for this request, "" when it gets a token."""
        grant = form.get("grant_type")
        if grant == _JWT_BEARER:
            return "" if self._accepts(form.get("assertion", "")) else "invalid_grant"
        if grant != "client_credentials":
            return "unsupported_grant_type"
        if form.get("client_assertion_type") == _CLIENT_ASSERTION:
            return "" if self._accepts(form.get("client_assertion", "")) else "invalid_client"
        return "" if authorization == self._login else "invalid_client"

    def _accepts(self, assertion: str) -> bool:
        """Whether the client has signed it for this endpoint, and it is valid now."""
        signed, _, signature = assertion.rpartition(".")
        header, claims = (json.loads(_decoded(part)) for part in signed.split("."))
        raw, data = _decoded(signature), signed.encode()
        try:
            if isinstance(self._client_key, rsa.RSAPublicKey) and header["alg"] == "RS256":
                self._client_key.verify(raw, data, padding.PKCS1v15(), hashes.SHA256())
            elif isinstance(self._client_key, ec.EllipticCurvePublicKey) and header["alg"] == "ES256":
                der = encode_dss_signature(int.from_bytes(raw[:32]), int.from_bytes(raw[32:]))
                self._client_key.verify(der, data, ec.ECDSA(hashes.SHA256()))
            else:
                return False
        except InvalidSignature:
            return False
        return claims["nbf"] <= time.time() < claims["exp"] and (claims["aud"], claims["iss"], claims["sub"]) == (
            self.url,
            CLIENT_ID,
            CLIENT_ID,
        )

    def _description(self) -> dict[str, Any]:
        return {"issuer": self.url, "jwks_uri": self.keys_url, "token_endpoint": self.token_url, **self.described}

    def _keys(self) -> dict[str, Any]:
        numbers = self.key.public_key().public_numbers()
        n, e = (number.to_bytes(-(-number.bit_length() // 8)) for number in (numbers.n, numbers.e))
        key = {"kty": "RSA", "use": "sig", "alg": "RS256", "kid": self.key_id, "n": _base64url(n), "e": _base64url(e)}
        return {"keys": [key, *self.published]}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                form = dict(urllib.parse.parse_qsl(body))
                server.forms.append(form)
                if error := server._refusal(form, self.headers["Authorization"]):
                    self._answer(401 if error == "invalid_client" else 400, {"error": error})
                else:
                    self._answer(200, {"access_token": server._token(), "token_type": "Bearer"})

            def do_GET(self) -> None:
                server.got.append(self.path)
                server.released.wait(60)
                if self.path in server.answers:
                    self._send(*server.answers[self.path])
                elif self.path.endswith("/.well-known/openid-configuration"):
                    self._answer(200, server._description())
                else:
                    self._answer(200, server._keys())

            def _answer(self, status: int, body: dict[str, Any]) -> None:
                self._send(status, json.dumps(body).encode())

            def _send(self, status: int, data: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name the base class gave it
                """Does not log requests."""

        return Handler


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
