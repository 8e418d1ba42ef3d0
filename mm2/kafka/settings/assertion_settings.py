"""Settings of assertions (RFC 7523), which authenticate a client by a private key, and the lists of allowed URLs and files.

The keys are those of KIP-1139. The lists are system properties of Java since CVE-2025-27817 (`ConfigurationUtils` of Kafka 4.3.0):
a configuration from outside could otherwise make the process read any file or URL.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mm2.config.configdef import ConfigException
from mm2.config.files.java_options import system_property
from mm2.kafka.settings.typed_keys import TypedKeys, setting

ALLOWED_URLS: Final = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
ALLOWED_FILES: Final = "org.apache.kafka.sasl.oauthbearer.allowed.files"
ALGORITHMS: Final = ("RS256", "ES256")
_PREFIX: Final = "sasl.oauthbearer.assertion."
_SECONDS_A_DAY: Final = 86_400


@dataclass(frozen=True, slots=True)
class Assertion:
    """The `sasl.oauthbearer.assertion.*` keys: either a `file` with the assertion, or a key to sign one, and its claims."""

    file: str | None = setting(TypedKeys.optional, f"{_PREFIX}file")
    algorithm: str = setting(TypedKeys.choice, f"{_PREFIX}algorithm", ALGORITHMS[0], ALGORITHMS, upper=True)
    private_key_file: str | None = setting(TypedKeys.optional, f"{_PREFIX}private.key.file")
    private_key_passphrase: str | None = setting(TypedKeys.secret, f"{_PREFIX}private.key.passphrase")
    template_file: str | None = setting(TypedKeys.optional, f"{_PREFIX}template.file")
    audience: str | None = setting(TypedKeys.optional, f"{_PREFIX}claim.aud")
    issuer: str | None = setting(TypedKeys.optional, f"{_PREFIX}claim.iss")
    subject: str | None = setting(TypedKeys.optional, f"{_PREFIX}claim.sub")
    exp_seconds: int = setting(TypedKeys.integer, f"{_PREFIX}claim.exp.seconds", 300, low=0, high=_SECONDS_A_DAY)
    nbf_seconds: int = setting(TypedKeys.integer, f"{_PREFIX}claim.nbf.seconds", 60, low=0, high=3_600)
    jti_include: bool = setting(TypedKeys.boolean, f"{_PREFIX}claim.jti.include", False)


def read_assertion(keys: TypedKeys, *, is_required: bool) -> Assertion | None:
    """The settings of the assertion; None when neither a file nor an issuer is set and it is not required.

    Raises ConfigException, also for a file that is not allowed.
    """
    assertion = Assertion(**keys.values_of(Assertion))
    if not is_required and not assertion.file and not assertion.issuer:
        return None
    if assertion.file:
        _require_allowed_file(f"{_PREFIX}file", assertion.file)
        return assertion
    if not assertion.private_key_file:
        raise ConfigException(f"{_PREFIX}private.key.file", None, f"is needed to sign the assertion, or {_PREFIX}file")
    _require_allowed_file(f"{_PREFIX}private.key.file", assertion.private_key_file)
    if assertion.template_file:
        _require_allowed_file(f"{_PREFIX}template.file", assertion.template_file)
    return assertion


def require_allowed_url(key: str, url: str) -> None:
    """Raise ConfigException unless the operator has allowed this URL, which has no user and password: they are ignored."""
    _require_allowed(key, url, ALLOWED_URLS)


def _require_allowed_file(key: str, path: str) -> None:
    _require_allowed(key, path, ALLOWED_FILES)


def _require_allowed(key: str, value: str, name: str) -> None:
    allowed = {part.strip() for part in (system_property(name) or "").split(",")}
    if value not in allowed:
        raise ConfigException(
            key, value, f"is not allowed: add it to the environment of the process as KAFKA_OPTS=-D{name}={value}"
        )
