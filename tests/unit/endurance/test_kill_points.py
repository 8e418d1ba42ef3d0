from collections import Counter

from tests.endurance.kill_points import Phase, plan


def test_the_same_seed_gives_the_same_plan_and_another_seed_another() -> None:
    assert plan(7, 20) == plan(7, 20)
    assert plan(7, 20) != plan(8, 20)


def test_phases_occur_equally_often() -> None:
    assert Counter(point.phase for point in plan(1, 20)) == dict.fromkeys(Phase, 4)
    assert len(plan(1, 7)) == 7
