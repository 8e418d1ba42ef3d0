"""The oracle of the fault tests detects every kind of error."""

import json
from collections import Counter

import pytest

from tests.faults.oracle import Judgment, Rows, absent, compare, compare_reasons, explain, gaps_of, lease_of, reasons_of


def rows(text: str, first: int = 0) -> Rows:
    """One record per letter; equal letters are equal records."""
    return Rows((first + index, ord(letter)) for index, letter in enumerate(text))


def verdict(source: str, target: str, gaps: list[tuple[int, int, str]] | None = None) -> Judgment:
    judgment = Judgment()
    reasons = reasons_of(gaps or [], range(len(source)))
    copied = compare(judgment, 0, rows(source), rows(target, 100), reasons)
    if gaps is not None:
        explain(judgment, 0, range(len(source)), copied, reasons)
    return judgment


def test_the_same_records_in_the_same_order_are_exactly_once() -> None:
    judgment = verdict("abcabc", "abcabc", [])
    judgment.assert_exactly_once()
    judgment.assert_explained()
    assert (judgment.source_records, judgment.target_records) == (6, 6)


@pytest.mark.parametrize(
    ("source", "target", "lost"),
    [
        ("abcdef", "abef", "source offsets 2 to 3, 2 records"),
        ("abcdef", "bcdef", "source offsets 0 to 0"),
        ("abcdef", "abcde", "source offsets 5 to 5"),
        ("abcdef", "", "source offsets 0 to 5"),
        ("aaaa", "aaa", "source offsets 3 to 3"),
    ],
)
def test_lost_records_are_reported_also_at_the_end(source: str, target: str, lost: str) -> None:
    judgment = verdict(source, target)
    assert [sentence for sentence in judgment.lost if lost in sentence], str(judgment)
    assert not any((judgment.doubled, judgment.reordered, judgment.altered))
    assert not judgment.at_least_once


@pytest.mark.parametrize(("source", "target", "count"), [("abc", "abcc", 1), ("abcd", "ababcd", 2), ("aab", "aaab", 1)])
def test_a_repeated_record_is_a_duplicate_and_nothing_else(source: str, target: str, count: int) -> None:
    judgment = verdict(source, target)
    assert len(judgment.doubled) == count, str(judgment)
    assert judgment.at_least_once
    assert not judgment.exactly_once
    assert "came" not in str(judgment)
    assert "doubled: partition 0, target offset" in str(judgment)


def test_a_record_that_comes_late_is_out_of_order_and_not_lost() -> None:
    judgment = verdict("abcd", "acbd")
    assert judgment.reordered == ["partition 0, target offset 102: source offset 1 after 2"]
    assert not judgment.lost


def test_a_record_that_the_source_never_had_is_altered() -> None:
    judgment = verdict("abcd", "abXd")
    assert judgment.altered == ["partition 0, target offset 102: the source has no such record"]
    assert len(judgment.lost) == 1


def test_a_missing_record_is_explained_by_its_reason_and_unexplained_without() -> None:
    judgment = verdict("abcdef", "abf", [(2, 4, "retention")])
    assert judgment.lost == ["partition 0, source offsets 4 to 4, 1 records"]
    assert judgment.unexplained == ["partition 0, source offsets 4 to 4"]
    assert judgment.gaps == Counter(retention=2)


def test_a_reason_for_an_existing_record_is_wrong() -> None:
    judgment = verdict("abc", "abc", [(1, 2, "compacted")])
    assert judgment.misexplained == ["partition 0, source offsets 1 to 1"]
    with pytest.raises(AssertionError, match="misexplained"):
        judgment.assert_explained()


def test_offsets_without_any_record_need_a_reason() -> None:
    judgment = Judgment()
    wanted = Rows([(0, ord("a")), (3, ord("b"))])
    copied = compare(judgment, 0, wanted, rows("ab", 7), {})
    explain(judgment, 0, range(5), copied, {1: "compacted"})
    assert judgment.exactly_once
    assert judgment.unexplained == ["partition 0, source offsets 2 to 2", "partition 0, source offsets 4 to 4"]


def test_an_empty_run_is_not_a_success() -> None:
    with pytest.raises(AssertionError, match="no record was written"):
        Judgment().assert_exactly_once()


def test_gaps_are_parsed_from_the_ledger_s_format() -> None:
    value = {"segments": [], "gaps": [[5, 2, 0], [0, 1, 1], [92, 10, 0]], "reasons": ["compacted", "control"]}
    assert gaps_of(json.loads(json.dumps(value))) == [(5, 7, "compacted"), (7, 8, "control"), (100, 110, "compacted")]


def test_a_hole_is_reported_when_the_target_continues_after_lost_or_late_records() -> None:
    assert verdict("abcdef", "abef").holes == [
        "partition 0, target offset 102: source offset 4, without 2 to 3, 2 records"
    ]
    late = verdict("abcd", "acbd")
    assert late.holes == ["partition 0, target offset 101: source offset 2, without 1 to 1, 1 records"]
    assert late.numbers == Counter(holes=1)
    assert not verdict("abcdef", "abcd").holes  # nothing follows
    assert not verdict("abcdef", "abef", [(2, 4, "aborted")]).holes


def test_records_after_the_claimed_end_are_not_lost() -> None:
    judgment = Judgment()
    compare(judgment, 0, rows("abcdef"), rows("ac"), {}, 4)
    assert judgment.lost == [
        "partition 0, source offsets 1 to 1, 1 records",
        "partition 0, source offsets 3 to 3, 1 records",
    ]
    assert judgment.numbers["lost"] == 2


def test_an_offset_without_a_record_is_an_aborted_transaction_or_a_marker() -> None:
    assert absent(range(6), [0, 4], [0, 1, 2, 4]) == {1: "aborted", 2: "aborted", 3: "control", 5: "control"}


def test_a_wrong_reason_is_reported_with_the_right_one() -> None:
    judgment = Judgment()
    true = {1: "aborted", 2: "aborted", 3: "control", 5: "control"}
    compare_reasons(judgment, 0, true, {1: "aborted", 2: "control", 3: "control", 5: "retention", 7: "control"})
    assert judgment.misexplained == [
        "partition 0, source offsets 2 to 2: control in the ledger, aborted on the source",
        "partition 0, source offsets 5 to 5: retention in the ledger, control on the source",
    ]
    assert judgment.numbers["misexplained"] == 2


def test_of_two_entries_the_one_with_the_larger_lease_is_valid() -> None:
    newer, older = b'{"version":1,"lease":[1700000000001,0]}', b'{"version":1,"lease":[1700000000000,12]}'
    assert lease_of(newer) > lease_of(older) > lease_of(b'{"version":1}') == lease_of(b"") == lease_of(b"[]") == ()
