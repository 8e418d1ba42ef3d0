"""Model of dead letters and of a source that changes: rules S9 and S10 of docs/explanation/copy-sessions.md.

One source partition is copied to one target partition with one replica, which remembers the producer. Records have one batch each
and the numbers 0, 1, 2 … in the order in which they were written to the source. What is abstracted:

* The broker. It accepts the next sequence of the producer's epoch, and sequence 0 of a later epoch. It answers a sequence that it
  has as a duplicate, rejects an earlier epoch and any other sequence, and rejects records that are too large. High watermark and
  leader are those of `sending`.
* Network. Requests of one connection are processed one after the other. When the holder crashes or closes its connection, those that
  were not processed are late: each is processed at any later time, or never.
* Holders. One at a time, with two requests in flight. A crash is a take-over that is not clean. The position passes an acknowledged
  record at any later time, because a search of the target may come before (L7). A look-up is one step. Nothing is processed between
  the look-up before the first batch of a session and that batch, which is an assumption of the protocol.
* The source. While there is no holder, an election may replace all records from some place behind the mark on. A holder that reads
  records of a later leader epoch compares the records on the target by content (R2).
* Dead letters. Writing one is one step. A record that was written twice there is no error.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.model.checker import Action, Invariant

# Phases of a holder: it copies; the outcome of its requests is in doubt; a rejected record is being written to the dead letter
# topic; it was written, and nothing is sent before the ledger has that; the session ends; the next one is not in the ledger yet
RUN, DOUBT, LETTER, BARRIER, ENDING, OPENING = "run", "doubt", "letter", "barrier", "ending", "opening"
QUEUED, APPENDED, REJECTED, REFUSED = "queued", "appended", "rejected", "refused"

UNBOUNDED = 99
_DEPTH = 2


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that apply. ``s9_source``: the session ends where the source has changed. ``s9_letter``: it ends at a dead letter whose
    sequence a predecessor may have sent, ``s9_own``: or this holder. ``s9_epoch``: the next session has the next producer epoch, so that
    its first batch fences those of the one before. ``s9_entry``: a ledger entry of a session that ends names no leader epoch that was
    read, so that a successor ends it, too. ``s10``: nothing behind a dead letter is sent before the position has passed it and the
    ledger has that."""

    s9_source: bool = True
    s9_letter: bool = True
    s9_own: bool = True
    s9_epoch: bool = True
    s9_entry: bool = True
    s10: bool = True


@dataclass(frozen=True, slots=True)
class Bounds:
    """Number of records, those that are too large, and how often a holder crashes, a connection closes, the source changes."""

    records: int = 3
    large: tuple[int, ...] = ()
    crashes: int = 1
    breaks: int = 0
    changes: int = 0


class Request(NamedTuple):
    """A Produce request. ``producer`` differs only where a session has another producer than the one before it."""

    producer: int
    epoch: int
    sequence: int
    record: int


class Row(NamedTuple):
    """A record on the source, with the leader epoch in which it was written."""

    record: int
    version: int


class Ended(NamedTuple):
    """A session that ended with so many records, at this place of the source."""

    producer: int
    epoch: int
    records: int
    place: int


class Session(NamedTuple):
    """``after``: the session before it, until one of its own records is acknowledged."""

    producer: int = 0
    epoch: int = 0
    after: Ended | None = None


class Mark(NamedTuple):
    """``place`` of the source up to which ``records`` of the session were copied. ``version``: newest leader epoch that was read."""

    place: int = 0
    records: int = 0
    version: int = 0


class Holder(NamedTuple):
    """``read`` are the places after the mark that were read, without those that are in the dead letter topic. The first ``acked`` are
    acknowledged; ``flights`` are the next ones, with their status. ``left_out``: places after the mark that are in the dead letter
    topic. ``doubt``: sequence after the last request whose outcome was unknown. ``shared``: place up to which a predecessor may have
    read. ``known``: leader epoch up to which it is known to have read."""

    phase: str
    session: Session
    mark: Mark
    read: tuple[int, ...] = ()
    acked: int = 0
    flights: tuple[tuple[Request, str], ...] = ()
    left_out: tuple[int, ...] = ()
    doubt: int = 0
    shared: int = -1
    known: int = 0


class World(NamedTuple):
    """``late`` are requests of closed connections, oldest first. ``spent``: crashes, breaks, changes."""

    source: tuple[Row, ...]
    log: tuple[Request, ...]
    late: tuple[Request, ...]
    ledger: tuple[Session, Mark]
    holder: Holder | None
    spent: tuple[int, int, int]


