"""`mm2 failback`: the source of a flow that was failed over is available again."""

from __future__ import annotations

from typing import Any, Final

from mm2.cli.common.flow import CommandError, add_flow
from mm2.cli.common.verbs import examples
from mm2.cli.failover.evidence import EXIT_CODES, add_choice, carried_out, choice_of, flow_of
from mm2.failover.failback import FailbackOptions, failback

_REPORT: Final = "report"
_KEEP: Final = "keep"
_TRUNCATE: Final = "truncate"


def add(verbs: Any) -> None:
    """Declare the command and its arguments."""
    parser = verbs.add_parser(
        "failback",
        help="continue a flow after a failover",
        description="Continues a flow after a failover when its source is available again. Records that are only on the "
        "source are shown by range. With a replication policy whose names contain the source, the flow then "
        "continues. With identity naming the reverse flow takes over the topics, from the first offset that "
        "did not come from the source, so that nothing is copied twice; move applications back with mm2 "
        "failover of that flow. " + EXIT_CODES,
        epilog=examples(
            ("look first", "mm2 failback mm2.properties 'A->B' --dry-run"),
            ("no records are on the source only", "mm2 failback mm2.properties 'A->B'"),
            ("continue although the source has such records", "mm2 failback mm2.properties 'A->B' --divergent keep"),
            ("then stop the applications and move back", "mm2 failover mm2.properties 'B->A' --wait 60"),
        ),
    )
    add_flow(parser, wide=True)
    add_choice(parser, groups=False)
    parser.add_argument(
        "--divergent",
        choices=(_REPORT, _KEEP, _TRUNCATE),
        default=_REPORT,
        help="if records are on the source only: report (default) changes nothing; keep continues: with default naming the flow "
        "then copies these records, with identity naming they stay on the source; truncate is not possible in Kafka",
    )
    parser.set_defaults(run=run)


def run(options: Any) -> int:
    """Run the command; returns the exit code. Raises CommandError, ConfigException or KafkaFailure."""
    if options.divergent == _TRUNCATE:
        raise CommandError(
            "The end of a log cannot be truncated: DeleteRecords deletes the records before an offset, which would be those "
            "that were copied. Use --divergent keep, or delete the topic on the source."
        )
    wanted = FailbackOptions(choice_of(options), options.dry_run, options.divergent == _KEEP)
    config, reverse = flow_of(options), flow_of(options, reverse=True)
    return carried_out(lambda: failback(config, reverse, wanted), options)
