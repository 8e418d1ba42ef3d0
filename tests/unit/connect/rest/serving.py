"""A program that serves the REST interface of a toy herder: ``python -m tests.unit.connect.rest.serving '{"key":"value"}'``.

It prints the port, and ends at the end of its input.
"""

from __future__ import annotations

import json
import sys

from mm2.allocator import use_one_arena
from mm2.cli.logs import configure_logging
from tests.unit.connect.rest.conftest import starting

if __name__ == "__main__":
    use_one_arena()
    configure_logging("text", "ERROR")
    with starting() as make:
        sys.stdout.write(f"{make(json.loads(sys.argv[1])).port}\n")
        sys.stdout.flush()
        sys.stdin.read()
