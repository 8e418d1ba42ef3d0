"""SASL logins with kafka-python's mechanisms and our settings.

For SCRAM this module escapes the user name (RFC 5802 §5.1); for OAUTHBEARER it takes the token from `mm2.kafka.auth.oauth`.
All exceptions of the mechanisms become SaslError.
"""

from __future__ import annotations

import re
from typing import Any, Final

from kafka.net.sasl import get_sasl_mechanism
from kafka.net.sasl.oauth import AbstractTokenProvider

from mm2.kafka.auth.oauth import TokenError, token_source
from mm2.kafka.settings.sasl_settings import Sasl, missing_extra

#: Of RFC 7677, and of Kafka's ScramMechanism: with fewer, a recorded login reveals weak passwords.
_MIN_SCRAM_ITERATIONS: Final = 4096
#: The first message of a SCRAM server (RFC 5802 §7), without the extensions that change it.
_SERVER_FIRST: Final = re.compile(rb"r=[!-+\--~]+,s=[A-Za-z0-9+/=]+,i=([0-9]{1,9})(?:,[a-hj-ln-qt-zA-Z]=[^,]+)*")


class SaslError(Exception):
    """The login failed. The message contains no secret."""


class Login:
    """One run of a mechanism: send `auth_bytes`, pass the answer to `receive`, until `is_done`."""

    def __init__(self, mechanism: Any, name: str) -> None:
        self._mechanism = mechanism
        self._name = name
        self._refusal = ""
        self._is_challenged = False

    def auth_bytes(self) -> bytes:
        try:
            return bytes(self._mechanism.auth_bytes())
        except Exception as error:
            raise self._failure(error) from error

    def receive(self, challenge: bytes) -> None:
        if self._name == "OAUTHBEARER" and challenge:
            # The reason is JSON in a challenge, which must be answered before the broker reports the error itself.
            self._refusal = challenge.decode("utf-8", "replace")
        if self._name.startswith("SCRAM") and not self._is_challenged:
            self._check_iterations(challenge)
        self._is_challenged = True
        try:
            self._mechanism.receive(challenge)
        except Exception as error:
            raise self._failure(error) from error

    def is_done(self) -> bool:
        return bool(self._mechanism.is_done())

    def is_authenticated(self) -> bool:
        return bool(self._mechanism.is_authenticated())

    @property
    def refusal(self) -> str:
        """The broker's reason for rejecting an OAUTHBEARER token, otherwise ""."""
        return self._refusal

    def _check_iterations(self, challenge: bytes) -> None:
        """Refuse a first message of the server that demands too few iterations, as Kafka's ScramSaslClient does, or that could be read in
        another way than here: kafka-python takes any spelling of a number, and the last one.
        """
        found = _SERVER_FIRST.fullmatch(challenge)
        if found is None:
            raise self._failure(ValueError(challenge))
        if int(found[1]) < _MIN_SCRAM_ITERATIONS:
            raise SaslError(
                f"the broker demands {int(found[1])} iterations, the minimum of {self._name} is {_MIN_SCRAM_ITERATIONS}"
            )

    def _failure(self, error: Exception) -> SaslError:
        if self._name.startswith("SCRAM") and isinstance(error, KeyError | ValueError):
            return SaslError("the broker's SCRAM message is invalid; its stored credentials may be wrong")
        if self._name in {"AWS_MSK_IAM", "GSSAPI"}:
            return SaslError(str(error))
        return SaslError(f"{type(error).__name__}: {error}")


def login(sasl: Sasl, host: str, *, timeout_s: float) -> Login:
    """Start a login at a broker. `timeout_s` limits the retrieval of an OAuth token. Raises SaslError."""
    if sasl.mechanism == "AWS_MSK_IAM":
        return Login(_msk_login(sasl, host), sasl.mechanism)
    if sasl.mechanism == "GSSAPI":
        return Login(_kerberos_login(sasl, host), sasl.mechanism)
    options = dict(sasl.options)
    config: dict[str, Any] = {"host": host, "sasl_mechanism": sasl.mechanism}
    if sasl.mechanism == "OAUTHBEARER":
        try:
            token = token_source(sasl).token(timeout_s=timeout_s)
        except TokenError as error:
            raise SaslError(str(error)) from error
        config["sasl_oauth_token_provider"] = _BearerToken(token.text, dict(token.extensions))
    else:
        username = options["username"]
        config["sasl_plain_username"] = _scram_name(username) if sasl.mechanism.startswith("SCRAM") else username
        config["sasl_plain_password"] = options["password"]
    try:
        return Login(get_sasl_mechanism(sasl.mechanism)(**config), sasl.mechanism)
    except Exception as error:
        raise SaslError(f"the mechanism cannot be used here: {error}") from error


def _msk_login(sasl: Sasl, host: str) -> Any:
    try:
        from mm2.kafka.auth.msk import AwsLoginError, AwsMskIam  # noqa: PLC0415 - needs an extra
    except ImportError:
        raise SaslError(missing_extra("aws", "AWS_MSK_IAM")) from None
    try:
        return AwsMskIam(sasl.options, host)
    except AwsLoginError as error:
        raise SaslError(str(error)) from error


def _kerberos_login(sasl: Sasl, host: str) -> Any:
    try:
        from mm2.kafka.auth.kerberos import Kerberos, KerberosError  # noqa: PLC0415 - needs an extra
    except ImportError:
        raise SaslError(missing_extra("kerberos", "GSSAPI")) from None
    try:
        return Kerberos(dict(sasl.options), sasl.kerberos_service_name or sasl.option("serviceName") or "kafka", host)
    except KerberosError as error:
        raise SaslError(str(error)) from error


def _scram_name(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


class _BearerToken(AbstractTokenProvider):  # type: ignore[misc, unused-ignore]  # kafka-python insists on its base class
    def __init__(self, text: str, extensions: dict[str, str]) -> None:
        self._text = text
        self._extensions = extensions

    def token(self) -> str:
        return self._text

    def extensions(self) -> dict[str, str]:
        return self._extensions
