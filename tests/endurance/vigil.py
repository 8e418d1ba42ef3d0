"""A long run at a steady rate with a fault a minute: is memory flat, and what is the latency when nothing is wrong?"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from bench.arrivals import Arrivals
from bench.contenders import JAVA_DEFAULT, Flow, fetch_jars
from mm2.kafka.cluster import Cluster
from mm2.kafka.settings import ClientSettings
from mm2.sandbox.process import end
from tests.endurance.composition import Draw
from tests.endurance.footprint import Sample, sample
from tests.endurance.growth import Growth
from tests.endurance.product import ProductFailed
from tests.endurance.trial import PARTITIONS, PLAIN, TRANSACTIONAL, Outcome, Trial
from tests.endurance.visible import Latency, Watch

_CAUGHT_UP_MS = 500
_SETTLED_S = 2.0
_WARM_S = 5.0
_LOOK_S = 0.1
_START_PATIENCE_S = 120.0


@dataclass
class Watched:
    """What was seen. Each latency is from the producer on; `outside` the faults or in `everything`."""

    outcome: Outcome
    outside: dict[str, Latency]
    everything: dict[str, Latency]
    samples: list[Sample] = field(default_factory=list)


class _Replica:
    """A copy of the plain topic whose readers are watched. `disturbed`: epoch seconds, begin and end, of what does not count.

    What does not count is the start, and the time from a fault's begin until this copy's backlog was gone.
    """

    def __init__(self, made: Trial, name: str, topic: str) -> None:
        self._rate = made.traffic.rate
        self._watch = Watch(made.target.bootstrap, topic, PARTITIONS, made.folder / f"latency-{name}.jsonl")
        self._since_s: float | None = 0.0
        self._told_s = 0.0
        self.disturbed: list[tuple[float, float]] = []

    def disturb(self) -> None:
        """A fault begins, or ends."""
        self._told_s = time.time()
        self._since_s = self._told_s - 1 if self._since_s is None else self._since_s

    def look(self) -> bool:
        """True when half of a second's records, all later than the fault, took no more than half a second each.

        Ends of logs would not tell: a copy that holds records twice has as many of them while it is still behind.
        """
        if self._since_s is None:
            return True
        begun_s, last = self._watch.last()
        fast = last.p50_ms is not None and last.p50_ms <= _CAUGHT_UP_MS and last.records >= self._rate / 2
        if fast and begun_s > self._told_s:
            # What was written before the first record was copied is a backlog, too, and the JVM's start is in it.
            settled_s = _SETTLED_S if self.disturbed else _WARM_S
            self.disturbed.append((self._since_s, time.time() + settled_s))
            self._since_s = None
        return self._since_s is None

    def stop(self) -> None:
        self._watch.stop()

    def stop_looking(self) -> None:
        """What is disturbed now stays so to the end."""
        if self._since_s is not None:
            self.disturbed.append((self._since_s, time.time()))

    def latency(self, excluded: Sequence[tuple[float, float]]) -> Latency:
        return self._watch.latency(excluded)


def watch(
    made: Trial, seed: int, minutes: float, say: Callable[[str], None], tell: Callable[[str], None], *, java: bool
) -> Watched:
    """A fault in each minute, at a moment of its own; `tell` gets a line for each. Raises ProductFailed.

    With `java`, Java's MirrorMaker 2 copies the same topics through the same bad networks, and its replica is watched,
    too: a latency can only be judged beside the other one's in the same minutes.
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
            replicas["Java's replica"] = theirs = _Replica(made, "java", stack.enter_context(_beside(made)))
            stack.callback(theirs.stop)
        _settle(replicas.values(), time.monotonic() + _START_PATIENCE_S)
        began_s = made.began_s = time.monotonic()
        looking = threading.Thread(target=memory, name="memory", daemon=True)
        looking.start()
        stack.callback(looking.join)
        stack.callback(done.set)
        for minute in range(max(1, int(minutes))):
            say(f"Minute {minute + 1} of {minutes:.0f}")
            _settle(replicas.values(), began_s + 60 * minute + rng.uniform(10, 25), to_the_end=True)
            for replica in replicas.values():
                replica.disturb()
            step = made.survive(draw.draw(), say)
            for replica in replicas.values():
                replica.disturb()
            ended_s = time.monotonic()
            _settle([ours], ended_s + _START_PATIENCE_S)
            tell(f"{step}, backlog gone {time.monotonic() - ended_s:.1f} s later")
        _settle(replicas.values(), began_s + 60 * minutes, to_the_end=True)
        for replica in replicas.values():
            replica.stop_looking()
    # The same seconds for all: who catches up takes the time of the others.
    disturbed = [times for replica in replicas.values() for times in replica.disturbed]
    outside = {name: replica.latency(disturbed) for name, replica in replicas.items()}
    outside["the source"] = source.latency(disturbed)
    everything = {name: replica.latency(replica.disturbed[:1]) for name, replica in replicas.items()}
    return Watched(made.finish(say), outside, everything, samples)


def _settle(replicas: Iterable[_Replica], deadline_s: float, *, to_the_end: bool = False) -> None:
    """Until all have caught up, or the time (time.monotonic) is over."""
    watched = list(replicas)
    while time.monotonic() < deadline_s:
        caught_up = [replica.look() for replica in watched]
        if all(caught_up) and not to_the_end:
            return
        time.sleep(_LOOK_S)


@contextmanager
def _beside(made: Trial) -> Iterator[str]:
    """Java's MirrorMaker 2, started as its users start it; its replica of the plain topic.

    Raises ProductFailed when it copies nothing.
    """
    topics = f"{PLAIN},{TRANSACTIONAL}"
    isolation = {"J.consumer.isolation.level": "read_committed"}
    # Aliases of its own on both sides: its offset syncs would be taken for those of the product's flow, and they are none, since
    # it has records twice after a fault.
    flow = Flow("J", "K", made.source.addresses, made.target.addresses, topics, more=isolation)
    fetch_jars()
    with ExitStack() as stack:
        process = JAVA_DEFAULT.launch(flow, made.folder / "java")
        stack.callback(end, process)
        cluster = Cluster(ClientSettings.from_props({"bootstrap.servers": made.target.bootstrap}), name="B")
        stack.callback(cluster.close)
        growth = Growth(Arrivals(cluster, flow.remote(PLAIN), PARTITIONS), _LOOK_S)
        growth.start()
        stack.callback(growth.stop)
        began_s = time.monotonic()
        if not growth.wait(lambda: growth.all_grown_since(began_s), _START_PATIENCE_S, made.check):
            raise ProductFailed(f"Java's MirrorMaker copies nothing after {_START_PATIENCE_S:.0f} s.")
        yield flow.remote(PLAIN)
