"""Password hashes in the PHC string format: ``$scrypt$ln=14,r=8,p=5$salt$hash`` (RFC 7914; base64 without padding).

Other programs write this form, too, for example passlib. The default cost is one of the equivalent ones that OWASP
recommends for scrypt: 16 MiB and about 0.2 s a verification. Parameters have limits in both directions, because a file
with a huge cost would stop the process at the first login, and one with a small cost protects nothing.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field
from typing import Final

_FORM: Final = re.compile(
    r"\$scrypt\$ln=(?P<ln>[0-9]{1,2}),r=(?P<r>[0-9]{1,2}),p=(?P<p>[0-9]{1,2})"
    r"\$(?P<salt>[A-Za-z0-9+/]{11,86})\$(?P<digest>[A-Za-z0-9+/]{22,86})"
)
_OTHER_FORM: Final = re.compile(r"\$[A-Za-z0-9-]{1,32}\$.*", re.DOTALL)
_SALT_BYTES: Final = 16
_DIGEST_BYTES: Final = 32
#: Bounds of 128 * N * r, the memory of one verification, and of N * r * p, which its time is proportional to.
_MAX_MEMORY_BYTES: Final = 64 * 1024 * 1024
_MIN_WORK: Final = 2**14 * 8
_MAX_WORK: Final = 2**21


class UnusableHash(ValueError):
    """A text that begins like a hash but is none that can be used. The message contains neither hash nor salt."""


@dataclass(frozen=True)
class PasswordHash:
    """A salted scrypt hash. ``log2_n`` is the binary logarithm of the cost N; sizes are in bytes."""

    log2_n: int
    r: int
    p: int
    salt: bytes = field(repr=False)
    digest: bytes = field(repr=False)

    @classmethod
    def of(cls, password: str) -> PasswordHash:
        """A new hash of a password, with a random salt and the default cost."""
        fresh = cls(14, 8, 5, secrets.token_bytes(_SALT_BYTES), bytes(_DIGEST_BYTES))
        return cls(fresh.log2_n, fresh.r, fresh.p, fresh.salt, fresh.digest_of(password))

    @classmethod
    def parse(cls, text: str) -> PasswordHash | None:
        """The hash that a text is; None for a text that does not begin as one. Raises UnusableHash."""
        if not _OTHER_FORM.fullmatch(text):
            return None
        match = _FORM.fullmatch(text)
        if match is None:
            raise UnusableHash("it is not of the form $scrypt$ln=14,r=8,p=5$salt$hash; write it with mm2 hash-password")
        found = cls(int(match["ln"]), int(match["r"]), int(match["p"]), _bytes(match["salt"]), _bytes(match["digest"]))
        if not (found.r >= 1 and found.p >= 1 and 1 <= found.log2_n < 16 * found.r):
            raise UnusableHash("ln, r and p are not parameters of scrypt (RFC 7914)")
        if found.work < _MIN_WORK:
            raise UnusableHash("its cost is too low: ln=14,r=8,p=1 is the least that is accepted")
        if found.memory_bytes > _MAX_MEMORY_BYTES or found.work > _MAX_WORK:
            raise UnusableHash("its cost is too high: ln=16,r=8,p=4 is the most that is accepted")
        return found

    @property
    def memory_bytes(self) -> int:
        """Memory that one verification needs."""
        return 128 * self.r * (1 << self.log2_n)

    @property
    def work(self) -> int:
        """N * r * p."""
        return (1 << self.log2_n) * self.r * self.p

    def digest_of(self, password: str) -> bytes:
        """The digest of a password with this salt and cost. Slow by design; the interpreter's lock is released."""
        return hashlib.scrypt(
            password.encode(),
            salt=self.salt,
            n=1 << self.log2_n,
            r=self.r,
            p=self.p,
            maxmem=self.memory_bytes + 256 * self.r * (self.p + 2) + 65_536,  # OpenSSL counts the buffers, too
            dklen=len(self.digest),
        )

    def verify(self, password: str) -> bool:
        """Whether it is the hash of this password. Slow by design."""
        return hmac.compare_digest(self.digest_of(password), self.digest)

    def decoy(self) -> PasswordHash:
        """A hash with the same cost that no password has, for users that do not exist."""
        return PasswordHash(
            self.log2_n, self.r, self.p, secrets.token_bytes(len(self.salt)), secrets.token_bytes(len(self.digest))
        )

    def __str__(self) -> str:
        return f"$scrypt$ln={self.log2_n},r={self.r},p={self.p}${_text(self.salt)}${_text(self.digest)}"


def _text(data: bytes) -> str:
    return base64.b64encode(data).rstrip(b"=").decode("ascii")


def _bytes(text: str) -> bytes:
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except binascii.Error:
        raise UnusableHash("salt and hash must be base64") from None
    if _text(data) != text:
        raise UnusableHash("salt and hash must be base64 in its canonical form")
    return data
