"""When to kill a process: points over its life cycle, reproducible by the seed."""

import random
from dataclasses import dataclass
from enum import Enum


class Phase(Enum):
    """Phase of a process's life cycle."""

    START_UP = "start-up"
    """The first half of the time to the first copied record: configuration, connections, start of Spark."""
    DISCOVERY = "discovery"
    """The second half: the group, the connectors, the topics, the first Spark job."""
    MID_BATCH = "mid-batch"
    """While records are being copied."""
    COMMIT = "commit"
    """Around a commit that is due or has just been written."""
    STOP = "stop"
    """After SIGTERM."""


@dataclass(frozen=True)
class KillPoint:
    """`fraction` (0 to 1): position within the phase; `whole_tree`: kill all processes, not only the main one."""

    phase: Phase
    fraction: float
    whole_tree: bool


def plan(seed: int, count: int) -> list[KillPoint]:
    """`count` points in random order with all phases equally often."""
    rng = random.Random(seed)
    points: list[KillPoint] = []
    while len(points) < count:
        phases = list(Phase)
        rng.shuffle(phases)
        points += [KillPoint(phase, rng.random(), rng.random() < 0.5) for phase in phases]
    return points[:count]
