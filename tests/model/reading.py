"""Model of reading: rules R1 to R3 of docs/explanation/copy-sessions.md, and R4 for a source whose leader epoch changes.

One source partition, one target partition, one holder at a time. What the other two models show is taken for granted: a look-up
finds how many records of the session are on the target, and a holder begins with the newest session and mark.

* Source. A log of records, each with the leader epoch it was written in; an aborted one is only selected by `read_uncommitted`.
  An election may remove any number of records from the end of the log (unclean) or none, and what is written afterwards has the
  newer epoch. A leader notes at which offset its epoch begins, also when nothing is written in it.
* Reading. A Fetch takes one record at a time. A Fetch that was answered before an election is one that was taken before it. The
  answers of OffsetForLeaderEpoch and of a diverging epoch in Fetch are the same: the newest epoch that both know, and its end.
* Counting and comparing by content as the page says. Records differ from each other.
* A crash loses everything but ledger and target. The isolation level may be another one afterwards.

``stale`` withdraws an assumption, see `Bounds`. Not modelled: holes by compaction or retention, batches of more than
one record, control batches, re-created topics (they have another topic id).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.model.checker import Action, Invariant


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that apply. Without a rule, the model behaves like the code at commit 44f5efd.

    ``r1``: what is on the target is read past, not sent again. ``r1_rules``: it is counted under the session's rules, not the
    current ones. ``r2``: no record of a later epoch than the ledger knows is counted, it is compared. ``r3``: a session ends when
    its rules are not the current ones. ``r4``: after each change of the source's leader epoch nothing is taken until the log is
    known to have what was read. ``r4_epoch``: a session that begins where a log was cut off knows the epoch before that offset.
    ``r4_starts``: a holder and the ledger know at which offset each epoch of what was read began.
    """

    r1: bool = True
    r1_rules: bool = True
    r2: bool = True
    r3: bool = True
    r4: bool = True
    r4_epoch: bool = True
    r4_starts: bool = True


#: The commit of the findings, with a source that returns no diverging epoch.
OLD = Rules(r1_rules=False, r2=False, r3=False, r4=False, r4_epoch=False, r4_starts=False)


@dataclass(frozen=True, slots=True)
class Bounds:
    """``aborted``: records may belong to aborted transactions. ``changes`` of the isolation level.

    ``fork``: the log of a deposed leader may be elected again, with records that are older than those which were read meanwhile;
    only then does the state contain where epochs began.

    Assumptions: ``stale``: a new holder may begin with a source leader that was deposed before its predecessor ended. ``fork``
    together with a crash: what a holder copied after its last commit may be of such an epoch."""

    records: int = 4
    crashes: int = 1
    elections: int = 1
    changes: int = 0
    aborted: bool = False
    stale: bool = False
    fork: bool = False


class Record(NamedTuple):
    """A record of the source."""

    number: int
    epoch: int
    aborted: bool


class Log(NamedTuple):
    """``begins``: (epoch, first offset) of each leader epoch."""

    records: tuple[Record, ...]
    begins: tuple[tuple[int, int], ...]

    @property
    def epoch(self) -> int:
        """Epoch of the leader that has this log."""
        return self.begins[-1][0]

    def end_of(self, epoch: int) -> tuple[int, int]:
        """`LeaderEpochFileCache.endOffsetFor`: (newest epoch that is not newer than the asked one, where it ends)."""
        older = [known for known, _ in self.begins if known <= epoch]
        newer = [start for known, start in self.begins if known > epoch]
        return older[-1] if older else epoch, newer[0] if newer else len(self.records)


class Mark(NamedTuple):
    """A ledger entry. ``records``: on the target up to it. ``epoch``: of the record before it. ``committed``: the session's rules."""

    offset: int
    records: int
    epoch: int
    committed: bool
    epochs: tuple[tuple[int, int], ...] = ()


