"""Reverts each rule of docs/explanation/copy-sessions.md at run time: the simulation must detect that it is missing.

A mutation replaces functions or properties of the product and names the faults under which the rule matters. Rules that only detect
what other rules prevent (S4, L3, L7) are reverted together with one that prevents it: then records must be lost or duplicated without an
alarm, and with the alarm alone (`ALARMS`) they must not. Where another rule prevents the same, both are reverted. L4, and S6 for a
session that continues, have unit tests: of several hundred schedules none finds them missing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from mm2.copy.executor.commit.commits import Commits
from mm2.copy.executor.commit.positions import Positions
from mm2.copy.executor.copier import Copier
from mm2.copy.executor.fetching.source import Source
from mm2.copy.executor.link import DriverLink
from mm2.copy.executor.partition import history
from mm2.copy.executor.partition.copy_state import CopyState
from mm2.copy.executor.partition.cursor import Cursor
from mm2.copy.executor.partition.outbox import MAX_IN_FLIGHT, Outbox
from mm2.copy.executor.partition.outgoing_records import CopiedRange
from mm2.copy.executor.partition.window import Window
from mm2.copy.executor.producing.outbox_events import OutboxEvent
from mm2.copy.executor.producing.produce_outcomes import ProduceOutcomes
from mm2.copy.executor.producing.progress_look_ups import ProgressLookUps
from mm2.copy.executor.sessions.continued_sessions import ContinuedSessions
from mm2.copy.executor.sessions.losses import Losses
from mm2.copy.executor.sessions.new_sessions import NewSessions
from mm2.copy.executor.sessions.opening import Opening
from mm2.copy.executor.sessions.session_table import SessionTable
from mm2.copy.progress.ledger import Ledger
from mm2.copy.progress.session import EndedSession, Lease, LedgerEntry, Session, Start, count_after
from mm2.copy.progress.target_progress import ProgressQuestion, TargetLookUp, TargetProgress
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.structs import LATEST, TopicPartition
from mm2.mirror.source.start_positions import StartPositions
from tests.simulation.directed import (
    DEPOSED_LOG,
    LATE_FIRST_ENTRY,
    LATE_POSITION,
    LATE_SECOND_SESSION,
    POSITION_OF_ANOTHER,
    WRITTEN_PAST_THE_CUT,
    Schedule,
    direct,
)
from tests.simulation.directed_sequences import (
    DEAD_LETTER_DURING_A_SEARCH,
    LATE_AFTER_ITS_SUCCESSOR,
    LATE_AND_RETENTION,
    LATE_AND_UNCLEAN,
    LATE_BEHIND_A_DEAD_LETTER,
    LATE_OF_ITS_OWN,
)
from tests.simulation.directed_target import (
    LATE_OLD_BATCH,
    POLICY_CHANGES,
    REAPPEARED_SESSION,
)
from tests.simulation.scenario import Profile, Result, run

_OLD_MS = 30 * 86_400_000
Patch = tuple[Any, str, Any]


@dataclass(frozen=True)
class Mutation:
    """``patches`` revert the rule; ``families`` and ``shape``, or a ``schedule``, make the run one in which it matters.
    ``first_seed`` is the first one to try.
    """

    rule: str
    what: str
    patches: tuple[Patch, ...]
    families: tuple[str, ...] = ()
    shape: Callable[[Profile], None] = lambda _profile: None
    schedule: Schedule | None = None
    first_seed: int = 1
    alarm: bool = False  # what is lost or doubled counts only where the partition does not stop as INCONSISTENT

    def run(self, seed: int) -> Result:
        """One run with the rule reverted."""
        with self.applied():
            if self.schedule is None:
                return run(seed, families=self.families, shape=self.shape, alarm=self.alarm)
            return direct(self.schedule, seed, alarm=self.alarm)

    @contextmanager
    def applied(self) -> Iterator[None]:
        saved = [(place, name, vars(place)[name]) for place, name, _ in self.patches]
        for place, name, replacement in self.patches:
            setattr(place, name, replacement)
        try:
            yield
        finally:
            for place, name, original in saved:
                setattr(place, name, original)


def _forgetful(profile: Profile) -> None:
    """Records so old that the target expires their producer within a second; many batches in flight."""
    profile.age_ms = (_OLD_MS,)
    profile.target.check_interval_s = 1.0
    profile.burst = 12
    profile.produce_every_s = 0.05
    profile.every_s = 0.7
    profile.target.lag_time_s = 2.0
    profile.request_timeout_ms = 5_000


def _short(profile: Profile) -> None:
    """Many lease transfers and commits."""
    _forgetful(profile)
    profile.batch_s = 4.0
    profile.commit_ms = 200


def _lasting(profile: Profile) -> None:
    """A micro-batch that does not end: the next one would continue."""
    _forgetful(profile)
    profile.batch_s = 3600.0


def _frozen(profile: Profile) -> None:
    """Lease holders that are frozen while batches wait, without lease transfers in between."""
    profile.batch_s = 60.0
    profile.burst = 30
    profile.produce_every_s = 0.02
    profile.every_s = 4.0
    profile.chaos_s = 60.0


def _uncommitted(profile: Profile) -> None:
    """Rare commits, so that many records are copied after the last mark."""
    profile.every_s = 1.0
    profile.source.lag_time_s = 2.0
    profile.commit_ms = 5_000
    profile.batch_s = 20.0
    profile.produce_every_s = 0.02


# -- replacements


def _depth_always(self: Outbox, _remembered_ms: float) -> bool:
    return not self.sent or (self.identity is not None and len(self.sent) < MAX_IN_FLIGHT)


def _depth_whatever_age(self: Outbox, _remembered_ms: float) -> bool:
    return not self.sent or (self.identity is not None and self.known and len(self.sent) < MAX_IN_FLIGHT)


def _sent_again(self: ProgressLookUps, outbox: Outbox) -> None:
    # Otherwise the sink would ask for a look-up again at once, for ever.
    outbox.is_unverified, outbox.is_cut_off, outbox.verified_epoch = False, False, None
    self._handle(self._outcomes.retry(outbox, outbox.look_up_cause))


_progress = TargetLookUp.progress


def _ends_at_once(self: TargetLookUp, questions: Mapping[TopicPartition, ProgressQuestion]) -> Any:
    self._cluster.metadata(sorted({tp.topic for tp in questions}))
    return self._admin.list_offsets(dict.fromkeys(questions, LATEST), in_current_epoch=True, log_end=True)


def _high_watermarks(self: TargetLookUp, epochs: Mapping[TopicPartition, int]) -> Any:
    self._cluster.metadata(sorted({tp.topic for tp in epochs}))
    return self._admin.list_offsets(dict.fromkeys(epochs, LATEST), in_current_epoch=True)


def _forgotten_is_nothing(
    self: TargetLookUp, questions: Mapping[TopicPartition, ProgressQuestion]
) -> dict[TopicPartition, TargetProgress | KafkaFailure]:
    """Trust DescribeProducers, and assume that nothing was appended where it lists no producer."""
    described = self._admin.describe_producers(questions)
    found: dict[TopicPartition, TargetProgress | KafkaFailure] = {}
    for tp, end in self.stable_ends({tp: asked.leader_epoch for tp, asked in questions.items()}).items():
        producers, question = described[tp], questions[tp]
        if isinstance(end, KafkaFailure):
            found[tp] = end
        elif isinstance(producers, KafkaFailure):
            found[tp] = producers
        else:
            state = producers.get(question.producer.producer_id)
            records = question.records if state is None else count_after(state.last_sequence, question.records)
            found[tp] = TargetProgress(records, end.offset, end.leader_epoch)
    return found


def _failed_is_nothing(self: TargetLookUp, questions: Mapping[TopicPartition, ProgressQuestion]) -> Any:
    """Assume that nothing was appended where a look-up fails."""
    answers = _progress(self, questions)
    asked = {tp: (question.records, question.behind, question.leader_epoch) for tp, question in questions.items()}
    return {tp: one if isinstance(one, TargetProgress) else TargetProgress(*asked[tp]) for tp, one in answers.items()}


_continue_session = ContinuedSessions.continue_session


def _without_reading_past(
    self: ContinuedSessions,
    cursor: Cursor,
    entry: LedgerEntry,
    progress: TargetProgress | None = None,
    there: CopiedRange | None = None,
) -> None:
    if progress is not None:
        progress = dataclasses.replace(progress, records=entry.mark.records, batches=())
    _continue_session(self, cursor, entry, progress, there)


def _without_ledger_at_once(self: Commits) -> None:
    outboxes = () if self._ledger is None else self._ledger.outboxes
    if any(outbox.refused or (outbox.last_error is not None and not outbox.idle) for outbox in outboxes):
        self._ledger = None
        self._positions.without_ledger()


def _own_ended_sessions(self: LedgerEntry) -> tuple[EndedSession, ...]:
    return self.session.at(self.mark).after if self.session is not None and self.mark.records > 0 else ()


_open_one = NewSessions._open_one


def _at_once(method: Callable[..., None]) -> Callable[..., None]:
    """Do not wait until the ledger has the entry."""

    def replaced(self: ContinuedSessions | NewSessions, *args: Any, **kwargs: Any) -> None:
        commit = self._commit

        def committed(cursor: Cursor, then: Callable[[], None]) -> None:
            then()
            commit(cursor, lambda: None)

        self._commit = committed
        try:
            method(self, *args, **kwargs)
        finally:
            self._commit = commit

    return replaced


_remember = Opening._remember


def _remember_without_epoch(self: Opening, cursor: Cursor, *args: Any) -> None:
    _remember(self, cursor, *args)
    cursor.known_epoch = 1 << 30


_starts = Copier._starts


def _clean_when_idle(self: Copier) -> list[Any]:
    rows = _starts(self)
    for topic, partition, row in rows:
        cursor = self._cursors[TopicPartition(topic, partition)]
        row[4] = cursor.outbox.idle and cursor.outbox.acked == cursor.window.records
    return rows


def _as_they_are(_self: StartPositions, _ledger: Ledger, starts: dict[TopicPartition, Start]) -> Any:
    return starts


_start_over = ProduceOutcomes._start_over


def _overtaking_counts(self: ProduceOutcomes, outbox: Outbox) -> Iterator[OutboxEvent]:
    """Treat an acknowledged batch after a rejected one as delivered."""
    for outgoing in [outgoing for outgoing in outbox.sent if outgoing.base_offset is not None]:
        outbox.sent.remove(outgoing)
        outbox.deliver(outgoing, outgoing.base_offset or 0)
    return _start_over(self, outbox)


def _searched(self: Window, base: int) -> None:
    self._searched_to = base


def _at_once_after(self: Window, _offset: int, then: Callable[[], None]) -> None:
    self.next_when_passed = self.position, then


def _validated(self: Losses, cursor: Cursor) -> None:
    self._source.validated(cursor.partition, self._source.leader_epoch(cursor.partition))


_questions = ProgressLookUps._questions


def _without_ended(
    self: ProgressLookUps, asked: Mapping[TopicPartition, Outbox]
) -> dict[TopicPartition, ProgressQuestion]:
    return {tp: question._replace(ended=()) for tp, question in _questions(self, asked).items()}


_choose = Opening._choose


def _from_the_beginning(self: Opening, ways: Any, cursor: Cursor, start: Start, *, confirmed: bool) -> None:
    if start.entry is not None and self._sessions.has_former_topic(start.entry):
        start = dataclasses.replace(start, position=0)
    _choose(self, ways, cursor, start, confirmed=confirmed)


#: Reverts S8, which alone keeps old batches from overtaking each other.
_AT_ONCE_BEHIND: Final = (Outbox, "may_be_processed_late", lambda *_: False)
#: Reverts R3: as in version 0.2, a session does not name those that ended before it. With R3, the late entry that C7 excludes names the
#: session that was continued, too, and a look-up finds its records.
_ENDED_FORGOTTEN: Final = (SessionTable, "end", lambda *_: None)
MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "S1",
        "with S8 reverted too: five batches in flight, whatever the leader remembers",
        ((Outbox, "has_room", _depth_always), _AT_ONCE_BEHIND),
        ("replication", "errors", "move"),
        _forgetful,
        first_seed=62,
    ),
    Mutation(
        "S1",
        "with S8 reverted too: five batches in flight, however old the records are",
        ((Outbox, "has_room", _depth_whatever_age), _AT_ONCE_BEHIND),
        ("replication", "errors"),
        _forgetful,
        first_seed=155,
    ),
    Mutation(
        "S3",
        "a batch in doubt is sent again",
        ((ProgressLookUps, "add", _sent_again),),
        ("errors", "network"),
        _forgetful,
    ),
    Mutation(
        "S5",
        "no send checks the lease",
        ((DriverLink, "may_write", lambda _self: True),),
        ("freeze", "driver"),
        _frozen,
    ),
    Mutation(
        "S7",
        "with S1 and S8 reverted too: batches are sent after the final report",
        ((Outbox, "has_room", _depth_always), _AT_ONCE_BEHIND, (DriverLink, "release", DriverLink.send)),
        ("replication", "errors", "move"),
        _forgetful,
        first_seed=26,
    ),
    Mutation(
        "L1",
        "the log end is read and nothing waits for the high watermark",
        ((TargetLookUp, "stable_ends", _ends_at_once),),
        ("replication", "move", "errors", "crash"),
        _short,
        first_seed=15,
    ),
    Mutation(
        "L1",
        "only what is below the high watermark is counted",
        ((TargetLookUp, "stable_ends", _high_watermarks),),
        ("replication", "errors", "crash"),
        _short,
    ),
    Mutation(
        "L2",
        "what DescribeProducers does not tell is not there",
        ((TargetLookUp, "progress", _forgotten_is_nothing),),
        ("errors", "network"),
        _forgetful,
    ),
    Mutation(
        "L5",
        "nothing was appended where a look-up fails",
        ((TargetLookUp, "progress", _failed_is_nothing),),
        ("replication", "errors", "network"),
        _forgetful,
    ),
    Mutation(
        "C2",
        "`seen` stays that of a holder's start",
        ((Positions, "_record_seen", lambda *_: None),),
        schedule=POSITION_OF_ANOTHER,
    ),
    Mutation(
        "C6",
        "copying continues without the ledger after its first error",
        ((Commits, "_watch_ledger", _without_ledger_at_once),),
        ("replication", "kill", "errors", "crash"),
        _short,
    ),
    Mutation(
        "C2, C4",
        "positions and entries of a predecessor that land late are obeyed",
        (
            (StartPositions, "_without_late_writes", _as_they_are),
            (Ledger, "_is_late", lambda *_: False),
        ),
        schedule=LATE_POSITION,
    ),
    Mutation(
        "C3",
        "a new holder keeps the lease epoch of the one before",
        ((Lease, "taken_over", lambda self, _now_ms: self),),
        schedule=LATE_FIRST_ENTRY,
    ),
    Mutation(
        "S8",
        "old batches are sent behind unanswered requests of the connection",
        (_AT_ONCE_BEHIND,),
        schedule=LATE_OLD_BATCH,
    ),
    Mutation(
        "S8, L7",
        "with S8 reverted too: the position moves past records that may be duplicates",
        (_AT_ONCE_BEHIND, (Window, "_search", _searched)),
        schedule=LATE_OLD_BATCH,
        alarm=True,
    ),
    Mutation(
        "S9",
        "a session continues although the source has changed where a predecessor may have read it",
        ((CopyState, "shares", lambda *_: False),),
        schedule=LATE_AND_RETENTION,
    ),
    Mutation(
        "S9",
        "a predecessor has not read past the high watermark of any later leader",
        ((Source, "epoch_read", lambda self, partition: self._fetch_states[partition].receiver.known_epoch),),
        schedule=LATE_AND_UNCLEAN,
    ),
    Mutation(
        "S9",
        "the next session has another producer, which fences nothing",
        ((Session, "successor", None),),
        schedule=LATE_AFTER_ITS_SUCCESSOR,
    ),
    Mutation(
        "S9",
        "records behind a rejected one take sequences that a predecessor may have sent",
        ((Cursor, "is_sequence_shared", False),),
        schedule=LATE_BEHIND_A_DEAD_LETTER,
    ),
    Mutation(
        "S9",
        "they take sequences of own requests that were not answered",
        ((Outbox, "doubt", lambda *_: None),),
        schedule=LATE_OF_ITS_OWN,
    ),
    Mutation(
        "S10",
        "records behind a dead letter are sent while the position waits for a search",
        ((Window, "when_passed", _at_once_after),),
        schedule=DEAD_LETTER_DURING_A_SEARCH,
    ),
    Mutation(
        "C5",
        "the first batch of a session is sent before the ledger names the session",
        ((NewSessions, "_open_one", _at_once(_open_one)),),
        ("crash", "stall", "reset"),
        _short,
        first_seed=36,
    ),
    Mutation(
        "C7",
        "with R3 reverted too: a successor sends before the ledger has its entry",
        ((ContinuedSessions, "continue_session", _at_once(_continue_session)), _ENDED_FORGOTTEN),
        schedule=LATE_SECOND_SESSION,
    ),
    Mutation(
        "hand-over",
        "an outbox with batches in doubt is handed over as clean",
        ((Copier, "_starts", _clean_when_idle),),
        ("network", "stall"),
        _short,
    ),
    Mutation(
        "progress",
        "nothing is sent after an error",
        ((ProduceOutcomes, "_start_over", lambda *_: ()),),
        ("errors",),
        _lasting,
    ),
    Mutation(
        "R1",
        "what a predecessor has put on the target after its mark is sent again",
        ((ContinuedSessions, "continue_session", _without_reading_past),),
        ("crash",),
        _uncommitted,
    ),
    Mutation(
        "R2",
        "records of a newer leader epoch of the source are counted as copied",
        ((Opening, "_remember", _remember_without_epoch),),
        ("unclean", "crash"),
        _uncommitted,
    ),
    Mutation(
        "R3",
        "a session is continued under other rules",
        ((SessionTable, "has_other_rules", lambda *_: False),),
        ("rules", "crash"),
    ),
    Mutation(
        "R3",
        "records of a session that has ended are not looked for",
        (_ENDED_FORGOTTEN,),
        schedule=REAPPEARED_SESSION,
    ),
    Mutation(
        "R3",
        "a session without records does not name those before it",
        ((LedgerEntry, "ended_sessions", property(_own_ended_sessions)),),
        schedule=REAPPEARED_SESSION,
    ),
    Mutation(
        "R3, S6",
        "they are looked for at the next take-over only",
        ((ProgressLookUps, "_questions", _without_ended),),
        schedule=REAPPEARED_SESSION,
    ),
    Mutation(
        "R8",
        "a session continues in a remote topic of another name",
        ((SessionTable, "has_former_topic", lambda *_: False),),
        schedule=POLICY_CHANGES,
    ),
    Mutation(
        "R8",
        "copying begins again in a remote topic of another name",
        ((Opening, "_choose", _from_the_beginning),),
        ("policy",),
    ),
    Mutation(
        "R4",
        "only the newest leader epoch that was read is known",
        ((history, "common_end", lambda _epochs, epoch, end_offset: (end_offset, epoch)),),
        schedule=DEPOSED_LOG,
    ),
    Mutation(
        "R2",
        "old sources are not asked where their log was cut off",
        ((Losses, "validate", _validated),),
        schedule=WRITTEN_PAST_THE_CUT,
    ),
    Mutation(
        "S4, L3",
        "with S1 and S8 reverted too: what contradicts the count is no reason to stop",
        (
            (Outbox, "has_room", _depth_always),
            _AT_ONCE_BEHIND,
            (ProduceOutcomes, "_start_over", _overtaking_counts),
            (TargetLookUp, "_check_gap", lambda *_: None),
            (TargetLookUp, "_check_room", lambda *_: None),
        ),
        ("replication", "errors", "move"),
        _forgetful,
        first_seed=62,
        alarm=True,
    ),
)

#: These mutations lose or duplicate records, and the partition must stop as INCONSISTENT each time.
ALARMS: tuple[Mutation, ...] = tuple(
    dataclasses.replace(mutation, alarm=True)
    for mutation in MUTATIONS
    if mutation.rule in {"S1", "S3", "S5", "S8"} and not mutation.alarm
)
