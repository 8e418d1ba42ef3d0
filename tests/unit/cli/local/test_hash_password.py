"""`mm2 hash-password`: from a pipe and from a terminal; the line is accepted by the credentials file."""

from __future__ import annotations

import asyncio
import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from mm2.connect.rest.basic_auth import CredentialsFile
from tests.integration.asking import asked


def asked_with(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, user: str, text: str
) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    return asked(capsys, "hash-password", user)


@pytest.mark.parametrize("user", ["ada", "a da=#!ü中", "\\"])
def test_the_printed_line_belongs_into_the_file(
    user: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code, out, err = asked_with(capsys, monkeypatch, user, " pass é\r\nnot this line\n")
    assert (code, err, out.count("\n")) == (0, "", 1)
    assert "pass" not in out
    path = tmp_path / "credentials"
    path.write_text(out, "latin-1")
    file = CredentialsFile(path)
    assert asyncio.run(file.matches(user, " pass é"))
    assert not asyncio.run(file.matches(user, "pass é"))


@pytest.mark.parametrize(
    ("user", "text", "reason"),
    [("ada", "\n", "password must not be empty"), ("ada", "", "must not be empty"), ("a:b", "x\n", "colons"),
     ("a\nb", "x\n", "control"), ("", "x\n", "user must not be empty")],
)  # fmt: skip
def test_an_impossible_user_or_password_is_refused(
    user: str, text: str, reason: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = asked_with(capsys, monkeypatch, user, text)
    assert (code, out) == (2, "")
    assert reason in err


@pytest.mark.parametrize(("second", "code"), [("open sesame", 0), ("open sesam", 2)])
def test_at_a_terminal_the_password_is_asked_twice_and_not_shown(second: str, code: int) -> None:
    terminal, end = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "mm2.cli.mm2", "hash-password", "ada"],
        stdin=end, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "TERM": "dumb"},
    ) as process:  # fmt: skip
        os.close(end)
        # One after the other, because input that is there before the prompt is discarded.
        assert process.stderr is not None
        assert process.stdout is not None
        shown = ""
        for answer in ("open sesame", second):
            while not shown.endswith(": "):
                shown += process.stderr.read(1)
            os.write(terminal, f"{answer}\n".encode())
            shown += process.stderr.read(1)
        shown += process.stderr.read()
        out = process.stdout.read()
    os.close(terminal)
    assert process.returncode == code, shown
    assert out.startswith("ada=$scrypt$") == (code == 0)
    assert shown.startswith("Password: ")
    assert ("differ" in shown) == (code == 2)
    assert "sesam" not in out + shown
