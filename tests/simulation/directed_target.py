"""Schedules of faults of the target and of leases; see `directed`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mm2.copy.executor.clusters.discovery import LOW_LATENCY_CONNECTIONS
from mm2.copy.progress.ledger import Ledger, ledger_topic
from mm2.copy.progress.written_positions import offset_key, offset_value
from mm2.kafka.producer.partitioner import partition_for
from mm2.kafka.records.record import Record, encode_batch
from mm2.kafka.structs import TopicPartition
from tests.simulation.cluster import Cluster, Place
from tests.simulation.directed import Schedule, _crash, _cut_off, _late_write, _restart, _seldom, _start, _write_to
from tests.simulation.network import Link, Socket
from tests.simulation.oracle import Reset, Violation
from tests.simulation.process import Loop, Process
from tests.simulation.scenario import CONNECTOR, OFFSETS, REMOTE, TOPIC, Profile, Scenario
from tests.simulation.storage import batch_at

_OLD_MS = 30 * 86_400_000
LEDGER: Place = (ledger_topic("A"), 0)
DATA: Place = (REMOTE, 0)


def _old(profile: Profile) -> None:
    """Records so old that the target expires their producer at each check."""
    profile.age_ms = (_OLD_MS,)
    profile.target.check_interval_s = 0.5
    profile.target.lag_time_s = 2.0
    profile.commit_ms = 200
    profile.batch_s = 60.0


def _old_and_few(profile: Profile) -> None:
    _old(profile)
    profile.target.check_interval_s = 0.2
    profile.produce_every_s = 0.3
    profile.burst = 1


def _slow(cluster: Cluster, place: Place, nodes: tuple[int, ...] = (1, 2, 3)) -> None:
    """Stop the followers of a partition from fetching."""
    for node in nodes:
        cluster.brokers[node].slow_fetch_s[place] = 1000.0


def _well(cluster: Cluster, place: Place) -> None:
    for node, broker in cluster.brokers.items():
        broker.slow_fetch_s.pop(place, None)
        cluster.fetch_soon(place, node, 0.001)


def _holder(scenario: Scenario) -> Process:
    holder = scenario.driver.holder()
    if holder is None:
        raise Violation("simulation", "no process copies")
    return holder


def _end(scenario: Scenario, place: Place = DATA) -> int:
    leader = scenario.target.leader_replica(place)
    return -1 if leader is None else leader.end


def _state(scenario: Scenario) -> tuple[str, str, int]:
    row = next((row for row in scenario.driver.progress() if row.partition == 0), None)
    return ("", "", -1) if row is None else (row.state, row.reason, row.position)


def _break_channel(scenario: Scenario) -> None:
    """Break the progress channel of the holder (`_Peer.connection_lost` of `driver/server.py`): both ends detect it."""
    driver = scenario.driver
    driver.kill_cancelled = 0.0  # the host of the executor is the one that is cut off
    batch = driver._batch_of[_holder(scenario)]
    scenario.world.say("the progress channel breaks")
    driver.perform(lambda: batch.ended("the progress channel broke: reset"))


# -- two holders at a time


def lease_still_runs(scenario: Scenario) -> None:
    """The progress channel breaks while the target rejects batches: another holder gets the lease before the old one expires."""
    world, target = scenario.world, scenario.target
    world.run(3.0)
    _slow(target, DATA)
    world.run(9.0)  # rejected with NOT_ENOUGH_REPLICAS by now, and retried
    _break_channel(scenario)
    world.run(world.now + 4.0)
    _well(target, DATA)
    world.run(world.now + 3.0)


def lease_still_runs_doubled(scenario: Scenario) -> None:
    """The same without I4: the effect of the two holders on the target."""
    scenario.network.on_send = lambda _link, _data: None
    world, target = scenario.world, scenario.target
    world.run(3.0)
    _slow(target, DATA)
    world.run(9.0)
    _break_channel(scenario)
    world.run(world.now + 1.5 + world.random.random() * 1.5)
    _well(target, DATA)
    world.run(world.now + 5.0)


def stop_while_frozen(scenario: Scenario) -> None:
    """The task is stopped while the target rejects batches; its holder is frozen for 3.5 s during the drain. After the 5 s of
    `task.shutdown.graceful.timeout.ms` the worker abandons the task (`Worker.stop_tasks`), and another worker starts it."""
    world, target, driver = scenario.world, scenario.target, scenario.driver
    world.run(3.0)
    _slow(target, DATA)
    world.run(9.0)
    driver.kill_cancelled = 0.0
    holder = _holder(scenario)
    stopped = world.now
    driver.signal_stop()
    world.run(stopped + 3.2)
    holder.freeze(3.5)
    world.run(stopped + 5.0)
    driver.start()
    world.run(stopped + 12.0)
    _well(target, DATA)
    world.run(world.now + 3.0)


# -- clean hand-off while the ledger must be written


def moved_without_entry(scenario: Scenario) -> None:
    """A holder has reset its position after a truncation and waits for the ledger; the next one takes over, copies and dies."""
    world, source, target = scenario.world, scenario.source, scenario.target
    place: Place = (TOPIC, 0)
    part = source.partitions[place]
    world.run(2.0)
    source.brokers[3].slow_fetch_s[place] = 1000.0
    world.run(6.5)
    _slow(target, LEDGER)
    world.run(9.2)
    scenario.oracle.excuses.source_cut.add(0)
    source.brokers[3].slow_fetch_s.pop(place, None)
    source.decide(part, 3, (3,), new_epoch=True)
    _await_hand_over(scenario)
    end = _end(scenario)
    world.run(world.now + 30.0, lambda: _end(scenario) > end + 5)
    _restart(scenario)
    world.run(world.now + 2.0)
    _well(target, LEDGER)
    world.run(world.now + 3.0)


def _moved(profile: Profile) -> None:
    profile.commit_ms = 200
    profile.batch_s = 10.0
    profile.target.lag_time_s = 2.0


def hand_over_while_the_ledger_refuses(scenario: Scenario) -> None:
    """A hand-off while a commit is in flight that completes a chunk of the trail and starts the next one."""
    world, target = scenario.world, scenario.target
    for _ in range(3):
        world.run(world.now + 3.0)
        _slow(target, LEDGER)
        _await_hand_over(scenario)
        world.run(world.now + 1.0)
        _well(target, LEDGER)


def late_chunk(scenario: Scenario) -> None:
    """A dead holder's write of a chunk is appended after its successor has completed the chunk and started others."""
    world = scenario.world
    world.run(5.0)
    for _ in range(6):  # not every commit changes a chunk
        _late_write(scenario, LEDGER[0], 3, late_s=8.0)
        if world.run(world.now + 12.0, _late_chunk_is_written(scenario)):
            break
    else:
        raise Violation("simulation", "no late chunk")
    for _ in range(2):  # the driver may not have read the newest commit at the first one
        _await_hand_over(scenario)
        world.run(world.now + 3.0)
    if scenario.written_ledger().late():
        raise Violation("reasons", "a chunk that a late write has replaced is not written again")


