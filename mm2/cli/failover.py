"""`mm2 failover`: move applications from the source of a flow to its target."""

from __future__ import annotations

from typing import Any

from mm2.cli.evidence import EXIT_CODES, add_choice, add_leave_behind, carried_out, choice_of, flow_of
from mm2.cli.flow import CommandError, add_flow
from mm2.cli.verbs import examples
from mm2.failover.failover import FailoverOptions, failover


def add(verbs: Any) -> None:
    """Declare the command and its arguments."""
    parser = verbs.add_parser(
        "failover",
        help="hand topics over to the target, and move consumer groups there",
        description="Applications leave the source of a flow for its target. The flow copies no more of the topics, also when the "
        "source comes back or a process is started again; then every group gets its place on the target: as the source tells "
        "its offsets, or its last checkpoints when the source is gone, translated anew with all that is known. No group is "
        "rewound, none in use is touched, and what was written is read back. A source that answers and has records that are "
        "not on the target is left only with --wait or --leave-behind. " + EXIT_CODES,
        epilog=examples(
            ("the source is gone: look first", "mm2 failover mm2.properties 'A->B' --dry-run"),
            ("then do it", "mm2 failover mm2.properties 'A->B'"),
            ("planned: writers are stopped, nothing is to be lost", "mm2 failover mm2.properties 'A->B' --wait 60"),
            ("some topics and groups", "mm2 failover mm2.properties 'A->B' --topic 'orders.*' --group billing"),
        ),
    )
    add_flow(parser)
    add_choice(parser, groups=True)
    parser.add_argument(
        "--wait",
        metavar="SECONDS",
        type=float,
        help="wait so long for everything to be on the target; stop writers first",
    )
    add_leave_behind(parser)
    parser.set_defaults(run=run)


def run(options: Any) -> int:
    """Run the command; returns the exit code. Raises CommandError, ConfigException or KafkaFailure."""
    if options.wait is not None and not options.wait >= 0:
        raise CommandError(f"--wait {options.wait:g} is no number of seconds.")
    wanted = FailoverOptions(choice_of(options), options.dry_run, options.wait, options.leave_behind)
    config = flow_of(options)
    return carried_out(lambda: failover(config, wanted), options)
