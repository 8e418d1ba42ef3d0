"""One run: a source and a target cluster, one flow, and faults; the seed determines their times and targets."""

from __future__ import annotations

import logging
import math
import struct
import warnings
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import structlog

import mm2.copy.channel
import mm2.copy.driver.batch
import mm2.copy.driver.lanes.lane
import mm2.copy.executor.copier
import mm2.copy.progress.segments
import mm2.kafka.client.connection
import mm2.kafka.client.shared_requests
from mm2.copy.executor.link import DriverLink
from mm2.copy.progress.ledger import Ledger, ledger_topic
from mm2.copy.progress.written_positions import offset_key, offset_value
from mm2.copy.spec import CopySpec, PartitionSpec
from mm2.kafka.producer.partitioner import partition_for
from mm2.kafka.records.batch import CONTROL, TRANSACTIONAL
from mm2.kafka.records.record import Record, encode_batch
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import TopicPartition
from tests.simulation.cluster import Cluster, Options, Place
from tests.simulation.driver import Driver, ledger_of, position_key, position_of
from tests.simulation.network import Link, Network
from tests.simulation.oracle import Oracle, Reset, Violation, parse, record_value
from tests.simulation.process import Process
from tests.simulation.storage import Replica, batch_at
from tests.simulation.world import Lock, Secrets, World, patched

TOPIC, REMOTE, OFFSETS = "orders", "A.orders", "mm2-offsets.A.internal"
CONNECTOR = "MirrorSourceConnector"
_MONTH_MS = 30 * 86_400_000
_REST_S = 240.0  # to recover from the faults
_APPEND_S = 0.003  # until both followers have a batch and the leader knows it
_DONE_S = 3.0

#: Faults by family: names of methods of `Scenario`.
FAMILIES: dict[str, tuple[str, ...]] = {
    "replication": ("slow_follower",),
    "stall": ("stall_target",),
    "kill": ("kill_target",),
    "move": ("move_target",),
    "zombie": ("cut_target",),
    "network": ("break_target_links", "hold_target"),
    "errors": ("target_errors",),
    "freeze": ("freeze_holder",),
    "crash": ("kill_holder",),
    "driver": ("kill_driver", "hold_channel"),
    "restart": ("restart_task",),
    "source": ("move_source", "kill_source", "break_source_links", "stall_source", "cut_source"),
    "unclean": ("unclean_source",),
    "reset": ("reset_position",),
    "rules": ("change_isolation",),
}
#: Faults that are in a run only if they are requested, so that the seeds of earlier runs keep their schedules.
REQUESTED: dict[str, tuple[str, ...]] = {
    "policy": ("change_policy",),
    "late": ("kill_holder_late",),
    "retention": ("delete_source",),
    "large": ("produce_large",),
    "moves": ("move_partition",),
}
DEAD_LETTERS = "dead-letters"
LARGEST_BYTES = 10_000


@dataclass
class Profile:
    """The parameters of a run. ``families`` and ``every_s``: which faults occur, and their mean interval."""

    families: tuple[str, ...]
    source: Options
    target: Options
    partitions: int = 2
    age_ms: tuple[int, ...] = (0,)  # of records, one of these for each batch
    read_committed: bool = False
    transactions: bool = False
    batch_s: float = 8.0
    commit_ms: int = 500
    request_timeout_ms: int = 10_000
    chaos_s: float = 40.0
    every_s: float = 2.0
    produce_every_s: float = 0.1
    burst: int = 12
    slow_packets: float = 0.0

    @classmethod
    def of(cls, world: World) -> Profile:
        """The profile of a seed."""
        random = world.random
        names = list(FAMILIES)
        families = tuple(sorted(random.sample(names, random.choice([1, 2, 3, 4, 6]))))
        releases = ["2.8", "3.7", "4.1"]
        target_release = random.choice(releases)
        ages = random.choice([(0,), (_MONTH_MS,), (_MONTH_MS,), (_MONTH_MS, 0), (0, 2 * 86_400_000)])
        target = Options(
            release=target_release,
            check_interval_s=random.choice([1.0, 1.0, 10.0, 600.0]),
            lag_time_s=random.choice([2.0, 5.0, 10.0]),
            session_s=random.choice([1.0, 3.0, 9.0]),
            hold_high_watermark=target_release == "4.1",
        )
        source = Options(
            release=random.choice(["2.6", *releases]),
            lag_time_s=random.choice([2.0, 10.0]),
            session_s=random.choice([1.0, 3.0]),
            min_isr=1,
        )
        transactions = "rules" in families or random.random() < 0.3
        return cls(
            families,
            source,
            target,
            partitions=random.choice([1, 2, 3]),
            age_ms=ages,
            read_committed=transactions and random.random() < 0.6,
            transactions=transactions,
            batch_s=random.choice([4.0, 8.0, 20.0]),
            commit_ms=random.choice([200, 500, 1000]),
            request_timeout_ms=random.choice([2_000, 5_000, 10_000, 30_000]),
            chaos_s=random.choice([20.0, 40.0, 60.0]),
            every_s=random.choice([0.7, 2.0, 5.0]),
            produce_every_s=random.choice([0.03, 0.1, 0.3]),
            burst=random.choice([1, 6, 12, 30]),
            slow_packets=random.choice([0.0, 0.0, 0.01, 0.1]),
        )


