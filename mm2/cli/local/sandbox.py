"""`mm2 sandbox`: two Kafka clusters on this machine, to try things out."""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from mm2.cli.common.flow import EXIT_INTERRUPTED, CommandError
from mm2.cli.common.verbs import examples
from mm2.sandbox.errors import SandboxError
from mm2.sandbox.kafka import start_pair
from mm2.sandbox.samples import MIRROR_MAKER, flow_file

_CHECK_S: Final = 0.5


def add(verbs: Any) -> None:
    """Declare the command and its arguments."""
    parser = verbs.add_parser(
        "sandbox",
        help="two Kafka clusters on this machine, to try things out",
        description="Clusters to try a flow with.",
    )
    below = parser.add_subparsers(metavar="VERB", required=True)
    up = below.add_parser(
        "up",
        help="start two clusters, and run until Ctrl-C",
        description="Starts two Kafka clusters, A and B, of one broker each, and prints their addresses and a file for "
        "connect-mirror-maker. They are reachable from this machine only. Kafka is fetched the first time. Ctrl-C stops "
        "them and deletes their data, unless --folder is given. Exit code: 130 stopped, 2 they could not be started.",
        epilog=examples(
            ("two empty clusters", "mm2 sandbox up"),
            ("keep their data for the next time", "mm2 sandbox up --folder ./sandbox"),
        ),
    )
    up.add_argument(
        "--folder",
        metavar="FOLDER",
        type=Path,
        help="keep logs, data and the file here (default: a folder for temporary files)",
    )
    up.set_defaults(run=run)


def run(options: Any) -> int:
    """Run the command; returns the exit code. Raises CommandError."""
    # SIGTERM gets the same clean end as Ctrl-C, and a shell ignores SIGINT for background processes.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    with ExitStack() as stack:
        try:
            folder = options.folder
            if folder is None:
                folder = Path(
                    stack.enter_context(tempfile.TemporaryDirectory(prefix="mm2-sandbox-", ignore_cleanup_errors=True))
                )
            pair = stack.enter_context(start_pair(folder.absolute()))
            file = folder.absolute() / MIRROR_MAKER
            file.write_text(flow_file(*(kafka.bootstrap for kafka in pair)), encoding="utf-8")
            for kafka in pair:
                sys.stdout.write(f"{kafka.name}.bootstrap.servers = {kafka.bootstrap}\n")
            sys.stdout.write(f"A flow A->B: connect-mirror-maker {file} --clusters B\nCtrl-C stops both clusters.\n")
            sys.stdout.flush()
            while True:
                for kafka in pair:
                    kafka.check()
                time.sleep(_CHECK_S)
        except KeyboardInterrupt:
            return EXIT_INTERRUPTED
        except (SandboxError, OSError) as error:
            raise CommandError(str(error)) from error
