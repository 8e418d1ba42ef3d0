"""Password hashes: written, read, verified, and refused where they are not hashes that can be used."""

from __future__ import annotations

import base64

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mm2.connect.rest.access.password_hashes import PasswordHash, UnusableHash

#: RFC 7914, section 12: scrypt("pleaseletmein", "SodiumChloride", N=16384, r=8, p=1, 64 bytes).
RFC_7914 = (
    "7023bdcb3afd7348461c06cd81fd38ebfda8fbba904f8e3ea9b543f6545da1f2"
    "d5432955613f0fcf62d49705242a9af9e61e85dc0d651e40dfcf017b45575887"
)


def text_of(data: bytes) -> str:
    return base64.b64encode(data).decode().rstrip("=")


def test_a_hash_verifies_its_password_only() -> None:
    text = str(PasswordHash.of("correct horse é"))
    found = PasswordHash.parse(text)
    assert found is not None
    assert str(found) == text
    assert found.verify("correct horse é")
    assert not found.verify("correct horse e")
    assert text != str(PasswordHash.of("correct horse é")), "the salt is random"


def test_the_digest_is_that_of_rfc_7914() -> None:
    text = f"$scrypt$ln=14,r=8,p=1${text_of(b'SodiumChloride')}${text_of(bytes.fromhex(RFC_7914))}"
    found = PasswordHash.parse(text)
    assert found is not None
    assert found.verify("pleaseletmein")


def test_a_hash_shows_neither_salt_nor_digest() -> None:
    text = str(PasswordHash.of("x"))
    assert not {text.split("$")[3], text.split("$")[4]} & set(repr(PasswordHash.parse(text)))
    assert "digest" not in repr(PasswordHash.parse(text))


def test_a_decoy_has_the_same_cost_and_no_password() -> None:
    found = PasswordHash.of("x")
    assert found.decoy().work == found.work
    assert not found.decoy().verify("x")


SALT, DIGEST = text_of(b"s" * 16), text_of(b"d" * 32)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("$2y$10$abcdefghijklmnopqrstuv", "not of the form"),
        ("$argon2id$v=19$m=65536,t=3,p=4$c2FsdHNhbHQ$aGFzaA", "not of the form"),
        ("$scrypt$nonsense", "not of the form"),
        (f"$scrypt$ln=14,r=8$${SALT}${DIGEST}", "not of the form"),
        (f"$scrypt$ln=14,r=8,p=1${SALT}${DIGEST}\n", "not of the form"),
        (f"$scrypt$ln=14,r=8,p=1${SALT}$short", "not of the form"),
        (f"$scrypt$ln=13,r=8,p=1${SALT}${DIGEST}", "too low"),
        (f"$scrypt$ln=10,r=8,p=1${SALT}${DIGEST}", "too low"),
        (f"$scrypt$ln=17,r=8,p=1${SALT}${DIGEST}", "too high"),
        (f"$scrypt$ln=30,r=8,p=1${SALT}${DIGEST}", "too high"),
        (f"$scrypt$ln=14,r=8,p=99${SALT}${DIGEST}", "too high"),
        (f"$scrypt$ln=00,r=8,p=1${SALT}${DIGEST}", "RFC 7914"),
        (f"$scrypt$ln=14,r=0,p=1${SALT}${DIGEST}", "RFC 7914"),
        (f"$scrypt$ln=99,r=1,p=1${SALT}${DIGEST}", "RFC 7914"),
        (f"$scrypt$ln=14,r=8,p=1${SALT[:-1]}/${DIGEST}", "canonical"),
        (f"$scrypt$ln=14,r=8,p=1${SALT + 'AAA'}${DIGEST}", "base64"),
    ],
)
def test_an_unusable_hash_is_refused_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(UnusableHash, match=reason) as raised:
        PasswordHash.parse(text)
    assert SALT not in str(raised.value)
    assert DIGEST not in str(raised.value)


@pytest.mark.parametrize("text", ["", "secret", "$", "$$", "$100", "a$scrypt$b$", "$pa ss$word"])
def test_a_password_in_clear_text_is_no_hash(text: str) -> None:
    assert PasswordHash.parse(text) is None


@given(
    log2_n=st.integers(1, 40), r=st.integers(1, 99), p=st.integers(1, 99),
    salt=st.binary(min_size=9, max_size=64), digest=st.binary(min_size=17, max_size=64),
)  # fmt: skip
def test_what_is_written_is_read_again_or_refused(log2_n: int, r: int, p: int, salt: bytes, digest: bytes) -> None:
    written = PasswordHash(log2_n, r, p, salt, digest)
    try:
        assert PasswordHash.parse(str(written)) == written
    except UnusableHash:
        assert "scrypt" in str(written)
        assert not (2**17 <= written.work <= 2**21 and written.memory_bytes <= 2**26 and log2_n < 16 * r)
    else:
        # What is accepted can be computed: OpenSSL takes the parameters.
        assert written.memory_bytes <= 2**26
        assert written.work <= 2**21


@given(st.text() | st.from_regex(r"\$scrypt\$.*", fullmatch=True) | st.from_regex(r"\$\w+\$.*", fullmatch=True))
@example("$scrypt$ln=١٤,r=8,p=1$" + SALT + "$" + DIGEST)
def test_no_text_is_misread(text: str) -> None:
    """Any text is clear text, is refused, or is the only way to write its hash."""
    try:
        found = PasswordHash.parse(text)
    except UnusableHash:
        assert text.startswith("$")
    else:
        assert found is None or str(found) == text


def test_the_accepted_limits_can_be_computed() -> None:
    for log2_n, r, p in ((14, 8, 1), (16, 8, 4)):
        written = PasswordHash(log2_n, r, p, b"s" * 16, b"d" * 16)
        assert PasswordHash.parse(str(written)) == written
        assert not written.verify("x")
