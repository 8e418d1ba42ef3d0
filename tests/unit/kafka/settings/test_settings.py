import json
import pickle
import re

import pytest

from mm2.codec import decode, encode
from mm2.config.configdef import ConfigException
from mm2.kafka.settings.assertion_settings import ALLOWED_FILES, ALLOWED_URLS
from mm2.kafka.settings.client_settings import ClientSettings

PLAIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="hunter2";'
SECURE = {
    "bootstrap.servers": "b1.example:9092, [::1]:9093",
    "client.id": "me",
    "security.protocol": "sasl_ssl",
    "sasl.mechanism": "PLAIN",
    "sasl.jaas.config": PLAIN,
    "ssl.keystore.type": "PEM",
    "ssl.keystore.key": "secret-key",
    "ssl.keystore.certificate.chain": "chain",
    "ssl.key.password": "key-secret",
    "ssl.truststore.location": "/etc/trust.p12",
    "ssl.truststore.password": "trust-secret",
    "ssl.endpoint.identification.algorithm": "",
    "ssl.enabled.protocols": "TLSv1.3",
    "ssl.cipher.suites": "TLS_AES_256_GCM_SHA384,TLS_AES_128_GCM_SHA256",
    "sasl.oauthbearer.client.credentials.client.secret": "oauth-secret",
    "request.timeout.ms": " 1234 ",
    "send.buffer.bytes": "-1",
    "some.other.key": "x",
}


def test_defaults_equal_java_s() -> None:
    settings = ClientSettings.from_props({"bootstrap.servers": "a:1"})
    assert settings.bootstrap == (("a", 1),)
    assert settings.security_protocol == "PLAINTEXT"
    assert (settings.request_timeout_ms, settings.metadata_max_age_ms) == (30_000, 300_000)
    # The one deviation: Java fixes 128 and 64 KB, here the kernel decides.
    assert (settings.send_buffer_bytes, settings.receive_buffer_bytes) == (-1, -1)
    assert settings.tls is None
    assert settings.sasl is None


def test_keys_are_read() -> None:
    settings = ClientSettings.from_props(SECURE)
    assert settings.bootstrap == (("b1.example", 9092), ("::1", 9093))
    assert settings.security_protocol == "SASL_SSL"
    assert settings.request_timeout_ms == 1234
    assert settings.send_buffer_bytes == -1
    assert settings.sasl is not None
    assert settings.sasl.option("password") == "hunter2"
    assert settings.tls is not None
    assert settings.tls.endpoint_identification == ""
    assert settings.tls.enabled_protocols == ("TLSv1.3",)


def test_client_id_of_the_caller_wins() -> None:
    assert ClientSettings.from_props(SECURE).client_id == "me"
    assert ClientSettings.from_props(SECURE, client_id="task-0").client_id == "task-0"


def test_json_and_pickle_give_equal_settings_secrets_included() -> None:
    settings = ClientSettings.from_props(SECURE)
    assert decode(ClientSettings, json.loads(json.dumps(encode(settings)))) == settings
    assert pickle.loads(pickle.dumps(settings)) == settings  # noqa: S301 - our own bytes
    assert "hunter2" in json.dumps(encode(settings))
    assert hash(settings) == hash(decode(ClientSettings, json.loads(json.dumps(encode(settings)))))
    plain = ClientSettings.from_props({"bootstrap.servers": "a:1"})
    assert decode(ClientSettings, json.loads(json.dumps(encode(plain)))) == plain


def test_repr_shows_no_secret() -> None:
    shown = repr(ClientSettings.from_props(SECURE))
    for secret in ("hunter2", "secret-key", "key-secret", "trust-secret", "oauth-secret"):
        assert secret not in shown


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("bootstrap.servers", ""),
        ("bootstrap.servers", "nohost"),
        ("bootstrap.servers", "a:0"),
        ("bootstrap.servers", "a:99999"),
        ("bootstrap.servers", ":9092"),
        ("security.protocol", "TLS"),
        ("sasl.mechanism", "CRAM-MD5"),
        ("request.timeout.ms", "soon"),
        ("request.timeout.ms", "0"),
        ("ssl.endpoint.identification.algorithm", "ldaps"),
        ("ssl.enabled.protocols", "SSLv3"),
        ("ssl.enabled.protocols", "TLSv1.2,TLSv1.4"),
        ("ssl.cipher.suites", "TLS_NO_WITH_SUCH_CIPHER"),
        ("ssl.cipher.suites", "TLS_AES_256_GCM_SHA384,TLS_NO_SUCH"),
        ("ssl.cipher.suites", "ALL"),
        ("ssl.cipher.suites", "HIGH:!aNULL"),
        ("ssl.cipher.suites", "TLS_AES_128_CCM_SHA256"),
        ("ssl.cipher.suites", "TLS_RSA_WITH_NULL_SHA256"),
        ("ssl.cipher.suites", "SSL_RSA_WITH_3DES_EDE_CBC_SHA"),
        ("ssl.cipher.suites", "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"),  # none of TLS 1.3, the only enabled version
        ("ssl.keystore.certificate.chain", ""),
        ("metadata.recovery.strategy", "hope"),
        ("ssl.engine.factory.class", "org.x.Engine"),
    ],
)
def test_bad_value_names_its_key(key: str, value: str) -> None:
    with pytest.raises(ConfigException, match=key.replace(".", r"\.")):
        ClientSettings.from_props({**SECURE, key: value})


