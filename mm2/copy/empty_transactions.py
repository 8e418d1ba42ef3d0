"""Takes up target offsets by transactions without records, for users without the right to write transaction markers.

A transaction to which a partition is added takes up one of its offsets: the coordinator writes the abort marker
(KIP-98). The markers of several transactional ids are written at the same time and in any order, which does not matter,
because they are all alike. What fences a predecessor is `InitProducerId` for each of these ids: it aborts an open
transaction and returns when the markers of the last one are written, so none appears after it.

The requests are those before KIP-890: where Produce adds the partitions, there would be no transaction without records.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple, TypeVar

from mm2.kafka.backoff import Backoff
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.errors import KafkaFailure, TimeoutFailure
from mm2.kafka.producer.transactions import TransactionCoordinatorClient
from mm2.kafka.structs import ProducerIdentity, TopicPartition

_T = TypeVar("_T")

#: Transactional ids of each partition. A transaction takes about 20 ms.
IDS: Final = 16
#: All of them begin with this prefix, for which a user needs WRITE.
ID_PREFIX: Final = "mm2-gaps-"
#: The coordinator aborts an open transaction after this time; a successor does so at once.
_TIMEOUT_MS: Final = 30_000
_PATIENCE_S: Final = 10.0
_THREADS: Final = 2 * IDS
#: The markers of the transaction before are written within milliseconds.
_CONCURRENT: Final = Backoff(1, 50)


def transactional_id(flow: str, partition: TopicPartition, number: int) -> str:
    """A transactional id for the gaps of a partition; the same for all processes of the flow."""
    return f"{ID_PREFIX}{flow}-{partition.topic}-{partition.partition}-{number}"


class _Claimed(NamedTuple):
    """A transactional id after `InitProducerId`."""

    client: TransactionCoordinatorClient
    identity: ProducerIdentity


class EmptyTransactions:
    """The transactional ids of the target partitions of a micro-batch. No request is sent while ``may_send`` is false."""

    def __init__(self, cluster: Cluster, flow: str, may_send: Callable[[], bool]) -> None:
        self._cluster = cluster
        self._flow = flow
        self._may_send = may_send
        self._stopping = threading.Event()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="gaps")
        self._claimed: dict[TopicPartition, list[_Claimed]] = {}
        self._used: dict[TopicPartition, int] = {}  # ids with transactions since they were claimed

    def close(self) -> None:
        """End retries. A transaction that is open is aborted by the successor."""
        self._stopping.set()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def claim(self, partition: TopicPartition) -> KafkaFailure | None:
        """Fence predecessors: from then on no marker of theirs appears in this partition."""
        self._claimed.pop(partition, None)
        claimed, failure = await self._claim(partition, range(IDS))
        if failure is None:
            self._claimed[partition], self._used[partition] = claimed, 0
        return failure

    async def settle(self, partition: TopicPartition) -> KafkaFailure | None:
        """Wait until no marker of the transactions of `fill` appears any more.

        The coordinator answers `InitProducerId` when all brokers have answered for the markers. It may have sent one of them
        twice, and the second one takes up an offset, too.
        """
        claimed = self._claimed.pop(partition)
        used, failure = await self._claim(partition, range(self._used[partition]))
        if failure is None:
            self._claimed[partition], self._used[partition] = [*used, *claimed[len(used) :]], 0
        return failure

    def is_claimed(self, partition: TopicPartition) -> bool:
        """Whether `fill` is possible."""
        return partition in self._claimed

    async def fill(self, partition: TopicPartition, count: int) -> KafkaFailure | None:
        """Take up so many offsets after `claim`. The last markers may be written a little later.

        After a failure any number of them may be, and `claim` has to be repeated.
        """
        claimed = self._claimed.get(partition)
        if claimed is None:
            return TimeoutFailure(f"the transactional ids for the gaps of {partition} are not claimed")
        share, more = divmod(count, IDS)
        work = [
            functools.partial(self._run, one, partition, share + (number < more)) for number, one in enumerate(claimed)
        ]
        self._used[partition] = max(self._used[partition], len(work[:count]))
        _, failure = await self._all(work[:count])
        if failure is not None:
            self._claimed.pop(partition, None)
        return failure

    async def _all(self, work: Sequence[Callable[[], _T]]) -> tuple[list[_T], KafkaFailure | None]:
        """The results of all, and the first failure."""
        loop = asyncio.get_running_loop()
        results: list[_T] = []
        failure: KafkaFailure | None = None
        for job in [loop.run_in_executor(self._threads, one) for one in work]:
            try:
                results.append(await job)
            except KafkaFailure as error:
                failure = failure or error
        return results, failure

    async def _claim(
        self, partition: TopicPartition, numbers: Sequence[int]
    ) -> tuple[list[_Claimed], KafkaFailure | None]:
        return await self._all([functools.partial(self._claim_one, partition, number) for number in numbers])

    def _claim_one(self, partition: TopicPartition, number: int) -> _Claimed:
        client = TransactionCoordinatorClient(
            self._cluster,
            transactional_id(self._flow, partition, number),
            patience_s=_PATIENCE_S,
            stopping=self._stopping,
            is_empty=True,
            concurrent=_CONCURRENT,
        )
        self._check_lease(partition)
        return _Claimed(client, client.init_producer_id(_TIMEOUT_MS))

    def _run(self, claimed: _Claimed, partition: TopicPartition, count: int) -> None:
        for _ in range(count):
            self._check_lease(partition)
            claimed.client.add_partitions(claimed.identity, [partition])
            self._check_lease(partition)
            claimed.client.end(claimed.identity, commit=False)

    def _check_lease(self, partition: TopicPartition) -> None:
        if self._stopping.is_set() or not self._may_send():
            message = f"offsets of {partition} were not filled in time"
            raise TimeoutFailure(message)
