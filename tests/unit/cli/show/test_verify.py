"""Arguments and reports of `mm2 verify`, without a cluster."""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mm2.cli.common.flow import CommandError
from mm2.cli.common.tables import MOST_ROWS
from mm2.cli.mm2 import main
from mm2.cli.show.verify import _go_on, asked_for, bytes_of, write_report
from mm2.codec import encode
from mm2.copy.progress.ledger import Verified
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.structs import TopicPartition
from mm2.verify.comparing.findings import Difference, DifferenceKind, Findings
from mm2.verify.page import page
from mm2.verify.planning import Certainty, PartitionPlan
from mm2.verify.report import PartitionReport, Verdict, VerifyReport


def options(**given: object) -> argparse.Namespace:
    return argparse.Namespace(**{"topic": [], "since": None, "until": None, "offsets": [], **given})


def test_ranges_are_offsets_with_both_ends_or_times() -> None:
    asked = asked_for(options(offsets=["a.b-c-0=10..19", "t-7=5..", "t-8=..0"]))
    assert asked.offsets == {
        TopicPartition("a.b-c", 0): (10, 20),
        TopicPartition("t", 7): (5, None),
        TopicPartition("t", 8): (None, 1),
    }
    assert (asked.covers(TopicPartition("t", 7)), asked.covers(TopicPartition("t", 0))) == (True, False)
    times = asked_for(options(since="2026-11-21T20:00Z", until="1795291200001", topic=["t"]))
    assert (times.from_ms, times.to_ms) == (1_795_291_200_000, 1_795_291_200_001)
    assert (times.covers(TopicPartition("t", 3)), times.covers(TopicPartition("u", 3))) == (True, False)
    assert asked_for(options(topic=["t"])).is_everything


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"offsets": ["t=1..2"]}, "--offsets t=1..2: write TOPIC-PARTITION=FIRST..LAST, as in orders-0=1000..1999."),
        ({"offsets": ["t-0=5..4"]}, "--offsets t-0=5..4: the last offset is below the first."),
        ({"offsets": ["t-0=1..2", "t-0=5..6"]}, "--offsets t-0=5..6: t-0 is listed twice."),
        ({"since": "yesterday"}, "--from yesterday: neither a time as in 2026-11-20T15:00:00Z (ISO 8601) nor"),
        ({"until": "file:/etc/passwd"}, "--to file:/etc/passwd: neither a time"),
        ({"since": "2", "until": "1"}, "--to 1 is not after --from 2."),
        ({"since": "2", "offsets": ["t-0=1..2"]}, "--offsets cannot be combined with --from or --to"),
        ({"topic": ["t"], "offsets": ["t-0=1..2"]}, "--offsets contains the topics: omit --topic."),
    ],
)
def test_invalid_arguments_are_reported_in_one_sentence(given: dict[str, object], sentence: str) -> None:
    with pytest.raises(CommandError) as failure:
        asked_for(options(**given))
    assert str(failure.value).startswith(sentence)


def test_limits_are_numbers_with_a_unit() -> None:
    assert [bytes_of(text) for text in ("0", "500k", "20M", "1 G", "7")] == [0, 500_000, 20_000_000, 10**9, 7]
    for text in ("", "-1", "2T", "fast"):
        with pytest.raises(CommandError, match="as in 500k, 20M or 1G"):
            bytes_of(text)


def report_of(*differences: Difference, error: str = "") -> VerifyReport:
    findings = Findings(records=10, source_records=11, target_records=10, bytes=2_000_000, explained={"control": 2})
    for difference in differences:
        findings.differ(difference)
    plan = PartitionPlan("<script>", 0, "A.<script>", 0, 13, error=error, notes=["a & b"])
    return VerifyReport("A->B", 1_000, 2_000, 1, (PartitionReport.of(plan, findings),))


def test_the_worst_result_determines_the_exit_code() -> None:
    missing = Difference(DifferenceKind.MISSING, 3, None)
    assert report_of().verdict is Verdict.EQUAL
    assert report_of(error="no answer").verdict is Verdict.INCOMPLETE
    assert report_of(missing, error="no answer").verdict is Verdict.DIFFERENT


def test_adjacent_ranges_are_joined() -> None:
    rows = [Difference(DifferenceKind.MISSING, offset, None) for offset in (3, 4, 5, 7)]
    (partition,) = report_of(*rows).partitions
    assert partition.differences == (
        Difference(DifferenceKind.MISSING, 3, None, 3),
        Difference(DifferenceKind.MISSING, 7, None),
    )
    assert partition.counts == {"missing": 4}
    assert json.loads(json.dumps(encode(partition)))["listed"][0] == {
        "kind": "missing",
        "source_offset": 3,
        "target_offset": None,
        "records": 3,
        "detail": "",
    }


