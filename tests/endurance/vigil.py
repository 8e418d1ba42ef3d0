"""A long run at a steady rate with a fault a minute: is memory flat, and what is the latency when nothing is wrong?"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.endurance.composition import Draw
from tests.endurance.footprint import Sample, sample
from tests.endurance.trial import PARTITIONS, PLAIN, Outcome, Trial
from tests.endurance.visible import Latency, Watch

_CAUGHT_UP_S = 0.5
_SETTLED_S = 2.0
_WARM_S = 5.0
_CATCH_UP_PATIENCE_S = 120.0


@dataclass
class Watched:
    """What was seen. `disturbed` are the times (epoch seconds) of the start, and from a fault's begin until the backlog was gone."""

    outcome: Outcome
    latency: Latency
    everything: Latency
    """Faults included."""
    source: Latency
    """Outside the faults, to a consumer of the source: what producing and consuming take by themselves."""
    samples: list[Sample] = field(default_factory=list)
    disturbed: list[tuple[float, float]] = field(default_factory=list)


def watch(made: Trial, seed: int, minutes: float, say: Callable[[str], None], tell: Callable[[str], None]) -> Watched:
    """A fault in each minute, at a moment of its own; `tell` gets a line for each. Raises ProductFailed."""
    rng = random.Random(seed)
    draw = Draw(rng, made.source, made.target, made.mirrors, gentle=True)
    made.await_live()
    mirror = made.mirrors[0]
    seen = Watch(made.target.bootstrap, mirror.remote(PLAIN), PARTITIONS, made.folder / "latency.jsonl")
    seen_at_source = Watch(made.source.bootstrap, PLAIN, PARTITIONS, made.folder / "latency-source.jsonl")
    samples: list[Sample] = []
    done = threading.Event()

    def look() -> None:
        while not done.wait(1.0):
            samples.append(sample(mirror.process.pid, time.monotonic()))

    looking = threading.Thread(target=look, name="memory", daemon=True)
    looking.start()
    # What was written before the first record was copied is a backlog, too.
    _catch_up(made)
    disturbed: list[tuple[float, float]] = [(0.0, time.time() + _WARM_S)]
    began_s = made.began_s = time.monotonic()
    try:
        for minute in range(max(1, int(minutes))):
            wait_s = began_s + 60 * minute + rng.uniform(10, 25) - time.monotonic()
            say(f"Minute {minute + 1} of {minutes:.0f}")
            time.sleep(max(0.0, wait_s))
            fault_s = time.time()
            step = made.survive(draw.draw(), say)
            caught_up_s = _catch_up(made)
            disturbed.append((fault_s - 1, time.time() + _SETTLED_S))
            tell(f"{step}, backlog gone {caught_up_s:.1f} s later")
        time.sleep(max(0.0, began_s + 60 * minutes - time.monotonic()))
    finally:
        done.set()
        looking.join()
        seen.stop()
        seen_at_source.stop()
    outcome = made.finish(say)
    return Watched(
        outcome, seen.latency(disturbed), seen.latency([]), seen_at_source.latency(disturbed), samples, disturbed
    )


def _catch_up(made: Trial) -> float:
    """Waits until the replica is no more than half a second of traffic behind; after how many seconds it was."""
    began_s = time.monotonic()
    behind = made.traffic.rate * _CAUGHT_UP_S
    made.growth.wait(
        lambda: made.growth.latest.records >= made.traffic.records - behind, _CATCH_UP_PATIENCE_S, made.check
    )
    return time.monotonic() - began_s
