"""Fixed schedules instead of random ones: rare combinations of faults, each over a few seeds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mm2.copy.progress.ledger import Ledger, ledger_topic
from mm2.copy.progress.written_positions import offset_key, offset_value
from mm2.kafka.producer.partitioner import partition_for
from mm2.kafka.records.record import Record, encode_batch
from mm2.kafka.structs import TopicPartition
from tests.simulation import protocol
from tests.simulation.cluster import Cluster, Options, Place
from tests.simulation.oracle import Violation
from tests.simulation.process import Process
from tests.simulation.scenario import CONNECTOR, OFFSETS, TOPIC, Profile, Result, Scenario, play, simulated
from tests.simulation.storage import batch_at

if TYPE_CHECKING:
    from tests.simulation.network import Link
    from tests.simulation.protocol import Head

_SELDOM_MS = 60_000  # a commit interval that a holder never reaches


@dataclass(frozen=True)
class Schedule:
    """``play`` runs the faults, ``shape`` changes the profile before."""

    play: Callable[[Scenario], None]
    shape: Callable[[Profile], None] = lambda _profile: None

    @property
    def name(self) -> str:
        return self.play.__name__


# -- what schedules are made of


def _write_to(scenario: Scenario, data: bytes, topic: str) -> tuple[int, bytes] | None:
    """(partition, batch) of a Produce request to a topic of the target; None for any other request."""
    head = protocol.head_of(data[4:])
    if head.api_key != protocol.PRODUCE:
        return None
    for write in protocol.produce_call(head, data[4:])[1]:
        if write.topic in (topic, scenario.target.ids[topic].bytes):
            return write.partition, bytes(write.data)
    return None


def _late_write(scenario: Scenario, topic: str, number: int, late_s: float, *, dies: bool = True) -> None:
    """Delay the holder's n-th write to a topic by ``late_s`` seconds, and kill the holder.

    The bytes are in the socket: no broker and no successor can detect them earlier.
    """
    world, network = scenario.world, scenario.network
    seen: list[Process] = []
    watched = network.on_send

    def sent(link: Link, data: bytes) -> None:
        watched(link, data)
        process = link.owner
        if len(seen) < number and isinstance(process, Process) and _write_to(scenario, data, topic):
            seen.append(process)
            if len(seen) == number:
                world.say("a write will be late", topic=topic, process=process.name, seconds=late_s)
                link.late_s = late_s
                if dies:
                    world.after(0.0, process._exit, OSError("killed"))

    network.on_send = sent
    until = world.now + 30
    if not world.run(until, lambda: len(seen) >= number):
        raise Violation("simulation", f"no write number {number} to {topic}")
    network.on_send = watched
    world.run(world.now + 0.01)


def _crash(scenario: Scenario) -> None:
    """Kill the driver and its processes."""
    for process in scenario.driver.alive():
        process.kill()
    scenario.driver.crash()


def _start(scenario: Scenario, *, read_committed: bool | None = None) -> None:
    if read_committed is not None:
        scenario.driver.spec = dataclasses.replace(scenario.driver.spec, read_committed=read_committed)
    scenario.driver.start()


def _restart(scenario: Scenario, down_s: float = 0.5, *, read_committed: bool | None = None) -> None:
    """Kill the driver and its processes, and start new ones after some time."""
    _crash(scenario)
    scenario.world.run(scenario.world.now + down_s)
    _start(scenario, read_committed=read_committed)


def _seldom(profile: Profile) -> None:
    profile.commit_ms = _SELDOM_MS
    profile.batch_s = 60.0


def _seldom_and_late(profile: Profile) -> None:
    """Brokers of the target process requests of closed connections."""
    _seldom(profile)
    profile.target.late_requests = True


def _cut_off(scenario: Scenario, cluster: Cluster, place: Place, seconds: float) -> int:
    """The leader of a partition is disconnected from the controller; another in-sync replica is elected, without data loss."""
    part = cluster.partitions[place]
    deposed = part.state.leader
    scenario.cut(cluster, deposed, seconds)
    scenario.world.run(scenario.world.now + cluster.options.session_s + 0.5)
    if part.state.leader == deposed:
        raise Violation("simulation", "no other leader")
    return deposed


def _old_source(profile: Profile) -> None:
    """No topic ids, Fetch 11."""
    profile.source.release = "2.6"


# -- schedules


def two_elections(scenario: Scenario) -> None:
    """Two unclean elections of the source in a row: the second before any record of the first epoch was read."""
    world, source = scenario.world, scenario.source
    place = (TOPIC, 0)
    part = source.partitions[place]
    for node, until_s in ((3, 2.0), (2, 4.0)):
        world.run(until_s)
        source.brokers[node].slow_fetch_s[place] = 1000.0
    world.run(12.0)
    scenario.oracle.excuses.source_cut.add(0)
    for node in (2, 3):
        source.brokers[node].slow_fetch_s.pop(place, None)
        source.decide(part, node, (node,), new_epoch=True)
        world.run(world.now + 0.1)


def deposed_log(scenario: Scenario) -> None:
    """A lagging source replica is elected; after its records were copied, the former leader with other records is elected."""
    world, source = scenario.world, scenario.source
    place = (TOPIC, 0)
    part = source.partitions[place]
    world.run(2.0)
    former = part.state.leader
    other = next(node for node in (1, 2, 3) if node != former)
    source.brokers[other].slow_fetch_s[place] = 1000.0
    world.run(8.0)
    holder = scenario.driver.holder()
    if holder is None:
        raise Violation("simulation", "no process copies")
    holder.freeze(1.5)
    world.run(9.0)
    scenario.oracle.excuses.source_cut.add(0)
    source.brokers[former].slow_fetch_s[place] = 1000.0
    source.brokers[other].slow_fetch_s.pop(place, None)
    source.decide(part, other, (other,), new_epoch=True)
    world.run(world.now + 10.0)  # until its log is longer
    source.brokers[former].slow_fetch_s.pop(place, None)
    source.decide(part, former, (former,), new_epoch=True)
    world.run(world.now + 5.0)


def written_past_the_cut(scenario: Scenario) -> None:
    """The source loses its end and gets more records than it lost before the frozen holder reads it again."""
    world, source = scenario.world, scenario.source
    place = (TOPIC, 0)
    part = source.partitions[place]
    world.run(2.0)
    source.brokers[3].slow_fetch_s[place] = 1000.0
    world.run(8.0)
    holder = scenario.driver.holder()
    if holder is None:
        raise Violation("simulation", "nobody copies")
    holder.freeze(1.5)
    scenario.oracle.excuses.source_cut.add(0)
    source.brokers[3].slow_fetch_s.pop(place, None)
    end = part.replicas[part.state.leader].end
    source.decide(part, 3, (3,), new_epoch=True)
    world.run(world.now + 0.2)
    while part.replicas[3].end < end + 20:
        scenario._produce_batch(0)
    world.run(world.now + 5.0)


def stale_offsets_leader(scenario: Scenario) -> None:
    """A user resets a position while the former leader of the offsets topic still acts as leader."""
    world, target = scenario.world, scenario.target
    world.run(8.0)
    place = (OFFSETS, partition_for(offset_key(CONNECTOR, "A", TopicPartition(TOPIC, 0)), 2))
    broker = target.brokers[target.partitions[place].state.leader]
    scenario.cut(target, broker.node, 20.0)
    world.run(world.now + target.options.session_s + 1)
    scenario.reset_position()
    world.run(world.now + 12)


def late_position(scenario: Scenario) -> None:
    """A dead holder's position is appended after its successor has committed more than once; then the task restarts."""
    _late_write(scenario, OFFSETS, 4, late_s=4.0)
    world = scenario.world
    world.run(world.now + 3.0)
    scenario._producing = False
    world.run(world.now + 3.0)
    _restart(scenario)
    world.run(world.now + 2.0)


