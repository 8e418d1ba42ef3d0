"""Model of sending and of the look-up: rules S1 to S6 and L1 to L5 of docs/explanation/copy-sessions.md.

One source partition is copied to one target partition with two replicas. The source is a list of batches 0, 1, 2 … of one record,
each old (its producer may be forgotten) or young. Batch n has sequence n. Parties and what is abstracted:

* Brokers. Each replica has a log, a high watermark, the leader epoch that it knows, and its memory of the producer. A deposed
  leader continues to accept requests and to answer look-ups until it learns the new epoch. It cannot acknowledge: followers and
  controller fence it. Elections are clean. Only two replicas are modelled, and a new leader is alone in the in-sync replicas
  until the other one follows it. A third replica that keeps acknowledging together with it has the same log and is left out. A
  follower that leaves the in-sync replicas without an election is covered by one that replicates at once: no election can
  choose it before it has caught up.
* Memory. A leader that remembers the producer accepts the next sequence, answers a remembered batch as a duplicate, and refuses
  the rest. One that does not remember accepts any sequence. It may forget whenever the last batch that it knows is old. That
  is more often than with `producer.id.expiration.ms`, so nothing is missed.
* Network. A connection is a queue, and its requests are processed one after the other. A request may be refused before the
  append, answered by an error after it, or not at all. Those of a closed connection stay behind ("limbo") and are processed at
  any later time, or never.
* Holders. Two, with a lease that passes from the first to the second at any time. With S5 the first one is finished then,
  except for what it has sent. Without S5 it continues. A look-up has three steps, with anything in between.
* Not modelled: other writers to the remote topic, batches of more than one record (the model of a batch is its first sequence),
  wrap of sequences, exactly-once mode.

Assumptions of the page can be withdrawn (`Bounds`). Then the partition may stop as inconsistent, and must not claim more
than is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.model.checker import Action, Invariant

# Phases of a holder
IDLE, RUN, ASK, WAIT, STOPPED, DEAD = "idle", "run", "ask", "wait", "stopped", "dead"
# Status of a batch in flight: not processed, appended, acknowledged, refused before the append, answered by an error that does
# not exclude the append, out of sequence, never answered
QUEUED, APPENDED, OK, REFUSED, ERROR, SEQUENCE, UNANSWERED = (
    "queued",
    "appended",
    "ok",
    "refused",
    "error",
    "seq",
    "none",
)
_OPEN = (QUEUED, APPENDED)
BEGUN = -1


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that apply. Without a rule, the model behaves like the code at commit 44f5efd, if that handled the case."""

    s1: bool = True
    s2: bool = True
    s3: bool = True
    s4: bool = True
    s5: bool = True
    s6: bool = True
    l1: bool = True
    l2: bool = True
    l3: bool = True
    l4: bool = True
    l5: bool = True


#: The commit that the findings are of.
OLD = Rules(*[False] * 11)


@dataclass(frozen=True, slots=True)
class Bounds:
    """``old``: for each batch whether its producer may be forgotten after it. ``faults``: number of error responses, ``breaks``
    connections close, the leader moves ``moves`` times, the lease passes ``takeovers`` times.

    Assumptions of the page: ``late_requests``: a request whose connection was closed may be processed after the look-up
    although its producer can be forgotten. ``slow_send``: the first holder is frozen between the check of S5 and the system call.
    ``expiry_unknown``: leaders forget young batches, too. ``there_and_back``: a request for a leader that was deposed and elected
    again may be processed then, although the sender knows nothing of it.
    """

    old: tuple[bool, ...]
    depth: int = 2
    faults: int = 1
    breaks: int = 0
    moves: int = 0
    takeovers: int = 0
    late_requests: bool = False
    slow_send: bool = False
    expiry_unknown: bool = False
    there_and_back: bool = False

    @property
    def is_strong(self) -> bool:
        """All assumptions hold."""
        return not (self.late_requests or self.slow_send or self.expiry_unknown or self.there_and_back)


