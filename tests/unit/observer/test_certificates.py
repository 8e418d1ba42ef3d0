"""Expiry of certificates, as the observer reports it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from mm2.config.configdef import ConfigException
from mm2.observer import certificates
from mm2.observer.certificates import Certificates, listener_certificates
from mm2.observer.views import CertificateView
from tests.support.certificates import PASSWORD, issue


def test_certificates_of_listeners_are_monitored_like_those_of_clusters(tmp_path: Path) -> None:
    authority = issue("an authority")
    worker = issue("worker", authority, address="127.0.0.1")
    worker.pkcs12(tmp_path / "worker.p12", authority)
    store = {
        "ssl.keystore.location": str(tmp_path / "worker.p12"),
        "ssl.keystore.password": PASSWORD,
        "ssl.keystore.type": "PKCS12",
    }
    own = {f"listeners.https.{key}": value for key, value in store.items()}
    ends_ms = int(worker.certificate.not_valid_after_utc.timestamp() * 1000)
    for settings in (
        {"listeners": "http://127.0.0.1:8083, HTTPS://0.0.0.0:8443", **own},
        {"listeners": "https://0.0.0.0:8443", **store},
        {"admin.listeners": "https://127.0.0.1:9443", **store},
    ):
        (seen,) = listener_certificates(settings)
        assert (seen.source, seen.target, seen.cluster, seen.file, seen.expires_ms) == (
            "",
            "",
            "",
            "worker.p12",
            ends_ms,
        )
    assert listener_certificates({"listeners": "http://127.0.0.1:8083", **own}) == ()
    assert listener_certificates({}) == ()
    # The listener itself reports unreadable certificates.
    assert (
        listener_certificates(
            {"listeners": "https://0.0.0.0:8443", **own, "listeners.https.ssl.keystore.location": "/no"}
        )
        == ()
    )


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
