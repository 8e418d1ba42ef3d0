"""The leader's assignment of connectors and tasks to members, and who owns what by it.

The assignors are pure logic: no clock, no I/O. They make the same decisions as Java's EagerAssignor and
IncrementalCooperativeAssignor, so that leadership can pass between Java and Python members of one group.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import structlog

from mm2.connect.api import ConnectError
from mm2.connect.group.protocol import (
    CONFIG_MISMATCH,
    NO_ERROR,
    URL_NOT_USED,
    WorkerAssignment,
    WorkerState,
    decode_worker_state,
    encode_assignment,
    version_of,
)
from mm2.connect.stores.config_state import ClusterConfigState, ConnectorTaskId
from mm2.kafka.group.classic_member import NO_GENERATION

T = TypeVar("T", str, ConnectorTaskId)

#: Growth of the back-off between successive revoking rebalances (1, 40, 1600 … ms, no jitter).
_REVOCATION_BACKOFF_FACTOR = 40
#: Of an id that a client has chosen, in a log line.
_SHOWN_CHARACTERS = 200


class ConfiguredConnectors(Protocol):
    """What the assignors need from the config topic."""

    @property
    def offset(self) -> int:
        """Config offset of this snapshot."""

    def connectors(self) -> Collection[str]:
        """Names of all configured connectors."""

    def tasks(self, connector: str) -> Sequence[ConnectorTaskId]:
        """The connector's tasks; empty when their configs are inconsistent."""


@dataclass
class Load:
    """Connectors and tasks of one member. Lists keep the order in which work was added."""

    connectors: list[str] = field(default_factory=list)
    tasks: list[ConnectorTaskId] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        """Whether it contains neither connectors nor tasks."""
        return not self.connectors and not self.tasks

    def copy(self) -> Load:
        """An independent copy."""
        return Load(list(self.connectors), list(self.tasks))


@dataclass
class _Work:
    """A set of connectors and tasks; keeps order for reproducibility."""

    connectors: dict[str, None] = field(default_factory=dict)
    tasks: dict[ConnectorTaskId, None] = field(default_factory=dict)

    @classmethod
    def of(cls, connectors: Iterable[str] = (), tasks: Iterable[ConnectorTaskId] = ()) -> _Work:
        return cls(dict.fromkeys(connectors), dict.fromkeys(tasks))

    @classmethod
    def all_of(cls, loads: Iterable[Load]) -> _Work:
        every = list(loads)
        return cls.of(
            itertools.chain.from_iterable(load.connectors for load in every),
            itertools.chain.from_iterable(load.tasks for load in every),
        )

    @property
    def empty(self) -> bool:
        return not self.connectors and not self.tasks

    def minus(self, *others: _Work) -> _Work:
        return _Work.of(
            (c for c in self.connectors if not any(c in other.connectors for other in others)),
            (t for t in self.tasks if not any(t in other.tasks for other in others)),
        )

    def plus(self, other: _Work) -> _Work:
        return _Work.of([*self.connectors, *other.connectors], [*self.tasks, *other.tasks])

    def meets(self, other: _Work) -> bool:
        return any(c in other.connectors for c in self.connectors) or any(t in other.tasks for t in self.tasks)


@dataclass(frozen=True)
class GroupAssignment:
    """Result of a round: assignments to encode, and the owners after the round (for redirects)."""

    assignments: dict[str, WorkerAssignment]
    owners: dict[str, Load]


def mismatch(members: Mapping[str, WorkerState], leader: str, max_offset: int, version: int) -> GroupAssignment:
    """Assign nothing: every member reads to the offset and rejoins.

    Used when the leader's view is behind, or when work has to stop first.
    """
    assignment = WorkerAssignment(CONFIG_MISMATCH, leader, members[leader].url, max_offset, version=version)
    return GroupAssignment(dict.fromkeys(members, assignment), {})


def assign_eagerly(
    members: Mapping[str, WorkerState], leader: str, configured: ConfiguredConnectors
) -> GroupAssignment:
    """Assign everything round-robin: first all connectors, then each connector's tasks, over the sorted members.

    If no member has a URL, all connectors go to the leader instead, see :class:`CooperativeAssignor`.
    """
    loads = {member: Load() for member in sorted(members)}
    dealer = itertools.cycle(loads.values())
    home = _only_home(members, leader)
    connectors = sorted(configured.connectors())
    for connector in connectors:
        (next(dealer) if home is None else loads[home]).connectors.append(connector)
    for connector in connectors:
        for task in sorted(configured.tasks(connector)):
            next(dealer).tasks.append(task)
    url = members[leader].url
    assignments = {
        member: WorkerAssignment(
            NO_ERROR, leader, url, configured.offset, tuple(load.connectors), tuple(load.tasks), version=0
        )
        for member, load in loads.items()
    }
    return GroupAssignment(assignments, loads)