def _late_chunk_is_written(scenario: Scenario) -> Callable[[], bool]:
    """Whether the ledger has a late chunk, to be called after each step: the ledger is read only when its log has changed."""
    log: list[Any] = []
    late = False

    def check() -> bool:
        nonlocal log, late
        leader = scenario.target.leader_replica((ledger_topic("A"), 0))
        if leader is not None and leader.log != log:
            log, late = list(leader.log), bool(scenario.written_ledger().late())
        return late

    return check


def _await_hand_over(scenario: Scenario) -> None:
    grant = scenario.driver.last_grant
    if not scenario.world.run(scenario.world.now + 60.0, lambda: scenario.driver.last_grant > grant):
        raise Violation("simulation", "no hand-over")


def _transactions(profile: Profile) -> None:
    _moved(profile)
    profile.transactions = profile.read_committed = True


# -- a request that was handed to the channel, and not to the socket


class _Full:
    """Make sockets accept no bytes, as with a broker that does not read."""

    def __init__(self) -> None:
        self.links: set[Link] = set()
        self.writers: dict[Any, tuple[Process, Callable[[], None]]] = {}

    def over(self) -> None:
        self.links.clear()
        for process, callback in list(self.writers.values()):
            process.socket_ready(callback)


@contextmanager
def _backpressure() -> Iterator[_Full]:
    full = _Full()
    saved = Socket.sendmsg, Loop.add_writer, Loop.remove_writer

    def sendmsg(self: Socket, buffers: Any) -> int:
        if self.link in full.links:
            raise BlockingIOError
        return saved[0](self, buffers)

    def add_writer(self: Loop, fd: Any, callback: Any, *_: Any) -> None:
        full.writers[fd] = (self._process, callback)

    def remove_writer(self: Loop, fd: Any) -> None:
        full.writers.pop(fd, None)

    Socket.sendmsg, Loop.add_writer, Loop.remove_writer = sendmsg, add_writer, remove_writer  # type: ignore[method-assign]
    try:
        yield full
    finally:
        Socket.sendmsg, Loop.add_writer, Loop.remove_writer = saved  # type: ignore[method-assign]


