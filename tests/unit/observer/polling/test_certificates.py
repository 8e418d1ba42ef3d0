"""Expiry of certificates, as the observer reports it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from mm2.config.configdef import ConfigException
from mm2.connect.rest.binding import Binding
from mm2.connect.rest.settings import RestSettings
from mm2.observer.polling import certificates
from mm2.observer.polling.certificates import Certificates, listener_certificates
from mm2.observer.views import CertificateView
from tests.support.certificates import PASSWORD, Issued, issue


def test_the_certificates_that_a_listener_uses_are_monitored_even_if_the_file_is_newer(tmp_path: Path) -> None:
    authority = issue("an authority")
    old, new = (issue("worker", authority, address="127.0.0.1", is_expired=expired) for expired in (True, False))
    store = tmp_path / "worker.p12"
    old.pkcs12(store, authority)
    props = {
        "listeners": "http://127.0.0.1:0, HTTPS://127.0.0.1:0",
        "admin.listeners": "https://127.0.0.1:0",
        "ssl.keystore.location": str(store),
        "ssl.keystore.password": PASSWORD,
        "ssl.keystore.type": "PKCS12",
    }
    binding = Binding(RestSettings.of(props))
    try:
        (seen,) = listener_certificates(binding.https)
        assert seen == CertificateView("", "", "", "worker.p12", ends_ms(old))
        store.write_bytes(b"half of a store")
        (seen,) = listener_certificates(binding.https)
        assert seen.expires_ms == ends_ms(old)
        assert f"{store} for configuration ssl.keystore.location" in seen.problem
        new.pkcs12(store, authority)
        assert listener_certificates(binding.https) == (CertificateView("", "", "", "worker.p12", ends_ms(new)),)
    finally:
        binding.close()
    assert listener_certificates(()) == ()


def ends_ms(issued: Issued) -> int:
    return int(issued.certificate.not_valid_after_utc.timestamp() * 1000)


def test_certificates_are_read_once_a_minute_and_unresolvable_settings_change_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = [1000.0]
    monkeypatch.setattr(certificates, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    seen = [(CertificateView("A", "B", "A", "old.p12", 1),), None, (CertificateView("A", "B", "A", "new.p12", 2),)]
    left = iter(seen)

    def read() -> tuple[CertificateView, ...]:
        if (found := next(left)) is None:
            raise ConfigException("unknown ${file:/gone:password}")
        return found

    own = Certificates(read)
    for at_s, wanted in ((0, seen[0]), (59, seen[0]), (60, seen[0]), (119, seen[0]), (120, seen[2]), (121, seen[2])):
        now_s[0] = 1000.0 + at_s
        assert own.now() == wanted
