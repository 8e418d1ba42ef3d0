"""`python -m mm2.sandbox`: download all files that the sandbox needs, so that later runs need no network, and create the
class archive of the broker."""

import sys

from mm2.sandbox import archive
from mm2.sandbox.errors import SandboxError


def main() -> int:
    try:
        archive.build()
    except SandboxError as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
