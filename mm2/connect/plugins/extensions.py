"""Compiled modules in plugin locations: loaded, unless the process has one that cannot be loaded twice.

CPython knows whether an extension module keeps its state in the module (PEP 489: multi-phase initialization) or in C
globals. The former may be loaded once per location. A second copy of the latter would corrupt the first or fail to
load; it is rejected here, with an error that tells the operator how to continue.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from importlib.abc import Loader
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Final

ISOLATION_KEY: Final = "plugin.isolation"


class LoadedElsewhere(ImportError):
    """A compiled module that cannot be loaded into this process a second time; the message names the remedy."""

    def __init__(self, module: str, location: Path, reason: object) -> None:
        super().__init__(
            f"The compiled module {module} of {location} cannot be loaded beside another copy of it in one process "
            f"({reason}); set {ISOLATION_KEY}=process in the connector's configuration, which runs it in a process of its own",
            name=module,
        )


class _ModuleDef(ctypes.Structure):
    """``PyModuleDef`` of CPython 3.11 and newer, up to the slots."""

    _fields_ = [
        ("ob_refcnt", ctypes.c_ssize_t),
        ("ob_type", ctypes.c_void_p),
        ("m_init", ctypes.c_void_p),
        ("m_index", ctypes.c_ssize_t),
        ("m_copy", ctypes.c_void_p),
        ("m_name", ctypes.c_char_p),
        ("m_doc", ctypes.c_char_p),
        ("m_size", ctypes.c_ssize_t),
        ("m_methods", ctypes.c_void_p),
        ("m_slots", ctypes.c_void_p),
    ]


_first_copies: dict[str, tuple[str, ModuleType]] = {}
_lock = threading.Lock()


class ExtensionLoader(Loader):
    """Loads one compiled module of a plugin location; ``name`` is its name in the location's own code."""

    def __init__(self, name: str, location: Path, found: ExtensionFileLoader) -> None:
        self._name = name
        self._location = location
        self._found = found

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        other = self._other_copy()
        if other is not None and not _has_own_state(other):
            raise LoadedElsewhere(self._name, self._location, "its state is global")
        try:
            module = self._found.create_module(spec)
        except Exception as error:
            raise self._explained(error, other) from error
        return module

    def exec_module(self, module: ModuleType) -> None:
        other = self._other_copy()
        try:
            self._found.exec_module(module)
        except Exception as error:
            raise self._explained(error, other) from error
        with _lock:
            _first_copies.setdefault(self._name, (self._found.path, module))

    def _other_copy(self) -> ModuleType | None:
        shared = sys.modules.get(self._name)
        if shared is not None:
            return shared
        with _lock:
            path, module = _first_copies.get(self._name, ("", None))
        return None if path == self._found.path else module

    def _explained(self, error: Exception, other: ModuleType | None) -> Exception:
        # "cannot load module more than once per process" and the like; without another copy the error has another
        # cause.
        return error if other is None else LoadedElsewhere(self._name, self._location, error)


def _has_own_state(module: ModuleType) -> bool:
    """Whether another copy of an extension module does not share C globals with this one."""
    if not isinstance(getattr(module, "__loader__", None), ExtensionFileLoader | ExtensionLoader):
        return True
    get_def = ctypes.pythonapi.PyModule_GetDef
    get_def.argtypes, get_def.restype = [ctypes.py_object], ctypes.c_void_p
    try:
        address = get_def(module)
    except SystemError:
        # Not a module object: the extension has put another object into sys.modules.
        return False
    if not address:
        return False
    definition = _ModuleDef.from_address(address)
    return bool(definition.m_slots) and definition.m_size >= 0


def not_loadable_twice(error: BaseException | None) -> LoadedElsewhere | None:
    """Find the LoadedElsewhere in an error's chain of causes; packages wrap it in their own errors."""
    seen = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, LoadedElsewhere):
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None
