"""Listeners, the advertised address and the other keys of the REST server."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from mm2.config.configdef import ConfigException
from mm2.connect.api import ConnectError
from mm2.connect.rest.binding import Binding
from mm2.connect.rest.settings import Listener, RestSettings, authority_of, url_of
from tests.support.certificates import issue


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://:8083", Listener("http", "", 8083)),
        ("HTTPS://Host-1.example:0", Listener("https", "Host-1.example", 0)),
        ("http://[::1]:80", Listener("http", "::1", 80)),
        ("http://0.0.0.0:1", Listener("http", "0.0.0.0", 1)),  # noqa: S104 - what is parsed
        (" http://a:1 ", Listener("http", "a", 1)),
    ],
)
def test_listeners_as_java_reads_them(text: str, expected: Listener) -> None:
    assert Listener.parse("listeners", text) == expected


@pytest.mark.parametrize(
    "text", ["", "8083", "http://a", "http://a:b", "ftp://a:1", "http://a:65536", "http://a:-1", "://a:1"]
)
def test_an_invalid_listener_is_rejected_with_key_and_value(text: str) -> None:
    with pytest.raises(ConfigException, match=r"admin\.listeners"):
        Listener.parse("admin.listeners", text)


def test_ipv6_is_written_in_brackets() -> None:
    assert url_of("http", "::1", 5) == "http://[::1]:5/"
    assert authority_of("fe80::1", 5) == "[fe80::1]:5"


def test_defaults() -> None:
    settings = RestSettings.of({})
    assert settings.listeners == (Listener("http", "", 8083),)
    assert settings.admin_listeners is None
    assert settings.advertised_scheme == "http"
    assert settings.client_auth == "none"
    assert (settings.limits.request_timeout_s, settings.limits.health_timeout_s) == (90.0, 10.0)
    assert RestSettings.of({"admin.listeners": ""}).admin_listeners == ()


@pytest.mark.parametrize(
    ("props", "key"),
    [
        ({"listeners": ""}, "listeners"),
        ({"listeners": "http://a:1,,"}, "listeners"),
        ({"rest.advertised.port": "x"}, "rest.advertised.port"),
        ({"rest.advertised.listener": "ftp"}, "rest.advertised.listener"),
        ({"ssl.client.auth": "perhaps"}, "ssl.client.auth"),
        ({"response.http.headers.config": "setDate Expires: soon"}, "response.http.headers.config"),
        ({"rest.request.timeout.ms": "0"}, "rest.request.timeout.ms"),
    ],
)
def test_invalid_values_are_rejected_with_their_key(props: dict[str, str], key: str) -> None:
    with pytest.raises(ConfigException, match=key):
        RestSettings.of(props)


@pytest.mark.parametrize(
    ("props", "url"),
    [
        ({"listeners": "http://127.0.0.1:0"}, "http://127.0.0.1:{0}/"),
        ({"listeners": "http://127.0.0.1:0", "rest.advertised.host.name": "h"}, "http://h:{0}/"),
        ({"listeners": "http://127.0.0.1:0", "rest.advertised.port": "7"}, "http://127.0.0.1:7/"),
        ({"listeners": "http://127.0.0.1:0", "rest.advertised.listener": "HTTPS"}, "https://127.0.0.1:{0}/"),
        ({"listeners": "http://[::1]:0,http://127.0.0.1:0"}, "http://[::1]:{0}/"),
    ],
)
def test_the_advertised_address_follows_the_settings(props: dict[str, str], url: str) -> None:
    binding = Binding(RestSettings.of(props))
    try:
        assert binding.advertised_url == url.format(*(port.number for port in binding.main))
        assert binding.worker_id == url.format(*(port.number for port in binding.main)).rpartition("://")[2].rstrip("/")
    finally:
        binding.close()


@pytest.mark.parametrize("client_auth", ["required", "requested"])
@pytest.mark.parametrize("prefix", ["", "listeners.https."])
def test_client_certificates_need_a_trust_store(tmp_path: Path, client_auth: str, prefix: str) -> None:
    """Without one, the system's public authorities would be trusted."""
    (tmp_path / "own.pem").write_text((own := issue("listener")).key_pem() + own.certificate_pem)
    props = {
        "listeners": "https://127.0.0.1:0",
        f"{prefix}ssl.client.auth": client_auth,
        f"{prefix}ssl.keystore.location": str(tmp_path / "own.pem"),
    }
    with pytest.raises(ConfigException, match=r"listeners\.https\.ssl\.truststore\.location.*ssl\.client\.auth needs"):
        Binding(RestSettings.of(props))
    Binding(RestSettings.of(props | {f"{prefix}ssl.client.auth": "none"})).close()
    with_trust = props | {f"{prefix}ssl.truststore.certificates": own.certificate_pem}
    binding = Binding(RestSettings.of(with_trust))
    assert binding.main[0].demands_certificate == (client_auth == "required")
    binding.close()
    with pytest.raises(ConfigException, match=r"listeners\.https\.ssl\.client\.auth.*none, requested, required"):
        Binding(RestSettings.of(props | {"listeners.https.ssl.client.auth": "perhaps"}))


def test_without_a_host_it_listens_everywhere_and_advertises_this_machine() -> None:
    binding = Binding(RestSettings.of({"listeners": "http://:0"}))
    try:
        for host in ("127.0.0.1", "::1") if socket.has_dualstack_ipv6() else ("127.0.0.1",):
            with socket.create_connection((host, binding.main[0].number), timeout=60):
                pass
        assert binding.advertised_host
        assert binding.advertised_host not in {"", "0.0.0.0", "::"}  # noqa: S104 - what it must not be
    finally:
        binding.close()


def test_a_port_in_use_is_reported_and_the_others_are_released() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as probe:
        free = probe.getsockname()[1]
        probe.close()
        listeners = f"http://127.0.0.1:{free},http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConnectError, match=f"http://127.0.0.1:{taken.getsockname()[1]}/"):
            Binding(RestSettings.of({"listeners": listeners}))
        socket.create_server(("127.0.0.1", free)).close()