class CooperativeAssignor:
    """Keeps work where it runs, revokes only the excess, and waits for departed workers to return (KIP-415).

    Keeps state between rounds; a new leader starts without state. ``now_ms`` is a clock.

    Deviation for MirrorMaker's dedicated mode: when no member has a REST URL, a connector on a follower could never
    publish its task configs (KAFKA-9981: only the leader writes them, and the follower cannot reach it). In this case
    the assignor places every *connector* on the leader; connectors on other members are revoked and move. Tasks are
    balanced as usual. The wire format does not change, so Java members follow the assignment.
    """

    def __init__(self, max_delay_ms: int, now_ms: Callable[[], int]) -> None:
        self.max_delay_ms = max_delay_ms
        self._now_ms = now_ms
        self.delay_ms = 0
        self._scheduled_ms = 0
        self._previous_assignment = _Work()
        self._previous_revocation = _Work()
        self._previous_generation = -1
        self._previous_members: set[str] = set()
        self._candidates: dict[str, None] = {}
        self._revoked_in_previous = False
        self._successive_revoking_rounds = 0

    def assign(
        self,
        members: Mapping[str, WorkerState],
        leader: str,
        configured: ConfiguredConnectors,
        *,
        generation: int,
        last_completed_generation: int,
        version: int,
    ) -> GroupAssignment:
        """One round: the assignment for ``generation``.

        ``last_completed_generation`` is the previous generation as far as this leader knows.
        """
        current = {
            member: Load(list(state.allocation.connectors), list(state.allocation.tasks))
            if state.allocation is not None
            else Load()
            for member, state in sorted(members.items())
        }
        home = _only_home(members, leader)
        following, revoked = self._round(current, configured, last_completed_generation, home)
        self._previous_generation = generation
        self._previous_members = set(current)
        url = members[leader].url
        assignments: dict[str, WorkerAssignment] = {}
        owners: dict[str, Load] = {}
        for member, load in following.items():
            held = current[member]
            gone = revoked.get(member, Load())
            assignments[member] = WorkerAssignment(
                NO_ERROR,
                leader,
                url,
                configured.offset,
                tuple(c for c in load.connectors if c not in held.connectors),
                tuple(t for t in load.tasks if t not in held.tasks),
                tuple(gone.connectors),
                tuple(gone.tasks),
                self.delay_ms,
                version,
            )
            owners[member] = Load(
                [c for c in load.connectors if c not in gone.connectors],
                [t for t in load.tasks if t not in gone.tasks],
            )
        return GroupAssignment(assignments, owners)

    def _round(
        self,
        current: dict[str, Load],
        configured: ConfiguredConnectors,
        last_completed_generation: int,
        home: str | None,
    ) -> tuple[dict[str, Load], dict[str, Load]]:
        """The work of each member after this round, and the work that each member must revoke in it."""
        if self._previous_generation != last_completed_generation:
            # It is unknown whether the last assignment was ever delivered.
            self._previous_assignment = _Work()
        names = sorted(configured.connectors())
        wanted = _Work.of(names, itertools.chain.from_iterable(configured.tasks(name) for name in names))
        active = _Work.all_of(current.values())
        if self._previous_revocation.meets(active):
            # Some member did not receive the last revocation.
            self._previous_assignment = active
        previous = self._previous_assignment

        # In Java, work that runs, is not configured and was placed by another leader is revoked one round later.
        deleted = previous.plus(active).minus(wanted)
        lost = previous.minus(active, deleted)
        created = wanted.minus(previous, active)

        following = {member: load.copy() for member, load in current.items()}
        revoked: dict[str, Load] = {}
        _revoke(following, {member: deleted.plus(_duplicated(current)) for member in following}, revoked)
        if home is not None:
            _revoke(following, {m: _Work.of(load.connectors) for m, load in following.items() if m != home}, revoked)
            # No other member could take these connectors, so there is no member to wait for.
            created = created.plus(_Work.of(lost.connectors))
            lost = _Work.of((), lost.tasks)

        reassigned = self._handle_lost(lost, following)
        if self.delay_ms == 0:
            self._balance(following, wanted, revoked, home)
        else:
            self._revoked_in_previous = False

        if home is None:
            _fill(following, lambda load: load.connectors, [*created.connectors, *reassigned.connectors])
        else:
            following[home].connectors.extend(created.connectors)
        _fill(following, lambda load: load.tasks, [*created.tasks, *reassigned.tasks])

        self._previous_revocation = _Work.all_of(revoked.values())
        self._previous_assignment = _Work.all_of(following.values()).minus(self._previous_revocation).plus(lost)
        return following, revoked

    def _handle_lost(self, lost: _Work, following: dict[str, Load]) -> _Work:
        """Returns the lost work to place now; after the delay, assigns it directly to candidates."""
        if lost.empty and not self._revoked_in_previous:
            self._reset_delay()
            return lost
        if self._scheduled_ms <= 0 and self._previous_members <= set(following):
            # No member left: some worker failed to receive its last assignment.
            return lost
        if self.max_delay_ms == 0:
            return lost
        now = self._now_ms()
        if 0 < self._scheduled_ms <= now:
            candidates = [following[member] for member in self._candidates if member in following]
            self._reset_delay()
            self._revoked_in_previous = False
            if not candidates:
                return lost
            for connector, load in zip(lost.connectors, itertools.cycle(candidates), strict=False):
                load.connectors.append(connector)
            for task, load in zip(lost.tasks, itertools.cycle(candidates), strict=False):
                load.tasks.append(task)
            return _Work()
        self._candidates.update(dict.fromkeys(member for member, load in following.items() if load.empty))
        if now < self._scheduled_ms:
            self.delay_ms = min(self._scheduled_ms - now, self.max_delay_ms)
        else:
            self.delay_ms = self.max_delay_ms
        self._scheduled_ms = now + self.delay_ms
        return _Work()

    def _reset_delay(self) -> None:
        self._candidates.clear()
        self._scheduled_ms = 0
        self.delay_ms = 0

    def _balance(self, following: dict[str, Load], wanted: _Work, revoked: dict[str, Load], home: str | None) -> None:
        """Revoke the excess of overloaded members. If the last round revoked too, wait for a back-off first."""
        connectors = _excess(following, lambda load: load.connectors, len(wanted.connectors)) if home is None else {}
        tasks = _excess(following, lambda load: load.tasks, len(wanted.tasks))
        excess = {
            member: _Work.of(connectors.get(member, ()), tasks.get(member, ())) for member in {**connectors, **tasks}
        }
        if not excess:
            if self._revoked_in_previous:
                self._revoked_in_previous = False
                self._successive_revoking_rounds = 0
            return
        if self._revoked_in_previous:
            self._successive_revoking_rounds += 1
            self.delay_ms = min(_REVOCATION_BACKOFF_FACTOR**self._successive_revoking_rounds, self.max_delay_ms)
            if self.delay_ms > 0:
                self._scheduled_ms = self._now_ms() + self.delay_ms
                return
        else:
            self._revoked_in_previous = True
        _revoke(following, excess, revoked)


