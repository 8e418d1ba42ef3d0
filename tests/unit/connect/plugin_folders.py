"""Small plugin locations, for tests of discovery and isolation."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

CONVERTER = """
from mm2.connect.api import Converter, SchemaAndValue
import dep

class {name}(Converter):
    def version(self):
        return "{version}"

    def from_connect_data(self, topic, headers, schema, value):
        return dep.tell().encode()

    def to_connect_data(self, topic, headers, data):
        import dep.late
        return SchemaAndValue(None, dep.late.tell())
"""


def write_files(folder: Path, files: Mapping[str, str]) -> Path:
    """Write the files below ``folder``, by relative path; returns the folder."""
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


def write_archive(file: Path, files: Mapping[str, str]) -> Path:
    """The same as a zip file or wheel."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(file, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return file


def dependency(version: str) -> dict[str, str]:
    """A pure-Python package ``dep`` that returns its version, also from a module that is imported late, and its metadata."""
    return {
        "dep/__init__.py": "from dep.told import VERSION\n\ndef tell():\n    return 'dep ' + VERSION\n",
        "dep/told.py": f"VERSION = {version!r}\n",
        "dep/late.py": "from . import told\n\ndef tell():\n    return 'late ' + told.VERSION\n",
        f"dep-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: dep\nVersion: {version}\n",
    }


def entry_points(*paths: str) -> dict[str, str]:
    """The metadata of a distribution with plugin entry points."""
    lines = "".join(f"p{number} = {path}\n" for number, path in enumerate(paths))
    return {
        "acme-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n",
        "acme-1.0.dist-info/entry_points.txt": f"[mm2.plugins]\n{lines}",
    }