def position_of_another_program(scenario: Scenario) -> None:
    """Another program writes a position while the holder copies, which goes on committing for long; then the holder dies."""
    world, target = scenario.world, scenario.target
    world.run(6.0)
    key = offset_key(CONNECTOR, "A", TopicPartition(TOPIC, 0))
    leader = target.leader_replica((OFFSETS, partition_for(key, 2)))
    if leader is None:
        raise Violation("simulation", "the offsets topic has no leader")
    record = Record(key, offset_value(1), (), int(world.wall() * 1000))
    leader.append(batch_at(memoryview(encode_batch([record])), leader.end, leader.epoch))
    target.replicate(leader)
    world.run(world.now + 25.0)
    _crash(scenario)
    world.run(world.now + 0.5)
    _start(scenario)
    world.run(world.now + 3.0)


def late_first_entry(scenario: Scenario) -> None:
    """A dead holder's first entry of a session is appended after its successor's of another session; then that one dies."""
    _late_write(scenario, ledger_topic("A"), 1, late_s=4.0)
    world = scenario.world
    world.run(world.now + 6.0)
    _restart(scenario)
    world.run(world.now + 2.0)


def late_second_session(scenario: Scenario) -> None:
    """The isolation level is changed and changed back; the entry of the session between lands while the first is continued by a
    holder that cannot write to the ledger."""
    world, target, ledger = scenario.world, scenario.target, ledger_topic("A")
    part = target.partitions[ledger, 0]
    target.decide(part, 3, part.state.isr, new_epoch=True)  # its connections are used for nothing else
    target.late_topics.clear()  # late writes are appended when they arrive, not at random times after that
    world.run(3.0)
    scenario.oracle.excuses.aborted = True
    _restart(scenario, read_committed=True)
    # The first entry is the one of a take-over, the second names the new session.
    _late_write(scenario, ledger, 2, late_s=4.0)
    scenario.driver.crash()
    world.run(world.now + 0.5)
    _start(scenario, read_committed=False)
    _late_write(scenario, ledger, 1, late_s=20.0, dies=False)
    world.run(world.now + 5.0)
    _restart(scenario)
    world.run(world.now + 2.0)


