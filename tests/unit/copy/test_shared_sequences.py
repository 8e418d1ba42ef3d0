"""Rule S9: a sequence that may be in flight is never used for another record. Dead letters: `test_dead_letters`."""

from __future__ import annotations

import dataclasses
import struct
import zlib
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mm2.codec import decode
from mm2.copy.executor.partition.outbox import OutgoingBatch
from mm2.copy.executor.partition.outgoing_records import CopiedRange
from mm2.copy.executor.sessions.losses import Losses
from mm2.copy.progress.session import UNBOUNDED, EndedSession, LedgerEntry, Mark, Session, Start
from mm2.copy.progress.target_progress import FoundBatch, ReappearedSession, TargetProgress
from mm2.kafka.structs import ProducerIdentity
from tests.unit.copy.batches import TP, Bench, batch, holed, marker, of_epoch
from tests.unit.copy.executor.sessions.test_opening import (
    ENTRY,
    PRESERVED,
    SESSION,
    UNCOMMITTED,
    Scene,
    compared,
    ending_at,
    play,
    preserving,
)


def taken_over(offset: int = 0, *, epoch: int | None = 3) -> Bench:
    """A cursor of a holder that has taken over without a clean hand-off; the predecessor has read leader epoch 3."""
    bench = Bench(offset, target=offset, known_epoch=3)
    bench.cursor.shared_until = UNBOUNDED
    bench.outbox.looked_up = True
    bench.owner.epoch = epoch
    return bench


# -- how far a predecessor may have read ----------------------------------------------------------------------------------


def test_a_predecessor_has_not_read_past_the_high_watermark_of_the_leader_that_it_has_read() -> None:
    bench = taken_over()
    bench.fetch(end=40)
    bench.fetch(end=50)
    assert bench.cursor.shared_until == 40, "what is written later was not there for it"


@pytest.mark.parametrize("epoch", [None, 4], ids=["follower", "later leader"])
def test_another_leader_or_a_follower_does_not_show_how_far_it_has_read(epoch: int | None) -> None:
    """The log may be shorter after an unclean election, and the high watermark lower after a clean one."""
    bench = taken_over(epoch=epoch)
    bench.fetch(end=40)
    assert bench.cursor.shared_until == UNBOUNDED


# -- a source that is not the one that the predecessor has read -----------------------------------------------------------


def legacy(offset: int) -> bytes:
    message = struct.pack(">bbqii", 1, 0, 5, -1, 1) + b"x"  # magic 1, no key, one byte
    return struct.pack(">qiI", offset, len(message) + 4, zlib.crc32(message)) + message


@pytest.mark.parametrize(
    "fetched",
    [
        [of_epoch(batch(5, 1), 3)],  # a hole before a batch
        [of_epoch(batch(5, 1), 3), of_epoch(batch(6, 1), 3)],  # the same before tiny ones, which are merged
        [of_epoch(holed(3, 6, [3, 6]), 3)],  # within one
        [of_epoch(batch(3, 1), 4)],  # an election
        [of_epoch(batch(3, 1), 4), of_epoch(batch(4, 1), 4)],
        [legacy(3)],
    ],
)
def test_a_change_of_the_source_ends_the_session_once_all_is_acknowledged(fetched: list[bytearray]) -> None:
    bench = taken_over()
    bench.fetch(of_epoch(batch(0, 3), 3), *fetched, end=40)
    assert (bench.offsets(), bench.cursor.suspended, bench.owner.calls) == ([0, 1, 2], True, [])
    bench.cursor.replace_session()  # nothing happens twice
    bench.ack(0)
    assert bench.owner.calls == [("replace session", 3)]
    assert (bench.cursor.window.mark, bench.gaps) == (Mark(3, 3, 3), {})


def test_behind_what_the_predecessor_can_have_read_changes_do_not_matter() -> None:
    bench = taken_over()
    bench.fetch(of_epoch(batch(0, 3), 3), end=3)
    bench.fetch(of_epoch(batch(5, 1), 4), of_epoch(holed(6, 9, [6, 9]), 4))
    assert (bench.offsets(), bench.owner.calls, bench.cursor.suspended) == ([0, 1, 2, 5, 6, 9], [], False)


def test_where_nothing_has_changed_the_session_continues() -> None:
    bench = taken_over()
    bench.fetch(
        of_epoch(batch(0, 3), 2),
        marker(3, 1),
        of_epoch(batch(4, 1), 2),
        of_epoch(batch(5, 1), 2),
        of_epoch(batch(6, 1), 3),
        end=40,
    )
    assert (bench.offsets(), bench.owner.calls, bench.cursor.suspended) == ([0, 1, 2, 4, 5, 6], [], False)
    assert bench.tally.paths.get("merged"), "tiny batches are merged as always"


