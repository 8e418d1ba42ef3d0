"""Responses of a REST server."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Answer:
    """A response; names of `headers` in lower case. `json` is None when the body is not JSON."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @classmethod
    def of(cls, response: http.client.HTTPResponse) -> Answer:
        return cls(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())

    @property
    def json(self) -> Any:
        return json.loads(self.body) if self.body else None

    @property
    def message(self) -> Any:
        """The message of an error response, after checking its format."""
        assert self.headers["content-type"] == "application/json", self
        assert set(self.json) == {"error_code", "message"}, self
        assert self.json["error_code"] == self.status
        return self.json["message"]
