"""Assertions for token endpoints (RFC 7523): a JWT that the client signs with its private key, or one from a file.

As Kafka's `DefaultAssertionCreator` and `LayeredAssertionJwtTemplate`: claims of the settings, then those of the template, then
the times.
"""

from __future__ import annotations

import json
import time
import uuid
from typing import Any, Final

from cryptography.hazmat.primitives.serialization import load_pem_private_key
from jwt import InvalidKeyError, PyJWS
from jwt.utils import base64url_encode

from mm2.config.files.regular_file import UnusableFile, read_text_file
from mm2.kafka.settings.assertion_settings import Assertion

#: Of a key, a template or a finished assertion.
_MOST_BYTES: Final = 1024 * 1024


class AssertionFailure(Exception):
    """No assertion can be made. The message contains no secret."""


def assertion_text(assertion: Assertion) -> str:
    """A new assertion in compact form. Files are read each time, so a replaced key is used. Raises AssertionFailure."""
    if assertion.file:
        return _read(assertion.file)
    template = _template(assertion.template_file)
    fixed = {"aud": assertion.audience, "iss": assertion.issuer, "sub": assertion.subject}
    now = int(time.time())
    payload = {
        **{name: value for name, value in fixed.items() if value},
        **template.get("payload", {}),
        "iat": now,
        "exp": now + assertion.exp_seconds,
        "nbf": now - assertion.nbf_seconds,
        **({"jti": str(uuid.uuid4())} if assertion.jti_include else {}),
    }
    header = {**template.get("header", {}), "alg": assertion.algorithm, "typ": "JWT"}
    text = b".".join(base64url_encode(json.dumps(part).encode()) for part in (header, payload))
    return b".".join((text, base64url_encode(_signature(assertion, text)))).decode()


def _signature(assertion: Assertion, text: bytes) -> bytes:
    path = assertion.private_key_file or ""
    passphrase = assertion.private_key_passphrase
    try:
        key: Any = load_pem_private_key(_read(path).encode(), passphrase.encode() if passphrase else None)
    except (ValueError, TypeError):
        raise AssertionFailure(
            f"the private key file {path} has no key in PEM (PKCS8), or its passphrase is wrong"
        ) from None
    algorithm = PyJWS().get_algorithm_by_name(assertion.algorithm)
    try:
        return algorithm.sign(text, algorithm.prepare_key(key))
    except (TypeError, InvalidKeyError):
        raise AssertionFailure(f"the key in {path} is not one for {assertion.algorithm}") from None


def _template(path: str | None) -> dict[str, dict[str, Any]]:
    if path is None:
        return {}
    try:
        template = json.loads(_read(path))
    except ValueError:
        template = None
    if not isinstance(template, dict) or not all(isinstance(template.get(n, {}), dict) for n in ("header", "payload")):
        raise AssertionFailure(f"the template file {path} is not a JSON object with header and payload")
    return template


def _read(path: str) -> str:
    try:
        return read_text_file(path, _MOST_BYTES)
    except UnicodeError as error:
        raise AssertionFailure(f"the file {path} cannot be read: it is not text") from error
    except UnusableFile as error:
        raise AssertionFailure(f"the file {path} {error}") from error
