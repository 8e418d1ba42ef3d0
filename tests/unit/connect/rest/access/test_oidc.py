"""Bearer tokens of an issuer with discovery and keys, over TLS."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers
from structlog.testing import capture_logs

from mm2.config.configdef import ConfigException
from mm2.connect.rest.access import oidc
from mm2.connect.rest.access.oidc import OidcAuthenticator, TokenKeys, VerificationKey
from mm2.connect.rest.access.oidc_settings import OidcSettings
from mm2.connect.rest.access.roles import Kind, Principal, RequestPeer, WrongCredentials
from mm2.connect.rest.binding import Binding, warn_of_exposure
from mm2.connect.rest.failures import RestFailure
from mm2.connect.rest.settings import RestSettings
from mm2.kafka.settings.assertion_settings import ALLOWED_URLS
from tests.integration.token_server import AUDIENCE, CLIENT_ID, TokenServer
from tests.support.certificates import issue, serving, trust_settings
from tests.support.clock import Clock

PREFIX = "rest.oauthbearer."
REFRESH_S, BACKOFF_MAX_S = 3600.0, 10.0


@dataclass(frozen=True)
class Issuer:
    """A token server with TLS, and the settings to accept its tokens."""

    server: TokenServer
    props: dict[str, str]

    def reset(self) -> None:
        self.server.got.clear()
        self.server.published.clear()
        self.server.described.clear()
        self.server.answers.clear()
        self.server.released.set()


@pytest.fixture(scope="module")
def issuer_of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Issuer]:
    trusted, context = serving(tmp_path_factory.mktemp("issuer"))
    with TokenServer("secret", lifetime_s=600, tls=context) as server:
        trust = {f"{PREFIX}{key}": value for key, value in trust_settings(trusted).items()}
        yield Issuer(server, {f"{PREFIX}expected.issuer": server.url, f"{PREFIX}expected.audience": AUDIENCE, **trust})


@pytest.fixture
def issuer(issuer_of_module: Issuer) -> Issuer:
    issuer_of_module.reset()
    return issuer_of_module


class Client:
    """Sends tokens to an authenticator."""

    def __init__(self, props: dict[str, str]) -> None:
        settings = OidcSettings.of(props)
        assert settings is not None
        self.clock = Clock()
        self.keys = TokenKeys(settings, clock=self.clock)
        self.authenticator = OidcAuthenticator(settings, self.keys)

    def send(self, token: str, scheme: str = "Bearer") -> Principal | None:
        return asyncio.run(self.authenticate(token, scheme))

    async def authenticate(self, token: str, scheme: str = "Bearer") -> Principal | None:
        return await self.authenticator.authenticate(Headers({"Authorization": f"{scheme} {token}"}), RequestPeer())

    def outcome(self, token: str) -> str | int:
        """The user, the reason of a rejection, or the status of a failure."""
        try:
            principal = self.send(token)
        except WrongCredentials as error:
            return str(error)
        except RestFailure as error:
            return error.status
        return principal.name if principal else "none"

    def wait(self) -> None:
        """Until no read of the keys is running."""
        reading = self.keys.refresh()
        if reading is not None:
            reading.result(60)

    def advance(self, seconds: float) -> None:
        self.clock.now_s += seconds


Start = Callable[..., Client]


@pytest.fixture
def start(issuer: Issuer) -> Iterator[Start]:
    """Create clients with the settings of the issuer; ``_`` in names stands for ``.``."""
    clients: list[Client] = []

    def make(**changed: str) -> Client:
        props = {f"{PREFIX}{key.replace('_', '.')}": value for key, value in changed.items()}
        clients.append(Client({**issuer.props, **props}))
        return clients[-1]

    yield make
    issuer.server.released.set()
    for client in clients:
        client.wait()


@pytest.fixture
def client(start: Start) -> Client:
    return start()


def test_a_token_names_user_and_groups(issuer: Issuer, client: Client) -> None:
    found = client.send(issuer.server.token(groups=["admins", "eu"]))
    assert found == Principal(CLIENT_ID, Kind.OIDC, frozenset({"admins", "eu"}))
    assert client.send(issuer.server.token(aud=["other", AUDIENCE], groups="one group"), "bearer") == Principal(
        CLIENT_ID, Kind.OIDC, frozenset({"one group"})
    )
    assert issuer.server.got == ["/.well-known/openid-configuration", "/keys"]


@pytest.mark.parametrize("groups", [None, 7, {"a": 1}, [], [1, None, ["x"]]])
def test_a_claim_without_groups_gives_none(issuer: Issuer, client: Client, groups: object) -> None:
    found = client.send(issuer.server.token(groups=groups))
    assert found == Principal(CLIENT_ID, Kind.OIDC)


def test_user_and_groups_may_be_in_other_claims(issuer: Issuer, start: Start) -> None:
    client = start(sub_claim_name="preferred_username", groups_claim_name="/realm_access/my~1roles")
    token = issuer.server.token(preferred_username="ada", groups=["no"], realm_access={"my/roles": ["yes"]})
    assert client.send(token) == Principal("ada", Kind.OIDC, frozenset({"yes"}))
    for other in ({"my": ["x"]}, ["my/roles"], "x"):
        assert client.send(issuer.server.token(preferred_username="ada", realm_access=other)) == Principal(
            "ada", Kind.OIDC
        )
    client = start(groups_claim_name="https://kafka.example/groups")
    found = client.send(issuer.server.token(**{"https://kafka.example/groups": ["g"]}))
    assert found == Principal(CLIENT_ID, Kind.OIDC, frozenset({"g"}))


@pytest.mark.parametrize("header", [{}, {"Authorization": "Basic YTpi"}, {"Authorization": "Bearer"[:3]}])
def test_other_credentials_are_not_tokens(client: Client, header: dict[str, str]) -> None:
    assert asyncio.run(client.authenticator.authenticate(Headers(header), RequestPeer())) is None


NOW = int(time.time())


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"exp": NOW - 40}, "expired"),
        ({"exp": 0}, "expired"),
        ({"exp": None}, "missing"),
        ({"exp": "soon"}, "wrong type"),
        ({"exp": float("inf")}, "wrong type"),
        ({"nbf": NOW + 10_000}, "not valid yet"),
        ({"iat": NOW + 10_000}, "not valid yet"),
        ({"aud": "other"}, "another audience"),
        ({"aud": [AUDIENCE + "2"]}, "another audience"),
        ({"aud": {AUDIENCE: 1}}, "another audience"),
        ({"aud": []}, "missing"),
        ({"aud": None}, "missing"),
        ({"iss": "https://127.0.0.1:1"}, "another issuer"),
        ({"iss": ""}, "another issuer"),
        ({"iss": None}, "missing"),
        ({"iss": ["https://127.0.0.1"]}, "another issuer"),
        ({"sub": None}, "claim with the user"),
        ({"sub": ""}, "claim with the user"),
        ({"sub": 7}, "wrong type"),
        ({"sub": "a\nb"}, "printable"),
        ({"sub": "a\x1b[2Jb"}, "printable"),
        ({"sub": "a" * 256}, "255"),
        ({"cnf": {"jkt": "x"}}, "bound to a key"),
    ],
)
def test_a_token_with_wrong_claims_is_rejected(
    issuer: Issuer, client: Client, changed: dict[str, Any], reason: str
) -> None:
    assert reason in str(client.outcome(issuer.server.token(**changed)))


def test_clocks_may_differ_by_the_configured_time(issuer: Issuer, start: Start) -> None:
    late, early = {"exp": int(time.time()) - 200}, {"nbf": int(time.time()) + 200}
    for changed in (late, early):
        assert start(clock_skew_seconds="600").outcome(issuer.server.token(**changed)) == CLIENT_ID
        assert start(clock_skew_seconds="0").outcome(issuer.server.token(**changed)) != CLIENT_ID


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ({"alg": "none"}, "algorithm"),
        ({"alg": "NONE"}, "algorithm"),
        ({"alg": "HS256"}, "algorithm"),
        ({"alg": "ES256K"}, "algorithm"),
        ({"alg": None}, "algorithm"),
        ({"alg": ["RS256"]}, "algorithm"),
        ({"alg": "RS512"}, "no key"),
        ({"alg": "ES256"}, "no key"),
        ({"kid": "other"}, "no key"),
        ({"kid": "../../etc/passwd"}, "no key"),
        ({"kid": 7}, "not a signed JWT"),
        ({"typ": "logout+jwt"}, "neither an access token"),
        ({"typ": "secevent+jwt"}, "neither an access token"),
        ({"typ": 1}, "neither an access token"),
        ({"crit": ["exp"], "exp": 1}, "not a signed JWT"),
        ({"b64": False, "crit": ["b64"]}, "not a signed JWT"),
    ],
)
def test_a_token_with_a_wrong_header_is_rejected(
    issuer: Issuer, client: Client, header: dict[str, Any], reason: str
) -> None:
    assert reason in str(client.outcome(issuer.server.token(header)))


@pytest.mark.parametrize("kind", ["JWT", "at+jwt", "application/AT+JWT"])
def test_access_tokens_and_id_tokens_are_accepted(issuer: Issuer, client: Client, kind: str) -> None:
    assert client.outcome(issuer.server.token({"typ": kind})) == CLIENT_ID


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def test_the_public_key_is_no_secret_of_an_hmac(issuer: Issuer, start: Start) -> None:
    """Neither is an HMAC key that the issuer publishes by mistake."""
    public = issuer.server.key.public_key()
    claims = jwt.decode(issuer.server.token(), options={"verify_signature": False})
    header = {"kid": issuer.server.key_id}
    secrets = [
        public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        json.dumps(issuer.server._keys()["keys"][0]).encode(),
        b"x" * 32,
    ]
    issuer.server.published.append({"kty": "oct", "kid": issuer.server.key_id, "alg": "HS256", "k": encoded(b"x" * 32)})
    client = start()
    hmac = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256)
    for secret in secrets:
        text = ".".join(encoded(json.dumps(part).encode()) for part in ({"alg": "HS256", **header}, claims))
        assert "algorithm" in str(client.outcome(f"{text}.{encoded(hmac.sign(text.encode(), secret))}"))
    assert client.outcome(issuer.server.token()) == CLIENT_ID


def test_keys_in_the_header_of_a_token_are_ignored(issuer: Issuer, client: Client) -> None:
    own = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    jwk = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(own.public_key()))
    with TokenServer("secret") as other:
        claims = jwt.decode(issuer.server.token(), options={"verify_signature": False})
        for header in ({"jwk": jwk}, {"jku": other.keys_url}, {"x5u": other.keys_url}, {"kid": other.keys_url}):
            token = jwt.encode(claims, own, "RS256", {"kid": issuer.server.key_id, **header})
            assert client.outcome(token) in {"the signature of the token is wrong", NO_KEY}, header
        assert other.got == []


NO_KEY = "the issuer has no key with the key id and the algorithm of the token"


def test_a_changed_token_is_rejected(issuer: Issuer, client: Client) -> None:
    token = issuer.server.token(groups=["viewers"])
    header, _, signature = token.split(".")
    claims = jwt.decode(token, options={"verify_signature": False})
    forged = encoded(json.dumps({**claims, "groups": ["admins"]}).encode())
    assert "signature" in str(client.outcome(f"{header}.{forged}.{signature}"))
    assert "signature" in str(client.outcome(token.rpartition(".")[0] + "."))
    assert "signature" in str(client.outcome(token[:-8] + "AAAAAAAA"))


@pytest.mark.parametrize(
    "token",
    ["", ".", "..", "...", "a.b.c", "a.b.c.d.e", "mm2_token", "eyJhbGciOiJSUzI1NiJ9", "é.é.é",
     encoded(b'{"alg":"RS256","alg":' + b"[" * 5000) + ".e30.AA", encoded(b"[]") + ".e30.AA",
     encoded(b'{"alg":' + b"9" * 6000 + b"}") + ".e30.AA"],
)  # fmt: skip
def test_what_is_no_signed_token_is_rejected(client: Client, token: str) -> None:
    assert str(client.outcome(token)).startswith("the ")


ANY_TEXT = st.text(st.characters(max_codepoint=255))
PARTS = st.lists(st.binary() | st.just(b'{"alg":"RS256"}'), min_size=2, max_size=5)


def test_no_text_is_accepted_or_fails_otherwise() -> None:
    settings = OidcSettings.of({f"{PREFIX}expected.issuer": "https://id.example", f"{PREFIX}expected.audience": "a"})
    assert settings is not None
    authenticator = OidcAuthenticator(settings, TokenKeys(settings, read=lambda _: ()))

    @given(ANY_TEXT | PARTS.map(lambda parts: ".".join(map(encoded, parts))))
    def reject(token: str) -> None:
        with pytest.raises(WrongCredentials):
            asyncio.run(authenticator.authenticate(Headers({"Authorization": f"Bearer {token}"}), RequestPeer()))

    reject()


def test_a_huge_token_is_rejected_before_it_is_read(issuer: Issuer, client: Client) -> None:
    assert "16384 characters" in str(client.outcome(issuer.server.token(groups=["g" * 16_384])))
    assert client.outcome(issuer.server.token(groups=["g" * 8_000])) == CLIENT_ID


EC = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}


def signed(issuer: Issuer, key: Any, algorithm: str, kid: str | None) -> str:
    claims = jwt.decode(issuer.server.token(), options={"verify_signature": False})
    return jwt.encode(claims, key, algorithm, None if kid is None else {"kid": kid})


@pytest.mark.parametrize("algorithm", ["RS384", "RS512", "PS256", "PS384", "PS512", *EC, "EdDSA"])
def test_all_algorithms_with_public_keys_are_accepted(issuer: Issuer, start: Start, algorithm: str) -> None:
    key: Any = issuer.server.key
    if algorithm in EC:
        key = ec.generate_private_key(EC[algorithm])
    elif algorithm == "EdDSA":
        key = ed25519.Ed25519PrivateKey.generate()
    jwk = jwt.get_algorithm_by_name(algorithm).to_jwk(key.public_key(), as_dict=True)
    issuer.server.published.append({**jwk, "kid": "second", "key_ops": ["verify"]})
    assert start().outcome(signed(issuer, key, algorithm, "second")) == CLIENT_ID


def jwk_of(key: Any, **members: Any) -> dict[str, Any]:
    name = "RS256" if isinstance(key, rsa.RSAPrivateKey) else "ES256"
    return {**jwt.get_algorithm_by_name(name).to_jwk(key.public_key(), as_dict=True), "key_ops": None, **members}


def test_keys_for_other_purposes_and_damaged_ones_are_not_used() -> None:
    key, short = (rsa.generate_private_key(public_exponent=65537, key_size=size) for size in (2048, 1024))
    good = jwk_of(key, kid="k")
    usable = VerificationKey.of(good)
    assert usable is not None
    assert (usable.kid, usable.algorithms) == ("k", ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"))
    curve = jwk_of(ec.generate_private_key(ec.SECP256R1()))
    unusable: list[Any] = [
        {**good, "use": "enc"}, {**good, "key_ops": ["encrypt"]}, {**good, "key_ops": "verify"}, {**good, "alg": "RSA-OAEP"},
        {**good, "alg": "HS256"}, {**good, "alg": "ES256"}, {**good, "kty": "oct"}, {**good, "kty": ["RSA"]},
        {**good, "kid": 7}, {**good, "n": 7}, {**good, "n": "é"}, {**good, "n": ""}, {**good, "e": "AA"}, {"kty": "RSA"},
        jwk_of(short), {**curve, "crv": "secp256k1"}, {**curve, "x": curve["y"]}, {**curve, "crv": "P-384"},
        "text", None, [], {},
    ]  # fmt: skip
    for jwk in unusable:
        assert VerificationKey.of(jwk) is None, jwk
    single = VerificationKey.of({**good, "alg": "PS256"})
    assert single is not None
    assert single.algorithms == ("PS256",)


def test_a_private_member_of_a_published_key_is_ignored() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    private = jwt.get_algorithm_by_name("ES256").to_jwk(key, as_dict=True)
    found = VerificationKey.of({**private, "key_ops": ["verify"]})
    assert found is not None
    assert isinstance(found.key, ec.EllipticCurvePublicKey)


def test_without_a_key_id_only_a_single_key_is_used(issuer: Issuer, start: Start) -> None:
    token = signed(issuer, issuer.server.key, "RS256", None)
    assert start().outcome(token) == CLIENT_ID
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    issuer.server.published.append(jwk_of(other, kid="two"))
    assert start().outcome(token) == NO_KEY


def test_keys_that_share_an_id_are_all_tried(issuer: Issuer, start: Start) -> None:
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    issuer.server.published.append(jwk_of(other, kid=issuer.server.key_id))
    client = start()
    assert client.outcome(signed(issuer, other, "RS256", issuer.server.key_id)) == CLIENT_ID
    assert client.outcome(issuer.server.token()) == CLIENT_ID
    third = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    assert "signature" in str(client.outcome(signed(issuer, third, "RS256", issuer.server.key_id)))


def test_a_replaced_key_is_found_and_the_old_one_is_no_longer_valid(issuer: Issuer, client: Client) -> None:
    before = issuer.server.token()
    assert client.outcome(before) == CLIENT_ID
    issuer.server.rotate()
    after = issuer.server.token()
    assert client.outcome(after) == NO_KEY, "the keys have just been read"
    client.advance(BACKOFF_MAX_S)
    assert client.outcome(after) == CLIENT_ID
    assert client.outcome(before) == NO_KEY


def test_keys_are_read_again_in_the_background_when_they_are_old(issuer: Issuer, client: Client) -> None:
    before = issuer.server.token()
    assert client.outcome(before) == CLIENT_ID
    issuer.server.rotate()
    client.advance(REFRESH_S + 1)
    assert client.outcome(before) == CLIENT_ID, "without waiting"
    client.wait()
    assert client.outcome(before) == NO_KEY
    assert client.outcome(issuer.server.token()) == CLIENT_ID


def test_unknown_key_ids_do_not_flood_the_issuer(issuer: Issuer, client: Client) -> None:
    assert client.outcome(issuer.server.token()) == CLIENT_ID
    client.advance(BACKOFF_MAX_S)
    issuer.server.got.clear()
    tokens = [issuer.server.token({"kid": f"unknown {number}"}) for number in range(200)]

    async def flood() -> list[Any]:
        return await asyncio.gather(*map(client.authenticate, tokens), return_exceptions=True)

    answers = [*asyncio.run(flood()), *asyncio.run(flood())]
    assert {str(answer) for answer in answers} == {NO_KEY}
    assert issuer.server.got == ["/.well-known/openid-configuration", "/keys"]


def test_while_the_issuer_fails_it_is_asked_with_growing_delays_and_no_token_is_accepted(
    issuer: Issuer,
) -> None:
    issuer.server.answers["/keys"] = (500, b"")
    fresh = Client(issuer.props)
    token = issuer.server.token()
    fresh.wait()
    reads = []
    for _ in range(4):
        issuer.server.got.clear()
        for _ in range(50):
            assert fresh.outcome(token) == 503
            fresh.advance(0.1)
        reads.append(issuer.server.got.count("/keys"))
    assert sum(reads[:2]) < 12
    assert reads[-1] <= 1, "at most one in 8 s"
    issuer.server.answers.clear()
    fresh.advance(2 * BACKOFF_MAX_S)
    assert fresh.outcome(token) == CLIENT_ID


def test_known_keys_stay_valid_for_a_limited_time_while_the_issuer_fails(issuer: Issuer, client: Client) -> None:
    token = issuer.server.token()
    assert client.outcome(token) == CLIENT_ID
    issuer.server.answers["/keys"] = (503, b"")
    with capture_logs() as logs:
        for _ in range(3):
            client.advance(0.66 * REFRESH_S)
            client.wait()
            expected = CLIENT_ID if client.clock.now_s < 1000 + 2 * REFRESH_S else 503
            assert client.outcome(token) == expected
            assert client.outcome(issuer.server.token({"kid": "unknown"})) == 503, "it may be a new key"
        client.advance(REFRESH_S)
        assert client.outcome(token) == 503
        issuer.server.answers.clear()
        client.advance(BACKOFF_MAX_S * 2)
        assert client.outcome(token) == CLIENT_ID
    assert [line["event"].partition(";")[0] for line in logs] == [
        "Keys of the issuer of tokens cannot be read",
        "Keys of the issuer of tokens have been read.",
    ]
    assert "HTTP 503" in logs[0]["reason"]


def test_a_slow_issuer_delays_only_tokens_with_unknown_keys(
    issuer: Issuer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oidc, "_TIMEOUT_S", 0.2)
    token, unknown = issuer.server.token(), issuer.server.token({"kid": "unknown"})
    client.wait()
    assert client.outcome(token) == CLIENT_ID
    client.advance(BACKOFF_MAX_S)
    issuer.server.released.clear()

    async def both() -> tuple[Any, Any, bool]:
        waiting = asyncio.create_task(client.authenticate(unknown))
        await asyncio.sleep(0)
        known = await client.authenticate(token)
        was_waiting = not waiting.done()
        (result,) = await asyncio.gather(waiting, return_exceptions=True)
        return known, result, was_waiting

    known, result, was_waiting = asyncio.run(both())
    assert known is not None
    assert was_waiting
    assert isinstance(result, RestFailure)
    assert (result.status, str(result)) == (
        503,
        "The token cannot be verified now, because the keys of its issuer cannot be read.",
    )
    assert client.outcome(token) == CLIENT_ID
    issuer.server.released.set()


LARGE = b'{"keys": [' + b" " * 600_000 + b"]}"


@pytest.mark.parametrize(
    ("path", "answer", "reason"),
    [
        ("/keys", (200, LARGE), "more than 524288 bytes"),
        ("/keys", (200, b"<html>"), "did not answer with a JSON object"),
        ("/keys", (200, b"[" * 200_000), "did not answer with a JSON object"),
        ("/keys", (200, b"[]"), "did not answer with a JSON object"),
        ("/keys", (200, b"{}"), "not a list of up to 100 keys"),
        ("/keys", (200, json.dumps({"keys": [{}] * 101}).encode()), "not a list of up to 100 keys"),
        ("/keys", (200, b'{"keys": [{"kty": "oct", "k": "AAAA"}]}'), "no key for the signature algorithms"),
        ("/keys", (302, b""), "HTTP 302"),
        ("/keys", (404, b""), "HTTP 404"),
        ("/.well-known/openid-configuration", (200, b'{"issuer": "https://other.example"}'), "not about this issuer"),
        ("/.well-known/openid-configuration", (500, b""), "HTTP 500"),
    ],
)
def test_a_wrong_answer_of_the_issuer_opens_nothing(
    issuer: Issuer, start: Start, path: str, answer: tuple[int, bytes], reason: str
) -> None:
    issuer.server.answers[path] = answer
    with capture_logs() as logs:
        client = start()
        client.wait()
        assert client.outcome(issuer.server.token()) == 503
    assert [line["log_level"] for line in logs] == ["warning"]
    assert reason in logs[0]["reason"]


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1/keys", "file:///etc/passwd", "https://u:p@127.0.0.1/k", "x", 7, None]
)
def test_keys_are_read_from_https_urls_only(issuer: Issuer, start: Start, url: object) -> None:
    issuer.server.described["jwks_uri"] = url
    with capture_logs() as logs:
        client = start()
        client.wait()
        assert client.outcome(issuer.server.token()) == 503
    assert issuer.server.got == ["/.well-known/openid-configuration"]
    assert logs[0]["log_level"] == "warning"
    assert "u:p" not in str(logs)


def test_an_issuer_that_tls_does_not_trust_opens_nothing(issuer: Issuer, start: Start, tmp_path: Path) -> None:
    (tmp_path / "other.pem").write_text(issue("another authority").certificate_pem)
    client = start(ssl_truststore_location=str(tmp_path / "other.pem"))
    client.wait()
    assert client.outcome(issuer.server.token()) == 503
    assert issuer.server.got == []


def test_an_issuer_that_is_down_opens_nothing(issuer: Issuer, start: Start) -> None:
    with TokenServer("secret") as closed:
        pass
    with capture_logs() as logs:
        client = start(jwks_endpoint_url=closed.keys_url.replace("http:", "https:"))
        client.wait()
        assert client.outcome(issuer.server.token()) == 503
    assert "gave no answer" in logs[0]["reason"]


def test_the_url_of_the_keys_can_be_configured(issuer: Issuer, start: Start) -> None:
    client = start(jwks_endpoint_url=f"{issuer.server.url}/other/keys")
    assert client.outcome(issuer.server.token()) == CLIENT_ID
    assert issuer.server.got == ["/other/keys"]


def test_without_tls_only_loopback_urls_that_are_allowed_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    with TokenServer("secret") as server:
        props = {f"{PREFIX}expected.issuer": server.url, f"{PREFIX}expected.audience": AUDIENCE}
        with pytest.raises(ConfigException, match=r"must begin with https://, or be allowed in KAFKA_OPTS"):
            OidcSettings.of(props)
        monkeypatch.setenv("KAFKA_OPTS", f"-D{ALLOWED_URLS}={server.configuration_url}")
        client = Client(props)
        client.wait()
        assert client.outcome(server.token()) == 503, "the URL of the keys is not allowed"
        monkeypatch.setenv("KAFKA_OPTS", f"-D{ALLOWED_URLS}={server.configuration_url},{server.keys_url}")
        # Requests do not leave the machine: a proxy could replace the keys.
        for name in ("http_proxy", "all_proxy"):
            monkeypatch.setenv(name, "http://127.0.0.1:1")
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        client.advance(BACKOFF_MAX_S)
        assert client.outcome(server.token()) == CLIENT_ID
    monkeypatch.setenv("KAFKA_OPTS", f"-D{ALLOWED_URLS}=http://id.example/.well-known/openid-configuration")
    with pytest.raises(ConfigException, match=r"must begin with https://$"):
        OidcSettings.of({**props, f"{PREFIX}expected.issuer": "http://id.example"})


@pytest.mark.parametrize(
    ("changed", "key", "reason"),
    [
        ({"expected.issuer": ""}, "expected.audience", "has no effect without rest.oauthbearer.expected.issuer"),
        ({"expected.audience": ""}, "expected.audience", "is needed"),
        ({"expected.issuer": "id.example"}, "expected.issuer", "must be a URL with a host"),
        ({"expected.issuer": "https://"}, "expected.issuer", "must be a URL with a host"),
        ({"expected.issuer": "https://u:p@id.example"}, "expected.issuer", "without user and password"),
        ({"expected.issuer": "https://id.example?x=y"}, "expected.issuer", "query or a fragment"),
        ({"expected.issuer": "https://id.example#x"}, "expected.issuer", "query or a fragment"),
        ({"expected.issuer": "https://id.example:x"}, "expected.issuer", "is not a URL"),
        ({"jwks.endpoint.url": "http://id.example/keys"}, "jwks.endpoint.url", "must begin with https://"),
        ({"jwks.endpoint.url": "file:///etc/keys"}, "jwks.endpoint.url", "must be a URL with a host"),
        ({"clock.skew.seconds": "601"}, "clock.skew.seconds", "no more than 600"),
        ({"clock.skew.seconds": "x"}, "clock.skew.seconds", "Not a number"),
        ({"jwks.endpoint.refresh.ms": "0"}, "jwks.endpoint.refresh.ms", "at least 1000"),
        ({"sub.claim.name": ""}, "sub.claim.name", "name of a claim"),
        ({"ssl.enabled.protocols": "SSLv3"}, "ssl.enabled.protocols", "TLSv1.2 or TLSv1.3"),
    ],
)
def test_a_wrong_setting_is_named(changed: dict[str, str], key: str, reason: str) -> None:
    props = {"expected.issuer": "https://id.example", "expected.audience": "kafka", **changed}
    with pytest.raises(ConfigException, match=reason) as raised:
        OidcSettings.of({f"{PREFIX}{name}": value for name, value in props.items()})
    assert raised.value.name == f"{PREFIX}{key}"
    assert "u:p" not in str(raised.value)


@pytest.mark.parametrize(("listener", "is_reported"), [("http://0.0.0.0:0", True), ("http://127.0.0.1:0", False)])
def test_unencrypted_listeners_for_other_machines_are_reported(
    issuer: Issuer, listener: str, is_reported: bool
) -> None:
    binding = Binding(RestSettings.of({"listeners": listener, **issuer.props}))
    with capture_logs() as logs:
        warn_of_exposure(binding)
    binding.close()
    assert any("tokens are sent" in line["event"] for line in logs) == is_reported


def test_without_an_issuer_there_are_no_tokens() -> None:
    assert OidcSettings.of({"listeners": "http://:8083"}) is None