def _frozen_with_full_socket(scenario: Scenario) -> None:
    world, network = scenario.world, scenario.network
    with _backpressure() as full:
        world.run(4.0)
        holder = _holder(scenario)
        scenario.driver.kill_cancelled = 0.0
        leader = scenario.target.partitions[DATA].state.leader
        host = scenario.target.brokers[leader].host
        full.links.update(link for link in network.of(holder) if link.listener.host == host)
        if not world.run(world.now + 5, lambda: bool(full.writers)):
            raise Violation("simulation", "no request waits for the socket")
        world.say("a request waits for the socket")
        holder.freeze(25.0)
        world.run(world.now + 0.5)
        full.over()  # the broker reads again; the process is still frozen
        world.run(world.now + 17.0)
        scenario._producing = False
        world.run(world.now + 12.0)


def frozen_with_full_socket(scenario: Scenario) -> None:
    """A holder is frozen while a batch waits for the full socket. It resumes after another holder has copied more."""
    _frozen_with_full_socket(scenario)


def frozen_with_full_socket_doubled(scenario: Scenario) -> None:
    """The same without I4."""
    scenario.network.on_send = lambda _link, _data: None
    _frozen_with_full_socket(scenario)


# -- a request behind another one on its connection


def late_old_batch(scenario: Scenario) -> None:
    """A request waits for followers when its connection breaks or its executor dies. A batch of old records behind it on the
    connection is not found by the look-up and sent again. When the followers fetch again, the broker reads the first copy,
    and has removed the producer meanwhile."""
    world, target = scenario.world, scenario.target
    waiting: Place = (REMOTE, LOW_LATENCY_CONNECTIONS)  # the next partition with the same connection
    for place in (DATA, waiting):
        part = target.partitions[place]
        target.decide(part, 3, part.state.isr, new_epoch=True)  # its connections are used for nothing else
    world.run(3.0)
    _slow(target, waiting)
    world.run(world.now + 0.5 + world.random.random())
    end = _end(scenario)
    if world.random.random() < 0.5:
        target.brokers[3].break_links(1.0)
    else:
        _holder(scenario)._exit(OSError("killed"))
    if not world.run(world.now + 6.0, lambda: _end(scenario) > end):
        raise Violation("simulation", "nothing is sent again")
    scenario._producing = False
    world.run(world.now + 0.5)
    leader = target.leader_replica(DATA)
    assert leader is not None
    if not world.run(world.now + 3.0, lambda: not leader.producers):
        raise Violation("simulation", "the leader remembers the producer")
    _well(target, waiting)
    world.run(world.now + 2.0)


def _old_and_in_sync(profile: Profile) -> None:
    """Old records; slow followers stay in sync, and brokers process requests of closed connections."""
    _old(profile)
    profile.partitions = 1 + LOW_LATENCY_CONNECTIONS
    profile.target.lag_time_s = 120.0
    profile.target.late_requests = True


# -- a deposed leader of the remote partition


