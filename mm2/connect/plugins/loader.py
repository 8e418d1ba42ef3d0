"""Isolation of plugins: every plugin location has its own modules (org.apache.kafka.connect.runtime.isolation).

A loader knows the folders and archives of one plugin location. Modules that exist there are loaded from there first
(child first), so two locations may contain different versions of the same package. All other modules, and always the
standard library and ``mm2``, are shared with the worker.

A module ``acme.source`` of the location ``acme-1.0`` is loaded under the name
``mm2_plugins.acme_1_0_4f1c9e.acme.source``, so that ``sys.modules`` and its users (dataclasses, typing, pickle) can
distinguish it from another location's. Its ``__builtins__`` is a table of the loader with the loader's ``__import__``:
the interpreter looks ``__import__`` up in the globals of the importing function. So every import is resolved for the
code that contains it, in any thread and at any time, and other imports are not slowed down. Imports through
``importlib.import_module`` and look-ups through ``importlib.metadata`` are resolved for the nearest caller in a plugin
location.

Compiled modules: CPython knows whether an extension module keeps its state in the module (PEP 489: multi-phase
initialization) or in C globals. The former may be loaded once per location. A second copy of the latter would corrupt
the first or fail to load. It is rejected with an error that names the remedy.
"""

from __future__ import annotations

import builtins
import ctypes
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ExtensionFileLoader, ModuleSpec, PathFinder, SourceFileLoader, SourcelessFileLoader
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Final
from zipimport import zipimporter

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


ROOT: Final = "mm2_plugins"
"""The package that contains all isolated modules in ``sys.modules``."""

SHARED: Final = frozenset({"mm2", ROOT}) | sys.stdlib_module_names
"""Top-level names that are never loaded from a location: a plugin must derive from the classes of the worker's ``mm2``."""

_original_import: Final = builtins.__import__
_original_import_module: Final = importlib.import_module
_loaders: dict[str, PluginLoader] = {}
_context = threading.local()
_installing = threading.Lock()


