"""Signatures with the vectors that AWS has published, tokens for Amazon MSK, regions, and errors without secrets."""

from __future__ import annotations

import base64
import datetime as dt
import io
import json
import logging
import urllib.parse

import botocore.auth
import pytest
from botocore.credentials import Credentials

from mm2.config.configdef import ConfigException
from mm2.kafka.auth import msk
from mm2.kafka.auth.msk import AwsIdentity, AwsLoginError, AwsMskIam, presigned_query
from mm2.kafka.auth.oauth import TokenSource
from mm2.kafka.auth.sasl import SaslError, login
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.settings.sasl_settings import Sasl

KEY, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
TOKEN = "6e86291e8372ff2a2260956d9b8aae1d763fbf315fa00fa31553b73ebf194267"


@pytest.fixture(autouse=True)
def _aws(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key of AWS's examples, in the environment."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_CONFIG_FILE": "/nowhere",
        "AWS_SHARED_CREDENTIALS_FILE": "/nowhere",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    msk._identity.cache_clear()


@pytest.fixture
def _in_2015(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of the published vectors."""
    now = dt.datetime(2015, 8, 30, 12, 36, tzinfo=dt.UTC)
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda *_, **__: now)


@pytest.mark.usefixtures("_in_2015")
@pytest.mark.parametrize(
    ("query", "token", "signature"),
    [
        ("Param2=value2&Param1=value1", None, "86012e2c9ad4d77369f5d81c11f75158aae4f895a085212cc6d3f923d300bed5"),
        ("", TOKEN, "7ff2b50b376cb4d151970630573d6291dc128cc5c2a12ffb237f73cc53f67b6c"),
    ],
    ids=["get-vanilla-query-order-key-case", "get-vanilla-with-session-token"],
)
def test_signatures_are_those_of_the_published_vectors(query: str, token: str | None, signature: str) -> None:
    """From AWS's Signature Version 4 test suite, presigned (`query-signed-request.txt`)."""
    url = f"https://example.amazonaws.com/?{query}"
    signed = presigned_query(Credentials(KEY, SECRET, token), url, "service", "us-east-1", 3600)
    assert urllib.parse.parse_qs(signed)["X-Amz-Signature"] == [signature]


@pytest.mark.usefixtures("_in_2015")
def test_the_payload_has_the_fields_of_the_java_library() -> None:
    payload = json.loads(AwsMskIam((), "b-1.mirror.kafka.eu-west-1.amazonaws.com").auth_bytes())
    assert payload.pop("x-amz-signature")
    assert payload.pop("user-agent").startswith("mm2-python/")
    assert payload == {
        "version": "2020_10_22",
        "host": "b-1.mirror.kafka.eu-west-1.amazonaws.com",
        "action": "kafka-cluster:Connect",
        "x-amz-algorithm": "AWS4-HMAC-SHA256",
        "x-amz-credential": f"{KEY}/20150830/eu-west-1/kafka-cluster/aws4_request",
        "x-amz-date": "20150830T123600Z",
        "x-amz-signedheaders": "host",
        "x-amz-expires": "900",
    }


@pytest.mark.usefixtures("_in_2015")
def test_the_token_for_oauthbearer_is_a_signed_url() -> None:
    sasl = Sasl("OAUTHBEARER", msk_token=True)
    token = TokenSource(sasl).token(timeout_s=5)
    url = base64.urlsafe_b64decode(token.text + "=" * (-len(token.text) % 4)).decode()
    parts = urllib.parse.urlsplit(url)
    assert parts.netloc == "kafka.us-east-1.amazonaws.com"
    signed = presigned_query(
        Credentials(KEY, SECRET),
        f"https://{parts.netloc}/?Action=kafka-cluster%3AConnect",
        "kafka-cluster",
        "us-east-1",
        900,
    )
    got = urllib.parse.parse_qs(parts.query)
    assert got.pop("User-Agent")[0].startswith("mm2-python/")
    assert got == urllib.parse.parse_qs(signed)


@pytest.mark.parametrize(
    ("host", "region"),
    [
        ("b-1.mirror.c2.kafka.eu-west-1.amazonaws.com", "eu-west-1"),
        ("boot-1.kafka-serverless.us-gov-west-1.amazonaws.com", "us-gov-west-1"),
        ("b-1.mirror.kafka.cn-north-1.amazonaws.com.cn", "cn-north-1"),
        ("kafka.example.com", "us-east-1"),
    ],
)
def test_the_region_is_that_of_the_host_or_of_the_environment(host: str, region: str) -> None:
    assert AwsIdentity({}).region_of(host) == region


def test_without_a_region_the_message_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_REGION")
    run = login(Sasl("AWS_MSK_IAM"), "kafka.example.com", timeout_s=1)
    with pytest.raises(SaslError, match="set AWS_REGION"):
        run.auth_bytes()


def test_without_credentials_the_message_names_the_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(SaslError, match="no AWS credentials in the environment, in a profile"):
        login(Sasl("AWS_MSK_IAM"), "kafka.example.com", timeout_s=1)


def test_a_missing_profile_is_named() -> None:
    with pytest.raises(SaslError, match=r"profile .*gone"):
        login(Sasl("AWS_MSK_IAM", options=(("awsProfileName", "gone"),)), "kafka.example.com", timeout_s=1)


@pytest.mark.parametrize("answer", [b"", b"[]", b"nonsense", b'{"version":"1999","request-id":"x"}'])
def test_another_answer_is_not_a_login(answer: bytes) -> None:
    run = AwsMskIam((), "kafka.example.com")
    with pytest.raises(AwsLoginError, match="answer"):
        run.receive(answer)
    assert not run.is_authenticated()


def test_nothing_of_botocore_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """It logs session tokens and responses with credentials at DEBUG, which an operator can enable for all loggers."""
    for name in ("", "botocore", "botocore.auth"):
        caplog.set_level(logging.DEBUG, logger=name)
    lines = io.StringIO()
    logging.root.handlers[:] = [logging.StreamHandler(lines)]  # what configure_logging() sets
    AwsMskIam((), "b-1.kafka.us-east-1.amazonaws.com").auth_bytes()
    logging.getLogger("mm2").debug("another line")
    assert lines.getvalue() == "another line\n"


def props(**more: str) -> dict[str, str]:
    return {"bootstrap.servers": "b:9098", "security.protocol": "SASL_SSL", "sasl.mechanism": "AWS_MSK_IAM", **more}


def test_without_the_extra_the_configuration_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ConfigException, match=r"needs the Python package botocore: pip install 'mm2\[aws\]'"):
        ClientSettings.from_props(props())
    handler = {"sasl.login.callback.handler.class": "software.amazon.msk.auth.iam.IAMOAuthBearerLoginCallbackHandler"}
    with pytest.raises(ConfigException, match=r"callback\.handler\.class"):
        ClientSettings.from_props({**props(), "sasl.mechanism": "OAUTHBEARER", **handler})


def test_a_java_region_provider_is_refused() -> None:
    module = 'software.amazon.msk.auth.iam.IAMLoginModule required awsMskRegionProvider="com.example.X";'
    with pytest.raises(ConfigException, match="awsMskRegionProvider"):
        ClientSettings.from_props({**props(), "sasl.jaas.config": module})
