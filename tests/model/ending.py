"""Model of the end of a session: rules R3 and S6 of docs/explanation/copy-sessions.md where the rules of a flow change.

One source partition is copied to one target partition with two replicas, which are both in sync all the time. Record n is the
n-th of the source. A session ends where the rules have changed, and the next one begins at the next record, with another
producer. What is abstracted:

* Brokers. Each replica has a log and the high watermark that it knows. An election may choose either replica: the new leader keeps
  the end of its log that it has not truncated yet, because it has not fetched from the leader before it. A fetch makes the logs
  equal, and the follower learns the new high watermark with it or later.
* Holders. One at a time, with one batch in flight. It learns of an election before it sends anything else. A batch whose leader was
  deposed is in doubt. Sending and look-ups in themselves are those of `sending`; here a look-up is one step, and possible
  while the leader's high watermark is its log end.
* Rules. Every record is selected under all of them, so the expected log is the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.model.checker import Action, Invariant

# Phases of a holder: the new session is not in the ledger yet; it copies; the outcome of its batch is in doubt
OPENING, RUN, DOUBT = "opening", "run", "doubt"


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that apply. ``r3_after``: a look-up counts the sessions before it, too. ``r3_inherit``: also those before a session
    without records. ``s6_first``: the first batch of a session is sent in the leader epoch of the look-up before it."""

    r3_after: bool = True
    r3_inherit: bool = True
    s6_first: bool = True


@dataclass(frozen=True, slots=True)
class Bounds:
    """``records`` of the source, and how often the leader moves, a holder crashes, the rules change."""

    records: int = 2
    moves: int = 2
    crashes: int = 2
    changes: int = 1


class Ended(NamedTuple):
    """A session that ended with so many records."""

    number: int
    records: int


class Session(NamedTuple):
    """``changes``: how often the rules had changed when it began. ``start``: its first record."""

    number: int
    changes: int
    start: int
    after: tuple[Ended, ...]


class Holder(NamedTuple):
    """``sent`` and ``acked`` are records of the source. ``pin``: leader epoch of the last look-up, -1 after an acknowledgement."""

    phase: str
    session: Session
    sent: int
    acked: int
    pin: int


class World(NamedTuple):
    """``logs`` of (session, record) and high watermarks ``hw`` by replica. ``ledger``: session and a record that it has reached.
    ``spent``: moves, crashes, changes of the rules."""

    logs: tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]
    hw: tuple[int, int]
    leader: int
    epoch: int
    ledger: tuple[Session, int]
    holder: Holder | None
    spent: tuple[int, int, int]


MOVES, CRASHES, CHANGES = range(3)


