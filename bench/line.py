"""The physical line: copying of bytes alone, without Spark, commits and replicator.

    python -P bench/line.py brokers SOURCE TARGET TOPIC REMOTE_TOPIC PARTITIONS [TRUSTED_PEM]
    python -P bench/line.py bare GIGABYTES

`brokers` moves the partitions (0,1,2) with raw requests: Fetch from the source, CRC-32C over what came, header patched,
CRC-32C over what goes, Produce to the target with idempotence, acks=all and five requests under way. `bare` has no brokers
either: one receive, one CRC-32C pass and one send for each byte, between two processes that do nothing else.
Prints one JSON object: begin and end (time.monotonic), CPU seconds, bytes.
"""

import json
import os
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from crc32c import crc32c
from kafka.protocol.producer import InitProducerIdRequest

from mm2.kafka.client.cluster import Cluster
from mm2.kafka.records.batch import check_crc, iter_batches, patch
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import TopicPartition, topic_id_bytes
from mm2.kafka.wire import fetch, produce
from mm2.kafka.wire.fetch import FetchSession, Position

_ANSWER_BYTES, _IN_FLIGHT, _PIECE_BYTES = 8 << 20, 5, 1 << 20


def brokers(source: str, target: str, topic: str, remote: str, partitions: list[int], client: dict[str, str]) -> int:
    """Moves the partitions, from their start to where they end now; bytes of batches moved."""
    a, b = (Cluster(ClientSettings.from_props({"bootstrap.servers": at, **client}), name=at) for at in (source, target))
    info = a.metadata((topic,)).topics[topic]
    reading, writing = a.open_connection(a.leader(topic, 0)), b.open_connection(b.leader(remote, 0))
    identity = writing.request(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000))
    read_version, write_version = reading.version_of(fetch.REQUEST, 17), writing.version_of(produce.REQUEST, 12)
    session = FetchSession({topic: topic_id_bytes(info.topic_id)})
    buffer = bytearray(_ANSWER_BYTES + (1 << 20))  # one: what is sent from it has left it when send_buffers returns
    offsets, sequences, ends = dict.fromkeys(partitions, 0), dict.fromkeys(partitions, 0), dict.fromkeys(partitions, 1)
    outstanding = moved = 0

    def ask() -> None:
        wanted = {
            TopicPartition(topic, one): Position(offsets[one], info.partitions[one].leader_epoch, _ANSWER_BYTES)
            for one in partitions
            if offsets[one] < ends[one]
        }
        identifier = reading.next_correlation_id()
        frame = session.request(
            read_version,
            identifier,
            reading.client_id,
            wanted,
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=_ANSWER_BYTES,
            read_committed=False,
        )
        reading.send_buffers([frame])

    def acknowledged() -> None:
        for one in produce.response(write_version, writing.receive_frame(bytearray(4096), timeout_s=60)):
            if one.error_code:
                raise SystemExit(f"error {one.error_code} for {one.topic_partition}")

    ask()
    while any(offsets[one] < ends[one] for one in partitions):
        fetched = session.response(read_version, reading.receive_frame(buffer, timeout_s=60))
        batches = [(part.topic_partition.partition, batch) for part in fetched for batch in iter_batches(part.records)]
        ends |= {part.topic_partition.partition: part.high_watermark for part in fetched}
        offsets |= {number: batch.header.last_offset + 1 for number, batch in batches if batch.header is not None}
        if any(offsets[one] < ends[one] for one in partitions):
            ask()  # so the source works on the next answer while this one is checked and sent
        requests: list[dict[TopicPartition, memoryview]] = []
        places = dict.fromkeys(partitions, 0)
        for number, batch in batches:
            assert batch.header is not None
            check_crc(batch.header, batch.data)
            patch(batch.data, batch.header, (identity.producer_id, identity.producer_epoch, sequences[number]))
            sequences[number] = (sequences[number] + batch.header.records_count) & 0x7FFFFFFF
            if places[number] == len(requests):
                requests.append({})  # a request takes one batch of a partition
            requests[places[number]][TopicPartition(remote, number)] = batch.data
            places[number] += 1
            moved += len(batch.data)
        for request in requests:
            if outstanding == _IN_FLIGHT:
                acknowledged()
                outstanding -= 1
            identifier = writing.next_correlation_id()
            frame = produce.request(write_version, identifier, "line", request, acks=-1, timeout_ms=30_000)
            writing.send_buffers(frame)
            outstanding += 1
    for _ in range(outstanding):
        acknowledged()
    return moved


def bare(gigabytes: float) -> int:
    """Between a process that only sends and one that only receives."""
    (feeding, incoming), (outgoing, drain) = _loopback(), _loopback()
    pieces, buffer = int(gigabytes * 1e9) // _PIECE_BYTES, bytearray(_PIECE_BYTES)
    if not os.fork():
        for _ in range(pieces):
            feeding.sendall(buffer)
        os._exit(0)
    if not os.fork():
        for one in (incoming, feeding, outgoing):
            one.close()  # or the end would never be seen here
        while drain.recv_into(buffer):
            pass
        os._exit(0)
    for _ in range(pieces):
        incoming.recv_into(buffer, _PIECE_BYTES, socket.MSG_WAITALL)
        crc32c(buffer)
        outgoing.sendall(buffer)
    outgoing.close()
    return pieces * _PIECE_BYTES


def _loopback() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = socket.create_connection(listening.getsockname())
        return client, listening.accept()[0]


if __name__ == "__main__":
    kind, *arguments = sys.argv[1:]
    before, begin = os.times(), time.monotonic()
    if kind == "bare":
        total = bare(float(arguments[0]))
    else:
        at_source, at_target, name, remote_name, chosen, *trusted = arguments
        tls = {"security.protocol": "SSL", "ssl.truststore.type": "PEM", "ssl.truststore.location": "".join(trusted)}
        numbers = [int(one) for one in chosen.split(",")]
        total = brokers(at_source, at_target, name, remote_name, numbers, tls if trusted else {})
    after = os.times()
    cpu = {"user": after.user - before.user, "system": after.system - before.system}
    with suppress(ChildProcessError):
        while True:
            os.wait()
    print(json.dumps({"begin": begin, "end": time.monotonic(), "bytes": total, **cpu}))
