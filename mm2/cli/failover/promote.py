"""`mm2 promote`: make remote topics topics of the target."""

from __future__ import annotations

from typing import Any

from mm2.cli.common.flow import add_flow
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
from mm2.failover.promote import promote


def add(verbs: Any) -> None:
    """Declare the command and its arguments."""
    parser = verbs.add_parser(
        "promote",
        help="stop copying topics, so that applications can write to them",
        description="Makes remote topics writable for applications of the target: the flow stops copying them, also after"
        " a restart or when the source becomes available again. Groups are not changed (see mm2 failover). "
        "MirrorMaker does not copy WRITE permissions: principals that have them on the source are shown, and "
        "get them with --create-acls. A source that is available, or that a process of the flow reaches, is only left after a "
        "confirmation: on the terminal, or by --yes. " + EXIT_CODES,
        epilog=examples(
            ("preview", "mm2 promote mm2.properties 'A->B' --topic orders --dry-run"),
            ("with WRITE permissions", "mm2 promote mm2.properties 'A->B' --topic orders --create-acls"),
        ),
    )
    add_flow(parser, wide=True)
    add_choice(parser, groups=False)
    parser.add_argument(
        "--create-acls",
        action="store_true",
        help="allow principals that may write a topic on the source to write its remote topic",
    )
    add_leave_behind(parser)
    add_yes(parser)
    parser.set_defaults(run=run)


def run(options: Any) -> int:
    """Run the command; returns the exit code. Raises CommandError, ConfigException or KafkaFailure."""
    choice, config = choice_of(options), flow_of(options)
    return carried_out(
        lambda: promote(
            config,
            choice,
            confirmation(options),
            dry_run=options.dry_run,
            leave_behind=options.leave_behind,
            create_acls=options.create_acls,
        ),
        options,
    )