class Broker(NamedTuple):
    """``memory``: the remembered batches first..next-1, () for a forgotten producer."""

    log: tuple[int, ...]
    hw: int
    epoch: int
    leads: bool
    memory: tuple[int, ...]


class Flight(NamedTuple):
    """A batch that was sent, to a broker that led in that epoch. ``at`` is its place in the log."""

    batch: int
    broker: int
    epoch: int
    status: str
    at: int


class Holder(NamedTuple):
    """``leader`` and ``epoch`` are its metadata. ``todo`` is to be sent again before batch ``next``. ``trust``: the last
    acknowledgement was of this leader, epoch and connection. ``pin``: epoch of the last look-up, BEGUN before the first one of a
    micro-batch, 0 for none. ``floor``: epoch that the ledger knows. ``asked`` (broker, its epoch, its log end offset or -1, its
    memory) is the state of a look-up."""

    phase: str
    leader: int
    epoch: int
    acked: int
    end: int
    next: int
    todo: tuple[int, ...]
    flights: tuple[Flight, ...]
    trust: bool
    pin: int
    floor: int
    asked: tuple[int, int, int, tuple[int, ...]] | tuple[()]


class World(NamedTuple):
    """``alone``: the leader is the only in-sync replica. ``limbo``: (broker, epoch, batch) of closed connections; ``slow``: the same of
    a frozen process. ``ledger``: (acked, end, epoch). ``spent``: faults, breaks, moves, take-overs."""

    brokers: tuple[Broker, Broker]
    leader: int
    epoch: int
    alone: bool
    committed: int
    holders: tuple[Holder, Holder]
    lease: int
    limbo: tuple[tuple[int, int, int], ...]
    slow: tuple[tuple[int, int, int], ...]
    ledger: tuple[int, int, int]
    spent: tuple[int, int, int, int]


FAULT, BREAK, MOVE, TAKEOVER = range(4)


