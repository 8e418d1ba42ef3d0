"""A process that is killed at moments of its life and started again; and two that share a flow, one of which is killed.

Records flow all the while. Nothing may be lost, out of order, or there twice.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.arrivals import Arrivals
from mm2.kafka.admin import Admin
from mm2.kafka.errors import KafkaFailure
from tests.endurance.growth import Growth
from tests.endurance.moments import Moment, Phase
from tests.endurance.product import Product, ProductFailed
from tests.endurance.scene import Scene

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
    """One kill. `ends` are the target's end offsets by partition when everything killed was dead."""

    what: str
    victims: str
    at_s: float
    dead_s: float
    """When the last process of the victim was gone."""
    ends: dict[int, int]
    note: str = ""


class Lives:
    """One process, killed and started again."""

    def __init__(self, stage: Scene) -> None:
        self._stage = stage
        self._product = stage.product("mirror", _SETTINGS)
        arrivals = Arrivals(stage.target_cluster, _OFFSETS_TOPIC, _OFFSETS_PARTITIONS)
        self._commits = Growth(arrivals, interval_s=0.005)
        self._commits.start()
        self._start_s = 0.0

    def run(self, moments: Sequence[Moment], say: Callable[[str], None]) -> list[Kill]:
        """Leaves a process running. Raises ProductFailed when one does not copy."""
        try:
            say("A first start, undisturbed, to see how long it takes")
            began_s = time.monotonic()
            self._product.start()
            self._await_live(began_s)
            self._start_s = time.monotonic() - began_s
            if (code := self._product.stop()) != 0:
                raise ProductFailed(f"It stopped with exit code {code} before anybody had killed it.")
            kills = []
            for number, moment in enumerate(moments, 1):
                say(f"Kill {number} of {len(moments)}: {moment.phase.value}")
                self._product.start()
                kills.append(self._kill(moment))
            self._product.start()
        finally:
            self._commits.stop()
        return kills

    def finish(self) -> int:
        return self._product.stop()

    def _kill(self, moment: Moment) -> Kill:
        note = self._wait_for(moment)
        product = self._product
        at_s = time.monotonic()
        if not product.kill9(whole_tree=moment.whole_tree):
            note = "had stopped already"
        if not product.wait_for_orphans(_ORPHAN_PATIENCE_S):
            left = ", ".join(sorted(process.name() for process in product.orphans()))
            raise ProductFailed(f"Its children still live {_ORPHAN_PATIENCE_S:.0f} s after the main process: {left}.")
        dead_s = time.monotonic()
        victims = "whole tree" if moment.whole_tree else f"main only, the rest lived {dead_s - at_s:.1f} s"
        return Kill(moment.phase.value, victims, at_s, dead_s, self._stage.growth.fresh().ends, note)

    def _wait_for(self, moment: Moment) -> str:
        """Waits for the moment in a process that has just been started; what there is to say about it."""
        began_s = time.monotonic()
        if moment.phase in {Phase.START_UP, Phase.DISCOVERY}:
            share = (moment.fraction + (moment.phase is Phase.DISCOVERY)) / 2
            time.sleep(share * self._start_s)
            return f"after {share * self._start_s:.1f} s"
        self._await_live(began_s)
        if moment.phase is Phase.MID_BATCH:
            time.sleep(0.2 + 3 * moment.fraction)
        elif moment.phase is Phase.COMMIT:
            return self._wait_for_commit(moment.fraction)
        else:
            self._product.terminate()
            time.sleep(1.5 * moment.fraction)
            return f"{1500 * moment.fraction:.0f} ms after SIGTERM"
        return ""

    def _wait_for_commit(self, fraction: float) -> str:
        """One half of the moments follow a commit at once, the other surrounds the next."""
        seen = self._commits.latest.records
        if not self._commits.wait(lambda: self._commits.latest.records > seen, 10.0, self._product.check):
            raise ProductFailed("It copies and commits nothing for 10 s.")
        wait_s = 0.04 * fraction if fraction < 0.5 else _COMMIT_INTERVAL_S + 0.2 * (fraction - 0.75)
        time.sleep(wait_s)
        return f"{1000 * wait_s:.0f} ms after a commit"

    def _await_live(self, began_s: float) -> None:
        growth = self._stage.growth
        if not growth.wait(lambda: growth.all_grown_since(began_s), _LIVE_PATIENCE_S, self._product.check):
            raise ProductFailed(f"It copies nothing, or not everything, {_LIVE_PATIENCE_S:.0f} s after its start.")


class Pair:
    """Two processes with the same file, one of which is killed in turn."""

    def __init__(self, stage: Scene) -> None:
        self._stage = stage
        self._products = [stage.product(name, _SETTINGS) for name in ("left", "right")]

    def run(self, seed: int, count: int, say: Callable[[str], None]) -> list[Kill]:
        """Leaves both running. Raises ProductFailed when the other one does not carry on."""
        rng = random.Random(seed)
        for product in self._products:
            product.start()
        kills = []
        for number in range(count):
            self._await_both()
            time.sleep(2 * rng.random())
            victim = self._products[rng.randrange(2)]
            say(f"Kill {number + 1} of {count}: {victim.name}")
            kills.append(self._kill(victim))
            victim.start()
        self._await_both()
        return kills

    def finish(self) -> int:
        return max(product.stop() for product in self._products)

    def _kill(self, victim: Product) -> Kill:
        growth = self._stage.growth
        at_s = time.monotonic()
        victim.kill9(whole_tree=True)
        dead_s = time.monotonic()
        ends = growth.fresh().ends
        (other,) = (product for product in self._products if product is not victim)

        def carried_on() -> bool:
            now_s = time.monotonic()
            return now_s > dead_s + 1.5 and growth.all_grown_since(now_s - 1.0)

        if not growth.wait(carried_on, _TAKEOVER_PATIENCE_S, other.check):
            raise ProductFailed(f"{other.name} has not carried on {_TAKEOVER_PATIENCE_S:.0f} s after the kill.")
        pause_s = max(growth.pauses_s(dead_s).values(), default=0.0)
        return Kill("steady", victim.name, at_s, dead_s, ends, f"longest pause {pause_s:.1f} s")

    def _await_both(self) -> None:
        """Both are members of the worker group and everything is copied."""
        admin, growth = Admin(self._stage.target_cluster), self._stage.growth

        def both_there() -> bool:
            found = admin.describe_groups([_GROUP])[_GROUP]
            members = () if isinstance(found, KafkaFailure) else found.members or ()
            time.sleep(0.1)
            return len(members) == len(self._products) and growth.all_grown_since(time.monotonic() - 1.0)

        def check() -> None:
            for product in self._products:
                product.check()

        if not growth.wait(both_there, _LIVE_PATIENCE_S, check):
            raise ProductFailed(f"The two do not share the work {_LIVE_PATIENCE_S:.0f} s after the start.")
        time.sleep(3.0)  # the rebalance that let the second one in is over when copying has gone on for a while
        growth.wait(both_there, _LIVE_PATIENCE_S, check)