def test_missing_credentials_are_named_but_never_shown() -> None:
    with pytest.raises(ConfigException, match=r"sasl\.jaas\.config.*password") as raised:
        ClientSettings.from_props({**SECURE, "sasl.jaas.config": 'M required username="hunter2";'})
    assert "hunter2" not in str(raised.value)
    with pytest.raises(ConfigException, match=r"sasl\.jaas\.config"):
        ClientSettings.from_props({key: value for key, value in SECURE.items() if key != "sasl.jaas.config"})


def test_broken_jaas_is_never_shown() -> None:
    with pytest.raises(ConfigException) as raised:
        ClientSettings.from_props({**SECURE, "sasl.jaas.config": 'M required password="hunter2"'})
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ({}, r"sasl\.oauthbearer\.token\.endpoint\.url"),
        ({"sasl.oauthbearer.token.endpoint.url": "ftp://x"}, r"sasl\.oauthbearer\.token\.endpoint\.url"),
        ({"sasl.oauthbearer.token.endpoint.url": "https://x"}, r"client\.id"),
    ],
)
def test_oauthbearer_needs_a_way_to_a_token(more: dict[str, str], key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_OPTS", f"-D{ALLOWED_URLS}=https://x")
    props = {"bootstrap.servers": "a:1", "security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
    with pytest.raises(ConfigException, match=key):
        ClientSettings.from_props({**props, **more})


OAUTH = {"bootstrap.servers": "a:1", "security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
URL = "sasl.oauthbearer.token.endpoint.url"
ASSERTION = "sasl.oauthbearer.assertion"
JWT_GRANT = {
    "sasl.oauthbearer.jwt.retriever.class": "org.apache.kafka.common.security.oauthbearer.JwtBearerJwtRetriever",
    URL: "https://tokens.example/token",
}


@pytest.mark.parametrize(
    "url",
    [
        "http://tokens.example/token",
        "https://tokens.example/token",
        "file:///etc/passwd",
        "file:///run/tokens/../../etc/passwd",
    ],
)
def test_only_allowed_urls_are_used(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Kafka since CVE-2025-27817: a connector's configuration could otherwise read any file or URL."""
    client = {"sasl.jaas.config": 'M required clientId="a" clientSecret="hunter2";'}
    for options in ("", f"-D{ALLOWED_URLS}={url}/more", "-Dother=1"):
        monkeypatch.setenv("KAFKA_OPTS", options)
        with pytest.raises(ConfigException, match=rf"{re.escape(url)} .*KAFKA_OPTS=-D{re.escape(ALLOWED_URLS)}="):
            ClientSettings.from_props({**OAUTH, **client, URL: url})
    monkeypatch.setenv("KAFKA_OPTS", f"-Xmx1g '-D{ALLOWED_URLS}=https://other.example, {url}'")
    sasl = ClientSettings.from_props({**OAUTH, **client, URL: url}).sasl
    assert sasl is not None
    assert sasl.token_endpoint_url == url


@pytest.mark.parametrize("url", ["file:/etc/passwd", "FILE:///etc/passwd", "file:///tokens/../etc/passwd"])
def test_no_spelling_of_a_file_url_is_used_unless_allowed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for allowed in ("", "file:///tokens", "file:///tokens/", "file:///tokens/../etc"):
        monkeypatch.setenv("KAFKA_OPTS", f"-D{ALLOWED_URLS}={allowed}")
        with pytest.raises(ConfigException, match=f"{re.escape(URL)}: is not allowed"):
            ClientSettings.from_props({**OAUTH, "sasl.jaas.config": "M required;", URL: url})


@pytest.mark.parametrize("key", ["file", "private.key.file", "template.file"])
def test_only_allowed_files_are_used_for_assertions(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    urls = f"-D{ALLOWED_URLS}={JWT_GRANT[URL]}"
    monkeypatch.setenv("KAFKA_OPTS", f"{urls} -D{ALLOWED_FILES}=/etc/key.pem")
    files = {f"{ASSERTION}.private.key.file": "/etc/key.pem", f"{ASSERTION}.{key}": "/etc/shadow"}
    with pytest.raises(
        ConfigException, match=rf"/etc/shadow .*{re.escape(key)}: .*{re.escape(ALLOWED_FILES)}=/etc/shadow"
    ):
        ClientSettings.from_props({**OAUTH, **JWT_GRANT, **files})
    monkeypatch.setenv("KAFKA_OPTS", f"{urls} -D{ALLOWED_FILES}=/etc/key.pem,/etc/shadow")
    settings = ClientSettings.from_props({**OAUTH, **JWT_GRANT, **files})
    assert settings.sasl is not None
    assert settings.sasl.assertion is not None
    assert decode(ClientSettings, json.loads(json.dumps(encode(settings)))) == settings


def test_an_assertion_needs_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_OPTS", f"-D{ALLOWED_URLS}={JWT_GRANT[URL]}")
    with pytest.raises(ConfigException, match=r"private\.key\.file"):
        ClientSettings.from_props({**OAUTH, **JWT_GRANT})
    with pytest.raises(ConfigException, match="RS256, ES256"):
        ClientSettings.from_props({**OAUTH, **JWT_GRANT, f"{ASSERTION}.algorithm": "HS256"})
    with pytest.raises(ConfigException, match="no more than 86400"):
        ClientSettings.from_props({**OAUTH, **JWT_GRANT, f"{ASSERTION}.claim.exp.seconds": "86401"})
