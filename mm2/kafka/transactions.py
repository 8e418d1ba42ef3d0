"""Transactions of a producer: what its coordinator is asked (KIP-98, KIP-890).

Two protocols, chosen by what the cluster has finalized (`transaction.version`):

- 2 and later (KIP-890): a Produce request of version 12 or later adds its partitions by itself; EndTxn answers with the
  producer id and epoch of the next transaction, whose sequences start at 0.
- before: partitions are added with AddPartitionsToTxn, Produce is of version 11 or earlier, id and epoch stay, and so
  sequences go on.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from kafka.protocol.metadata import ApiVersionsRequest
from kafka.protocol.producer import AddPartitionsToTxnRequest, EndTxnRequest, InitProducerIdRequest

from mm2 import __version__
from mm2.kafka.admin.calls import COORDINATOR_MOVED
from mm2.kafka.backoff import Backoff
from mm2.kafka.cluster import Cluster
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, ConnectFailure, ProducerFenced
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
_INIT_MAX: Final = 5  # 6 is two-phase commit (KIP-939)
#: A coordinator that is still writing the markers of the last transaction is ready within milliseconds.
_CONCURRENT: Final = Backoff(20, 200)


class TransactionCoordinatorClient:
    """What a transactional producer asks of the coordinator of its id; it holds no records and no sequences.

    Calls block, and are tried again for up to ``patience_s`` seconds after passing trouble: the coordinator moves or is
    away, a connection is lost, the last transaction is still being completed (51). ``stopping`` ends the tries early,
    so does closing the cluster. All of them raise `ProducerFenced` once a newer producer has the id, BrokerFailure
    (53: no right to the id) or ConnectFailure otherwise. One transaction at a time; thread-safe within that.
    """

    def __init__(
        self,
        cluster: Cluster,
        transactional_id: str,
        *,
        patience_s: float = 60.0,
        stopping: threading.Event | None = None,
    ) -> None:
        self.transactional_id = transactional_id
        self._cluster = cluster
        self._patience_s = patience_s
        self._stopping = stopping or threading.Event()
        self._implicit = False
        self._lock = threading.Lock()
        self._added: set[TopicPartition] = set()

    @property
    def implicit_partitions(self) -> bool:
        """Whether Produce adds partitions by itself (versions >= 12) and each end brings a new epoch, so that sequences
        restart at 0. False: versions <= 11, `add_partitions` first, sequences go on. Known after `init_producer_id`."""
        return self._implicit

    def init_producer_id(self, timeout_ms: int) -> ProducerIdentity:
        """Take the transactional id over: older producers are fenced, their open transaction is aborted before this
        returns. ``timeout_ms``: how long a transaction may stay open before the coordinator aborts it."""
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=-1,
            producer_epoch=-1,
            max_version=_INIT_MAX,
        )

        def attempt(node: int, timeout_s: float) -> ProducerIdentity:
            self._implicit = self._transaction_version(node, timeout_s) >= _IMPLICIT_LEVEL
            answer = self._cluster.send(node, request, timeout_s=timeout_s)
            self._check(answer.error_code)
            return ProducerIdentity(answer.producer_id, answer.producer_epoch)

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
                codes = {
                    TopicPartition(topic.name, result.partition_index): result.partition_error_code
                    for topic in answer.results_by_topic_v3_and_below
                    for result in topic.results_by_partition
                }
                # One bad partition fails all; the others say only that they were not tried.
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

        Only for a transaction that holds at least one record (48 INVALID_TXN_STATE otherwise). May be repeated after a
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
            return ProducerIdentity(answer.producer_id, answer.producer_epoch) if self._implicit else identity

        with self._lock:
            following = self._until_done(attempt)
            self._added.clear()
            return following

    def _transaction_version(self, node: int, timeout_s: float) -> int:
        """The finalized level of `transaction.version` as that broker knows it; 0 when it knows of none."""
        request = ApiVersionsRequest(client_software_name="mm2-python", client_software_version=__version__)
        answer = self._cluster.send(node, request, timeout_s=timeout_s)
        self._check(answer.error_code)
        levels = {feature.name: int(feature.max_version_level) for feature in answer.finalized_features or ()}
        return levels.get(_FEATURE, 0)

    def _check(self, code: int, where: str = "") -> None:
        if code:
            kind = ProducerFenced if code in FENCED else BrokerFailure
            subject = f"Transactional id {self.transactional_id} of cluster {self._cluster.name}{where}"
            raise kind.of(code, subject=subject)

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
                wait_s = (_CONCURRENT if concurrent else backoff).delay_s(failures)
                late = time.monotonic() + wait_s >= deadline
                if not error.retriable or late or self._cluster.closed or self._stopping.wait(wait_s):
                    raise
        raise AssertionError("unreachable")
