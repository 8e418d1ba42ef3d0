"""Random faults, one or two at a time under load: what they do, their target and their duration.

A fault has a begin, a duration and an end. Its target is its *subject*; no two faults of one subject overlap.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum

import psutil

from mm2.kafka.errors import KafkaFailure
from mm2.sandbox.kafka import LocalKafka
from tests.endurance.sides import Side
from tests.endurance.stall import DiskStall, Script
from tests.faults.environment import MirrorMaker, kill, members
from tests.support.cluster import LocalCluster
from tests.support.relay import Conditions
from tests.support.waiting import PATIENCE


class Victim(StrEnum):
    """Targets of faults."""

    BROKER = "broker"
    FOLLOWER = "follower"
    CONTROLLER = "controller"
    NETWORK = "network"
    DISK_STALL = "disk-stall"
    PROCESS = "process"


#: Relative frequency of each.
_WEIGHTS = {
    Victim.PROCESS: 3,
    Victim.BROKER: 3,
    Victim.FOLLOWER: 3,
    Victim.NETWORK: 3,
    Victim.DISK_STALL: 2,
    Victim.CONTROLLER: 1,
}


#: Victims that exist with a single broker.
ALONE = frozenset({Victim.PROCESS, Victim.BROKER, Victim.NETWORK})


def parse_victims(text: str) -> tuple[Victim, ...]:
    """Parse comma-separated names of victims; return each once, in order. Raises ValueError with unknown names."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = sorted(set(names) - {str(victim) for victim in Victim})
    choices = ", ".join(Victim)
    if unknown:
        raise ValueError(f"unknown victims: {', '.join(unknown)} (choose from {choices})")
    if not names:
        raise ValueError(f"no victims (choose from {choices})")
    return tuple(victim for victim in Victim if victim in names)


@dataclass(frozen=True)
class Fault:
    """`begin` returns immediately; `end` undoes the fault and leaves the recovery to the product."""

    name: str
    subject: str
    lasts_s: float
    begin: Callable[[], None]
    end: Callable[[], None]
    kills_process: bool = False
    """The product cannot report anything during the fault."""
    notes: list[str] = field(default_factory=list)
    """Details known at the begin that do not depend on the seed."""

    def __str__(self) -> str:
        text = f"{self.name}, {self.lasts_s:.1f} s" if self.lasts_s else self.name
        return f"{text} ({', '.join(self.notes)})" if self.notes else text