class GroupLeadership:
    """Assigns connectors and tasks while this worker is the leader. ``configs`` returns the config topic as read so far.

    The membership thread assigns, any thread reads the result.
    """

    def __init__(
        self,
        assignor: CooperativeAssignor,
        configs: Callable[[], ClusterConfigState],
        log: structlog.stdlib.BoundLogger,
    ) -> None:
        self._assignor = assignor
        self._log = log
        self._configs = configs
        self._owner_urls: Mapping[str | ConnectorTaskId, str] = {}  # replaced as a whole

    def owner_url(self, work: str | ConnectorTaskId) -> str | None:
        """REST URL of the member that the last assignment gave a connector or task to."""
        return self._owner_urls.get(work)

    def assign(self, joined: Any, last_completed_generation: int, *, was_eager: bool) -> dict[str, bytes]:
        """The encoded assignment of each member in an answer to JoinGroup.

        ``last_completed_generation`` and ``was_eager`` describe this member's previous generation.
        """
        version = version_of(joined.protocol_name)
        members = self._workers(joined.members)
        leader = str(joined.member_id)
        if leader not in members:
            raise ConnectError("The coordinator's answer to JoinGroup does not contain this worker")
        configured = self._configs()
        newest = max(state.config_offset for state in members.values())
        downgraded = version == 0 and last_completed_generation != NO_GENERATION and not was_eager
        if configured.offset < newest:
            self._log.info("config offset is behind another member's", config_offset=configured.offset, newest=newest)
            outcome = mismatch(members, leader, newest, version)
        elif downgraded:
            # Each member kept its work during this join, but an eager join does not report it. Assign nothing until all
            # members have rejoined without work in the next round; otherwise a task could start on one member before it
            # has stopped on another.
            self._log.info("group protocol is now eager; all work stops before it is assigned again")
            outcome = mismatch(members, leader, newest, version)
        elif version == 0:
            outcome = assign_eagerly(members, leader, configured)
        else:
            outcome = self._assignor.assign(
                members,
                leader,
                configured,
                generation=int(joined.generation_id),
                last_completed_generation=last_completed_generation,
                version=version,
            )
        owner_urls: dict[str | ConnectorTaskId, str] = {}
        for member, load in outcome.owners.items():
            owner_urls.update(dict.fromkeys([*load.connectors, *load.tasks], members[member].url))
        self._owner_urls = owner_urls
        return {member: encode_assignment(received, version) for member, received in outcome.assignments.items()}

    def _workers(self, members: Iterable[Any]) -> dict[str, WorkerState]:
        """The state of each member. One whose state cannot be read gets no work: any client with READ on the group can join it."""
        states = {}
        for member in members:
            try:
                states[str(member.member_id)] = decode_worker_state(bytes(member.metadata))
            except ConnectError as error:
                member_id = str(member.member_id)[:_SHOWN_CHARACTERS]
                self._log.warning("member without a valid state gets no work", member_id=member_id, reason=str(error))
        return states


