"""A long run at a steady rate with one fault per minute, which measures memory growth and latency outside the faults."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from bench.arrivals import Arrivals
from bench.contenders import JAVA_DEFAULT, Flow, fetch_jars
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.sandbox.process import end
from tests.endurance.composition import Draw
from tests.endurance.fault_run import PARTITIONS, PLAIN, TRANSACTIONAL, FaultRun, Outcome
from tests.endurance.footprint import Sample, sample
from tests.endurance.growth import Growth
from tests.endurance.product import ProductFailed
from tests.endurance.visible import Latency, Watch

_CAUGHT_UP_MS = 500
_SETTLED_S = 2.0
_WARM_S = 5.0
_POLL_S = 0.1
_START_PATIENCE_S = 120.0


@dataclass
class Measurements:
    """Latency from the producer to the consumer, `outside` the faults and over `everything`, and memory samples."""

    outcome: Outcome
    outside: dict[str, Latency]
    everything: dict[str, Latency]
    samples: list[Sample] = field(default_factory=list)


class _Replica:
    """A remote topic whose latency is measured. `disturbed`: excluded times as (begin, end) in epoch seconds.

    Excluded are the start, and the time from the begin of a fault until the backlog of this remote topic is copied.
    """

    def __init__(self, made: FaultRun, name: str, topic: str) -> None:
        self._rate = made.traffic.rate
        self._watch = Watch(made.target.bootstrap, topic, PARTITIONS, made.folder / f"latency-{name}.jsonl")
        self._since_s: float | None = 0.0
        self._fault_s = 0.0
        self.disturbed: list[tuple[float, float]] = []

    def disturb(self) -> None:
        """Mark the begin or the end of a fault."""
        self._fault_s = time.time()
        self._since_s = self._fault_s - 1 if self._since_s is None else self._since_s

    def has_caught_up(self) -> bool:
        """Whether half of a second's records, all produced after the fault, took no more than half a second each.

        End offsets cannot be compared: a copy with duplicates has as many records while it still lags.
        """
        if self._since_s is None:
            return True
        begun_s, last = self._watch.last()
        fast = last.p50_ms is not None and last.p50_ms <= _CAUGHT_UP_MS and last.records >= self._rate / 2
        if fast and begun_s > self._fault_s:
            # The records written before the first one was copied are a backlog too, which includes the start of the JVM.
            settled_s = _SETTLED_S if self.disturbed else _WARM_S
            self.disturbed.append((self._since_s, time.time() + settled_s))
            self._since_s = None
        return self._since_s is None

    def stop(self) -> None:
        self._watch.stop()

    def finish(self) -> None:
        """Exclude the rest of a disturbance that has not ended."""
        if self._since_s is not None:
            self.disturbed.append((self._since_s, time.time()))

    def latency(self, excluded: Sequence[tuple[float, float]]) -> Latency:
        return self._watch.latency(excluded)


def measure(
    made: FaultRun, seed: int, minutes: float, show: Callable[[str], None], report: Callable[[str], None], *, java: bool
) -> Measurements:
    """Inject a fault at a random time in each minute; `report` gets a line for each. Raises ProductFailed.

    With `java`, Java's MirrorMaker 2 copies the same topics through the same networks, and its latency is measured in
    the same minutes for comparison.
    """
    rng = random.Random(seed)
    draw = Draw(rng, made.source, made.target, made.mirrors, gentle=True)
    made.await_live()
    mirror = made.mirrors[0]
    samples: list[Sample] = []
    done = threading.Event()

    def memory() -> None:
        while not done.wait(1.0):
            samples.append(sample(mirror.process.pid, time.monotonic()))

    with ExitStack() as stack:
        ours = _Replica(made, "ours", mirror.remote(PLAIN))
        stack.callback(ours.stop)
        source = Watch(made.source.bootstrap, PLAIN, PARTITIONS, made.folder / "latency-source.jsonl")
        stack.callback(source.stop)
        replicas = {"the replica": ours}
        if java:
            replicas["Java's replica"] = theirs = _Replica(made, "java", stack.enter_context(_java_mirror(made)))
            stack.callback(theirs.stop)
        _settle(replicas.values(), time.monotonic() + _START_PATIENCE_S)
        began_s = made.began_s = time.monotonic()
        sampling = threading.Thread(target=memory, name="memory", daemon=True)
        sampling.start()
        stack.callback(sampling.join)
        stack.callback(done.set)
        for minute in range(max(1, int(minutes))):
            show(f"Minute {minute + 1} of {minutes:.0f}")
            _settle(replicas.values(), began_s + 60 * minute + rng.uniform(10, 25), to_the_end=True)
            for replica in replicas.values():
                replica.disturb()
            step = made.inject(draw.draw(), show)
            for replica in replicas.values():
                replica.disturb()
            ended_s = time.monotonic()
            _settle([ours], ended_s + _START_PATIENCE_S)
            report(f"{step}, backlog copied {time.monotonic() - ended_s:.1f} s later")
        _settle(replicas.values(), began_s + 60 * minutes, to_the_end=True)
        for replica in replicas.values():
            replica.finish()
    # The same seconds are excluded for all: a replica that catches up slows the others.
    disturbed = [times for replica in replicas.values() for times in replica.disturbed]
    outside = {name: replica.latency(disturbed) for name, replica in replicas.items()}
    outside["the source"] = source.latency(disturbed)
    everything = {name: replica.latency(replica.disturbed[:1]) for name, replica in replicas.items()}
    return Measurements(made.finish(show), outside, everything, samples)


def _settle(replicas: Iterable[_Replica], deadline_s: float, *, to_the_end: bool = False) -> None:
    """Wait until all have caught up, or until the deadline (time.monotonic)."""
    names = list(replicas)
    while time.monotonic() < deadline_s:
        caught_up = [replica.has_caught_up() for replica in names]
        if all(caught_up) and not to_the_end:
            return
        time.sleep(_POLL_S)


@contextmanager
def _java_mirror(made: FaultRun) -> Iterator[str]:
    """Run Java's MirrorMaker 2 with its default configuration; yield the name of its remote topic.

    Raises ProductFailed when it copies nothing.
    """
    topics = f"{PLAIN},{TRANSACTIONAL}"
    isolation = {"J.consumer.isolation.level": "read_committed"}
    # It has separate aliases: otherwise its offset syncs would be used for the product's flow, and they are wrong after
    # a fault, since it writes duplicates.
    flow = Flow("J", "K", made.source.addresses, made.target.addresses, topics, more=isolation)
    fetch_jars()
    with ExitStack() as stack:
        process = JAVA_DEFAULT.launch(flow, made.folder / "java")
        stack.callback(end, process)
        cluster = Cluster(ClientSettings.from_props({"bootstrap.servers": made.target.bootstrap}), name="B")
        stack.callback(cluster.close)
        growth = Growth(Arrivals(cluster, flow.remote(PLAIN), PARTITIONS), _POLL_S)
        growth.start()
        stack.callback(growth.stop)
        began_s = time.monotonic()
        if not growth.wait(lambda: growth.all_grown_since(began_s), _START_PATIENCE_S, made.check):
            raise ProductFailed(f"Java's MirrorMaker copies nothing after {_START_PATIENCE_S:.0f} s.")
        yield flow.remote(PLAIN)
