"""SCRAM with a server implementation of RFC 5802 in this test; integration tests use real brokers."""

from __future__ import annotations

import base64
import hashlib
import hmac
import sys

import pytest

from mm2.config.configdef import ConfigException
from mm2.kafka.auth.sasl import Login, SaslError, login
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.settings.sasl_settings import Sasl

SALT, ROUNDS = b"pepper", 4096


def scram(name: str = "alice", password: str = "hunter2") -> Login:
    return login(Sasl("SCRAM-SHA-256", options=(("username", name), ("password", password))), "broker", timeout_s=1)


def server_first(client_first: bytes) -> bytes:
    nonce = client_first.rpartition(b"r=")[2]
    return b"r=" + nonce + b"server,s=" + base64.b64encode(SALT) + b",i=%d" % ROUNDS


def server_final(client_first: bytes, first: bytes, client_final: bytes, password: bytes) -> bytes:
    salted = hashlib.pbkdf2_hmac("sha256", password, SALT, ROUNDS)
    auth_message = client_first.removeprefix(b"n,,") + b"," + first + b"," + client_final.rpartition(b",p=")[0]
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    return b"v=" + base64.b64encode(hmac.digest(server_key, auth_message, "sha256"))


def test_scram_escapes_comma_and_equals_sign() -> None:
    first = scram("CN=carol,O=x").auth_bytes()
    assert first.startswith(b"n,,n=CN=3Dcarol=2CO=3Dx,r=")


def test_scram_accepts_the_server_that_knows_the_password_and_no_other() -> None:
    for password, known in ((b"hunter2", True), (b"other", False)):
        run = scram()
        client_first = run.auth_bytes()
        first = server_first(client_first)
        run.receive(first)
        final = server_final(client_first, first, run.auth_bytes(), password)
        if known:
            run.receive(final)
            assert run.is_done()
            assert run.is_authenticated()
        else:
            with pytest.raises(SaslError, match="SCRAM message is invalid"):
                run.receive(final)


@pytest.mark.parametrize("challenge", [b"", b"nonsense", b"r=forged,s=AAAA,i=4096", b"r=x,s=AAAA,i=99999999"])
def test_scram_rejects_a_forged_challenge(challenge: bytes) -> None:
    run = scram()
    run.auth_bytes()
    with pytest.raises(SaslError) as raised:
        run.receive(challenge)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(("rounds", "accepted"), [(1, False), (4095, False), (4096, True)])
def test_scram_refuses_fewer_iterations_than_kafka_allows(rounds: int, accepted: bool) -> None:
    """A server that demands one iteration gets a proof from which the password is easily guessed."""
    run = scram()
    nonce = run.auth_bytes().rpartition(b"r=")[2]
    first = b"r=" + nonce + b"server,s=" + base64.b64encode(SALT) + b",i=%d" % rounds
    if accepted:
        run.receive(first)
        assert b",p=" in run.auth_bytes()
    else:
        with pytest.raises(SaslError, match=rf"demands {rounds} iterations, the minimum of SCRAM-SHA-256 is 4096"):
            run.receive(first)


@pytest.mark.parametrize(
    "message",
    [
        "{r},{s},i= 1",
        "{r},{s},i=+1",
        "{r},{s},i=1 ",
        "{r},{s},i=0_1",
        "{r},{s},i=\u0661",
        "{r},{s},i=4096,i=1",
        "i=1,{r},{s}",
        "v=,{r},{s},i=1",
    ],
)
def test_scram_refuses_iterations_in_a_form_that_can_be_read_in_two_ways(message: str) -> None:
    """kafka-python reads all of these as one iteration."""
    run = scram()
    nonce = run.auth_bytes().rpartition(b"r=")[2].decode()
    salt = base64.b64encode(SALT).decode()
    with pytest.raises(SaslError, match="SCRAM message is invalid"):
        run.receive(message.format(r=f"r={nonce}server", s=f"s={salt}").encode())


def test_plain_sends_name_and_password_as_utf8() -> None:
    run = login(Sasl("PLAIN", options=(("username", "ä"), ("password", "hunter2"))), "broker", timeout_s=1)
    assert run.auth_bytes().endswith("\0ä\0hunter2".encode())
    run.receive(b"")
    assert run.is_authenticated()


def test_oauthbearer_answers_the_rejection_and_keeps_its_reason() -> None:
    run = login(Sasl("OAUTHBEARER", options=(("unsecuredLoginStringClaim_sub", "dave"),)), "broker", timeout_s=1)
    assert run.auth_bytes().startswith(b"n,,\1auth=Bearer ")
    run.receive(b'{"status":"invalid_token"}')
    assert not run.is_done()
    assert run.auth_bytes() == b"\1"
    assert run.refusal == '{"status":"invalid_token"}'


@pytest.mark.parametrize(("mechanism", "extra"), [("GSSAPI", "kerberos"), ("AWS_MSK_IAM", "aws")])
def test_a_mechanism_without_its_library_reports_it(
    mechanism: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker of Spark may lack what the process has."""
    for module in ("mm2.kafka.auth.kerberos", "mm2.kafka.auth.msk"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SaslError, match=rf"pip install 'mm2\[{extra}\]'"):
        login(Sasl(mechanism), "broker", timeout_s=1)


def test_without_kerberos_the_configuration_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """GSSAPI is Kafka's default mechanism: a file that forgets `sasl.mechanism` gets this message."""
    props = {"bootstrap.servers": "b:9092", "security.protocol": "SASL_SSL"}
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ConfigException, match=r"sasl\.mechanism: GSSAPI needs the Python package gssapi: pip install"):
        ClientSettings.from_props(props)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: "there")
    module = "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true;"
    with pytest.raises(ConfigException, match="useKeyTab needs keyTab"):
        ClientSettings.from_props({**props, "sasl.jaas.config": module})
