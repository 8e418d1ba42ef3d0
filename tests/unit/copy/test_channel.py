from __future__ import annotations

import secrets

import pytest

from mm2.copy import channel


def test_proofs_are_hmac_sha256() -> None:
    # RFC 4231, test case 2 ("Jefe"), with our separator: one part is the message itself.
    secret = b"Jefe".hex()
    assert channel.proof(secret, "what do ya want for nothing?") == (
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
    )


def test_a_proof_holds_for_its_parts_only() -> None:
    secret, challenge = secrets.token_hex(32), channel.nonce()
    mac = channel.proof(secret, "executor", challenge, "batch", 0)
    assert channel.proves(mac, secret, "executor", challenge, "batch", 0)
    assert not channel.proves(mac, secret, "driver", challenge, "batch", 0)
    assert not channel.proves(mac, secret, "executor", channel.nonce(), "batch", 0)
    assert not channel.proves(mac, secret, "executor", challenge, "batch", 1)
    assert not channel.proves(mac, secrets.token_hex(32), "executor", challenge, "batch", 0)


def test_parts_are_kept_apart() -> None:
    secret = secrets.token_hex(32)
    assert channel.proof(secret, "ab", "c") != channel.proof(secret, "a", "bc")


@pytest.mark.parametrize("mac", [None, 5, "", b"bytes", ["x"]])
def test_an_invalid_proof_is_rejected(mac: object) -> None:
    assert not channel.proves(mac, secrets.token_hex(32), "executor")


def test_challenges_differ() -> None:
    assert len({channel.nonce() for _ in range(100)}) == 100


def test_messages_are_lines() -> None:
    message = {"type": "progress", "text": "two\nlines ü", "rows": [[1, None]]}
    line = channel.encode(message)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert channel.decode(line) == message


@pytest.mark.parametrize("line", [b"", b'{"type":"go"}', b"[1]\n", b"nonsense\n", b"\xff\n", b"5\n"])
def test_other_lines_are_refused(line: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  (the error comes from json)
        channel.decode(line)
