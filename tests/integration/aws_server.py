"""AWS on loopback: the token service (STS), and the metadata of containers and instances, which issue temporary credentials."""

from __future__ import annotations

import json
import urllib.parse
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler

from tests.support.web_server import WebServer

_STS_ANSWER = """\
<{action}Response xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><{action}Result>
<AssumedRoleUser><Arn>{arn}</Arn><AssumedRoleId>AROA:x</AssumedRoleId></AssumedRoleUser>
<Credentials><AccessKeyId>{key}</AccessKeyId><SecretAccessKey>{secret}</SecretAccessKey>
<SessionToken>{token}</SessionToken><Expiration>{expiration}</Expiration></Credentials>
</{action}Result></{action}Response>"""
_IMDS = "/latest/meta-data/iam/security-credentials/"


@dataclass(frozen=True)
class AwsKey:
    """An access key; `token` is the session token of temporary credentials."""

    key_id: str
    secret: str
    token: str = ""


@dataclass
class AwsServer(WebServer):
    """Issues `key` to every caller, valid for an hour. `requests`: the parameters of the requests to the token service."""

    key: AwsKey
    requests: list[dict[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(self._handler())

    def _sts(self, body: str, authorization: str) -> str:
        form = dict(urllib.parse.parse_qsl(body))
        self.requests.append({**form, "Authorization": authorization})
        return _STS_ANSWER.format(
            action=form["Action"],
            arn=form["RoleArn"],
            key=self.key.key_id,
            secret=self.key.secret,
            token=self.key.token,
            expiration=_in_an_hour(),
        )

    def _metadata(self) -> str:
        return json.dumps(
            {
                "Code": "Success",
                "AccessKeyId": self.key.key_id,
                "SecretAccessKey": self.key.secret,
                "Token": self.key.token,
                "Expiration": _in_an_hour(),
            }
        )

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                self._answer(server._sts(body, self.headers.get("Authorization", "")))

            def do_PUT(self) -> None:
                self._answer("metadata-session")

            def do_GET(self) -> None:
                self._answer("instance-role" if self.path == _IMDS else server._metadata())

            def _answer(self, text: str) -> None:
                data = text.encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name the base class gave it
                """Does not log requests."""

        return Handler


def _in_an_hour() -> str:
    return (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
