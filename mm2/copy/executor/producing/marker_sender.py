"""Sends transaction markers to the leaders of target partitions, those that are due together in one request."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from mm2.copy.executor.clusters.brokers import REAUTHENTICATION_S, WATCH_S, WritingBrokers, WritingLink
from mm2.copy.markers import marker_at
from mm2.kafka.client.channel import BufferPool, Channel
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.client.connection import Connection
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import (
    BrokerFailure,
    CorruptBatch,
    DisconnectedFailure,
    KafkaFailure,
    TimeoutFailure,
    UnsupportedVersion,
)
from mm2.kafka.structs import TopicPartition
from mm2.kafka.wire import markers

#: Requests in flight on a connection. A broker handles one after another.
_MAX_IN_FLIGHT: Final = 1
#: Markers of one request, unless a single partition has more. A broker appends them one after another, 1,000 in 30 ms.
_MOST_MARKERS: Final = 4_000
#: A broker does not answer a request for markers of which some are for a partition that it does not have, if those for others
#: are appended before (`KafkaApis.handleWriteTxnMarkersRequest`). Where the markers end is looked up then.
_ANSWER_TIMEOUT_S: Final = 10.0


class MarkerRun(NamedTuple):
    """Target offsets ``first .. after-1`` of a partition, which are filled with markers of a generation.

    ``answered`` is called once, with None when all of them are in the log; after a failure any number may be.
    """

    partition: TopicPartition
    first: int
    after: int
    generation: int
    answered: Callable[[KafkaFailure | None], None]


@dataclass(slots=True, eq=False)
class _MarkerBroker(WritingLink):
    """One connection to a broker: the runs that wait, and the requests in flight with the time when they were sent."""

    waiting: deque[MarkerRun] = field(default_factory=deque)
    under_way: deque[tuple[list[MarkerRun], float]] = field(default_factory=deque)


class MarkerSender(WritingBrokers[_MarkerBroker]):
    """One connection to each leader. A run is sent once; who sends it finds out the leader.

    All methods and callbacks run on the loop's thread.
    """

    largest_answer_bytes = markers.LARGEST_ANSWER_BYTES

    def __init__(
        self,
        cluster: Cluster,
        loop: asyncio.AbstractEventLoop,
        background: Executor,
        pool: BufferPool,
        *,
        may_send: Callable[[], bool],
    ) -> None:
        super().__init__(cluster, loop, background, pool, may_send=may_send)
        self._watch()

    def send(self, node: int, run: MarkerRun) -> None:
        """Send the markers to this broker, in one request with what else is due."""
        address = (node, 0)
        broker = self._brokers.get(address)
        if broker is None:
            broker = self._brokers[address] = _MarkerBroker(*address)
        broker.waiting.append(run)
        self._schedule(broker)

    def _pump(self, broker: _MarkerBroker) -> None:
        broker.scheduled = False
        if self._closed or not broker.waiting:
            return
        channel = broker.channel
        if channel is None:
            self._open(broker)
            return
        while broker.waiting and len(broker.under_way) < _MAX_IN_FLIGHT and not channel.lost and self._may_send():
            self._send_request(broker, channel)

    def _send_request(self, broker: _MarkerBroker, channel: Channel) -> None:
        chosen: list[MarkerRun] = []
        size = 0
        while broker.waiting and (
            not chosen or size + broker.waiting[0].after - broker.waiting[0].first <= _MOST_MARKERS
        ):
            run = broker.waiting.popleft()
            size += run.after - run.first
            chosen.append(run)
        rows = (
            (run.partition, (marker_at(offset, run.generation) for offset in range(run.first, run.after)))
            for run in chosen
        )
        connection = channel.connection
        correlation_id = connection.next_correlation_id()
        request = markers.request(correlation_id, connection.client_id, rows)
        broker.under_way.append((chosen, time.monotonic()))
        channel.send([request], correlation_id)

    def _answered(self, broker: _MarkerBroker, frame: memoryview) -> None:
        channel = broker.channel
        if channel is None or not broker.under_way:
            return
        try:
            codes = markers.response(frame)
        except CorruptBatch as error:
            channel.fail(error)
            return
        runs, _ = broker.under_way.popleft()
        self._responded(broker)
        for run in runs:
            code = codes.get(run.partition, ErrorCode.UNKNOWN_SERVER_ERROR)
            subject = f"writing transaction markers to {run.partition} of cluster {self._cluster.name}"
            run.answered(BrokerFailure.of(code, subject=subject) if code else None)
        if broker.waiting:
            self._schedule(broker)

    # -- connections -----------------------------------------------------------------------------------------------

    def _choose_version(self, connection: Connection) -> int:
        version = connection.version_of(markers.REQUEST, markers.VERSION)
        if version < markers.VERSION:
            message = "preserve.offsets needs Kafka 2.8 or later to fill gaps"
            raise UnsupportedVersion.of(ErrorCode.UNSUPPORTED_VERSION, message, subject=connection.who)
        return version

    def _opened(self, broker: _MarkerBroker) -> None:
        self._pump(broker)

    def _dropped(self, broker: _MarkerBroker) -> None:
        self._fail(broker, DisconnectedFailure(f"broker {broker.node} closed the connection"))

    def _unreachable(self, broker: _MarkerBroker, error: KafkaFailure) -> None:
        super()._unreachable(broker, error)
        self._fail(broker, error)

    def _fail(self, broker: _MarkerBroker, error: KafkaFailure) -> None:
        """The requests in flight are not answered any more, and another broker may lead by the time of the next one."""
        runs = [run for request, _ in broker.under_way for run in request] + [*broker.waiting]
        broker.under_way.clear()
        broker.waiting.clear()
        for run in runs:
            run.answered(error)

    def _try_again(self, broker: _MarkerBroker) -> None:
        self._pump(broker)

    async def _find_leaders_now(self) -> float | None:
        return None  # the leaders are those of the sink

    def _watch(self) -> None:
        """Close connections after the request timeout, and re-authenticate."""
        if self._closed:
            return
        for broker in list(self._brokers.values()):
            if broker.waiting:
                self._schedule(broker)  # held back while the lease seemed to have expired
            channel = broker.channel
            if channel is None:
                continue
            seconds = min(_ANSWER_TIMEOUT_S, self._request_timeout_s)
            if broker.under_way and time.monotonic() - broker.under_way[0][1] > seconds:
                message = f"broker {broker.node} did not respond to a WriteTxnMarkers request within {seconds:.0f} s"
                channel.fail(TimeoutFailure(message))
            elif not broker.under_way:
                try:
                    channel.connection.maybe_reauthenticate(timeout_s=REAUTHENTICATION_S)
                except KafkaFailure as error:
                    channel.fail(error)
        self._loop.call_later(WATCH_S, self._watch)