def deposed_target_leader(scenario: Scenario) -> None:
    """A clean election; the deposed leader still answers metadata requests and look-ups. Holders crash meanwhile,
    and the connections to the deposed leader break between the look-up and what is sent."""
    world, target = scenario.world, scenario.target
    world.run(3.0)
    for place in (LEDGER, (OFFSETS, 0), (OFFSETS, 1)):
        target.move_leader(place)  # the internal topics are on healthy brokers
    world.run(4.0)
    deposed = _cut_off(scenario, target, DATA, 40.0)
    for _ in range(8):
        world.run(world.now + 2.0)
        _restart(scenario, 0.2)
        world.run(world.now + 0.2 + world.random.random())
        target.brokers[deposed].break_links(2.0)
    world.run(world.now + 6.0)


def reappeared_session(scenario: Scenario) -> None:
    """A holder dies with records in flight, which only the leader has. Other leaders lack them, so the look-up does not find
    them, and the session ends because the isolation level has changed, once or twice. Then the former leader is elected again:
    it is still in sync, and has not truncated its log."""
    world, target = scenario.world, scenario.target
    part = target.partitions[DATA]
    former = part.state.leader
    others = [node for node in part.replicas if node != former]

    def is_in_flight() -> bool:
        end = part.replicas[former].end
        return all(part.replicas[node].end < end for node in others)

    def is_quiet() -> bool:
        return len({(replica.end, replica.high_watermark) for replica in part.replicas.values()}) == 1

    world.run(4.0)
    if not world.run(world.now + 20, is_quiet):
        raise Violation("simulation", "the followers do not know the high watermark")
    _slow(target, DATA)
    if not world.run(world.now + 10, is_in_flight):
        raise Violation("simulation", "no batch is in flight")
    _crash(scenario)
    world.run(world.now + 0.5)
    target.decide(part, others[0], part.state.isr, new_epoch=True)
    world.run(world.now + 0.5)
    for _ in range(world.random.randrange(1, 4)):
        _restart(scenario, read_committed=not scenario.driver.spec.read_committed)
        world.run(world.now + 1.0 + world.random.random())
    target.decide(part, former, part.state.isr, new_epoch=True)
    world.run(world.now + world.random.random() * 2)
    if world.random.random() < 0.5:
        _restart(scenario, read_committed=not scenario.driver.spec.read_committed)
    _well(target, DATA)
    world.run(world.now + 6.0)


def rules_changed_beside_a_deposed_leader(scenario: Scenario) -> None:
    """A clean election; the deposed leader still answers metadata and offset requests of clients. Holders crash, and each time the
    isolation level changes. The source is slow, so the end of a session lies some seconds after its look-up."""
    world, target, driver = scenario.world, scenario.target, scenario.driver
    often = dataclasses.replace(driver.spec.target, metadata_max_age_ms=1_000)
    driver.spec = dataclasses.replace(driver.spec, target=often)
    world.run(3.0)
    for place in (LEDGER, (OFFSETS, 0), (OFFSETS, 1)):
        target.move_leader(place)  # the internal topics are on healthy brokers
    world.run(4.0)
    _cut_off(scenario, target, DATA, 60.0)
    world.run(world.now + 3.0)
    for _ in range(6):
        for broker in scenario.source.brokers.values():
            broker.stall(4.0)
        _restart(scenario, 0.2, read_committed=not driver.spec.read_committed)
        world.run(world.now + 7.0 + world.random.random())
    world.run(world.now + 6.0)


def _seldom_and_few(profile: Profile) -> None:
    _seldom(profile)
    profile.produce_every_s = 0.2
    profile.burst = 2


def _in_sync(profile: Profile) -> None:
    """Slow followers stay in sync, and records come one by one."""
    _seldom(profile)
    profile.target.lag_time_s = 120.0
    profile.produce_every_s = 0.3
    profile.burst = 1


# -- a remote topic with another name


