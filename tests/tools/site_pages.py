"""Hook of mkdocs (mkdocs.yml): Markdown as GitHub renders it becomes Markdown as Python-Markdown renders it."""

from __future__ import annotations

import posixpath
import re
from typing import Any, Final

_FENCE: Final = re.compile(r"^( *)```(\w*)")
_LINK: Final = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s#]+)(#[^)\s]*)?\)")

_SECTIONS: Final = ("Tutorials", "How to", "Reference", "Explanation")


def on_nav(nav: Any, **_: Any) -> Any:
    """Called by mkdocs: the folders in the order of a reader, after the first page."""
    nav.items.sort(key=lambda item: _SECTIONS.index(item.title) if item.is_section else -1)
    return nav


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Called by mkdocs for each page."""
    return "\n".join(_indented(markdown.split("\n"), posixpath.dirname(page.file.src_uri)))


def _indented(lines: list[str], folder: str) -> list[str]:
    """Content of lists by four columns, which Python-Markdown needs; blocks of code without their marks for tests."""
    found: list[str] = []
    base: int | None = None  # columns of the fence that is open
    for line in lines:
        columns = len(line) - len(line.lstrip(" "))
        fence = _FENCE.match(line)
        if base is not None:
            found.append(" " * _wide(base) + line[min(base, columns) :])
            base = None if fence else base
        elif fence:
            base = columns
            found.append(f"{' ' * _wide(columns)}```{fence[2]}")
        else:
            found.append(" " * _wide(columns) + _LINK.sub(lambda link: _within(link, folder), line[columns:]))
    return found


def _wide(columns: int) -> int:
    return 4 * round(columns / 3)


def _within(link: re.Match[str], folder: str) -> str:
    """The link, or only its text if it leads to a file of the repository that is not a part of the site."""
    target = link[2]
    outside = "://" not in target and posixpath.normpath(posixpath.join(folder, target)).startswith("..")
    return link[1] if outside else link[0]
