"""The credentials file: hashes, clear text, changes of the file, and limits."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import secrets
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from mm2.config.configdef import ConfigException
from mm2.connect.rest import basic_auth
from mm2.connect.rest.access.password_hashes import PasswordHash
from mm2.connect.rest.basic_auth import Credentials, CredentialsFile, Users
from mm2.connect.rest.failures import RestFailure


def cheapest(password: str) -> PasswordHash:
    """A hash with the least cost that is accepted."""
    fresh = PasswordHash(14, 8, 1, secrets.token_bytes(16), bytes(32))
    return dataclasses.replace(fresh, digest=fresh.digest_of(password))


LINE = f"ada={cheapest('lovelace')}\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "credentials.properties"


@pytest.fixture(autouse=True)
def _polls_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(basic_auth, "_POLL_S", 0.0)


@pytest.fixture
def verified(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The salts of all hashes that were computed, in order."""
    salts: list[bytes] = []
    compute = PasswordHash.digest_of

    def count(self: PasswordHash, password: str) -> bytes:
        salts.append(self.salt)
        return compute(self, password)

    monkeypatch.setattr(PasswordHash, "digest_of", count)
    return salts


def replace(path: Path, text: str, *, age_s: float = 10.0) -> None:
    """Replace the file atomically; its last write was this long ago."""
    new = path.with_suffix(".new")
    new.write_text(text, "latin-1")
    written = new.stat().st_mtime - age_s
    os.utime(new, (written, written))
    new.replace(path)


def matches(file: CredentialsFile, user: str, password: str) -> bool:
    return asyncio.run(file.matches(user, password))


def test_hashes_and_clear_text_are_accepted(path: Path) -> None:
    path.write_text(LINE + "bob=builder\n")
    file = CredentialsFile(path)
    assert matches(file, "ada", "lovelace")
    assert matches(file, "bob", "builder")
    stored = LINE.partition("=")[2].strip()
    for user, password in (("ada", "x"), ("ada", ""), ("bob", "lovelace"), ("eve", "lovelace"), ("ada", stored)):
        assert not matches(file, user, password), (user, password)


def test_clear_text_is_reported_once_without_users(path: Path) -> None:
    path.write_text(LINE + "bob=builder\ncarl=c\n")
    with capture_logs() as logs:
        file = CredentialsFile(path)
        assert matches(file, "bob", "builder")
    assert [(line["log_level"], line["file"]) for line in logs] == [("warning", str(path))]
    assert "bob" not in str(logs)
    assert "builder" not in str(logs)
    with capture_logs() as logs:
        path.write_text(LINE)
        CredentialsFile(path)
    assert logs == []


@pytest.mark.parametrize("value", ["$2y$10$abcdefghijklmnopqrstuv", "$scrypt$ln=30,r=8,p=1$c2FsdHNhbHQ$aGFzaA"])
def test_a_hash_that_cannot_be_used_is_named_by_its_line_only(path: Path, value: str) -> None:
    path.write_text(f"# users\n{LINE}bob={value}\n")
    with pytest.raises(ConfigException, match=r"credentials\.properties, line 3: the password hash") as raised:
        CredentialsFile(path)
    assert "bob" not in str(raised.value)
    assert value not in str(raised.value)


def test_a_success_is_verified_once_and_a_failure_each_time(path: Path, verified: list[bytes]) -> None:
    path.write_text(LINE)
    file = CredentialsFile(path)
    assert [matches(file, "ada", "lovelace") for _ in range(3)] == [True] * 3
    assert len(verified) == 1
    assert [matches(file, "ada", "wrong") for _ in range(2)] == [False] * 2
    assert len(verified) == 3


def test_a_remembered_success_is_void_when_the_hash_has_changed(path: Path, verified: list[bytes]) -> None:
    path.write_text(LINE)
    file = CredentialsFile(path)
    assert matches(file, "ada", "lovelace")
    replace(path, f"ada={cheapest('other')}\n")
    assert not matches(file, "ada", "lovelace")
    assert matches(file, "ada", "other")
    assert len(set(verified)) == 2


