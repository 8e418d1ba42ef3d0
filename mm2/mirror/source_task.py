"""MirrorSourceTask: one task's partitions, copied by Spark (spec mirrormaker §4, DESIGN: the copy job).

To the Connect runtime it is an ordinary source task whose ``poll`` never has records: data and positions are written by
the copier. Positions go to the same offsets topic under the same keys as Java's task would put them there, so either
can take over from the other.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

import structlog

from mm2 import __version__
from mm2.config.configdef import AbstractConfig
from mm2.config.mirror_keys import MIRROR_SOURCE_CONFIG
from mm2.connect.api import ConnectError, SourceRecord, SourceTask, SourceTaskContext
from mm2.copy.driver.engine import CopyEngine, CopyFailed, CopyJob
from mm2.copy.spec import CopySpec, PartitionSpec, SyncsSpec
from mm2.kafka.settings import ClientSettings
from mm2.kafka.structs import TopicPartition
from mm2.mirror.assigned_partitions import ASSIGNED_PARTITIONS_KEY, decode_partitions
from mm2.mirror.clients import Kind, MirrorClients, Side
from mm2.mirror.plugins import replication_policy
from mm2.mirror.syncs_topic import EMIT_SYNCS_KEY, syncs_side, syncs_topic

log = structlog.get_logger(__name__)

COPY_RESOURCE: Final = "copy"
_REPORT_INTERVAL_S: Final = 30.0
_TROUBLE_OVER_S: Final = 5.0
_STOP_TIMEOUT_S: Final = 12.0
_DEFAULT_FETCH_MAX_BYTES: Final = 8 << 20
_DEFAULT_PARTITION_BYTES: Final = 1 << 20
_DEFAULT_MAX_WAIT_MS: Final = 500


class MirrorSourceTask(SourceTask):
    """See the module."""

    def __init__(self) -> None:
        self._job: CopyJob | None = None
        self._next_report = 0.0
        self._troubles: dict[str, float] = {}  # when each was last seen, in monotonic seconds

    def version(self) -> str:
        return __version__

    def start(self, props: dict[str, str]) -> None:
        """Read the committed positions and begin copying after each of them."""
        engine = self.context.resources.get(COPY_RESOURCE)
        if not isinstance(engine, CopyEngine):
            # On a plain Connect cluster nobody brings one: the task's own, stopped with it.
            engine = CopyEngine({key: value for key, value in props.items() if key.startswith("spark.")})
            self._own_engine: CopyEngine | None = engine
        else:
            self._own_engine = None
        spec = copy_spec(props, self.context)
        committed = self._committed(spec)
        log.info(
            "Copying starts.",
            partitions=len(spec.partitions),
            committed=sum(offset is not None for offset in committed.values()),
        )
        self._job = engine.open(spec, committed)

    def poll(self) -> list[SourceRecord] | None:
        """Wait for news of the copying. Raises ConnectError when no partition can go on."""
        job = self._job
        if job is None:
            return None
        try:
            job.wait(1.0)
        except CopyFailed as failure:
            message = f"No partition can be copied any more: {failure}"
            raise ConnectError(message) from failure
        status = job.status()
        self.context.report(status)
        self._complain(status["troubles"])
        if time.monotonic() >= self._next_report:
            self._next_report = time.monotonic() + _REPORT_INTERVAL_S
            shown = {key: status[key] for key in ("records", "bytes", "lag", "batches", "latency_ms", "gaps")}
            log.info("Copied so far.", **shown)
        return None

    def stop(self) -> None:
        """Stop reading, wait for what is under way and its commit."""
        job, self._job = self._job, None
        if job is not None and not job.stop(_STOP_TIMEOUT_S):
            log.warning("The copying did not stop in time; its last positions may be copied again.")
        if self._own_engine is not None:
            self._own_engine.stop()

    def _committed(self, spec: CopySpec) -> dict[TopicPartition, int | None]:
        keys = [
            {"cluster": spec.source_alias, "partition": part.partition, "topic": part.topic} for part in spec.partitions
        ]
        offsets = self.context.offset_reader.offsets(keys)
        return {
            part.source: _next_offset(part.source, offset)
            for part, offset in zip(spec.partitions, offsets, strict=True)
        }

    def _complain(self, troubles: list[str]) -> None:
        """Say each trouble once, and once that all are over.

        A trouble is over when it has not been heard of for a while: each micro-batch has to meet it anew.
        """
        now = time.monotonic()
        for trouble in troubles:
            if trouble not in self._troubles:
                log.warning("Copying is held up.", reason=trouble)
            self._troubles[trouble] = now
        over = [trouble for trouble, seen in self._troubles.items() if now - seen > _TROUBLE_OVER_S]
        for trouble in over:
            del self._troubles[trouble]
        if over and not self._troubles:
            log.info("Copying goes on.")


def copy_spec(props: Mapping[str, str], context: SourceTaskContext) -> CopySpec:
    """The copy job of a task from its properties; ConfigException or ValueError names what cannot be used."""
    clients = MirrorClients(props, task=True)
    settings = AbstractConfig(MIRROR_SOURCE_CONFIG, dict(props))
    policy = replication_policy(props)
    consumer = clients.client_props(Side.SOURCE, Kind.CONSUMER, "replication-consumer")
    fetch_bytes = int(consumer.get("fetch.max.bytes", _DEFAULT_FETCH_MAX_BYTES))
    partition_bytes = int(consumer.get("max.partition.fetch.bytes", _DEFAULT_PARTITION_BYTES))
    partitions = tuple(
        PartitionSpec(tp.topic, tp.partition, policy.format_remote_topic(clients.source_alias, tp.topic))
        for tp in decode_partitions(props[ASSIGNED_PARTITIONS_KEY])
    )
    syncs = None
    if settings.bool(EMIT_SYNCS_KEY):
        side = syncs_side(props)
        role = f"offset-syncs-{side.value}-producer"
        lag_max = settings.int("offset.lag.max")
        syncs = SyncsSpec(clients.settings(side, Kind.PRODUCER, role), syncs_topic(props), lag_max)
    return CopySpec(
        flow=clients.flow,
        connector=context.connector,
        task_id=context.task_id,
        source_alias=clients.source_alias,
        target_alias=clients.target_alias,
        source=ClientSettings.from_props(consumer),
        target=ClientSettings.from_props(context.worker.producer_props),
        partitions=partitions,
        offsets_topic=context.worker.offset_storage_topic,
        syncs=syncs,
        auto_offset_reset=consumer["auto.offset.reset"],
        lost_range_policy=settings.str("source.data.loss"),
        read_committed=consumer.get("isolation.level", "").strip() == "read_committed",
        batch_duration_ms=settings.int("copy.batch.duration.ms"),
        commit_interval_ms=settings.int("copy.commit.interval.ms"),
        lanes=settings.int("copy.lanes"),
        fetch_max_bytes=fetch_bytes,
        fetch_partition_bytes=partition_bytes,
        fetch_max_wait_ms=int(consumer.get("fetch.max.wait.ms", _DEFAULT_MAX_WAIT_MS)),
    )


def _next_offset(source: TopicPartition, committed: Mapping[str, Any] | None) -> int | None:
    """MM2 stores the last replicated offset; copying goes on at the next one."""
    if committed is None or committed.get("offset") is None:
        return None
    offset = committed["offset"]
    if not isinstance(offset, int) or isinstance(offset, bool):
        message = f"The committed position of {source} is {offset!r}, which is no offset."
        raise ConnectError(message)
    return offset + 1
