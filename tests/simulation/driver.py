"""The driver: the product's own `Lane` and `MicroBatch`, with copier processes in place of Spark jobs.

Where partitions begin is read from the simulated ledger and offsets topics as by `StartPositions`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from mm2.codec import encode
from mm2.copy import channel
from mm2.copy.driver.batch import MicroBatch
from mm2.copy.driver.lanes.lane import Lane, MovedPartition
from mm2.copy.executor.commit.commits import state_of
from mm2.copy.executor.copier import Copier
from mm2.copy.executor.reports import progress_key
from mm2.copy.progress.ledger import Ledger
from mm2.copy.progress.session import Start
from mm2.copy.spec import Assignment, CopySpec, PartitionProgress
from mm2.kafka.errors import DisconnectedFailure
from mm2.kafka.records.record import Record
from mm2.kafka.structs import TopicPartition
from mm2.mirror.source.start_from import StartFrom
from mm2.mirror.source.start_positions import StartPositions
from tests.simulation.cluster import Cluster as SimulatedCluster
from tests.simulation.cluster import Place
from tests.simulation.network import Network
from tests.simulation.process import Process
from tests.simulation.world import Owner, World


class _Transport(asyncio.Transport):
    """The executor's end of the progress channel."""

    def __init__(self, peer: _Peer) -> None:
        super().__init__()
        self._peer = peer
        self._closing = False

    def write(self, data: Any) -> None:
        self._peer.to_driver(bytes(data))

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._peer.hung_up()

    abort = close

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        del name
        return default


class _Peer:
    """The driver's end of one executor's connection; see `mm2.copy.channel`."""

    def __init__(self, driver: Driver, process: Process, protocol: Any) -> None:
        self._driver = driver
        self._process = process
        self._protocol = protocol
        self._transport = _Transport(self)
        self._batch: MicroBatch | None = None
        self._buffer = bytearray()
        self._up_s = self._down_s = 0.0
        self._over = False
        self._challenge = f"{driver.world.random.getrandbits(64):016x}"
        process.socket_ready(lambda: protocol.connection_made(self._transport))
        self._to_executor(channel.encode({"nonce": self._challenge}))

    @property
    def transport(self) -> _Transport:
        return self._transport

    # -- towards the driver

    def to_driver(self, data: bytes) -> None:
        world = self._driver.world
        self._up_s = max(self._up_s, world.now + self._driver.delay_s())
        world.after(self._up_s - world.now, self._received, data)

    def hung_up(self) -> None:
        world = self._driver.world
        self._up_s = max(self._up_s, world.now + self._driver.delay_s())
        world.after(self._up_s - world.now, self._ended)

    def _ended(self) -> None:
        if not self._over and self._batch is not None:
            self._over = True
            self._driver.perform(lambda batch=self._batch: batch.ended("the connection ended", dead=self._process.dead))  # type: ignore[misc]

    def _received(self, data: bytes) -> None:
        if self._over:
            return
        self._buffer += data
        while (end := self._buffer.find(b"\n")) >= 0:
            line = bytes(self._buffer[: end + 1])
            del self._buffer[: end + 1]
            self._driver.perform(lambda line=line: self._line(channel.decode(line)))  # type: ignore[misc]

    def _line(self, message: dict[str, Any]) -> None:
        if self._batch is not None:
            self._batch.received(message)
            return
        batch = self._driver.expected.get(str(message.get("batch")))
        if batch is None or not batch.attach(self):
            self.close()
            return
        self._batch = batch
        self._to_executor(
            channel.encode(
                {"mac": channel.proof(batch.secret, "driver", message["nonce"]), "spec": self._driver.spec_of(batch)}
            )
        )

    # -- towards the executor (`mm2.copy.driver.batch.ExecutorConnection`)

    def send(self, data: bytes) -> None:
        if b'"type":"lease"' in data and self._batch is not None:
            self._driver.granted(self._batch)
        self._to_executor(data)

    def close(self) -> None:
        if not self._over:
            self._over = True
            world = self._driver.world
            self._down_s = max(self._down_s, world.now + self._driver.delay_s())
            world.after(self._down_s - world.now, self._process.socket_ready, self._lost)

    def _to_executor(self, data: bytes) -> None:
        if self._over:
            return
        world = self._driver.world
        self._down_s = max(self._down_s, world.now + self._driver.delay_s())
        world.after(self._down_s - world.now, self._process.socket_ready, lambda: self._protocol.data_received(data))

    def _lost(self) -> None:
        self._transport._closing = True
        self._protocol.connection_lost(None)


