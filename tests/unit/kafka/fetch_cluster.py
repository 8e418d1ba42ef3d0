"""A cluster that only responds to Fetch requests, over socket pairs and in the caller's thread."""

from __future__ import annotations

import socket
import struct
import zlib
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

from mm2.kafka.client.connection import Connection
from mm2.kafka.client.stream import Buffer, Stream
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure, RefusedFailure
from mm2.kafka.records.batch import BatchView, iter_batches
from mm2.kafka.records.visibility import last_offset
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import EARLIEST, Metadata, PartitionInfo, TopicInfo, TopicPartition
from mm2.kafka.wire import fetch
from tests.simulation.protocol import FetchCall, Share, fetch_answer, fetch_call, head_of

SETTINGS = {
    "bootstrap.servers": "localhost:1",
    "retry.backoff.ms": "1",
    "retry.backoff.max.ms": "1",
    "request.timeout.ms": "5000",
}


class BrokerConnection(Connection):
    """A connection that responds as soon as a request is sent."""

    def __init__(self, cluster: FetchCluster, node: int) -> None:
        ours, self._theirs = socket.socketpair()
        ours.setblocking(False)
        super().__init__(Stream(ours, f"broker {node}"), "h", node, cluster.settings, f"broker {node}")
        self._versions = {fetch.API_KEY: (0, 12)}
        self._cluster = cluster
        self.node = node

    def send_buffers(self, buffers: Sequence[Buffer]) -> None:
        super().send_buffers(buffers)
        (frame,) = buffers
        if self.node in self._cluster.unresponsive:
            return
        answer = self._cluster.answer(self.node, bytes(frame)[4:])
        if answer is None:
            self._theirs.close()
        else:
            self._theirs.sendall(answer)

    def close(self) -> None:
        super().close()
        self._theirs.close()


class FetchCluster:
    """``batches``: the logs. ``errors``: each is returned once.

    ``followers``: the brokers that leaders name to clients with a rack. ``behind``: how many offsets less they have.
    """

    def __init__(self, leaders: dict[TopicPartition, int], **settings: str) -> None:
        self.name = "B"
        self.closed = False
        props = {**SETTINGS, **{key.replace("_", "."): value for key, value in settings.items()}}
        self.settings = ClientSettings.from_props(props, client_id="c")
        self.leaders = leaders
        self.batches: dict[TopicPartition, list[bytes]] = {tp: [] for tp in leaders}
        self.aborted: dict[TopicPartition, list[tuple[int, int]]] = {}
        self.errors: dict[TopicPartition, list[int]] = {}
        self.followers: dict[TopicPartition, int] = {}
        self.behind = 0
        self.epoch = 0
        self.topic_errors: dict[str, BrokerFailure] = {}
        self.diverging: dict[TopicPartition, tuple[int, int]] = {}
        self.hanging_up: set[int] = set()
        self.refusing: set[int] = set()
        self.unresponsive: set[int] = set()
        self.requests: list[tuple[int, dict[TopicPartition, int]]] = []
        self.calls: list[FetchCall] = []
        self.invalidated: list[str] = []
        self.in_use: list[BrokerConnection] = []
        self.opened = 0

    def metadata(self, topics: Iterable[str], *, max_age_s: float = 0, timeout_s: float | None = None) -> Metadata:
        del max_age_s, timeout_s
        infos = {}
        for name in topics:
            rows = {
                tp.partition: PartitionInfo(node, self.epoch, (node, self.followers.get(tp, node)), ())
                for tp, node in self.leaders.items()
                if tp.topic == name
            }
            if rows and name not in self.topic_errors:
                infos[name] = TopicInfo(name, "", False, rows)
        return Metadata("id", 0, {}, infos, self.topic_errors)

    def invalidate(self, topic: str) -> None:
        self.invalidated.append(topic)

    def leader(self, topic: str, partition: int) -> int:
        return self.leaders[TopicPartition(topic, partition)]

    def open_connection(self, node: int, *, timeout_s: float | None = None) -> Connection:
        return self.lease_connection(node, timeout_s=timeout_s)

    def lease_connection(self, node: int, *, timeout_s: float | None = None) -> Connection:
        del timeout_s
        if node in self.refusing:
            raise RefusedFailure(f"broker {node} refused")
        connection = BrokerConnection(self, node)
        self.opened += 1
        self.in_use.append(connection)
        return connection

    def return_connection(self, connection: Any) -> None:
        self.in_use.remove(connection)
        connection.close()

    def send(self, node: int, request: Any, *, timeout_s: float | None = None) -> Any:
        """ListOffsets: the log start or end offset."""
        del node, timeout_s
        topics = [
            SimpleNamespace(
                name=topic.name,
                partitions=[self._listed(topic.name, one.partition_index, one.timestamp) for one in topic.partitions],
            )
            for topic in request.topics
        ]
        return SimpleNamespace(topics=topics)

    def _listed(self, topic: str, partition: int, timestamp: int) -> SimpleNamespace:
        _, start, end = self._log(TopicPartition(topic, partition))
        offset = start if timestamp == EARLIEST else end
        return SimpleNamespace(
            partition_index=partition, error_code=0, offset=offset, timestamp=-1, leader_epoch=self.epoch
        )

    def _log(self, tp: TopicPartition) -> tuple[list[BatchView], int, int]:
        """The batches of a partition, its log start offset and its log end offset."""
        views = [view for data in self.batches[tp] for view in iter_batches(memoryview(data))]
        return (views, views[0].base_offset, last_offset(views[-1]) + 1) if views else (views, 0, 0)

    def answer(self, node: int, frame: bytes) -> bytes | None:
        head = head_of(frame)
        call = fetch_call(head, frame)
        self.calls.append(call)
        wanted = {TopicPartition(str(read.topic), read.partition): read for read in call.reads}
        self.requests.append((node, {tp: read.offset for tp, read in wanted.items()}))
        if node in self.hanging_up:
            return None
        return fetch_answer(head, [self._share(node, tp, read.offset, call) for tp, read in wanted.items()])

    def _share(self, node: int, tp: TopicPartition, offset: int, call: FetchCall) -> Share:
        if call.rack and tp in self.followers and node == self.leaders[tp]:
            return Share(*tp, preferred_replica=self.followers[tp])
        if self.errors.get(tp):
            return Share(*tp, error=self.errors[tp].pop(0))
        if tp in self.diverging:
            return Share(*tp, diverging=self.diverging.pop(tp))
        views, start, end = self._log(tp)
        if node != self.leaders[tp]:
            end -= self.behind
            views = [view for view in views if last_offset(view) < end]
        if not start <= offset <= end:
            return Share(*tp, error=ErrorCode.OFFSET_OUT_OF_RANGE, high_watermark=end)
        records = b"".join(view.data for view in views if last_offset(view) >= offset)
        aborted = self.aborted.get(tp, ()) if call.read_committed else ()
        return Share(*tp, 0, end, end, start, aborted, records)


def codes(results: dict[TopicPartition, Any]) -> dict[TopicPartition, int | str]:
    """The error code of each failure, or the name of its class; 0 for a result."""
    return {
        tp: result.code
        if isinstance(result, BrokerFailure)
        else type(result).__name__
        if isinstance(result, KafkaFailure)
        else 0
        for tp, result in results.items()
    }


def legacy_message(offset: int, value: bytes) -> bytes:
    """A message of magic 1 without compression."""
    body = struct.pack(">bbqi", 1, 0, 1, -1) + struct.pack(">i", len(value)) + value
    return struct.pack(">qiI", offset, 4 + len(body), zlib.crc32(body)) + body
