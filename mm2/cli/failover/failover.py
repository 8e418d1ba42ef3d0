"""`mm2 failover`: move applications from the source of a flow to its target."""

from __future__ import annotations

from typing import Any

from mm2.cli.common.flow import CommandError, add_flow
from mm2.cli.common.verbs import examples
from mm2.cli.failover.evidence import (
    EXIT_CODES,
    add_choice,
    add_leave_behind,
    add_yes,
    carried_out,
    choice_of,
    confirmation,
    flow_of,
)
from mm2.failover.failover import FailoverOptions, failover


def add(verbs: Any) -> None:
    """Declare the command and its arguments."""
    parser = verbs.add_parser(
        "failover",
        help="fail over topics and consumer groups to the target",
        description="Moves applications from the source of a flow to its target. The flow stops copying the topics, also "
        "after a restart or when the source becomes available again. Then the offsets of every group are "
        "committed on the target: translated from the offsets on the source, or from its last checkpoints if "
        "the source is unavailable. No group is set back, active groups are not changed, and the result is "
        "read back. A source that is available is only left with --wait or --leave-behind, and only after a "
        "confirmation: on the terminal, or by --yes. One that does not answer this machine is only left after a confirmation if a "
        "process of the flow reaches it. " + EXIT_CODES,
        epilog=examples(
            ("always first: show what would be done", "mm2 failover mm2.properties 'A->B' --dry-run"),
            ("the source is unavailable: do it", "mm2 failover mm2.properties 'A->B'"),
            ("planned: producers are stopped, no data loss", "mm2 failover mm2.properties 'A->B' --wait 60"),
            ("the same in a script", "mm2 failover mm2.properties 'A->B' --wait 60 --yes"),
            (
                "preview of some topics and groups",
                "mm2 failover mm2.properties 'A->B' --topic 'orders.*' --group billing --dry-run",
            ),
        ),
    )
    add_flow(parser, wide=True)
    add_choice(parser, groups=True)
    parser.add_argument(
        "--wait",
        metavar="SECONDS",
        type=float,
        help="how long to wait until all records are on the target; stop the producers first",
    )
    add_leave_behind(parser)
    add_yes(parser)
    parser.set_defaults(run=run)


def run(options: Any) -> int:
    """Run the command; returns the exit code. Raises CommandError, ConfigException or KafkaFailure."""
    if options.wait is not None and not options.wait >= 0:
        raise CommandError(f"--wait {options.wait:g} is not a number of seconds.")
    wanted = FailoverOptions(choice_of(options), options.dry_run, options.wait, options.leave_behind)
    config = flow_of(options)
    return carried_out(lambda: failover(config, wanted, confirmation(options)), options)
