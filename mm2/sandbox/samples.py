"""The sample files of this project: `conf/` of the repository, or `share/mm2/conf` of an installed wheel."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import mm2
from mm2.sandbox.errors import SandboxError

MIRROR_MAKER: Final = "connect-mirror-maker.properties"
_FOLDERS: Final = (Path(mm2.__file__).parents[1] / "conf", Path(sys.prefix) / "share" / "mm2" / "conf")


def sample(name: str) -> str:
    """The content of a sample file. Raises SandboxError if it is missing."""
    for folder in _FOLDERS:
        file = folder / name
        if file.is_file():
            return file.read_text(encoding="utf-8")
    raise SandboxError(f"The sample file {name} is missing in {' and in '.join(map(str, _FOLDERS))}.")


def flow_file(source: str, target: str, *lines: str) -> str:
    """The sample file of MirrorMaker with the addresses of clusters A and B, and further lines.

    The last value of a key in a properties file applies, so the sample is used unchanged.
    """
    added = (f"A.bootstrap.servers = {source}", f"B.bootstrap.servers = {target}", *lines)
    return f"{sample(MIRROR_MAKER)}\n# The brokers of the sandbox.\n" + "".join(f"{line}\n" for line in added)
