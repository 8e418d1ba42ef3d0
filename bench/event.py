"""What can be measured: a name, what has to be done, under which conditions, by whom, how often; and what came of it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from bench import idle, latency, many, race
from bench.conditions import PLAIN, Conditions
from bench.contenders import JAVA_DEFAULT, JAVA_TUNED, JAVA_WIDE, OURS, Contender
from bench.idle import PARTITIONS, TOPICS, Idleness
from bench.latency import Traffic
from bench.many import Many
from bench.outcome import Figure, Outcome
from bench.shapes import Shape

THREE = (OURS, JAVA_DEFAULT, JAVA_TUNED)
FOUR = (*THREE, JAVA_WIDE)


@dataclass(frozen=True)
class Event:
    """One comparison. `runs` is how often each contender runs."""

    task: Shape | Traffic | Idleness | Many
    conditions: Conditions = PLAIN
    contenders: tuple[Contender, ...] = THREE
    runs: int = 3

    @property
    def name(self) -> str:
        """Also what it is called on the command line."""
        if isinstance(self.task, Traffic):
            return self.task.name
        if isinstance(self.task, Idleness):
            return "idle"
        if isinstance(self.task, Many):
            return "many"
        conditions = self.conditions
        return (
            self.task.name
            + ("-exactly-once" if conditions.exactly_once else "")
            + ("-insert-header" if conditions.insert_header else "")
            + ("-tls" if conditions.tls else "")
            + (f"-rtt{conditions.rtt_ms}" if conditions.rtt_ms else "")
        )

    @property
    def title(self) -> str:
        if isinstance(self.task, Traffic):
            task = self.task.title
        elif isinstance(self.task, Idleness):
            task = f"{TOPICS * PARTITIONS:,} idle partitions for {self.task.seconds} s"
        elif isinstance(self.task, Many):
            task = f"{self.task.topics:,} topics of {self.task.partitions} partitions, {self.task.groups:,} groups"
        else:
            task = f"{self.task.title}: {self.task.records:,} records in {self.task.partitions} partitions"
        return ", ".join(filter(None, (task, self.conditions.title)))

    @property
    def figures(self) -> tuple[Figure, ...]:
        """What is measured, in the order of the columns."""
        if isinstance(self.task, Traffic):
            return latency.FIGURES
        if isinstance(self.task, Many):
            return many.FIGURES
        return idle.FIGURES if isinstance(self.task, Idleness) else race.FIGURES

    @property
    def compared(self) -> tuple[Figure, ...]:
        """Figures whose ratios are reported, with or without a goal."""
        if isinstance(self.task, Traffic):
            return latency.COMPARED
        if isinstance(self.task, Idleness):
            return idle.CPU, idle.START, idle.MEMORY
        if isinstance(self.task, Many):
            return many.START, many.CPU, many.NEW, many.ROUND, many.ROUND_LONGEST, many.MEMORY
        return race.RATE, race.START, race.CPU, race.MEMORY


@dataclass(frozen=True)
class Result:
    """All measured runs of an event, in the order in which they ran. `facts` are what else there is to know."""

    event: str
    title: str
    quick: bool
    at: str
    commit: str
    machine: str
    outcomes: Sequence[Outcome]
    facts: Sequence[str] = ()

    @property
    def complete(self) -> bool:
        """Nobody failed."""
        return bool(self.outcomes) and not any(outcome.failure for outcome in self.outcomes)

    def of(self, contender: str) -> list[Outcome]:
        """The runs of one contender that did not fail."""
        return [outcome for outcome in self.outcomes if outcome.contender == contender and not outcome.failure]

    def failure_of(self, contender: str) -> str:
        """The first reason for which one failed, in a line; empty when none did."""
        failed = (one.failure for one in self.outcomes if one.contender == contender and one.failure)
        return next(failed, "").partition("\n")[0]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> Self:
        return cls(**{**row, "outcomes": [Outcome(**outcome) for outcome in row["outcomes"]]})
