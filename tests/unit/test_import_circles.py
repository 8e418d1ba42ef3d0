"""Modules do not import each other in a circle, also not through an import for type checkers."""

from __future__ import annotations

import graphlib

import grimp


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