class Holder(NamedTuple):
    """``leader``: epoch that it reads in. ``epoch``: of the last record read. ``known``: no later epoch is counted. ``skip`` records
    are on the target; ``match``: those that it is compared with. ``named``: rules that the ledger names for its session."""

    offset: int
    leader: int
    checked: bool
    epoch: int
    known: int
    skip: int
    match: tuple[int, ...]
    committed: bool
    named: bool
    epochs: tuple[tuple[int, int], ...] = ()


class World(NamedTuple):
    """``old``: log of a deposed leader. ``returned``: records that were cut off and are there again. ``committed``: `read_committed` is configured. ``spent``: records, crashes, elections, changes."""

    log: Log
    old: Log | None
    target: tuple[int, ...]
    ledger: Mark
    holder: Holder | None
    committed: bool
    bad: str
    spent: tuple[int, int, int, int]
    returned: frozenset[int] = frozenset()


RECORDS, CRASHES, ELECTIONS, CHANGES = range(4)


@dataclass(slots=True)
class Reading:
    """The model, for `tests.model.checker.check`."""

    bounds: Bounds
    rules: Rules = field(default_factory=Rules)
    label: str = "reading"

    @property
    def name(self) -> str:
        b = self.bounds
        text = f"{self.label} [{b.records} records, {b.crashes} crashes, {b.elections} elections, {b.changes} changes"
        for flag in ("aborted", "stale", "fork"):
            text += f", {flag}" if getattr(b, flag) else ""
        return text + "]"

    def initial(self) -> Iterator[World]:
        for committed in (False, True) if self.bounds.aborted else (False,):
            log = Log((), ((1, 0),))
            yield World(log, None, (), Mark(0, 0, -1, committed), None, committed, "", (0,) * 4)

    @property
    def actions(self) -> Sequence[Action]:
        return (
            self._append,
            self._begin,
            self._check,
            self._take,
            self._commit,
            self._elect,
            self._learn,
            self._crash,
            self._change,
        )

    @property
    def invariants(self) -> Sequence[Invariant]:
        return (lambda state: state.bad,)

    def canonical(self, state: World) -> World:
        return state

    def is_goal(self, state: World) -> bool:
        holder, log = state.holder, state.log
        return (
            holder is not None
            and holder.leader == log.epoch
            and (holder.checked or not self.rules.r4)
            and holder.offset == len(log.records)
            and not _left_out(state, holder.offset)
        )

    def show(self, state: World) -> Sequence[str]:
        log = " ".join(f"{r.number}{'a' if r.aborted else ''}:e{r.epoch}" for r in state.log.records)
        holder = state.holder
        mark = state.ledger
        parts = [
            f"source e{state.log.epoch} [{log}]",
            f"target {list(state.target)}",
            f"ledger offset {mark.offset}, {mark.records} records, e{mark.epoch}, {_level(mark.committed)}",
            _level(state.committed),
        ]
        if holder is None:
            return [*parts, "no holder"]
        match = f" compares {list(holder.match)}" if holder.match else ""
        return [*parts, f"holder e{holder.leader} at {holder.offset} reads past {holder.skip}{match}"]

    # -- the source ------------------------------------------------------------------------------------------------------

    def _append(self, state: World) -> Iterator[tuple[str, World]]:
        number, log = state.spent[RECORDS], state.log
        if number >= self.bounds.records:
            return
        for aborted in (False, True) if self.bounds.aborted else (False,):
            record = Record(number, log.epoch, aborted)
            what = "append-aborted" if aborted else "append"
            following = log._replace(records=(*log.records, record))
            yield f"{what} record {number}", _spend(state, RECORDS)._replace(log=following)

    def _elect(self, state: World) -> Iterator[tuple[str, World]]:
        if state.spent[ELECTIONS] >= self.bounds.elections:
            return
        epoch = state.log.epoch + 1
        old = state.log if self.bounds.stale or self.bounds.fork else None
        after = _spend(state, ELECTIONS)._replace(old=old)
        for end in range(len(state.log.records) + 1):
            yield f"elect e{epoch}, log ends at {end}", after._replace(log=_led(state.log, end, epoch))
        if self.bounds.fork and state.old is not None:
            yield (
                f"elect e{epoch}, log of e{state.old.epoch}",
                after._replace(
                    log=_led(state.old, len(state.old.records), epoch),
                    returned=state.returned
                    | ({r.number for r in state.old.records} - {r.number for r in state.log.records}),
                ),
            )

    # -- the holder ------------------------------------------------------------------------------------------------------

    def _begin(self, state: World) -> Iterator[tuple[str, World]]:
        if state.holder is not None:
            return
        mark = state.ledger
        skip = len(state.target) - mark.records if self.rules.r1 else 0
        committed = mark.committed if self.rules.r1_rules else state.committed
        begun = Holder(
            mark.offset,
            state.log.epoch,
            False,
            mark.epoch,
            mark.epoch,
            skip,
            (),
            committed,
            mark.committed,
            mark.epochs,
        )
        yield f"begin at {mark.offset}", self._concluded(state, begun)
        if self.bounds.stale and state.old is not None and state.old.epoch >= mark.epoch:
            yield f"begin-stale at {mark.offset}", self._concluded(state, begun._replace(leader=state.old.epoch))

    def _concluded(self, state: World, holder: Holder) -> World:
        """Where nothing is left to read past: a session under other rules ends (R3)."""
        if holder.skip or holder.committed == holder.named == state.committed:
            return state._replace(holder=holder)
        if self.rules.r3:
            return self._open(state, holder)
        return state._replace(holder=holder._replace(committed=state.committed))

    @staticmethod
    def _open(state: World, holder: Holder) -> World:
        """A session is in the ledger before its first batch (C5)."""
        mark = Mark(holder.offset, len(state.target), holder.epoch, state.committed, holder.epochs)
        opened = holder._replace(known=holder.epoch, skip=0, match=(), committed=state.committed, named=state.committed)
        return state._replace(ledger=mark, holder=opened)

    def _learn(self, state: World) -> Iterator[tuple[str, World]]:
        holder = state.holder
        if holder is not None and holder.leader < state.log.epoch:
            yield "metadata", state._replace(holder=holder._replace(leader=state.log.epoch, checked=False))

    def _check(self, state: World) -> Iterator[tuple[str, World]]:
        """R4."""
        holder = state.holder
        if holder is None or holder.checked or not self.rules.r4:
            return
        log = self._log_of(state, holder)
        if log is None:
            return
        checked = holder._replace(checked=True)
        epoch, end = log.end_of(holder.epoch)
        if epoch < holder.epoch:
            epoch, end = _common_end(holder.epochs, epoch, end)
        if holder.epoch < 0 or (epoch == holder.epoch and end >= holder.offset):
            yield "source-same", state._replace(holder=checked)
        elif holder.skip and end >= holder.offset:
            yield "source-cut, compare", state._replace(holder=self._comparing(state, checked)._replace(epoch=epoch))
        else:
            offset = min(end, holder.offset)
            # The new position is checked again: the log may not have all of the epoch before it either.
            cut = holder._replace(
                offset=offset,
                epoch=epoch if self.rules.r4_epoch and offset else -1,
                epochs=tuple(row for row in holder.epochs if row[1] < offset),
            )
            yield f"source-cut at {offset}", self._open(state, cut)

    @staticmethod
    def _log_of(state: World, holder: Holder) -> Log | None:
        """A broker answers only in the epoch in which it leads."""
        if holder.leader == state.log.epoch:
            return state.log
        return state.old if state.old is not None and holder.leader == state.old.epoch else None

    @staticmethod
    def _comparing(state: World, holder: Holder) -> Holder:
        return holder._replace(match=state.target[-holder.skip :])

    def _take(self, state: World) -> Iterator[tuple[str, World]]:
        holder = state.holder
        if holder is None or (self.rules.r4 and not holder.checked):
            return
        log = self._log_of(state, holder)
        if log is None or holder.offset >= len(log.records):
            return
        record = log.records[holder.offset]
        is_current = log is state.log
        past = holder._replace(offset=holder.offset + 1, epoch=record.epoch)
        if self.bounds.fork and self.rules.r4_starts and (not past.epochs or past.epochs[-1][0] < record.epoch):
            past = past._replace(epochs=(*past.epochs, (record.epoch, holder.offset)))
        if holder.skip and not holder.match and self.rules.r2 and record.epoch > holder.known:
            yield "compare", state._replace(holder=self._comparing(state, holder))
        elif record.aborted and holder.committed:
            yield f"drop record {record.number}", self._passed(state, past)
        elif holder.match and record.number not in holder.match:
            yield (
                f"new record {record.number}",
                self._concluded(state, holder._replace(skip=0, match=(), known=record.epoch)),
            )
        elif holder.match:
            rest = holder.match[holder.match.index(record.number) + 1 :]
            yield f"same record {record.number}", self._passed(state, past._replace(match=rest, skip=len(rest)))
        elif holder.skip:
            bad = ""
            if is_current and record.number not in state.target:
                bad = f"I1: record {record.number} is counted as copied and is not on the target"
            after = self._passed(state, past._replace(skip=holder.skip - 1))
            yield f"count record {record.number}", after._replace(bad=bad)
        else:
            bad = ""
            if record.number in state.target and record.number not in state.returned:
                bad = f"I1: record {record.number} is there twice"
            elif is_current and (left := _left_out(state, holder.offset)):
                bad = f"I1: record {left[0]} is left out"
            after = self._passed(state, past)
            yield f"copy record {record.number}", after._replace(target=(*state.target, record.number), bad=bad)

    def _passed(self, state: World, holder: Holder) -> World:
        if holder.skip:
            return state._replace(holder=holder)
        return self._concluded(state, holder._replace(known=holder.epoch))

    def _commit(self, state: World) -> Iterator[tuple[str, World]]:
        holder = state.holder
        if holder is None or holder.skip:
            return
        mark = Mark(holder.offset, len(state.target), holder.epoch, holder.named, holder.epochs)
        if mark != state.ledger:
            yield f"commit {mark.offset}", state._replace(ledger=mark)

    def _crash(self, state: World) -> Iterator[tuple[str, World]]:
        if state.holder is not None and state.spent[CRASHES] < self.bounds.crashes:
            yield "crash", _spend(state, CRASHES)._replace(holder=None)

    def _change(self, state: World) -> Iterator[tuple[str, World]]:
        if state.holder is None and state.spent[CHANGES] < self.bounds.changes:
            after = _spend(state, CHANGES)._replace(committed=not state.committed)
            yield f"configure {_level(after.committed)}", after


def _left_out(state: World, offset: int) -> list[int]:
    """Records below an offset that every rule selects and that are not on the target."""
    return [r.number for r in state.log.records[:offset] if not r.aborted and r.number not in state.target]


def _common_end(starts: tuple[tuple[int, int], ...], epoch: int, end: int) -> tuple[int, int]:
    """(epoch, offset) up to which a log has what was read, if ``epoch`` is the newest one of both and ends there at ``end``."""
    end = min([end, *(start for known, start in starts if known > epoch)])
    return next((known for known, start in reversed(starts) if start < end), epoch), end


def _led(log: Log, end: int, epoch: int) -> Log:
    """The log up to an offset, as the leader of a new epoch has it."""
    return Log(log.records[:end], (*(row for row in log.begins if row[1] < end), (epoch, end)))


def _level(committed: bool) -> str:
    return "read_committed" if committed else "read_uncommitted"


def _spend(state: World, budget: int) -> World:
    spent = list(state.spent)
    spent[budget] += 1
    return state._replace(spent=(spent[0], spent[1], spent[2], spent[3]))
