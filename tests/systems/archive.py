"""The class archive (AppCDS) of Java's Connect workers in tests: `python -m tests.systems.archive`, run by bin/test.

It is valid for one Java and these jars at this path; otherwise Java ignores it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from mm2.sandbox.errors import SandboxError
from mm2.sandbox.jars import class_archive, fetch
from mm2.sandbox.kafka import LocalKafka
from tests.support.java import CONNECT_FILE, CONNECT_MIRROR
from tests.systems.workers import JavaDistributedWorker, distributed_props

_EXIT_S = 120.0


def build() -> None:
    """Create the archive unless it exists: Java archives the classes that a worker has loaded. Raises SandboxError."""
    target = class_archive(CONNECT_MIRROR)
    if target.exists():
        return
    for jars in (CONNECT_MIRROR, CONNECT_FILE):
        fetch(jars)
    with (
        tempfile.TemporaryDirectory(dir=target.parent) as folder,
        LocalKafka("archive", Path(folder) / "broker") as broker,
    ):
        scratch = Path(folder) / target.name
        worker = JavaDistributedWorker(Path(folder) / "worker", distributed_props(broker.bootstrap, "archive"))
        worker.jvm_options = (f"-XX:ArchiveClassesAtExit={scratch}",)
        worker.start()
        worker.stop(_EXIT_S)
        if not scratch.exists():
            raise SandboxError(f"Java did not write {target.name}.\n{worker.tail()}")
        scratch.rename(target)


if __name__ == "__main__":
    try:
        build()
    except SandboxError as error:
        sys.exit(str(error))