class PluginLoader:
    """The modules of one plugin location. Thread-safe; lives as long as the process.

    ``location`` is the folder or file that contains the plugins, ``paths`` the parts of it that are searched for
    modules, in order.
    """

    def __init__(self, location: Path, paths: Sequence[Path] | None = None) -> None:
        self.location = location
        self.paths: Final = [str(path) for path in (paths or [location])]
        digest = hashlib.sha256(str(location).encode()).hexdigest()[:6]
        self.name: Final = f"{ROOT}.{re.sub(r'[^A-Za-z0-9]+', '_', location.stem).strip('_') or 'plugin'}_{digest}"
        self._own: dict[str, bool] = {}
        self._builtins: Final = {**vars(builtins), "__import__": self._import}
        _install(self)

    def __repr__(self) -> str:
        return f"PluginLoader({str(self.location)!r})"

    def owns(self, top_level: str) -> bool:
        """Whether a package or module of that top-level name is in this location."""
        known = self._own.get(top_level)
        if known is None:
            known = top_level not in SHARED and PathFinder.find_spec(top_level, self.paths) is not None
            self._own[top_level] = known
        return known

    def load_module(self, name: str) -> ModuleType:
        """The module ``name`` as code of this location sees it. Raises the errors of its import."""
        return _original_import_module(self.internal_name(name))

    def load_class(self, path: str) -> type[Any]:
        """The class ``path`` (``package.module.Class`` or ``package.module:Class``) of this location.

        Raises ModuleNotFoundError when its module is not in this location, AttributeError or TypeError when the module
        has no such class.
        """
        module_name, _, attribute = path.partition(":") if ":" in path else path.rpartition(".")
        if not module_name or not self.owns(module_name.partition(".")[0]):
            raise ModuleNotFoundError(f"No module named {module_name or path!r} in {self.location}", name=module_name)
        found: Any = self.load_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
        if not isinstance(found, type):
            raise TypeError(f"{path} is not a class")
        return found

    def internal_name(self, name: str) -> str:
        """The name in ``sys.modules`` of a module that code of this location calls ``name``."""
        return f"{self.name}.{name}" if self.owns(name.partition(".")[0]) else name

    def public_name(self, name: str) -> str:
        """The reverse of :meth:`internal_name`."""
        return name.removeprefix(f"{self.name}.")

    def _import(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,  # noqa: A002 - the name is part of the protocol
        locals: Mapping[str, Any] | None = None,  # noqa: A002
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        if level or not self.owns(name.partition(".")[0]):
            return _original_import(name, globals, locals, fromlist or (), level)
        internal = f"{self.name}.{name}"
        if fromlist:
            return _original_import(internal, globals, locals, fromlist, 0)
        _original_import_module(internal)
        return sys.modules[f"{self.name}.{name.partition('.')[0]}"]

    def prepare(self, module: ModuleType) -> None:
        """Set up a module of this location before it is executed."""
        module.__dict__["__builtins__"] = self._builtins


class _PreparingLoader(Loader):
    """Wraps the loader of a file or an archive; sets the module up for the location before it is executed."""

    def __init__(
        self, plugin_loader: PluginLoader, found: SourceFileLoader | SourcelessFileLoader | zipimporter
    ) -> None:
        self._plugin_loader = plugin_loader
        self._found = found

    def exec_module(self, module: ModuleType) -> None:
        code = self._found.get_code(module.__name__)
        if code is None:
            raise ImportError(f"No code for {module.__name__} in {module.__file__}", name=module.__name__)
        self._plugin_loader.prepare(module)
        exec(code, module.__dict__)  # noqa: S102 - what importing means

    def __getattr__(self, name: str) -> Any:
        # Forward get_data, get_source, get_resource_reader and is_package to the wrapped loader.
        return getattr(self._found, name)


class _Finder(MetaPathFinder):
    """Finds everything below `ROOT`, and the metadata of the distributions that a plugin sees."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(f"{ROOT}."):
            return None
        parts = fullname.split(".")
        loader = _loaders.get(".".join(parts[:2]))
        if loader is None or len(parts) < 3:
            return None
        spec = PathFinder.find_spec(fullname, loader.paths if len(parts) == 3 else path)
        if spec is not None:
            _make_own(spec, loader)
        return spec

    @staticmethod
    def find_distributions(
        context: importlib.metadata.DistributionFinder.Context,
    ) -> Iterable[importlib.metadata.Distribution]:
        """Searched first by ``importlib.metadata`` when a plugin uses it, e.g. for the version of its dependency."""
        loader = current_loader()
        if loader is None or "path" in vars(context):
            return ()
        wanted = importlib.metadata.DistributionFinder.Context(name=context.name, path=loader.paths)
        return importlib.metadata.MetadataPathFinder.find_distributions(wanted)


def _make_own(spec: ModuleSpec, loader: PluginLoader) -> None:
    found: object = spec.loader
    if isinstance(found, ExtensionFileLoader):
        spec.loader = ExtensionLoader(loader.public_name(spec.name), loader.location, found)
    elif isinstance(found, SourceFileLoader | SourcelessFileLoader | zipimporter):
        spec.loader = _PreparingLoader(loader, found)


def _install(loader: PluginLoader) -> None:
    with _installing:
        if ROOT not in sys.modules:
            sys.modules[ROOT] = _package(ROOT)
            sys.meta_path.insert(0, _Finder())
            importlib.import_module = _import_module
        _loaders[loader.name] = loader
        package = _package(loader.name)
        sys.modules[loader.name] = package
        setattr(sys.modules[ROOT], loader.name.rpartition(".")[2], package)


def _package(name: str) -> ModuleType:
    package = ModuleType(name)
    package.__path__ = []
    package.__spec__ = ModuleSpec(name, None, is_package=True)
    return package


def _import_module(name: str, package: str | None = None) -> ModuleType:
    """Replaces ``importlib.import_module``; isolated for plugins, also through the standard library."""
    loader = None if name.startswith(".") else _calling_loader(inspect.currentframe())
    return _original_import_module(name if loader is None else loader.internal_name(name), package)


def _calling_loader(own: FrameType | None) -> PluginLoader | None:
    """The loader of the nearest caller outside of the standard library; None when that code is not isolated."""
    frame = None if own is None else own.f_back
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.startswith(f"{ROOT}."):
            return loader_of_module(name)
        if name.partition(".")[0] not in sys.stdlib_module_names:
            return None
        frame = frame.f_back
    return None


def loader_of_module(name: str) -> PluginLoader | None:
    """The loader whose module has this name in ``sys.modules``."""
    return _loaders.get(".".join(name.split(".", 2)[:2]))


def loader_of(thing: object) -> PluginLoader | None:
    """The loader of a class, or of an object's class; None when it is not from a plugin location."""
    python_class = thing if isinstance(thing, type) else type(thing)
    return loader_of_module(python_class.__module__)


def current_loader() -> PluginLoader | None:
    """The loader of the running code: the nearest isolated caller's, otherwise the one set by :func:`swap`."""
    frame = inspect.currentframe()
    while frame is not None:
        name = frame.f_globals.get("__name__")
        if isinstance(name, str) and name.startswith(f"{ROOT}."):
            return loader_of_module(name)
        frame = frame.f_back
    return context_loader()


def context_loader() -> PluginLoader | None:
    """The loader set for this thread (``Thread.getContextClassLoader``)."""
    loader: PluginLoader | None = getattr(_context, "loader", None)
    return loader


@contextmanager
def swap(loader: PluginLoader | None) -> Iterator[None]:
    """Set ``loader`` for this thread within the block and restore the previous one afterwards (Java's LoaderSwap)."""
    before = context_loader()
    _context.loader = loader
    try:
        yield
    finally:
        _context.loader = before