def _only_home(members: Mapping[str, WorkerState], leader: str) -> str | None:
    """The member that must run all connectors; None when any member can."""
    return leader if all(state.url == URL_NOT_USED for state in members.values()) else None


def _duplicated(current: Mapping[str, Load]) -> _Work:
    """Work that more than one member reports as running."""
    connectors = [c for load in current.values() for c in load.connectors]
    tasks = [t for load in current.values() for t in load.tasks]
    return _Work.of(
        (c for c, count in Counter(connectors).items() if count > 1),
        (t for t, count in Counter(tasks).items() if count > 1),
    )


def _revoke(following: dict[str, Load], wanted: Mapping[str, _Work], revoked: dict[str, Load]) -> None:
    """Remove work from members that hold it, and add it to what they must revoke."""
    for member, work in wanted.items():
        load = following[member]
        connectors = [c for c in load.connectors if c in work.connectors]
        tasks = [t for t in load.tasks if t in work.tasks]
        if not connectors and not tasks:
            continue
        given_up = revoked.setdefault(member, Load())
        given_up.connectors.extend(connectors)
        given_up.tasks.extend(tasks)
        load.connectors = [c for c in load.connectors if c not in work.connectors]
        load.tasks = [t for t in load.tasks if t not in work.tasks]


def _excess(following: Mapping[str, Load], held: Callable[[Load], list[T]], total: int) -> dict[str, list[T]]:
    """What has to be revoked from which member so that none exceeds its fair share of ``total``."""
    sizes = [len(held(load)) for load in following.values()]
    floor, extras = divmod(total, len(following))
    if total == 0 or not any(sizes):
        return {}
    if sizes.count(floor + 1) == extras and sizes.count(floor) + extras == len(sizes):
        return {}
    excess: dict[str, list[T]] = {}
    for member, load in following.items():
        mine = held(load)
        if len(mine) <= floor:
            continue
        allowed = floor
        if extras > 0:
            extras -= 1
            allowed += 1
        if len(mine) > allowed:
            excess[member] = mine[: len(mine) - allowed]
    return excess


def _fill(following: Mapping[str, Load], held: Callable[[Load], list[T]], work: Iterable[T]) -> None:
    """Assign each piece to the least loaded member; ties are broken by member id."""
    order = sorted(following, key=lambda member: (len(held(following[member])), member))
    pieces = iter(work)
    while True:
        lowest = len(held(following[order[0]]))
        level = [member for member in order if len(held(following[member])) == lowest]
        for member in level:
            try:
                held(following[member]).append(next(pieces))
            except StopIteration:
                return
