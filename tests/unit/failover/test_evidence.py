"""The report of failover commands: computed values, unknown values, and the printed text."""

from __future__ import annotations

import dataclasses
import io

import pytest

from mm2.cli.evidence import write_report
from mm2.failover.evidence import FailoverReport, FoundBy, GroupEvidence, Outcome, PartitionEvidence

P0 = PartitionEvidence("t", 0, "A.t", 90, 80, 100, None, 85)
REPORT = FailoverReport("failover", "A->B", False, 20_000, "connection refused", 5_000, [P0])


def test_counts_of_missing_records_and_of_records_from_other_producers() -> None:
    assert (P0.missing, P0.others) == (10, 5)
    assert dataclasses.replace(P0, unmarked=4).missing == 6, "the target has records after the ledger's position"
    assert dataclasses.replace(P0, end=80).missing == 0, "the known end offset is older than the position"
    assert (dataclasses.replace(P0, end=None).missing, dataclasses.replace(P0, target_end=None).others) == (None, None)


def test_the_sum_is_unknown_if_one_end_offset_is_unknown() -> None:
    assert REPORT.missing == 10
    report = dataclasses.replace(REPORT, partitions=[P0, dataclasses.replace(P0, end=None)])
    assert (report.missing, report.missing_at_least) == (None, 10)


def test_seconds_at_risk_count_from_the_last_contact_with_an_unreachable_source() -> None:
    assert REPORT.seconds_at_risk == 15.0
    assert dataclasses.replace(REPORT, source_error="").seconds_at_risk is None
    assert dataclasses.replace(REPORT, last_contact_ms=None).seconds_at_risk is None


@pytest.mark.parametrize(
    ("unknown", "text"),
    [
        (range(0), "1 partition, on A only: 10 records{known}"),
        (range(1, 3), "3 partitions, on A only: at least 10 records{known}{uncounted}: t-1, t-2"),
        (
            range(1, 8),
            "8 partitions, on A only: at least 10 records{known}{uncounted}: t-1, t-2, t-3, t-4, t-5 and 2 more",
        ),
    ],
)
@pytest.mark.parametrize("error", ["", "connection refused"])
def test_records_on_the_source_only_are_printed_with_the_basis_of_the_number(
    unknown: range, text: str, error: str
) -> None:
    partitions = [P0, *(dataclasses.replace(P0, partition=number, end=None) for number in unknown)]
    out = io.StringIO()
    write_report(out, dataclasses.replace(REPORT, source_error=error, partitions=partitions))
    known = " known to B, and those written to A since the last contact" if error else ""
    uncounted = "; not counted, because their end offsets on A are unknown"
    assert text.format(known=known, uncounted=uncounted) in out.getvalue().splitlines()


def test_a_report_is_well_without_problems() -> None:
    assert REPORT.is_well
    assert not dataclasses.replace(REPORT, problems=["x"]).is_well


def test_the_text_lists_ranges_offsets_and_failures() -> None:
    group = GroupEvidence("g", "t", 0, "A.t", 70, "checkpoint", 60, FoundBy.EXACT, 50, 60, Outcome.WRITTEN)
    out = io.StringIO()
    write_report(out, dataclasses.replace(REPORT, groups=[group], problems=["a failure"], done=["a success"]))
    lines = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert lines[:3] == [
        "failover A->B",
        "A does not answer: connection refused",
        "last contact with A on B: 1970-01-01 00:00:05 UTC, 15.0 s ago; records that A received since then are not known",
    ]
    assert "t-0: offsets 90-99" in lines
    assert "g A.t-0 70 (checkpoint) 60 50 60 segments written" in lines
    assert lines[-2:] == ["done: a success", "NOT DONE: a failure"]
