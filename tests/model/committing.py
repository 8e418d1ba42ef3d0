"""Model of commits and of take-overs: rules C1 to C6 and S5 of docs/explanation/copy-sessions.md.

One partition with a handful of records. What the model of sending shows is taken for granted here: within a session records
arrive once and in order, and a look-up finds how many of them there are. What is left are the records of the ledger and of Connect's
offsets topic, and how a holder begins by them:

* A holder writes one record at a time and waits for its answer. An unanswered write may land at any later time, in any order, or
  never; the holder may repeat it meanwhile. When the lease passes on, what is unanswered is still on its way.
* The lease passes at any time, directly or while the flow is stopped. With S5 the previous holder writes nothing more. Without S5 a
  frozen one continues with its commit.
* A user sets the position to any other value, only while the flow is stopped, as Connect demands it (`PUT …/offsets` needs STOPPED).
* A holder may have to open a session of its own accord (``reopens``: its rules have changed).
* A reader sees every record of a topic in the order of their offsets. With ``compaction`` only the last one of a topic may be left.
* Lease epochs grow by one and are taken from the newest record read (``clock`` off), or from a clock that is the same for all (on).

Not modelled: ledger and offsets topic that are deleted; chunks of segments; exactly-once mode.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.model.checker import Action, Invariant

LEDGER, POSITION, USER = "ledger", "position", "user"
# What a holder waits for: an entry before its first batch, an entry of a commit, a position; nothing
OPENING, ENTRY, PLACE, FREE = "opening", "entry", "place", "free"


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that apply. Without a rule, the model behaves like the code at commit 44f5efd.

    ``c7_clean``: a hand-over is only called clean when an entry of the predecessor was acknowledged in this session. Without
    ``c8`` a position is compared with the mark and with `previous`. ``c8_seen``: `seen` grows with each acknowledged position. ``shortcut`` is no rule: a position that equals the newest mark
    is taken for ours, whatever stands before it.
    """

    s5: bool = True
    c1: bool = True
    c2: bool = True
    c3: bool = True
    c4: bool = True
    c5: bool = True
    c6: bool = True
    c7: bool = True
    c7_clean: bool = True
    c8: bool = True
    c8_seen: bool = True
    shortcut: bool = False


#: The commit that the findings are of: it wrote the ledger first, and a session before its first batch.
OLD = Rules(s5=False, c2=False, c3=False, c4=False, c6=False, c7=False, c7_clean=False, c8=False, c8_seen=False)


@dataclass(frozen=True, slots=True)
class Bounds:
    """``commits`` per holder; ``delays``: writes that are left unanswered and repeated; ``outages`` of the ledger; ``clean``: the lease
    may pass with a final report; ``strays``: positions without header that are written while a holder runs; ``late``: what may still
    land when its writer dies before the answer; ``frozen``: what a writer may be waiting for when it freezes."""

    records: int = 3
    holders: int = 3
    commits: int = 2
    resets: int = 0
    delays: int = 0
    reopens: int = 0
    outages: int = 0
    clean: bool = False
    strays: int = 0
    compaction: bool = False
    clock: bool = True
    late: tuple[str, ...] = (LEDGER, POSITION)
    frozen: tuple[str, ...] = (LEDGER, POSITION)


class Record(NamedTuple):
    """An entry of the ledger or a position. ``source`` is the position, ``records`` those of the session up to it. A user's
    has nothing but the position. ``seen``: an offset of the offsets topic before which its writer knew everything. Only records
    of users are counted in such an offset, as it is compared with their offsets alone."""

    kind: str
    source: int
    lease: int = 0
    number: int = 0
    session: int = -1
    records: int = 0
    previous: int = -1
    seen: int = 0


class Holder(NamedTuple):
    """``place``: next source record. ``committed``: what it takes for the position in the offsets topic. ``out``: its unanswered
    record. ``done``: (place, committed) as the ledger has them. ``ledger``: there is one to write to. ``entered``: an entry of
    this session was acknowledged, of its own or of the holders that have handed over to it."""

    lease: int
    session: int
    place: int
    committed: int
    number: int
    seen: int
    waits: str
    out: Record | None
    done: tuple[int, int]
    ledger: bool
    entered: bool = False


