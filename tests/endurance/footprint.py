"""Memory of the product by process role."""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median

import psutil

from bench.proctree import session_members

ROLES = ("driver", "jvm", "daemon", "worker")


@dataclass(frozen=True)
class Sample:
    """Resident bytes by role at one time (time.monotonic), and the number of processes."""

    at_s: float
    rss_bytes: Counter[str]
    processes: int

    @property
    def total_bytes(self) -> int:
        return self.rss_bytes.total()


def sample(session: int, at_s: float) -> Sample:
    """Read the memory of all processes of the product whose main process leads `session`."""
    rss: Counter[str] = Counter()
    members = session_members(session)
    for process in members:
        with suppress(psutil.Error):
            rss[role_of(process, session)] += process.memory_info().rss
    return Sample(at_s, rss, len(members))


def typical(samples: Sequence[Sample]) -> dict[str, float]:
    """Median bytes by role and of the `total`."""
    table = {role: median(one.rss_bytes[role] for one in samples) for role in ROLES}
    return {**table, "total": median(one.total_bytes for one in samples)}


def role_of(process: psutil.Process, session: int) -> str:
    """`driver`, `jvm`, `daemon` or `worker` (an executor)."""
    if process.pid == session:
        return "driver"
    if process.name() == "java":
        return "jvm"
    # PySpark's daemon forks its workers, which keep its command line.
    parent = process.parent()
    return "worker" if parent is not None and parent.name() != "java" and parent.pid != session else "daemon"
