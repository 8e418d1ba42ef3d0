"""Logins with AWS_MSK_IAM at a real broker, whose SASL server for the tests (java/MskIamServer.java) verifies the signature."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from mm2.kafka.client.connection import Connection
from mm2.kafka.errors import AuthenticationFailure
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.sandbox.kafka import LocalKafka
from tests.integration.aws_server import AwsKey, AwsServer
from tests.integration.logins import usable, used_for
from tests.support import certificates

REGION = "eu-central-1"
#: A long-lived key, and the temporary one that the token service and the metadata issue.
USER = AwsKey("AKIDUSER", "user/secret+0123456789")
TEMPORARY = AwsKey("ASIATEMPORARY", "temporary/secret+0123456789", "session/token+==")
MODULE = "software.amazon.msk.auth.iam.IAMLoginModule required"
ROLE = "arn:aws:iam::123456789012:role/mirror"
SESSION_MS = 1_500
SOURCE = Path(__file__).parents[1] / "java" / "MskIamServer.java"


@dataclass(frozen=True)
class Site:
    broker: LocalKafka
    aws: AwsServer
    folder: Path
    tls: Mapping[str, str]

    def open(self, options: str = "") -> Connection:
        props = {
            "bootstrap.servers": self.broker.address("MSK"),
            "sasl.mechanism": "AWS_MSK_IAM",
            "sasl.jaas.config": f"{MODULE} {options};",
            "sasl.client.callback.handler.class": "software.amazon.msk.auth.iam.IAMClientCallbackHandler",
            **self.tls,
            "security.protocol": "SASL_SSL",
        }
        settings = ClientSettings.from_props(props)
        return Connection.open(*settings.bootstrap[0], settings, timeout_s=30, cluster="M")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("msk")
    compiled = folder / "classes"
    subprocess.run(["javac", "-d", str(compiled), str(SOURCE)], check=True)
    client, server = certificates.encrypted(folder)
    keys = " ".join(
        f'secret_{key.key_id}="{key.secret}"' + (f' token_{key.key_id}="{key.token}"' if key.token else "")
        for key in (USER, TEMPORARY)
    )
    listener = "listener.name.msk"
    overrides = {
        f"{listener}.sasl.enabled.mechanisms": "AWS_MSK_IAM",
        f"{listener}.aws_msk_iam.sasl.jaas.config": f'MskIamServer required region="{REGION}" host="127.0.0.1" {keys};',
        f"{listener}.connections.max.reauth.ms": str(SESSION_MS),
        **server,
    }
    broker = LocalKafka(
        "M",
        folder / "broker",
        listeners={"OPEN": "PLAINTEXT", "MSK": "SASL_SSL"},
        overrides=overrides,
        jvm_options=[f"-Xbootclasspath/a:{compiled}"],
    )
    with broker, AwsServer(TEMPORARY) as aws:
        yield Site(broker, aws, folder, client)


@pytest.fixture(autouse=True)
def _no_aws(monkeypatch: pytest.MonkeyPatch, site: Site) -> None:
    """Only what a test sets: no credentials of this machine."""
    missing = site.folder / "missing"
    for name, value in {
        "AWS_REGION": REGION,
        "AWS_SHARED_CREDENTIALS_FILE": str(missing),
        "AWS_CONFIG_FILE": str(missing),
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_ENDPOINT_URL_STS": site.aws.url,
    }.items():
        monkeypatch.setenv(name, value)
    for name in (
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_PROFILE",
        "AWS_DEFAULT_REGION",
    ):
        monkeypatch.delenv(name, raising=False)
    from mm2.kafka.auth import msk  # noqa: PLC0415 - fails with the name of the missing package, in the test

    msk._identity.cache_clear()
    site.aws.requests.clear()


def profiles(site: Site, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    path = site.folder / "credentials"
    path.write_text(text)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))


def user_profile(name: str) -> str:
    return f"[{name}]\naws_access_key_id = {USER.key_id}\naws_secret_access_key = {USER.secret}\n"


@pytest.mark.slow
def test_credentials_from_the_environment(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", TEMPORARY.key_id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", TEMPORARY.secret)
    monkeypatch.setenv("AWS_SESSION_TOKEN", TEMPORARY.token)
    usable(site.open())


def test_credentials_from_a_named_profile(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """`awsProfileName` wins over the environment, as in aws-msk-iam-auth."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDOTHER")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "other")
    profiles(site, monkeypatch, user_profile("mirror"))
    usable(site.open('awsProfileName="mirror"'))


def test_a_role_is_assumed_with_the_default_credentials(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    profiles(site, monkeypatch, user_profile("default"))
    usable(site.open(f'awsRoleArn="{ROLE}" awsRoleSessionName="copy" awsRoleExternalId="e1" awsStsRegion="{REGION}"'))
    (request,) = site.aws.requests
    assert request["Action"] == "AssumeRole"
    assert (request["RoleArn"], request["RoleSessionName"], request["ExternalId"]) == (ROLE, "copy", "e1")
    assert f"Credential={USER.key_id}/" in request["Authorization"]
    assert f"/{REGION}/sts/" in request["Authorization"]


def test_a_role_is_assumed_with_the_keys_of_the_login_module(site: Site) -> None:
    """Connections share the credentials of the role: one request to the token service."""
    keys = f'awsRoleAccessKeyId="{USER.key_id}" awsRoleSecretAccessKey="{USER.secret}"'
    for _ in range(2):
        usable(site.open(f'awsRoleArn="{ROLE}" {keys}'))
    (request,) = site.aws.requests
    assert request["RoleSessionName"] == "aws-msk-iam-auth"
    assert f"Credential={USER.key_id}/" in request["Authorization"]


def test_credentials_from_a_web_identity(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a Kubernetes service account."""
    token = site.folder / "web-identity"
    token.write_text("web.identity.token")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(token))
    monkeypatch.setenv("AWS_ROLE_ARN", ROLE)
    usable(site.open())
    (request,) = site.aws.requests
    assert (request["Action"], request["WebIdentityToken"]) == ("AssumeRoleWithWebIdentity", "web.identity.token")


def test_credentials_from_the_container(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{site.aws.url}/container")
    usable(site.open())


def test_credentials_from_the_instance(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "false")
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", site.aws.url)
    usable(site.open())


@pytest.mark.parametrize(
    ("key", "region"),
    [
        (AwsKey(USER.key_id, "not-the-secret"), REGION),
        (AwsKey("AKIDUNKNOWN", USER.secret), REGION),
        (AwsKey(TEMPORARY.key_id, TEMPORARY.secret, "another/token"), REGION),
        (USER, "eu-west-1"),
    ],
    ids=["secret", "key", "token", "region"],
)
def test_a_wrong_signature_is_rejected(site: Site, monkeypatch: pytest.MonkeyPatch, key: AwsKey, region: str) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key.key_id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key.secret)
    monkeypatch.setenv("AWS_REGION", region)
    if key.token:
        monkeypatch.setenv("AWS_SESSION_TOKEN", key.token)
    with pytest.raises(AuthenticationFailure, match=r"Login with SASL AWS_MSK_IAM at the broker .* failed: ") as raised:
        site.open()
    for secret in (key.secret, key.token):
        assert not secret or secret not in str(raised.value)


def test_the_session_is_renewed_on_the_open_connection(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """MSK ends sessions of AWS_MSK_IAM, so the login is repeated on the connection (KIP-368)."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", USER.key_id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", USER.secret)
    connection = site.open()
    used_for(connection, 2.3 * SESSION_MS / 1000)
