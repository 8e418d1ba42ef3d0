"""Ids of sandbox clusters."""

from __future__ import annotations

from mm2.sandbox.kafka import new_id


def test_ids_are_unique_and_never_look_like_an_option() -> None:
    made = [new_id() for _ in range(2_000)]  # without the check, one in 64 begins with a dash
    assert len(set(made)) == 2_000
    assert {len(one) for one in made} == {22}
    assert not [one for one in made if one.startswith("-")]
