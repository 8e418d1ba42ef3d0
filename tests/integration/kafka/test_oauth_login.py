"""Logins with OAUTHBEARER at a real broker that validates the tokens with the public key of a token server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)

from mm2.kafka.auth.assertion import assertion_text
from mm2.kafka.auth.oauth import token_source
from mm2.kafka.client.connection import Connection
from mm2.kafka.errors import AuthenticationFailure
from mm2.kafka.settings.assertion_settings import ALLOWED_FILES, ALLOWED_URLS, Assertion
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.sandbox.kafka import LocalKafka
from tests.integration.logins import usable, used_for
from tests.integration.token_server import AUDIENCE, CLIENT_ID, TokenServer
from tests.support import certificates
from tests.support.waiting import PATIENCE

OAUTH = "org.apache.kafka.common.security.oauthbearer"
SECRET, PASSPHRASE = "client-5ecret", "key-pa55"
#: The broker ends sessions after this time, and tokens are valid for a bit longer.
SESSION_MS, LIFETIME_S = int(2_500 * PATIENCE), int(6 * PATIENCE)
PREFIX = "sasl.oauthbearer.assertion"
GRANT = {"sasl.oauthbearer.jwt.retriever.class": f"{OAUTH}.JwtBearerJwtRetriever"}


def pem(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey, passphrase: str = "") -> bytes:
    encryption: KeySerializationEncryption = NoEncryption()
    if passphrase:
        encryption = BestAvailableEncryption(passphrase.encode())
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)


@dataclass(frozen=True)
class Site:
    """A broker that trusts the tokens of `rsa`; the other servers issue tokens with the same key."""

    broker: LocalKafka
    folder: Path
    trusted: Path
    rsa: TokenServer
    ec: TokenServer
    tls: TokenServer

    def open(self, server: TokenServer, settings: dict[str, str], *, options: str = "") -> Connection:
        props = {
            "bootstrap.servers": self.broker.address("TOKEN"),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.jaas.config": f"{OAUTH}.OAuthBearerLoginModule required {options};",
            "sasl.oauthbearer.token.endpoint.url": server.token_url,
            **settings,
        }
        client = ClientSettings.from_props(props)
        return Connection.open(*client.bootstrap[0], client, timeout_s=30, cluster="T")

    def claims(self, server: TokenServer, algorithm: str) -> dict[str, str]:
        """The keys of an assertion that is signed here."""
        return {
            f"{PREFIX}.algorithm": algorithm,
            f"{PREFIX}.private.key.file": str(self.folder / f"{algorithm}.pem"),
            f"{PREFIX}.claim.aud": server.url,
            f"{PREFIX}.claim.iss": CLIENT_ID,
            f"{PREFIX}.claim.sub": CLIENT_ID,
            **({f"{PREFIX}.private.key.passphrase": PASSPHRASE} if algorithm == "ES256" else {}),
        }


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("oauth")
    rsa_key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    ec_key = ec.generate_private_key(ec.SECP256R1())
    (folder / "RS256.pem").write_bytes(pem(rsa_key))
    (folder / "ES256.pem").write_bytes(pem(ec_key, PASSPHRASE))
    (folder / "other.pem").write_bytes(pem(rsa.generate_private_key(public_exponent=65537, key_size=2048)))
    trusted, context = certificates.serving(folder)
    with (
        TokenServer(SECRET, lifetime_s=LIFETIME_S, client_key=rsa_key.public_key()) as for_rsa,
        TokenServer(SECRET, client_key=ec_key.public_key(), like=for_rsa) as for_ec,
        TokenServer(SECRET, tls=context, like=for_rsa) as for_tls,
        pytest.MonkeyPatch.context() as patch,
    ):
        urls = ",".join(one.token_url for one in (for_rsa, for_ec, for_tls))
        names = ("RS256.pem", "ES256.pem", "other.pem", "assertion", "template.json")
        files = ",".join(str(folder / name) for name in names)
        patch.setenv("KAFKA_OPTS", f"-D{ALLOWED_URLS}={urls} -D{ALLOWED_FILES}={files}")
        with LocalKafka(
            "T",
            folder / "broker",
            listeners={"OPEN": "PLAINTEXT", "TOKEN": "SASL_PLAINTEXT"},
            overrides=validation(for_rsa),
            jvm_options=[f"-D{ALLOWED_URLS}={for_rsa.keys_url}"],
        ) as broker:
            yield Site(broker, folder, trusted, for_rsa, for_ec, for_tls)


def validation(server: TokenServer) -> dict[str, str]:
    token = "listener.name.token.oauthbearer"
    return {
        "listener.name.token.sasl.enabled.mechanisms": "OAUTHBEARER",
        f"{token}.sasl.jaas.config": f"{OAUTH}.OAuthBearerLoginModule required;",
        f"{token}.sasl.server.callback.handler.class": f"{OAUTH}.OAuthBearerValidatorCallbackHandler",
        f"{token}.sasl.oauthbearer.jwks.endpoint.url": server.keys_url,
        f"{token}.sasl.oauthbearer.expected.audience": AUDIENCE,
        f"{token}.sasl.oauthbearer.expected.issuer": server.url,
        f"{token}.connections.max.reauth.ms": str(SESSION_MS),
    }


@pytest.fixture(autouse=True)
def _new_tokens() -> None:
    token_source.cache_clear()


def by_secret(secret: str = SECRET) -> dict[str, str]:
    client = "sasl.oauthbearer.client.credentials.client"
    return {f"{client}.id": CLIENT_ID, f"{client}.secret": secret, "sasl.oauthbearer.scope": "copy"}


def test_a_secret(site: Site) -> None:
    usable(site.open(site.rsa, by_secret()))


@pytest.mark.parametrize("algorithm", ["RS256", "ES256"])
def test_an_assertion_as_the_clients_authentication(site: Site, algorithm: str) -> None:
    server = site.rsa if algorithm == "RS256" else site.ec
    usable(site.open(server, {**site.claims(server, algorithm), "sasl.oauthbearer.scope": "copy"}))
    form = server.forms[-1]
    assert (form["grant_type"], form["scope"]) == ("client_credentials", "copy")


@pytest.mark.parametrize("algorithm", ["RS256", "ES256"])
def test_an_assertion_that_is_exchanged_for_a_token(site: Site, algorithm: str) -> None:
    server = site.rsa if algorithm == "RS256" else site.ec
    usable(site.open(server, {**GRANT, **site.claims(server, algorithm)}))
    assert server.forms[-1]["grant_type"] == "urn:ietf:params:oauth:grant-type:jwt-bearer"


def test_claims_from_a_template(site: Site) -> None:
    template = site.folder / "template.json"
    template.write_text(f'{{"header": {{"kid": "k"}}, "payload": {{"sub": "{CLIENT_ID}", "aud": "{site.rsa.url}"}}}}')
    claims = site.claims(site.rsa, "RS256") | {f"{PREFIX}.claim.sub": "other", f"{PREFIX}.claim.aud": "other"}
    usable(site.open(site.rsa, {**GRANT, **claims, f"{PREFIX}.template.file": str(template)}))


def test_an_assertion_from_a_file(site: Site) -> None:
    key = str(site.folder / "RS256.pem")
    signed = Assertion(private_key_file=key, audience=site.rsa.url, issuer=CLIENT_ID, subject=CLIENT_ID)
    (site.folder / "assertion").write_text(assertion_text(signed) + "\n")
    usable(site.open(site.rsa, {**GRANT, f"{PREFIX}.file": str(site.folder / "assertion")}))


def test_an_endpoint_with_a_certificate_of_its_own(site: Site) -> None:
    """As Kafka, the login module's options have the trust store of the endpoint."""
    trust = f'ssl.truststore.type="PEM" ssl.truststore.location="{site.trusted}"'
    usable(site.open(site.tls, by_secret(), options=trust))
    with pytest.raises(AuthenticationFailure, match=r"gave no answer: .*CERTIFICATE_VERIFY_FAILED"):
        site.open(site.tls, by_secret(), options='ssl.enabled.protocols="TLSv1.3"')