class World(NamedTuple):
    """``counts``: records on the target by session. ``expect``: the record that has to come next; ``wanted``: what a user has set
    and no holder has begun at, -1 for none. ``stray`` (its source offset, 1 behind a position that was acknowledged later, sessions at that time) is a position
    that was written while a holder ran: it may be obeyed, but not once a record that follows such a position was acknowledged. ``wire``: writes that may still land. ``offsets``: (offset, record) of the offsets topic.
    """

    ledger: tuple[Record, ...]
    offsets: tuple[tuple[int, Record], ...]
    end: int
    wire: tuple[Record, ...]
    starts: tuple[int, ...]
    counts: tuple[int, ...]
    expect: int
    wanted: int
    stray: tuple[int, int, int] | tuple[()]
    bad: str
    holder: Holder | None
    frozen: Holder | None
    lease: int
    spent: tuple[int, int, int, int, int, int]


HOLDERS, RESETS, DELAYS, REOPENS, OUTAGES, STRAYS = range(6)


@dataclass(slots=True)
class Committing:
    """The model, for `tests.model.checker.check`."""

    bounds: Bounds
    rules: Rules = field(default_factory=Rules)
    label: str = "commits"

    @property
    def name(self) -> str:
        b = self.bounds
        text = f"{self.label} [{b.records} records, {b.holders} holders, {b.commits} commits, {b.resets} resets, "
        text += f"{b.delays} delays, {b.reopens} reopens, {b.outages} outages"
        text += ", clean hand-overs" if b.clean else ""
        text += f", {b.strays} strays" if b.strays else ""
        return text + (", compaction" if b.compaction else "") + ("" if b.clock else ", no clock") + "]"

    def initial(self) -> Iterator[World]:
        yield World((), (), 0, (), (), (), 0, -1, (), "", None, None, 0, (0,) * 6)

    @property
    def actions(self) -> Sequence[Action]:
        return (
            self._begin,
            self._copy,
            self._commit,
            self._answer,
            self._delay,
            self._land,
            self._lose_lease,
            self._hand_over,
            self._reset,
            self._stray,
            self._outage,
            self._compact,
        )

    @property
    def invariants(self) -> Sequence[Invariant]:
        return (lambda state: state.bad,)

    def canonical(self, state: World) -> World:
        """Leave out records that no reader looks at any more."""
        ledger = state.ledger
        if self.rules.c2 and len(ledger) > 1:
            newest = max(_version(entry) for entry in ledger)
            ledger = tuple(dict.fromkeys(entry for entry in ledger if _version(entry) == newest or entry is ledger[-1]))
        offsets = state.offsets
        if len(offsets) > 2:
            users = [row for row in offsets if row[1].kind == USER]
            ours = [row for row in offsets if row[1].kind == POSITION]
            newest = max((_version(row[1]) for row in ours), default=(0, 0))
            kept = {offsets[-1], *users[-1:], *(row for row in ours if _version(row[1]) == newest)}
            offsets = tuple(row for row in offsets if row in kept)
        return state._replace(
            ledger=ledger, offsets=offsets, wire=tuple(sorted(state.wire)) if len(state.wire) > 1 else state.wire
        )

    def is_goal(self, state: World) -> bool:
        return state.expect == self.bounds.records and state.wanted < 0

    def show(self, state: World) -> Sequence[str]:
        entries = [
            f"{e.lease}.{e.number} S{e.session} mark {e.source}/{e.records} previous {e.previous}" for e in state.ledger
        ]
        places = [
            f"{row.source} ({row.lease}.{row.number})" if row.kind == POSITION else f"{row.source} (user)"
            for _, row in state.offsets
        ]
        copied = [f"S{number} {start}+{state.counts[number]}" for number, start in enumerate(state.starts)]
        late = [f"{row.kind} {row.lease}.{row.number} {row.source}" for row in state.wire]
        parts = [
            f"ledger [{', '.join(entries)}]",
            f"offsets [{', '.join(places)}]",
            f"target [{', '.join(copied)}]",
            f"late [{', '.join(late)}]",
        ]
        for name, holder in (("holder", state.holder), ("frozen", state.frozen)):
            if holder is None:
                parts.append(f"no {name}")
            else:
                parts.append(f"{name} e{holder.lease} S{holder.session} at {holder.place} {holder.waits}")
        return parts

    # -- beginning -------------------------------------------------------------------------------------------------------

    def _begin(self, state: World) -> Iterator[tuple[str, World]]:
        if state.holder is not None or state.spent[HOLDERS] >= self.bounds.holders:
            return
        entry, obeyed = self._read(state)
        base = entry.lease if entry is not None else 0
        lease = base + 1
        if not self.rules.c3:
            lease = max(base, 1)
        elif self.bounds.clock:
            lease = max(state.lease, base) + 1
        shown = state.offsets[-1][1].source if state.offsets else -1
        state = _spend(state, HOLDERS)._replace(lease=max(lease, state.lease))
        number = 0 if self.rules.c3 or entry is None else entry.number
        fresh = Holder(lease, -1, 0, shown, number, state.end, FREE, None, (-1, -1), ledger=True)
        if entry is None or obeyed >= 0:
            place = max(obeyed, 0) if obeyed >= 0 else max(shown, 0)
            yield f"begin e{lease} at {place}", self._open(state, fresh, place)
            return
        there = state.counts[entry.session]
        place = entry.source + there - entry.records
        holder = fresh._replace(session=entry.session, place=place, done=(entry.source, entry.previous))
        if self.rules.c7:
            number += 1
            out = Record(LEDGER, entry.source, lease, number, entry.session, entry.records, shown, state.end)
            waiting = holder._replace(number=number, out=out, waits=OPENING)
            yield f"begin e{lease} in S{entry.session}", state._replace(holder=waiting)
        else:
            yield f"begin e{lease} in S{entry.session}", state._replace(holder=holder)
        if state.spent[REOPENS] < self.bounds.reopens:
            yield f"begin e{lease} again", self._open(_spend(state, REOPENS), fresh, place)

    def _open(self, state: World, holder: Holder, place: int) -> World:
        """C5: a session is in the ledger before its first batch."""
        session = len(state.starts)
        state = state._replace(starts=(*state.starts, place), counts=(*state.counts, 0))
        holder = holder._replace(session=session, place=place)
        if self.rules.c5 and holder.ledger:
            number = holder.number + 1
            out = Record(LEDGER, place, holder.lease, number, session, 0, holder.committed, holder.seen)
            holder = holder._replace(number=number, out=out, waits=OPENING)
        return state._replace(holder=holder)

    def _read(self, state: World) -> tuple[Record | None, int]:
        """Start of a new holder: the record with session and mark, and the position that it uses (-1: none)."""
        shown = state.offsets[-1][1] if state.offsets else None
        if not self.rules.c2:
            # As `start_of` did: the last record of each topic.
            return self._compare(state.ledger[-1] if state.ledger else None, shown)
        entry = max(state.ledger, key=_version, default=None)
        if not self.rules.c4:
            return self._compare(entry, shown)
        ours = [*([entry] if entry is not None else []), *(row for _, row in state.offsets if row.kind == POSITION)]
        newest = max(ours, key=_version, default=None)
        if self.rules.c8:
            header = max((row for row in ours if row.kind == POSITION), key=_version, default=None)
            seen = max([row.seen for row in (entry, header) if row is not None], default=0)
            if self.rules.shortcut and newest is not None and shown is not None and shown.source == newest.source:
                return newest, -1
            users = [row.source for at, row in state.offsets if row.kind == USER and at >= seen]
            return newest, users[-1] if users else -1
        if shown is None or shown.kind != USER:
            return newest, -1
        known = {newest.source, newest.previous} if newest is not None else set()
        return newest, -1 if shown.source in known else shown.source

    @staticmethod
    def _compare(entry: Record | None, shown: Record | None) -> tuple[Record | None, int]:
        if entry is None or shown is None:
            # Without a position a session continues only if it never had one.
            return (entry, -1) if entry is None or entry.previous < 0 else (entry, 0)
        return entry, -1 if shown.source in {entry.source, entry.previous} else shown.source

    # -- copying and committing ------------------------------------------------------------------------------------------

    def _copy(self, state: World) -> Iterator[tuple[str, World]]:
        holder = state.holder
        if holder is None or holder.waits == OPENING or holder.place >= self.bounds.records:
            return
        record, counts = holder.place, list(state.counts)
        counts[holder.session] += 1
        wanted, bad = state.wanted, ""
        begun_at = state.stray[0] if state.stray and holder.session >= state.stray[2] else -1
        if wanted >= 0:
            bad = (
                ""
                if record == wanted
                else f"I5: a user has set the position to {wanted}, and record {record} is copied"
            )
            wanted = -1
        elif record == begun_at:
            bad = ""
        elif record < state.expect:
            bad = f"I1: record {record} is copied again, {state.expect} is the next one"
        elif record > state.expect:
            bad = f"I1: record {record} is copied, {state.expect} is left out"
        stray = () if begun_at >= 0 else state.stray
        after = state._replace(counts=tuple(counts), expect=record + 1, wanted=wanted, stray=stray, bad=bad)
        yield f"copy record {record}", after._replace(holder=holder._replace(place=record + 1))

    def _commit(self, state: World) -> Iterator[tuple[str, World]]:
        holder = state.holder
        if holder is None or holder.waits != FREE or holder.number > self.bounds.commits:
            return
        if holder.done == (holder.place, holder.committed):
            return
        holder = holder._replace(number=holder.number + 1)
        if holder.ledger and self.rules.c1:
            out = self._record(LEDGER, state, holder)
            yield f"write entry {out.source}", state._replace(holder=holder._replace(waits=ENTRY, out=out))
        elif holder.place != holder.committed and holder.place > 0:
            out = self._record(POSITION, state, holder)
            yield f"write position {out.source}", state._replace(holder=holder._replace(waits=PLACE, out=out))

    def _record(self, kind: str, state: World, holder: Holder) -> Record:
        count = holder.place - state.starts[holder.session]
        return Record(
            kind, holder.place, holder.lease, holder.number, holder.session, count, holder.committed, holder.seen
        )

    def _writers(self, state: World) -> Iterator[tuple[str, Holder]]:
        if state.holder is not None:
            yield "holder", state.holder
        if state.frozen is not None:
            yield "frozen", state.frozen

    def _answer(self, state: World) -> Iterator[tuple[str, World]]:
        """A write is appended and acknowledged."""
        for name, holder in self._writers(state):
            out = holder.out
            if out is None:
                continue
            after = _landed(state, out)
            if holder.waits == OPENING:
                done = (out.source, out.previous)
                writer = holder._replace(waits=FREE, out=None, done=done, entered=True)
            elif holder.waits == ENTRY:
                writer = holder._replace(waits=FREE, out=None, done=(out.source, out.previous))
                if self.rules.c1 and out.source != holder.committed and out.source > 0:
                    writer = writer._replace(waits=PLACE, out=out._replace(kind=POSITION))
            else:
                seen = after.end if self.rules.c8_seen else holder.seen
                writer = holder._replace(waits=FREE, out=None, committed=out.source, seen=seen)
                if not self.rules.c1 and holder.ledger:
                    writer = writer._replace(waits=ENTRY, out=out._replace(kind=LEDGER, previous=holder.committed))
            if after.stray and holder.session < after.stray[2]:
                place, level, sessions = after.stray
                level += holder.waits == PLACE
                # A record behind an acknowledged position ends the time in which the stray may be obeyed.
                after = after._replace(
                    stray=() if level > 1 or (level and holder.waits != PLACE) else (place, level, sessions)
                )
            yield f"acknowledged {name} {out.kind} {out.source}", _with(after, name, writer)

    def _delay(self, state: World) -> Iterator[tuple[str, World]]:
        """No response: the write is repeated, and the first one may be appended at any time."""
        if state.spent[DELAYS] < self.bounds.delays:
            for _, holder in self._writers(state):
                if holder.out is not None:
                    yield (
                        f"unanswered {holder.out.kind}",
                        _spend(state, DELAYS)._replace(wire=(*state.wire, holder.out)),
                    )

    def _land(self, state: World) -> Iterator[tuple[str, World]]:
        for index, row in enumerate(state.wire):
            rest = state._replace(wire=state.wire[:index] + state.wire[index + 1 :])
            yield f"late {row.kind} {row.source}", _landed(rest, row)
            yield f"never {row.kind} {row.source}", rest

    def _lose_lease(self, state: World) -> Iterator[tuple[str, World]]:
        """The holder is killed, frozen or stopped."""
        holder = state.holder
        if holder is None or state.spent[HOLDERS] >= self.bounds.holders:
            return
        gone = state._replace(holder=None, frozen=None)
        yield "stop", gone
        if holder.out is not None:
            if holder.out.kind in self.bounds.late:
                yield "die unanswered", gone._replace(wire=(*state.wire, holder.out))
            if not self.rules.s5 and holder.out.kind in self.bounds.frozen:
                yield "freeze", gone._replace(frozen=holder)

    def _hand_over(self, state: World) -> Iterator[tuple[str, World]]:
        """A final report gives session, mark and known offsets to the next holder of the same driver."""
        holder = state.holder
        if not self.bounds.clean or holder is None or state.spent[HOLDERS] >= self.bounds.holders:
            return
        if self.rules.c7_clean and not holder.entered:
            return
        lease = state.lease + 1 if self.rules.c3 else state.lease
        wire = state.wire if holder.out is None else (*state.wire, holder.out)
        number = 0 if self.rules.c3 else holder.number
        successor = holder._replace(lease=lease, number=number, waits=FREE, out=None)
        yield (
            f"hand over e{lease}",
            _spend(state, HOLDERS)._replace(wire=wire, holder=successor, frozen=None, lease=lease),
        )

    def _stray(self, state: World) -> Iterator[tuple[str, World]]:
        """A user writes a position while a holder runs, which Connect does not allow."""
        if state.holder is None or state.spent[STRAYS] >= self.bounds.strays or not state.starts:
            return
        for place in range(self.bounds.records):
            after = _landed(_spend(state, STRAYS), Record(USER, place))
            yield f"stray {place}", after._replace(stray=(place, 0, len(state.starts)))

    def _reset(self, state: World) -> Iterator[tuple[str, World]]:
        if state.holder is not None or state.spent[RESETS] >= self.bounds.resets or not state.starts:
            return
        shown = state.offsets[-1][1].source if state.offsets else -1
        for place in range(self.bounds.records):
            if place != shown and (place != state.expect or place == 0):
                after = _landed(_spend(state, RESETS), Record(USER, place))
                yield f"user sets {place}", after._replace(wanted=place)

    def _outage(self, state: World) -> Iterator[tuple[str, World]]:
        """Without C6 a holder continues without the ledger after some time."""
        holder = state.holder
        if self.rules.c6 or holder is None or state.spent[OUTAGES] >= self.bounds.outages or not holder.ledger:
            return
        after = _spend(state, OUTAGES)
        wire = state.wire if holder.out is None or holder.waits == PLACE else (*state.wire, holder.out)
        waits, out = (PLACE, holder.out) if holder.waits == PLACE else (FREE, None)
        yield "give up ledger", after._replace(holder=holder._replace(ledger=False, waits=waits, out=out), wire=wire)

    def _compact(self, state: World) -> Iterator[tuple[str, World]]:
        if not self.bounds.compaction:
            return
        if len(state.ledger) > 1:
            yield "compact ledger", state._replace(ledger=state.ledger[-1:])
        if len(state.offsets) > 1:
            yield "compact offsets", state._replace(offsets=state.offsets[-1:])


def _version(record: Record) -> tuple[int, int]:
    return record.lease, record.number


def _landed(state: World, row: Record) -> World:
    if row.kind == LEDGER:
        return state._replace(ledger=(*state.ledger, row))
    end = state.end + (row.kind == USER)
    return state._replace(offsets=(*state.offsets, (state.end, row)), end=end)


def _with(state: World, name: str, holder: Holder) -> World:
    return state._replace(holder=holder) if name == "holder" else state._replace(frozen=holder)


def _spend(state: World, budget: int) -> World:
    spent = list(state.spent)
    spent[budget] += 1
    return state._replace(spent=(spent[0], spent[1], spent[2], spent[3], spent[4], spent[5]))
