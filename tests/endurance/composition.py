"""Faults that are drawn by lot, one or two at a time, while records flow: what they do, to whom, and for how long.

A fault is begun, lasts, and is ended; what it is done to is its *subject*, and no two of a subject overlap.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import psutil

from mm2.kafka.errors import KafkaFailure
from mm2.sandbox.cluster import LocalCluster
from mm2.sandbox.kafka import LocalKafka
from mm2.sandbox.proxy import Proxy
from mm2.sandbox.relay import Conditions
from tests.faults.stage import Mirror, kill, members


@dataclass(frozen=True)
class Side:
    """One cluster, and the network before each of its brokers. `cluster` is None where there is one broker only."""

    name: str
    brokers: list[LocalKafka]
    networks: list[Proxy]
    cluster: LocalCluster | None = None

    @property
    def bootstrap(self) -> str:
        """Where everybody but the product connects."""
        return ",".join(broker.bootstrap for broker in self.brokers)

    @property
    def addresses(self) -> str:
        """What the product is told."""
        return ",".join(network.address for network in self.networks)


@dataclass(frozen=True)
class Fault:
    """`begin` returns at once; `end` makes everything as it was before, but for what has to recover by itself."""

    name: str
    subject: str
    lasts_s: float
    begin: Callable[[], None]
    end: Callable[[], None]
    kills_process: bool = False
    """Nobody can tell anything while it lasts."""

    def __str__(self) -> str:
        return f"{self.name}, {self.lasts_s:.1f} s" if self.lasts_s else self.name


class Draw:
    """Draws faults. The same seed gives the same faults in the same order, for the same clusters and processes.

    `gentle`: one at a time, and nothing that ends the driver, so that its memory can be watched.
    """

    def __init__(
        self, rng: random.Random, source: Side, target: Side, mirrors: Sequence[Mirror], *, gentle: bool = False
    ) -> None:
        self._rng = rng
        self._sides = (source, target)
        self._together = 0.0 if gentle else 0.25
        self._mirrors = mirrors
        processes = [self._executor_killed, self._executor_frozen]
        if not gentle:
            processes += [self._driver_killed, self._tree_killed, self._jvm_killed, self._restart]
            processes += [self._driver_frozen, self._tree_frozen]
        self._kinds: list[Callable[[], Fault]] = [
            *processes,
            *(self._broker_killed, self._broker_frozen),
            *([] if source.cluster is None and target.cluster is None else [self._leaders_moved]),
            *(self._network, self._network, self._network, self._network),
        ]

    def draw(self) -> list[Fault]:
        """One fault, or two with different subjects."""
        faults = [self._rng.choice(self._kinds)()]
        if self._rng.random() < self._together:
            other = self._rng.choice(self._kinds)()
            if other.subject != faults[0].subject:
                faults.append(other)
        return faults

    # -- the product -----------------------------------------------------------------------------------------------

    def _mirror(self) -> tuple[Mirror, str]:
        index = self._rng.randrange(len(self._mirrors))
        return self._mirrors[index], f"process {index + 1}"

    def _executor_killed(self) -> Fault:
        mirror, subject = self._mirror()
        return _at_once(f"executors of {subject} killed", subject, lambda: kill(members(mirror.process, "worker")))

    def _executor_frozen(self) -> Fault:
        """Longer than the lease of 5 s: somebody else copies, and then it wakes up."""
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
        return Fault(name, subject, lasts_s, mirror.process.kill9, mirror.start_again, kills_process=True)

    def _tree_killed(self) -> Fault:
        mirror, subject = self._mirror()
        lasts_s = self._rng.uniform(0, 3)

        def begin() -> None:
            mirror.process.kill9(whole_family=True)

        return Fault(f"{subject} killed with all it had started", subject, lasts_s, begin, mirror.start_again, True)

    def _jvm_killed(self) -> Fault:
        mirror, subject = self._mirror()
        return _at_once(f"Spark's JVM of {subject} killed", subject, lambda: kill(members(mirror.process, "jvm")))

    def _restart(self) -> Fault:
        mirror, subject = self._mirror()
        lasts_s = self._rng.uniform(0, 2)
        name = f"{subject} stopped and started"
        return Fault(name, subject, lasts_s, mirror.stop, mirror.start_again, kills_process=True)

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
        # One broker of a cluster at a time: with both away nothing is shown but that nothing can be done.
        return side, broker, f"brokers of {side.name}"

    def _broker_killed(self) -> Fault:
        _, broker, subject = self._broker()
        lasts_s = self._rng.uniform(0.5, 10)
        return Fault(f"broker {broker.name} killed", subject, lasts_s, broker.kill9, lambda: _start(broker))

    def _broker_frozen(self) -> Fault:
        _, broker, subject = self._broker()
        lasts_s = self._rng.uniform(1, 12)
        return Fault(f"broker {broker.name} frozen", subject, lasts_s, broker.pause, broker.resume)

    def _leaders_moved(self) -> Fault:
        """A clean stop hands its leaders over; afterwards the preferred ones are elected again."""
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
        name, lasts_s, conditions, resets = self._weather()

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

    def _weather(self) -> tuple[str, float, Conditions, bool]:
        rng = self._rng
        hold, swallow = Conditions(up="hold", down="hold"), Conditions(up="swallow", down="swallow")  # type: ignore[arg-type]
        rtt = rng.uniform(10, 150)
        loss, jitter = rng.uniform(0.02, 0.2), rng.uniform(20, 300)
        rate = rng.uniform(3e5, 2e6)
        # No flipped bits: outside the batches nothing of the protocol has a checksum but TCP's.
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


def _start(broker: LocalKafka) -> None:
    broker.launch()
    broker.wait_until_ready(120)


def _elect_preferred(cluster: LocalCluster) -> None:
    with suppress(KafkaFailure):  # a leader that is not in sync yet stays where it is: nothing was promised
        cluster.elect()