def test_what_is_on_a_target_with_preserved_offsets_may_have_holes_now() -> None:
    bench = taken_over()
    bench.cursor.outgoing.copied = CopiedRange(7, 5)
    bench.fetch(of_epoch(batch(2, 3), 3), of_epoch(holed(5, 6, [6]), 4), end=40)
    assert (bench.cursor.suspended, bench.cursor.offset, bench.cursor.known_epoch) == (False, 7, 3)
    bench.fetch(of_epoch(batch(7, 1), 4))
    assert bench.owner.calls == [("replace session", 7)], "the new leader epoch counts for what follows"


# -- requests of this holder ----------------------------------------------------------------------------------------------


def rejected(bench: Bench, *, doubtful: bool) -> tuple[OutgoingBatch, OutgoingBatch]:
    """The first of two batches is rejected; with ``doubtful`` the second one was not answered."""
    bench.fetch_each(of_epoch(batch(0, 1), 3), of_epoch(batch(1, 2), 3), end=40)
    first, second = bench.outbox.queue
    for outgoing in (first, second):
        bench.outbox.stamp(outgoing)
    if doubtful:
        bench.outbox.doubt(second)
    return first, second


@pytest.mark.parametrize(("doubtful", "shared"), [(False, False), (True, False), (False, True)])
def test_a_sequence_is_free_where_no_unanswered_request_can_have_it(doubtful: bool, shared: bool) -> None:
    bench = taken_over()
    rejected(bench, doubtful=doubtful)
    bench.cursor.shared_until = 1 if shared else 0
    assert bench.cursor.is_sequence_shared == (doubtful or shared)
    bench.outbox.looked_up = False
    assert not bench.cursor.is_sequence_shared, "there is no session"


def test_doubt_ends_with_another_producer() -> None:
    bench = taken_over()
    rejected(bench, doubtful=True)
    assert bench.outbox.doubtful_to == 3
    bench.outbox.begin(ProducerIdentity(1, 1), 0, known=False)
    assert bench.outbox.doubtful_to == 0


# -- take-overs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [-1, 70])
def test_a_clean_hand_off_passes_on_how_far_earlier_holders_may_have_read(known: int) -> None:
    scene = Scene()
    play(scene, lambda: scene.begin(Start(50, 50, ENTRY.replace(shared_until=known), clean=True)))
    assert scene.cursor.shared_until == known


def test_without_a_clean_hand_off_the_predecessor_may_have_read_more() -> None:
    scene = Scene()
    scene.standings = [TargetProgress(50, 150, 4)]
    play(scene, lambda: scene.begin(Start(50, 40, ENTRY.replace(shared_until=70))))
    assert scene.cursor.shared_until == UNBOUNDED
    assert scene.sessions.current == {TP: SESSION}


def test_other_rules_end_a_session_after_a_look_up_where_requests_may_be_in_flight() -> None:
    scene = Scene(read_committed=True)
    scene.standings = [TargetProgress(50, 150, 4)]
    session = dataclasses.replace(SESSION, rules=UNCOMMITTED)
    play(scene, lambda: scene.begin(Start(50, 50, ENTRY.replace(session=session, shared_until=70), clean=True)))
    assert len(scene.questions) == 1
    assert [one.producer for one in scene.sessions.current[TP].after] == [SESSION.producer]


def test_the_next_session_has_the_next_epoch_of_the_producer() -> None:
    """Its first batch fences requests of the session before, which a look-up counts until then."""
    scene = Scene()
    scene.standings = [TargetProgress(50, 150, 4)]
    play(scene, lambda: scene.begin(Start(50, 40, ENTRY)))
    scene.written()
    cursor, outbox = scene.cursor, scene.outbox
    play(scene, lambda: scene.new_sessions.replace(cursor))
    ended = EndedSession(SESSION.producer, SESSION.start, "", Mark(50, 150, 50))
    session = Session(ProducerIdentity(7, 2), Mark(50, 150, 0), UNCOMMITTED, (ended,))
    assert scene.sessions.current == {TP: session}
    assert (cursor.shared_until, outbox.needs_producer_id, outbox.paused) == (-1, True, True)
    assert (scene.asked, len(scene.committed)) == ([], 1), "nothing is asked for it, and the ledger is written"
    scene.written()
    assert (outbox.identity, outbox.next, outbox.is_unverified, outbox.paused) == (
        ProducerIdentity(7, 2),
        0,
        True,
        False,
    )
    assert (outbox.ended_sessions, outbox.end_offset, outbox.floor) == ((ended,), 150, 150)


def test_with_preserved_offsets_the_next_session_starts_where_the_target_ends() -> None:
    """A late batch may have been appended meanwhile, at the offsets of its records."""
    scene = preserving()
    scene.standings = [TargetProgress(50, 50, 4)]
    compared(scene, [], [])
    play(scene, lambda: scene.begin(Start(50, 40, PRESERVED)))
    scene.written()
    ending_at(scene, 54)
    play(scene, lambda: scene.new_sessions.replace(scene.cursor))
    session = scene.sessions.current[TP]
    assert (session.producer, session.start, scene.cursor.window.mark) == (
        ProducerIdentity(7, 2),
        Mark(54, 54, 0),
        Mark(54, 54, 0),
    )
    scene.written()
    assert (scene.outbox.end_offset, scene.outbox.is_unverified) == (54, True)


