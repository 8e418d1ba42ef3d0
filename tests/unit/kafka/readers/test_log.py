"""Reading a shared log continues after failures. The test simulates the reads."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from mm2.kafka.client.cluster import Cluster
from mm2.kafka.errors import BatchOverLimit, BrokerFailure, TimeoutFailure
from mm2.kafka.readers.log import KafkaBasedLog
from mm2.kafka.records.record import Record, encode_batch
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import TopicPartition
from mm2.kafka.wire.fetch import Fetched
from tests.support import bombs

SETTINGS = ClientSettings.from_props(
    {"bootstrap.servers": "localhost:1", "retry.backoff.ms": "1", "retry.backoff.max.ms": "1"}, client_id="c"
)


def tail(poll: Callable[[KafkaBasedLog], None]) -> None:
    log = KafkaBasedLog(Cluster(SETTINGS, name="B"), "t", on_record=lambda _: None)
    log._poll = lambda: poll(log)  # type: ignore[method-assign]
    thread = threading.Thread(target=log._run, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()


def test_a_buffer_referenced_by_an_exception_is_not_reused() -> None:
    grown: list[int] = []

    def poll(log: KafkaBasedLog) -> None:
        buffer = log._buffer
        if log._failure is not None:
            size = len(buffer)
            buffer.extend(bytes(8))
            grown.append(len(buffer) - size)
            log._stopping.set()
            return
        frame = memoryview(buffer)
        raise BrokerFailure.of(6, subject=f"reading {len(frame)} bytes")

    tail(poll)
    assert grown == [8]


@pytest.mark.parametrize("error", [ValueError("ours"), BrokerFailure.of(6)])
def test_no_failure_stops_the_tail(error: Exception) -> None:
    polls: list[int] = []

    def poll(log: KafkaBasedLog) -> None:
        polls.append(1)
        if len(polls) > 2:
            log._stopping.set()
        raise error

    tail(poll)
    assert len(polls) == 3


def test_a_failure_that_lasts_is_logged_sometimes() -> None:
    """A batch over the limit is tried again each second, perhaps for days."""
    polls: list[int] = []

    def poll(log: KafkaBasedLog) -> None:
        polls.append(1)
        if len(polls) == 200:
            log._stopping.set()
        raise BatchOverLimit("another" if len(polls) == 100 else "the batch at offset 7 is not decompressed")

    with capture_logs() as logs:
        tail(poll)
    warnings = [entry["error"] for entry in logs if entry["log_level"] == "warning"]
    assert warnings[:2] == ["the batch at offset 7 is not decompressed"] * 2
    assert warnings.count("another") == 1
    assert len(warnings) == 6


def test_batches_before_one_over_the_limit_are_delivered_once() -> None:
    """Reading continues at the batch that cannot be decompressed, not at the beginning of the answer."""
    seen: list[int] = []
    log = KafkaBasedLog(Cluster(SETTINGS, name="B"), "t", on_record=lambda record: seen.append(record.offset))
    tp = TopicPartition("t", 0)
    log._positions = {tp: 0}
    batches = encode_batch([Record(b"k", b"v")] * 3) + bombs.zeros("zstd", 128 << 20, offset=3)
    for _ in range(2):
        with pytest.raises(BatchOverLimit):
            log._take(Fetched(tp, 0, 4, 4, 0, (), memoryview(batches)))
    assert (seen, log.positions) == ([0, 1, 2], {0: 3})


class SlowTopic(KafkaBasedLog):
    """A topic of 100 offsets of which a step arrives every 0.1 s, or as often as `every_s`."""

    def __init__(self, *steps: int, every_s: float = 0.1) -> None:
        super().__init__(Cluster(SETTINGS, name="B"), "t", on_record=lambda _: None)
        self._steps, self._every_s = list(steps), every_s

    def _first_offsets(self) -> dict[TopicPartition, int]:
        return {TopicPartition("t", 0): 0}

    def _offsets(self, *_: object) -> dict[TopicPartition, int]:
        return {TopicPartition("t", 0): 100}

    def _poll(self) -> None:
        if not self._stopping.wait(self._every_s):
            self._move(TopicPartition("t", 0), self.positions[0] + (self._steps.pop(0) if self._steps else 0), -1)


def test_the_first_read_may_take_longer_than_its_limit_while_records_arrive() -> None:
    log = SlowTopic(*[20] * 5, every_s=0.5)
    log.start(2.0)
    assert log.positions == {0: 100}
    log.stop()


@pytest.mark.parametrize("later", [0, -1], ids=["nothing arrives", "the topic is read again from an earlier offset"])
def test_the_first_read_fails_without_progress(later: int) -> None:
    log = SlowTopic(40, 40, *[later] * 40)
    with pytest.raises(TimeoutFailure, match=r"nothing arrived in 1\.0 s"):
        log.start(1.0)


def test_later_reads_have_one_limit_for_all() -> None:
    log = SlowTopic(*[5] * 20)
    log._positions = {TopicPartition("t", 0): 0}
    thread = threading.Thread(target=log._run, daemon=True)
    thread.start()
    with pytest.raises(TimeoutFailure, match=r"not read to its end in 0\.5 s"):
        log.read_to_end(0.5)
    log.stop()


def test_a_stop_ends_the_first_read() -> None:
    log = SlowTopic()
    threading.Timer(0.3, log.stop).start()
    with pytest.raises(TimeoutFailure):
        log.start(600.0)


def test_an_offset_out_of_range_is_asked_for_without_its_epoch_first() -> None:
    """A leader that does not know the end of the epoch answers so, too: the log would be read again and again."""

    class Log(KafkaBasedLog):
        def _offsets(self, *_: object) -> dict[TopicPartition, int]:
            return {tp: 2}

    tp = TopicPartition("t", 0)
    log = Log(Cluster(SETTINGS, name="B"), "t", on_record=lambda _: None)
    log._positions = {tp: 0}
    batch = encode_batch([Record(b"k", b"v")] * 3)
    batch[12:16] = (7).to_bytes(4, "big")
    log._take(Fetched(tp, 0, 3, 3, 0, (), memoryview(batch)))
    assert log._epochs == {tp: 7}
    for position in (3, 2):
        log._take_failure(tp, BrokerFailure.of(1))
        assert (log.positions, log._epochs) == ({0: position}, {})