def deposed_source_leader(scenario: Scenario) -> None:
    """A clean election; the deposed leader still acts as leader and returns stale metadata."""
    world, source = scenario.world, scenario.source
    part = source.partitions[(TOPIC, 0)]
    world.run(6.0)
    deposed = _cut_off(scenario, scenario.source, (TOPIC, 0), 15.0)
    until = world.now + 10.0
    while world.now < until:
        # Connections break now and then, so leaders are looked up again.
        source.brokers[deposed].break_links(1.0)
        world.run(world.now + 1.0)
        source.brokers[part.state.leader].break_links(1.0)
        world.run(world.now + 1.0)
    world.run(world.now + 8.0)


def deposed_leader_of_an_old_source(scenario: Scenario) -> None:
    """The same with a Kafka 2.6 source: no topic ids, Fetch 11."""
    deposed_source_leader(scenario)


def deposed_source_leader_at_a_hand_over(scenario: Scenario) -> None:
    """No connection breaks: each micro-batch requests metadata from any broker, possibly from the deposed leader."""
    world = scenario.world
    world.run(6.0)
    _cut_off(scenario, scenario.source, (TOPIC, 0), 30.0)
    world.run(world.now + 36.0)


def deposed_source_leader_that_stays(scenario: Scenario) -> None:
    """The same for longer than metadata.max.age.ms, which is 20 s here, within one micro-batch."""
    world, spec = scenario.world, scenario.driver.spec
    world.run(1.0)
    _crash(scenario)
    world.run(world.now + 0.5)
    source = dataclasses.replace(spec.source, metadata_max_age_ms=20_000)
    scenario.driver.spec = dataclasses.replace(spec, source=source)
    _start(scenario)
    world.run(8.0)
    _cut_off(scenario, scenario.source, (TOPIC, 0), 1000.0)
    before = dict(scenario.oracle.seen[0].offsets)
    world.run(world.now + 30.0)
    if scenario.oracle.seen[0].offsets == before:
        part = scenario.source.partitions[(TOPIC, 0)]
        end = part.replicas[part.state.leader].high_watermark
        rows = [(row.state, row.position, row.high_watermark) for row in scenario.driver.progress()]
        raise Violation("stuck", f"nothing copied for 30 s; the source ends at {end}, reported is {rows}")
    for broker in scenario.source.brokers.values():
        broker.cut_until = 0.0


def late_validation(scenario: Scenario) -> None:
    """The OffsetForLeaderEpoch response arrives after another leader was elected uncleanly (Fetch below 12)."""
    world, source = scenario.world, scenario.source
    place = (TOPIC, 0)
    part = source.partitions[place]
    world.run(2.0)
    source.brokers[3].slow_fetch_s[place] = 1000.0
    world.run(9.0)
    if part.state.leader == 3 or 3 in part.state.isr:
        raise Violation("simulation", f"the third replica is in sync: {part.state}")
    second = source.brokers[2]
    answer = second._offset_for_epoch
    asked: list[float] = []

    def late(head: Head, call: object) -> bytes:
        asked.append(world.now)
        second._offset_for_epoch = answer  # type: ignore[method-assign]
        second.unreachable_until = world.now + 3.0
        world.say("an answer will be late", broker=second.host)
        return answer(head, call)

    second._offset_for_epoch = late  # type: ignore[method-assign]
    source.decide(part, 2, part.state.isr, new_epoch=True)
    if not world.run(world.now + 5.0, lambda: bool(asked)):
        raise Violation("simulation", "no position is validated")
    scenario.oracle.excuses.source_cut.add(0)
    source.brokers[3].slow_fetch_s.pop(place, None)
    end = part.replicas[2].end
    source.decide(part, 3, (3,), new_epoch=True)
    world.run(world.now + 0.2)
    while part.replicas[3].end < end + 20:
        scenario._produce_batch(0)
    source.brokers[1].break_links(1.0)  # the leaders are looked up again
    world.run(world.now + 6.0)