def test_until_it_is_in_the_ledger_a_successor_ends_the_old_session_before_its_first_record() -> None:
    scene = Scene()
    scene.standings = [TargetProgress(50, 150, 4)]
    play(scene, lambda: scene.begin(Start(50, 40, ENTRY)))
    scene.written()

    def replace() -> None:
        scene.new_sessions.replace(scene.cursor)
        assert (scene.cursor.shared_until, scene.cursor.known_epoch, scene.outbox.paused) == (UNBOUNDED, -1, True)
        assert scene.sessions.current == {TP: SESSION}

    play(scene, replace)


def test_an_epoch_is_never_used_again() -> None:
    """Records of a session that had ended have appeared, and it continues: a batch of the next one may be in flight."""
    ended = EndedSession(ProducerIdentity(7, 1), Mark(0, 100, 0), "", Mark(50, 150, 50))
    later = Session(ProducerIdentity(7, 2), Mark(50, 150, 0), UNCOMMITTED, (ended,))
    entry = ENTRY.replace(session=later, mark=Mark(50, 150, 0))
    again = entry.continuing(ended)
    assert again.session is not None
    assert (again.session.producer, again.session.reserved) == (ProducerIdentity(7, 1), 2)
    assert again.session.successor == ProducerIdentity(7, 3)
    assert decode(LedgerEntry, again.to_json()) == again
    other = dataclasses.replace(later, producer=ProducerIdentity(9, 4))
    assert entry.replace(session=other).continuing(ended).session == Session(ended.producer, ended.start)


def test_after_the_last_epoch_another_producer_follows() -> None:
    assert Session(ProducerIdentity(7, 32766), Mark(0, 0, 0)).successor == ProducerIdentity(7, 32767)
    assert Session(ProducerIdentity(7, 32767), Mark(0, 0, 0)).successor is None
    scene = Scene()
    scene.standings = [TargetProgress(50, 150, 4)]
    last = dataclasses.replace(SESSION, producer=ProducerIdentity(7, 32767))
    play(scene, lambda: scene.begin(Start(50, 40, ENTRY.replace(session=last))))
    scene.written()
    play(scene, lambda: scene.new_sessions.replace(scene.cursor))
    assert scene.sessions.current[TP].producer == ProducerIdentity(9, 0)


def test_the_ledger_has_how_far_earlier_holders_may_have_read() -> None:
    for shared in (-1, 0, 70, UNBOUNDED):
        entry = ENTRY.replace(shared_until=shared)
        assert decode(LedgerEntry, entry.to_json()) == entry
    assert "shared" not in ENTRY.to_json()


def test_late_records_are_compared_with_the_source_that_has_changed() -> None:
    scene = Scene()
    before = EndedSession(ProducerIdentity(7, 1), Mark(0, 100, 0), UNCOMMITTED, Mark(50, 150, 50))
    progress = TargetProgress(54, 154, 5, (FoundBatch(50, 150, 4),))
    scene.standings = [TargetProgress(0, 154, 5, reappeared=ReappearedSession(before, progress))]
    session = Session(ProducerIdentity(7, 2), Mark(50, 150, 0), UNCOMMITTED, (before,))
    play(scene, lambda: scene.begin(Start(50, 50, ENTRY.replace(session=session, mark=Mark(50, 150, 0)))))
    scene.written()
    scene.bench.fetch(of_epoch(batch(50, 9), 0))
    assert scene.bench.owner.calls == [("uncertain", 50, 4)]


# -- a position that moves ------------------------------------------------------------------------------------------------


def losses_of(bench: Bench, replaced: list[Mark], committed: list[Mark]) -> Losses:
    spec = cast(
        Any,
        SimpleNamespace(
            with_sessions=True, source_data_loss="continue", auto_offset_reset="earliest", source_alias="A"
        ),
    )
    new_sessions = cast(Any, SimpleNamespace(replace=lambda cursor: replaced.append(cursor.window.mark)))
    sessions = cast(Any, SimpleNamespace(forget_ended=lambda _: None))
    commit = cast(Any, lambda cursor, _then: committed.append(cursor.window.mark))
    return Losses(
        spec, cast(Any, None), cast(Any, None), cast(Any, None), sessions, new_sessions, cast(Any, None), commit
    )


@pytest.mark.parametrize("shared_until", [10, 11])
def test_after_a_truncation_of_the_source_sequences_in_flight_are_not_used_again(shared_until: int) -> None:
    bench = taken_over(10)
    bench.cursor.shared_until = shared_until
    replaced: list[Mark] = []
    committed: list[Mark] = []
    losses_of(bench, replaced, committed).rebase(bench.cursor, 7, "", 2)
    expected = ([Mark(7, 10, 0)], []) if shared_until > 10 else ([], [Mark(7, 10, 0)])
    assert (replaced, committed) == expected
