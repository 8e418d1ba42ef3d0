"""Schedules that are written down instead of drawn: rare coincidences of faults, each over a few seeds."""

from __future__ import annotations

from collections.abc import Callable

from mm2.copy.executor.positions import offset_key
from mm2.kafka.partitioner import partition_for
from mm2.kafka.structs import TopicPartition
from tests.simulation.cluster import Options
from tests.simulation.oracle import Violation
from tests.simulation.scenario import CONNECTOR, OFFSETS, TOPIC, Profile, Scenario, simulated


def two_elections(scenario: Scenario) -> None:
    """Two unclean elections of the source in a row: the second before anything of the first epoch was read."""
    world, source = scenario.world, scenario.source
    place = (TOPIC, 0)
    part = source.partitions[place]
    for node, until_s in ((3, 2.0), (2, 4.0)):
        world.run(until_s)
        source.brokers[node].slow_fetch_s[place] = 1000.0
    world.run(12.0)
    scenario.oracle.excuses.source_cut.add(0)
    for node in (2, 3):
        source.brokers[node].slow_fetch_s.pop(place, None)
        source.decide(part, node, (node,), new_epoch=True)
        world.run(world.now + 0.1)


def stale_offsets_leader(scenario: Scenario) -> None:
    """A user resets a position while the former leader of the offsets topic does not know that it is deposed."""
    world, target = scenario.world, scenario.target
    world.run(8.0)
    place = (OFFSETS, partition_for(offset_key(CONNECTOR, "A", TopicPartition(TOPIC, 0)), 2))
    broker = target.brokers[target.partitions[place].state.leader]
    broker.cut_until = world.now + 20
    target.lost(broker)
    world.after(20.01, scenario._reconnect, broker.node)
    world.run(world.now + target.options.session_s + 1)
    scenario.reset_position()
    world.run(world.now + 12)


DIRECTED: tuple[Callable[[Scenario], None], ...] = (two_elections, stale_offsets_leader)


def direct(what: Callable[[Scenario], None], seed: int) -> Violation | None:
    """One run; what it violates."""
    with simulated(seed) as world:
        source = Options(min_isr=1, lag_time_s=2.0)
        profile = Profile((), source, Options(session_s=1.0), partitions=1, produce_every_s=0.03)
        scenario = Scenario(world, profile)
        world.dial.append(scenario.network.dial)  # type: ignore[attr-defined]
        try:
            scenario.setup()
            what(scenario)
            scenario.finish()
        except Violation as violation:
            return violation
        finally:
            for process in scenario.driver.alive():
                process.kill()
    return None
