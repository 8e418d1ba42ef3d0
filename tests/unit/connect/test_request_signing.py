"""Session keys and request signatures (KIP-507); golden values from Java Connect 4.3.0."""

from __future__ import annotations

import base64

import pytest

from mm2.codec import encode
from mm2.connect.api import ConnectError
from mm2.connect.request_signing import SessionKey, generate_key, key_is_due, sign, signature_headers, verify
from mm2.connect.stores import internal_json

ZEROS = bytes(32)


@pytest.mark.parametrize(
    ("body", "mac"),
    [
        (b'[{"a":"b"}]', "grFGAKMHFhv2reBSk0scY8+E2IBWmPCw4mKPyvfUm2k="),
        (b"", "thNnmggU2ex3L5XXeMNfxf8Wl8STcVZTxscSFEKSxa0="),
    ],
)
def test_signatures(body: bytes, mac: str) -> None:
    assert base64.b64encode(sign(ZEROS, body)).decode() == mac
    assert verify(ZEROS, body, base64.b64decode(mac))
    assert not verify(ZEROS, body + b"x", base64.b64decode(mac))
    assert signature_headers(SessionKey(ZEROS, "HmacSHA256", 0), body)["X-Connect-Authorization"] == mac


def test_record_bytes() -> None:
    key = SessionKey(b"\0\0", "HmacSHA256", 1700000000000)
    golden = b'{"key":"AAA=","algorithm":"HmacSHA256","creation-timestamp":1700000000000}'
    assert internal_json.encode(encode(key)) == golden
    assert SessionKey.from_json(internal_json.decode(golden)) == key


@pytest.mark.parametrize(
    "value",
    [
        None,
        {"key": "AAA=", "algorithm": "HmacSHA256"},
        {"key": "AAA=", "algorithm": "HmacSHA256", "creation-timestamp": "1"},
        {"key": "%", "algorithm": "HmacSHA256", "creation-timestamp": 1},
        {"key": 1, "algorithm": "HmacSHA256", "creation-timestamp": 1},
    ],
)
def test_bad_records_are_refused(value: object) -> None:
    with pytest.raises(ConnectError):
        SessionKey.from_json(value)


def test_the_key_is_never_printed() -> None:
    assert "secret-bytes" not in repr(SessionKey(b"secret-bytes", "HmacSHA256", 0))


def test_keys_are_replaced_when_old_or_of_another_kind() -> None:
    def due(key: SessionKey | None, *, size_bits: int | None = None, ttl_ms: int = 100, now_ms: int = 50) -> bool:
        return key_is_due(key, algorithm="HmacSHA256", size_bits=size_bits, ttl_ms=ttl_ms, now_ms=now_ms)

    key = generate_key("HmacSHA256", None, 0)
    assert len(key.key) == 32
    assert due(None)
    assert not due(key)
    assert due(key, now_ms=100)
    assert not due(key, now_ms=10**9, ttl_ms=0)
    assert due(key, size_bits=128)
    assert not due(generate_key("HmacSHA256", 128, 0), size_bits=128)
    assert due(generate_key("HmacSHA512", None, 0))
    lower = generate_key("hmacsha256", None, 0)
    assert lower.algorithm == "HmacSHA256"
    assert not key_is_due(lower, algorithm="hmacsha256", size_bits=None, ttl_ms=100, now_ms=50)
    with pytest.raises(ConnectError, match="HmacX"):
        generate_key("HmacX", None, 0)
