"""The work of a copy job, as plain data that is sent from the driver to the executors."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from mm2 import __version__
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import TopicPartition


class OtherVersion(Exception):
    """Driver and executor have different versions of this package. The message is one sentence without a full stop."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """Input of the Spark task: the driver's address and the secret that authenticates the task.

    The job itself, with the clusters' credentials, is sent over the channel, so Spark neither stores nor logs it.
    """

    batch: str
    host: str
    port: int
    secret: str = field(repr=False)
    #: SHA-256 of the driver's TLS certificate, hex; empty: loopback, no TLS.
    fingerprint: str = ""
    #: Of this package, in the driver: the messages between driver and executor change between versions.
    version: str = __version__

    @classmethod
    def of(cls, text: str) -> Self:
        """The assignment of a Spark task. Raises OtherVersion."""
        given = json.loads(text)
        version = given.get("version")
        if version != __version__:
            raise OtherVersion(
                f"the executor has mm2 {__version__}, and the driver {version or 'an older version'}: install the same version on both"
            )
        return cls(**given)


@dataclass(frozen=True, slots=True)
class PartitionSpec:
    """A source partition and the topic that its records are copied to (same partition number).

    ``named`` is the remote topic before transformations have named another one, which is the topic of the records that they
    get; "": the same.
    """

    topic: str
    partition: int
    remote_topic: str
    named: str = ""

    @property
    def source(self) -> TopicPartition:
        """The source partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def target(self) -> TopicPartition:
        """The target partition."""
        return TopicPartition(self.remote_topic, self.partition)


@dataclass(frozen=True, slots=True)
class SyncsSpec:
    """Where offset syncs are written: ``offset-syncs.topic.location`` decides whose settings these are. ``lag_max``
    in offsets.
    """

    settings: ClientSettings
    topic: str
    lag_max: int


@dataclass(frozen=True, slots=True)
class TransactionsSpec:
    """Exactly-once mode (KIP-618): ``interval_ms`` between commits, None = as soon as all records that were read are
    acknowledged.
    """

    transactional_id: str
    timeout_ms: int = 60_000
    interval_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ChangesSpec:
    """What changes the records of a flow: transformations, or converters other than ByteArrayConverter.

    ``factory`` is a function (``module:name``) of a higher layer that makes `mm2.copy.changes.RecordChanges`
    from ``settings``, which may contain secrets. ``digest`` identifies them in `mm2.copy.progress.session.Rules`.
    ``not_repeatable`` names what may decide differently when a record is read again; "": nothing.
    """

    factory: str
    settings: dict[str, str] = field(repr=False)
    digest: str
    not_repeatable: str = ""


@dataclass(frozen=True, slots=True)
class CopySpec:
    """One connector task's copying. Times in ms, sizes in bytes, rates in bytes per second (0: no limit).

    ``start_timestamp_ms`` replaces ``auto_offset_reset`` where there is no position. ``ledger_topic`` None:
    at-least-once. ``dead_letter_topic`` receives records that cannot be copied (optional). With ``transactions``
    there is one lane. ``preserved`` are source topics whose records get the same offsets on the target. ``changes`` None:
    records are copied as they are.

    ``offsets_topic`` is Connect's offsets topic, on the target unless ``offsets`` names another cluster. Positions
    are written there as MirrorSourceConnector does (``MirrorUtils.wrapPartition``), under ``connector`` and
    ``source_alias``. ``group`` is the Connect group. ``source``, ``target`` and ``offsets`` contain secrets.
    """

    flow: str
    connector: str
    task_id: int
    source_alias: str
    target_alias: str
    source: ClientSettings
    target: ClientSettings
    partitions: tuple[PartitionSpec, ...]
    offsets_topic: str
    group: str = ""
    offsets: ClientSettings | None = None
    syncs: SyncsSpec | None = None
    auto_offset_reset: str = "earliest"
    start_timestamp_ms: int | None = None
    source_data_loss: str = "continue"
    partition_error: str = "isolate"
    ledger_topic: str | None = None
    dead_letter_topic: str | None = None
    throttle: float = 0
    throttle_topics: dict[str, float] = field(default_factory=dict)
    transactions: TransactionsSpec | None = None
    changes: ChangesSpec | None = None
    preserved: tuple[str, ...] = ()
    read_committed: bool = False
    batch_duration_ms: int = 60_000
    commit_interval_ms: int = 1_000
    lanes: int = 0
    fetch_max_bytes: int = 8 << 20
    fetch_partition_bytes: int = 1 << 20
    fetch_max_wait_ms: int = 500
    fetch_min_bytes: int = 1

    @property
    def with_sessions(self) -> bool:
        """Whether sequences are positions and sessions are continued. Otherwise transactions are used, or delivery is
        at-least-once.
        """
        return self.ledger_topic is not None and self.transactions is None

    def with_partitions(self, partitions: tuple[PartitionSpec, ...]) -> Self:
        """The same job for some of its partitions, for one lane."""
        return dataclasses.replace(self, partitions=partitions)

    def limited_to(self, share: float) -> Self:
        """The same job with a fraction of its limits."""
        topics = {topic: limit * share for topic, limit in self.throttle_topics.items()}
        return dataclasses.replace(self, throttle=self.throttle * share, throttle_topics=topics)


class PartitionProgress(NamedTuple):
    """Progress of one partition, a row of reports. Offsets are the next to be processed; -1: unknown.

    ``position`` is the first source offset that is neither on the target nor dropped for a reason; ``high_watermark``
    the end of the source. ``state`` is one of `mm2.copy.states.PartitionState`, with its reason, the source offset
    where it began (-1: none) and since when (ms). ``stopped``: nothing more is tried in this micro-batch. ``gaps``
    counts source offsets without a record on the target by reason, since the ledger began; so do ``lost`` for ranges
    and ``foreign`` for records. ``age_ms`` and ``latency_ms`` are `mm2.copy.tally.Summary` of the batches of this
    micro-batch: the age of their newest record when they were fetched, and when they were acknowledged. They are None
    when nothing was measured, and missing in rows of older executors.
    """

    topic: str
    partition: int
    position: int
    target_offset: int
    high_watermark: int
    state: str
    reason: str
    offset: int
    since_ms: int
    stopped: bool
    records: int
    bytes: int
    gaps: dict[str, int]
    lost: int
    foreign: int
    age_ms: list[int] | None = None
    latency_ms: list[int] | None = None

    @property
    def source(self) -> TopicPartition:
        """The source partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def lag(self) -> int:
        """Source offsets still to be copied; 0 while unknown."""
        return max(0, self.high_watermark - self.position) if self.position >= 0 <= self.high_watermark else 0
