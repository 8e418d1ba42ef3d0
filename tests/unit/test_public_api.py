"""The public API equals the list in docs/how-to/plugins.md: each module exports exactly these names, with type annotations."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from types import FunctionType

import pytest

ROOT = Path(__file__).parents[2]


def documented() -> dict[str, set[str]]:
    """Names by module, from the table of docs/how-to/plugins.md; a module can have several rows."""
    page = (ROOT / "docs" / "how-to" / "plugins.md").read_text(encoding="utf-8")
    section = page.partition("\n## Public API\n")[2].partition("\n## ")[0]
    found: dict[str, set[str]] = {}
    for module, names in re.findall(r"^\| `(mm2[\w.]+)` \| (.+) \|$", section, re.MULTILINE):
        found.setdefault(module, set()).update(re.findall(r"`(\w+)`", names))
    return found


DOCUMENTED = documented()


def functions(exported: object) -> list[FunctionType]:
    """The function, or the methods that the class itself defines; without those that `dataclass` generates."""
    members = vars(exported).values() if inspect.isclass(exported) else [exported]
    unwrapped = [getattr(member, "fget", getattr(member, "__func__", member)) for member in members]
    written = [one for one in unwrapped if isinstance(one, FunctionType) and one.__name__ != "<lambda>"]
    return [function for function in written if Path(function.__code__.co_filename).is_relative_to(ROOT / "mm2")]


def test_all_modules_that_the_page_names_are_in_the_table() -> None:
    page = (ROOT / "docs" / "how-to" / "plugins.md").read_text(encoding="utf-8")
    imported = set(re.findall(r"^from (mm2[\w.]+) import", page, re.MULTILINE))
    assert imported <= set(DOCUMENTED)
    assert {"mm2.connect.api", "mm2.mirror.client"} <= set(DOCUMENTED)


@pytest.mark.parametrize("module", sorted(DOCUMENTED))
def test_exported_names_are_the_documented_ones(module: str) -> None:
    exported = importlib.import_module(module)
    assert sorted(exported.__all__) == sorted(DOCUMENTED[module])
    assert [name for name in exported.__all__ if not hasattr(exported, name)] == []


@pytest.mark.parametrize("module", sorted(DOCUMENTED))
def test_public_functions_and_methods_have_type_annotations(module: str) -> None:
    exported = importlib.import_module(module)
    untyped = [
        f"{name}: {function.__qualname__}"
        for name in exported.__all__
        for function in functions(getattr(exported, name))
        if "return" not in function.__annotations__
    ]
    assert untyped == []


def test_the_marker_for_type_checkers_is_shipped() -> None:
    assert (ROOT / "mm2" / "py.typed").is_file()
