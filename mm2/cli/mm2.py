"""mm2: status and control of replication, one command each.

Exit codes, as in diff: 0 healthy, 1 unhealthy, 2 error.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import argcomplete

from mm2 import __version__
from mm2.cli import demo
from mm2.cli.change import accept_source, control, offsets, throttle
from mm2.cli.common.colours import colour_states
from mm2.cli.common.flow import EXIT_ERROR, EXIT_INTERRUPTED, CommandError
from mm2.cli.common.option_sources import origins_in
from mm2.cli.common.terminal import terminal_output, with_controls
from mm2.cli.common.verbs import VerbParser
from mm2.cli.failover import failback, failover, promote
from mm2.cli.local import completion, hash_password, local_access, sandbox
from mm2.cli.logs import configure_logging
from mm2.cli.show import client, config, gaps, groups, heartbeats, lag, plan, processes, status, topics, verify, version
from mm2.config.configdef import ConfigException
from mm2.config.files.provider_values import hide_known
from mm2.connect.api import ConnectError
from mm2.kafka.errors import KafkaFailure


def parser() -> Any:
    """The command line."""
    made = VerbParser(
        prog="mm2",
        description="Shows and controls replication flows. Exit codes, unless a verb documents others: 0 healthy, 1 not "
        "healthy, 2 the command failed. The environment variable MM2_FILE, or `file` in ~/.config/mm2.conf, has "
        "the default of the properties file.",
    )
    made.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    verbs = made.add_subparsers(metavar="VERB", required=True)
    for verb in (
        accept_source,
        client,
        completion,
        config,
        control,
        demo,
        failback,
        failover,
        gaps,
        groups,
        hash_password,
        heartbeats,
        lag,
        local_access,
        offsets,
        plan,
        processes,
        promote,
        sandbox,
        status,
        throttle,
        topics,
        verify,
        version,
    ):
        verb.add(verbs)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    command_line = parser()
    argcomplete.autocomplete(command_line)  # ends the process if a shell requests completions
    with terminal_output():
        options = command_line.parse_args(arguments)
        colour_states(sys.stdout, options)
        configure_logging("console", "error", stream=with_controls(sys.stderr))
        return _run(options)


def _run(options: Any) -> int:
    try:
        code = int(options.run(options))
        sys.stdout.flush()
    except (CommandError, ConfigException, ConnectError, KafkaFailure) as error:
        sys.stderr.write(f"mm2: {hide_known(str(error))}{origins_in(options, str(error))}\n")
        return EXIT_ERROR
    except BrokenPipeError:
        # The reader of the pipe has closed it, as head does. The rest of the buffer cannot be flushed at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _code_in_doubt(options)
    except KeyboardInterrupt as interrupt:
        sys.stderr.write(f"mm2: interrupted{f': {interrupt}' if str(interrupt) else ''}\n")
        return EXIT_INTERRUPTED
    except Exception:  # noqa: BLE001 - Python's own exit code, 1, would be a result, such as "they differ"
        sys.stderr.write(hide_known(traceback.format_exc()))
        return _code_in_doubt(options)
    return code


def _code_in_doubt(options: Any) -> int:
    """The exit code if it is not known how far a verb has come. With some verbs, code 2 promises that nothing was changed."""
    return int(getattr(options, "code_in_doubt", EXIT_ERROR))


if __name__ == "__main__":
    sys.exit(main())
