"""Fixed schedules in which a request with the sequences of other records is late (rule S9), and dead letters (rule L7)."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from mm2.kafka.records.batch import CONTROL, TRANSACTIONAL
from mm2.kafka.records.record import Record, encode_batch
from tests.simulation import protocol
from tests.simulation.directed import Schedule, _crash, _late_write, _restart, _start
from tests.simulation.oracle import Violation
from tests.simulation.scenario import DEAD_LETTERS, LARGEST_BYTES, REMOTE, TOPIC, Profile, Scenario
from tests.simulation.storage import batch_at

if TYPE_CHECKING:
    from tests.simulation.network import Link

_LATE_S = 3.0


def _quiet(scenario: Scenario) -> None:
    """Copy something, and commit it."""
    world = scenario.world
    world.run(3.0)
    scenario._producing = False
    world.run(world.now + 2.0)


def _several(scenario: Scenario) -> None:
    for _ in range(3):
        scenario._produce_batch(0)


def _follow_up(scenario: Scenario) -> None:
    """Write new records to the source after the late request has arrived, and go on."""
    world = scenario.world
    world.run(world.now + _LATE_S + 1.0)
    for _ in range(4):
        scenario._produce_batch(0)
    world.run(world.now + 3.0)
    scenario._producing = True
    world.run(world.now + 3.0)


# -- the source is another one


def late_request_and_retention(scenario: Scenario) -> None:
    """A holder dies with a request in the socket. Retention deletes its records from the source before the next holder starts."""
    world = scenario.world
    _quiet(scenario)
    _several(scenario)
    _late_write(scenario, REMOTE, 1, _LATE_S)
    world.run(world.now + 0.1)
    scenario.delete_records(0, 1 << 40)
    _follow_up(scenario)


def late_request_after_its_successor(scenario: Scenario) -> None:
    """The same where retention deletes only the first of these records. The next holder has sent the others before the request
    arrives."""
    world = scenario.world
    _quiet(scenario)
    leader = scenario._source_leader(0)
    assert leader is not None
    before = leader.end
    _several(scenario)
    _late_write(scenario, REMOTE, 1, 2 * _LATE_S)
    world.run(world.now + 0.1)
    scenario.delete_records(0, min(batch.after for batch in leader.log if batch.after > before))
    world.run(world.now + _LATE_S)
    _follow_up(scenario)


def late_request_and_unclean_election(scenario: Scenario) -> None:
    """The same where an unclean election of the source has replaced these records."""
    _quiet(scenario)
    lagging = _lag(scenario)
    _several(scenario)
    _late_write(scenario, REMOTE, 1, _LATE_S)
    scenario.world.run(scenario.world.now + 0.1)
    _elect(scenario, lagging)
    _follow_up(scenario)


def _lag(scenario: Scenario) -> list[int]:
    """The brokers that are not in sync with the source's leader any more."""
    world, source, place = scenario.world, scenario.source, (TOPIC, 0)
    part = source.partitions[place]
    others = [node for node in part.replicas if node != part.state.leader]
    for node in others:
        source.brokers[node].slow_fetch_s[place] = 1000.0
    world.run(world.now + 5.0)
    return others


def _elect(scenario: Scenario, lagging: list[int]) -> None:
    source, place = scenario.source, (TOPIC, 0)
    scenario.oracle.excuses.source_cut.add(0)
    for node in lagging:
        source.brokers[node].slow_fetch_s.pop(place)
    source.decide(source.partitions[place], lagging[0], (lagging[0],), new_epoch=True)


# -- a record is too large


def _with_dead_letters(scenario: Scenario) -> None:
    """Restart with a dead letter topic and a limit for the remote topic."""
    world = scenario.world
    world.run(2.0)
    scenario._producing = False
    world.run(world.now + 1.0)
    scenario.limit_sizes()
    _restart(scenario)
    world.run(world.now + 8.0)


def _quarantined(scenario: Scenario) -> bool:
    leader = scenario.target.leader_replica((DEAD_LETTERS, 0))
    return leader is not None and bool(leader.log)


def _late_behind_a_dead_letter(scenario: Scenario, *, dies: bool) -> None:
    world = scenario.world
    _with_dead_letters(scenario)
    scenario.produce(0, 5000)
    world.run(world.now + 1.0)  # this connection has acknowledged a batch, so batches are pipelined
    scenario.produce(0, 2 * LARGEST_BYTES, 5000)
    _late_write(scenario, REMOTE, 2, 5.0, dies=dies)
    if not world.run(world.now + 4.5, lambda: _quarantined(scenario)):
        raise Violation("simulation", "nothing is written to the dead letter topic")
    world.run(world.now + 6.0)
    scenario.produce(0, 5000)
    world.run(world.now + 3.0)