@dataclass(slots=True)
class Ending:
    """The model, for `tests.model.checker.check`."""

    bounds: Bounds
    rules: Rules = field(default_factory=Rules)
    label: str = "ending"

    @property
    def name(self) -> str:
        b = self.bounds
        return f"{self.label} [{b.records} records, {b.moves} moves, {b.crashes} crashes, {b.changes} changes]"

    def initial(self) -> list[World]:
        first = Session(0, 0, 0, ())
        return [World(((), ()), (0, 0), 0, 0, (first, 0), Holder(RUN, first, 0, 0, 0), (0, 0, 0))]

    @property
    def actions(self) -> Sequence[Action]:
        return (
            self._send,
            self._fetch,
            self._move,
            self._look_up,
            self._open,
            self._commit,
            self._crash,
            self._change,
            self._take,
        )

    @property
    def invariants(self) -> Sequence[Invariant]:
        return (self._complete_and_once,)

    def canonical(self, state: World) -> World:
        return state

    def show(self, state: World) -> list[str]:
        logs = [" ".join(f"{number}:{record}" for number, record in log) for log in state.logs]
        return [
            *(f"b{n} [{log}] hw {hw}" for n, (log, hw) in enumerate(zip(logs, state.hw, strict=True))),
            f"b{state.leader} epoch {state.epoch}",
            f"ledger {state.ledger}",
            f"{state.holder}",
        ]

    def is_goal(self, state: World) -> bool:
        return state.holder is not None and state.holder.acked == self.bounds.records

    # -- the holder

    def _send(self, state: World) -> Iterator[tuple[str, World]]:
        holder = state.holder
        if holder is None or holder.phase != RUN or holder.sent > holder.acked or holder.sent == self.bounds.records:
            return
        is_first = holder.acked == holder.session.start
        if holder.pin not in {-1, state.epoch} and (self.rules.s6_first or not is_first):
            yield "look-up again", state._replace(holder=holder._replace(phase=DOUBT))
            return
        log = (*state.logs[state.leader], (holder.session.number, holder.sent))
        yield f"send {holder.sent}", _with_log(state, log)._replace(holder=holder._replace(sent=holder.sent + 1))

    def _look_up(self, state: World) -> Iterator[tuple[str, World]]:
        """The outcome of the batch in flight."""
        holder = state.holder
        if holder is None or holder.phase != DOUBT or not _is_stable(state):
            return
        if self._revived(state, holder.session) is not None:
            yield "ended session found", state._replace(holder=None)
            return
        reached = holder.session.start + _count(state, holder.session.number)
        yield (
            f"found {reached}",
            state._replace(holder=holder._replace(phase=RUN, sent=reached, acked=reached, pin=state.epoch)),
        )

    def _take(self, state: World) -> Iterator[tuple[str, World]]:
        """A new holder looks up the session of the ledger, reads past its records, and opens another one if the rules have
        changed."""
        if state.holder is not None or not _is_stable(state):
            return
        session, _ = state.ledger
        revived = self._revived(state, session)
        if revived is not None:
            before = session.after[: session.after.index(revived)]
            # Its start follows from what the log has of it.
            first = next(record for number, record in state.logs[state.leader] if number == revived.number)
            session = Session(revived.number, -1, first, before)
        count = _count(state, session.number)
        reached = session.start + count
        if session.changes == state.spent[CHANGES]:
            yield "continue", state._replace(holder=Holder(RUN, session, reached, reached, state.epoch))
            return
        known = session.after if self.rules.r3_inherit and not count else ()
        after = (*known, Ended(session.number, count)) if self.rules.r3_after else ()
        number = 1 + max(session.number, state.ledger[0].number)
        opened = Session(number, state.spent[CHANGES], reached, after)
        yield "end", state._replace(holder=Holder(OPENING, opened, reached, reached, state.epoch))

    def _open(self, state: World) -> Iterator[tuple[str, World]]:
        holder = state.holder
        if holder is not None and holder.phase == OPENING:
            after = state._replace(ledger=(holder.session, holder.acked), holder=holder._replace(phase=RUN))
            yield f"open {holder.session.number}", after

    def _commit(self, state: World) -> Iterator[tuple[str, World]]:
        holder = state.holder
        if holder is not None and holder.phase == RUN and state.ledger != (holder.session, holder.acked):
            yield "commit", state._replace(ledger=(holder.session, holder.acked))

    def _revived(self, state: World, session: Session) -> Ended | None:
        """A session before this one of which the log has more records than when it ended."""
        if _count(state, session.number):
            return None
        return next((ended for ended in session.after if _count(state, ended.number) > ended.records), None)

    # -- what happens to it

    def _crash(self, state: World) -> Iterator[tuple[str, World]]:
        if state.holder is not None and state.spent[CRASHES] < self.bounds.crashes:
            yield "crash", _spend(state, CRASHES)._replace(holder=None)

    def _change(self, state: World) -> Iterator[tuple[str, World]]:
        if state.holder is None and state.spent[CHANGES] < self.bounds.changes:
            yield "change the rules", _spend(state, CHANGES)

    # -- the brokers

    def _fetch(self, state: World) -> Iterator[tuple[str, World]]:
        follower, log = 1 - state.leader, state.logs[state.leader]
        for known in sorted({min(state.hw[follower], len(log)), len(log)}):
            hw = [len(log), len(log)]
            hw[follower] = known
            after = state._replace(logs=(log, log), hw=(hw[0], hw[1]))
            holder = state.holder
            if holder is not None and holder.phase == RUN and holder.sent > holder.acked:
                after = after._replace(holder=holder._replace(acked=holder.sent, pin=-1))
            if after != state:
                yield f"fetch, hw {known}", after

    def _move(self, state: World) -> Iterator[tuple[str, World]]:
        if state.spent[MOVES] == self.bounds.moves:
            return
        after = _spend(state, MOVES)._replace(leader=1 - state.leader, epoch=state.epoch + 1)
        holder = state.holder
        if holder is not None and holder.phase == RUN and holder.sent > holder.acked:
            after = after._replace(holder=holder._replace(phase=DOUBT))
        yield f"elect b{after.leader}", after

    # -- invariants

    def _complete_and_once(self, state: World) -> str:
        records = [record for _, record in state.logs[state.leader][: state.hw[state.leader]]]
        for place, record in enumerate(records):
            if record != place:
                return f"I1: record {record} is there twice" if record < place else f"I1: record {place} is missing"
        return ""


def _count(state: World, number: int) -> int:
    return sum(session == number for session, _ in state.logs[state.leader])


def _is_stable(state: World) -> bool:
    return state.hw[state.leader] == len(state.logs[state.leader])


def _with_log(state: World, log: tuple[tuple[int, int], ...]) -> World:
    logs = list(state.logs)
    logs[state.leader] = log
    return state._replace(logs=(logs[0], logs[1]))


def _spend(state: World, budget: int) -> World:
    spent = list(state.spent)
    spent[budget] += 1
    return state._replace(spent=(spent[0], spent[1], spent[2]))
