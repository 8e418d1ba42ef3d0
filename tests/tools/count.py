"""Counts what a reader of the project has to read: `python -m tests.tools.count [REVISION …]`, by default of the work tree's HEAD.

Prints one table with a column for each revision. A line of code is neither empty, nor a comment, nor part of a docstring.
"""

from __future__ import annotations

import ast
import io
import statistics
import subprocess
import sys
import tarfile
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).parents[2]
_LONG_CLASS_LINES: Final = 400
_LAYOUT: Final = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def files_of(revision: str) -> dict[str, bytes]:
    """Contents of the files of a revision by path."""
    command = ["git", "-C", str(_ROOT), "archive", "--format=tar", revision]
    packed = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    found = {}
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isfile() else None
            if file is not None:
                found[member.name] = file.read()
    return found


def code_lines(source: bytes) -> int:
    """Lines with code."""
    lines = {
        line
        for token in tokenize.tokenize(io.BytesIO(source).readline)
        if token.type not in _LAYOUT
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(lines - docstring_lines(ast.parse(source)))


def docstring_lines(tree: ast.Module) -> set[int]:
    """Lines of docstrings, also of those of variables: strings that are statements."""
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def classes(tree: ast.Module) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def long_classes(tree: ast.Module) -> int:
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 > _LONG_CLASS_LINES for node in classes(tree))


def protocols(tree: ast.Module) -> int:
    return sum(
        any(ast.unparse(base).split("[")[0].endswith("Protocol") for base in node.bases) for node in classes(tree)
    )


def callbacks(tree: ast.Module) -> int:
    """Attributes `on_…` of classes: fields, and what methods assign to `self`. An attribute counts once for each class."""
    found = 0
    for kind in classes(tree):
        fields = {
            node.target.id
            for node in kind.body
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        }
        assigned = {
            node.attr
            for node in ast.walk(kind)
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"
        }
        found += sum(name.lstrip("_").startswith("on_") for name in fields | assigned)
    return found


def json_methods(tree: ast.Module) -> int:
    """Methods and functions that turn values into JSON or back, by their names: `to_json`, `from_json`, `as_json`, `of_json`, `_json`."""
    names = (node.name.lstrip("_") for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return sum(name in {"to_json", "from_json", "as_json", "of_json", "json"} for name in names)


def second_constants(tree: ast.Module) -> int:
    """Constants of modules whose names end with the unit of seconds."""
    targets: list[ast.expr] = [node.target for node in tree.body if isinstance(node, ast.AnnAssign)]
    targets += [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    return sum(isinstance(target, ast.Name) and target.id.isupper() and target.id.endswith("_S") for target in targets)


def counts(revision: str) -> dict[str, str]:
    """Each count with its value as text."""
    files = files_of(revision)
    sources = {path: data for path, data in files.items() if path.endswith(".py")}
    trees = {path: ast.parse(data) for path, data in sources.items() if path.startswith("mm2/")}
    folders = Counter(path.rpartition("/")[0] for path in files if path.startswith("mm2/"))
    documents = {path: len(data.split()) for path, data in files.items() if path.endswith(".md")}
    pages = {
        path: words for path, words in documents.items() if path != "CHANGELOG.md" and not path.startswith("bench/")
    }
    found = {
        f"code lines of {top}/": f"{sum(code_lines(data) for path, data in sources.items() if path.startswith(f'{top}/')):,}"
        for top in ("mm2", "tests", "bench")
    }
    found["docstring lines of mm2/"] = f"{sum(len(docstring_lines(tree)) for tree in trees.values()):,}"
    found["Python files of mm2/"] = str(len(trees))
    found["folders of mm2/"] = str(len(folders))
    found["files in a folder of mm2/: median"] = f"{statistics.median(folders.values()):g}"
    found["files in a folder of mm2/: maximum"] = f"{max(folders.values())} ({folders.most_common(1)[0][0]})"
    found["folders of mm2/ with more than 15 files"] = str(sum(count > 15 for count in folders.values()))
    found[f"classes above {_LONG_CLASS_LINES} lines"] = str(sum(map(long_classes, trees.values())))
    found["Protocols in mm2/copy/"] = str(
        sum(protocols(tree) for path, tree in trees.items() if path.startswith("mm2/copy/"))
    )
    found["on_… attributes in mm2/copy/"] = str(
        sum(callbacks(tree) for path, tree in trees.items() if path.startswith("mm2/copy/"))
    )
    found["on_… attributes"] = str(sum(map(callbacks, trees.values())))
    found["to and from JSON methods"] = str(sum(map(json_methods, trees.values())))
    found["…_S constants"] = str(sum(map(second_constants, trees.values())))
    found["words of pages (without CHANGELOG and bench)"] = f"{sum(pages.values()):,}"
    found["words of all Markdown files"] = f"{sum(documents.values()):,}"
    return found


def main(revisions: list[str]) -> int:
    """Print the table."""
    columns = [counts(revision) for revision in revisions]
    print("| count | " + " | ".join(revisions) + " |")
    print("| --- |" + " ---: |" * len(revisions))
    for name in columns[0]:
        print(f"| {name} | " + " | ".join(column[name] for column in columns) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["HEAD"]))