def retention_after_crash(scenario: Scenario) -> None:
    """A holder dies long after its last commit; some of the records copied since are deleted before the next one starts."""
    world = scenario.world
    world.run(8.0)
    _crash(scenario)
    world.run(world.now + 0.5)
    copied = scenario.oracle.seen[0].cursor
    start = scenario.delete_records(0, copied * 2 // 3)
    scenario.driver.spec = dataclasses.replace(scenario.driver.spec, commit_interval_ms=500)
    world.run(world.now + 0.5)
    _start(scenario)
    world.run(world.now + 8.0)
    ledger, rows = Ledger(), scenario.target.leader_replica((ledger_topic("A"), 0))
    for record in [record for batch in (rows.log if rows is not None else ()) for record in batch.records]:
        ledger.apply(record.key, record.value, record.timestamp or 0)
    entry = ledger.entry(TopicPartition(TOPIC, 0))
    reported = [] if entry is None else [lost for lost in entry.lost if lost.first < copied]
    if reported:
        raise Violation(
            "ledger", f"offsets up to {copied} are on the target, the log begins at {start}; lost: {reported}"
        )


def retention_after_crash_stops(scenario: Scenario) -> None:
    """The same with source.data.loss=stop, and all these records are deleted."""
    world = scenario.world
    scenario.driver.spec = dataclasses.replace(scenario.driver.spec, source_data_loss="stop")
    world.run(8.0)
    _crash(scenario)
    world.run(world.now + 0.5)
    scenario.delete_records(0, scenario.oracle.seen[0].cursor)
    world.run(world.now + 0.5)
    _start(scenario)
    world.run(world.now + 4.0)


def delayed_packets(scenario: Scenario) -> None:
    """Every packet is delayed, and old batches of transactions are sent one at a time: copying takes minutes, and ends."""
    scenario.world.run(2.0)
    for _ in range(1000):
        scenario._produce_batch(0)


def _slow_and_old(profile: Profile) -> None:
    profile.slow_packets = 1.0
    profile.batch_s = 60.0
    profile.age_ms = (30 * 86_400_000,)
    profile.transactions = profile.read_committed = True


TWO_ELECTIONS = Schedule(two_elections)
DEPOSED_LOG = Schedule(deposed_log)
WRITTEN_PAST_THE_CUT = Schedule(written_past_the_cut, _old_source)
STALE_OFFSETS_LEADER = Schedule(stale_offsets_leader)
LATE_POSITION = Schedule(late_position, lambda profile: setattr(profile, "commit_ms", 200))
POSITION_OF_ANOTHER = Schedule(position_of_another_program, lambda profile: setattr(profile, "batch_s", 600.0))
LATE_FIRST_ENTRY = Schedule(late_first_entry, _seldom)
LATE_SECOND_SESSION = Schedule(late_second_session, _seldom_and_late)
DEPOSED_SOURCE_LEADER = Schedule(deposed_source_leader, lambda profile: setattr(profile.source, "session_s", 1.0))
DEPOSED_LEADER_OF_AN_OLD_SOURCE = Schedule(deposed_leader_of_an_old_source, _old_source)
DEPOSED_AT_A_HAND_OVER = Schedule(
    deposed_source_leader_at_a_hand_over, lambda profile: setattr(profile, "batch_s", 4.0)
)
DEPOSED_THAT_STAYS = Schedule(deposed_source_leader_that_stays, lambda profile: setattr(profile, "batch_s", 600.0))
LATE_VALIDATION = Schedule(late_validation, _old_source)
RETENTION_AFTER_CRASH = Schedule(retention_after_crash, _seldom)
RETENTION_AFTER_CRASH_STOPS = Schedule(retention_after_crash_stops, _seldom)
DELAYED_PACKETS = Schedule(delayed_packets, _slow_and_old)

DIRECTED: tuple[Schedule, ...] = (
    TWO_ELECTIONS,
    DEPOSED_LOG,
    WRITTEN_PAST_THE_CUT,
    STALE_OFFSETS_LEADER,
    LATE_POSITION,
    POSITION_OF_ANOTHER,
    LATE_FIRST_ENTRY,
    LATE_SECOND_SESSION,
    DEPOSED_SOURCE_LEADER,
    DEPOSED_LEADER_OF_AN_OLD_SOURCE,
    DEPOSED_AT_A_HAND_OVER,
    DEPOSED_THAT_STAYS,
    LATE_VALIDATION,
    RETENTION_AFTER_CRASH,
    RETENTION_AFTER_CRASH_STOPS,
    DELAYED_PACKETS,
)


def direct(schedule: Schedule, seed: int, *, echo: bool = False, alarm: bool = False) -> Result:
    """Run one schedule; ``alarm``: see `scenario.run`."""
    with simulated(seed, echo=echo) as world:
        source = Options(min_isr=1, lag_time_s=2.0)
        profile = Profile((), source, Options(session_s=1.0), partitions=1, produce_every_s=0.03)
        schedule.shape(profile)
        return play(world, profile, schedule.play, alarm=alarm)
