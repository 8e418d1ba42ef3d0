"""Transactions of a producer: its requests to the coordinator (KIP-98, KIP-890).

Two protocols, chosen by what the cluster has finalized (`transaction.version`):

- 2 and later (KIP-890): a Produce request of version 12 or later adds its partitions by itself; EndTxn answers with the
  producer id and epoch of the next transaction, whose sequences start at 0.
- before: partitions are added with AddPartitionsToTxn, Produce has version 11 or earlier, id and epoch stay the same,
  and sequences continue.

`TransactionCoordinatorClient` is for callers that send batches themselves; `TransactionalProducer` also sends them.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from kafka.protocol.metadata import ApiVersionsRequest
from kafka.protocol.producer import AddPartitionsToTxnRequest, EndTxnRequest, InitProducerIdRequest

from mm2 import __version__
from mm2.kafka.admin.calls import COORDINATOR_MOVED
from mm2.kafka.backoff import Backoff
from mm2.kafka.client.answer_checks import producer_of
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, ConnectFailure, KafkaFailure, ProducerFenced
from mm2.kafka.producer.producer import Chunk, Producer, RecordMetadata, Written, is_too_large
from mm2.kafka.records.batch import TRANSACTIONAL
from mm2.kafka.records.record import Record, encode_batch
from mm2.kafka.structs import ProducerIdentity, TopicPartition

_T = TypeVar("_T")

#: The newest Produce version that may be used inside a transaction of the old protocol.
MAX_PRODUCE_EXPLICIT: Final = 11
#: The oldest Produce version that adds its partitions to the transaction.
MIN_PRODUCE_IMPLICIT: Final = 12
#: Error codes that mean: another producer owns the transactional id, or the coordinator has ended our transaction.
FENCED: Final = frozenset(
    {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING}
)

_FEATURE: Final = "transaction.version"
_IMPLICIT_LEVEL: Final = 2
_ADD_PARTITIONS_MAX: Final = 3  # later ones are for brokers
_END_EXPLICIT: Final = 4
_END_IMPLICIT: Final = 5  # the first whose answer brings the next identity
_INIT_MIN_CURRENT: Final = 3
_INIT_MAX: Final = 5  # 6 is two-phase commit (KIP-939)
_MAX_SEQUENCE: Final = (1 << 31) - 1
#: A coordinator that is still writing the markers of the last transaction is ready within milliseconds.
_CONCURRENT: Final = Backoff(20, 200)


class TransactionCoordinatorClient:
    """The requests of a transactional producer to the coordinator of its id, without records and sequences.

    Calls block and are retried for up to ``patience_s`` seconds after a retriable error: the coordinator moved or is
    unreachable, a connection was lost, the previous transaction is still being completed (CONCURRENT_TRANSACTIONS).
    ``stopping`` or closing the cluster ends the retries. ``is_empty``: for transactions without records, which need the
    protocol before KIP-890, and of which no request is repeated that may have arrived. All calls raise `ProducerFenced` once a newer producer uses the
    id, otherwise BrokerFailure (TRANSACTIONAL_ID_AUTHORIZATION_FAILED) or ConnectFailure. One transaction at a time;
    thread-safe within that.
    """

    def __init__(
        self,
        cluster: Cluster,
        transactional_id: str,
        *,
        patience_s: float = 60.0,
        stopping: threading.Event | None = None,
        is_empty: bool = False,
        concurrent: Backoff = _CONCURRENT,
    ) -> None:
        self.transactional_id = transactional_id
        self._cluster = cluster
        self._patience_s = patience_s
        self._stopping = stopping or threading.Event()
        self._is_empty = is_empty
        self._concurrent = concurrent
        self._implicit = False
        self._lock = threading.Lock()
        self._added: set[TopicPartition] = set()

    @property
    def implicit_partitions(self) -> bool:
        """Whether Produce adds partitions by itself (versions >= 12) and each end returns a new epoch, so that sequences
        restart at 0. False: versions <= 11, `add_partitions` first, sequences continue. Known after `init_producer_id`."""
        return self._implicit

    def init_producer_id(self, timeout_ms: int, current: ProducerIdentity | None = None) -> ProducerIdentity:
        """Fence older producers with this transactional id; their open transaction is aborted before this returns.

        ``timeout_ms``: how long a transaction may stay open before the coordinator aborts it. With ``current``, continue
        with a new epoch after a failure, unless another producer has taken over the id (KIP-360).
        """
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=-1 if current is None else current.producer_id,
            producer_epoch=-1 if current is None else current.producer_epoch,
            min_version=0 if current is None else _INIT_MIN_CURRENT,
            max_version=_INIT_MAX,
        )

        def attempt(node: int, timeout_s: float) -> ProducerIdentity:
            if not self._is_empty:
                self._implicit = self._transaction_version(node, timeout_s) >= _IMPLICIT_LEVEL
            answer = self._cluster.send(node, request, timeout_s=timeout_s)
            self._check(answer.error_code)
            return producer_of(answer)

        with self._lock:
            self._added.clear()
            return self._until_done(attempt)

    def add_partitions(self, identity: ProducerIdentity, partitions: Iterable[TopicPartition]) -> None:
        """Make partitions part of the transaction before the first record is sent there; does nothing for those that
        are, and nothing at all when Produce does it."""
        if self._implicit:
            return
        with self._lock:
            new = sorted(set(partitions) - self._added)
            if not new:
                return
            topics: dict[str, list[int]] = defaultdict(list)
            for topic, partition in new:
                topics[topic].append(partition)
            entry = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
            request = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self.transactional_id,
                v3_and_below_producer_id=identity.producer_id,
                v3_and_below_producer_epoch=identity.producer_epoch,
                v3_and_below_topics=[entry(name=name, partitions=indexes) for name, indexes in topics.items()],
                max_version=_ADD_PARTITIONS_MAX,
            )

            def attempt(node: int, timeout_s: float) -> None:
                answer = self._cluster.send(node, request, timeout_s=timeout_s)
                found = {
                    TopicPartition(topic.name, result.partition_index): result.partition_error_code
                    for topic in answer.results_by_topic_v3_and_below
                    for result in topic.results_by_partition
                }
                codes = {tp: found.get(tp, ErrorCode.UNKNOWN_SERVER_ERROR) for tp in new}
                # One invalid partition fails all; the others report only that they were not attempted.
                for tp, code in codes.items():
                    if code != ErrorCode.OPERATION_NOT_ATTEMPTED:
                        self._check(code, f", partition {tp}")
                for code in codes.values():
                    self._check(code)

            self._until_done(attempt)
            self._added.update(new)

    def end(self, identity: ProducerIdentity, commit: bool) -> ProducerIdentity:
        """Commit or abort what was sent as ``identity``, and return the identity of the next transaction: another one
        exactly when `implicit_partitions`, and then sequences restart at 0.

        Only for a transaction that holds at least one record (INVALID_TXN_STATE otherwise). May be repeated after a
        failure with the same arguments: the coordinator answers the second time as it did the first.
        """
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            committed=commit,
            min_version=_END_IMPLICIT if self._implicit else 0,
            max_version=_END_IMPLICIT if self._implicit else _END_EXPLICIT,
        )

        def attempt(node: int, timeout_s: float) -> ProducerIdentity:
            answer = self._cluster.send(node, request, timeout_s=timeout_s)
            self._check(answer.error_code)
            return producer_of(answer) if self._implicit else identity

        with self._lock:
            following = self._until_done(attempt)
            self._added.clear()
            return following

    def _transaction_version(self, node: int, timeout_s: float) -> int:
        """The finalized level of `transaction.version` as that broker knows it; 0 if it does not know one."""
        request = ApiVersionsRequest(client_software_name="mm2-python", client_software_version=__version__)
        answer = self._cluster.send(node, request, timeout_s=timeout_s)
        self._check(answer.error_code)
        levels = {feature.name: int(feature.max_version_level) for feature in answer.finalized_features or ()}
        return levels.get(_FEATURE, 0)

    def _check(self, code: int, where: str = "") -> None:
        if code:
            kind = ProducerFenced if code in FENCED else BrokerFailure
            subject = f"Transactional id {self.transactional_id} of cluster {self._cluster.name}{where}"
            raise kind.of(code, subject=subject, needed="WRITE")

    def _until_done(self, attempt: Callable[[int, float], _T]) -> _T:
        deadline = time.monotonic() + self._patience_s
        settings = self._cluster.settings
        backoff = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        for failures in itertools.count():
            left = min(settings.request_timeout_ms / 1000, max(0.0, deadline - time.monotonic()))
            try:
                node = self._cluster.coordinator(self.transactional_id, "transaction", timeout_s=left)
                return attempt(node, left)
            except (BrokerFailure, ConnectFailure) as error:
                code = error.code if isinstance(error, BrokerFailure) else None
                if code is None or code in COORDINATOR_MOVED:
                    self._cluster.invalidate_coordinator(self.transactional_id, "transaction")
                concurrent = code == ErrorCode.CONCURRENT_TRANSACTIONS
                wait_s = (self._concurrent if concurrent else backoff).delay_s(failures)
                late = time.monotonic() + wait_s >= deadline or (self._is_empty and code is None)
                if not error.retriable or late or self._cluster.closed or self._stopping.wait(wait_s):
                    raise
        raise AssertionError("unreachable")


class TransactionalProducer(Producer):
    """A transactional producer: call `init` once, then for each transaction `begin`, `send`, and `commit` or `abort`.

    Blocking; for one caller at a time, only `close` may be called by another thread. ``patience_s``: how long requests to
    the coordinator are retried; ``transaction_timeout_ms``: how long a transaction may stay open before the coordinator
    aborts it. After any error of `send` or `commit` the transaction can only be aborted; ProducerFenced is final until
    `init`. Batches have sequences, so a retry after a lost response creates no duplicates.
    """

    def __init__(
        self,
        cluster: Cluster,
        transactional_id: str,
        transaction_timeout_ms: int = 60_000,
        *,
        codec: str = "none",
        level: int | None = None,
        max_request_bytes: int = 1_048_576,
        delivery_timeout_ms: int = 30_000,
        patience_s: float = 60.0,
    ) -> None:
        super().__init__(
            cluster,
            codec=codec,
            level=level,
            max_request_bytes=max_request_bytes,
            delivery_timeout_ms=delivery_timeout_ms,
        )
        self.transactional_id = transactional_id
        self._transaction_timeout_ms = transaction_timeout_ms
        self._coordinator = TransactionCoordinatorClient(
            cluster, transactional_id, patience_s=patience_s, stopping=self._closed
        )
        self._identity: ProducerIdentity | None = None
        self._sequences: dict[TopicPartition, int] = {}
        self._open = False
        self._written = False
        self._failed: KafkaFailure | None = None

    def init(self) -> None:
        """Acquire the transactional id and fence its previous producer. Raises KafkaFailure."""
        self._next(self._coordinator.init_producer_id(self._transaction_timeout_ms))

    def begin(self) -> None:
        """Begin a transaction; the cluster learns of it with the first record."""
        if self._identity is None or self._open:
            state = "in a transaction already" if self._open else "not initialised"
            raise RuntimeError(f"begin() of producer {self.transactional_id}, which is {state}")
        self._open = True

    @property
    def in_transaction(self) -> bool:
        """Between `begin` and the end of `commit` or `abort`, whether or not something has been written."""
        return self._open

    @property
    def failure(self) -> KafkaFailure | None:
        """What `send` or `commit` has raised in this transaction, so that it can only be aborted."""
        return self._failed

    def send(
        self,
        topic: str,
        records: Sequence[Record],
        partition: int | None = None,
        *,
        timeout_s: float | None = None,
        split: bool = True,
    ) -> list[RecordMetadata]:
        """See `Producer.send`; an offset is -1 when the broker had the batch already and no longer knows its offset."""
        self._raise_if_outside("send")
        return super().send(topic, records, partition, timeout_s=timeout_s, split=split)

    def write(
        self, where: TopicPartition, records: Sequence[Record], *, timeout_s: float | None = None, split: bool = True
    ) -> list[Written]:
        """See `Producer.write`, and `send`."""
        self._raise_if_outside("write")
        return super().write(where, records, timeout_s=timeout_s, split=split)

    def _raise_if_outside(self, what: str) -> None:
        if not self._open:
            raise RuntimeError(f"{what}() of producer {self.transactional_id} outside a transaction")

    def commit(self) -> None:
        """Make everything since `begin` visible at once. Raises KafkaFailure: it is not known then whether it is."""
        self._raise_if_failed()
        self._end(commit=True)

    def abort(self) -> None:
        """Abort the transaction. Raises KafkaFailure if the coordinator does not confirm it."""
        if isinstance(self._failed, ProducerFenced):
            raise self._failed
        if self._failed is not None and self._identity is not None and not self._coordinator.implicit_partitions:
            # A request in flight may arrive late, in the next transaction; only a new epoch prevents that.
            self._next(self._coordinator.init_producer_id(self._transaction_timeout_ms, self._identity))
            return
        self._end(commit=False)

    def _end(self, *, commit: bool) -> None:
        if not self._open or self._identity is None:
            raise RuntimeError(f"producer {self.transactional_id} is in no transaction")
        following = self._identity
        if self._written:
            try:
                following = self._coordinator.end(self._identity, commit)
            except KafkaFailure as failure:
                self._failed = failure
                raise
        self._next(following)

    def _next(self, identity: ProducerIdentity) -> None:
        if identity != self._identity:
            self._sequences.clear()
        self._identity = identity
        self._open = self._written = False
        self._failed = None

    def _raise_if_failed(self) -> None:
        if self._failed is not None:
            raise self._failed

    def _write(self, chunk: Chunk, deadline: float | None) -> tuple[int, int]:
        self._raise_if_failed()
        identity = self._identity
        assert identity is not None  # noqa: S101 - send() is allowed only after begin()
        where, sequence = chunk.partition, self._sequences.get(chunk.partition, 0)
        implicit = self._coordinator.implicit_partitions
        batch = bytes(
            encode_batch(
                chunk.records,
                codec=self._codec,
                level=self._level,
                producer=(identity.producer_id, identity.producer_epoch, sequence),
                attributes=TRANSACTIONAL,
            )
        )

        def attempt() -> tuple[int, int]:
            try:
                return self._produce(
                    where,
                    batch,
                    transactional_id=self.transactional_id,
                    min_version=MIN_PRODUCE_IMPLICIT if implicit else None,
                    max_version=MIN_PRODUCE_IMPLICIT if implicit else MAX_PRODUCE_EXPLICIT,
                )
            except BrokerFailure as failure:
                if failure.code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                    return -1, -1
                raise

        try:
            self._coordinator.add_partitions(identity, (where,))
            self._written = True
            written = self._retry(deadline, attempt)
        except KafkaFailure as failure:
            if not is_too_large(failure, chunk):  # it is sent again in smaller batches
                self._failed = failure
            raise
        self._sequences[where] = (sequence + len(chunk.records)) & _MAX_SEQUENCE
        return written

    def _failure(self, code: int, message: str | None, *, subject: str) -> BrokerFailure:
        kind = ProducerFenced if code in FENCED else BrokerFailure
        return kind.of(code, message, subject=f"{subject} as transactional id {self.transactional_id}", needed="WRITE")