def policy_changes(scenario: Scenario) -> None:
    """Holders die with many records that they have not committed. In between the replication policy changes, and leaders move."""
    world, random = scenario.world, scenario.world.random
    world.run(4.0)
    for number in range(10):
        _crash(scenario)
        world.run(world.now + 0.5 + random.random())
        if number < 2 or random.random() < 0.5:
            scenario.use_other_policy()
        if random.random() < 0.5:
            scenario.move_target()
        written = _end(scenario, LEDGER)
        _start(scenario)
        if random.random() < 0.5:
            world.run(world.now + 10.0, lambda written=written: _end(scenario, LEDGER) > written)  # type: ignore[misc]
        else:
            world.run(world.now + random.choice([1.0, 4.0]))


def _never_committed(profile: Profile) -> None:
    _seldom(profile)
    profile.produce_every_s = 0.02


# -- a deposed leader of the ledger


def stale_ledger_leader(scenario: Scenario) -> None:
    """The ledger is read from a deposed leader; the position's header is newer, and the source's
    leader has moved in between, cleanly."""
    world, target, source, driver = scenario.world, scenario.target, scenario.source, scenario.driver
    zombie = 3
    for place, part in target.partitions.items():
        leader = zombie if place == LEDGER else 1
        if part.state.leader != leader:
            target.decide(part, leader, part.state.isr, new_epoch=True)
    world.run(5.0)
    broker = target.brokers[_cut_off(scenario, target, LEDGER, 120.0)]
    world.run(world.now + 0.5)
    end = _end(scenario, LEDGER)
    if not world.run(world.now + 60, lambda: _end(scenario, LEDGER) > end + 2):
        raise Violation("simulation", "the new leader of the ledger gets no entries")
    source.move_leader((TOPIC, 0))
    end = _end(scenario, LEDGER)
    world.run(world.now + 3)
    world.run(world.now + 20, lambda: _end(scenario, LEDGER) > end + 8)
    newest = driver.ledger

    def ledger() -> Ledger:
        """Response of the deposed leader, up to its high watermark."""
        world.sleep(0.01)
        found = Ledger()
        replica = broker.replicas[LEDGER]
        for batch in replica.log:
            if batch.after <= replica.high_watermark:
                for record in batch.records:
                    found.apply(record.key, record.value, record.timestamp or 0)
        return found

    driver.ledger = ledger  # type: ignore[method-assign]
    _restart(scenario)
    world.run(world.now + 6.0)
    driver.ledger = newest  # type: ignore[method-assign]


def _short_batches(profile: Profile) -> None:
    _short_commits(profile)
    profile.batch_s = 5.0


def _short_commits(profile: Profile) -> None:
    profile.produce_every_s = 0.1
    profile.burst = 3
    profile.commit_ms = 200
    profile.batch_s = 60.0
    profile.request_timeout_ms = 2_000


# -- a deposed leader of the offsets topic returns its log end offset


def stale_seen(scenario: Scenario) -> None:
    """A user's reset is applied; a deposed leader returns the end of the offsets topic; the holder dies before it commits."""
    world, target = scenario.world, scenario.target
    world.run(12.0)
    place = (OFFSETS, partition_for(offset_key(CONNECTOR, "A", TopicPartition(TOPIC, 0)), 2))
    _cut_off(scenario, target, place, 20.0)
    world.run(world.now + 0.5)
    scenario.reset_position()
    resets = scenario.oracle.excuses.resets
    if not world.run(world.now + 30.0, lambda: bool(resets) and not scenario._starting):
        raise Violation("simulation", "no reset")
    end = _end(scenario)
    world.run(world.now + 5.0, lambda: _end(scenario) > end + 10)
    _restart(scenario)
    world.run(world.now + 5.0)


def _seldom_short(profile: Profile) -> None:
    profile.produce_every_s = 0.15
    profile.burst = 3
    profile.commit_ms = 60_000
    profile.batch_s = 6.0
    profile.request_timeout_ms = 2_000


