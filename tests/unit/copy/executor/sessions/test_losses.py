"""Records deleted on the source before they were copied, and copied records lost by the target."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections import deque
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mm2.copy.executor.background import BackgroundTasks
from mm2.copy.executor.fetching.fetch_states import PartitionFetchState
from mm2.copy.executor.partition import history
from mm2.copy.executor.partition.cursor import Cursor
from mm2.copy.executor.partition.history import HistoryVerdict, examine
from mm2.copy.executor.partition.outgoing_records import CopiedRange
from mm2.copy.executor.partition.window import SourceRange
from mm2.copy.executor.sessions.losses import CONTRADICTED_S, Losses
from mm2.copy.progress.session import EpochStart, Lost, Mark, Session
from mm2.copy.progress.target_progress import fingerprint
from mm2.copy.spec import CopySpec
from mm2.copy.states import PartitionState
from mm2.kafka.errors import BrokerFailure, DisconnectedFailure, KafkaFailure
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import EARLIEST, EpochEnd, OffsetInfo, ProducerIdentity, TopicPartition
from tests.unit.copy.batches import SPEC, TP, Bench, batch, of_epoch, record

SETTINGS = ClientSettings.from_props({"bootstrap.servers": "localhost:1"}, client_id="c")
COPY = CopySpec("A->B", "C", 0, "A", "B", SETTINGS, SETTINGS, (SPEC,), "offsets")
OUT_OF_RANGE = BrokerFailure.of(1)


class Scene:
    """A cursor at offset 10 whose source has the range that the test defines."""

    def __init__(self, *, records: int = 10, **changes: Any) -> None:
        is_preserved = bool(changes.get("preserved"))
        self.bench = Bench(10, is_preserved=is_preserved, target=100 + records, records=records)
        self.cursor = self.bench.cursor
        self.range = (0, 50)
        self.epochs: list[tuple[int, int]] = []  # (leader epoch, first offset) of the source's log
        self.refused: KafkaFailure | None = None  # answer to OffsetForLeaderEpoch
        self.checked: list[TopicPartition] = []
        self.failure: KafkaFailure | None = None
        self.asked = 0
        self.asked_of: list[int] = []  # leader epochs
        self.current_epoch, self.agreed = 9, True
        self.committed: list[tuple[Mark, bool]] = []  # (mark, held)
        self.waiting: list[Callable[[], None]] = []
        self.current: dict[TopicPartition, Session] = {}
        self.forgotten: list[TopicPartition] = []  # whose ended sessions were
        self.unsettled: set[TopicPartition] = set()
        self.losses = Losses(
            dataclasses.replace(COPY, **changes),
            BackgroundTasks(cast(Any, None)),
            cast(Any, self),
            cast(Any, self),
            cast(Any, self),
            cast(Any, self),
            self._call,
            self._commit,
        )

    # as source, admin, session table and new sessions
    def resume(self) -> None:
        """Nothing is fetched here."""

    def leader_epoch(self, _partition: TopicPartition) -> int:
        return self.current_epoch

    async def is_agreed(self, _partition: TopicPartition) -> bool:
        return self.agreed

    def list_offsets(
        self, wanted: dict[TopicPartition, int], *, leader_epochs: dict[TopicPartition, int]
    ) -> dict[TopicPartition, Any]:
        self.asked += 1
        self.asked_of += leader_epochs.values()
        if self.failure is not None:
            raise self.failure
        return {tp: OffsetInfo(self.range[spec != EARLIEST], -1, -1) for tp, spec in wanted.items()}

    def epoch_ends(
        self, wanted: dict[TopicPartition, int], *, leader_epochs: dict[TopicPartition, int]
    ) -> dict[TopicPartition, Any]:
        """As `LeaderEpochFileCache.endOffsetFor`."""
        self.asked_of += leader_epochs.values()
        return {tp: self.refused or end_of(self.epochs, self.range[1], epoch) for tp, epoch in wanted.items()}

    def validated(self, partition: TopicPartition, leader_epoch: int) -> None:
        assert leader_epoch == self.current_epoch
        self.checked.append(partition)

    def refresh_soon(self) -> None:
        """No leaders here."""

    def forget_ended(self, partition: TopicPartition) -> None:
        self.forgotten.append(partition)

    async def _call(self, call: Callable[..., Any], *args: Any) -> Any:
        await asyncio.sleep(0)
        return call(*args)

    def _commit(self, cursor: Cursor, then: Callable[[], None]) -> None:
        self.committed.append((cursor.window.mark, cursor.suspended))
        self.waiting.append(then)

    def written(self) -> None:
        self.waiting.pop(0)()

    def unreadable(self) -> None:
        self.play(lambda: self.losses.unreadable(self.cursor, OUT_OF_RANGE), times=2)

    def play(self, action: Callable[[], object], times: int = 1) -> None:
        """Do something and wait for what it starts."""

        async def run() -> None:
            for _ in range(times):
                action()
            await asyncio.gather(*self.losses._tasks._running)

        asyncio.run(run())


def stopped(scene: Scene) -> str | None:
    condition = scene.cursor.conditions.stop
    return condition.state if condition is not None else None


# -- the source -----------------------------------------------------------------------------------------------------------


def test_deleted_records_are_a_lost_range_and_copying_continues_after_it() -> None:
    scene = Scene()
    scene.range = (30, 50)
    scene.unreadable()
    assert scene.asked == 2, "one question for the start and one for the end, however often the error is reported"
    assert (scene.cursor.window.mark, scene.bench.gaps) == (Mark(30, 110, 10), {"retention": 20})
    assert [lost[:3] for lost in scene.cursor.lost] == [(10, 30, "retention")]


def test_deleted_records_stop_the_partition_when_configured() -> None:
    scene = Scene(source_data_loss="stop")
    scene.range = (30, 50)
    scene.unreadable()
    assert (stopped(scene), scene.cursor.window.position, scene.cursor.lost) == (PartitionState.LOST_RANGE, 10, [])
    condition = scene.cursor.conditions.stop
    assert condition is not None
    assert condition.reason.startswith("offsets 10..29 of t-0 were deleted on A")


def test_records_that_may_have_been_copied_are_no_lost_range_yet() -> None:
    scene = Scene()
    scene.cursor.begin(Mark(10, 110, 10), skip=3)
    scene.range = (30, 50)
    scene.unreadable()
    assert (scene.bench.owner.calls, scene.cursor.lost, scene.cursor.window.position) == (
        [("uncertain", 10, 3)],
        [],
        10,
    )


def test_records_copied_by_a_predecessor_are_not_lost_when_retention_deletes_them() -> None:
    scene = Scene()
    scene.cursor.begin(Mark(10, 110, 10), skip=4)  # 10..13 are on the target
    scene.range = (12, 50)  # and 10 and 11 are no longer on the source
    scene.unreadable()
    assert scene.bench.owner.calls == [("uncertain", 10, 4)]
    scene.cursor.fingerprints = deque(fingerprint(record(offset)) for offset in range(10, 14))
    scene.cursor.suspended = False
    scene.unreadable()
    scene.bench.fetch(batch(12, 4))
    assert scene.bench.offsets() == [14, 15], "so it is known that 10 and 11 were copied"
    assert (scene.cursor.window.records, scene.cursor.lost, scene.bench.gaps) == (14, [], {})


@pytest.mark.parametrize(("start", "lost"), [(14, []), (20, [(14, 20, "retention")])])
def test_when_retention_deleted_the_session_only_later_records_are_lost(
    start: int, lost: list[tuple[int, int, str]]
) -> None:
    scene = Scene()
    scene.cursor.begin(Mark(10, 110, 10), skip=4)
    scene.cursor.fingerprints = deque(fingerprint(record(offset)) for offset in range(10, 14))
    scene.range = (start, 50)
    scene.unreadable()
    assert scene.cursor.lost == []
    scene.bench.fetch(batch(start, 2))
    assert [shown[1:] for shown in scene.bench.owner.calls if shown[0] == "deleted"] == [row[:2] for row in lost]
    assert [one[:3] for one in scene.cursor.lost] == lost
    assert (scene.cursor.window.records, scene.bench.offsets()) == (14, [start, start + 1])
    scene.bench.ack(114)
    assert scene.cursor.window.position == start + 2


def test_retention_of_copied_records_does_not_stop_the_partition() -> None:
    scene = Scene(source_data_loss="stop")
    scene.cursor.begin(Mark(10, 110, 10), skip=4)
    scene.range = (12, 50)
    scene.unreadable()
    assert (stopped(scene), scene.bench.owner.calls) == (None, [("uncertain", 10, 4)])


def test_a_truncated_source_is_continued_at_its_end_once_the_ledger_has_it() -> None:
    scene = Scene()
    scene.range = (0, 6)
    scene.cursor.leader_epoch = 4
    scene.epochs = [(0, 0), (4, 3), (5, 6)]
    scene.unreadable()
    assert scene.committed == [(Mark(6, 110, 10), True)]
    assert (scene.cursor.offset, scene.cursor.suspended, scene.cursor.leader_epoch) == (6, True, 4)
    assert [lost[:3] for lost in scene.cursor.lost] == [(6, 10, "truncated")]
    scene.written()
    assert not scene.cursor.suspended


# -- where the histories part ---------------------------------------------------------------------------------------------


def end_of(epochs: list[tuple[int, int]], end: int, epoch: int) -> EpochEnd:
    """What a log with these epochs answers to OffsetForLeaderEpoch."""
    if epochs and epochs[-1][0] == epoch:
        return EpochEnd(epoch, end)
    above = next((start for known, start in epochs if known > epoch), None)
    if above is None:
        return EpochEnd(-1, -1)
    return EpochEnd(max((known for known, _ in epochs if known <= epoch), default=epoch), above)


@pytest.mark.parametrize(
    ("epochs", "end", "read", "finding"),
    [
        ([(0, 0)], 50, (0, 50), (HistoryVerdict.SAME, 50)),
        ([(0, 0), (3, 20)], 60, (3, 50), (HistoryVerdict.SAME, 50)),
        ([(0, 0), (3, 20), (4, 50)], 60, (3, 50), (HistoryVerdict.SAME, 50)),
        ([(0, 0), (3, 20), (4, 40)], 60, (3, 50), (HistoryVerdict.TRUNCATED, 40)),
        ([(0, 0), (4, 30)], 60, (3, 50), (HistoryVerdict.TRUNCATED, 30)),
        ([(0, 0), (4, 70)], 80, (3, 50), (HistoryVerdict.TRUNCATED, 50)),  # longer, and not the same
        ([(4, 30)], 80, (3, 50), (HistoryVerdict.TRUNCATED, 30)),  # retention took everything older
        ([(0, 0), (3, 20)], 40, (3, 50), (HistoryVerdict.REWOUND, 20)),  # written to since it was set back
        ([(0, 0), (2, 20)], 80, (3, 50), (HistoryVerdict.REWOUND, 20)),
        ([(0, 0), (1, 60)], 80, (9, 50), (HistoryVerdict.REWOUND, 50)),
        ([(0, 0)], 80, (9, 50), (HistoryVerdict.REWOUND, 0)),
        ([(0, 0)], 40, (0, 50), (HistoryVerdict.REWOUND, 0)),
        ([], 40, (3, 50), (HistoryVerdict.UNKNOWN, 50)),
    ],
)
def test_results_of_leader_epoch_comparison(
    epochs: list[tuple[int, int]], end: int, read: tuple[int, int], finding: tuple[HistoryVerdict, int]
) -> None:
    found = examine(lambda epoch: end_of(epochs, end, epoch), *read)
    assert (found.verdict, found.offset) == finding


@pytest.mark.parametrize(
    ("epochs", "read", "epoch"), [([(0, 0), (3, 20), (4, 40)], (3, 50), 3), ([(0, 0), (4, 30)], (3, 50), 0)]
)
def test_a_truncated_log_names_the_epoch_before_its_end(
    epochs: list[tuple[int, int]], read: tuple[int, int], epoch: int
) -> None:
    """Copying continues with that epoch, or a second truncation with nothing read in between would not be found."""
    assert examine(lambda asked: end_of(epochs, 60, asked), *read).epoch == epoch


@settings(deadline=None)
@given(st.data())
def test_after_elections_the_divergence_point_is_found(data: st.DataObject) -> None:
    """One leader after another cuts the log off somewhere and continues; what was read is any of the logs, up to anywhere."""
    log: list[int] = []  # epoch of each record
    started: list[tuple[int, int]] = []
    logs = []
    for epoch in range(data.draw(st.integers(1, 6))):
        cut = data.draw(st.integers(0, len(log)))
        del log[cut:]
        started = [(known, first) for known, first in started if first < cut] + [(epoch, cut)]
        log += [epoch] * data.draw(st.integers(0, 5))
        logs.append(list(log))
    old = data.draw(st.sampled_from(logs))
    offset = data.draw(st.integers(0, len(old)))
    if not offset:
        return
    same = next((i for i in range(offset) if i >= len(log) or log[i] != old[i]), offset)
    found = examine(lambda epoch: end_of(started, len(log), epoch), old[offset - 1], offset)
    assert (found.verdict is HistoryVerdict.SAME) == (same == offset)
    assert same <= found.offset <= offset
    if found.verdict is HistoryVerdict.TRUNCATED and found.offset < offset:
        assert same == found.offset or old[same] < old[offset - 1]


@settings(deadline=None)
@given(st.data())
def test_no_record_is_skipped_when_a_deposed_leader_is_elected_again(data: st.DataObject) -> None:
    """Each leader begins with part of the log of any leader before it. A reader that knows where the epochs began reads all of it."""
    logs: list[list[tuple[int, int]]] = [[]]  # (epoch, number) of each record, by leader
    numbers = itertools.count()
    copied: list[tuple[int, int]] = []  # as the reader has them, by offset
    epochs: tuple[EpochStart, ...] = ()
    for epoch in range(data.draw(st.integers(1, 8))):
        log = list(data.draw(st.sampled_from(logs)))
        del log[data.draw(st.integers(0, len(log))) :]
        started = [(one, at) for at, (one, _) in enumerate(log) if at == 0 or log[at - 1][0] != one]
        started.append((epoch, len(log)))
        log += [(epoch, next(numbers)) for _ in range(data.draw(st.integers(0, 5)))]
        logs.append(log)
        while copied:
            found = examine(partial(end_of, started, len(log)), copied[-1][0], len(copied), epochs)
            if found.verdict is HistoryVerdict.SAME:
                break
            assert found.verdict is HistoryVerdict.TRUNCATED
            assert found.offset < len(copied) or found.epoch < copied[-1][0]
            del copied[found.offset :]
            epochs = history.before(epochs, found.offset)
            assert not copied or found.epoch == copied[-1][0]
        assert log[: len(copied)] == copied
        for offset in range(len(copied), data.draw(st.integers(len(copied), max(len(copied), len(log))))):
            copied.append(log[offset])
            epochs = history.read(epochs, log[offset][0], offset)


def test_the_newest_leader_epochs_are_remembered() -> None:
    epochs: tuple[EpochStart, ...] = ()
    for epoch in range(100):
        epochs = history.read(epochs, epoch, 10 * epoch)
        epochs = history.read(epochs, epoch, 10 * epoch + 5)
    assert epochs == tuple(EpochStart(epoch, 10 * epoch) for epoch in range(100 - history.EPOCHS_KEPT, 100))
    assert history.common_end(epochs, 3, 2_000) == (680, 3)  # nothing is known of offsets below
    assert history.common_end(epochs, 98, 2_000) == (990, 98)
    assert history.common_end(epochs, 98, 975) == (975, 97)


def test_a_truncated_and_rewritten_log_is_copied_from_the_start_of_its_epoch() -> None:
    """Its end is not conclusive: 8 new records are there already."""
    scene = Scene()
    scene.cursor.topic_id, scene.cursor.leader_epoch = "id", 2
    scene.range, scene.epochs = (0, 8), [(0, 0), (2, 5)]
    scene.play(lambda: scene.losses.diverged(scene.cursor, 2, 8), times=3)
    assert scene.committed == [(Mark(5, 110, 10), True)]
    assert [lost[:3] for lost in scene.cursor.lost] == [(5, 10, "truncated")]


def test_without_topic_ids_it_was_created_again() -> None:
    scene = Scene()
    scene.cursor.leader_epoch, scene.cursor.known_end = 2, 12
    scene.range, scene.epochs = (0, 8), [(0, 0), (2, 5)]
    scene.unreadable()
    assert scene.committed == [(Mark(0, 110, 10), True)]
    assert [lost[:3] for lost in scene.cursor.lost] == [(10, 12, "recreated")]
    assert scene.cursor.known_end == -1


def test_without_topic_ids_a_broker_that_others_contradict_does_not_prove_that() -> None:
    """A broker that was cut off before the topic was created again still has the old one, in the same leader epoch."""
    scene = Scene()
    scene.cursor.leader_epoch, scene.agreed = 2, False
    scene.range, scene.epochs = (0, 8), [(0, 0), (2, 5)]
    scene.unreadable()
    assert (scene.committed, scene.cursor.offset, stopped(scene)) == ([], 10, None)
    scene.agreed = True
    scene.unreadable()
    assert scene.committed == [(Mark(0, 110, 10), True)]


def test_only_the_leader_from_which_a_partition_is_read_is_asked() -> None:
    """A deposed leader answers UNKNOWN_LEADER_EPOCH, and nothing is concluded."""
    scene = Scene()
    scene.cursor.leader_epoch, scene.refused, scene.range = 3, BrokerFailure.of(75), (0, 8)
    scene.unreadable()
    assert (scene.asked_of, scene.committed) == ([9, 9, 9], [])


def test_restarted_epochs_within_range_are_detected() -> None:
    """The broker does not know the last epoch that was read, which it calls out of range."""
    scene = Scene()
    scene.cursor.topic_id, scene.cursor.leader_epoch = "id", 7
    scene.range, scene.epochs = (0, 50), [(0, 0), (1, 4), (2, 6)]
    scene.unreadable()
    assert scene.committed == [(Mark(6, 110, 10), True)]


def test_an_existing_offset_that_stays_out_of_range_stops_the_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [100.0]
    monkeypatch.setattr("mm2.copy.executor.sessions.losses.time", SimpleNamespace(monotonic=lambda: clock[0]))
    for epochs in ([(0, 0), (7, 3)], []):
        scene = Scene()
        scene.cursor.topic_id, scene.cursor.leader_epoch = "id", 7
        scene.epochs = epochs
        scene.unreadable()
        assert stopped(scene) is None
        clock[0] += CONTRADICTED_S + 1
        scene.unreadable()
        assert (stopped(scene), scene.committed) == (PartitionState.LOST_RANGE, [])
        condition = scene.cursor.conditions.stop
        assert condition is not None
        assert "offset 10 of t-0 (leader epoch 7) as out of range although its log has 0..50" in condition.reason


def test_a_position_is_validated_before_it_is_read() -> None:
    scene = Scene()
    scene.cursor.leader_epoch, scene.epochs = 3, [(0, 0), (3, 5)]
    scene.play(lambda: scene.losses.validate(scene.cursor))
    assert (scene.checked, scene.committed) == ([TP], [])
    scene.epochs += [(4, 8)]
    scene.play(lambda: scene.losses.validate(scene.cursor))
    assert scene.committed == [(Mark(8, 110, 10), True)]


@pytest.mark.parametrize("code", [31, 35])
def test_where_no_position_can_be_validated_copying_continues(code: int) -> None:
    scene = Scene()
    scene.cursor.leader_epoch, scene.refused = 3, BrokerFailure.of(code)
    scene.play(lambda: scene.losses.validate(scene.cursor))
    assert scene.checked == [TP]


@pytest.mark.parametrize("failure", [DisconnectedFailure("gone"), BrokerFailure.of(6), BrokerFailure.of(3)])
def test_a_validation_that_fails_is_repeated(failure: KafkaFailure) -> None:
    scene = Scene()
    scene.cursor.leader_epoch, scene.refused = 3, failure
    scene.play(lambda: scene.losses.validate(scene.cursor))
    assert scene.checked == []
    scene.refused, scene.epochs = None, [(3, 0)]
    scene.play(lambda: scene.losses.validate(scene.cursor))
    assert scene.checked == [TP]


def test_a_truncation_behind_the_mark_is_compared_by_content() -> None:
    scene = Scene()
    scene.cursor.begin(Mark(10, 110, 10), skip=3)
    scene.cursor.topic_id, scene.cursor.leader_epoch = "id", 7
    scene.epochs = [(0, 0), (2, 10)]
    scene.unreadable()
    assert scene.bench.owner.calls == [("uncertain", 10, 3)]
    scene.cursor.suspended, scene.cursor.leader_epoch, scene.epochs = False, 7, [(0, 0), (2, 4)]
    scene.unreadable()
    assert [lost[:3] for lost in scene.cursor.lost] == [(4, 13, "truncated")]
    assert scene.committed == [(Mark(4, -1, 13), True)]


def test_after_a_truncation_behind_the_mark_the_epoch_before_it_is_kept() -> None:
    """By it a second truncation is found before anything was read (R4)."""
    scene = Scene()
    scene.cursor.begin(Mark(10, 110, 10), skip=3)
    scene.cursor.leader_epoch = 7  # a predecessor had read batches of epoch 7 behind the mark
    scene.epochs = [(2, 0), (8, 12)]  # epoch 7 is gone, 2 reaches behind the mark
    scene.range = (0, 40)
    scene.play(lambda: scene.losses.validate(scene.cursor))
    assert (scene.bench.owner.calls, scene.cursor.leader_epoch) == ([("uncertain", 10, 3)], 2)
    scene.epochs = [(2, 0), (9, 5)]  # the second election: 5..9 are other records
    scene.cursor.suspended = False
    assert PartitionFetchState(scene.cursor, 1, unvalidated=True).must_be_validated(11)


def test_a_failed_request_for_the_range_changes_nothing() -> None:
    scene = Scene()
    scene.failure = DisconnectedFailure("gone")
    scene.unreadable()
    assert (scene.cursor.window.mark, stopped(scene)) == (Mark(10, 110, 10), None)
    scene.failure, scene.range = None, (20, 50)
    scene.unreadable()
    assert scene.cursor.window.position == 20, "and it is asked for again"


def test_other_errors_are_ignored() -> None:
    scene = Scene()
    scene.losses.unreadable(scene.cursor, BrokerFailure.of(6))
    assert scene.asked == 0


@pytest.mark.parametrize("skip", [0, 7])
@pytest.mark.parametrize("seen", [25, -1], ids=["heard-by-us", "heard-by-a-predecessor"])
def test_a_recreated_topic_is_copied_from_its_start_and_not_mixed_with_the_old_one(
    skip: int,
    seen: int,
) -> None:
    scene = Scene()
    scene.cursor.begin(Mark(10, 110, 10), skip=skip)
    scene.cursor.high_watermark, scene.cursor.known_end = seen, 25
    scene.losses.source_recreated(scene.cursor, "new")
    assert scene.committed[0][0][::2] == (0, 10 + skip)
    assert scene.cursor.known_end == -1, "the end of the new topic is unknown"
    scene.written()
    scene.bench.fetch(batch(0, 2))
    assert scene.bench.offsets() == [0, 1]
    assert [lost[:3] for lost in scene.cursor.lost] == [(10 + skip, 25, "recreated")]


def test_batches_in_flight_are_awaited() -> None:
    scene = Scene()
    scene.bench.fetch(batch(10, 2))
    scene.losses.source_recreated(scene.cursor, "new")
    assert (scene.committed, scene.cursor.suspended) == ([], True)
    scene.bench.ack(110)
    assert scene.committed == [(Mark(0, 112, 12), True)]


def test_a_recreated_topic_stops_the_partition_when_configured() -> None:
    scene = Scene(source_data_loss="stop")
    scene.losses.source_recreated(scene.cursor, "new")
    assert (stopped(scene), scene.committed) == (PartitionState.RECREATED, [])


@pytest.mark.parametrize("changes", [{"source_data_loss": "stop"}, {"auto_offset_reset": "none"}])
def test_a_truncated_source_stops_the_partition_when_configured(changes: dict[str, Any]) -> None:
    scene = Scene(**changes)
    scene.cursor.leader_epoch = 3
    scene.losses.diverged(scene.cursor, 2, 4)
    assert (stopped(scene), scene.committed) == (PartitionState.LOST_RANGE, [])
    condition = scene.cursor.conditions.stop
    assert condition is not None
    (key, value), *_ = changes.items()
    assert condition.reason.endswith(f"; {key.replace('_', '.')} is {value}")


def test_a_new_leader_with_a_longer_different_log_is_not_read_past_the_divergence() -> None:
    scene = Scene()
    scene.cursor.leader_epoch = 3
    scene.losses.diverged(scene.cursor, 2, 15)
    assert (scene.committed, scene.cursor.lost) == ([(Mark(10, 110, 10), True)], [])


def test_a_repeated_truncation_counts_once() -> None:
    scene = Scene()
    scene.cursor.leader_epoch = 3
    scene.losses.diverged(scene.cursor, 2, 4)
    scene.cursor.leader_epoch = 3
    scene.losses.diverged(scene.cursor, 2, 4)
    assert (len(scene.committed), len(scene.cursor.lost), scene.cursor.offset) == (1, 1, 4)


# -- the target -----------------------------------------------------------------------------------------------------------


def copied(scene: Scene, count: int) -> None:
    scene.bench.outbox.begin(ProducerIdentity(1, 0), 10, known=True)
    scene.bench.fetch(batch(10, count))
    scene.bench.ack(110)
    scene.bench.outbox.acked = 10 + count


def test_records_lost_by_the_target_are_sent_again_with_the_same_sequences() -> None:
    scene = Scene()
    scene.current[TP] = Session(ProducerIdentity(1, 0), Mark(0, 100, 0))
    copied(scene, 8)
    scene.losses.target_truncated(scene.cursor, 15, 115)
    assert scene.committed == [(Mark(15, 115, 15), True)]
    outbox = scene.bench.outbox
    assert (outbox.next, outbox.acked, outbox.known, outbox.end_offset) == (15, 15, False, 115)
    outbox.paused = True
    scene.written()
    assert (scene.cursor.suspended, outbox.paused, scene.cursor.offset) == (False, False, 15)


@pytest.mark.parametrize(("first", "position"), [(10, 5), (3, 3)], ids=["in order", "after a reset"])
def test_where_the_target_lost_more_than_the_session_another_one_sends_it_again(first: int, position: int) -> None:
    """Within the session, the records before it would be more than the target has offsets for."""
    scene = Scene(records=0)
    scene.current[TP] = Session(ProducerIdentity(1, 0), Mark(first, 100, 0))
    scene.cursor.window.trail.copied(0, 90, 10)
    scene.bench.outbox.verified_epoch = 4
    opened: list[tuple[Cursor, Mark, int]] = []
    scene.losses._new_sessions = cast("Any", SimpleNamespace(open_before=lambda *call: opened.append(call)))
    scene.losses.target_truncated(scene.cursor, 0, 95)
    assert (opened, stopped(scene), scene.committed) == ([(scene.cursor, Mark(position, 95, 0), 4)], None, [])


def test_a_pending_move_is_discarded_when_the_partition_starts_elsewhere() -> None:
    """The source is cut at 18 with 12..19 in flight, and then the target turns out to have lost its end, too."""
    scene = Scene()
    scene.current[TP] = Session(ProducerIdentity(1, 0), Mark(0, 100, 0))
    copied(scene, 2)
    cursor = scene.cursor
    cursor.leader_epoch = 3
    scene.bench.fetch(of_epoch(batch(12, 8), 3))  # in flight
    scene.play(lambda: scene.losses.diverged(cursor, 2, 18))
    assert (cursor.suspended, scene.committed) == (True, []), "it waits for what is in flight"
    scene.losses.target_truncated(cursor, 11, 111)
    scene.written()
    assert (cursor.offset, cursor.suspended) == (11, False)
    scene.bench.fetch(batch(11, 2))
    scene.bench.ack(111)
    assert (cursor.window.position, cursor.offset) == (13, 13)


@pytest.mark.parametrize("case", ["no session", "foreign", "out of sight"])
def test_when_lost_records_are_unknown_the_partition_stops(case: str) -> None:
    scene = Scene()
    if case != "no session":
        scene.current[TP] = Session(ProducerIdentity(1, 0), Mark(0, 100, 0))
    copied(scene, 8)
    scene.cursor.window.foreign = 1 if case == "foreign" else 0
    scene.losses.target_truncated(scene.cursor, 3, 103 if case == "out of sight" else 115)
    assert (stopped(scene), scene.committed) == (PartitionState.LOST_RANGE, [])


@pytest.mark.parametrize(("end", "position"), [(115, 15), (118, 18), (119, 18), (120, 18), (123, 21)])
def test_records_lost_by_the_target_are_sent_again_in_transactions(end: int, position: int) -> None:
    """The target may end with the marker of a transaction: behind 100..117 and 120..123."""
    scene = Scene()
    scene.cursor.window.trail.copied(0, 100, 18)
    scene.cursor.window.trail.copied(18, 120, 4)
    scene.cursor.window.target = 125
    opened: list[tuple[Cursor, Mark]] = []
    scene.losses._new_sessions = cast("Any", SimpleNamespace(open_again=lambda *call: opened.append(call)))
    scene.cursor.window.foreign = 1  # no more than a transaction marker that a coordinator has written twice
    scene.losses.transactions_truncated(scene.cursor, end, is_own=True)
    assert (opened, stopped(scene)) == ([(scene.cursor, Mark(position, end, 0))], None)


@pytest.mark.parametrize("case", ["foreign", "out of sight"])
def test_when_records_lost_in_transactions_are_unknown_the_partition_stops(case: str) -> None:
    scene = Scene()
    scene.cursor.window.trail.copied(0, 100, 18)
    scene.cursor.window.foreign = 1 if case == "foreign" else 0
    scene.losses.transactions_truncated(scene.cursor, 115 if case == "foreign" else 90, is_own=case != "foreign")
    assert stopped(scene) == PartitionState.LOST_RANGE


def test_records_of_others_that_are_still_being_searched_are_not_counted_as_lost() -> None:
    """The look-up takes the offsets that the target has lost for records of the session."""
    scene = Scene()
    scene.current[TP] = Session(ProducerIdentity(1, 0), Mark(0, 100, 0))
    copied(scene, 8)
    scene.bench.owner.searches = True
    scene.bench.fetch(batch(18, 2))
    scene.bench.outbox.deliver(scene.bench.outbox.send_next(), 128)  # behind ten records of another producer
    window = scene.cursor.window
    assert (window.position, window.is_searching, window.foreign) == (18, True, 0)
    scene.losses.target_truncated(scene.cursor, 20 - (130 - 115), 115)
    assert (stopped(scene), scene.committed) == (PartitionState.LOST_RANGE, [])


def test_a_target_that_gives_an_offset_twice_stops_the_partition() -> None:
    scene = Scene()
    scene.losses.target_went_back(scene.cursor, 3)
    assert stopped(scene) == PartitionState.INCONSISTENT


# -- preserved offsets -----------------------------------------------------------------------------------------------------


def preserving(**changes: Any) -> Scene:
    return Scene(preserved=("t",), **changes)


def test_with_preserved_offsets_a_changed_source_stops_the_partition() -> None:
    """Its remote partition has the old records at the same offsets."""
    recreated, truncated = preserving(), preserving()
    recreated.losses.source_recreated(recreated.cursor, "new")
    truncated.cursor.leader_epoch = 3
    truncated.losses.diverged(truncated.cursor, 2, 4)
    assert (stopped(recreated), stopped(truncated)) == (PartitionState.RECREATED, PartitionState.LOST_RANGE)
    assert (recreated.committed, truncated.committed) == ([], [])


def test_with_preserved_offsets_copying_continues_where_a_truncated_target_ends() -> None:
    scene = preserving()
    queue = scene.bench.queue
    queue.fill(SourceRange(10, 12))
    opened: list[tuple[Cursor, Mark]] = []
    scene.losses._new_sessions = cast("Any", SimpleNamespace(open_again=lambda *call: opened.append(call)))
    scene.losses.target_truncated(scene.cursor, 3, 7)
    assert opened == [(scene.cursor, Mark(7, 7, 0))]
    assert (scene.cursor.suspended, queue.next_gap) == (True, (-1, -1)), "nothing is filled meanwhile"
    assert scene.unsettled == {TP}, "the end is read again before the first batch"


@pytest.mark.parametrize(
    ("began", "position", "records", "there", "lost_before", "lost"),
    [
        (0, 10, 10, None, (), [(10, 30)]),
        (0, 10, 10, CopiedRange(14, 14), (), [(14, 30)]),  # 10..13 are on the target
        (0, 10, 10, CopiedRange(30, 14), (), []),
        (0, 20, 10, None, ((10, 30),), []),  # half of the range is filled
        (0, 20, 10, None, ((10, 25),), [(25, 30)]),
        (20, 20, 0, None, (), []),  # while the offsets before the first record are filled
        (20, 22, 2, None, (), [(22, 30)]),
        (0, 20, 0, None, (), [(20, 30)]),  # transaction markers
        (0, 0, 0, None, (), [(0, 30)]),
    ],
)
def test_with_preserved_offsets_only_what_was_not_copied_is_a_lost_range(
    began: int,
    position: int,
    records: int,
    there: CopiedRange | None,
    lost_before: tuple[tuple[int, int], ...],
    lost: list[tuple[int, int]],
) -> None:
    for policy in ("continue", "stop"):
        scene = preserving(source_data_loss=policy)
        scene.cursor.begin(Mark(position, position, records))
        scene.cursor.outgoing.copied = there
        scene.cursor.lost = [Lost(first, after, "retention", 0) for first, after in lost_before]
        scene.current = {TP: Session(ProducerIdentity(1, 0), Mark(began, 0, 0))}
        scene.losses._sessions = cast("Any", scene)
        scene.range = (30, 50)
        scene.unreadable()
        if policy == "stop":
            assert stopped(scene) == (PartitionState.LOST_RANGE if lost else None)
        else:
            assert [one[:2] for one in scene.cursor.lost] == [*lost_before, *lost]
            assert scene.cursor.offset == 30