@dataclass(slots=True)
class Sending:
    """The model, for `tests.model.checker.check`. ``judged`` names the invariants that count, all when empty."""

    bounds: Bounds
    rules: Rules = field(default_factory=Rules)
    judged: tuple[str, ...] = ()
    label: str = "sending"

    @property
    def name(self) -> str:
        b = self.bounds
        ages = "".join("o" if old else "y" for old in b.old)
        text = f"{self.label} [{ages}, depth {b.depth}, {b.faults} faults, {b.breaks} breaks, {b.moves} moves, "
        text += f"{b.takeovers} take-overs"
        for flag in ("late_requests", "slow_send", "expiry_unknown", "there_and_back"):
            text += f", {flag}" if getattr(b, flag) else ""
        return text + "]"

    def initial(self) -> Iterator[World]:
        broker = Broker((), 0, 1, False, ())
        first = Holder(RUN, 0, 1, 0, 0, 0, (), (), False, 0, 0, ())
        second = first._replace(phase=IDLE)
        yield World(
            (broker._replace(leads=True), broker), 0, 1, False, 0, (first, second), 0, (), (), (0, 0, 1), (0,) * 4
        )

    @property
    def actions(self) -> Sequence[Action]:
        return (
            self._send,
            self._process,
            self._answer,
            self._break,
            self._late,
            self._replicate,
            self._advance,
            self._forget,
            self._move,
            self._learn,
            self._rejoin,
            self._metadata,
            self._ask,
            self._ask_end,
            self._found,
            self._commit,
            self._take_over,
        )

    @property
    def invariants(self) -> Sequence[Invariant]:
        of_all = {
            "twice": self._nothing_is_there_twice,
            "order": self._log_is_in_order,
            "I2": self._position_is_committed,
            "I3": self._acked_is_there,
            "alarm": self._no_false_alarm,
        }
        if not self.bounds.is_strong and not self.judged:
            return (self._claims_are_right,)
        return tuple(check for name, check in of_all.items() if not self.judged or name in self.judged)

    def canonical(self, state: World) -> World:
        return state

    def is_goal(self, state: World) -> bool:
        holder = state.holders[state.lease]
        return holder.phase == STOPPED or (holder.phase == RUN and holder.acked == len(self.bounds.old))

    def show(self, state: World) -> Sequence[str]:
        parts = []
        for number, broker in enumerate(state.brokers):
            role = f"leader e{broker.epoch}" if broker.leads else f"follower e{broker.epoch}"
            memory = f"knows {broker.memory[0]}-{broker.memory[1] - 1}" if broker.memory else "forgot"
            parts.append(f"b{number} {role} {list(broker.log)} hw {broker.hw} {memory}")
        for number, holder in enumerate(state.holders):
            sent = " ".join(f"{flight.batch}:{flight.status}" for flight in holder.flights)
            parts.append(f"h{number} {holder.phase} e{holder.epoch} acked {holder.acked} [{sent}]")
        parts.append(f"late {[row[2] for row in state.limbo + state.slow]}")
        parts.append(f"ledger {state.ledger[0]}")
        return parts

    # -- invariants ------------------------------------------------------------------------------------------------------

    @staticmethod
    def _nothing_is_there_twice(state: World) -> str:
        """I1 on what can be read of the current leader."""
        broker = state.brokers[state.leader]
        log = broker.log[: broker.hw]
        twice = next((batch for place, batch in enumerate(log) if batch in log[:place]), None)
        return "" if twice is None else f"I1: batch {twice} is there twice"

    @staticmethod
    def _log_is_in_order(state: World) -> str:
        """I1 on what can be read of the current leader, apart from what is there twice."""
        broker = state.brokers[state.leader]
        log = tuple(dict.fromkeys(broker.log[: broker.hw]))
        wrong = next((place for place, batch in enumerate(log) if batch != place), None)
        return "" if wrong is None else f"I1: batch {log[wrong]} stands where {wrong} has to"

    @staticmethod
    def _position_is_committed(state: World) -> str:
        """I2: neither `acked` nor the ledger counts what is above the high watermark and may still be removed."""
        claims = [holder.acked for holder in state.holders if holder.phase == RUN]
        if max([state.ledger[0], *claims]) > state.committed:
            return f"I2: {max([state.ledger[0], *claims])} batches claimed, the high watermark is {state.committed}"
        return ""

    @staticmethod
    def _acked_is_there(state: World) -> str:
        """I3: every acknowledged batch is in the log."""
        log = state.brokers[state.leader].log
        claimed = max([state.ledger[0], *(holder.acked for holder in state.holders if holder.phase == RUN)])
        missing = [batch for batch in range(claimed) if batch not in log]
        return f"I3: {claimed} batches are taken for acknowledged, and {missing} are not in the log" if missing else ""

    @staticmethod
    def _no_false_alarm(state: World) -> str:
        stops = [number for number, holder in enumerate(state.holders) if holder.phase == STOPPED]
        return f"I6: holder {stops[0]} stops as inconsistent although all assumptions hold" if stops else ""

    @staticmethod
    def _claims_are_right(state: World) -> str:
        """I6 without an assumption: as far as the holder of the lease claims, the log is right, or it has stopped."""
        holder = state.holders[state.lease]
        log = state.brokers[state.leader].log
        if holder.phase == RUN and log[: holder.end] != tuple(range(holder.acked)):
            return f"I6: not detected: {list(log[: holder.end])} are taken for the first {holder.acked} batches"
        return ""

    # -- holders: sending ------------------------------------------------------------------------------------------------

    def _allowed(self, state: World, number: int) -> bool:
        """S5."""
        return state.lease == number or not self.rules.s5

    def _send(self, state: World) -> Iterator[tuple[str, World]]:
        for number, holder in enumerate(state.holders):
            if holder.phase != RUN or not self._allowed(state, number):
                continue
            batch = holder.todo[0] if holder.todo else holder.next
            if batch >= len(self.bounds.old) or not self._may_follow(holder, batch):
                continue
            if holder.pin and self.rules.s6 and holder.pin != holder.epoch:
                yield f"look-up-again h{number}", _put(state, number, holder._replace(phase=ASK))
                continue
            flights = (*holder.flights, Flight(batch, holder.leader, holder.epoch, QUEUED, -1))
            todo, following = (holder.todo[1:], holder.next) if holder.todo else ((), batch + 1)
            sent = holder._replace(flights=flights, todo=todo, next=following, pin=0)
            yield f"send h{number} batch {batch}", _put(state, number, sent)

    def _may_follow(self, holder: Holder, batch: int) -> bool:
        """S1 and S2: whether one more batch may be in flight."""
        flights = holder.flights
        if not flights:
            return True
        if any(flight.broker != holder.leader for flight in flights):
            return False
        if self.rules.s2 and any(flight.status not in (*_OPEN, OK) for flight in flights):
            return False
        depth = self.bounds.depth if holder.trust else 1
        if self.rules.s1:
            last = holder.acked - 1
            ages = [self.bounds.old[flight.batch] for flight in flights] + [self.bounds.old[batch]]
            if any(ages) or (last >= 0 and self.bounds.old[last]):
                depth = 1
        elif any(flight.status not in (*_OPEN, OK) for flight in flights):
            return False  # as the old code did
        return len(flights) < depth

    def _settle(self, holder: Holder) -> Holder:
        """Move `acked`, and when all is answered and something failed, decide what is sent again."""
        flights = holder.flights
        while flights and flights[0].status == OK:
            holder = self._deliver(holder, flights[0])
            flights = flights[1:]
            holder = holder._replace(flights=flights, trust=True)
            if holder.phase == STOPPED:
                return holder
        if not flights or any(flight.status in _OPEN for flight in flights):
            return holder
        statuses = {flight.status for flight in flights}
        if self.rules.s4 and statuses >= {OK, REFUSED}:
            first_ok = next(index for index, flight in enumerate(flights) if flight.status == OK)
            if any(flight.status == REFUSED for flight in flights[:first_ok]):
                return holder._replace(phase=STOPPED)
        failed = tuple(flight for flight in flights if flight.status != OK)
        for flight in flights:
            if flight.status == OK and not self.rules.s4:
                holder = holder._replace(acked=max(holder.acked, flight.batch + 1), end=flight.at + 1)
        again = (
            tuple(flight.batch for flight in failed) if not self.rules.s4 else tuple(flight.batch for flight in flights)
        )
        holder = holder._replace(flights=(), todo=again + holder.todo)
        if self.rules.s3:
            doubt = bool(statuses & {ERROR, SEQUENCE, UNANSWERED})
        else:
            # The first failure counted, unless something was unanswered.
            doubt = failed[0].status == SEQUENCE or UNANSWERED in statuses
        if self.rules.s2:
            holder = holder._replace(trust=False)
        return holder._replace(phase=ASK, asked=()) if doubt else holder

    def _deliver(self, holder: Holder, flight: Flight) -> Holder:
        """A batch at the head is acknowledged. A gap on the target is searched for batches of ours; all are ours here."""
        if self.rules.l3 and flight.at != holder.end:
            return holder._replace(phase=STOPPED)
        return holder._replace(acked=max(holder.acked, flight.batch + 1), end=flight.at + 1)

    # -- brokers: requests -----------------------------------------------------------------------------------------------

    def _process(self, state: World) -> Iterator[tuple[str, World]]:
        for number, holder in enumerate(state.holders):
            index = next((i for i, flight in enumerate(holder.flights) if flight.status in _OPEN), -1)
            if index < 0 or holder.flights[index].status != QUEUED:
                continue
            flight = holder.flights[index]
            broker = state.brokers[flight.broker]
            what = f"h{number} batch {flight.batch}"
            if not self._takes(broker, flight.epoch):
                yield f"not-leader {what}", self._answered(state, number, index, ERROR)
                continue
            if state.spent[FAULT] < self.bounds.faults:
                yield f"not-enough-replicas {what}", self._answered(_spend(state, FAULT), number, index, REFUSED)
            after, status, at = _append(broker, flight.batch)
            following = _with_broker(state, flight.broker, after)
            if status == APPENDED:
                flights = _set(holder.flights, index, flight._replace(status=APPENDED, at=at))
                yield f"append {what}", _put(following, number, holder._replace(flights=flights))
            else:
                yield f"out-of-sequence {what}", self._answered(following, number, index, SEQUENCE)

    def _takes(self, broker: Broker, epoch: int) -> bool:
        """Produce requests carry no leader epoch."""
        return broker.leads and (broker.epoch == epoch or self.bounds.there_and_back)

    def _answer(self, state: World) -> Iterator[tuple[str, World]]:
        for number, holder in enumerate(state.holders):
            for index, flight in enumerate(holder.flights):
                if flight.status != APPENDED:
                    continue
                if state.brokers[flight.broker].hw > flight.at:
                    yield f"acknowledge h{number} batch {flight.batch}", self._answered(state, number, index, OK)
                elif state.spent[FAULT] < self.bounds.faults:
                    what = f"request-timed-out h{number} batch {flight.batch}"
                    yield what, self._answered(_spend(state, FAULT), number, index, ERROR)

    def _answered(self, state: World, number: int, index: int, status: str) -> World:
        holder = state.holders[number]
        if holder.phase not in (RUN, ASK, WAIT):
            return state
        flights = _set(holder.flights, index, holder.flights[index]._replace(status=status))
        return _put(state, number, self._settle(holder._replace(flights=flights)))

    def _break(self, state: World) -> Iterator[tuple[str, World]]:
        if state.spent[BREAK] >= self.bounds.breaks:
            return
        for number, holder in enumerate(state.holders):
            if any(flight.status in _OPEN for flight in holder.flights):
                yield (
                    f"break h{number}",
                    _put(_spend(_leave_behind(state, holder), BREAK), number, self._broken(holder)),
                )

    def _broken(self, holder: Holder) -> Holder:
        flights = tuple(f._replace(status=UNANSWERED) if f.status in _OPEN else f for f in holder.flights)
        settled = self._settle(holder._replace(flights=flights))
        return settled._replace(trust=False) if self.rules.s1 else settled

    def _late(self, state: World) -> Iterator[tuple[str, World]]:
        """A request that no process waits for is processed, or is dropped."""
        for target in (0, 1):
            broker = state.brokers[target]
            for name, requests in (("limbo", state.limbo), ("slow", state.slow)):
                index = next((i for i, row in enumerate(requests) if row[0] == target), -1)
                if index < 0:
                    continue
                batch = requests[index][2]
                rest = requests[:index] + requests[index + 1 :]
                without = state._replace(limbo=rest) if name == "limbo" else state._replace(slow=rest)
                yield f"drop late batch {batch}", without
                if self._takes(broker, requests[index][1]):
                    after, status, _ = _append(broker, batch)
                    if status == APPENDED:
                        yield f"append-late batch {batch}", _with_broker(without, target, after)

    # -- brokers: replication --------------------------------------------------------------------------------------------

    def _replicate(self, state: World) -> Iterator[tuple[str, World]]:
        leader, follower = state.brokers[state.leader], state.brokers[1 - state.leader]
        if follower.leads or follower.epoch != state.epoch or len(follower.log) >= len(leader.log):
            return
        batch = leader.log[len(follower.log)]
        log = (*follower.log, batch)
        after = follower._replace(
            log=log, hw=max(follower.hw, min(leader.hw, len(log))), memory=_known(follower.memory, batch)
        )
        yield f"replicate batch {batch}", _with_broker(state, 1 - state.leader, after)

    def _advance(self, state: World) -> Iterator[tuple[str, World]]:
        leader, follower = state.brokers[state.leader], state.brokers[1 - state.leader]
        top = len(leader.log) if state.alone else min(len(leader.log), len(follower.log))
        if top > leader.hw:
            following = _with_broker(state, state.leader, leader._replace(hw=top))
            yield f"high-watermark {top}", following._replace(committed=max(state.committed, top))

    def _forget(self, state: World) -> Iterator[tuple[str, World]]:
        for number, broker in enumerate(state.brokers):
            if broker.memory and (self.bounds.expiry_unknown or self.bounds.old[broker.memory[1] - 1]):
                yield f"forget b{number}", _with_broker(state, number, broker._replace(memory=()))

    def _move(self, state: World) -> Iterator[tuple[str, World]]:
        if state.alone or state.spent[MOVE] >= self.bounds.moves:
            return
        other = 1 - state.leader
        epoch = state.epoch + 1
        after = state.brokers[other]._replace(leads=True, epoch=epoch)
        following = _with_broker(_spend(state, MOVE), other, after)
        yield f"elect b{other} epoch {epoch}", following._replace(leader=other, epoch=epoch, alone=True)

    def _learn(self, state: World) -> Iterator[tuple[str, World]]:
        """A deposed leader learns the new epoch: it truncates its log and answers what waits."""
        number = 1 - state.leader
        broker = state.brokers[number]
        if not broker.leads:
            return
        same = 0
        for ours, others in zip(broker.log, state.brokers[state.leader].log, strict=False):
            if ours != others:
                break
            same += 1
        log = broker.log[:same]
        memory = broker.memory
        if same < len(broker.log) and memory:
            memory = _memory_of(log)
        after = Broker(log, min(broker.hw, same), state.epoch, False, memory)
        state = _with_broker(state, number, after)
        for who, holder in enumerate(state.holders):
            for index, flight in enumerate(holder.flights):
                if flight.broker == number and flight.status == APPENDED:
                    state = self._answered(state, who, index, ERROR)
        yield f"learn b{number}", state

    def _rejoin(self, state: World) -> Iterator[tuple[str, World]]:
        leader, follower = state.brokers[state.leader], state.brokers[1 - state.leader]
        if state.alone and not follower.leads and follower.epoch == state.epoch and len(follower.log) >= leader.hw:
            yield "rejoin", state._replace(alone=False)

    # -- holders: metadata and look-up -----------------------------------------------------------------------------------

    def _metadata(self, state: World) -> Iterator[tuple[str, World]]:
        for number, holder in enumerate(state.holders):
            if holder.phase in (RUN, ASK, WAIT) and holder.epoch < state.epoch:
                trust = holder.trust and not self.rules.s1
                yield (
                    f"metadata h{number}",
                    _put(state, number, holder._replace(leader=state.leader, epoch=state.epoch, trust=trust)),
                )

    def _ask(self, state: World) -> Iterator[tuple[str, World]]:
        """First step of a look-up: DescribeProducers (L2). It carries no leader epoch. Without L2 the log end offset comes first."""
        for number, holder in enumerate(state.holders):
            if holder.phase != ASK or not self._allowed(state, number):
                continue
            if not self.bounds.late_requests and any(self.bounds.old) and self._has_late(state, number):
                continue
            if not self.rules.l5 and state.spent[FAULT] < self.bounds.faults:
                yield f"look-up-refused h{number}", self._new_producer(_spend(state, FAULT), number)
            for target, broker in enumerate(state.brokers):
                if not broker.leads:
                    continue
                if self.rules.l4 and (target != holder.leader or holder.epoch < holder.floor):
                    continue
                if self._memory_first:
                    asked = (target, holder.epoch, -1, broker.memory)
                elif self.rules.l4 and broker.epoch != holder.epoch:
                    continue
                else:
                    asked = (target, broker.epoch, len(broker.log), broker.memory)
                yield f"ask h{number} b{target}", _put(state, number, holder._replace(phase=WAIT, asked=asked))

    @property
    def _memory_first(self) -> bool:
        return self.rules.l1 and self.rules.l2

    def _ask_end(self, state: World) -> Iterator[tuple[str, World]]:
        """Second step of a look-up: the log end offset, in the leader epoch that was noted before the first step."""
        for number, holder in enumerate(state.holders):
            if holder.phase != WAIT or not self._allowed(state, number) or not holder.asked or holder.asked[2] >= 0:
                continue
            target, epoch, _, memory = holder.asked
            broker = state.brokers[target]
            if broker.leads and (not self.rules.l4 or broker.epoch == holder.epoch == epoch):
                asked = (target, broker.epoch, len(broker.log), memory)
                yield f"log-end h{number}", _put(state, number, holder._replace(asked=asked))

    def _has_late(self, state: World, number: int) -> bool:
        others = (flight for who, holder in enumerate(state.holders) if who != number for flight in holder.flights)
        return bool(state.limbo) or (self.rules.s5 and any(flight.status == QUEUED for flight in others))

    def _new_producer(self, state: World, number: int) -> World:
        """What the old code did after an error that it took for final: no leader knows the new producer."""
        brokers = tuple(broker._replace(memory=()) for broker in state.brokers)
        holder = state.holders[number]
        state = state._replace(brokers=(brokers[0], brokers[1]))
        return _put(state, number, holder._replace(phase=RUN, todo=(), next=holder.acked, trust=False, pin=0, asked=()))

    def _found(self, state: World) -> Iterator[tuple[str, World]]:
        """Last step of a look-up: the high watermark has reached the log end offset (L1)."""
        for number, holder in enumerate(state.holders):
            if holder.phase != WAIT or not self._allowed(state, number) or not holder.asked:
                continue
            target, epoch, end, memory = holder.asked
            broker = state.brokers[target]
            if not broker.leads or (self.rules.l4 and not broker.epoch == holder.epoch == epoch):
                yield f"look-up-again h{number}", _put(state, number, holder._replace(phase=ASK, asked=()))
                continue
            if self._memory_first:
                if end < 0 or broker.hw < end:
                    continue
            elif self.rules.l1:
                if broker.hw < end:
                    continue
                memory = broker.memory
            elif self.rules.l2:
                memory = broker.memory
                if not memory or memory[1] - holder.acked != end - holder.end:
                    end = broker.hw  # headers are read up to there
            else:
                end = broker.hw
            yield f"found h{number}", _put(state, number, self._counted(holder, broker, end, memory))

    def _counted(self, holder: Holder, broker: Broker, end: int, memory: tuple[int, ...]) -> Holder:
        there = broker.log[holder.end : end]
        if memory and (not self.rules.l2 or memory[1] - holder.acked == end - holder.end):
            count = memory[1]
        elif self.rules.l3 and (end < holder.end or there != tuple(range(holder.acked, holder.acked + len(there)))):
            return holder._replace(phase=STOPPED, asked=())
        else:
            count = max([holder.acked, *(batch + 1 for batch in there)])
        if self.rules.l3 and count < holder.acked:
            return holder._replace(phase=STOPPED, asked=())
        if self.rules.l3 and count > holder.next and holder.pin != BEGUN:
            # Another holder had copied further: the micro-batch ends, and the next one begins with a look-up of its own.
            return holder._replace(phase=ASK, next=holder.acked, todo=(), trust=False, pin=BEGUN, asked=())
        todo = tuple(batch for batch in holder.todo if batch >= count)
        return holder._replace(
            phase=RUN,
            acked=count,
            end=end,
            next=max(count, holder.next),
            todo=todo,
            trust=False,
            pin=holder.epoch,
            asked=(),
        )

    # -- holders: ledger and lease ---------------------------------------------------------------------------------------

    def _commit(self, state: World) -> Iterator[tuple[str, World]]:
        holder = state.holders[state.lease]
        if holder.phase == RUN and holder.acked > state.ledger[0] and state.spent[TAKEOVER] < self.bounds.takeovers:
            yield f"commit h{state.lease}", state._replace(ledger=(holder.acked, holder.end, holder.epoch))

    def _take_over(self, state: World) -> Iterator[tuple[str, World]]:
        if state.spent[TAKEOVER] >= self.bounds.takeovers or state.lease == 1:
            return
        first, second = state.holders
        acked, end, epoch = state.ledger
        after = _spend(state, TAKEOVER)
        if self.rules.s5:
            if self.bounds.slow_send and first.phase == RUN:
                batch = first.todo[0] if first.todo else first.next
                if batch < len(self.bounds.old) and self._may_follow(first, batch):
                    slow = _leave_behind(after, first)._replace(slow=((first.leader, first.epoch, batch),))
                    yield from self._granted(slow, first._replace(phase=DEAD, flights=(), todo=(), asked=()), second)
            after = _leave_behind(after, first)
            first = first._replace(phase=DEAD, flights=(), todo=(), asked=(), trust=False)
        second = second._replace(acked=acked, end=end, next=acked, floor=epoch)
        yield from self._granted(after, first, second)

    def _granted(self, state: World, first: Holder, second: Holder) -> Iterator[tuple[str, World]]:
        acked, end, epoch = state.ledger
        second = second._replace(phase=ASK, acked=acked, end=end, next=acked, floor=epoch, pin=BEGUN)
        for number, broker in enumerate(state.brokers):
            if broker.leads:  # its metadata may be that of a deposed leader
                begun = second._replace(leader=number, epoch=broker.epoch)
                yield f"take-over e{broker.epoch}", state._replace(holders=(first, begun), lease=1)


