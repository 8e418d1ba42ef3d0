"""Faults by lot: the same seed gives the same faults, whatever the clusters' ports are."""

from __future__ import annotations

import random
from typing import Any

from tests.endurance.composition import Draw, Side


class _Named:
    """Stands where a process, a broker or a proxy would: nothing is done to it here, it is only drawn."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, _name: str) -> Any:
        return self

    def __call__(self, *_: object) -> None:
        raise AssertionError("drawing does nothing to anybody")


def side(name: str, brokers: int) -> Side:
    made: Any = [_Named(f"{name}-{number}") for number in range(1, brokers + 1)]
    cluster: Any = _Named(name) if brokers > 1 else None
    return Side(name, made, [*made], cluster)


def draw(seed: int, *, brokers: int = 2, count: int = 300, gentle: bool = False) -> list[list[Any]]:
    mirrors: Any = [_Named("mirror")]
    drawn = Draw(random.Random(seed), side("A", brokers), side("B", brokers), mirrors, gentle=gentle)
    return [drawn.draw() for _ in range(count)]


def names(steps: list[list[Any]]) -> list[list[str]]:
    return [[str(fault) for fault in faults] for faults in steps]


def test_the_seed_decides() -> None:
    assert names(draw(5)) == names(draw(5))
    assert names(draw(5)) != names(draw(6))


def test_every_kind_of_fault_comes_and_two_at_once_have_different_subjects() -> None:
    steps = draw(1, count=2000)
    kinds = {" ".join(word for word in fault.name.split() if word.isalpha()) for faults in steps for fault in faults}
    assert len(kinds) > 20
    together = [faults for faults in steps if len(faults) == 2]
    assert 200 < len(together) < 600
    assert all(first.subject != second.subject for first, second in together)


def test_gentle_faults_come_alone_and_leave_the_driver_alone() -> None:
    steps = draw(1, brokers=1, count=1000, gentle=True)
    assert all(len(faults) == 1 and not faults[0].kills_process for faults in steps)
    assert not [faults for faults in steps if "driver" in str(faults[0]) or "leaders" in str(faults[0])]
