import hashlib
from pathlib import Path

import pytest

from mm2.sandbox import jars
from mm2.sandbox.errors import SandboxError


def _fill(folder: Path, manifest: Path) -> jars.JarSet:
    folder.mkdir()
    (folder / "a-1.jar").write_bytes(b"alpha")
    (folder / "b-2.jar").write_bytes(b"beta")
    manifest.write_text("# a comment\n" + jars.write_manifest(folder))
    return jars.JarSet("set", (), manifest)


def test_an_intact_folder_has_no_damage(tmp_path: Path) -> None:
    wanted = _fill(tmp_path / "set", tmp_path / "set.sha256")
    assert jars.damage(wanted, tmp_path / "set", contents=True) is None


def test_a_truncated_jar_is_reported_without_reading_any(tmp_path: Path) -> None:
    wanted = _fill(tmp_path / "set", tmp_path / "set.sha256")
    (tmp_path / "set" / "b-2.jar").write_bytes(b"bet")
    assert jars.damage(wanted, tmp_path / "set") == "b-2.jar is corrupt: 3 bytes instead of 4"


def test_changed_byte_is_found_by_the_checksum(tmp_path: Path) -> None:
    wanted = _fill(tmp_path / "set", tmp_path / "set.sha256")
    (tmp_path / "set" / "a-1.jar").write_bytes(b"alphb")
    assert jars.damage(wanted, tmp_path / "set") is None
    assert "a-1.jar is corrupt" in str(jars.damage(wanted, tmp_path / "set", contents=True))


def test_missing_and_unknown_jars_are_damage(tmp_path: Path) -> None:
    wanted = _fill(tmp_path / "set", tmp_path / "set.sha256")
    (tmp_path / "set" / "evil.jar").write_bytes(b"")
    assert jars.damage(wanted, tmp_path / "set") == "evil.jar does not belong to it"
    (tmp_path / "set" / "a-1.jar").unlink()
    assert jars.damage(wanted, tmp_path / "set") == "a-1.jar is missing"


def test_manifest_round_trip(tmp_path: Path) -> None:
    wanted = _fill(tmp_path / "set", tmp_path / "set.sha256")
    assert wanted.manifest is not None
    assert jars.read_manifest(wanted.manifest.read_text()) == [
        jars.Jar("a-1.jar", 5, hashlib.sha256(b"alpha").hexdigest()),
        jars.Jar("b-2.jar", 4, hashlib.sha256(b"beta").hexdigest()),
    ]


def test_an_unreachable_registry_is_reported_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # the discard port, on which no process listens
    with pytest.raises(SandboxError, match=r"^kafka-4.3.0 could not be downloaded because the Maven registry is unrea"):
        jars.fetch(jars.KAFKA)
    assert not (tmp_path / "mm2" / "kafka-4.3.0").exists()