@dataclass
class Result:
    """The result of a run. ``violation`` None: all invariants held."""

    seed: int
    steps: int
    records: int
    virtual_s: float
    profile: Profile
    violation: Violation | None = None
    broken: int = 0  # partitions in which records are lost or doubled
    trace: list[str] = field(default_factory=list)


class Scenario:
    """``setup``, then faults (methods of this class) and `run`, then `finish`. Use within `simulated`."""

    def __init__(self, world: World, profile: Profile) -> None:
        self.world = world
        self.profile = profile
        self.network = Network(world)
        self.network.slow = profile.slow_packets
        self.network.on_send = self._sent
        self.source = Cluster(world, self.network, "s", profile.source, tracks_producers=False)
        self.target = Cluster(world, self.network, "t", profile.target, tracks_producers=True)
        self.oracle = Oracle(self.source, self.target, TOPIC, REMOTE, profile.partitions)
        self.oracle.read_committed = profile.read_committed
        self.source.on_high_watermark = self.oracle.source_advanced
        self.source.on_elected = self._elected
        self.target.on_high_watermark = self.oracle.target_advanced
        self.target.on_produce = self._produced
        self._serial = 0
        self._open: dict[
            int, tuple[int, bool]
        ] = {}  # partition -> (producer of an open transaction, it will be aborted)
        self._healing = False
        self._producing = True
        self._starting = False
        self.driver = Driver(world, self.network, self.target, self._spec(), self._failed)

    def _spec(self) -> CopySpec:
        profile = self.profile

        def settings(cluster: Cluster) -> ClientSettings:
            return ClientSettings(
                cluster.bootstrap,
                client_id="sim",
                request_timeout_ms=profile.request_timeout_ms,
                connection_setup_timeout_ms=3_000,
            )

        return CopySpec(
            flow="A->B",
            connector=CONNECTOR,
            task_id=0,
            source_alias="A",
            target_alias="B",
            source=settings(self.source),
            target=settings(self.target),
            partitions=tuple(PartitionSpec(TOPIC, index, REMOTE) for index in range(profile.partitions)),
            offsets_topic=OFFSETS,
            ledger_topic=ledger_topic("A"),
            read_committed=profile.read_committed,
            batch_duration_ms=int(profile.batch_s * 1000),
            commit_interval_ms=profile.commit_ms,
        )

    def setup(self) -> None:
        """Create the topics, a backlog and the flow."""
        self.source.create(TOPIC, self.profile.partitions)
        self.target.create(REMOTE, self.profile.partitions)
        if "large" in self.profile.families:
            self.limit_sizes()
        if "late" in self.profile.families:
            self.target.options.late_requests = True
        self.target.create(OFFSETS, 2)
        self.target.create(ledger_topic("A"), 1)
        self.target.late_topics = {OFFSETS, ledger_topic("A")}
        self.world.run(self.world.now + 0.5)
        for index in range(self.profile.partitions):
            for _ in range(self.world.random.randrange(0, 30)):
                self._produce_batch(index)
        self.world.after(0.01, self._produce)
        self.driver.start()

    def limit_sizes(self) -> None:
        """Larger records than `LARGEST_BYTES` go to a dead letter topic. They count as optional on the target."""
        self.target.create(DEAD_LETTERS, 1)
        self.target.max_message_bytes[REMOTE] = LARGEST_BYTES
        self.driver.spec = _replace(self.driver.spec, dead_letter_topic=DEAD_LETTERS)
        self.oracle.excuses.aborted = True

    # -- callbacks of the clusters

    def _failed(self, message: str) -> None:
        raise Violation("error", message)

    def _sent(self, link: Link, data: bytes) -> None:
        if self.oracle.alarm:
            return  # only its effect on the target counts
        process = link.owner
        if isinstance(process, Process) and len(data) > 6 and struct.unpack_from(">h", data, 4)[0] == 0:
            grant = self.driver.grant_of(process)
            if grant < self.driver.last_grant:
                self.world.failure = Violation(
                    "lease",
                    f"{process.name} (lease {grant}) sends to {link.listener.host} under lease {self.driver.last_grant}",
                )

    def _produced(self, node: int, place: Place, error: int, base: int, data: memoryview) -> None:
        if self.world.echo or error:
            batch = batch_at(data, max(0, base), 0)
            self.world.say(
                "produce",
                broker=node,
                place=place,
                error=error,
                base=base,
                count=batch.after - batch.base,
                producer=batch.producer,
            )
        if place[0] == OFFSETS and not error:
            for record in batch_at(data, base, 0).records:
                position = position_of(record)
                if position is not None:
                    self.oracle.position_written(position_key(record).partition, position)

    # -- records

    def _produce(self) -> None:
        if not self._producing:
            return
        random = self.world.random
        index = random.randrange(self.profile.partitions)
        count = random.randrange(1, self.profile.burst + 1) if random.random() < 0.2 else 1
        for _ in range(count):
            self._produce_batch(index)
        self.world.after(random.expovariate(1 / self.profile.produce_every_s), self._produce)

    def _produce_batch(self, index: int) -> None:
        """Write one batch of a source producer, possibly in a transaction."""
        random = self.world.random
        leader = self._source_leader(index)
        if leader is None:
            return
        producer, attributes, aborted = (-1, -1, -1), 0, False
        if self.profile.transactions and (index in self._open or random.random() < 0.2):
            if index not in self._open:
                self._open[index] = (self._serial + 1, random.random() < 0.4)
            number, aborted = self._open[index]
            producer, attributes = (number, 0, 0), TRANSACTIONAL
            if random.random() < 0.3:
                self._end_transaction(index, leader)
                return
        age_ms = random.choice(self.profile.age_ms)
        now_ms = int(self.world.wall() * 1000) - age_ms
        records = []
        for _ in range(random.choice([1, 1, 2, 3, 5])):
            self._serial += 1
            records.append(Record(None, record_value(index, self._serial, aborted), (), now_ms))
        self._append(leader, encode_batch(records, producer=producer, attributes=attributes))

    def _end_transaction(self, index: int, leader: Replica) -> None:
        number, aborted = self._open.pop(index)
        self._mark_end(leader, number, aborted=aborted)

    def _mark_end(self, leader: Replica, number: int, *, aborted: bool) -> None:
        kind = 0 if aborted else 1
        marker = Record(struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 0), (), int(self.world.wall() * 1000))
        self._append(leader, encode_batch([marker], producer=(number, 0, -1), attributes=CONTROL | TRANSACTIONAL))

    def _end_transactions(self) -> None:
        """End the open transactions, including those whose marker was lost with the end of a log."""
        self._open.clear()
        for index in range(self.profile.partitions):
            leader = self._source_leader(index)
            if leader is not None:
                for number, first in list(leader.open.items()):
                    _, aborted = parse(leader.read(first, first + 1, 1)[0].records[0].value)
                    self._mark_end(leader, number, aborted=aborted)

    def _append(self, leader: Replica, data: bytearray) -> None:
        leader.append(batch_at(memoryview(data), leader.end, leader.epoch))
        self.source.brokers[leader.broker].advance(leader)
        self.source.replicate(leader)

    def _source_leader(self, index: int) -> Replica | None:
        leader = self.source.leader_replica((TOPIC, index))
        if leader is None or not leader.leads:
            return None
        broker = self.source.brokers[leader.broker]
        return leader if broker.alive and not broker.stalled else None

    # -- faults of the target

    def _target_broker(self) -> int:
        return self.world.random.choice([1, 2, 3])

    def slow_follower(self) -> None:
        """A follower of some partitions stops fetching for some time: the ISR shrinks."""
        random = self.world.random
        node = self._target_broker()
        seconds = random.choice([0.5, 3.0, 12.0])
        broker = self.target.brokers[node]
        places = [place for place in self.target.partitions if random.random() < 0.6]
        nodes = [node] if random.random() < 0.5 else [node, 1 + node % 3]
        for other in nodes:
            for place in places:
                self.target.brokers[other].slow_fetch_s[place] = seconds
        self.world.say("followers are slow", brokers=nodes, seconds=seconds, places=len(places), first=broker.host)

        def over() -> None:
            for other in nodes:
                for place in places:
                    self.target.brokers[other].slow_fetch_s.pop(place, None)

        self.world.after(seconds + random.random() * 5, over)

    def stall_target(self) -> None:
        """A broker processes no request for some time, with or without heartbeats."""
        random = self.world.random
        broker = self.target.brokers[self._target_broker()]
        broker.stall(random.choice([0.3, 2.0, 6.0, 15.0, 45.0]))
        if random.random() < 0.5:
            self.target.lost(broker)
            self.world.after(broker.stalled_until - self.world.now + 0.05, self.target.returned, broker)

    def kill_target(self) -> None:
        """A broker crashes and restarts."""
        self._kill(self.target)

    def _kill(self, cluster: Cluster) -> None:
        random = self.world.random
        broker = cluster.brokers[random.choice([1, 2, 3])]
        if broker.alive and sum(other.alive for other in cluster.brokers.values()) == len(cluster.brokers):
            broker.crash()
            cluster.lost(broker)
            self.world.after(cluster.options.session_s + random.random() * 8, self._restart, cluster, broker.node)

    def _restart(self, cluster: Cluster, node: int) -> None:
        cluster.brokers[node].restart(clean=self.world.random.random() < 0.5)

    def move_target(self) -> None:
        """Clean elections."""
        for place in self.target.partitions:
            if self.world.random.random() < 0.5:
                self.target.move_leader(place)

    def cut_target(self) -> None:
        """A broker is disconnected from the controller for some time and still acts as leader."""
        broker = self.target.brokers[self._target_broker()]
        if broker.alive and not broker.cut:
            self.cut(self.target, broker.node, self.world.random.choice([1.0, 5.0, 15.0]))

    def cut(self, cluster: Cluster, node: int, seconds: float) -> None:
        """Disconnect a broker from the controller."""
        broker = cluster.brokers[node]
        self.world.say("broker cut off from the controller", broker=broker.host, seconds=seconds)
        broker.cut_until = self.world.now + seconds
        cluster.lost(broker)
        self.world.after(seconds + 0.01, self._reconnect, cluster, node)

    def _reconnect(self, cluster: Cluster, node: int) -> None:
        broker = cluster.brokers[node]
        self.world.say("broker hears the controller again", broker=broker.host)
        broker.hear()
        cluster.returned(broker)

    def break_target_links(self) -> None:
        """Connections to brokers of the target break."""
        for broker in self.target.brokers.values():
            if self.world.random.random() < 0.7:
                broker.break_links(0.7)
        self.world.say("connections broken", cluster="t")

    def hold_target(self) -> None:
        """Packets to and from a broker are delayed."""
        broker = self.target.brokers[self._target_broker()]
        seconds = self.world.random.choice([0.5, 4.0, 20.0])
        self.world.say("packets on hold", broker=broker.host, seconds=seconds)
        broker.unreachable_until = self.world.now + seconds

    def target_errors(self) -> None:
        """A broker returns an error for some batches, before or after it has appended them."""
        broker = self.target.brokers[self._target_broker()]
        broker.error_chance = self.world.random.choice([0.05, 0.3])
        self.world.say("errors begin", broker=broker.host, chance=broker.error_chance)

        def over() -> None:
            broker.error_chance = 0.0

        self.world.after(self.world.random.random() * 6, over)

    # -- faults of processes

    def freeze_holder(self) -> None:
        """A copier process is stopped between two callbacks and resumes later."""
        random = self.world.random
        process = self._some_process()
        if process is not None and process.strike is None:
            seconds = random.choice([0.5, 4.0, 7.0, 12.0, 30.0])
            process.strike = (process.callbacks + random.randrange(1, 400), lambda: process.freeze(seconds))

    def kill_holder(self) -> None:
        """A copier process is killed between two callbacks."""
        process = self._some_process()
        if process is not None and process.strike is None:

            def strike() -> None:
                self.world.say("process killed", process=process.name)
                process._exit(OSError("killed"))

            process.strike = (process.callbacks + self.world.random.randrange(1, 400), strike)

    def _some_process(self) -> Process | None:
        alive = self.driver.alive()
        holder = self.driver.holder()
        return (
            holder
            if holder is not None and self.world.random.random() < 0.8
            else self.world.random.choice(alive)
            if alive
            else None
        )

    def kill_driver(self) -> None:
        """The driver is killed; the next one starts when the lease of its executors has expired."""
        if not self._starting:
            self._starting = True
            self.driver.crash()
            self.world.after(10.5 + self.world.random.random() * 5, self._start)

    def _start(self) -> None:
        self._starting = False
        self.driver.start()

    def hold_channel(self) -> None:
        """Messages between driver and executors are delayed."""
        seconds = self.world.random.choice([2.0, 7.0, 14.0])
        self.world.say("progress channel on hold", seconds=seconds)
        self.driver.held_until = self.world.now + seconds

    def move_partition(self) -> None:
        """A partition leaves its lane, and returns after some time."""
        random = self.world.random
        self.driver.move(random.choice([0.0, 0.5, 3.0]), random.choice([0.0, 0.5, 3.0]))

    def restart_task(self, between: Callable[[], bool] | None = None) -> None:
        """The task is stopped and started again, when ``between`` is true."""
        if self._starting:
            return
        self._starting = True
        self.driver.signal_stop()
        waited = self.world.now

        def again() -> None:
            if not self.driver.stopped:
                if self.world.now - waited > 120:
                    raise Violation("stuck", "the lane does not stop")
                self.world.after(0.2, again)
                return
            if between is not None and not between():
                self.world.after(0.1, again)
                return
            self.world.after(0.1, self._start)

        self.world.after(0.2, again)

    def reset_position(self) -> None:
        """The task is stopped, a user sets a position back, the task starts again."""
        index = self.world.random.randrange(self.profile.partitions)

        def reset() -> bool:
            key = offset_key(CONNECTOR, "A", TopicPartition(TOPIC, index))
            place = (OFFSETS, partition_for(key, 2))
            leader = self.target.leader_replica(place)
            seen = self.oracle.seen[index]
            if not written:  # otherwise wait for the outcome: an unacknowledged write may still take effect
                if any(self.driver.grant_of(process) for process in self.driver.alive()):
                    return True
                if not seen.verified or index in self.oracle.excuses.resets or index in self.oracle.excuses.source_cut:
                    return True
                expected = [offset for offset, _ in self.oracle.expected(index) if offset < seen.verified]
                if leader is None or len(expected) < 4:
                    return True
                position[:] = position or [self.world.random.choice(expected[1:-2])]
            if leader is None:
                return False
            if written and any(batch.data == written[1] for batch in leader.read(written[0], leader.high_watermark, 1)):
                self.world.say("the position is acknowledged", partition=index, position=position[0])
                self.oracle.excuses.resets.setdefault(index, []).append(Reset(position[0], seen.verified))
                return True
            if written and leader.end > written[0] and leader.epoch == written[2]:
                return False
            broker = self.target.brokers[leader.broker]
            if leader.leads and len(leader.isr) > 1 and broker.alive and not broker.stalled:
                self.world.say("a user resets a position", partition=index, position=position[0])
                record = Record(key, offset_value(position[0]), (), int(self.world.wall() * 1000))
                batch = batch_at(memoryview(encode_batch([record])), leader.end, leader.epoch)
                written[:] = [batch.base, batch.data, batch.epoch]
                leader.append(batch)
                self.target.replicate(leader)
            return False

        written: list[Any] = []
        position: list[int] = []
        self.restart_task(reset)

    def change_isolation(self) -> None:
        """The task is killed or stopped, its isolation level changes, it starts again."""

        def change() -> bool:
            committed = not self.driver.spec.read_committed
            self.driver.spec = _replace(self.driver.spec, read_committed=committed)
            self.oracle.read_committed = committed
            self.oracle.excuses.aborted = True
            return True

        self._change_between_starts(change)

    def change_policy(self) -> None:
        """The task is killed or stopped, its replication policy changes, it starts again."""

        def change() -> bool:
            self.use_other_policy()
            return True

        self._change_between_starts(change)

    def use_other_policy(self) -> None:
        """The next task copies to another remote topic."""
        remote = f"{REMOTE}-{len(self.oracle.former)}"
        self.target.create(remote, self.profile.partitions)
        if REMOTE in self.target.max_message_bytes:
            self.target.max_message_bytes[remote] = LARGEST_BYTES
        parts = tuple(_replace(part, remote_topic=remote) for part in self.driver.spec.partitions)
        self.world.say("the policy changes", remote=remote)
        self.driver.spec = _replace(self.driver.spec, partitions=parts)
        self.oracle.rename(remote)

    def _change_between_starts(self, change: Callable[[], bool]) -> None:
        if self._starting:
            return
        if self.world.random.random() < 0.5:
            self.restart_task(change)
            return
        self._starting = True
        for process in self.driver.alive():
            process.kill()
        self.driver.crash()

        def start() -> None:
            change()
            self._start()

        self.world.after(1.0, start)

    # -- faults of the source

    def _elected(self, replica: Replica, epoch: int) -> None:
        if replica.topic == TOPIC:
            self.oracle.source_elected(replica, epoch)

    def move_source(self) -> None:
        """Clean elections."""
        for place in self.source.partitions:
            if self.world.random.random() < 0.5:
                self.source.move_leader(place)

    def kill_source(self) -> None:
        """A broker crashes and restarts."""
        self._kill(self.source)

    def stall_source(self) -> None:
        """A broker processes no request for some time."""
        self.source.brokers[self.world.random.choice([1, 2, 3])].stall(self.world.random.choice([0.3, 3.0]))

    def cut_source(self) -> None:
        """A broker is disconnected from the controller for some time, still acts as leader, and returns stale metadata."""
        broker = self.source.brokers[self.world.random.choice([1, 2, 3])]
        if broker.alive and not any(other.cut for other in self.source.brokers.values()):
            self.cut(self.source, broker.node, self.world.random.choice([1.0, 5.0, 15.0]))

    def break_source_links(self) -> None:
        """Connections to brokers of the source break."""
        for broker in self.source.brokers.values():
            broker.break_links(0.7)

    def produce(self, index: int, *sizes: int) -> None:
        """Write one batch for each record; one that is too large for the target is optional there."""
        leader = self._source_leader(index)
        for size in sizes if leader is not None else ():
            self._serial += 1
            value = record_value(index, self._serial, size > LARGEST_BYTES)
            assert leader is not None
            self._append(leader, encode_batch([Record(bytes(size), value, (), int(self.world.wall() * 1000))]))

    def produce_large(self) -> None:
        """Write some records, a few of which are too large for the target."""
        random = self.world.random
        sizes = [random.choice([10, 10, 2_000, 2 * LARGEST_BYTES]) for _ in range(random.randrange(1, 6))]
        self.produce(random.randrange(self.profile.partitions), *sizes)

    def delete_source(self) -> None:
        """DeleteRecords, or retention: the source log starts after the last batch that ends at or before an offset."""
        random = self.world.random
        index = random.randrange(self.profile.partitions)
        leader = self._source_leader(index)
        if leader is not None:
            self.delete_records(index, leader.high_watermark - random.choice([0, 0, 1, 3, 10]))

    def delete_records(self, index: int, upto: int) -> int:
        """The source log starts after the last batch that ends at or before an offset. Returns its start."""
        part = self.source.partitions[(TOPIC, index)]
        leader = part.replicas[part.state.leader]
        upto = min(upto, *(replica.end for replica in part.replicas.values()), leader.high_watermark)
        start = max((batch.after for batch in leader.log if batch.after <= upto), default=leader.start)
        self.oracle.excuses.source_cut.add(index)
        self.world.say("records deleted", partition=index, before=start)
        for replica in part.replicas.values():
            replica.begin_at(start)
        return start

    def kill_holder_late(self) -> None:
        """What the holder sends is delayed by seconds, and it dies soon."""
        random, holder = self.world.random, self.driver.holder()
        if holder is None:
            return
        late_s = random.choice([0.5, 2.0, 5.0])
        self.world.say("requests will be late", process=holder.name, seconds=late_s)
        for link in self.network.of(holder):
            link.late_s = late_s if link.listener.host.startswith("t") else 0.0
        self.world.after(random.choice([0.01, 0.1, 1.0]), holder._exit, OSError("killed"))

    def unclean_source(self) -> None:
        """A lagging replica is elected: the records that it lacks are lost."""
        random = self.world.random
        index = random.randrange(self.profile.partitions)
        if self.oracle.excuses.resets.get(index):
            return
        place = (TOPIC, index)
        victim = random.choice([1, 2, 3])
        part = self.source.partitions[place]
        if victim == part.state.leader:
            return
        self.source.brokers[victim].slow_fetch_s[place] = 1000.0
        self.world.say("a source replica lags", place=place, node=victim)

        def elect() -> None:
            self.source.brokers[victim].slow_fetch_s.pop(place, None)
            others = [node for node in (1, 2, 3) if node != victim]
            if (
                part.state.leader == victim
                or not self.source.brokers[victim].alive
                or part.replicas[victim].end >= part.replicas[part.state.leader].end
                if part.state.leader in others
                else True
            ):
                self.source.fetch_soon(place, victim, 0.001)
                return
            if self.oracle.excuses.resets.get(index):
                return
            self.oracle.excuses.source_cut.add(index)
            self.source.elect_unclean(place)
            self.source.fetch_soon(place, victim, 0.001)

        self.world.after(self.source.options.lag_time_s * 1.6 + random.random() * 6, elect)

    # -- the run

    def chaos(self) -> None:
        """Inject random faults until the profile's duration has passed."""
        names = [name for family in self.profile.families for name in (FAMILIES | REQUESTED)[family]]
        end_s = self.world.now + self.profile.chaos_s

        def strike() -> None:
            if not self._healing:
                getattr(self, self.world.random.choice(names))()
                self.world.after(self.world.random.expovariate(1 / self.profile.every_s), strike)

        self.world.after(1.0 + self.world.random.random(), strike)
        self.world.run(end_s)

    def finish(self) -> None:
        """Remove all faults, wait until all records are copied, and check the invariants."""
        self._healing = True
        self.world.say("healing begins")
        for _ in range(600):
            up = all(
                broker.alive
                and not broker.stalled
                and not broker.cut
                and not broker.unreachable_until > self.world.now
                and not broker.slow_fetch_s
                for cluster in (self.source, self.target)
                for broker in cluster.brokers.values()
            )
            if up and not self._starting and self.driver.held_until <= self.world.now:
                break
            self.world.run(self.world.now + 0.5)
        else:
            raise Violation("simulation", "the clusters do not heal")
        self.source.heal()
        self.target.heal()
        self.world.run(self.world.now + 2.0)
        self._producing = False
        for index in range(self.profile.partitions):
            self._produce_batch(index)
        self._end_transactions()
        self._await_ends()
        stopped = self._stopped()
        self.oracle.finish(stopped)
        ledger = self.written_ledger()
        self.oracle.explain(stopped, ledger)
        compacted = self.written_ledger(compacted=True)
        places = [TopicPartition(TOPIC, index) for index in range(self.profile.partitions)]
        if not ledger.late() and all(compacted.entry(place) == ledger.entry(place) for place in places):
            self.oracle.explain(stopped, compacted)
        notes = {row.partition: row.reason for row in self.driver.progress() if "at least once" in row.reason}
        for index, note in notes.items():
            if "note" not in self.oracle.excuses.stops.get(index, set()):
                raise Violation("note", f"{TOPIC}-{index}: {note}")

    def _await_ends(self) -> None:
        """Wait until each partition has stopped or reached the end of its source. Raises Violation for one that has not."""
        began_s, limit_s = self.world.now, self._limit_s()
        complete: set[int] = set()
        moved: dict[int, tuple[int, float]] = {}  # newest position, and since when
        while self.world.now < began_s + limit_s and len(complete | self._stopped().keys()) < self.profile.partitions:
            self.world.run(self.world.now + 1.0)
            complete = {index for index in range(self.profile.partitions) if self._is_complete(index)}
            for row in self.driver.progress():
                if row.position > moved.get(row.partition, (-1, 0.0))[0]:
                    moved[row.partition] = row.position, self.world.now
        self.world.run(self.world.now + _DONE_S)
        for index in sorted(set(range(self.profile.partitions)) - complete - self._stopped().keys()):
            rows = [row for row in self.driver.progress() if row.partition == index]
            trouble = self.driver.lane.blocked_reason if self.driver.lane is not None else "no lane"
            still_s = self.world.now - moved.get(index, (-1, began_s))[1]
            raise Violation(
                "stuck",
                f"{TOPIC}-{index} does not reach the end of its source in {limit_s:.0f} s, and has not advanced for "
                f"{still_s:.0f} s: {trouble} {[(row.state, row.reason, row.position, row.high_watermark) for row in rows]}",
            )

    def _limit_s(self) -> float:
        """The time within which the rest must be copied. Old batches are sent one at a time (rules S1, S8), between commits:
        each may take three times the mean time of a request.
        """
        positions = {row.partition: row.position for row in self.driver.progress()}
        leaders = {index: self.source.leader_replica((TOPIC, index)) for index in range(self.profile.partitions)}
        batches = sum(
            batch.after > positions.get(index, 0)
            for index, leader in leaders.items()
            for batch in (leader.log if leader is not None else ())
        )
        return _REST_S + batches * 3 * (2 * self.network.mean_delay_s + _APPEND_S)

    def written_ledger(self, *, compacted: bool = False) -> Ledger:
        """The ledger from its leader's log; ``compacted``: with the last record of each key only."""
        written = self.target.leader_replica((ledger_topic("A"), 0))
        records = [one for batch in (written.log if written is not None else ()) for one in batch.records]
        if compacted:
            last = {record.key: number for number, record in enumerate(records)}
            records = [record for number, record in enumerate(records) if last[record.key] == number]
        return ledger_of(records)

    def _is_complete(self, index: int) -> bool:
        leader = self.source.leader_replica((TOPIC, index))
        row = next((row for row in self.driver.progress() if row.partition == index), None)
        return leader is not None and row is not None and row.position == leader.high_watermark == leader.end

    def _stopped(self) -> dict[int, tuple[str, str]]:
        return {row.partition: (row.state, row.reason) for row in self.driver.progress() if row.stopped}


