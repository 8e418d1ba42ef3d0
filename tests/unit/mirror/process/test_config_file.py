"""When a monitored file must be read again."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import pytest

from mm2.config.configdef import ConfigException
from mm2.mirror.process.config_file import ConfigFile


@pytest.fixture
def watched(tmp_path: Path) -> ConfigFile:
    path = tmp_path / "mm2.properties"
    path.write_text("a = 1\n")
    file = ConfigFile(path, threading.Event())
    assert file.load() == {"a": "1"}
    return file


def test_an_unchanged_file_is_not_read_again(watched: ConfigFile) -> None:
    assert [watched.changed() for _ in range(3)] == [False] * 3


def test_a_change_is_read_once_the_file_is_stable(watched: ConfigFile) -> None:
    watched.path.write_text("a = 2\n# more to come\n")
    assert not watched.changed()
    watched.path.write_text("a = 2\nb = 3\n")
    assert not watched.changed()
    assert watched.changed()
    assert watched.load() == {"a": "2", "b": "3"}
    assert not watched.changed()


def test_a_file_replaced_by_another_one_or_by_a_link_is_detected(watched: ConfigFile, tmp_path: Path) -> None:
    stamp = watched.path.stat()
    other = tmp_path / "other"
    other.write_text("a = 3\n")
    watched.path.unlink()
    assert not watched.changed()
    watched.path.symlink_to(other)
    assert stamp.st_size == watched.path.stat().st_size
    assert [watched.changed(), watched.changed()] == [False, True]
    assert watched.load() == {"a": "3"}


def test_a_requested_check_runs_immediately_and_once(tmp_path: Path) -> None:
    path, asked = tmp_path / "mm2.properties", threading.Event()
    path.write_text("a = 1\n")
    file = ConfigFile(path, asked)
    file.load()
    asked.set()
    assert [file.changed(), file.changed()] == [True, False]


def test_a_broken_file_is_read_once(watched: ConfigFile) -> None:
    watched.path.write_text("a = \\u00zz\n")
    assert [watched.changed(), watched.changed()] == [False, True]
    with pytest.raises(ConfigException):
        watched.load()
    assert [watched.changed(), watched.changed()] == [False, False]


def test_a_file_that_becomes_readable_again_is_read(watched: ConfigFile) -> None:
    watched.path.write_text("a = 2\n")
    watched.path.chmod(0)
    assert [watched.changed(), watched.changed()] == [False, True]
    with contextlib.suppress(ConfigException):  # root may read it all the same
        watched.load()
    assert not watched.changed()
    watched.path.chmod(0o600)
    assert [watched.changed(), watched.changed()] == [False, True]
    assert watched.load() == {"a": "2"}
