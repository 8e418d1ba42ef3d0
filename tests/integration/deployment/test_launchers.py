"""The launcher scripts in bin/."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.checkout import checkout, environment
from tests.support.waiting import wait_until

_REPOSITORY = Path(__file__).parents[3]


def _run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone without a virtual environment, in a folder whose name contains a space."""
    folder = tmp_path / "my clone"
    folder.mkdir()
    for name in ("bin", "conf", "setup.cfg"):
        copy = shutil.copytree if (_REPOSITORY / name).is_dir() else shutil.copy
        copy(_REPOSITORY / name, folder / name)
    return folder


def _fake(folder: Path, name: str, script: str) -> str:
    """The PATH with a folder in front in which `name` is a shell script."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


@pytest.mark.skipif((_REPOSITORY / ".venv").is_symlink(), reason="it would change the environment of another checkout")
def test_a_second_setup_does_nothing() -> None:
    _run(_REPOSITORY / "bin" / "setup")
    before = (_REPOSITORY / ".venv" / "complete").stat().st_mtime_ns
    done = _run(_REPOSITORY / "bin" / "setup", "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (_REPOSITORY / ".venv" / "complete").stat().st_mtime_ns == before


def test_missing_java_is_reported(clone: Path, tmp_path: Path) -> None:
    done = _run(clone / "bin" / "setup", JAVA_HOME=str(tmp_path / "nowhere"))
    assert done.returncode == 1
    assert done.stderr.startswith("bin/setup: Java is missing")
    assert len(done.stderr.splitlines()) == 1
    assert not (clone / ".venv").exists()


def test_help_installs_nothing(clone: Path) -> None:
    done = _run(clone / "bin" / "demo", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "--seconds" in done.stdout
    assert not (clone / ".venv").exists()


def test_old_java_is_reported(clone: Path, tmp_path: Path) -> None:
    path = _fake(tmp_path / "fake", "java", "echo 'openjdk version \"11.0.2\"' >&2")
    done = _run("env", "-u", "JAVA_HOME", clone / "bin" / "setup", PATH=path)
    assert done.returncode == 1
    assert "java is Java 11, too old: install Java 17 or newer" in done.stderr


def test_old_python_is_reported(clone: Path) -> None:
    done = _run(clone / "bin" / "setup", PYTHON="/bin/false")
    assert (done.returncode, done.stderr) == (1, "bin/setup: PYTHON=/bin/false is not Python 3.11 or newer.\n")


@pytest.mark.parametrize("program", ["setup", "mm2"])
def test_the_environment_of_another_checkout_is_not_changed(clone: Path, tmp_path: Path, program: str) -> None:
    other = tmp_path / "other" / ".venv"
    (other / "bin").mkdir(parents=True)
    (other / "bin" / "python").symlink_to(sys.executable)
    (other / "complete").write_text("runtime of another checkout")
    (clone / ".venv").symlink_to(other)
    done = _run(clone / "bin" / program, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"bin/setup: .venv is a symbolic link to {other}, whose environment belongs to another checkout and would be changed: "
        "delete the link, then run bin/setup again.\n"
    )
    assert (clone / ".venv").is_symlink()
    assert {str(file.relative_to(other)) for file in other.rglob("*")} == {"bin", "bin/python", "complete"}


def _names(file: Path) -> set[str]:
    lines = (line for line in file.read_text().splitlines() if line and line[0] not in "# ")
    return {line.partition("==")[0].strip().lower().replace("_", "-") for line in lines}


@pytest.mark.parametrize("tests", [False, True])
def test_a_setup_installs_the_packages_of_the_tests_only_if_they_are_wanted(
    clone: Path, tmp_path: Path, *, tests: bool
) -> None:
    """There is no index here, so the list that pip was given is all that is left of it."""
    options = ["--tests"] if tests else []
    done = _run(clone / "bin" / "setup", *options, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path))
    assert done.returncode == 1
    assert not (clone / ".venv" / "complete").exists()
    runtime, everything = (_names(_REPOSITORY / "conf" / name) for name in ("docker/packages.txt", "requirements.txt"))
    listed = _names(clone / ".venv" / "requirements.txt")
    assert listed == (everything - {"twofish", "gssapi"} if tests else runtime)
    assert "pytest" in everything - runtime


def test_an_unknown_option_is_refused(clone: Path) -> None:
    done = _run(clone / "bin" / "setup", "--test")
    assert (done.returncode, done.stderr) == (2, "usage: bin/setup [--tests] [--quiet]\n")
    assert not (clone / ".venv").exists()


def test_a_failed_setup_is_repeated(clone: Path, tmp_path: Path) -> None:
    (clone / "conf" / "requirements.txt").write_text(
        f"setuptools==0 --hash=sha256:{64 * '0'}\nno-such-package-of-ours==1 --hash=sha256:{64 * '0'}\n"
    )
    nowhere = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
    first = _run(clone / "bin" / "setup", **nowhere)
    assert first.returncode == 1
    assert "the packages could not be installed; see pip's error above" in first.stderr
    (clone / ".venv" / "torn").touch()
    assert _run(clone / "bin" / "demo", **nowhere).returncode == 1, "a launcher must not run in a torn environment"
    assert not (clone / ".venv" / "torn").exists(), "it began from nothing"


def test_programs_of_a_test_do_not_change_the_environment(tmp_path: Path) -> None:
    """They are those of another folder, for which bin/setup would install everything again."""
    complete = _REPOSITORY / ".venv" / "complete"
    before = complete.read_text(), complete.stat().st_mtime_ns
    done = _run(checkout(tmp_path / "checkout") / "bin" / "mm2", "version", **environment())
    assert (done.returncode, done.stderr) == (0, "")
    assert (complete.read_text(), complete.stat().st_mtime_ns) == before


def test_daemon_prints_nothing_and_logs_to_the_log_folder(tmp_path: Path) -> None:
    missing = tmp_path / "missing.properties"
    program = checkout(tmp_path / "checkout") / "bin" / "connect-mirror-maker"
    done = _run(program, "-daemon", missing, **environment(LOG_DIR=str(tmp_path / "logs")))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    output = tmp_path / "logs" / "connect-mirror-maker.out"
    wait_until(lambda: output.exists() and "missing.properties" in output.read_text(), 20, what="the error in the log")
