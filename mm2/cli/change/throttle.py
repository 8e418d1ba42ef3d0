"""`mm2 throttle`: change the limits of a running flow without a restart. They apply until they are changed or reset."""

from __future__ import annotations

import re
import sys
from typing import Any, Final

from mm2.cli.common.flow import EXIT_WELL, CommandError, ConfiguredFlow, add_flow
from mm2.cli.common.output import write_document
from mm2.cli.common.tables import number
from mm2.cli.common.verbs import examples
from mm2.copy.progress.ledger import throttle_record
from mm2.kafka.errors import KafkaFailure
from mm2.mirror.common.clients import MirrorClients, Side
from mm2.mirror.common.discovery import vanished
from mm2.mirror.notes.ledgers import write_to_ledger
from mm2.mirror.source_connector import topic_selection

_SIZE: Final = re.compile(r"(\d+)\s*(|k|m|g)b?", re.IGNORECASE)
_FACTOR: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}


def bytes_per_sec(text: str) -> int:
    """Parse ``250000``, ``250k``, ``10MB``; ``none`` = 0. Raises CommandError."""
    if text.strip().lower() == "none":
        return 0
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise CommandError(
            f"{text!r} is not a number of bytes per second; write for instance 500000, 500k, 20MB or none."
        )
    return int(match[1]) * _FACTOR[match[2].lower()]


def add(verbs: Any) -> None:
    """Declare the command and its arguments."""
    parser = verbs.add_parser(
        "throttle",
        help="limit a running flow, or one of its topics, in bytes per second",
        description="Shows the limits set by this command; with LIMIT, sets one for the flow or with --topic for a topic;"
        " --reset returns to the limits of the properties file. Running tasks apply it within seconds. A limit is kept in the "
        "flow's ledger until it is changed or reset, also across restarts. Exit code: 0 done, 2 the command failed.",
        epilog=examples(
            ("current limits", "mm2 throttle mm2.properties 'A->B'"),
            ("20 MB a second for the flow", "mm2 throttle mm2.properties 'A->B' 20MB"),
            ("one topic", "mm2 throttle mm2.properties 'A->B' 500k --topic orders"),
            ("back to the limits of the file", "mm2 throttle mm2.properties 'A->B' --reset"),
        ),
    )
    add_flow(parser)
    parser.add_argument(
        "limit", metavar="LIMIT", nargs="?", help="bytes per second: 500000, 500k, 20MB, or none for no limit"
    )
    parser.add_argument("--topic", metavar="T", default="", help="a topic of the source instead of the whole flow")
    parser.add_argument("--reset", action="store_true", help="forget the limit that was set by this command")
    parser.set_defaults(run=run)


def run(options: Any) -> int:
    """Run the command; returns the exit code. Raises CommandError, ConfigException or KafkaFailure."""
    if options.limit is not None and options.reset:
        raise CommandError("Use a limit or --reset, not both.")
    limit = None if options.limit is None else bytes_per_sec(options.limit)
    flow = ConfiguredFlow.of(options.config, options.flow)
    ledger = flow.ledger()
    is_known = options.topic in {"", *ledger.throttles()} or any(
        tp.topic == options.topic for tp in ledger.partitions()
    )
    if not is_known and not _exists(flow, options.topic):
        raise CommandError(
            f"Cluster {flow.pair.source} has no topic {options.topic}, and the ledger of {flow.pair} does not contain it."
        )
    if not is_known and not topic_selection(flow.props).should_replicate(options.topic):
        raise CommandError(f"{flow.pair} does not copy {options.topic}: topics and topics.exclude do not select it.")
    if limit is not None or options.reset:
        record = throttle_record(options.topic, limit)
        write_to_ledger(MirrorClients(flow.props), [record])
        ledger.apply(record.key, record.value)
    limits = ledger.throttles()
    if options.json:
        write_document(options, {"flow": str(flow.pair), "bytes.per.sec": limits}, ascii_only=True)
        return EXIT_WELL
    for topic, limit in sorted(limits.items()):
        shown = "no limit" if not limit else f"{number(limit)} bytes/s"
        sys.stdout.write(f"{topic or f'{flow.pair}, all topics together'}: {shown}\n")
    if not limits:
        sys.stdout.write(f"{flow.pair}: as in the properties file\n")
    return EXIT_WELL


def _exists(flow: ConfiguredFlow, topic: str) -> bool:
    """Whether the source has the topic, which may not be copied yet. Raises KafkaFailure."""
    with flow.cluster(Side.SOURCE) as admin:
        found = admin.describe_topics([topic])[topic]
    if isinstance(found, KafkaFailure) and not vanished(found):
        raise found
    return not isinstance(found, KafkaFailure)
