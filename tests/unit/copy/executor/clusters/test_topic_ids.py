"""Which topic id is believed."""

from __future__ import annotations

import pytest

from mm2.copy.executor.clusters.topic_ids import (
    CONFIRM_AFTER_S,
    RETIRED_KEPT,
    IdCheck,
    TargetTopicIds,
    TopicIds,
    retire,
)
from mm2.kafka.structs import topic_id_bytes

LATER = CONFIRM_AFTER_S


def test_the_first_id_is_accepted_and_stays() -> None:
    ids = TopicIds()
    assert [ids.check("t", "a", 0), ids.check("t", "a", 9)] == [IdCheck.ACCEPTED] * 2
    assert (ids.current, ids.waiting) == ({"t": "a"}, False)


def test_an_unknown_id_is_due_after_a_while_and_not_before() -> None:
    ids = TopicIds()
    ids.check("t", "a", 0)
    assert ids.check("t", "b", 10) is IdCheck.UNCONFIRMED
    assert ids.waiting
    assert ids.check("t", "b", 10 + LATER / 2) is IdCheck.UNCONFIRMED
    assert ids.check("t", "c", 10 + LATER) is IdCheck.UNCONFIRMED, "another one begins to wait"
    assert ids.check("t", "c", 10 + 2 * LATER) is IdCheck.CONFIRM
    ids.replace("t", "c")
    assert [ids.check("t", "c", 20), ids.check("t", "a", 30)] == [IdCheck.ACCEPTED, IdCheck.STALE]


def test_an_answer_with_the_present_id_ends_the_wait() -> None:
    ids = TopicIds()
    ids.check("t", "a", 0)
    ids.check("t", "b", 1)
    ids.check("t", "a", 2)
    assert not ids.waiting
    assert ids.check("t", "b", 1 + LATER) is IdCheck.UNCONFIRMED


def test_the_ledger_overrides_a_single_response() -> None:
    ids = TopicIds()
    ids.check("t", "old", 0)
    ids.expect("t", "new", ("old",), 1)
    assert (ids.current, ids.waiting) == ({"t": "new"}, False)
    assert [ids.check("t", "old", 2), ids.check("t", "new", 3)] == [IdCheck.STALE, IdCheck.ACCEPTED]


def test_an_id_that_the_ledger_does_not_know_waits_for_its_confirmation() -> None:
    ids = TopicIds()
    ids.check("t", "new", 0)
    ids.expect("t", "old", (), 1)
    assert (ids.current, ids.check("t", "new", 1 + LATER)) == ({"t": "old"}, IdCheck.CONFIRM)


@pytest.mark.parametrize("order", [("old", "new"), ("new", "old")])
def test_of_two_partitions_the_one_that_is_behind_changes_nothing(order: tuple[str, str]) -> None:
    ids = TopicIds()
    for topic_id in order:
        ids.expect("t", topic_id, ("old",) if topic_id == "new" else (), 0)
    assert ids.current == {"t": "new"}


def test_brokers_without_topic_ids_are_accepted() -> None:
    ids = TopicIds()
    assert [ids.check("t", "", 0), ids.check("t", "", 1)] == [IdCheck.ACCEPTED] * 2
    ids.expect("t", "", (), 0)
    assert ids.check("t", "a", 2) is IdCheck.ACCEPTED


def test_the_number_of_remembered_replaced_ids_is_limited() -> None:
    kept = retire((), *(str(number) for number in range(RETIRED_KEPT + 3)), "", "5")
    assert kept == tuple(str(number) for number in range(3, RETIRED_KEPT + 3))


def test_the_target_id_changes_only_when_it_is_replaced() -> None:
    old, new = "AAAAAAAAAAAAAAAAAAAAAQ", "AAAAAAAAAAAAAAAAAAAAAg"
    ids = TargetTopicIds()
    assert (ids.see("t", old), ids.see("t", old), ids.see("t", new)) == (True, True, False)
    assert (ids.get("t"), ids.data, ids.names) == (old, {"t": topic_id_bytes(old)}, {topic_id_bytes(old): "t"})
    ids.replace("t", new)
    assert (ids.get("t"), ids.data["t"], set(ids.names.values())) == (new, topic_id_bytes(new), {"t"})
    assert len(ids.names) == 2, "a late response has the old id"


def test_a_target_without_topic_ids_is_addressed_by_names() -> None:
    ids = TargetTopicIds()
    assert ids.see("t", "")
    assert (ids.get("t"), ids.get("u"), ids.data) == ("", "", {})
