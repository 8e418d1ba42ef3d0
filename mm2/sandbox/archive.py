"""The class archive (AppCDS) of the broker's JVM, created by `python -m mm2.sandbox`.

Half of a broker's start time is spent on finding, parsing and verifying its classes, which the archive contains. It is
valid for one Java and these jars at this path; otherwise Java ignores it.
"""

import tempfile
from pathlib import Path

from mm2.sandbox.errors import SandboxError
from mm2.sandbox.jars import KAFKA, class_archive, fetch
from mm2.sandbox.kafka import LocalKafka

_EXIT_S = 120.0


def build() -> None:
    """Create the archive unless it exists: Java archives the classes that a broker has loaded. Raises SandboxError."""
    target = class_archive(KAFKA)
    if target.exists():
        return
    fetch(KAFKA)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        scratch = Path(folder) / target.name
        broker = LocalKafka("archive", Path(folder) / "broker", jvm_options=[f"-XX:ArchiveClassesAtExit={scratch}"])
        broker.start()
        broker.stop(_EXIT_S)
        if not scratch.exists():
            raise SandboxError(f"Java did not write {target.name}.\n{broker.log_tail()}")
        scratch.rename(target)
