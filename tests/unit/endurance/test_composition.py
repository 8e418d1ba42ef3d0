"""Random faults: the same seed gives the same faults, regardless of the clusters' ports."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.endurance.composition import Draw, Victim
from tests.endurance.sides import Side


class _Named:
    """Placeholder for a process, a broker or a proxy: faults are only drawn, not injected."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, _name: str) -> Any:
        return self

    def __call__(self, *_: object) -> None:
        raise AssertionError("drawing a fault must not call its target")


def side(name: str, brokers: int) -> Side:
    made: Any = [_Named(f"{name}-{number}") for number in range(1, brokers + 1)]
    cluster: Any = _Named(name) if brokers > 1 else None
    return Side(name, made, [*made], cluster)


def draw(
    seed: int,
    *,
    brokers: int = 2,
    count: int = 300,
    gentle: bool = False,
    victims: tuple[Victim, ...] | None = None,
) -> list[list[Any]]:
    mirrors: Any = [_Named("mirror")]
    sides = side("A", brokers), side("B", brokers)
    drawn = Draw(random.Random(seed), *sides, mirrors, victims=victims, gentle=gentle)
    return [drawn.draw() for _ in range(count)]


def names(steps: list[list[Any]]) -> list[list[str]]:
    return [[str(fault) for fault in faults] for faults in steps]


def test_the_seed_determines_the_faults() -> None:
    assert names(draw(5)) == names(draw(5))
    assert names(draw(5)) != names(draw(6))


def test_every_kind_of_fault_is_drawn_and_concurrent_ones_have_different_targets() -> None:
    steps = draw(1, count=2000)
    kinds = {" ".join(word for word in fault.name.split() if word.isalpha()) for faults in steps for fault in faults}
    assert len(kinds) > 20
    together = [faults for faults in steps if len(faults) == 2]
    assert 200 < len(together) < 600
    assert all(first.subject != second.subject for first, second in together)


def test_gentle_faults_are_single_and_spare_the_driver() -> None:
    steps = draw(1, brokers=1, count=1000, gentle=True)
    assert all(len(faults) == 1 and not faults[0].kills_process for faults in steps)
    assert not [faults for faults in steps if "driver" in str(faults[0]) or "leaders" in str(faults[0])]


@pytest.mark.parametrize(
    ("victim", "words"),
    [
        (Victim.BROKER, {"broker"}),
        (Victim.FOLLOWER, {"followers"}),
        (Victim.CONTROLLER, {"controller"}),
        (Victim.NETWORK, {"network"}),
        (Victim.DISK_STALL, {"disk"}),
        (Victim.PROCESS, {"process", "executors", "driver", "Spark's"}),
    ],
)
def test_only_the_chosen_victim_is_drawn(victim: Victim, words: set[str]) -> None:
    steps = draw(3, brokers=3, count=200, victims=(victim,))
    assert {str(fault).split()[0] for faults in steps for fault in faults} <= words


def test_all_victims_are_drawn_on_three_brokers() -> None:
    reported = [str(fault) for faults in draw(4, brokers=3, count=600) for fault in faults]
    for word in ("followers frozen", "controller of A killed", "controller of B frozen", "disk of broker", "network"):
        assert any(word in each for each in reported), word


def test_not_all_followers_freeze_at_once_and_brokers_restart_within_45_seconds() -> None:
    steps = draw(5, brokers=3, count=400, victims=(Victim.FOLLOWER, Victim.BROKER, Victim.DISK_STALL))
    followers = [str(fault) for faults in steps for fault in faults if str(fault).startswith("followers")]
    assert all(any(f"B-{number}" not in each for number in (1, 2, 3)) for each in followers if each.count("from") == 2)
    assert any(each.count("from") > 2 for each in followers)
    assert all(0 < fault.lasts_s <= 60 for faults in steps for fault in faults)


def test_a_single_broker_has_no_followers() -> None:
    with pytest.raises(ValueError, match="none of the victims"):
        draw(1, brokers=1, victims=(Victim.FOLLOWER,))
