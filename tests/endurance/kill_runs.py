"""Kill one process at selected points of its life cycle, or one of two processes that share a flow.

Records are produced continuously. None may be lost, out of order or duplicated.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.arrivals import Arrivals
from mm2.kafka.admin import Admin
from mm2.kafka.errors import KafkaFailure
from tests.endurance.environment import Environment
from tests.endurance.growth import Growth
from tests.endurance.kill_points import KillPoint, Phase
from tests.endurance.product import Product, ProductFailed

_LIVE_PATIENCE_S = 120.0
_ORPHAN_PATIENCE_S = 20.0
_TAKEOVER_PATIENCE_S = 60.0
_OFFSETS_TOPIC, _OFFSETS_PARTITIONS = "mm2-offsets.A.internal", 25
_GROUP = "A-mm2"
_COMMIT_INTERVAL_S = 1.0  # default of copy.commit.interval.ms
# With four source tasks beside those for checkpoints and heartbeats, each of two processes has at least one.
_SETTINGS = {"tasks.max": "4", "refresh.topics.interval.seconds": "5", "emit.checkpoints.interval.seconds": "5"}


@dataclass(frozen=True)
class Kill:
    """One kill. `ends` are the target's end offsets by partition after all killed processes were dead."""

    what: str
    victims: str
    at_s: float
    dead_s: float
    """When the last process of the victim had ended."""
    ends: dict[int, int]
    note: str = ""


class SingleProcess:
    """One process that is killed and restarted."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._product = env.product("mirror", _SETTINGS)
        arrivals = Arrivals(env.target_cluster, _OFFSETS_TOPIC, _OFFSETS_PARTITIONS)
        self._commits = Growth(arrivals, interval_s=0.005)
        self._commits.start()
        self._start_s = 0.0

    def run(self, points: Sequence[KillPoint], show: Callable[[str], None]) -> list[Kill]:
        """Leave a process running. Raises ProductFailed when a process copies nothing."""
        try:
            show("Measuring the duration of a start")
            began_s = time.monotonic()
            self._product.start()
            self._await_live(began_s)
            self._start_s = time.monotonic() - began_s
            if (code := self._product.stop()) != 0:
                raise ProductFailed(f"The process stopped with exit code {code} before the first kill.")
            kills = []
            for number, point in enumerate(points, 1):
                show(f"Kill {number} of {len(points)}: {point.phase.value}")
                self._product.start()
                kills.append(self._kill(point))
            self._product.start()
        finally:
            self._commits.stop()
        return kills

    def finish(self) -> int:
        return self._product.stop()

    def _kill(self, point: KillPoint) -> Kill:
        note = self._wait_for(point)
        product = self._product
        at_s = time.monotonic()
        if not product.kill9(whole_tree=point.whole_tree):
            note = "had stopped already"
        if not product.wait_for_orphans(_ORPHAN_PATIENCE_S):
            left = ", ".join(sorted(process.name() for process in product.orphans()))
            raise ProductFailed(
                f"Child processes still run {_ORPHAN_PATIENCE_S:.0f} s after the main process was killed: {left}."
            )
        dead_s = time.monotonic()
        victims = "whole tree" if point.whole_tree else f"main only, children ended after {dead_s - at_s:.1f} s"
        return Kill(point.phase.value, victims, at_s, dead_s, self._env.growth.fresh().ends, note)

    def _wait_for(self, point: KillPoint) -> str:
        """Wait for the kill point in a process that has just been started; return a note for the report."""
        began_s = time.monotonic()
        if point.phase in {Phase.START_UP, Phase.DISCOVERY}:
            share = (point.fraction + (point.phase is Phase.DISCOVERY)) / 2
            time.sleep(share * self._start_s)
            return f"after {share * self._start_s:.1f} s"
        self._await_live(began_s)
        if point.phase is Phase.MID_BATCH:
            time.sleep(0.2 + 3 * point.fraction)
        elif point.phase is Phase.COMMIT:
            return self._wait_for_commit(point.fraction)
        else:
            self._product.terminate()
            time.sleep(1.5 * point.fraction)
            return f"{1500 * point.fraction:.0f} ms after SIGTERM"
        return ""

    def _wait_for_commit(self, fraction: float) -> str:
        """Half of the points are just after a commit, the others around the next commit."""
        seen = self._commits.latest.records
        if not self._commits.wait(lambda: self._commits.latest.records > seen, 10.0, self._product.check):
            raise ProductFailed("Nothing was copied and committed for 10 s.")
        wait_s = 0.04 * fraction if fraction < 0.5 else _COMMIT_INTERVAL_S + 0.2 * (fraction - 0.75)
        time.sleep(wait_s)
        return f"{1000 * wait_s:.0f} ms after a commit"

    def _await_live(self, began_s: float) -> None:
        growth = self._env.growth
        if not growth.wait(lambda: growth.all_grown_since(began_s), _LIVE_PATIENCE_S, self._product.check):
            raise ProductFailed(f"Not every partition is copied {_LIVE_PATIENCE_S:.0f} s after the start.")


class ProcessPair:
    """Two processes with the same file; one of them is killed each time."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._products = [env.product(name, _SETTINGS) for name in ("left", "right")]

    def run(self, seed: int, count: int, show: Callable[[str], None]) -> list[Kill]:
        """Leave both running. Raises ProductFailed when the other process does not take over."""
        rng = random.Random(seed)
        for product in self._products:
            product.start()
        kills = []
        for number in range(count):
            self._await_both()
            time.sleep(2 * rng.random())
            victim = self._products[rng.randrange(2)]
            show(f"Kill {number + 1} of {count}: {victim.name}")
            kills.append(self._kill(victim))
            victim.start()
        self._await_both()
        return kills

    def finish(self) -> int:
        return max(product.stop() for product in self._products)

    def _kill(self, victim: Product) -> Kill:
        growth = self._env.growth
        at_s = time.monotonic()
        victim.kill9(whole_tree=True)
        dead_s = time.monotonic()
        ends = growth.fresh().ends
        (other,) = (product for product in self._products if product is not victim)

        def taken_over() -> bool:
            now_s = time.monotonic()
            return now_s > dead_s + 1.5 and growth.all_grown_since(now_s - 1.0)

        if not growth.wait(taken_over, _TAKEOVER_PATIENCE_S, other.check):
            raise ProductFailed(f"{other.name} has not taken over {_TAKEOVER_PATIENCE_S:.0f} s after the kill.")
        pause_s = max(growth.pauses_s(dead_s).values(), default=0.0)
        return Kill("steady", victim.name, at_s, dead_s, ends, f"longest pause {pause_s:.1f} s")

    def _await_both(self) -> None:
        """Both are members of the worker group and everything is copied."""
        admin, growth = Admin(self._env.target_cluster), self._env.growth

        def both_joined() -> bool:
            found = admin.describe_groups([_GROUP])[_GROUP]
            members = () if isinstance(found, KafkaFailure) else found.members or ()
            time.sleep(0.1)
            return len(members) == len(self._products) and growth.all_grown_since(time.monotonic() - 1.0)

        def check() -> None:
            for product in self._products:
                product.check()

        if not growth.wait(both_joined, _LIVE_PATIENCE_S, check):
            raise ProductFailed(f"The two processes do not share the tasks {_LIVE_PATIENCE_S:.0f} s after the start.")
        time.sleep(3.0)  # the rebalance of the joining process has completed when records are copied for a while
        growth.wait(both_joined, _LIVE_PATIENCE_S, check)
