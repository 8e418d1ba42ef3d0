"""Finds plugins in plugin locations and in the environment (Java's PluginUtils and PluginScanner classes).

An entry of ``plugin.path`` is an archive (``.whl`` or ``.zip``), which is one plugin location, or a folder. In a
folder, every child that is an archive, or a folder that contains modules, packages, archives or ``*.dist-info``, is one
plugin location. A folder that itself contains modules, packages or ``*.dist-info``, as created by
``pip install --target``, is one location as a whole.

Manifests: entry points of the group ``mm2.plugins`` in the ``*.dist-info`` of a location or of the environment, and the
file ``mm2-plugins.txt`` in a location. Scanning: the modules of a location that import ``mm2``, and those that import
these, are imported and searched for plugin classes; nothing else of a location is executed.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.metadata
import inspect
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, Final

import structlog

from mm2.connect.errors import ConnectError
from mm2.connect.plugins.loader import PluginLoader, not_loadable_twice, swap
from mm2.connect.plugins.plugin import Plugin, PluginType, types_of
from mm2.connect.plugins.process.remote import describe

log = structlog.get_logger(__name__)

MANIFEST: Final = "mm2-plugins.txt"
"""File in a plugin location that names its plugins, one dotted path per line, where there is no ``*.dist-info``."""
_ARCHIVES: Final = frozenset({".whl", ".zip"})
_FILE_ARCHIVE: Final = re.compile(r"connect-file-\d[\w.-]*\.jar")


@dataclass(frozen=True)
class PluginLocation:
    """One plugin location and the parts of it that are searched for modules."""

    path: Path
    search: tuple[Path, ...]


def names_file_archive(entries: Iterable[str]) -> bool:
    """Whether entries of ``plugin.path`` include Kafka's archive of the file connectors, in any version.

    The archive itself is not read and need not exist: its classes ship with this package (`mm2.connect.files`). As in
    Java, the entry may also be a folder that contains the archive.
    """
    for entry in entries:
        path = Path(entry)
        if _FILE_ARCHIVE.fullmatch(path.name):
            return True
        with contextlib.suppress(OSError):
            if path.is_dir() and any(_FILE_ARCHIVE.fullmatch(child.name) for child in path.iterdir()):
                return True
    return False


def plugin_locations(entries: Iterable[str]) -> list[PluginLocation]:
    """The locations of all entries of ``plugin.path``; an entry that cannot be read is logged and skipped."""
    found: dict[Path, PluginLocation] = {}
    for entry in entries:
        if _FILE_ARCHIVE.fullmatch(Path(entry).name):
            continue
        try:
            for location in _locations(Path(entry).absolute()):
                found.setdefault(location.path, location)
        except OSError as error:
            log.warning("plugin path entry cannot be read, ignoring it", entry=entry, reason=str(error))
    return list(found.values())


def _locations(entry: Path) -> list[PluginLocation]:
    if not entry.exists():
        raise FileNotFoundError(f"{entry} does not exist")
    if entry.is_file():
        return [PluginLocation(entry, (entry,))] if is_archive(entry) else []
    children = sorted(entry.iterdir())
    if any(map(_belongs_to_its_folder, children)):
        return [_folder(entry)]
    found = []
    for child in children:
        if is_archive(child):
            found.append(PluginLocation(child, (child,)))
        elif child.is_dir() and any(is_archive(inner) or _belongs_to_its_folder(inner) for inner in child.iterdir()):
            found.append(_folder(child))
    return found


def is_archive(path: Path) -> bool:
    """Whether it is a file from which modules can be imported."""
    return path.suffix.lower() in _ARCHIVES and path.is_file()


def _folder(path: Path) -> PluginLocation:
    return PluginLocation(path, (path, *sorted(filter(is_archive, path.iterdir()))))


def _belongs_to_its_folder(path: Path) -> bool:
    if path.name == MANIFEST or (path.is_file() and path.suffix == ".py"):
        return True
    return path.is_dir() and (path.suffix == ".dist-info" or (path / "__init__.py").is_file())


GROUP: Final = "mm2.plugins"
"""Group of entry points that name plugins: ``any-name = package.module:Class``."""

# Java finds these by manifest only, regardless of plugin.discovery.
_BY_MANIFEST_ONLY: Final = frozenset(
    {
        PluginType.CONFIGPROVIDER,
        PluginType.REST_EXTENSION,
        PluginType.CONNECTOR_CLIENT_CONFIG_OVERRIDE_POLICY,
    }
)
_NOT_PLUGINS: Final = frozenset({"tests", "test", "conftest", "setup", "__main__"})


class Discovery(Enum):
    """``plugin.discovery`` (KIP-898)."""

    ONLY_SCAN = "only_scan"
    HYBRID_WARN = "hybrid_warn"
    HYBRID_FAIL = "hybrid_fail"
    SERVICE_LOAD = "service_load"


def discover(locations: Iterable[PluginLocation], discovery: Discovery) -> list[Plugin]:
    """The plugins of all locations, then those of the environment's entry points.

    Plugins that cannot be loaded are logged and skipped. Raises ConnectError under ``hybrid_fail`` when a plugin has no
    manifest.
    """
    found: list[Plugin] = []
    missing: list[Plugin] = []
    for location in locations:
        loader = PluginLoader(location.path, location.search)
        listed = _load_all(_listed(location), loader, str(location.path))
        scanned: dict[str, Plugin] = {}
        if discovery is not Discovery.SERVICE_LOAD:
            scanned = _scanned(loader, location)
            missing += [plugin for path, plugin in scanned.items() if path not in listed]
        if discovery is Discovery.ONLY_SCAN:
            listed = {path: plugin for path, plugin in listed.items() if _BY_MANIFEST_ONLY.intersection(plugin.types)}
        found += {**scanned, **listed}.values()
    _report(missing, discovery)
    environment = _load_all(_environment_entries(), None, "environment")
    return [*found, *environment.values()]


def _report(missing: list[Plugin], discovery: Discovery) -> None:
    if not missing or discovery not in {Discovery.HYBRID_WARN, Discovery.HYBRID_FAIL}:
        return
    listing = "\n".join(f"{plugin.path}\t{plugin.location}" for plugin in missing)
    sentence = (
        "One or more plugins are missing ServiceLoader manifests may not be usable with plugin.discovery=service_load: "
        f"[\n{listing}\n]\nTheir locations need entry points of the group {GROUP} or a file {MANIFEST}."
    )
    if discovery is Discovery.HYBRID_FAIL:
        raise ConnectError(f"{sentence} To silence this error, set plugin.discovery=only_scan in the worker config.")
    log.warning("%s To silence this warning, set plugin.discovery=only_scan in the worker config.", sentence)


def _environment_entries() -> list[str]:
    return [entry.value.partition(" ")[0] for entry in importlib.metadata.entry_points(group=GROUP)]


def _listed(location: PluginLocation) -> list[str]:
    """Dotted paths ``module:Class`` from the manifests of a location."""
    paths = [
        entry.value.partition(" ")[0]
        for distribution in importlib.metadata.distributions(path=list(map(str, location.search)))
        for entry in distribution.entry_points
        if entry.group == GROUP
    ]
    for place in location.search:
        for line in _manifest(place).splitlines():
            path = line.partition("#")[0].strip()
            if path:
                paths.append(path if ":" in path else ":".join(path.rsplit(".", 1)))
    return list(dict.fromkeys(paths))


def _manifest(place: Path) -> str:
    try:
        if place.is_dir():
            return (place / MANIFEST).read_text(encoding="utf-8") if (place / MANIFEST).is_file() else ""
        with zipfile.ZipFile(place) as archive:
            return archive.read(MANIFEST).decode() if MANIFEST in archive.namelist() else ""
    except (OSError, zipfile.BadZipFile, UnicodeDecodeError) as error:
        log.warning("plugin manifest cannot be read, ignoring it", location=str(place), reason=str(error))
        return ""


def _load_all(paths: Iterable[str], loader: PluginLoader | None, location: str) -> dict[str, Plugin]:
    found = {}
    for path in paths:
        plugin = Plugin(path.replace(":", "."), object, path, loader=loader)
        if loader is not None:
            plugin.location = str(loader.location)
        try:
            with swap(loader):
                settled = _settled(plugin)
        except Exception as error:
            reason = not_loadable_twice(error)
            if reason is None:
                log.exception("plugin cannot be loaded, ignoring it", plugin=path, location=location)
                continue
            log.warning("plugin requires process isolation", plugin=path, reason=str(reason))
            described = _described(plugin, str(reason))
            if described is None:
                continue
            settled = described
        found[path] = settled
    return found


def _settled(plugin: Plugin) -> Plugin:
    python_class = plugin.python_class
    types = types_of(python_class)
    if not types or inspect.isabstract(python_class):
        raise TypeError(f"{plugin.path} is not a plugin that can be instantiated")
    plugin.types = tuple(types)
    plugin.kind = types[0].base
    return plugin


def _described(plugin: Plugin, reason: str) -> Plugin | None:
    """Describe, in a separate process, a plugin that this process cannot load."""
    try:
        types, version = describe(plugin)
    except Exception:
        log.exception("plugin cannot be loaded in its own process either, ignoring it", plugin=plugin.path)
        return None
    if not types:
        log.warning("class in a manifest is not a plugin, ignoring it", plugin=plugin.path)
        return None
    return replace(plugin, types=types, kind=types[0].base, needs_process=reason, told_version=version)


def _scanned(loader: PluginLoader, location: PluginLocation) -> dict[str, Plugin]:
    found: dict[str, Plugin] = {}
    for name in candidate_modules(_sources(location)):
        try:
            with swap(loader):
                module = loader.load_module(name)
        except Exception as error:
            reason = not_loadable_twice(error)
            if reason is not None:
                log.warning(
                    "module requires process isolation; its plugins must be listed in a manifest",
                    module=name,
                    reason=str(reason),
                )
            else:
                log.exception("module cannot be loaded, ignoring its plugins", module=name)
            continue
        for thing in list(vars(module).values()):
            if isinstance(thing, type) and thing.__module__ == module.__name__:
                _add(found, thing, loader, name)
    return found


def _add(found: dict[str, Plugin], python_class: type[Any], loader: PluginLoader, module: str) -> None:
    types = [type_ for type_ in types_of(python_class) if type_ not in _BY_MANIFEST_ONLY | {PluginType.TASK}]
    if not types or inspect.isabstract(python_class):
        return
    path = f"{module}:{python_class.__qualname__}"
    found[path] = Plugin(
        path.replace(":", "."),
        types[0].base,
        path,
        loader=loader,
        location=str(loader.location),
        types=tuple(types),
        _class=python_class,
    )


def _sources(location: PluginLocation) -> Iterator[tuple[str, str]]:
    """(module name, source text) of every module in a location."""
    for place in location.search:
        try:
            yield from _folder_sources(place) if place.is_dir() else _archive_sources(place)
        except (OSError, zipfile.BadZipFile) as error:
            log.warning("plugin location cannot be read, ignoring it", location=str(place), reason=str(error))


def _folder_sources(folder: Path) -> Iterator[tuple[str, str]]:
    for file in sorted(folder.rglob("*.py")):
        name = _module_name(file.relative_to(folder).parts)
        if name is not None:
            yield name, file.read_bytes().decode("utf-8", errors="replace")


def _archive_sources(archive: Path) -> Iterator[tuple[str, str]]:
    with zipfile.ZipFile(archive) as opened:
        for entry in sorted(opened.namelist()):
            name = _module_name(tuple(entry.split("/"))) if entry.endswith(".py") else None
            if name is not None:
                yield name, opened.read(entry).decode("utf-8", errors="replace")


def _module_name(parts: tuple[str, ...]) -> str | None:
    names = [*parts[:-1], parts[-1].removesuffix(".py")]
    if any(not name.isidentifier() or name in _NOT_PLUGINS for name in names):
        return None
    if names[-1] == "__init__":
        names.pop()
    return ".".join(names) or None


def candidate_modules(sources: Iterable[tuple[str, str]]) -> list[str]:
    """The modules that import ``mm2``, and those that import such a module, in the order given."""
    imports = {name: _imports(name, text) for name, text in sources if "import" in text}
    wanted = {name for name, imported in imports.items() if any(_is_mm2(target) for target in imported)}
    while True:
        more = {name for name, imported in imports.items() if name not in wanted and not wanted.isdisjoint(imported)}
        if not more:
            return [name for name in imports if name in wanted]
        wanted |= more


def _is_mm2(target: str) -> bool:
    return target == "mm2" or target.startswith("mm2.")


def _imports(name: str, text: str) -> set[str]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return set()
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for base in _bases(name, node):
                found.add(base)
                found.update(f"{base}.{alias.name}" for alias in node.names)
    return found


def _bases(name: str, node: ast.ImportFrom) -> list[str]:
    if not node.level:
        return [node.module or ""]
    # A package cannot be distinguished from a module by its name, so both possibilities are candidates.
    parts = name.split(".")
    tail = [node.module] if node.module else []
    return [".".join([*parts[: len(parts) - up], *tail]) for up in (node.level, node.level - 1)]


def read_discovery(props: Mapping[str, object]) -> Discovery:
    """``plugin.discovery`` of a worker. Raises ConnectError."""
    text = str(props.get("plugin.discovery") or Discovery.HYBRID_WARN.value).strip().lower()
    try:
        return Discovery(text)
    except ValueError:
        known = ", ".join(mode.value for mode in Discovery)
        raise ConnectError(f"plugin.discovery is {text}; it must be one of {known}") from None