# -- pure helpers --------------------------------------------------------------------------------------------------------


def _append(broker: Broker, batch: int) -> tuple[Broker, str, int]:
    """What a leader does with a batch: (itself afterwards, status, place in the log)."""
    memory = broker.memory
    if memory and batch != memory[1]:
        if memory[0] <= batch < memory[1]:
            return broker, APPENDED, len(broker.log) - 1 - broker.log[::-1].index(batch)
        return broker, SEQUENCE, -1
    return broker._replace(log=(*broker.log, batch), memory=_known(memory, batch)), APPENDED, len(broker.log)


def _known(memory: tuple[int, ...], batch: int) -> tuple[int, ...]:
    return (memory[0], batch + 1) if memory and memory[1] == batch else (batch, batch + 1)


def _memory_of(log: tuple[int, ...]) -> tuple[int, ...]:
    memory: tuple[int, ...] = ()
    for batch in log:
        memory = _known(memory, batch)
    return memory


def _set(flights: tuple[Flight, ...], index: int, flight: Flight) -> tuple[Flight, ...]:
    return (*flights[:index], flight, *flights[index + 1 :])


def _put(state: World, number: int, holder: Holder) -> World:
    first, second = state.holders
    return state._replace(holders=(holder, second) if number == 0 else (first, holder))


def _with_broker(state: World, number: int, broker: Broker) -> World:
    first, second = state.brokers
    return state._replace(brokers=(broker, second) if number == 0 else (first, broker))


def _spend(state: World, budget: int) -> World:
    spent = list(state.spent)
    spent[budget] += 1
    return state._replace(spent=(spent[0], spent[1], spent[2], spent[3]))


def _leave_behind(state: World, holder: Holder) -> World:
    """The connection is closed: what was not processed may still be."""
    queued = tuple((flight.broker, flight.epoch, flight.batch) for flight in holder.flights if flight.status == QUEUED)
    return state._replace(limbo=state.limbo + queued) if queued else state
