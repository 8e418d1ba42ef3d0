"""The artifacts of a release: the same bytes from the same commit, an SBOM, checksums and their signature."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

ROOT = Path(__file__).parents[3]
SETTINGS = ("-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false")


def run(*words: str | Path, cwd: Path, umask: int = 0o022, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", **variables}
    return subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        umask=umask,
    )


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the files of this one, and its environment: bin/setup does nothing there."""
    folder = tmp_path_factory.mktemp("release") / "repository"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("bin", "conf", "mm2", "tests/tools"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for name in ("README.md", "pyproject.toml", "setup.cfg", ".gitignore"):
        shutil.copy(ROOT / name, folder / name)
    (folder / "bin" / "setup").write_text("#!/bin/sh\n")
    (folder / ".venv").symlink_to(ROOT / ".venv")
    run("git", "init", "--quiet", cwd=folder)
    run("git", "add", "--all", cwd=folder)
    assert run("git", *SETTINGS, "commit", "--quiet", "--message", "all", cwd=folder).returncode == 0
    return folder


@pytest.fixture(scope="module")
def release(repository: Path) -> Path:
    """The artifacts, signed with a key that was made for the test."""
    folder, key = repository.parent / "first", repository.parent / "key"
    assert run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key, cwd=repository).returncode == 0
    done = run("bin/release", "--sign", key, folder, cwd=repository)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_the_same_commit_gives_the_same_bytes(repository: Path, release: Path) -> None:
    second = repository.parent / "another folder"
    done = run("bin/release", second, cwd=repository, umask=0o077, TZ="Asia/Tokyo", LC_ALL="C", PYTHONHASHSEED="7")
    assert done.returncode == 0, done.stderr
    names = {file.name for file in second.iterdir()}
    assert names == {file.name for file in release.iterdir()} - {"SHA256SUMS.sig"}
    assert not [name for name in names if (second / name).read_bytes() != (release / name).read_bytes()]


def test_the_wheel_has_the_code_of_the_commit_and_nothing_else(repository: Path, release: Path) -> None:
    (wheel,) = release.glob("mm2-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    inside = {name for name in names if ".dist-info/" not in name and ".data/" not in name}
    data = {name.partition("/share/mm2/")[2] for name in names if ".data/" in name}
    places = ("*.properties", "systemd/*", "kubernetes/*", "prometheus/*", "grafana/*.json")
    listed = run("git", "ls-files", *(f":(glob)conf/{place}" for place in places), cwd=repository)
    assert data == set(listed.stdout.split())
    assert "mm2/py.typed" in inside
    tracked = set(run("git", "ls-files", "mm2", cwd=repository).stdout.split())
    assert inside == tracked - {name for name in tracked if name not in inside and not name.endswith(".py")}


def test_the_archive_for_executors_runs_a_task_of_copying_anywhere(release: Path, tmp_path: Path) -> None:
    """With an interpreter that has no packages, and without Spark's jars."""
    (archive,) = release.glob("mm2-*-executor-*.tar.gz")
    with tarfile.open(archive) as packed:
        assert not [entry.name for entry in packed if entry.name.endswith(".jar") or not entry.isfile()]
        packed.extractall(tmp_path, filter="data")
    code = "import mm2.copy.executor.daemon, mm2.verify.executor, mm2; print(mm2.__file__)"
    python = Path(sys._base_executable)  # type: ignore[attr-defined]
    done = run(python, "-P", "-S", "-c", code, cwd=tmp_path.parent, PYTHONPATH=str(tmp_path))
    assert (done.stdout.strip(), done.returncode) == (str(tmp_path / "mm2" / "__init__.py"), 0), done.stderr
    assert archive.stat().st_size < 80_000_000


def test_the_checksums_and_their_signature_can_be_verified(release: Path) -> None:
    assert run("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=release).returncode == 0
    public = (release.parent / "key.pub").read_text().split()
    (release.parent / "signers").write_text(f"releases@example.com {public[0]} {public[1]}\n")
    words = ("ssh-keygen", "-Y", "verify", "-f", release.parent / "signers", "-I", "releases@example.com")
    sums = (release / "SHA256SUMS").read_text()
    for text, code in ((sums, 0), (sums.replace("0", "1"), 255)):
        done = subprocess.run(
            [*map(str, words), "-n", "mm2-release", "-s", str(release / "SHA256SUMS.sig")],
            input=text,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stderr


def test_the_sbom_is_valid_and_names_the_wheel_its_packages_and_sparks_jars(release: Path) -> None:
    text = (release / "mm2.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    sbom = json.loads(text)
    (wheel,) = release.glob("mm2-*.whl")
    assert hash_of(sbom["metadata"]["component"]) == hashlib.sha256(wheel.read_bytes()).hexdigest()
    names = [line for line in (ROOT / "conf/docker/packages.txt").read_text().splitlines() if line[0] != "#"]
    assert [one["name"] for one in sbom["components"]] == sorted(set(names) - {"setuptools"})
    pinned = (ROOT / "conf" / "requirements.txt").read_text()
    assert not [one for one in sbom["components"] if f"{one['name']}=={one['version']} " not in pinned]
    (spark,) = (one for one in sbom["components"] if one["name"] == "pyspark")
    core = next(one for one in spark["components"] if one["name"] == "spark-core_2.13")
    assert core["purl"] == f"pkg:maven/org.apache.spark/spark-core_2.13@{spark['version']}"
    assert all(len(hash_of(one)) == 64 for one in spark["components"])
    assert len(spark["components"]) > 200


def test_the_published_list_has_the_packages_of_the_image_with_their_hashes(release: Path) -> None:
    text = (release / "requirements.txt").read_text()
    names = {line.partition("==")[0] for line in text.splitlines() if line[0] != " "}
    listed = (ROOT / "conf/docker/packages.txt").read_text().splitlines()
    assert names == {line for line in listed if line[0] != "#"}
    assert text.count("--hash=sha256:") > len(names)


def hash_of(component: dict[str, Any]) -> str:
    (only,) = component["hashes"]
    assert only["alg"] == "SHA-256"
    return str(only["content"])


def test_what_has_no_commit_is_not_released(repository: Path, tmp_path: Path) -> None:
    stray = repository / "mm2" / "stray.py"
    stray.write_text("")
    try:
        done = run("bin/release", tmp_path / "out", cwd=repository)
    finally:
        stray.unlink()
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "changes without a commit" in done.stderr
    assert not (tmp_path / "out").exists()


def test_wrong_arguments_are_reported(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for words, reason in (
        (("--bad",), "usage"),
        (("a", "b"), "usage"),
        (("--sign", "/nonexistent/key"), "cannot be read"),
        ((str(tmp_path),), "is not empty"),
    ):
        done = run("bin/release", *words, cwd=repository)
        assert done.returncode == 2, done
        assert reason in done.stderr