def test_text_and_json_report_the_same() -> None:
    out = StringIO()
    write_report(
        out,
        report_of(Difference(DifferenceKind.MISSING, 3, None, 2), Difference(DifferenceKind.EXTRA, None, 9)),
        brief=False,
    )
    assert out.getvalue().splitlines() == [
        "PARTITION   SOURCE OFFSETS  RECORDS  DIFFERENCES  VERDICT",
        "<script>-0            0-12       10            3  different",
        "<script>-0  a & b",
        "<script>-0  missing: source offset 3-4",
        "<script>-0  extra: target offset 9",
        (
            "A->B at 1970-01-01 00:00:02 UTC: different. 10 records of 1 partition are on both sides, they differ in extra 1, "
            "missing 2; explained: control 2. 2.0 MB read in 1.0 s."
        ),
    ]


def test_of_many_partitions_those_that_differ_come_first() -> None:
    (equal,), (different,) = report_of().partitions, report_of(Difference(DifferenceKind.MISSING, 3, None)).partitions
    rows = [replace(equal, topic=f"t{number:03}") for number in range(500)]
    rows[300] = replace(different, topic="t300")
    rows[400] = replace(equal, topic="t400", verdict=Verdict.INCOMPLETE, error="no answer")
    report = replace(report_of(), partitions=tuple(rows))
    out = StringIO()
    write_report(out, report, brief=False)
    lines = out.getvalue().splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["t300-0", "t400-0", "t000-0"]
    assert lines[1 + MOST_ROWS] == "… and 450 more partitions, all equal: --json or --html FILE"
    assert lines[-2] == "details of 450 more partitions: --json or --html FILE"
    assert "5,000 records of 500 partitions are on both sides, they differ in missing 1" in lines[-1]
    assert len(encode(report)["partitions"]) == 500


def test_a_page_escapes_texts_of_clusters_and_needs_no_other_files() -> None:
    shown = page(report_of(Difference(DifferenceKind.ALTERED_HEADERS, 3, 3, 1, "<b> is new")))
    assert "<script" not in shown
    assert "&lt;script&gt;-0" in shown
    assert "&lt;b&gt; is new" in shown
    assert "a &amp; b" in shown
    assert "://" not in shown
    assert 'class="different"' in shown
    assert '<th class="n">source offset</th>' in shown, "what stands above numbers ends where they end"


def test_a_page_starts_with_the_differences() -> None:
    equal, different = report_of(), report_of(Difference(DifferenceKind.MISSING, 3, None))
    shown = page(replace(equal, partitions=(*equal.partitions, *different.partitions)))
    assert re.findall(r'<td class="(equal|different)">', shown) == ["different", "equal"]


def test_nothing_after_a_difference_counts_as_verified() -> None:
    (clean,) = report_of().partitions
    first = clean.verified(5)
    assert first is not None
    assert (first.first, first.offset, first.checked, first.at_ms, first.records) == (0, 13, 13, 5, 10)
    (first_difference,) = report_of(Difference(DifferenceKind.MISSING, 3, None)).partitions
    later = replace(first_difference, before=first._replace(checked=2, offset=2)).verified(6)
    assert later is not None
    assert (later.offset, later.checked, later.records, later.differences) == (3, 13, 20, {"missing": 1})
    once_more = replace(clean, before=later._replace(checked=10)).verified(7)
    assert once_more is not None
    assert (once_more.offset, once_more.checked, once_more.differences) == (3, 13, {"missing": 1})
    assert replace(clean, before=first).verified(8) is None, "nothing new"
    (torn,) = report_of(error="no answer").partitions
    assert torn.verified(9) is None
    guessed = replace(clean, certainty=Certainty.CONTENT)
    assert guessed.verified(9) is None, "a comparison by content has no certain end"


def test_the_verified_offset_follows_a_rewound_flow_and_never_passes_a_difference() -> None:
    (clean,) = report_of().partitions
    before = Verified(0, 100, 100, 1, 90, {}, target=95)
    back = replace(clean, first=8, after=13, target_after=100, before=before).verified(2)
    assert back is not None
    assert (back.first, back.offset, back.checked, back.target, back.records) == (0, 13, 13, 100, 100)
    idle = replace(clean, after=13, target_after=95, before=before).verified(2)
    assert idle is not None, "its position is news, too"
    assert (idle.offset, idle.target) == (13, 95)
    first_difference = before._replace(offset=60, differences={"extra": 1})
    kept = replace(clean, after=200, target_after=300, before=first_difference).verified(3)
    assert kept is not None
    assert (kept.offset, kept.checked, kept.differences) == (60, 200, {"extra": 1})


