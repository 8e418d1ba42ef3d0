"""Find the Java that runs the brokers, and check its version."""

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from mm2.sandbox.errors import SandboxError

MINIMUM_JAVA = 17
"""Brokers of Kafka 4 need Java 17 (KIP-1013); so does PySpark 4."""


@cache
def java_executable() -> str:
    """Path of a supported `java`: that of `JAVA_HOME` if set, else the first on the `PATH`.

    Raises SandboxError when there is none or when it is older than MINIMUM_JAVA.
    """
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    wanted = f"install Java {MINIMUM_JAVA} or newer (on Debian: apt install openjdk-{MINIMUM_JAVA}-jre-headless)"
    if not found or not os.access(found, os.X_OK):
        where = f"JAVA_HOME is {home}, but {found} cannot be run" if home else "no java on the PATH"
        raise SandboxError(f"Java is missing ({where}): {wanted}.")
    output = subprocess.run([found, "-version"], capture_output=True, text=True, check=False).stderr
    version = java_version(output)
    if version is None:
        raise SandboxError(f"{found} does not print its version ({output.strip()[:200]!r}): {wanted}.")
    if version < MINIMUM_JAVA:
        raise SandboxError(f"{found} is Java {version}, too old: {wanted}.")
    return found


def java_version(output: str) -> int | None:
    """Major version in the output of `java -version`: `"17.0.15"` gives 17, the old form `"1.8.0_392"` gives 8."""
    found = re.search(r'version "(?:1\.)?(\d+)', output)
    return int(found[1]) if found else None
