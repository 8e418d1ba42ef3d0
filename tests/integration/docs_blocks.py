"""The code blocks of the documentation, and which of them can be run here.

docs/explanation/testing.md, "tests/integration/deployment/test_docs.py", documents the marks after the opening ```.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))

_FENCE: Final = re.compile(r"^( *)```(.*)$")
_SHELLS: Final = ("sh", "console", "bash")
#: Programs of this project, and clients of its REST interface; other programs are not run.
_OURS: Final = re.compile(r"(bin/)?(mm2|mm2-health|demo|connect-[a-z]+|curl)$")


@dataclass(frozen=True)
class Block:
    """One code block. ``marks``: the words after its language."""

    page: Path
    line: int
    language: str
    marks: frozenset[str]
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def is_shell(self) -> bool:
        return self.language in _SHELLS

    def commands(self) -> list[str]:
        """Its lines without comments and prompts, continued ones joined; of a console only the input."""
        lines = self.text.replace("\\\n", " ").splitlines()
        if self.language == "console":
            lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        found = [" ".join(shlex.split(line, comments=True, posix=False)) for line in lines if line.strip()]
        return [line for line in found if line]

    def runnable(self) -> list[str]:
        """Our commands that can be run beside a running flow."""
        if not self.is_shell or self.marks & {"elsewhere", "stays"}:
            return []
        return [command for command in self.commands() if _OURS.match(command.split()[0])]


def blocks() -> list[Block]:
    """The code blocks of all pages, in order."""
    return [block for page in PAGES for block in _blocks_of(page)]


def _blocks_of(page: Path) -> list[Block]:
    found: list[Block] = []
    begin: tuple[int, str, str] | None = None
    body: list[str] = []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fence = _FENCE.match(line)
        if fence and begin is None:
            begin, body = (number, fence[1], fence[2].strip()), []
        elif fence and begin is not None:
            language, *marks = begin[2].split() or [""]
            text = "\n".join(text.removeprefix(begin[1]) for text in body)
            found.append(Block(page, begin[0], language, frozenset(marks), text))
            begin = None
        else:
            body.append(line)
    assert begin is None, f"{page}:{begin} is never closed"
    return found
