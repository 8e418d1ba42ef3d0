from dataclasses import replace

import pytest

from bench import race
from bench.contenders import JAVA_DEFAULT, JAVA_TUNED
from bench.event import Event, Result
from bench.goals import BEYOND, EVENTS, GOALS, MANY, TABLE, Goal, quick, verdicts
from bench.outcome import Outcome

FASTER = Goal("faster", "1k", race.RATE, 6, 2.8, at_least=True)
LEANER = Goal("leaner", "1k", race.MEMORY, 0.6, None, most=500)


def result(*outcomes: Outcome) -> Result:
    return Result("1k", "", quick=False, at="", commit="", machine="", outcomes=list(outcomes))


def run(contender: str, rate: float, memory: float = 100) -> Outcome:
    return Outcome(contender, {race.RATE.name: rate, race.MEMORY.name: memory})


def test_each_goal_has_a_measuring_row() -> None:
    rows = {event.name: event for event in TABLE}
    for goal in GOALS:
        assert goal.figure in rows[goal.event].figures, goal.line
        peers = [peer for peer, bound in goal.bounds if bound is not None]
        assert all(peer in rows[goal.event].contenders for peer in peers), goal.line


def test_row_names_are_unique() -> None:
    assert len(EVENTS) == len(TABLE) + len(BEYOND)


@pytest.mark.parametrize("event", [*EVENTS.values(), MANY], ids=[*EVENTS, MANY.name])
def test_a_quick_row_runs_once_and_compares_the_same(event: Event) -> None:
    assert quick(event).runs == 1
    assert quick(event).figures == event.figures
    assert set(event.compared) <= set(event.figures)


def test_the_ratio_is_that_of_the_medians() -> None:
    measured = result(
        *(run("mm2", rate) for rate in (10, 700, 600)),
        *(run("java", rate) for rate in (100, 90, 110)),
        *(run("java-tuned", rate) for rate in (300, 1, 500)),
    )
    default, tuned = verdicts(FASTER, measured)
    assert (default.peer, default.ratio, default.reached) == (JAVA_DEFAULT, 6, True)
    assert (tuned.peer, tuned.ratio, tuned.reached) == (JAVA_TUNED, 2, False)


def test_an_absolute_bound_counts_beside_the_ratio() -> None:
    (within,) = verdicts(LEANER, result(run("mm2", 1, memory=500), run("java", 1, memory=1000)))
    (above,) = verdicts(LEANER, result(run("mm2", 1, memory=501), run("java", 1, memory=1000)))
    assert within.reached
    assert not above.reached


def test_a_failed_or_missing_measurement_is_unknown_and_not_reached() -> None:
    assert [verdict.why for verdict in verdicts(FASTER, None)] == ["not measured"] * 2
    measured = result(run("mm2", 600), run("java", 100), Outcome("java-tuned", failure="it died.\nits log"))
    default, tuned = verdicts(FASTER, measured)
    assert default.reached
    assert tuned.reached is None
    assert tuned.why == "failed: it died."


def test_a_stored_result_is_read_back() -> None:
    measured = replace(result(run("mm2", 600), Outcome("java", failure="no")), facts=["one"])
    assert Result.from_json(measured.to_json()) == measured
    assert not measured.complete