CRASHES, BREAKS, CHANGES = range(3)


@dataclass(slots=True)
class Rejecting:
    """The model, for `tests.model.checker.check`."""

    bounds: Bounds
    rules: Rules = field(default_factory=Rules)
    label: str = "rejecting"

    @property
    def name(self) -> str:
        b = self.bounds
        large = "".join(map(str, b.large)) or "none"
        return f"{self.label} [{b.records} records, {large} too large, {b.crashes} crashes, {b.breaks} breaks, {b.changes} changes]"

    def initial(self) -> list[World]:
        source = tuple(Row(record, 0) for record in range(self.bounds.records))
        first = Session()
        return [World(source, (), (), (first, Mark()), Holder(RUN, first, Mark()), (0, 0, 0))]

    @property
    def actions(self) -> Sequence[Action]:
        return (
            self._send,
            self._process,
            self._answer,
            self._pass,
            self._look_up,
            self._write_letter,
            self._enter,
            self._commit,
            self._break,
            self._crash,
            self._change,
            self._take,
            self._process_late,
        )

    @property
    def invariants(self) -> Sequence[Invariant]:
        return (self._once_and_in_order, self._nothing_is_missing)

    def canonical(self, state: World) -> World:
        return state

    def show(self, state: World) -> list[str]:
        log = " ".join(f"{row.producer}.{row.epoch}/{row.sequence}:{row.record}" for row in state.log)
        return [
            f"source {' '.join(str(row.record) for row in state.source)}",
            f"log [{log}]",
            f"late {[tuple(row) for row in state.late]}",
            f"ledger {state.ledger}",
            f"{state.holder}",
        ]

    def is_goal(self, state: World) -> bool:
        holder = state.holder
        return holder is not None and holder.phase == RUN and holder.mark.place == len(state.source) and not state.late

    def _is_large(self, record: int) -> bool:
        return record in self.bounds.large

    # -- the holder ------------------------------------------------------------------------------------------------------

    def _send(self, state: World) -> Iterator[tuple[str, World]]:
        holder = state.holder
        if holder is None or holder.phase != RUN or len(holder.flights) == _DEPTH:
            return
        place = holder.mark.place + len(holder.read) + len(holder.left_out)
        sent = holder.acked + len(holder.flights)
        if sent < len(holder.read):  # after an error
            place = holder.read[sent]
        elif place == len(state.source):
            return
        elif self.rules.s9_source and place < holder.shared and state.source[place].version > holder.known:
            yield f"changed at {place}", state._replace(holder=holder._replace(phase=ENDING))
            return
        else:
            holder = holder._replace(read=(*holder.read, place))
        session = holder.session
        if session.after is not None and not holder.mark.records and not sent and _revived(state, session):
            yield "late records of the session before", state._replace(holder=None)
            return
        request = Request(session.producer, session.epoch, holder.mark.records + sent, state.source[place].record)
        flights = (*holder.flights, (request, QUEUED))
        if session.after is not None and not holder.mark.records and not sent:
            # The look-up and the first batch are one step.
            log, status = self._processed(state.log, request)
            flights = ((request, status),)
            state = state._replace(log=log)
        yield f"send {request.record}", state._replace(holder=holder._replace(flights=flights))

    def _process(self, state: World) -> Iterator[tuple[str, World]]:
        holder = state.holder
        if holder is None:
            return
        index = next((i for i, (_, status) in enumerate(holder.flights) if status == QUEUED), -1)
        if index < 0:
            return
        request = holder.flights[index][0]
        log, status = self._processed(state.log, request)
        flights = (*holder.flights[:index], (request, status), *holder.flights[index + 1 :])
        yield f"process {request.record}", state._replace(log=log, holder=holder._replace(flights=flights))

    def _processed(self, log: tuple[Request, ...], request: Request) -> tuple[tuple[Request, ...], str]:
        """What the leader does with a request."""
        own = [row for row in log if row.producer == request.producer]
        epoch = max((row.epoch for row in own), default=request.epoch)
        if request.epoch < epoch:
            return log, REFUSED
        following = sum(row.epoch == request.epoch for row in own)
        if request.sequence < following:
            return log, APPENDED
        if request.sequence > following:
            return log, REFUSED
        return (log, REJECTED) if self._is_large(request.record) else ((*log, request), APPENDED)

    def _answer(self, state: World) -> Iterator[tuple[str, World]]:
        holder = state.holder
        if holder is None or not holder.flights or holder.phase not in (RUN, ENDING):
            return
        (request, status), *others = holder.flights
        if status == APPENDED:
            after = holder._replace(acked=holder.acked + 1, flights=tuple(others))
            yield f"acknowledged {request.record}", state._replace(holder=after)
        elif status != QUEUED and not any(one == QUEUED for _, one in others):
            # Nothing new is sent before all are answered (S2); nothing behind a rejected request was appended (S1).
            phase = LETTER if status == REJECTED else DOUBT
            yield f"{status} {request.record}", state._replace(holder=holder._replace(phase=phase, flights=()))

    def _pass(self, state: World) -> Iterator[tuple[str, World]]:
        """The position passes the next place."""
        holder = state.holder
        if holder is None:
            return
        place, mark = holder.mark.place, holder.mark
        if place in holder.left_out:
            left_out = tuple(one for one in holder.left_out if one != place)
            after = holder._replace(mark=mark._replace(place=place + 1), left_out=left_out)
            yield f"pass {place}", state._replace(holder=after)
        elif holder.acked and holder.read[0] == place:
            mark = Mark(place + 1, mark.records + 1, max(mark.version, state.source[place].version))
            after = holder._replace(mark=mark, read=holder.read[1:], acked=holder.acked - 1)
            yield f"pass {place}", state._replace(holder=after)

    def _look_up(self, state: World) -> Iterator[tuple[str, World]]:
        """How many records of the session are on the target."""
        holder = state.holder
        if holder is None or holder.phase != DOUBT:
            return
        acked = _count(state.log, holder.session.producer, holder.session.epoch) - holder.mark.records
        if acked > len(holder.read):
            yield "fenced", state._replace(holder=None)
            return
        yield f"found {acked}", state._replace(holder=holder._replace(phase=RUN, acked=acked))

    def _write_letter(self, state: World) -> Iterator[tuple[str, World]]:
        """The first record that is not acknowledged is written to the dead letter topic."""
        holder = state.holder
        if holder is None or holder.phase != LETTER:
            return
        place = holder.read[holder.acked]
        read = tuple(one for one in holder.read if one != place)
        is_shared = self.rules.s9_letter and place < holder.shared
        is_own = self.rules.s9_own and holder.doubt > holder.mark.records + holder.acked
        after = holder._replace(read=read, left_out=(*holder.left_out, place), phase=BARRIER)
        if is_shared or is_own:
            # What is behind it is read again.
            after = after._replace(phase=ENDING, read=read[: holder.acked])
        elif not self.rules.s10:
            after = after._replace(phase=RUN)
        yield f"dead letter {state.source[place].record}", state._replace(holder=after)

    def _enter(self, state: World) -> Iterator[tuple[str, World]]:
        """The ledger gets an entry that the holder waits for."""
        holder = state.holder
        if holder is None or holder.flights:
            return
        if holder.phase == BARRIER and not holder.left_out:
            yield "barrier", state._replace(ledger=(holder.session, holder.mark), holder=holder._replace(phase=RUN))
        elif holder.phase == ENDING and not (holder.read or holder.left_out):
            session, mark = holder.session, holder.mark
            ended = Ended(session.producer, session.epoch, mark.records, mark.place)
            following = Session(session.producer, session.epoch + 1, ended)
            if not self.rules.s9_epoch:
                following = Session(session.producer + 1, 0, ended)
            version = state.source[mark.place - 1].version if mark.place else 0
            begun = Holder(OPENING, following, Mark(mark.place, 0, version))
            yield "end the session", state._replace(holder=begun)
        elif holder.phase == OPENING:
            after = state._replace(ledger=(holder.session, holder.mark), holder=holder._replace(phase=RUN))
            yield "open the next session", after

    def _commit(self, state: World) -> Iterator[tuple[str, World]]:
        holder = state.holder
        if holder is None or holder.phase == OPENING:
            return
        mark = holder.mark
        if self.rules.s9_entry and holder.phase == ENDING and not (holder.read or holder.left_out):
            mark = mark._replace(version=-1)
        if state.ledger != (holder.session, mark):
            yield "commit", state._replace(ledger=(holder.session, mark))

    # -- what happens to it ----------------------------------------------------------------------------------------------

    def _break(self, state: World) -> Iterator[tuple[str, World]]:
        holder = state.holder
        if holder is None or holder.phase != RUN or not holder.flights or state.spent[BREAKS] == self.bounds.breaks:
            return
        doubt = max(holder.doubt, holder.flights[-1][0].sequence + 1)
        after = _left_behind(_spend(state, BREAKS))
        yield "break", after._replace(holder=holder._replace(phase=DOUBT, flights=(), doubt=doubt))

    def _crash(self, state: World) -> Iterator[tuple[str, World]]:
        if state.holder is not None and state.spent[CRASHES] < self.bounds.crashes:
            yield "crash", _left_behind(_spend(state, CRASHES))._replace(holder=None)

    def _change(self, state: World) -> Iterator[tuple[str, World]]:
        """An unclean election replaces records that are not known to be copied."""
        if state.holder is not None or state.spent[CHANGES] == self.bounds.changes:
            return
        newest = max(row.record for row in state.source) + 1
        version = state.spent[CHANGES] + 1
        for place in range(state.ledger[1].place, len(state.source)):
            rows = tuple(Row(newest + index, version) for index in range(len(state.source) - place))
            yield f"election, log cut at {place}", _spend(state, CHANGES)._replace(source=state.source[:place] + rows)

    def _take(self, state: World) -> Iterator[tuple[str, World]]:
        """A new holder looks up the session of the ledger and reads past its records on the target: counted, or from the first record
        of another leader epoch on compared by content."""
        if state.holder is not None:
            return
        session, mark = state.ledger
        is_revived = _revived(state, session)
        if is_revived and session.after is not None:
            ended = session.after
            session, mark = Session(ended.producer, ended.epoch), Mark(ended.place, ended.records, -1)
        there = [row.record for row in state.log if (row.producer, row.epoch) == (session.producer, session.epoch)]
        there = there[mark.records :]
        place, records, is_compared = mark.place, mark.records, False
        while there and place < len(state.source):
            row = state.source[place]
            is_compared = is_compared or row.version > mark.version
            if is_compared:
                if row.record in there:
                    found = there.index(row.record) + 1
                    there, records = there[found:], records + found
                else:
                    break
            else:
                there, records = there[1:], records + 1
            place += 1
        records += len(there)
        newest = state.source[-1].version
        shared = len(state.source) if newest == mark.version and not is_compared else UNBOUNDED
        is_to_end = is_compared and self.rules.s9_source
        reached = Mark(place, records, mark.version)
        yield (
            f"take over at {place}",
            state._replace(
                holder=Holder(ENDING if is_to_end else RUN, session, reached, shared=shared, known=mark.version)
            ),
        )

    def _process_late(self, state: World) -> Iterator[tuple[str, World]]:
        if not state.late:
            return
        request, *others = state.late
        yield f"drop late {request.record}", state._replace(late=tuple(others))
        log, _ = self._processed(state.log, request)
        yield f"process-late {request.record}", state._replace(log=log, late=tuple(others))

    # -- invariants ------------------------------------------------------------------------------------------------------

    def _once_and_in_order(self, state: World) -> str:
        records = [row.record for row in state.log]
        for before, record in itertools.pairwise(records):
            if record <= before:
                return f"I1: record {record} is there " + ("twice" if record in records[:-1] else f"behind {before}")
        return ""

    def _nothing_is_missing(self, state: World) -> str:
        """What the ledger or the holder claims is on the target."""
        there = {row.record for row in state.log}
        claimed = [state.ledger[1].place] if state.holder is None else [state.ledger[1].place, state.holder.mark.place]
        for row in state.source[: max(claimed)]:
            if row.record not in there and not self._is_large(row.record):
                return f"I3: record {row.record} is claimed and not on the target"
        return ""


def _count(log: tuple[Request, ...], producer: int, epoch: int) -> int:
    return sum((row.producer, row.epoch) == (producer, epoch) for row in log)


def _revived(state: World, session: Session) -> bool:
    """Whether records of the session before have appeared since it ended."""
    ended = session.after
    if ended is None or _count(state.log, session.producer, session.epoch):
        return False
    return _count(state.log, ended.producer, ended.epoch) > ended.records


def _left_behind(state: World) -> World:
    """The connection is closed: what was not processed may still be."""
    holder = state.holder
    queued = () if holder is None else tuple(request for request, status in holder.flights if status == QUEUED)
    return state._replace(late=state.late + queued)


def _spend(state: World, budget: int) -> World:
    spent = list(state.spent)
    spent[budget] += 1
    return state._replace(spent=(spent[0], spent[1], spent[2]))
