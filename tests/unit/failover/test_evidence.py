"""What follows from what is known, and what stays unknown."""

from __future__ import annotations

import dataclasses
import io

import pytest

from mm2.cli.evidence import write_report
from mm2.failover.evidence import FailoverReport, Found, GroupEvidence, Outcome, PartitionEvidence

P0 = PartitionEvidence("t", 0, "A.t", 90, 80, 100, None, 85)
REPORT = FailoverReport("failover", "A->B", False, 20_000, "connection refused", 5_000, [P0])


def test_what_is_missing_and_what_others_wrote() -> None:
    assert (P0.missing, P0.others) == (10, 5)
    assert dataclasses.replace(P0, unmarked=4).missing == 6, "the target has more than the ledger says"
    assert dataclasses.replace(P0, end=80).missing == 0, "an end that is older than the copy"
    assert (dataclasses.replace(P0, end=None).missing, dataclasses.replace(P0, target_end=None).others) == (None, None)


def test_one_partition_of_which_nothing_is_known_leaves_the_sum_unknown() -> None:
    assert REPORT.missing == 10
    report = dataclasses.replace(REPORT, partitions=[P0, dataclasses.replace(P0, end=None)])
    assert (report.missing, report.missing_at_least) == (None, 10)


def test_seconds_count_from_the_newest_sign_of_a_source_that_is_silent() -> None:
    assert REPORT.silent_s == 15.0
    assert dataclasses.replace(REPORT, source_trouble="").silent_s is None
    assert dataclasses.replace(REPORT, last_sign_ms=None).silent_s is None


@pytest.mark.parametrize(
    ("unseen", "said"),
    [
        (range(0), "1 partition, on A only: 10 records{heard}"),
        (range(1, 3), "3 partitions, on A only: at least 10 records{heard}{unseen}: t-1, t-2"),
        (
            range(1, 8),
            "8 partitions, on A only: at least 10 records{heard}{unseen}: t-1, t-2, t-3, t-4, t-5 and 2 more",
        ),
    ],
)
@pytest.mark.parametrize("trouble", ["", "connection refused"])
def test_what_is_on_the_source_only_is_told_with_how_that_is_known(unseen: range, said: str, trouble: str) -> None:
    partitions = [P0, *(dataclasses.replace(P0, partition=number, end=None) for number in unseen)]
    out = io.StringIO()
    write_report(out, dataclasses.replace(REPORT, source_trouble=trouble, partitions=partitions))
    heard = " known to B, and those written to A since the last contact" if trouble else ""
    nobody = "; not counted, because their end offsets on A are unknown"
    assert said.format(heard=heard, unseen=nobody) in out.getvalue().splitlines()


def test_a_report_is_well_when_nothing_was_left_undone() -> None:
    assert REPORT.is_well
    assert not dataclasses.replace(REPORT, problems=["x"]).is_well


def test_people_are_told_ranges_places_and_what_was_not_done() -> None:
    group = GroupEvidence("g", "t", 0, "A.t", 70, "checkpoint", 60, Found.EXACT, 50, 60, Outcome.WRITTEN)
    out = io.StringIO()
    write_report(out, dataclasses.replace(REPORT, groups=[group], problems=["the roof"], done=["the floor"]))
    lines = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert lines[:3] == [
        "failover A->B",
        "A does not answer: connection refused",
        "last contact with A on B: 1970-01-01 00:00:05 UTC, 15.0 s ago; records that A received since then are not known",
    ]
    assert "t-0: offsets 90-99" in lines
    assert "g A.t-0 70 (checkpoint) 60 50 60 segments written" in lines
    assert lines[-2:] == ["done: the floor", "NOT DONE: the roof"]
