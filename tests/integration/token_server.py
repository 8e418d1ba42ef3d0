"""An identity provider on loopback: a token endpoint for client credentials (RFC 6749 §4.4), and its public key (RFC 7517)."""

from __future__ import annotations

import base64
import json
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

CLIENT_ID = "mirror"
AUDIENCE = "kafka"
_KEY_ID = "one"


class TokenServer:
    """Serves as a context manager. `issued`: all issued tokens; each is valid for `lifetime_s`."""

    def __init__(self, client_secret: str, *, lifetime_s: int = 60) -> None:
        self.issued: list[str] = []
        self._lifetime_s = lifetime_s
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._login = "Basic " + base64.b64encode(f"{CLIENT_ID}:{client_secret}".encode()).decode()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def token_url(self) -> str:
        return f"{self.url}/token"

    @property
    def keys_url(self) -> str:
        return f"{self.url}/keys"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, name="token-server", daemon=True).start()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _exc: BaseException | None, _tb: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _token(self) -> str:
        now = int(time.time())
        claims = {"iss": self.url, "sub": CLIENT_ID, "aud": AUDIENCE, "scope": "copy", "iat": now}
        parts = [{"alg": "RS256", "kid": _KEY_ID}, {**claims, "exp": now + self._lifetime_s}]
        text = ".".join(_base64url(json.dumps(part).encode()) for part in parts)
        signature = self._key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256())
        token = f"{text}.{_base64url(signature)}"
        self.issued.append(token)
        return token

    def _keys(self) -> dict[str, Any]:
        numbers = self._key.public_key().public_numbers()
        n, e = (number.to_bytes(-(-number.bit_length() // 8)) for number in (numbers.n, numbers.e))
        key = {"kty": "RSA", "use": "sig", "alg": "RS256", "kid": _KEY_ID, "n": _base64url(n), "e": _base64url(e)}
        return {"keys": [key]}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = urllib.parse.parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                if self.headers["Authorization"] != server._login:
                    self._answer(401, {"error": "invalid_client"})
                elif form.get("grant_type") != ["client_credentials"]:
                    self._answer(400, {"error": "unsupported_grant_type"})
                else:
                    self._answer(200, {"access_token": server._token(), "token_type": "Bearer"})

            def do_GET(self) -> None:
                self._answer(200, server._keys())

            def _answer(self, status: int, body: dict[str, Any]) -> None:
                data = json.dumps(body).encode()
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
