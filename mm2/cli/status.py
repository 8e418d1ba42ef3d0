"""`mm2 status`: how far each partition of a flow has been copied, from the ledger and the source's ends."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TextIO

from mm2.cli.flow import EXIT_NOT_WELL, EXIT_WELL, Flow, add_flow, number, table
from mm2.copy.session import Entry
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.structs import LATEST, OffsetInfo, TopicPartition
from mm2.mirror.clients import Side


@dataclass(frozen=True)
class PartitionStatus:
    """One partition; ``end`` is the next offset that the source will give away, None when it could not be asked.

    ``rate`` is bytes per second lately.
    """

    entry: Entry
    end: int | None
    rate: int

    @property
    def lag(self) -> int | None:
        """Source offsets still to be copied; None while it is not known."""
        position = self.entry.mark.source
        return None if self.end is None or position < 0 else max(0, self.end - position)

    def to_json(self) -> dict[str, Any]:
        entry = self.entry
        session = None
        if entry.session is not None:
            session = {
                "producer_id": entry.session.producer.producer_id,
                "producer_epoch": entry.session.producer.producer_epoch,
                "start": {"source": entry.session.start.source, "target": entry.session.start.target},
                "records": entry.mark.records,
            }
        return {
            "topic": entry.topic,
            "partition": entry.partition,
            "remote_topic": entry.remote_topic,
            "position": _known(entry.mark.source),
            "source_end": self.end,
            "lag": self.lag,
            "target_offset": _known(entry.mark.target),
            "bytes_per_s": self.rate,
            "foreign_records": entry.foreign,
            "session": session,
            "trouble": None if entry.trouble is None else entry.trouble._asdict(),
            "note": entry.note,
        }


def add(verbs: Any) -> None:
    """The verb's own arguments."""
    parser = verbs.add_parser(
        "status",
        help="how far each partition of a flow has been copied",
        description="How far each partition of a flow has been copied. Exit code: 0 answered in full, 1 a partition does "
        "not go on or the source could not say where it ends, 2 the question could not be answered.",
    )
    add_flow(parser)
    parser.set_defaults(run=run)


def run(options: Any) -> int:
    """Exit code. Raises Trouble, ConfigException or KafkaFailure."""
    flow = Flow.of(options.config, options.flow)
    ledger = flow.ledger()
    entries = [entry for source in ledger.partitions() if (entry := ledger.entry(source)) is not None]
    ends, trouble = ends_of(flow, [entry.source for entry in entries])
    rates = ledger.rates()
    rows = [PartitionStatus(entry, ends.get(entry.source), int(rates.get(entry.source, 0))) for entry in entries]
    if options.json:
        document = {"flow": str(flow.pair), "partitions": [row.to_json() for row in rows], "trouble": trouble}
        sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    else:
        _tell(sys.stdout, flow, rows)
    for sentence in trouble:
        sys.stderr.write(f"mm2: {sentence}\n")
    return EXIT_NOT_WELL if trouble or any(row.entry.trouble for row in rows) else EXIT_WELL


def ends_of(flow: Flow, sources: Iterable[TopicPartition]) -> tuple[Mapping[TopicPartition, int], list[str]]:
    """Where partitions of the source end, and what kept others from being known."""
    wanted = dict.fromkeys(sources, LATEST)
    if not wanted:
        return {}, []
    try:
        with flow.cluster(Side.SOURCE) as admin:
            answers = admin.list_offsets(wanted)
    except KafkaFailure as failure:
        return {}, [str(failure)]
    ends = {tp: answer.offset for tp, answer in answers.items() if isinstance(answer, OffsetInfo)}
    return ends, sorted({str(answer) for answer in answers.values() if isinstance(answer, KafkaFailure)})


def _tell(out: TextIO, flow: Flow, rows: list[PartitionStatus]) -> None:
    header = ("PARTITION", "POSITION", "SOURCE END", "LAG", "TARGET OFFSET", "BYTES/S", "SESSION")
    cells = [
        (
            str(row.entry.source),
            number(_known(row.entry.mark.source)),
            number(row.end),
            number(row.lag),
            number(_known(row.entry.mark.target)),
            number(row.rate),
            _session(row.entry),
        )
        for row in rows
    ]
    if cells:
        table(out, header, cells)
    for entry in (row.entry for row in rows):
        if entry.trouble is not None:
            since = datetime.fromtimestamp(entry.trouble.since_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
            out.write(f"{entry.source}  {entry.trouble.state} since {since}: {entry.trouble.reason}\n")
        elif entry.note:
            out.write(f"{entry.source}  {entry.note}\n")
    behind = sum(row.lag or 0 for row in rows)
    count = f"{number(len(rows))} partition{'' if len(rows) == 1 else 's'}"
    out.write(f"{count} of {flow.pair}, {number(behind)} offsets to go\n")


def _session(entry: Entry) -> str:
    if entry.session is None:
        return "none"
    producer = entry.session.producer
    return f"producer {producer.producer_id} epoch {producer.producer_epoch}, {number(entry.mark.records)} records"


def _known(offset: int) -> int | None:
    return offset if offset >= 0 else None