def late_position_before_seen(scenario: Scenario) -> None:
    """A position whose connection broke, and which was written again, lands between the successor's two questions: what the position
    is, and where the offsets topic ends. Nothing is copied any more. Then the task starts again."""
    world, target, network, driver = scenario.world, scenario.target, scenario.network, scenario.driver
    caught: list[tuple[int, bytes]] = []
    watched = network.on_send
    count = 0

    def sent(link: Link, data: bytes) -> None:
        nonlocal count
        watched(link, data)
        write = _write_to(scenario, data, OFFSETS)
        if write is not None and not caught:
            count += 1
            if count == 4:
                world.say("this position will be late, its connection breaks")
                caught.append(write)
                link.late_s = 100_000.0
                world.after(0.0, link.reset)

    network.on_send = sent
    world.run(5.0, lambda: bool(caught))
    world.run(world.now + 2.0)
    scenario._producing = False
    world.run(world.now + 2.0)
    network.on_send = watched
    lane = driver.lane
    assert lane is not None
    read = lane._read_starts

    def starts(partitions: Any) -> Any:
        found = read(partitions)
        if caught:
            partition, data = caught.pop()
            leader = target.leader_replica((OFFSETS, partition))
            assert leader is not None
            world.say("the late position lands", offset=leader.end)
            leader.append(batch_at(memoryview(data), leader.end, leader.epoch))
            target.brokers[leader.broker].advance(leader)
            target.replicate(leader)
            world.sleep(0.05)
        return found

    lane._read_starts = starts
    _holder(scenario)._exit(OSError("killed"))
    world.run(world.now + 6.0)
    _restart(scenario)
    world.run(world.now + 3.0)


# -- a user's reset beside a holder that still commits


def reset_while_the_task_ends(scenario: Scenario) -> None:
    """A user stops the connector and sets a position. The task is stopped half a second later and commits meanwhile."""
    world, target, driver = scenario.world, scenario.target, scenario.driver
    world.run(4.0)
    key = offset_key(CONNECTOR, "A", TopicPartition(TOPIC, 0))
    place = (OFFSETS, partition_for(key, 2))
    leader = target.leader_replica(place)
    assert leader is not None
    position = scenario.oracle.expected(0)[5][0]
    world.say("a user sets a position", position=position, at=leader.end)
    record = Record(key, offset_value(position), (), int(world.wall() * 1000))
    leader.append(batch_at(memoryview(encode_batch([record])), leader.end, leader.epoch))
    target.replicate(leader)
    scenario.oracle.excuses.resets[0] = [Reset(position, scenario.oracle.seen[0].verified)]
    world.run(world.now + 0.5)
    driver.signal_stop()
    if not world.run(world.now + 10.0, lambda: driver.stopped):
        raise Violation("simulation", "the lane does not stop")
    _start(scenario)
    world.run(world.now + 5.0)


# -- unclean hand-offs


def late_position_of_before_a_hand_over(scenario: Scenario) -> None:
    """A position is appended and stays above the high watermark. Its holder hands over with a batch unanswered; the next one writes its
    entry and no position, and dies. Then the in-sync replicas are back, and the position of long ago is the newest."""
    world, target, driver = scenario.world, scenario.target, scenario.driver
    offsets = (OFFSETS, partition_for(offset_key(CONNECTOR, "A", TopicPartition(TOPIC, 0)), 2))
    world.run(3.0)
    _slow(target, offsets)
    end = _end(scenario, offsets)
    if not world.run(world.now + 5.0, lambda: _end(scenario, offsets) > end):
        raise Violation("simulation", "no position is written")
    world.run(world.now + 3.0)
    _slow(target, DATA)
    grant, written = driver.last_grant, _end(scenario, LEDGER)
    if not world.run(world.now + 60.0, lambda: driver.last_grant > grant):
        raise Violation("simulation", "no hand-over")
    _well(target, DATA)
    if not world.run(world.now + 20.0, lambda: _end(scenario, LEDGER) > written):
        raise Violation("simulation", "no entry of the next holder")
    world.run(world.now + 2.0)
    _crash(scenario)
    _well(target, offsets)
    world.run(world.now + 1.0)
    _start(scenario)
    world.run(world.now + 3.0)


# -- alarms that end by themselves


