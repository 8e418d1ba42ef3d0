"""`python -m mm2.sandbox`: download all files that the sandbox needs, so that later runs need no network."""

import sys

from mm2.sandbox.errors import SandboxError
from mm2.sandbox.jars import KAFKA, fetch
from mm2.sandbox.java import java_executable


def main() -> int:
    try:
        java_executable()
        fetch(KAFKA)
    except SandboxError as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
