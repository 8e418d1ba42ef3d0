"""The report of failover commands: computed values, unknown values, and the printed text."""

from __future__ import annotations

import dataclasses
import io

import pytest

from mm2.cli.evidence import write_report
from mm2.cli.flow import COLLAPSED_ABOVE
from mm2.failover.evidence import (
    FailoverReport,
    FoundBy,
    GroupEvidence,
    Outcome,
    PartitionEvidence,
    RecordCount,
    SourceTail,
)

P0 = PartitionEvidence("t", 0, "A.t", 90, 80, 100, None, 85)
REPORT = FailoverReport("failover", "A->B", False, 20_000, "connection refused", 5_000, [P0])


def test_counts_of_missing_records_and_of_records_from_other_producers() -> None:
    assert (P0.missing, P0.others) == (RecordCount(10, 10), 5)
    assert dataclasses.replace(P0, unmarked=4).missing.exact == 6, "the target has records after the ledger's position"
    assert dataclasses.replace(P0, end=80).missing.exact == 0, "the known end offset is older than the position"
    assert dataclasses.replace(P0, end=None).missing == RecordCount(0, None)
    assert dataclasses.replace(P0, end_ms=5_000).missing == RecordCount(10, None), (
        "the source may have received more since"
    )
    assert dataclasses.replace(P0, end_ms=5_000, is_changed=True).missing == RecordCount(0, None)
    assert dataclasses.replace(P0, target_end=None).others is None


def test_records_of_changed_partitions_are_missing_only_as_far_as_they_were_counted() -> None:
    changed = dataclasses.replace(P0, is_changed=True)
    assert (changed.missing, changed.dropped) == (RecordCount(0, 10), None)
    counted = dataclasses.replace(changed, unmarked=2, tail=SourceTail(93, 3, 4, 100))
    assert (counted.missing, counted.dropped, counted.next_offset) == (RecordCount(3, 3), 4, 93)
    partly = dataclasses.replace(changed, tail=SourceTail(90, 3, 1, 94, "no more time"))
    assert (partly.missing, partly.dropped, partly.tail_note) == (RecordCount(3, 9), None, "no more time")
    unlocated = dataclasses.replace(changed, unmarked=2, tail=SourceTail(90, 0, 0, 90, "other transformations"))
    assert unlocated.missing == RecordCount(0, 8), "each record on the target has an offset of the source"
    done = dataclasses.replace(changed, end=90)
    assert (done.missing, done.dropped) == (RecordCount(0, 0), 0)


def test_the_sum_is_unknown_if_one_end_offset_is_unknown() -> None:
    assert REPORT.missing.exact == 10
    report = dataclasses.replace(REPORT, partitions=[P0, dataclasses.replace(P0, end=None)])
    assert report.missing == RecordCount(10, None)


def test_counts_are_printed_with_their_bounds() -> None:
    texts = [RecordCount(*bounds).of("record") for bounds in ((1, 1), (0, 0), (0, 1_000), (2, 3), (4, None))]
    assert texts == ["1 record", "0 records", "at most 1,000 records", "2 to 3 records", "at least 4 records"]
    assert [bool(RecordCount(*bounds)) for bounds in ((0, 0), (0, None), (0, 1), (1, None))] == [
        False,
        False,
        True,
        True,
    ]


@pytest.mark.parametrize(
    ("tail", "line"),
    [
        (SourceTail(92, 3, 5, 100), "t-0: offsets 92-99, 3 records to be copied and 5 to be dropped"),
        (SourceTail(99, 0, 1, 100), "t-0: offset 99, 0 records to be copied and 1 to be dropped"),
        (SourceTail(90, 2, 1, 93, "too slow"), "t-0: offsets 90-99, 2 to 9 records to be copied: too slow"),
        (
            None,
            "t-0: offsets 90-99, at most 10 records to be copied: which of them the transformations would drop is not known",
        ),
        (SourceTail(100, 0, 0, 100), None),
    ],
)
def test_the_range_on_the_source_shows_what_would_be_dropped(tail: SourceTail | None, line: str | None) -> None:
    out = io.StringIO()
    write_report(out, dataclasses.replace(REPORT, partitions=[dataclasses.replace(P0, is_changed=True, tail=tail)]))
    assert [text.strip() for text in out.getvalue().splitlines() if text.startswith("  t-0:")] == [line] * bool(line)


def test_seconds_at_risk_count_from_the_last_contact_with_an_unreachable_source() -> None:
    assert REPORT.seconds_at_risk == 15.0
    assert dataclasses.replace(REPORT, source_error="").seconds_at_risk is None
    assert dataclasses.replace(REPORT, last_contact_ms=None).seconds_at_risk is None


@pytest.mark.parametrize(
    ("unknown", "text"),
    [
        (range(0), "1 partition, on A only: {exact}10 records{known}"),
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
    exact = "at least " if error else ""
    assert text.format(exact=exact, known=known, uncounted=uncounted) in out.getvalue().splitlines()


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


def test_many_partitions_are_one_line_for_each_topic() -> None:
    missing = [dataclasses.replace(P0, partition=number) for number in range(COLLAPSED_ABOVE + 5)]
    copied = [dataclasses.replace(P0, topic="u", remote_topic="A.u", partition=number, end=90) for number in range(3)]
    out = io.StringIO()
    write_report(out, dataclasses.replace(REPORT, source_error="", partitions=[*missing, *copied]))
    lines = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    table = lines.index("TOPIC PARTITIONS WITH MISSING MISSING BY OTHERS REMOTE")
    assert lines[table + 1 : table + 4] == [
        "t 55 55 550 275 A.t",
        "u 3 0 0 15 A.u",
        "58 partitions, on A only: 550 records",
    ]
    assert sum("offsets 90-99" in line for line in lines) == COLLAPSED_ABOVE
    assert "and ranges of 5 more partitions: --topic or --json" in lines