class _CheckedCopier(Copier):
    """Checks that partitions at rest are committed, reported and requested as they are."""

    def _report(self) -> None:
        super()._report()
        for broker in self._source._brokers.values():
            for tp, fetch_state in broker.fetch_states.items():
                wanted = broker.wanted.get(tp)
                if tp not in broker.to_consider and (wanted is None or wanted.offset != fetch_state.receiver.offset):
                    raise AssertionError(f"{tp} is at {fetch_state.receiver.offset} and is requested at {wanted}")
        commits, reports = self._commits, self._reports
        for tp, cursor in self._cursors.items():
            if cursor in self._awake.expected:
                continue
            if cursor not in self._awake.unreported and reports._reported.get(cursor) != progress_key(cursor):
                raise AssertionError(f"{tp} has changed and is not reported: {progress_key(cursor)}")
            if cursor not in self._awake.uncommitted:
                is_written = commits._written.get(tp) == state_of(cursor) and self._positions.is_settled(tp)
                if not is_written:
                    raise AssertionError(f"{tp} has changed and is not committed: {state_of(cursor)}")


class Driver:
    """Runs one lane at a time. ``on_error`` is called with internal errors of the product."""

    def __init__(
        self,
        world: World,
        network: Network,
        target: SimulatedCluster,
        spec: CopySpec,
        on_error: Callable[[str], None],
    ) -> None:
        self.world = world
        self.network = network
        self.target = target
        self.spec = spec
        self.on_error = on_error
        self.expected: dict[str, MicroBatch] = {}
        self.owner = Owner("driver")
        self.lane: Lane | None = None
        self.processes: list[Process] = []
        self.held_until = 0.0  # the progress channel
        self.kill_cancelled = 0.5  # chance that Spark kills a cancelled task's process
        self._grants: dict[str, int] = {}
        self._batch_of: dict[Process, MicroBatch] = {}
        self._specs: dict[str, Any] = {}
        self._lanes = 0
        self._numbers = 0
        self._known = Ledger()

    # -- the lane

    def start(self) -> None:
        """Start a task."""
        self.owner = Owner("driver")
        self._lanes += 1
        self._start_positions = _Starts(self)
        before, self.world.owner = self.world.owner, self.owner
        try:
            self.lane = Lane(
                f"lane{self._lanes}",
                self.spec,
                self._starts,
                submit=self._submit,
                cancel=self._cancel,
                on_update=lambda: None,
                ledger=self._known_ledger,
            )
            self.lane.start()
        finally:
            self.world.owner = before
        self.world.say("lane started", lane=self._lanes, read_committed=self.spec.read_committed)

    def signal_stop(self) -> None:
        """Stop the task."""
        lane = self.lane
        if lane is not None:
            self.world.say("lane is stopped")
            self.perform(lane.signal_stop)

    def move(self, away_s: float, prepared_s: float) -> None:
        """Take a partition from the lane, and give it back: first it is prepared for it, then it gets it. So the lane is both of the
        lanes between which a partition moves.
        """
        lane = self.lane
        count = len(self.spec.partitions)
        if lane is None or count < 2 or not len(lane.sources) == len(lane.partitions) == count:
            return
        whole = lane.partitions
        moving = self.world.random.choice(whole)
        self.world.say("partition leaves the lane", partition=moving.partition)

        def given(moved: list[MovedPartition]) -> None:
            self.world.after(away_s, self.perform, lambda: lane.copy_next(whole))
            self.world.after(away_s + prepared_s, self.perform, lambda: lane.accept(moved))

        lane._on_moved = given
        self.perform(lambda: lane.copy_next(tuple(part for part in whole if part is not moving)))

    @property
    def stopped(self) -> bool:
        return self.lane is None or not self.lane._thread.is_alive()

    def crash(self) -> None:
        """Kill the driver's process: connections to its executors end."""
        self.world.say("driver killed")
        self.owner.dead = True
        self.lane = None
        for batch in list(self.expected.values()):
            batch.ended("the driver is dead")
        self.expected.clear()

    def perform(self, call: Callable[[], None]) -> None:
        if self.owner.dead:
            return
        before, self.world.owner = self.world.owner, self.owner
        try:
            call()
        finally:
            self.world.owner = before

    def progress(self) -> list[PartitionProgress]:
        return [] if self.lane is None else self.lane.progress()

    def alive(self) -> list[Process]:
        """Running copier processes, including frozen ones."""
        self.processes = [process for process in self.processes if not process.dead]
        return self.processes

    def holder(self) -> Process | None:
        """The process that was granted the newest lease."""
        granted = [process for process in self.alive() if self.grant_of(process)]
        return max(granted, key=self.grant_of, default=None)

    def grant_of(self, process: Process) -> int:
        """A number that increases with each lease; 0: none was granted."""
        return self._grants.get(self._batch_of[process].id, 0) if process in self._batch_of else 0

    @property
    def last_grant(self) -> int:
        return self._numbers

    def granted(self, batch: MicroBatch) -> None:
        self._numbers += 1
        self._grants[batch.id] = self._numbers
        self.world.say("lease", batch=batch.name, number=self._numbers)

    def delay_s(self) -> float:
        return max(0.0, self.held_until - self.world.now) + self.network.delay_s()

    def spec_of(self, batch: MicroBatch) -> Any:
        return self._specs[batch.id]

    # -- jobs

    def _submit(self, batch: MicroBatch) -> None:
        self.expected[batch.id] = batch
        self._specs[batch.id] = encode(batch.spec)
        self.world.after(0.02 + self.world.random.random() * 0.2, self._launch, batch)

    def _launch(self, batch: MicroBatch) -> None:
        if batch.finished.is_set() or self.owner.dead:
            return
        process = Process(self.world, self.network, batch.name, self._connect, self._process_ended)
        self.processes.append(process)
        self._batch_of[process] = batch
        assignment = Assignment(batch.id, "driver", 1, batch.secret)

        async def main() -> str:
            return await _CheckedCopier(assignment, 0).run()

        process.start(main())

    async def _connect(self, process: Process, protocol_factory: Any) -> tuple[Any, Any]:
        await asyncio.sleep(self.delay_s())
        protocol = protocol_factory()
        peer = _Peer(self, process, protocol)
        return peer.transport, protocol

    def _process_ended(self, process: Process, error: BaseException | None) -> None:
        batch = self._batch_of[process]
        self.world.say("process ended", process=process.name, error=error)
        if error is not None and not isinstance(error, OSError | ValueError):
            self.on_error(f"{process.name}: {error!r}")
        self.world.after(0.05, self.perform, lambda: batch.ended("the Spark job ended", dead=True))

    def _cancel(self, batch: MicroBatch) -> None:
        self.expected.pop(batch.id, None)
        batch.ended("cancelled")
        for process, other in self._batch_of.items():
            if other is batch and not process.dead and self.world.random.random() < self.kill_cancelled:
                self.world.after(self.world.random.random() * 2, process.kill)

    # -- start positions

    def _starts(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Start]:
        starts = self._start_positions.starts(partitions)
        for tp, start in starts.items():
            mark = None if start.entry is None else start.entry.mark
            self.world.say(
                "start", partition=tp, position=start.position, moved=start.moved, clean=start.clean, entry=mark
            )
        return starts

    def ledger(self) -> Ledger:
        """The current contents."""
        self.world.sleep(0.001 + self.world.random.random() * 0.02)
        self._known = ledger_of(self._read((self.spec.ledger_topic or "", 0)))
        return self._known

    def _known_ledger(self) -> Ledger:
        """The contents at the last successful read: a `KafkaBasedLog` reads in the background."""
        with contextlib.suppress(DisconnectedFailure):
            self._known = ledger_of(self._read((self.spec.ledger_topic or "", 0)))
        return self._known

    def committed(self) -> dict[TopicPartition, int | None]:
        found: dict[TopicPartition, int | None] = {}
        for place in self.target.partitions:
            if place[0] == self.spec.offsets_topic:
                self.world.sleep(0.001 + self.world.random.random() * 0.02)
                for record in self._read(place):
                    found[position_key(record)] = position_of(record)
        return found

    def _read(self, place: Place) -> list[Record]:
        """All records of a partition up to the high watermark, as a consumer sees them."""
        part = self.target.partitions[place]
        leader = part.replicas.get(part.state.leader)
        broker = self.target.brokers.get(part.state.leader)
        ready = (
            broker is not None and broker.alive and not broker.stalled and broker.unreachable_until <= self.world.now
        )
        if leader is None or not ready or not leader.leads or leader.epoch_start > leader.high_watermark:
            message = f"{place} cannot be read now"
            raise DisconnectedFailure(message)
        return [record for batch in leader.log if batch.after <= leader.high_watermark for record in batch.records]


class _Starts(StartPositions):
    """Determines the start positions of partitions from the simulated topics."""

    def __init__(self, driver: Driver) -> None:
        context: Any = SimpleNamespace(worker=SimpleNamespace(exactly_once=False))
        super().__init__(driver.spec, context, StartFrom(), driver.ledger, None)
        self._driver = driver

    def _committed(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int | None]:
        committed = self._driver.committed()
        return {tp: committed.get(tp) for tp in partitions}


def ledger_of(records: Iterable[Record]) -> Ledger:
    """The ledger with these records, in this order."""
    ledger = Ledger()
    for record in records:
        ledger.apply(record.key, record.value, record.timestamp or 0)
    return ledger


def position_key(record: Record) -> TopicPartition:
    """The partition of a position record."""
    place = json.loads(record.key or b"")[1]
    return TopicPartition(place["topic"], place["partition"])


def position_of(record: Record) -> int | None:
    """The next source offset of a position record."""
    return None if record.value is None else int(json.loads(record.value)["offset"]) + 1
