"""When to kill: moments spread over the life of a process, the same for the same seed."""

import random
from dataclasses import dataclass
from enum import Enum


class Phase(Enum):
    """Part of a process's life."""

    START_UP = "start-up"
    """The first half of the way to the first copied record: configuration, connections, Spark's start."""
    DISCOVERY = "discovery"
    """The second half: the group, the connectors, the topics, the first Spark job."""
    MID_BATCH = "mid-batch"
    """Some time while records are being copied."""
    COMMIT = "commit"
    """About when a commit is due or has just been written."""
    STOP = "stop"
    """After SIGTERM."""


@dataclass(frozen=True)
class Moment:
    """`fraction` (0 to 1) says where in the phase; `whole_tree`: kill all processes, not only the main one."""

    phase: Phase
    fraction: float
    whole_tree: bool


def plan(seed: int, count: int) -> list[Moment]:
    """`count` moments in which all phases come equally often, in an order without a pattern."""
    rng = random.Random(seed)
    moments: list[Moment] = []
    while len(moments) < count:
        phases = list(Phase)
        rng.shuffle(phases)
        moments += [Moment(phase, rng.random(), rng.random() < 0.5) for phase in phases]
    return moments[:count]