def test_successes_are_remembered_up_to_a_limit(
    path: Path, monkeypatch: pytest.MonkeyPatch, verified: list[bytes]
) -> None:
    monkeypatch.setattr(basic_auth, "_MAX_REMEMBERED", 2)
    path.write_text("".join(LINE.replace("ada", name) for name in ("a", "b", "c")))
    file = CredentialsFile(path)
    for name in ("a", "b", "c"):
        assert matches(file, name, "lovelace")
    del verified[:]
    assert matches(file, "c", "lovelace")
    assert verified == []
    assert matches(file, "a", "lovelace")
    assert len(verified) == 1


def test_an_unknown_user_costs_as_much_as_a_known_one(path: Path, verified: list[bytes]) -> None:
    """Also a user with clear text whose password is wrong, when others have hashes."""
    path.write_text(LINE + "bob=builder\n")
    file = CredentialsFile(path)
    for user in ("ada", "eve", "bob"):
        del verified[:]
        assert not matches(file, user, "wrong")
        assert len(verified) == 1, user


def test_a_replaced_file_applies_at_once(path: Path) -> None:
    path.write_text("ada=one\n")
    file = CredentialsFile(path)
    replace(path, "ada=two\n")
    assert (matches(file, "ada", "one"), matches(file, "ada", "two")) == (False, True)


def test_a_file_that_is_being_written_is_read_when_it_is_complete(path: Path) -> None:
    path.write_text("ada=lovelace\n")
    file = CredentialsFile(path)
    replace(path, "ada=love", age_s=0)  # cut off
    assert not matches(file, "ada", "love")
    replace(path, "ada=lovelace\nbob=builder\n", age_s=0)
    assert not matches(file, "bob", "builder")
    assert matches(file, "bob", "builder"), "unchanged since the previous poll"


@pytest.mark.parametrize("text", [None, "ada=$2y$x\n", "ada=\\u00zz\n", "#" * (1 << 20) + "\nada=x\n"])
def test_a_version_that_cannot_be_used_keeps_the_previous_one_and_is_logged_once(path: Path, text: str | None) -> None:
    path.write_text("ada=lovelace\n")
    file = CredentialsFile(path)
    if text is None:
        path.unlink()
    else:
        replace(path, text)
    with capture_logs() as logs:
        for _ in range(3):
            assert matches(file, "ada", "lovelace")
            assert not matches(file, "eve", "x")
    assert [line["event"] for line in logs] == ["credentials file cannot be used, the previous version stays valid"]
    assert "credentials.properties" in logs[0]["reason"]
    replace(path, "ada=new\n")
    assert matches(file, "ada", "new")


def test_an_empty_file_has_no_users(path: Path) -> None:
    path.write_text("ada=lovelace\n")
    file = CredentialsFile(path)
    replace(path, "# nobody\n")
    with capture_logs() as logs:
        for user, password in (("ada", "lovelace"), ("", ""), ("# nobody", "")):
            assert not matches(file, user, password)
    assert [line["event"] for line in logs] == [
        "credentials file read again",
        "credentials file is empty, no user can log in",
    ]


def test_a_missing_file_stops_the_start(path: Path) -> None:
    with pytest.raises(ConfigException, match="cannot be read: No such file"):
        CredentialsFile(path)


def test_more_logins_than_can_wait_are_rejected_until_others_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(basic_auth, "_MAX_PENDING", 3)

    async def flood() -> tuple[list[object], bool]:
        stored = Credentials(Users.parse(LINE, "file"))
        attempts = [stored.matches("ada", f"wrong {number}") for number in range(8)]
        answers = await asyncio.gather(*attempts, return_exceptions=True)
        return list(answers), await stored.matches("ada", "lovelace")

    answers, later = asyncio.run(flood())
    assert answers.count(False) == 3
    failures = [answer for answer in answers if isinstance(answer, RestFailure)]
    assert [(one.status, one.headers) for one in failures] == [(503, {"Retry-After": "1"})] * 5
    assert later
