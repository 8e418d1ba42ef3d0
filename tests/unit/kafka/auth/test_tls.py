"""TLS contexts from PEM and PKCS12; integration tests use JKS and connections to a real broker."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest

from mm2.config.configdef import ConfigException
from mm2.kafka.auth.tls import build_server_ssl_context, build_ssl_context, expiries, memory_file
from mm2.kafka.settings.ciphers import SuiteNotAllowed, openssl_name
from mm2.kafka.settings.client_settings import Tls
from tests.support import certificates
from tests.support.certificates import KEY_PASSWORD, PASSWORD

AUTHORITY = certificates.issue("Test Authority")
CLIENT = certificates.issue("client", AUTHORITY)
TRUST = Tls(truststore_certificates=AUTHORITY.certificate_pem)


def test_defaults_check_certificate_and_host_name() -> None:
    context = build_ssl_context(TRUST)
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert context.check_hostname
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert len(context.get_ca_certs()) == 1


def test_system_certificates_without_a_truststore() -> None:
    assert build_ssl_context(Tls()).verify_mode == ssl.CERT_REQUIRED


def test_host_name_check_can_be_switched_off_but_not_the_certificate() -> None:
    context = build_ssl_context(dataclasses.replace(TRUST, endpoint_identification=""))
    assert not context.check_hostname
    assert context.verify_mode == ssl.CERT_REQUIRED


def test_enabled_protocols_bound_the_versions() -> None:
    only_13 = build_ssl_context(dataclasses.replace(TRUST, enabled_protocols=("TLSv1.3",)))
    assert only_13.minimum_version == ssl.TLSVersion.TLSv1_3
    only_12 = build_ssl_context(dataclasses.replace(TRUST, enabled_protocols=("TLSv1.2",)))
    assert only_12.maximum_version == ssl.TLSVersion.TLSv1_2


def older_ciphers(context: ssl.SSLContext) -> list[str]:
    return [cipher["name"] for cipher in context.get_ciphers() if cipher["protocol"] != "TLSv1.3"]


@pytest.mark.parametrize(
    ("suite", "name"),
    [
        ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "ECDHE-ECDSA-AES256-GCM-SHA384"),
        ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-RSA-CHACHA20-POLY1305"),
        ("TLS_DHE_RSA_WITH_AES_128_CBC_SHA256", "DHE-RSA-AES128-SHA256"),
        ("TLS_DHE_RSA_WITH_AES_256_CCM_8", "DHE-RSA-AES256-CCM8"),
        ("TLS_RSA_WITH_AES_128_CBC_SHA", "AES128-SHA"),
        ("SSL_RSA_WITH_3DES_EDE_CBC_SHA", "DES-CBC3-SHA"),
        ("ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-ECDSA-AES256-GCM-SHA384"),
    ],
)
def test_java_s_names_of_cipher_suites_are_those_of_openssl(suite: str, name: str) -> None:
    assert openssl_name(suite) == name


@pytest.mark.parametrize("suite", ["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "ECDHE-RSA-AES128-GCM-SHA256"])
def test_only_the_named_cipher_suites_are_offered(suite: str) -> None:
    context = build_ssl_context(dataclasses.replace(TRUST, cipher_suites=(suite,)))
    assert older_ciphers(context) == ["ECDHE-RSA-AES128-GCM-SHA256"]
    assert context.maximum_version == ssl.TLSVersion.TLSv1_2, "no suite of TLS 1.3 is named"


def test_suites_of_tls_13_alone_disable_older_versions() -> None:
    context = build_ssl_context(dataclasses.replace(TRUST, cipher_suites=("TLS_AES_256_GCM_SHA384",)))
    assert context.minimum_version == ssl.TLSVersion.TLSv1_3


@pytest.mark.parametrize(
    ("suites", "protocols"),
    [
        (("TLS_NO_WITH_SUCH_CIPHER",), ("TLSv1.2", "TLSv1.3")),
        (("TLS_AES_256_GCM_SHA384",), ("TLSv1.2",)),
        (("ECDHE-RSA-AES128-GCM-SHA256",), ("TLSv1.3",)),
    ],
)
def test_cipher_suites_that_allow_no_connection_are_rejected(
    suites: tuple[str, ...], protocols: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigException, match=r"ssl\.cipher\.suites"):
        build_ssl_context(dataclasses.replace(TRUST, cipher_suites=suites, enabled_protocols=protocols))


@pytest.mark.parametrize(
    "suite",
    [
        "TLS_NO_WITH_SUCH_CIPHER",
        "ALL",
        "@SECLEVEL=0",
        "TLS_AES_128_CCM_SHA256",
        "TLS_RSA_WITH_NULL_SHA256",
        "ADH-AES128-SHA",
    ],
)
def test_a_cipher_suite_that_cannot_be_used_is_named(suite: str) -> None:
    suites = ("TLS_AES_256_GCM_SHA384", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", suite)
    with pytest.raises(ConfigException, match=rf"ssl\.cipher\.suites.*cipher suite {re.escape(suite)}"):
        build_ssl_context(dataclasses.replace(TRUST, cipher_suites=suites))


def test_java_s_signaling_suite_is_ignored() -> None:
    suites = ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_EMPTY_RENEGOTIATION_INFO_SCSV")
    context = build_ssl_context(dataclasses.replace(TRUST, cipher_suites=suites))
    assert older_ciphers(context) == ["ECDHE-RSA-AES128-GCM-SHA256"]


def negotiate(client: ssl.SSLContext, server: ssl.SSLContext) -> tuple[str, str]:
    """Version and cipher suite of a handshake between two contexts in memory. Raises SSLError of either side."""
    ends = [(ssl.MemoryBIO(), ssl.MemoryBIO()) for _ in range(2)]
    (to_client, from_client), (to_server, from_server) = ends
    sides = [
        client.wrap_bio(to_client, from_client, server_hostname="127.0.0.1"),
        server.wrap_bio(to_server, from_server, server_side=True),
    ]
    for _ in range(10):
        for side in sides:
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
        to_server.write(from_client.read())
        to_client.write(from_server.read())
    version, chosen = sides[0].version(), sides[1].cipher()
    assert version is not None
    assert chosen is not None
    return version, chosen[0]


SERVER = certificates.issue("server", AUTHORITY, address="127.0.0.1")
SERVING = Tls(keystore_key=SERVER.key_pem(), keystore_certificate_chain=SERVER.certificate_pem)


@pytest.mark.parametrize(
    ("client", "server", "expected"),
    [
        ((), (), ("TLSv1.3", "TLS_AES_256_GCM_SHA384")),
        (("TLS_AES_256_GCM_SHA384",), (), ("TLSv1.3", "TLS_AES_256_GCM_SHA384")),
        ((), ("TLS_AES_256_GCM_SHA384", "TLS_AES_128_GCM_SHA256"), ("TLSv1.3", "TLS_AES_256_GCM_SHA384")),
        (("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",), (), ("TLSv1.2", "ECDHE-ECDSA-AES128-GCM-SHA256")),
        ((), ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",), ("TLSv1.2", "ECDHE-ECDSA-AES128-GCM-SHA256")),
    ],
)
def test_a_handshake_chooses_a_cipher_suite_of_the_list(
    client: tuple[str, ...], server: tuple[str, ...], expected: tuple[str, str]
) -> None:
    assert negotiated(client, server) == expected


@pytest.mark.parametrize(
    ("client", "server"),
    [
        (("TLS_AES_128_GCM_SHA256",), ()),
        ((), ("TLS_AES_128_GCM_SHA256",)),
        (("TLS_CHACHA20_POLY1305_SHA256", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"), ()),
        ((), ("TLS_AES_128_GCM_SHA256", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256")),
    ],
)
def test_a_handshake_that_chooses_another_cipher_suite_of_tls_13_fails(
    client: tuple[str, ...], server: tuple[str, ...]
) -> None:
    """Python cannot take it from the suites that OpenSSL offers."""
    with pytest.raises(SuiteNotAllowed, match=r"TLS_AES_256_GCM_SHA384 was chosen.*ssl\.cipher\.suites"):
        negotiated(client, server)


def negotiated(client: tuple[str, ...], server: tuple[str, ...]) -> tuple[str, str]:
    return negotiate(
        build_ssl_context(dataclasses.replace(TRUST, cipher_suites=client)),
        build_server_ssl_context(dataclasses.replace(SERVING, cipher_suites=server), ssl.CERT_NONE),
    )


def test_pem_on_one_line_is_accepted() -> None:
    one_line = " ".join(AUTHORITY.certificate_pem.split("\n"))
    assert len(build_ssl_context(Tls(truststore_certificates=one_line)).get_ca_certs()) == 1


def _open_keys() -> list[str]:
    """Open files that `memory_file` has created; other threads of the test process open and close files of their own."""
    links = []
    for descriptor in os.listdir("/proc/self/fd"):  # noqa: PTH208 - the folder changes meanwhile
        with contextlib.suppress(FileNotFoundError):
            links.append(os.readlink(f"/proc/self/fd/{descriptor}"))  # noqa: PTH115 - the link has no target to resolve
    return [link for link in links if link.startswith("/memfd:tls-key")]


@pytest.mark.parametrize("password", [None, KEY_PASSWORD])
def test_key_as_pem_text_leaves_no_open_file(password: str | None) -> None:
    tls = dataclasses.replace(
        TRUST,
        keystore_key=CLIENT.key_pem(password),
        keystore_certificate_chain=CLIENT.certificate_pem,
        key_password=password,
    )
    build_ssl_context(tls)
    assert not _open_keys()
    with memory_file(b"key"):
        assert len(_open_keys()) == 1


def test_a_wrong_key_password_is_reported_without_the_password_itself() -> None:
    tls = dataclasses.replace(
        TRUST,
        keystore_key=CLIENT.key_pem(KEY_PASSWORD),
        keystore_certificate_chain=CLIENT.certificate_pem,
        key_password="hunter2",
    )
    with pytest.raises(ConfigException, match=r"ssl\.keystore\.key.*ssl\.key\.password may be wrong") as raised:
        build_ssl_context(tls)
    assert "hunter2" not in str(raised.value)


def test_key_of_another_certificate_is_refused() -> None:
    tls = dataclasses.replace(
        TRUST, keystore_key=CLIENT.key_pem(), keystore_certificate_chain=AUTHORITY.certificate_pem
    )
    with pytest.raises(ConfigException, match="do not belong together"):
        build_ssl_context(tls)


def test_pkcs12_in_a_file_named_jks_is_accepted(tmp_path: Path) -> None:
    store = CLIENT.pkcs12(tmp_path / "client.jks", AUTHORITY)
    tls = Tls(
        keystore_location=str(store),
        keystore_password=PASSWORD,
        truststore_location=str(store),
        truststore_password=PASSWORD,
    )
    assert "Test Authority" in str(build_ssl_context(tls).get_ca_certs())


def test_a_changed_file_creates_a_new_context_and_an_unchanged_one_does_not(tmp_path: Path) -> None:
    path = tmp_path / "trust.pem"
    path.write_text(AUTHORITY.certificate_pem)
    tls = Tls(truststore_location=str(path))
    first = build_ssl_context(tls)
    assert build_ssl_context(tls) is first
    path.write_text(AUTHORITY.certificate_pem + certificates.issue("New Authority").certificate_pem)
    second = build_ssl_context(tls)
    assert second is not first
    assert len(second.get_ca_certs()) == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot be read"), (b"", "neither PEM"), (b"hello", "neither PEM"), (b"0garbage", "PKCS12")],
)
def test_bad_store_names_key_and_file(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "store"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigException, match=message) as raised:
        build_ssl_context(Tls(truststore_location=str(path)))
    assert str(path) in str(raised.value)
    assert "ssl.truststore.location" in str(raised.value)


@pytest.mark.parametrize(
    ("location", "message"),
    [("/dev/null", "is not a regular file"), ("a\0b", "not the name of a file"), ("\ud800", "not the name of a file")],
)
def test_a_store_that_is_not_a_regular_file_is_not_read(location: str, message: str) -> None:
    """/dev/zero would take all memory, and a named pipe would block the thread. A client of REST may name any file."""
    with pytest.raises(ConfigException, match=message):
        build_ssl_context(Tls(truststore_location=location))


def test_a_store_of_a_size_that_no_store_has_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with path.open("wb") as file:
        file.truncate(16 * 1024 * 1024 + 1)
    with pytest.raises(ConfigException, match="is larger than 16777216 bytes"):
        build_ssl_context(Tls(truststore_location=str(path)))


def test_truststore_without_certificates_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trust.pem"
    path.write_text(CLIENT.key_pem())
    with pytest.raises(ConfigException, match="no certificate"):
        build_ssl_context(Tls(truststore_location=str(path)))


def test_the_current_expiry_of_certificates_is_reported_by_file(tmp_path: Path) -> None:
    trust = tmp_path / "trust.pem"
    trust.write_text(AUTHORITY.certificate_pem + certificates.issue("Old Authority", is_expired=True).certificate_pem)
    tls = Tls(
        keystore_key=CLIENT.key_pem(None),
        keystore_certificate_chain=" ".join(CLIENT.certificate_pem.split("\n")),
        truststore_location=str(trust),
    )
    ends = expiries(tls)
    assert ends["ssl.keystore.certificate.chain"] == CLIENT.certificate.not_valid_after_utc
    assert ends["trust.pem"] < datetime.now(UTC)
    trust.write_text(AUTHORITY.certificate_pem)
    os.utime(trust, ns=(1, 1))
    assert expiries(tls)["trust.pem"] == AUTHORITY.certificate.not_valid_after_utc
    assert expiries(Tls()) == {}


def test_the_expiry_of_a_pkcs12_store_is_that_of_its_key(tmp_path: Path) -> None:
    store = CLIENT.pkcs12(tmp_path / "client.p12", AUTHORITY)
    ends = expiries(Tls(keystore_location=str(store), keystore_password=PASSWORD))
    assert ends == {"client.p12": CLIENT.certificate.not_valid_after_utc}
