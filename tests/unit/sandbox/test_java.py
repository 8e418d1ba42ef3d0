from pathlib import Path

import pytest

from mm2.sandbox.errors import SandboxError
from mm2.sandbox.java import java_executable, java_version


@pytest.mark.parametrize(
    ("printed", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ("no java here", None),
    ],
)
def test_major_version(printed: str, version: int | None) -> None:
    assert java_version(printed) == version


def test_an_old_java_version_is_rejected_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    java_executable.cache_clear()
    try:
        with pytest.raises(SandboxError, match=r"is Java 11, too old: install Java 17 or newer"):
            java_executable()
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
        java_executable.cache_clear()
        with pytest.raises(SandboxError, match="Java is missing"):
            java_executable()
    finally:
        java_executable.cache_clear()
