from __future__ import annotations

import importlib
import sys
import sysconfig
import threading
from pathlib import Path
from typing import Any

import pytest

from mm2.connect.plugins import PluginLoader
from mm2.connect.plugins.loader import (
    LoadedElsewhere,
    context_loader,
    current_loader,
    loader_of,
    not_loadable_twice,
    swap,
)
from tests.unit.connect.plugin_folders import dependency, write_archive, write_files

PLUGIN = """
from __future__ import annotations
import importlib
import importlib.metadata
import logging
import pickle
import pkgutil
import threading
from dataclasses import dataclass
from typing import ClassVar, get_type_hints

import dep
from dep.told import VERSION
from mm2.connect.api import ConnectError

@dataclass
class Point:
    count: ClassVar[int] = 0
    x: int = 0

class Plugin:
    def at_import(self):
        return dep.tell(), VERSION

    def lazily(self):
        import dep.late as late
        from dep import late as again
        return late.tell(), again.tell()

    def by_name(self):
        return importlib.import_module("dep.late").tell(), pkgutil.resolve_name("dep:tell")()

    def in_thread(self):
        told = []
        def run():
            import dep.late
            told.append(dep.late.tell())
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        return told[0]

    def by_exec(self):
        scope = {}
        exec("import dep.late\\ntold = dep.late.tell()", scope)
        return scope["told"]

    def metadata(self):
        return importlib.metadata.version("dep")

    def hints(self):
        return get_type_hints(Point)["x"], pickle.loads(pickle.dumps(Point(3))).x, Point(4).x

    def error(self):
        return ConnectError
"""


@pytest.fixture(autouse=True)
def _no_dependency(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove modules that other tests have imported under these names."""
    for name in [name for name in sys.modules if name.partition(".")[0] in ("dep", "acme")]:
        monkeypatch.delitem(sys.modules, name)


@pytest.fixture
def two(tmp_path: Path) -> tuple[PluginLoader, PluginLoader]:
    old = write_files(tmp_path / "old", {"acme/__init__.py": "", "acme/plugin.py": PLUGIN, **dependency("1.0")})
    new = write_archive(tmp_path / "new.whl", {"acme/__init__.py": "", "acme/plugin.py": PLUGIN, **dependency("2.0")})
    return PluginLoader(old), PluginLoader(new)


def made(loader: PluginLoader) -> Any:
    return loader.load_class("acme.plugin.Plugin")()


@pytest.mark.parametrize("turn", [0, 1])
def test_each_location_has_its_own_version_of_a_dependency(two: tuple[PluginLoader, PluginLoader], turn: int) -> None:
    loader, version = two[turn], ("1.0", "2.0")[turn]
    other, plugin = made(two[1 - turn]), made(loader)
    assert other.at_import() != plugin.at_import()
    assert plugin.at_import() == (f"dep {version}", version)
    assert plugin.lazily() == (f"late {version}", f"late {version}")
    assert plugin.by_name() == (f"late {version}", f"dep {version}")
    assert plugin.in_thread() == f"late {version}"
    assert plugin.by_exec() == f"late {version}"
    assert plugin.metadata() == version
    assert plugin.hints() == (int, 3, 4)
    assert "dep" not in sys.modules


def test_the_worker_s_own_classes_are_shared(two: tuple[PluginLoader, PluginLoader]) -> None:
    api = importlib.import_module("mm2.connect.api")
    assert made(two[0]).error() is made(two[1]).error() is api.ConnectError


def test_classes_know_their_loader_and_their_name(two: tuple[PluginLoader, PluginLoader]) -> None:
    found = two[0].load_class("acme.plugin:Plugin")
    assert loader_of(found) is loader_of(found()) is two[0]
    assert two[0].public_name(found.__module__) == "acme.plugin"
    assert loader_of(PluginLoader) is None
    assert found is not two[1].load_class("acme.plugin:Plugin")


def test_a_location_never_brings_the_worker_or_the_standard_library(tmp_path: Path) -> None:
    files = {"mm2/__init__.py": "SPOILT = 1", "json.py": "SPOILT = 1", "acme.py": "import json, mm2\nclass A: pass"}
    loader = PluginLoader(write_files(tmp_path / "bad", files))
    module: Any = loader.load_module("acme")
    assert not hasattr(module.json, "SPOILT")
    assert not hasattr(module.mm2, "SPOILT")


def test_what_a_location_lacks_comes_from_the_worker_s_environment(tmp_path: Path) -> None:
    loader = PluginLoader(write_files(tmp_path / "thin", {"acme.py": "import structlog\n"}))
    module: Any = loader.load_module("acme")
    assert module.structlog is sys.modules["structlog"]


def test_classes_of_other_locations_are_not_found(two: tuple[PluginLoader, PluginLoader]) -> None:
    with pytest.raises(ModuleNotFoundError, match="No module named 'structlog' in"):
        two[0].load_class("structlog.BoundLogger")
    with pytest.raises(AttributeError):
        two[0].load_class("acme.plugin.Absent")
    with pytest.raises(TypeError, match="not a class"):
        two[0].load_class("acme.plugin.VERSION")


def test_a_swap_holds_for_one_thread_and_is_undone(two: tuple[PluginLoader, PluginLoader]) -> None:
    seen = []
    with swap(two[0]):
        with swap(two[1]):
            assert context_loader() is two[1]
        with pytest.raises(LookupError), swap(two[1]):
            raise LookupError
        assert context_loader() is current_loader() is two[0]
        thread = threading.Thread(target=lambda: seen.append(context_loader()))
        thread.start()
        thread.join()
    assert (seen, context_loader()) == ([None], None)


def test_the_worker_s_imports_are_untouched_by_a_swap(two: tuple[PluginLoader, PluginLoader]) -> None:
    with swap(two[0]), pytest.raises(ModuleNotFoundError):
        importlib.import_module("dep")


def compiled_copy(folder: Path, name: str) -> PluginLoader:
    """A location with a copy of a compiled module of the environment."""
    origin = importlib.import_module(name).__file__
    assert origin is not None
    folder.mkdir()
    target = folder / f"{name.rpartition('.')[2]}{sysconfig.get_config_var('EXT_SUFFIX')}"
    target.write_bytes(Path(origin).read_bytes())
    (folder / "acme.py").write_text(f"import {target.name.partition('.')[0]} as compiled\n")
    return PluginLoader(folder)


def test_a_compiled_module_with_state_of_its_own_is_loaded_again(tmp_path: Path) -> None:
    importlib.import_module("crc32c._crc32c")
    loader = compiled_copy(tmp_path / "compiled", "crc32c._crc32c")
    module: Any = loader.load_module("acme")
    assert module.compiled.crc32c(b"123456789") == 0xE3069283


def test_a_compiled_module_that_cannot_be_loaded_twice_names_the_option(tmp_path: Path) -> None:
    importlib.import_module("_cffi_backend")
    loader = compiled_copy(tmp_path / "compiled", "_cffi_backend")
    with pytest.raises(ImportError) as raised:
        loader.load_module("acme")
    reason = not_loadable_twice(raised.value)
    assert isinstance(reason, LoadedElsewhere)
    assert f"The compiled module _cffi_backend of {loader.location} cannot be loaded" in str(reason)
    assert "set plugin.isolation=process in the connector's configuration" in str(reason)