class Draw:
    """Draws faults. The same seed gives the same faults in the same order, for the same clusters and processes.

    `victims`: None for all possible ones; a single broker has no follower and no separate controller. `gentle`: one fault at a time,
    and none that ends the driver, so that its memory can be measured.
    """

    def __init__(
        self,
        rng: random.Random,
        source: Side,
        target: Side,
        mirrors: Sequence[MirrorMaker],
        *,
        victims: Sequence[Victim] | None = None,
        gentle: bool = False,
    ) -> None:
        self._rng = rng
        self._sides = (source, target)
        self._together = 0.0 if gentle else 0.25
        self._mirrors = mirrors
        processes = [self._executor_killed, self._executor_frozen]
        if not gentle:
            processes += [self._driver_killed, self._tree_killed, self._jvm_killed, self._restart]
            processes += [self._driver_frozen, self._tree_frozen]
        brokers = [self._broker_killed, self._broker_frozen]
        kinds: dict[Victim, list[Callable[[], Fault]]] = {
            Victim.PROCESS: processes,
            Victim.BROKER: brokers,
            Victim.NETWORK: [self._network],
        }
        if source.cluster is not None or target.cluster is not None:
            brokers.append(self._leaders_moved)
        if source.cluster is not None and target.cluster is not None and not gentle:
            kinds[Victim.FOLLOWER] = [self._followers_frozen]
            kinds[Victim.CONTROLLER] = [self._controller_killed, self._controller_frozen]
            kinds[Victim.DISK_STALL] = [self._disk_stalled]
        self._kinds = {victim: kinds[victim] for victim in victims or kinds if victim in kinds}
        if not self._kinds:
            raise ValueError("these clusters have none of the victims")

    def draw(self) -> list[Fault]:
        """One fault, or two with different subjects."""
        faults = [self._one()]
        if self._rng.random() < self._together:
            other = self._one()
            if other.subject != faults[0].subject:
                faults.append(other)
        return faults

    def _one(self) -> Fault:
        victims = list(self._kinds)
        (victim,) = self._rng.choices(victims, [_WEIGHTS[one] for one in victims])
        return self._rng.choice(self._kinds[victim])()

    # -- the product -----------------------------------------------------------------------------------------------

    def _mirror(self) -> tuple[MirrorMaker, str]:
        index = self._rng.randrange(len(self._mirrors))
        return self._mirrors[index], f"process {index + 1}"

    def _executor_killed(self) -> Fault:
        mirror, subject = self._mirror()
        return _at_once(f"executors of {subject} killed", subject, lambda: kill(members(mirror.process, "worker")))

    def _executor_frozen(self) -> Fault:
        """Longer than the lease of 5 s: another executor takes over before it resumes."""
        mirror, subject = self._mirror()
        frozen: list[psutil.Process] = []

        def begin() -> None:
            frozen.extend(members(mirror.process, "worker"))
            _signal(frozen, signal.SIGSTOP)

        lasts_s = self._rng.uniform(6, 16)
        name = f"executors of {subject} frozen"
        return Fault(name, subject, lasts_s, begin, lambda: _signal(frozen, signal.SIGCONT))

    def _driver_killed(self) -> Fault:
        mirror, subject = self._mirror()
        lasts_s = self._rng.uniform(0, 3)
        name = f"driver of {subject} killed"
        return Fault(name, subject, lasts_s, mirror.process.kill9, mirror.restart, kills_process=True)

    def _tree_killed(self) -> Fault:
        mirror, subject = self._mirror()
        lasts_s = self._rng.uniform(0, 3)

        def begin() -> None:
            mirror.process.kill9(whole_family=True)

        return Fault(f"{subject} killed with all it had started", subject, lasts_s, begin, mirror.restart, True)

    def _jvm_killed(self) -> Fault:
        mirror, subject = self._mirror()
        return _at_once(f"Spark's JVM of {subject} killed", subject, lambda: kill(members(mirror.process, "jvm")))

    def _restart(self) -> Fault:
        mirror, subject = self._mirror()
        lasts_s = self._rng.uniform(0, 2)
        name = f"{subject} stopped and started"
        return Fault(name, subject, lasts_s, mirror.stop, mirror.restart, kills_process=True)

    def _driver_frozen(self) -> Fault:
        mirror, subject = self._mirror()
        frozen: list[psutil.Process] = []

        def begin() -> None:
            frozen.append(psutil.Process(mirror.process.pid))
            _signal(frozen, signal.SIGSTOP)

        lasts_s = self._rng.uniform(2, 20)
        name = f"driver of {subject} frozen"
        return Fault(name, subject, lasts_s, begin, lambda: _signal(frozen, signal.SIGCONT), kills_process=True)

    def _tree_frozen(self) -> Fault:
        mirror, subject = self._mirror()
        frozen: list[psutil.Process] = []

        def begin() -> None:
            frozen.extend(mirror.process.family())
            _signal(frozen, signal.SIGSTOP)

        lasts_s = self._rng.uniform(4, 25)
        name = f"{subject} frozen with all it had started"
        return Fault(name, subject, lasts_s, begin, lambda: _signal(frozen, signal.SIGCONT), kills_process=True)

    # -- brokers -----------------------------------------------------------------------------------------------------

    def _broker(self) -> tuple[Side, LocalKafka, str]:
        side = self._rng.choice(self._sides)
        broker = self._rng.choice(side.brokers)
        # One broker of a cluster at a time: with both down only the outage itself would be tested.
        return side, broker, f"brokers of {side.name}"

    def _long_s(self) -> float:
        """1 to 45 s: half of them shorter than a leader election takes."""
        return self._rng.uniform(1, 6) if self._rng.random() < 0.5 else self._rng.uniform(6, 45)

    def _broker_killed(self) -> Fault:
        _, broker, subject = self._broker()
        return Fault(f"broker {broker.name} killed", subject, self._long_s(), broker.kill9, lambda: _start(broker))

    def _broker_frozen(self) -> Fault:
        _, broker, subject = self._broker()
        return Fault(f"broker {broker.name} frozen", subject, self._long_s(), broker.pause, broker.resume)

    def _followers_frozen(self) -> Fault:
        """Freeze some brokers for 2 to 12 s each, up to three times: the ISR of the other leaders shrinks and expands.

        Never all brokers. With three replicas, one frozen broker leaves min.insync.replicas, two leave fewer.
        """
        rng = self._rng
        side = rng.choices(self._sides, [1, 2])[0]
        steps: list[tuple[float, Callable[[], object]]] = []
        periods, end_s = [], 0.0
        touched: list[LocalKafka] = []
        for _ in range(rng.choice([1, 1, 2, 3])):
            begin_s = end_s + (rng.uniform(0.5, 3) if end_s else 0.0)
            end_s = begin_s
            for broker in rng.sample(side.brokers, rng.randrange(1, len(side.brokers))):
                from_s = begin_s + rng.uniform(0, 2)
                to_s = from_s + rng.uniform(2, 12)
                steps += [(from_s, broker.pause), (to_s, broker.resume)]
                periods.append(f"{broker.name} from {from_s:.1f} to {to_s:.1f} s")
                touched.append(broker)
                end_s = max(end_s, to_s)
        script = Script(steps, lambda: _resume(touched))
        name = f"followers frozen: {', '.join(periods)}"
        return Fault(name, f"brokers of {side.name}", end_s + 0.2, script.start, script.finish)

    def _disk_stalled(self) -> Fault:
        """Bursts in which the broker appends nothing to its logs, with short pauses between them."""
        _, broker, subject = self._broker()
        rng = self._rng
        stall = DiskStall(lambda: broker.pid, broker.pause, broker.resume)
        steps: list[tuple[float, Callable[[], object]]] = []
        at_s, longest_s = 0.0, rng.choice([0.5, 2.0, 8.0])
        while at_s < 15:
            burst_s = rng.uniform(longest_s / 5, longest_s)
            steps += [(at_s, stall.stall), (at_s + burst_s, stall.release)]
            at_s += burst_s + rng.uniform(0.05, 0.5)
        script = Script(steps, stall.release)
        name = f"disk of broker {broker.name} stalled {len(steps) // 2} times, up to {longest_s:g} s each"
        notes: list[str] = []

        def end() -> None:
            notes.append(stall.note)
            script.finish()

        return Fault(name, subject, at_s, script.start, end, notes=notes)

    def _controller(self) -> tuple[LocalKafka, str]:
        side = self._rng.choice(self._sides)
        assert side.cluster is not None
        return side.cluster.controller, f"controller of {side.name}"

    def _controller_killed(self) -> Fault:
        controller, subject = self._controller()
        lasts_s = self._rng.uniform(0.5, 20)
        return Fault(f"{subject} killed", subject, lasts_s, controller.kill9, lambda: _start(controller))

    def _controller_frozen(self) -> Fault:
        controller, subject = self._controller()
        return Fault(f"{subject} frozen", subject, self._rng.uniform(1, 20), controller.pause, controller.resume)

    def _leaders_moved(self) -> Fault:
        """A clean stop moves the leaders; afterwards the preferred ones are elected again."""
        side, broker, subject = self._broker()

        def end() -> None:
            _start(broker)
            if side.cluster is not None:
                _elect_preferred(side.cluster)

        name = f"broker {broker.name} stopped cleanly, leaders moved away and back"
        return Fault(name, subject, self._rng.uniform(0.5, 5), broker.stop, end)

    # -- networks ----------------------------------------------------------------------------------------------------

    def _network(self) -> Fault:
        side = self._rng.choice(self._sides)
        networks = self._rng.choice([[network] for network in side.networks] + [side.networks])
        name, lasts_s, conditions, resets = self._network_fault()

        def begin() -> None:
            for network in networks:
                network.set(conditions)
                if resets:
                    network.reset()

        def end() -> None:
            for network in networks:
                network.heal()

        which = "all brokers" if len(networks) > 1 else f"broker {side.networks.index(networks[0]) + 1}"
        return Fault(f"network before {which} of {side.name}: {name}", f"network {side.name}", lasts_s, begin, end)

    def _network_fault(self) -> tuple[str, float, Conditions, bool]:
        rng = self._rng
        hold, swallow = Conditions(up="hold", down="hold"), Conditions(up="swallow", down="swallow")  # type: ignore[arg-type]
        rtt = rng.uniform(10, 150)
        loss, jitter = rng.uniform(0.02, 0.2), rng.uniform(20, 300)
        rate = rng.uniform(3e5, 2e6)
        # No flipped bits: outside the batches the protocol has no checksum but TCP's.
        choices: list[tuple[str, float, Conditions, bool]] = [
            (
                f"round trip {rtt:.0f} ms",
                rng.uniform(3, 15),
                Conditions(delay_up_ms=rtt / 2, delay_down_ms=rtt / 2),
                False,
            ),
            (
                f"loss {loss:.0%}, jitter {jitter:.0f} ms",
                rng.uniform(3, 15),
                Conditions(loss=loss, jitter_ms=jitter),
                False,
            ),
            (
                f"at most {rate / 1e6:.1f} MB/s",
                rng.uniform(3, 15),
                Conditions(rate_up_bytes_s=rate, rate_down_bytes_s=rate),
                False,
            ),
            ("nothing passes", rng.uniform(1, 15), hold, False),
            ("everything disappears", rng.uniform(3, 20), swallow, False),
            ("answers get lost", rng.uniform(1, 5), Conditions(down="swallow"), False),  # type: ignore[arg-type]
            ("connections refused", rng.uniform(1, 6), Conditions(refuse=True), True),
            ("connections reset", 0.0, Conditions(), True),
            (
                "answers cut off",
                rng.uniform(1, 5),
                Conditions(cut_after_bytes=rng.choice([6, 40, 500]), cuts=10, cut_by_fin=rng.random() < 0.5),
                False,
            ),
            ("tiny pieces", rng.uniform(2, 6), Conditions(slice_bytes=rng.randrange(20, 400)), False),
            ("answers twice", rng.uniform(1, 4), Conditions(repeats=5), False),
        ]
        return rng.choice(choices)


def _at_once(name: str, subject: str, act: Callable[[], object]) -> Fault:
    def begin() -> None:
        act()

    return Fault(name, subject, 0.0, begin, lambda: None)


def _signal(processes: Sequence[psutil.Process], number: int) -> None:
    for process in processes:
        with suppress(psutil.Error):
            process.send_signal(number)


def _resume(brokers: Sequence[LocalKafka]) -> None:
    for broker in brokers:
        if broker.is_running:
            broker.resume()


def _start(broker: LocalKafka) -> None:
    broker.launch()
    broker.wait_until_ready(120 * PATIENCE)


def _elect_preferred(cluster: LocalCluster) -> None:
    with suppress(KafkaFailure):  # a preferred leader that is not in sync yet is not elected
        cluster.elect()
