"""`mm2 failback`: the source of a flow that was failed over is available again."""

from __future__ import annotations

from typing import Any, Final

from mm2.cli.evidence import EXIT_CODES, add_choice, carried_out, choice_of, flow_of
from mm2.cli.flow import CommandError, add_flow
from mm2.cli.verbs import examples
from mm2.failover.failback import FailbackOptions, failback

_REPORT: Final = "report"
_KEEP: Final = "keep"
_TRUNCATE: Final = "truncate"


def add(verbs: Any) -> None:
    """Declare the command and its arguments."""
    parser = verbs.add_parser(
        "failback",
        help="turn a flow back whose source is there again",
        description="The source of a flow that was failed over is there again. What is on it only is shown range by range. Under "
        "names that tell where a topic came from, the flow then goes on. Under identity naming the flow the other way takes the "
        "topics over, from the first offset that did not come from the source, so that nothing is copied twice; applications go "
        "home by mm2 failover of that flow. " + EXIT_CODES,
        epilog=examples(
            ("look first", "mm2 failback mm2.properties 'A->B' --dry-run"),
            ("nothing is on the source only", "mm2 failback mm2.properties 'A->B'"),
            ("go on although something is", "mm2 failback mm2.properties 'A->B' --divergent keep"),
            ("then, applications stopped, go home", "mm2 failover mm2.properties 'B->A' --wait 60"),
        ),
    )
    add_flow(parser)
    add_choice(parser, groups=False)
    parser.add_argument(
        "--divergent",
        choices=(_REPORT, _KEEP, _TRUNCATE),
        default=_REPORT,
        help="where records are on the source only: report changes nothing (default), keep goes on and leaves them where they "
        "are, truncate is what Kafka cannot do",
    )
    parser.set_defaults(run=run)


def run(options: Any) -> int:
    """Run the command; returns the exit code. Raises CommandError, ConfigException or KafkaFailure."""
    if options.divergent == _TRUNCATE:
        raise CommandError(
            "A log cannot be cut off at its end: DeleteRecords takes away what is before an offset, so it would take what was "
            "copied and leave what was not. Say --divergent keep, or delete the topic on the source by hand."
        )
    wanted = FailbackOptions(choice_of(options), options.dry_run, options.divergent == _KEEP)
    config, reverse = flow_of(options), flow_of(options, reverse=True)
    return carried_out(lambda: failback(config, reverse, wanted), options)