def alarm_ends_by_itself(scenario: Scenario) -> None:
    """Records of the session are appended twice. The partition stops as INCONSISTENT, and the next micro-batch continues."""
    world, target = scenario.world, scenario.target
    scenario.oracle.excuses.target_cut.add(0)
    scenario.oracle.excuses.stops[0] = {"INCONSISTENT"}
    world.run(3.0)
    leader = target.leader_replica(DATA)
    assert leader is not None
    batch = leader.log[-1]
    world.say("appended twice", at=leader.end)
    leader.append(batch_at(memoryview(batch.data), leader.end, leader.epoch))
    target.brokers[leader.broker].advance(leader)
    target.replicate(leader)
    if not world.run(world.now + 10.0, lambda: _state(scenario)[0] == "INCONSISTENT"):
        raise Violation("simulation", f"not found: {_state(scenario)}")
    said = _state(scenario)
    world.run(world.now + 3.0)
    if world.run(world.now + 60.0, lambda: _state(scenario)[0] == "RUNNING" and _state(scenario)[2] > said[2] + 20):
        raise Violation("alarm", f"was {said}, and is {_state(scenario)} without any action")


def lost_range_ends_by_itself(scenario: Scenario) -> None:
    """An unclean election of the target loses acknowledged records: the partition stops as LOST_RANGE and then continues."""
    world, target = scenario.world, scenario.target
    scenario.oracle.excuses.target_cut.add(0)
    scenario.oracle.excuses.stops[0] = {"LOST_RANGE", "INCONSISTENT", "note"}
    world.run(3.0)
    _slow(target, DATA, (3,))
    world.run(9.0)
    states: list[str] = []

    def watch() -> bool:
        state = _state(scenario)[0]
        if not states or states[-1] != state:
            states.append(state)
        return False

    scenario.target.brokers[3].slow_fetch_s.pop(DATA, None)
    target.elect_unclean(DATA)
    for node in (1, 2, 3):
        target.fetch_soon(DATA, node, 0.001)
    world.run(world.now + 40.0, watch)
    scenario.finish()
    leader = target.leader_replica(DATA)
    assert leader is not None
    there = {serial for batch in leader.log for record in batch.records for serial in [_serial(record.value)]}
    missing = [serial for _, serial in scenario.oracle.expected(0) if serial not in there]
    if missing and _state(scenario)[0] == "RUNNING":
        raise Violation(
            "alarm", f"{len(missing)} records are missing ({missing[:5]}), states were {states}, now {_state(scenario)}"
        )


def target_ends_before_the_session(scenario: Scenario) -> None:
    """An unclean election of the target loses acknowledged records from before the start of the session: all are sent again."""
    world, target, driver = scenario.world, scenario.target, scenario.driver
    scenario.oracle.excuses.target_cut.add(0)
    world.run(3.0)
    _slow(target, DATA, (3,) if target.partitions[DATA].state.leader != 3 else (2,))
    world.run(10.0)
    _restart(scenario, 0.2, read_committed=not driver.spec.read_committed)
    world.run(16.0 + world.random.random() * 2)
    target.elect_unclean(DATA)
    world.run(world.now + 1.0)
    _well(target, DATA)
    for _ in range(3):  # each time the target is looked up
        world.run(world.now + 1.0)
        _restart(scenario, 0.2)
        world.run(world.now + 6.0)
    scenario.finish()
    leader = target.leader_replica(DATA)
    assert leader is not None
    there = [_serial(record.value) for batch in leader.log for record in batch.records]
    if there != [serial for _, serial in scenario.oracle.expected(0)]:
        raise Violation("I1", f"{len(there)} records are on the target, the partition is {_state(scenario)}")


def _serial(value: bytes | None) -> int:
    return int((value or b"").split(b":")[1])


def _alarm(profile: Profile) -> None:
    profile.commit_ms = 200
    profile.batch_s = 6.0
    profile.target.lag_time_s = 2.0


def _alarm_old(profile: Profile) -> None:
    _old(profile)
    profile.batch_s = 8.0


# -- retention of the target


