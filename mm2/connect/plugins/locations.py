"""The plugin locations that ``plugin.path`` names (Java's ``PluginUtils.pluginLocations``).

An entry is an archive (``.whl`` or ``.zip``), which is one plugin location, or a folder. In a folder, every child that
is an archive, or a folder that contains modules, packages, archives or ``*.dist-info``, is one plugin location. A
folder that itself contains modules, packages or ``*.dist-info``, as created by ``pip install --target``, is one
location as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

log = structlog.get_logger(__name__)

MANIFEST: Final = "mm2-plugins.txt"
"""File in a plugin location that names its plugins, one dotted path per line, where there is no ``*.dist-info``."""
_ARCHIVES: Final = frozenset({".whl", ".zip"})


@dataclass(frozen=True)
class PluginLocation:
    """One plugin location and the parts of it that are searched for modules."""

    path: Path
    search: tuple[Path, ...]


def plugin_locations(entries: Iterable[str]) -> list[PluginLocation]:
    """The locations of all entries of ``plugin.path``; an entry that cannot be read is logged and skipped."""
    found: dict[Path, PluginLocation] = {}
    for entry in entries:
        try:
            for location in _locations(Path(entry).absolute()):
                found.setdefault(location.path, location)
        except OSError as error:
            log.warning("plugin path entry cannot be read and is ignored", entry=entry, reason=str(error))
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
