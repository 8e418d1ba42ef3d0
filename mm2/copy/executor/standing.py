"""How far a producer of ours got on the target: what the broker remembers of it, else what stands in the log's tail.

Everything here blocks and is called on background threads.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from mm2.copy.session import SEQUENCES, count_after
from mm2.kafka.admin import Admin
from mm2.kafka.cluster import Cluster
from mm2.kafka.errors import KafkaFailure, TimeoutFailure
from mm2.kafka.reader import Batch, BatchReader
from mm2.kafka.records.record import Record, decode_batch
from mm2.kafka.structs import LATEST, ProducerIdentity, TopicPartition

_POLL_MS: Final = 100
_PATIENCE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Standing:
    """``records`` of the producer are on the target, which ends at offset ``end``."""

    records: int
    end: int


@dataclass(frozen=True, slots=True)
class Prints:
    """Fingerprints of records on the target, in order. ``with_time``: the timestamps are part of them."""

    values: list[int]
    with_time: bool = True


class Inspector:
    """Asks the target cluster. Needs READ on the topics (DescribeProducers, Fetch)."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._admin = Admin(cluster)

    def standings(
        self, questions: Mapping[TopicPartition, tuple[ProducerIdentity, int, int]]
    ) -> dict[TopicPartition, Standing | KafkaFailure]:
        """For each partition: (producer, records known to be there, target offset behind them or -1) -> its standing."""
        found: dict[TopicPartition, Standing | KafkaFailure] = {}
        described = self._admin.describe_producers(questions)
        ends = self._admin.list_offsets(dict.fromkeys(questions, LATEST))
        forgotten: dict[TopicPartition, tuple[ProducerIdentity, int, int, int]] = {}
        for tp, (identity, known, behind) in questions.items():
            producers, end = described[tp], ends[tp]
            if isinstance(producers, KafkaFailure):
                found[tp] = producers
            elif isinstance(end, KafkaFailure):
                found[tp] = end
            else:
                state = producers.get(identity.producer_id)
                if state is not None and state.producer_epoch == identity.producer_epoch:
                    found[tp] = Standing(count_after(state.last_sequence, known), end.offset)
                elif end.offset < behind:
                    # Cut off below what was acknowledged, and with it the memory of who wrote it. Nobody but us writes
                    # there, or no more is known than that.
                    found[tp] = Standing(max(0, known - (behind - end.offset)), end.offset)
                else:
                    forgotten[tp] = (identity, known, behind, end.offset)
        found.update(self._read_tails(forgotten))
        return found

    def _read_tails(
        self, forgotten: Mapping[TopicPartition, tuple[ProducerIdentity, int, int, int]]
    ) -> dict[TopicPartition, Standing | KafkaFailure]:
        """The broker forgot the producer, or never knew it: its last batch behind what is known tells."""
        found: dict[TopicPartition, Standing | KafkaFailure] = {}
        for tp, (identity, known, behind, end) in forgotten.items():
            try:
                records = self._read_tail(tp, identity, known, behind, end) if 0 <= behind < end else known
            except KafkaFailure as error:
                found[tp] = error
            else:
                found[tp] = Standing(records, end)
        return found

    def _read_tail(
        self, partition: TopicPartition, identity: ProducerIdentity, known: int, behind: int, end: int
    ) -> int:
        records = known
        for _, batch in self._batches({partition: (behind, end)}):
            header = batch.view.header
            if header is not None and (header.producer_id, header.producer_epoch) == (
                identity.producer_id,
                identity.producer_epoch,
            ):
                last = (header.base_sequence + header.last_offset_delta) % SEQUENCES
                records = max(records, count_after(last, known))
        return records

    def end_of(self, partition: TopicPartition, first: int, end: int, identity: ProducerIdentity) -> int:
        """The target offset behind the producer's last batch at ``first .. end-1``; ``first`` when it has none there. Raises
        KafkaFailure."""
        behind = first
        for _, batch in self._batches({partition: (first, end)}):
            header = batch.view.header
            if header is not None and (header.producer_id, header.producer_epoch) == (
                identity.producer_id,
                identity.producer_epoch,
            ):
                behind = header.last_offset + 1
        return behind

    def behind_markers(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Offsets where records of ours end, each before the end of its log -> the offsets behind the transaction marker that
        stands there, if one does. Raises KafkaFailure."""
        behind = {tp: end + 1 for tp, end in ends.items()}
        for tp, batch in self._batches({tp: (end, end + 1) for tp, end in ends.items()}):  # without markers
            header = batch.view.header
            if header is not None and header.base_offset <= ends[tp] <= header.last_offset:
                behind[tp] = ends[tp]
        return behind

    def fingerprints(self, partition: TopicPartition, first: int, end: int, identity: ProducerIdentity) -> Prints:
        """Fingerprints of our records at target offsets ``first .. end-1``, in order. Raises KafkaFailure.

        A topic with LogAppendTime does not keep the records' timestamps; then they are left out of the fingerprints.
        """
        records: list[tuple[int | None, int]] = []
        with_time = True
        for _, batch in self._batches({partition: (first, end)}):
            header = batch.view.header
            if header is None or header.producer_id != identity.producer_id:
                continue
            with_time = with_time and not header.is_log_append_time
            records += [
                (record.timestamp, _content(record))
                for record in decode_batch(batch.view)
                if first <= record.offset < end
            ]
        return Prints([_print(timestamp if with_time else -1, content) for timestamp, content in records], with_time)

    def _batches(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> Iterator[tuple[TopicPartition, Batch]]:
        if not ranges:
            return
        metadata = self._cluster.metadata(sorted({tp.topic for tp in ranges}))
        by_leader: dict[int, dict[TopicPartition, int]] = defaultdict(dict)
        for tp, (first, _) in ranges.items():
            by_leader[self._cluster.leader(tp.topic, tp.partition)][tp] = first
        for leader, positions in by_leader.items():
            topics = {tp.topic: metadata.topics[tp.topic] for tp in positions}
            reader = BatchReader(self._cluster, leader, topics)
            try:
                reader.positions = dict(positions)
                moved_s = time.monotonic()
                while reader.positions:
                    before = dict(reader.positions)
                    for batch in reader.poll(max_wait_ms=_POLL_MS):
                        yield batch.topic_partition, batch
                    if reader.positions != before:
                        moved_s = time.monotonic()
                    elif time.monotonic() - moved_s > _PATIENCE_S:
                        message = (
                            f"cluster {self._cluster.name} gives nothing of {', '.join(map(str, before))} any more"
                        )
                        raise TimeoutFailure(message)
                    for tp in [tp for tp, at in reader.positions.items() if at >= ranges[tp][1]]:
                        del reader.positions[tp]
            finally:
                reader.close()


def fingerprint(record: Record, *, with_time: bool = True) -> int:
    """Hash of what two copies of one record have in common; comparable within this process only."""
    return _print(record.timestamp if with_time else -1, _content(record))


def _content(record: Record) -> int:
    return hash((record.key, record.value, record.headers))


def _print(timestamp: int | None, content: int) -> int:
    return hash((timestamp, content))