def retention_of_the_target(scenario: Scenario) -> None:
    """While no process copies, retention of the target deletes some of the records after the last mark."""
    world, target = scenario.world, scenario.target
    world.run(2.0)
    middle = 0
    world.run(6.0)
    _crash(scenario)
    world.run(world.now + 1.0)
    part = target.partitions[DATA]
    log = part.replicas[part.state.leader].log
    middle = log[len(log) * 2 // 3].base
    world.say("retention", start=middle, end=part.replicas[part.state.leader].end)
    for replica in part.replicas.values():
        replica.log[:] = [batch for batch in replica.log if batch.base >= middle]
        replica._bases[:] = [batch.base for batch in replica.log]
        replica.start = middle
    _start(scenario)
    world.run(world.now + 20.0)


def _seldom_old(profile: Profile) -> None:
    _old(profile)
    _seldom(profile)


def _seldom_old_and_slow(profile: Profile) -> None:
    """Advance the deposed leader's high watermark to its log end, or a look-up would wait forever."""
    _seldom_old(profile)
    profile.produce_every_s = 0.7


def target_shortened_behind_a_cut(scenario: Scenario) -> None:
    """An unclean election cuts the source off, and later another one the target, before the records that replaced those of the source."""
    world, excuses = scenario.world, scenario.oracle.excuses
    source, target = scenario.source.partitions[TOPIC, 0], scenario.target.partitions[DATA]
    excuses.source_cut.add(0)
    excuses.target_cut.add(0)
    excuses.stops[0] = {"LOST_RANGE", "INCONSISTENT", "note"}
    world.run(5.0)
    behind = next(node for node in (1, 2, 3) if node != source.state.leader)
    _slow(scenario.source, (TOPIC, 0), (behind,))
    world.run(8.8)
    behind_target = next(node for node in (1, 2, 3) if node != target.state.leader)
    _slow(scenario.target, DATA, (behind_target,))
    world.run(9.2)
    scenario.source.brokers[behind].slow_fetch_s.pop((TOPIC, 0))
    scenario.source.decide(source, behind, (behind,), new_epoch=True)  # before it has fetched
    world.run(16.5)
    target.lost = True
    scenario.target.decide(target, behind_target, (behind_target,), new_epoch=True)
    _well(scenario.target, DATA)
    world.run(world.now + 12.0)
    scenario.finish()
    leader = scenario.target.leader_replica(DATA)
    assert leader is not None
    there = {_serial(record.value) for batch in leader.log for record in batch.records}
    if missing := [offset for offset, serial in scenario.oracle.expected(0) if serial not in there]:
        raise Violation("lost", f"source offsets {missing[0]}..{missing[-1]} are not on the target: {_state(scenario)}")


LATE_OLD_BATCH = Schedule(late_old_batch, _old_and_in_sync)
REAPPEARED_SESSION = Schedule(reappeared_session, _in_sync)
POLICY_CHANGES = Schedule(policy_changes, _never_committed)
DEPOSED_TARGET_LEADER = Schedule(deposed_target_leader, _seldom_old_and_slow)


TARGET: tuple[Schedule, ...] = (
    Schedule(lease_still_runs, _old),
    Schedule(lease_still_runs_doubled, _old_and_few),
    Schedule(stop_while_frozen, _old_and_few),
    Schedule(moved_without_entry, _moved),
    Schedule(hand_over_while_the_ledger_refuses, _transactions),
    Schedule(late_chunk, _transactions),
    Schedule(frozen_with_full_socket, _seldom_old),
    Schedule(frozen_with_full_socket_doubled, _seldom_old),
    LATE_OLD_BATCH,
    DEPOSED_TARGET_LEADER,
    REAPPEARED_SESSION,
    POLICY_CHANGES,
    Schedule(rules_changed_beside_a_deposed_leader, _seldom_and_few),
    Schedule(stale_ledger_leader, _short_batches),
    Schedule(target_shortened_behind_a_cut, _alarm),
    Schedule(stale_seen, _seldom_short),
    Schedule(late_position_before_seen, _short_commits),
    Schedule(reset_while_the_task_ends, _short_commits),
    Schedule(late_position_of_before_a_hand_over, _moved),
    Schedule(alarm_ends_by_itself, _alarm),
    Schedule(lost_range_ends_by_itself, _alarm_old),
    Schedule(target_ends_before_the_session, _alarm_old),
    Schedule(retention_of_the_target, _seldom_old),
)
