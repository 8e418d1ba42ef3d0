"""Every key of Kafka that is honoured has a test of its effect."""

from __future__ import annotations

from mm2.config.keys.key_effects import Effect, key_effects
from tests.unit.config.key_tests import exists, key_tests

EFFECTIVE = [(row.place, row.key) for row in key_effects() if row.effect in {Effect.HONOURED, Effect.PARTLY}]


def test_every_key_with_an_effect_has_one_test_in_the_order_of_the_table_of_effects() -> None:
    listed = [key for key, _ in key_tests()]
    assert sorted(set(EFFECTIVE) - set(listed)) == [], "without a test"
    assert sorted(set(listed) - set(EFFECTIVE)) == [], "not a key with an effect"
    assert listed == EFFECTIVE


def test_every_test_of_a_key_exists() -> None:
    assert [test for _, test in key_tests() if not exists(test)] == []


def test_a_missing_function_or_file_does_not_exist() -> None:
    here = "tests/unit/config/test_key_tests.py"
    assert exists(f"{here}::test_a_missing_function_or_file_does_not_exist")
    for test in (f"{here}::test_nothing", f"{here}::exists", "tests/none.py::test_nothing", here):
        assert not exists(test)
