"""The report of failover commands: computed values, unknown values, and the printed text."""

from __future__ import annotations

import dataclasses
import io

import pytest

from mm2.cli.common.tables import COLLAPSED_ABOVE, MOST_ROWS
from mm2.cli.failover.evidence import write_report
from mm2.codec import encode
from mm2.failover.evidence import (
    FailoverReport,
    FoundBy,
    GroupEvidence,
    Outcome,
    PartitionEvidence,
    RecordCount,
    SourceTail,
    StartEvidence,
    target_problems,
)
from mm2.mirror.notes.kept_records import ForeignRun

P0 = PartitionEvidence("t", 0, "A.t", 90, 80, 100, None, 85)
REPORT = FailoverReport("failover", "A->B", False, 20_000, "connection refused", 5_000, [P0])


def test_counts_of_missing_records_and_of_records_from_other_producers() -> None:
    assert (P0.missing, P0.others) == (RecordCount(10, 10), 5)
    assert dataclasses.replace(P0, unmarked=4).missing.exact == 6, "the target has records after the ledger's position"
    assert dataclasses.replace(P0, end=80).missing.exact == 0, "the known end offset is older than the position"
    assert dataclasses.replace(P0, end=None).missing == RecordCount(0, None)
    assert dataclasses.replace(P0, end_ms=5_000, is_end_current=False).missing == RecordCount(10, None), (
        "the source may have received more since"
    )
    assert dataclasses.replace(P0, end_ms=5_000, is_end_current=False, is_changed=True).missing == RecordCount(0, None)
    assert dataclasses.replace(P0, is_end_current=False).missing == RecordCount(10, None), "nor is it known when"
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
    assert "and ranges of 5 more partitions: --dry-run --output wide" in lines


def printed(report: FailoverReport, *, wide: bool = False) -> list[str]:
    out = io.StringIO()
    write_report(out, report, wide=wide)
    return [" ".join(line.split()) for line in out.getvalue().splitlines()]


def copied_topics(count: int) -> list[PartitionEvidence]:
    """Topics of one partition each, with all records on the target, and stopped by a promotion."""
    return [
        dataclasses.replace(P0, topic=f"t{number:03}", remote_topic=f"A.t{number:03}", end=90, state="PAUSED")
        for number in range(count)
    ]


def test_a_topic_of_which_the_target_has_lost_records_is_never_collapsed() -> None:
    rows = copied_topics(200)
    rows[150] = dataclasses.replace(rows[150], target_error="there is no A.t150-0")
    lines = printed(dataclasses.replace(REPORT, source_error="", partitions=rows))
    table = lines.index("TOPIC PARTITIONS WITH MISSING MISSING BY OTHERS REMOTE")
    assert lines[table + 1].startswith("t150 1 0 at least 0 ")
    assert target_problems("B", rows) == [
        "B does not have all records that were copied to it, in 1 partition, first t150-0: there is no A.t150-0"
    ]


@pytest.mark.parametrize(("error", "well"), [("", "0"), ("connection refused", "at least 0")])
def test_of_many_topics_those_with_missing_records_come_first(error: str, well: str) -> None:
    end_ms = 5_000 if error else None
    rows = [dataclasses.replace(one, end_ms=end_ms, is_end_current=not error) for one in copied_topics(500)]
    rows[300] = dataclasses.replace(rows[300], end=95)
    rows[400] = dataclasses.replace(rows[400], end=100)
    rows[450] = dataclasses.replace(rows[450], state="TOO_LARGE")
    rows[499] = dataclasses.replace(rows[499], end=None, end_ms=None)
    lines = printed(dataclasses.replace(REPORT, source_error=error, partitions=rows))
    table = lines.index("TOPIC PARTITIONS WITH MISSING MISSING BY OTHERS REMOTE")
    assert [line.split()[0] for line in lines[table + 1 : table + 6]] == ["t400", "t300", "t499", "t450", "t000"]
    assert lines[table + 1 + MOST_ROWS] == (
        f"… and 450 more topics, all with MISSING {well}, and none in an error state: --dry-run --output wide"
    )
    assert lines[table + 2 + MOST_ROWS].startswith("500 partitions, on A only: at least 15 records")


def test_of_many_offsets_of_groups_those_that_were_not_committed_come_first() -> None:
    group = GroupEvidence("g", "t", 0, "A.t", 70, "source", 60, FoundBy.EXACT, 50, 60, Outcome.WRITTEN)
    rows = [dataclasses.replace(group, partition=number) for number in range(200)]
    rows[150] = dataclasses.replace(rows[150], outcome=Outcome.IN_USE)
    rows[160] = dataclasses.replace(rows[160], outcome=Outcome.FAILED)
    rows[170] = dataclasses.replace(rows[170], outcome=Outcome.ALREADY_COMMITTED)
    problems = [f"failure {number}" for number in range(60)]
    report = dataclasses.replace(REPORT, groups=rows, problems=problems)
    lines = printed(report)
    shown = [line.split()[1] for line in lines if line.startswith("g A.t-")]
    assert (shown[:3], len(shown)) == (["A.t-160", "A.t-150", "A.t-0"], MOST_ROWS)
    assert "… and 150 more offsets of groups, all there already or written: --dry-run --output wide" in lines
    assert lines[-2:] == ["NOT DONE: failure 49", "NOT DONE: and 10 more: --dry-run --output wide"]
    complete = printed(report, wide=True)
    assert (sum(line.startswith("g A.t-") for line in complete), complete[-1]) == (200, "NOT DONE: failure 59")


def test_of_many_start_offsets_those_that_were_not_read_back_come_first() -> None:
    starts = [StartEvidence(f"t{number:03}", 0, 90, None, number != 80) for number in range(100)]
    lines = printed(dataclasses.replace(REPORT, starts=starts))
    table = lines.index("B->A BEGINS WITH AT BEFORE READ BACK")
    assert lines[table + 1] == "t080-0 90 - no"
    assert lines[table + 1 + MOST_ROWS] == "… and 50 more partitions, all read back: --dry-run --output wide"


def test_wide_output_and_json_have_all_partitions() -> None:
    report = dataclasses.replace(REPORT, source_error="", partitions=copied_topics(500))
    assert sum(line.startswith("t") for line in printed(report, wide=True)) == 500
    assert len(encode(report)["partitions"]) == 500


def test_the_keys_of_json_are_those_that_scripts_know() -> None:
    document = encode(dataclasses.replace(REPORT, source_error="refused", last_contact_ms=REPORT.at_ms - 1_500))
    assert " ".join(document) == (
        "verb flow dry_run at_ms source_answers source_trouble last_sign_of_source_ms seconds_at_risk "
        "records_at_risk records_at_risk_at_least records_at_risk_at_most partitions groups starts acls divergent "
        "notes done problems advice way_back well"
    )
    assert (document["source_answers"], document["source_trouble"], document["seconds_at_risk"]) == (
        False,
        "refused",
        1.5,
    )
    one = PartitionEvidence("t", 0, "A.t", 10, 12, end=30, foreign_on_source=(ForeignRun(1, 3, 2),))
    row = encode(one)
    assert " ".join(row) == (
        "topic partition remote_topic copied_up_to source_end source_end_known_at_ms source_end_trouble "
        "source_log_trouble target_trouble deleted_on_source missing missing_at_least missing_at_most to_be_dropped "
        "target_offset target_end others foreign_on_source foreign_on_target unmarked state note"
    )
    assert (row["copied_up_to"], row["missing"], row["missing_at_most"], row["others"]) == (10, 22, 22, None)
    assert row["foreign_on_source"] == [{"first": 1, "last": 2, "records": 2}]
