"""`mm2 processes`: the processes of this user on this machine, and their REST interfaces."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from typing import Any

from mm2.cli.common.flow import EXIT_WELL
from mm2.cli.common.output import add_output, write_document
from mm2.cli.common.tables import table
from mm2.cli.common.verbs import examples
from mm2.connect.rest.local_processes import processes


def add(verbs: Any) -> None:
    """Declare the command and its arguments."""
    parser = verbs.add_parser(
        "processes",
        help="REST addresses of the processes on this machine",
        description="The MirrorMaker processes and Connect workers of this user on this machine, with the address of their REST "
        "interface. "
        "Exit code: 0.",
        epilog=examples(
            ("all processes", "mm2 processes"),
            ("the first address", "mm2 processes --json | jq -r '.processes[0].url'"),
        ),
    )
    add_output(parser)
    parser.set_defaults(run=run)


def run(options: Any) -> int:
    """Run the command; returns the exit code."""
    found = processes()
    if options.json:
        write_document(options, {"processes": [asdict(process) for process in found]}, ascii_only=True)
    elif found:
        rows = [
            (
                str(process.pid),
                time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(process.since_ms / 1000)),
                process.url,
                ", ".join(process.flows) or "-",
            )
            for process in found
        ]
        table(sys.stdout, ("PID", "SINCE", "REST", "FLOWS"), rows)
    else:
        sys.stdout.write("No process of yours has a REST interface on this machine.\n")
    return EXIT_WELL
