"""Writes what Spark's executors need of Python as an archive for `spark.archives`: this project and its packages, without Spark's jars.

    .venv/bin/python tests/tools/executor_archive.py dist/mm2-….whl dist

The packages are those of the image, as they are installed here. The file can be unpacked anywhere: it has no absolute path and no
interpreter. It fits Python's minor version and processor, which its name states. The same inputs and SOURCE_DATE_EPOCH give the same bytes.
"""

from __future__ import annotations

import gzip
import importlib.metadata
import io
import os
import platform
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
#: Executors on a cluster have the jars of that cluster's Spark; the dashboard is in the driver. Without both, 650 MB become 150.
_LEFT_OUT: Final = ("pyspark/jars/", "pyspark/examples/", "nicegui/static/", "nicegui/elements/")


def contents(wheel: Path) -> Iterator[tuple[str, bytes]]:
    """Name and content of each file."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if ".data/" not in name and not name.endswith("/"):
                yield name, archive.read(name)
    names = (ROOT / "conf" / "docker" / "packages.txt").read_text().splitlines()
    for package in names:
        if package.startswith("#") or package == "setuptools":
            continue
        for file in importlib.metadata.distribution(package).files or ():
            name = file.as_posix()
            # Scripts have the path of this environment; what pip and Python have written at the installation differs.
            is_written = name.endswith((".pyc", "/INSTALLER", "/RECORD", "/REQUESTED", "/direct_url.json"))
            if not (name.startswith(("..", *_LEFT_OUT)) or is_written):
                yield name, Path(str(file.locate())).read_bytes()


def write(wheel: Path, folder: Path) -> Path:
    """Write the archive; returns its path."""
    version = wheel.name.split("-")[1]
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}-{sys.platform}_{platform.machine()}"
    target = folder / f"mm2-{version}-executor-{tag}.tar.gz"
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    with (
        target.open("wb") as file,
        gzip.GzipFile("", "wb", 6, file, epoch) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for name, content in sorted(contents(wheel)):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = len(content), epoch, 0o644
            archive.addfile(entry, io.BytesIO(content))
    return target


if __name__ == "__main__":
    made = write(Path(sys.argv[1]), Path(sys.argv[2]))
    print(f"{made.name}: {made.stat().st_size / 1e6:.0f} MB", file=sys.stderr)