def late_request_behind_a_dead_letter(scenario: Scenario) -> None:
    """A holder dies with two requests in flight. The next one writes the record of the first to the dead letter topic, and sends
    that of the second with its sequence. Then the second request is processed."""
    _late_behind_a_dead_letter(scenario, dies=True)


def late_request_of_its_own_behind_a_dead_letter(scenario: Scenario) -> None:
    """The same where the holder does not die: its connection is closed after the request timeout."""
    _late_behind_a_dead_letter(scenario, dies=False)


def _slow(scenario: Scenario, node: int, api_key: int) -> None:
    """A broker of the target takes a second for each of these requests of a client."""
    world, broker = scenario.world, scenario.target.brokers[node]
    handle = broker._handle

    def slow(link: Link, frame: bytes) -> None:
        world.after(1.0 if protocol.head_of(frame).api_key == api_key else 0.0, handle, link, frame)

    broker._handle = slow  # type: ignore[method-assign]


def dead_letter_before_an_election(scenario: Scenario) -> None:
    """A holder dies, and the source elects another leader. The next holder writes the last record of the old leader epoch to the
    dead letter topic, and has read a record of the new one by then: the session ends for two reasons at once. The target is slow to
    assign producer ids."""
    world = scenario.world
    _with_dead_letters(scenario)
    scenario.produce(0, 5000)
    world.run(world.now + 1.0)
    _crash(scenario)
    scenario.produce(0, 2 * LARGEST_BYTES)
    world.run(world.now + 0.5)
    scenario.source.move_leader((TOPIC, 0))
    world.run(world.now + 0.5)
    scenario.produce(0, 5000, 5000)
    for node in scenario.target.brokers:
        _slow(scenario, node, protocol.INIT_PRODUCER_ID)
    _start(scenario)
    world.run(world.now + 8.0)
    if not _quarantined(scenario):
        raise Violation("simulation", "nothing is written to the dead letter topic")
    scenario.produce(0, 5000)
    world.run(world.now + 3.0)


def dead_letter_during_a_search(scenario: Scenario) -> None:
    """Another producer has written to the remote topic, so the position waits for a search. The next record goes to the dead
    letter topic, and the holder dies with the first request that follows."""
    world, target = scenario.world, scenario.target
    _with_dead_letters(scenario)
    scenario.produce(0, 5000)
    world.run(world.now + 1.0)
    leader = target.leader_replica((REMOTE, 0))
    assert leader is not None
    marker = Record(struct.pack(">hh", 0, 1), struct.pack(">hi", 0, 0), (), int(world.wall() * 1000))
    data = encode_batch([marker], producer=(77, 0, -1), attributes=CONTROL | TRANSACTIONAL)
    leader.append(batch_at(memoryview(data), leader.end, leader.epoch))
    target.brokers[leader.broker].advance(leader)
    target.replicate(leader)
    world.run(world.now + 1.0)
    _slow(scenario, leader.broker, protocol.FETCH)
    scenario.produce(0, 5000, 2 * LARGEST_BYTES, 5000)
    _late_write(scenario, REMOTE, 2, 0.0, dies=False)
    # The third record may have been sent, and rejected, with the second one.
    _late_write(scenario, REMOTE, 1, 0.0)
    world.run(world.now + 6.0)


# -- profiles


def _late(profile: Profile) -> None:
    """Brokers of the target process requests of closed connections, whenever they arrive."""
    profile.commit_ms = 200
    profile.batch_s = 60.0
    profile.target.late_requests = True


def _late_and_impatient(profile: Profile) -> None:
    _late(profile)
    profile.request_timeout_ms = 2_000


LATE_AND_RETENTION = Schedule(late_request_and_retention, _late)
LATE_AFTER_ITS_SUCCESSOR = Schedule(late_request_after_its_successor, _late)
LATE_AND_UNCLEAN = Schedule(late_request_and_unclean_election, _late)
LATE_BEHIND_A_DEAD_LETTER = Schedule(late_request_behind_a_dead_letter, _late)
LATE_OF_ITS_OWN = Schedule(late_request_of_its_own_behind_a_dead_letter, _late_and_impatient)
DEAD_LETTER_BEFORE_AN_ELECTION = Schedule(dead_letter_before_an_election, _late)
DEAD_LETTER_DURING_A_SEARCH = Schedule(dead_letter_during_a_search, _late)

SEQUENCES: tuple[Schedule, ...] = (
    LATE_AND_RETENTION,
    LATE_AFTER_ITS_SUCCESSOR,
    LATE_AND_UNCLEAN,
    LATE_BEHIND_A_DEAD_LETTER,
    LATE_OF_ITS_OWN,
    DEAD_LETTER_BEFORE_AN_ELECTION,
    DEAD_LETTER_DURING_A_SEARCH,
)
