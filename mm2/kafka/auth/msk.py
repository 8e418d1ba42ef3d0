"""Logins to Amazon MSK with AWS credentials: the mechanism AWS_MSK_IAM, and tokens for OAUTHBEARER.

The options of the login module and the payload are those of aws-msk-iam-auth (`MSKCredentialProvider`,
`AWS4SignedPayloadGenerator`, `IAMOAuthBearerLoginCallbackHandler`). The package botocore (extra `aws`) finds the
credentials, renews them and signs. This module is imported only when a login needs it.
"""

from __future__ import annotations

import base64
import functools
import json
import logging
import os
import threading
import time
import urllib.parse
from collections.abc import Mapping
from typing import Any, Final

from botocore.auth import SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import AssumeRoleCredentialFetcher, Credentials, DeferredRefreshableCredentials
from botocore.exceptions import BotoCoreError, ClientError
from botocore.session import Session

from mm2 import __version__
from mm2.codec import read_json

#: botocore logs signatures, session tokens and responses of the token service at DEBUG.
_LOG: Final = logging.getLogger("botocore")
_LOG.propagate = False
_LOG.addHandler(logging.NullHandler())

_SERVICE: Final = "kafka-cluster"
_ACTION: Final = "Action=kafka-cluster%3AConnect"
_PAYLOAD_VERSION: Final = "2020_10_22"
_LIFETIME_S: Final = 900
_USER_AGENT: Final = f"mm2-python/{__version__}"
#: The token service is asked within a login, which has a deadline.
_STS_TIMEOUT_S: Final = 5
_GLOBAL_REGION: Final = "aws-global"


class AwsLoginError(Exception):
    """There are no AWS credentials or no region, or the broker's answer is invalid. The message contains no secret."""


class AwsMskIam:
    """The mechanism AWS_MSK_IAM: one signed message, and an answer with the id of the request."""

    def __init__(self, options: tuple[tuple[str, str], ...], host: str) -> None:
        self._identity = aws_identity(options)
        self._host = host
        self._answered = False

    def auth_bytes(self) -> bytes:
        query = self._identity.presigned(self._host, self._identity.region_of(self._host))
        payload = {name.lower(): value for name, value in query.items()}
        payload |= {"version": _PAYLOAD_VERSION, "user-agent": _USER_AGENT, "host": self._host}
        return json.dumps(payload, separators=(",", ":")).encode()

    def receive(self, answer: bytes) -> None:
        try:
            version = read_json(answer)["version"]
        except (ValueError, KeyError, TypeError):
            raise AwsLoginError("the broker's answer is not that of AWS_MSK_IAM") from None
        if version != _PAYLOAD_VERSION:
            raise AwsLoginError(f"the broker's answer has version {version!r}, not {_PAYLOAD_VERSION}")
        self._answered = True

    def is_done(self) -> bool:
        return self._answered

    def is_authenticated(self) -> bool:
        return self._answered


class AwsIdentity:
    """Credentials and region for the options of one login module. Thread-safe."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._session = Session(profile=options.get("awsProfileName"))
        self._credentials = self._resolve(options)

    def presigned(self, host: str, region: str) -> dict[str, str]:
        """The query parameters of a request to connect to the host, signed for 15 minutes. Raises AwsLoginError."""
        try:
            credentials = self._credentials.get_frozen_credentials()
        except (BotoCoreError, ClientError) as error:
            raise AwsLoginError(f"no AWS credentials: {error}") from error
        query = presigned_query(credentials, f"https://{host}/?{_ACTION}", _SERVICE, region, _LIFETIME_S)
        return dict(urllib.parse.parse_qsl(query))

    def region_of(self, host: str) -> str:
        """The region in the host name; without one that of the environment or the profile. Raises AwsLoginError."""
        return next((region for region in _regions() if region in host), None) or self.region()

    def region(self) -> str:
        """The region of the environment or the profile. Raises AwsLoginError."""
        region = os.environ.get("AWS_REGION") or self._session.get_config_variable("region")
        if not region:
            raise AwsLoginError("there is no AWS region in the broker's host name: set AWS_REGION in the environment")
        return str(region)

    def _resolve(self, options: Mapping[str, str]) -> Any:
        if "awsRoleArn" in options and "awsProfileName" not in options:
            return self._role(options)
        credentials = self._session.get_credentials()
        if credentials is None:
            raise AwsLoginError(
                "no AWS credentials in the environment, in a profile, or from the container's or instance's metadata"
            )
        return credentials

    def _role(self, options: Mapping[str, str]) -> Any:
        """Credentials of the role, which the token service issues and which are renewed before they expire."""
        key, secret = options.get("awsRoleAccessKeyId"), options.get("awsRoleSecretAccessKey")
        own = Credentials(key, secret, options.get("awsRoleSessionToken")) if key and secret else None
        more = {"RoleSessionName": options.get("awsRoleSessionName", "aws-msk-iam-auth")}
        if external_id := options.get("awsRoleExternalId"):
            more["ExternalId"] = external_id
        config = Config(
            connect_timeout=_STS_TIMEOUT_S,
            read_timeout=_STS_TIMEOUT_S,
            use_fips_endpoint=options.get("awsShouldUseFips") == "true",
        )
        create = functools.partial(
            self._session.create_client, region_name=options.get("awsStsRegion", _GLOBAL_REGION), config=config
        )
        fetcher = AssumeRoleCredentialFetcher(create, own or self._resolve({}), options["awsRoleArn"], extra_args=more)
        return DeferredRefreshableCredentials(method="assume-role", refresh_using=fetcher.fetch_credentials)


def presigned_query(credentials: Any, url: str, service: str, region: str, lifetime_s: int) -> str:
    """The query string of a GET request, signed with Signature Version 4. `credentials` are those of botocore."""
    request = AWSRequest(method="GET", url=url)
    SigV4QueryAuth(credentials, service, region, expires=lifetime_s).add_auth(request)
    return urllib.parse.urlsplit(str(request.url)).query


def msk_token(options: tuple[tuple[str, str], ...]) -> tuple[str, float]:
    """A token for OAUTHBEARER (a signed URL in base64) and its expiry in epoch seconds. Raises AwsLoginError."""
    identity = aws_identity(options)
    region = identity.region()
    host = f"kafka.{region}.amazonaws.com"
    expires_at = time.time() + _LIFETIME_S
    query = urllib.parse.urlencode(
        {**identity.presigned(host, region), "User-Agent": _USER_AGENT}, quote_via=urllib.parse.quote, safe="-_.~"
    )
    return base64.urlsafe_b64encode(f"https://{host}/?{query}".encode()).rstrip(b"=").decode(), expires_at


_RESOLVING: Final = threading.Lock()


def aws_identity(options: tuple[tuple[str, str], ...]) -> AwsIdentity:
    """The identity for these options, one per process, so that connections share its credentials.

    Raises AwsLoginError.
    """
    with _RESOLVING:
        try:
            return _identity(options)
        except (BotoCoreError, ClientError) as error:
            raise AwsLoginError(f"no AWS credentials: {error}") from error


@functools.lru_cache(maxsize=64)
def _identity(options: tuple[tuple[str, str], ...]) -> AwsIdentity:
    return AwsIdentity(dict(options))


@functools.cache
def _regions() -> tuple[str, ...]:
    session = Session()
    return tuple(
        region
        for partition in session.get_available_partitions()
        for region in session.get_available_regions("sts", partition)
    )