def _replace(spec: Any, **changes: Any) -> Any:
    import dataclasses  # noqa: PLC0415

    return dataclasses.replace(spec, **changes)


@contextmanager
def simulated(seed: int, *, echo: bool = False) -> Iterator[World]:
    """A world that simulates time, threads, connections and logging of the product."""
    world = World(seed)
    world.echo = echo
    # Of processes that were killed.
    warnings.filterwarnings("ignore", message="coroutine .* was never awaited", category=RuntimeWarning)

    def log(_logger: Any, method: str, event: MutableMapping[str, Any]) -> Any:
        if event.pop("exc_info", None) or "internal error" in str(event.get("event")):
            world.say("ERROR IN THE PRODUCT")
        text = str(event.pop("event", ""))
        world.say(f"[{world.owner.name}] {method}: {text}", **event)
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(
        processors=[log],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        cache_logger_on_first_use=False,
    )
    others: list[tuple[Any, str, Any]] = [(DriverLink, "forward_logs", lambda _self: None)]
    others.append((mm2.copy.driver.batch, "secrets", Secrets(world)))
    others.append((mm2.copy.channel, "secrets", Secrets(world)))
    requests = mm2.kafka.client.shared_requests._Requests
    # Its default was made of the real module.
    others.append((mm2.kafka.client.shared_requests, "_Requests", lambda: requests(running=Lock(world))))  # type: ignore[arg-type]
    others.append((mm2.copy.progress.segments, "CHUNK_SIZE", 20))  # so that a run fills many chunks
    dial: list[Callable[..., Any]] = []

    def dialled(*args: Any, **kwargs: Any) -> Any:
        return dial[0](*args, **kwargs)

    others.append((mm2.kafka.client.connection, "dial", dialled))
    world.dial = dial  # type: ignore[attr-defined]
    try:
        with patched(world, *others):
            try:
                yield world
            finally:
                world.end()
    finally:
        structlog.configure(**before)