@pytest.mark.parametrize("wrong", ["secret", "key", "grant", "passphrase", "algorithm"])
def test_a_wrong_proof_is_reported_without_it(site: Site, wrong: str) -> None:
    other = {f"{PREFIX}.private.key.file": str(site.folder / "other.pem")}
    settings, words = {
        "secret": (by_secret("not-the-5ecret"), "HTTP 401, invalid_client"),
        "key": (site.claims(site.rsa, "RS256") | other, "HTTP 401, invalid_client"),
        "grant": (GRANT | site.claims(site.rsa, "RS256") | other, "HTTP 400, invalid_grant"),
        "passphrase": (
            site.claims(site.rsa, "ES256") | {f"{PREFIX}.private.key.passphrase": "not-the-pa55"},
            "ES256.pem has no key in PEM",
        ),
        "algorithm": (site.claims(site.rsa, "RS256") | {f"{PREFIX}.algorithm": "ES256"}, "is not one for ES256"),
    }[wrong]
    with pytest.raises(AuthenticationFailure, match=words) as raised:
        site.open(site.rsa, settings)
    for secret in (SECRET, "not-the-5ecret", PASSPHRASE, "not-the-pa55", "PRIVATE KEY", "eyJ"):
        assert secret not in str(raised.value)


def test_tokens_are_refreshed_and_sessions_renewed_on_the_open_connection(site: Site) -> None:
    """Longer than a token is valid, with the session renewed several times (KIP-368)."""
    issued = len(site.rsa.issued)
    connection = site.open(site.rsa, {**GRANT, **site.claims(site.rsa, "RS256")})
    used_for(connection, 1.5 * LIFETIME_S)
    assert len(site.rsa.issued) >= issued + 2
