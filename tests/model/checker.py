"""Explicit-state model checker: breadth first, over the whole reachable state space, with a shortest counterexample.

A state is a hashable tuple. An action is a generator function that takes a state and yields ``(label, successor)`` for each step
that is possible there. An invariant returns what is wrong with a state, or "". The bounds belong to the model: it yields nothing
where a budget is spent. States are visited in the order of their distance from the initial states, so the first violation
found has a shortest trace. Visited states are kept whole; none is dropped by a hash.
"""

from __future__ import annotations

import gc
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

#: A hashable tuple; each model has its own type.
State = Any
Action = Callable[[State], Iterator[tuple[str, State]]]
Invariant = Callable[[State], str]

_INITIAL = "start"


class Model(Protocol):
    """The model to check. ``actions`` are tried in order in each state."""

    @property
    def name(self) -> str:
        """The modelled protocol and its bounds."""

    def initial(self) -> Iterable[State]:
        """The initial states."""

    @property
    def actions(self) -> Sequence[Action]:
        """All actions of all parties."""

    @property
    def invariants(self) -> Sequence[Invariant]:
        """The invariants of each state."""

    def canonical(self, state: State) -> State:
        """The representative of all states that differ only by a symmetry; the state itself where there is none."""

    def show(self, state: State) -> Sequence[str]:
        """The printed parts of a state, always the same number in the same order."""

    def is_goal(self, state: State) -> bool:
        """Whether all work is done: must stay reachable from each state, see `check`."""


@dataclass(frozen=True, slots=True)
class Violation:
    """``steps`` are (label, state) from an initial state on."""

    what: str
    steps: tuple[tuple[str, State], ...]

    @property
    def labels(self) -> list[str]:
        """The steps without the initial one."""
        return [label for label, _ in self.steps[1:]]


@dataclass(slots=True)
class Result:
    """``complete``: the whole reachable state space was visited. ``stuck``: a state from which no goal can be reached.
    ``seconds`` of CPU time."""

    name: str
    states: int = 0
    transitions: int = 0
    depth: int = 0
    seconds: float = 0.0
    complete: bool = False
    violation: Violation | None = None
    stuck: Violation | None = None
    taken: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        found = self.violation or self.stuck
        end = found.what if found is not None else ("no violation" if self.complete else "stopped at the limit")
        return (
            f"{self.name}: {self.states:,} states, {self.transitions:,} transitions, depth {self.depth}, "
            f"{self.seconds:.1f} s: {end}"
        )


def check(model: Model, *, limit: int = 20_000_000, progress: bool = False) -> Result:
    """Visit every reachable state and stop at the first violation.

    ``progress`` also finds a state from which no goal state can be reached: a rule that satisfies all invariants because it
    blocks is of no use. ``limit`` bounds the number of states. ``Result.taken`` counts the steps by the first word of their label.
    """
    collects = gc.isenabled()
    gc.disable()  # nothing here is cyclic, and each collection would walk through millions of tuples
    try:
        return _search(model, limit, progress)
    finally:
        if collects:
            gc.enable()


def _search(model: Model, limit: int, progress: bool) -> Result:
    began_s = time.process_time()
    result = Result(model.name)
    seen: dict[State, int] = {}
    order: list[State] = []
    parents, via, depths = array("l"), array("l"), array("H")
    labels: dict[str, int] = {_INITIAL: 0}
    edges_from, edges_to = array("l"), array("l")
    wrong: list[Violation] = []
    canonical, actions, invariants = model.canonical, model.actions, model.invariants

    def trace(index: int, what: str) -> Violation:
        names = list(labels)
        steps = []
        while index >= 0:
            steps.append((names[via[index]], order[index]))
            index = parents[index]
        return Violation(what, tuple(reversed(steps)))

    def finish() -> Result:
        result.states = len(order)
        result.violation = wrong[0] if wrong else None
        result.depth = depths[-1] if depths else 0
        result.seconds = time.process_time() - began_s
        return result

    def add(state: State, parent: int, label: str) -> int:
        index = len(order)
        seen[state] = index
        order.append(state)
        parents.append(parent)
        via.append(labels.setdefault(label, len(labels)))
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
        wrong.extend(trace(index, what) for invariant in invariants if (what := invariant(state)))
        return index

    for state in map(canonical, model.initial()):
        if state not in seen:
            add(state, -1, _INITIAL)
    here = 0
    taken = result.taken
    while here < len(order) and not wrong:
        if len(order) > limit:
            return finish()
        state = order[here]
        for action in actions:
            for label, successor in action(state):
                following = canonical(successor)
                result.transitions += 1
                kind = label.split(maxsplit=1)[0]
                taken[kind] = taken.get(kind, 0) + 1
                index = seen.get(following, -1)
                if index < 0:
                    index = add(following, here, label)
                    if wrong:
                        return finish()
                if progress:
                    edges_from.append(here)
                    edges_to.append(index)
        here += 1
    result.complete = not wrong
    if progress and result.complete:
        lost = _without_goal(order, edges_from, edges_to, model.is_goal)
        if lost >= 0:
            result.stuck = trace(lost, "from here on the copying can never be finished")
    return finish()


def _without_goal(
    order: list[State], edges_from: array[int], edges_to: array[int], goal: Callable[[State], bool]
) -> int:
    """The first state from which no goal can be reached, -1 for none."""
    count = len(order)
    # Predecessors of each state, side by side in one array.
    begins = array("l", bytes(8 * (count + 1)))
    for to in edges_to:
        begins[to + 1] += 1
    for index in range(count):
        begins[index + 1] += begins[index]
    free = array("l", begins)
    before = array("l", bytes(8 * len(edges_to)))
    for source, to in zip(edges_from, edges_to, strict=True):
        before[free[to]] = source
        free[to] += 1
    reached = bytearray(count)
    waiting = [index for index, state in enumerate(order) if goal(state)]
    for index in waiting:
        reached[index] = 1
    while waiting:
        index = waiting.pop()
        for place in range(begins[index], begins[index + 1]):
            if not reached[before[place]]:
                reached[before[place]] = 1
                waiting.append(before[place])
    return reached.find(0)


def render(model: Model, violation: Violation) -> str:
    """A counterexample to read: one line for each step, with what it changed."""
    width = max(len(label) for label, _ in violation.steps)
    lines = [f"{model.name}: {violation.what}"]
    before: Sequence[str] = ()
    for number, (label, state) in enumerate(violation.steps):
        parts = model.show(state)
        changed = [part for index, part in enumerate(parts) if not before or part != before[index]]
        lines.append(f"{number:>4}  {label:<{width}}  {' | '.join(changed)}".rstrip())
        before = parts
    return "\n".join(lines)