def run(
    seed: int,
    *,
    echo: bool = False,
    families: tuple[str, ...] | None = None,
    without: tuple[str, ...] = (),
    shape: Callable[[Profile], None] | None = None,
    alarm: bool = False,
) -> Result:
    """One run by seed; ``families`` replaces those of the seed, ``without`` removes some, ``shape`` changes the profile.

    ``alarm``: records may be lost or duplicated, but then the partition must stop as INCONSISTENT.
    """
    with simulated(seed, echo=echo) as world:
        profile = Profile.of(world)
        if families is not None:
            profile.families = families
        profile.families = tuple(family for family in profile.families if family not in without) or ("move",)
        if shape is not None:
            shape(profile)
        return play(world, profile, Scenario.chaos, alarm=alarm)


def play(world: World, profile: Profile, faults: Callable[[Scenario], None], *, alarm: bool = False) -> Result:
    """Copy while these faults occur, remove them, and check the invariants. ``alarm``: see `run`."""
    scenario = Scenario(world, profile)
    world.dial.append(scenario.network.dial)  # type: ignore[attr-defined]
    scenario.oracle.alarm = alarm
    result = Result(world.seed, 0, 0, 0.0, profile)
    try:
        scenario.setup()
        faults(scenario)
        scenario.finish()
    except Violation as violation:
        result.violation = violation
        result.trace = list(world.trace)
    finally:
        for process in scenario.driver.alive():
            process.kill()
    result.broken = len(scenario.oracle.broken)
    result.steps, result.records, result.virtual_s = world.steps, scenario.oracle.checked, math.floor(world.now)
    return result