def test_a_report_names_what_was_applied_to_the_source() -> None:
    report = replace(
        report_of(), changed_by=("transforms", "value.converter"), not_repeatable="Dice is not declared deterministic"
    )
    out = StringIO()
    write_report(out, report, brief=False)
    assert out.getvalue().splitlines()[3:5] == [
        "The source's records were changed by transforms, value.converter before they were compared.",
        "Differences may be due to this: Dice is not declared deterministic.",
    ]
    assert encode(report)["changed_by"] == ["transforms", "value.converter"]
    assert encode(report)["not_repeatable"] == "Dice is not declared deterministic"
    assert "transforms, value.converter; Dice is not declared deterministic" in page(report)
    assert (encode(report_of())["changed_by"], encode(report_of())["not_repeatable"]) == ([], "")
    assert "transforms" not in page(report_of())


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (
            "A->B.transforms.x.type = Nope\n",
            "mm2: Flow A->B: Class Nope of configuration transforms.x.type could not be found",
        ),
        ("A->B.transforms.x.type = RegexRouter\n", "mm2: Flow A->B: Missing required configuration"),
    ],
)
def test_transformations_that_cannot_be_used_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: str, sentence: str
) -> None:
    file = tmp_path / "mm2.properties"
    clusters = "clusters = A, B\nA.bootstrap.servers = a:1\nB.bootstrap.servers = b:1\nA->B.enabled = true\n"
    file.write_text(f"{clusters}A->B.transforms = x\n{lines}")
    assert main(["verify", str(file), "A->B"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(sentence)


class Rounds:
    """A verification with these results, and a stop request after the last one."""

    def __init__(self, *results: VerifyReport | KafkaFailure) -> None:
        self.results = list(results)

    def run(self, _asked: object, *, incremental: bool) -> VerifyReport:
        assert incremental
        result = self.results.pop(0)
        if isinstance(result, KafkaFailure):
            raise result
        return result

    def store_verified(self, _report: VerifyReport) -> None:
        pass

    def is_set(self) -> bool:
        return False

    def wait(self, _s: float) -> bool:
        return not self.results


@pytest.mark.parametrize(
    ("rounds", "code"),
    [
        (("equal",), 0),
        (("failure",), 2),
        (("failure", "equal"), 0),
        (("equal", "failure"), 2),
        (("incomplete", "equal"), 0),
        (("equal", "incomplete"), 2),
        (("different", "equal"), 1),
        (("different", "failure"), 1),
    ],
    ids=str,
)
def test_a_continuous_comparison_that_has_compared_nothing_does_not_end_well(
    rounds: tuple[str, ...], code: int
) -> None:
    results: dict[str, VerifyReport | KafkaFailure] = {
        "equal": report_of(),
        "different": report_of(Difference(DifferenceKind.MISSING, 3, None)),
        "incomplete": report_of(error="no answer"),
        "failure": KafkaFailure("B does not answer"),
    }
    verification: Any = Rounds(*(results[one] for one in rounds))
    given = options(every=0.0, html=None, json=False, output="table")
    assert _go_on(given, verification, asked_for(given), verification) == code


def test_a_page_that_cannot_be_written_loses_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The comparison may have taken hours."""
    stored: list[VerifyReport] = []
    done = SimpleNamespace(run=lambda *_: report_of(), store_verified=stored.append)
    monkeypatch.setattr("mm2.cli.show.verify.Verification", lambda *_, **__: done)
    monkeypatch.setattr("mm2.cli.show.verify.Verifier", lambda *_, **__: SimpleNamespace(stop=lambda: None))
    file = tmp_path / "mm2.properties"
    file.write_text("clusters = A, B\nA.bootstrap.servers = a:1\nB.bootstrap.servers = b:1\nA->B.enabled = true\n")
    page_file = tmp_path / "absent" / "page.html"
    assert main(["verify", str(file), "A->B", "--record", "--html", str(page_file)]) == 2
    out, err = capsys.readouterr()
    assert "A->B at 1970-01-01 00:00:02 UTC: equal. 10 records" in out
    assert f"--html {page_file}: No such file or directory." in err
    assert len(stored) == 1


def test_the_keys_of_json_are_those_that_scripts_know() -> None:
    missing = Difference(DifferenceKind.MISSING, 3, None)
    document = encode(replace(report_of(missing), ended_ms=2_345))
    assert " ".join(document) == (
        "flow verdict began seconds everything ranges changed_by not_repeatable records bytes_read explained "
        "differences partitions"
    )
    assert (document["began"], document["seconds"]) == ("1970-01-01 00:00:01 UTC", 1.3)
    (row,) = document["partitions"]
    assert " ".join(row) == (
        "topic partition remote_topic verdict first_offset last_offset certainty records source_records "
        "target_records bytes_read explained differences listed notes trouble"
    )
    assert (row["verdict"], row["first_offset"], row["last_offset"], row["differences"]) == (
        "different",
        0,
        12,
        {"missing": 1},
    )
