"""Folders are small, and modules and folders do not import each other in a circle, also not through an import for type checkers."""

from __future__ import annotations

import graphlib
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[2] / "mm2"


def circle_of(imports: dict[str, set[str]]) -> list[str]:
    """The modules of one cycle; empty without one."""
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


def test_an_import_cycle_is_found() -> None:
    assert set(circle_of({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})) == {"a", "b", "c"}
    assert circle_of({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_there_is_no_import_cycle() -> None:
    graph = grimp.build_graph("mm2", cache_dir=None)
    imports = {module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules}
    assert circle_of(imports) == []


def folders() -> dict[str, list[str]]:
    """Files by folder of mm2."""
    tracked = [path for path in sorted(ROOT.rglob("*")) if path.is_file() and path.suffix != ".pyc"]
    found: dict[str, list[str]] = {}
    for path in tracked:
        found.setdefault(str(path.parent.relative_to(ROOT)), []).append(path.name)
    return found


def test_folders_have_few_files_and_none_has_one() -> None:
    """The listing of a folder is its map: a newcomer reads at most fifteen names."""
    assert {folder: len(files) for folder, files in folders().items() if len(files) > 15} == {}
    assert [folder for folder, files in folders().items() if len(files) == 1] == []


def folder_imports(imports: dict[str, set[str]]) -> dict[str, dict[str, set[str]]]:
    """For each folder, which of its modules and folders imports which."""
    found: dict[str, dict[str, set[str]]] = {}
    for importer, imported in imports.items():
        for module in imported:
            ours, theirs = importer.split("."), module.split(".")
            same = next((at for at, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
            if same is not None:  # otherwise one is the package of the other
                found.setdefault(".".join(ours[:same]), {}).setdefault(ours[same], set()).add(theirs[same])
    return found


def test_a_cycle_of_folders_is_found() -> None:
    found = folder_imports({"p.a.x": {"p.b.x"}, "p.b.y": {"p.a.y"}, "p.b.x": {"p.b.y"}})
    assert circle_of(found["p"])
    assert circle_of(found["p.b"]) == []


def test_there_is_no_cycle_of_folders() -> None:
    graph = grimp.build_graph("mm2", cache_dir=None)
    imports = {module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules}
    circles = {folder: circle_of(inside) for folder, inside in folder_imports(imports).items()}
    assert {folder: circle for folder, circle in circles.items() if circle} == {}
