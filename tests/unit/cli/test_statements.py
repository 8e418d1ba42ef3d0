"""Each statement and each metric, with its evidence and with a part of it taken away."""

from __future__ import annotations

import dataclasses
import io
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import pytest

from mm2.cli import statements
from mm2.cli.common.flow import ConfiguredFlow
from mm2.cli.common.tables import COLLAPSED_ABOVE
from mm2.cli.failover import evidence as failover_output
from mm2.cli.show import gaps, heartbeats, plan, topics, verify
from mm2.config.mirrormaker import SourceAndTarget
from mm2.copy.progress.session import LedgerEntry, Mark
from mm2.copy.states import PartitionState
from mm2.evidence import READ, STATEMENTS, Evidence, Statement
from mm2.failover.evidence import FailoverReport, PartitionEvidence
from mm2.kafka.errors import BrokerFailure
from mm2.metrics.flows import FLOW_METRICS
from mm2.metrics.metric import Sheet
from mm2.mirror.plan.preview import Preview
from mm2.observer.flow_state import FlowInputs, looked_at, summary_of
from mm2.observer.partitions import Partitions
from mm2.observer.shown.collector import SnapshotMetrics
from mm2.observer.shown.shapes import flow_json
from mm2.observer.shown.topics import topic_view
from mm2.observer.views import (
    CertificateView,
    ConnectorView,
    EvidenceView,
    FlowState,
    FlowView,
    GroupView,
    HeartbeatView,
    PartitionView,
    Risk,
    Snapshot,
    SparkView,
    TaskView,
)
from mm2.observer.work import Work
from mm2.reasons import MoveCode, OffsetReasonCode
from mm2.ui.views import flows as flows_page
from mm2.ui.views import gaps as gaps_page
from mm2.ui.views import groups as groups_page
from mm2.ui.views import partitions as partitions_page
from mm2.ui.views import topics as topics_page
from mm2.verify.page import page as verify_page
from mm2.verify.planning import Certainty
from mm2.verify.report import PartitionReport, Verdict, VerifyReport
from tests.unit.cli.show.test_groups import GROUP
from tests.unit.cli.show.test_groups import run as run_groups

ROOT: Final = Path(__file__).parents[3]
DENIED: Final = BrokerFailure.of(29, subject="A.t")
PARTITION: Final = PartitionView("t", 0, "A.t", PartitionState.RUNNING)


def written(write: Callable[..., None], *arguments: Any, **more: Any) -> str:
    out = io.StringIO()
    write(out, *arguments, **more)
    return out.getvalue()


def flow(*missing: Evidence, **more: Any) -> FlowView:
    evidence = tuple(EvidenceView(what, None if what in missing else 1_700_000_000_000) for what in Evidence)
    return FlowView("A", "B", FlowState.RUNNING, "", **{"risk": Risk(0.0, 0, 0), "evidence": evidence, **more})


def unread(*kinds: Evidence, is_known: bool) -> tuple[Evidence, ...]:
    return () if is_known else kinds


def sentence(risk: Risk, *, uncompared: int = 0, seen: bool = True, **more: Any) -> str:
    return summary_of(FlowInputs("A", "B", seen, Partitions(risk=risk, uncompared=uncompared), **more))


def idle(unread_work: str) -> str:
    work = Work(idle_reason="" if unread_work else "no worker is in the flow's group")
    return sentence(risk_without(True), work=work, unread_work=unread_work)


def gaps_output(*, has_entry: bool, is_read: bool = True) -> str:
    entry = LedgerEntry("t", 0, "A.t", Mark(10, 10, 10))
    found = [gaps.PartitionGaps(entry, (), None if is_read else DENIED)] if has_entry else []
    return written(gaps.write_gaps, ConfiguredFlow(SourceAndTarget("A", "B"), {}), found, {}, 0)


def verified(records: int) -> VerifyReport:
    row = PartitionReport("t", 0, "A.t", Verdict.EQUAL, 0, 10, Certainty.CONTENT, records)
    return VerifyReport("A->B", 0, 1, 1, (row,))


def failover(partitions: int, *, is_known: bool) -> str:
    rows = [PartitionEvidence(f"t{n}", 0, f"A.t{n}", 10, 10, 10, is_end_current=is_known) for n in range(partitions)]
    report = FailoverReport("failover", "A->B", True, 0, "" if is_known else "refused", partitions=rows)
    return written(failover_output.write_report, report)


def preview(*, is_known: bool) -> str:
    return written(plan.write_preview, Preview("A->B", (), (), (), (), () if is_known else ("A",)))


def group(moved: MoveCode | None = MoveCode.CONTINUES, translated: int | None = 5) -> GroupView:
    return GroupView("g", "t", 0, "A.t", 5, translated, 5, if_moved=moved)


def groups_lead(is_known: bool, *views: GroupView) -> str:
    return groups_page.lead([flow(groups=views, groups_error="" if is_known else "not authorized")])


def differences(*, is_known: bool) -> str:
    view, error = topic_view("t", [PARTITION]), "" if is_known else "not authorized"
    return written(topics.write_differences, flow(), view, [] if is_known else None, error)


def topic_list(*, is_known: bool) -> str:
    snapshot = Snapshot(0, "1", (flow(*unread(Evidence.WORKERS, is_known=is_known)),))
    return written(topics.write_topics, [], with_flow=False, wide=False, why=topics.unread_evidence(snapshot))


def fresh(*, is_known: bool) -> str:
    row = {"topic": "heartbeats", "source": "A", "target": "B", "hops": 0, "age_ms": 5}
    return " ".join(heartbeats.cells_of("B", row | {"verdict": "fresh" if is_known else heartbeats.UNPROVEN}))


def health(*missing: Evidence) -> str:
    view = flow(*missing, partitions=[PARTITION], states={PartitionState.RUNNING: 1})
    rows = [(view.name, topic_view("t", [PARTITION]))]
    return partitions_page.lead([view]) + topics_page.lead(rows, [view])


def risk_without(is_known: bool) -> Risk:
    return Risk(0.0, 0, 0) if is_known else Risk(None, None, None, 0)


#: What a person sees, by the name of the statement; its argument: whether all of the evidence was read.
CASES: Final[Mapping[str, Callable[[bool], str]]] = {
    "IDLE": lambda known: idle("" if known else "denied"),
    "RISK": lambda known: sentence(Risk(0.0, 0, 0) if known else Risk(), seen=known),
    "NO_LAG": lambda known: sentence(risk_without(known)),
    "LAG": lambda known: sentence(Risk(1.0, 7, 0) if known else Risk(None, None, None, 7, 1.0)),
    "UNCOMPARED": lambda known: sentence(
        risk_without(known), uncompared=0 if known else 3, uncompared_why="" if known else "not authorized"
    ),
    "NOT_COPIED_BACK": lambda known: sentence(risk_without(True), came_back=0 if known else 3),
    "LOOKED_AT": lambda known: looked_at(flow(*unread(Evidence.TARGET_LOGS, is_known=known))),
    "HEALTHY": lambda known: health(*unread(Evidence.TARGET_LOGS, is_known=known)),
    "GAPS": lambda known: gaps_output(has_entry=True, is_read=known),
    "NO_GAP": lambda known: gaps_output(has_entry=known),
    "NO_LOSS": lambda known: gaps_page.lead([flow(is_ledger_read=known)]),
    "NO_REASON": lambda known: gaps_page.nothing([flow(is_ledger_read=known)]),
    "VERIFIED": lambda known: written(verify.write_report, verified(10 if known else 0)),
    "VERIFIED_PAGE": lambda known: verify_page(verified(10 if known else 0)),
    "NO_GROUPS": groups_lead,
    "TRANSLATED": lambda known: groups_lead(True, group(translated=5 if known else None)),
    "CONTINUES": lambda known: groups_lead(True, group(MoveCode.CONTINUES if known else None)),
    "CONFIGS_EQUAL": lambda known: differences(is_known=known),
    "NO_TOPICS": lambda known: topic_list(is_known=known),
    "NO_STEPS": lambda known: preview(is_known=known),
    "NO_PROBLEM": lambda known: preview(is_known=known),
    "HEARTBEATS": lambda known: flows_page.beats_text(flow(*unread(Evidence.HEARTBEATS, is_known=known)), []),
    "FRESH": lambda known: fresh(is_known=known),
    "LEFT": lambda known: failover(1, is_known=known),
    "MISSING_ZERO": lambda known: failover(COLLAPSED_ABOVE + 1, is_known=known),
}


def test_every_statement_has_a_case() -> None:
    """That of `mm2 groups` is a test of its own."""
    assert CASES.keys() | {"NO_GROUP_REASON"} == STATEMENTS.keys()
    assert READ.keys() == set(Evidence)


def pattern(text: str) -> re.Pattern[str]:
    literal = re.escape(text).replace(r"\{", "{").replace(r"\}", "}")
    return re.compile(re.sub(r"\{\w+\}", ".+", literal), re.DOTALL)


def check(statement: Statement, known: str, unknown: str) -> None:
    """A statement of which only figures differ is compared by the words of the other one."""
    assert pattern(statement.text).search(known), known
    assert pattern(statement.without).search(unknown), unknown
    assert not pattern(statement.without).search(known), known
    if re.sub(r"\{\w+\}", "", statement.text) and statement.text not in statement.without:
        assert not pattern(statement.text).search(unknown), unknown


@pytest.mark.parametrize("name", CASES)
def test_a_statement_without_its_evidence_is_not_made(name: str) -> None:
    check(STATEMENTS[name], CASES[name](True), CASES[name](False))


def test_groups_without_their_offsets_are_not_reported_as_complete(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mm2.properties"
    file.write_text("clusters = A, B\nA.bootstrap.servers = a:1\nB.bootstrap.servers = b:1\nA->B.enabled = true\n")
    texts = []
    for error in ("", "not authorized"):
        run_groups(monkeypatch, file, GROUP, groups_error=error)
        texts.append("".join(capsys.readouterr()))
    check(STATEMENTS["NO_GROUP_REASON"], *texts)


def test_the_dashboard_shows_what_was_read_unless_all_of_it_is_current() -> None:
    now_ms = 1_700_000_000_000
    assert not flows_page.observed_text(now_ms + 5_000, flow())
    late = flows_page.observed_text(now_ms + 60_000, flow(Evidence.TARGET_LOGS))
    assert late == "looked at: logs of A 22:13:20 UTC, ledger on B 22:13:20 UTC; not read: logs of B"


# -- metrics -----------------------------------------------------------------------------------------------------------


def full_flow(*missing: Evidence) -> FlowView:
    """A flow with a value of each metric."""
    partition = PartitionView(
        "t",
        0,
        "A.t",
        PartitionState.RUNNING,
        "",
        None,
        5,
        9,
        5,
        4,
        40,
        1.0,
        1.0,
        10.0,
        task=0,
        verified_offset=5,
        unfilled=3,
        records=5,
        bytes=50,
    )
    task = TaskView(0, "RUNNING", "w")
    group = GroupView("g", "t", 0, "A.t", 5, 5, 5, "no topic", OffsetReasonCode.NO_TOPIC, 4, 0)
    return flow(
        *missing,
        risk=Risk(1.0, 4, 40),
        observed_ms=1,
        states={PartitionState.RUNNING: 1},
        partitions=(partition,),
        groups=(group,),
        heartbeats=(HeartbeatView("heartbeats", "A", "B", (), 5),),
        connectors=(ConnectorView("MirrorSourceConnector", "source", "RUNNING", "w", tasks=(task,)),),
        gaps={"control": 1},
        filled={"markers": 1},
        micro_batches={0: 1},
        differences={"missing": 1},
        verified_records=1,
    )


def samples(view: FlowView) -> set[str]:
    sheet = Sheet()
    certificate = CertificateView("A", "B", "A", "a.pem", 1)
    spark = SparkView(True)
    SnapshotMetrics(lambda: Snapshot(0, "1", (view,), spark, certificates=(certificate,)))(sheet)
    return {family.name for family in sheet.families()}


#: Of the process, not of a flow; and the histogram, which begins with the first batch.
_OF_PROCESS: Final = frozenset(
    {
        "mm2_build_info",
        "mm2_spark_up",
        "mm2_config_reloads_total",
        "mm2_certificate_expiry_timestamp_seconds",
        "mm2_copy_latency_seconds",
    }
)


@pytest.mark.parametrize("metric", FLOW_METRICS, ids=lambda metric: metric.name)
def test_a_metric_without_its_evidence_has_no_series(metric: Any) -> None:
    name = metric.name.removesuffix("_total")
    if metric.name != "mm2_copy_latency_seconds":
        assert name in samples(full_flow())
    if metric.name in _OF_PROCESS:
        assert metric.evidence == (Evidence.PROCESS,)
        return
    for what in metric.evidence:
        assert name not in samples(full_flow(what)), what
    if metric.name == "mm2_flow_cluster_up":
        assert name not in samples(full_flow(*Evidence)), "neither answered nor failed"


@pytest.mark.parametrize("name", [one.name for one in fields(FlowView) if one.metadata])
def test_a_field_without_its_evidence_is_null(name: str) -> None:
    (known,) = (one for one in fields(FlowView) if one.name == name)
    assert flow_json(full_flow())[name] is not None
    for what in known.metadata["evidence"]:
        assert flow_json(full_flow(what))[name] is None, what


def test_the_page_is_generated_from_the_statements() -> None:
    is_same = (ROOT / "docs/reference/statements.md").read_text(encoding="utf-8") == statements.page()
    assert is_same, "python -m mm2.cli.statements > docs/reference/statements.md"


def test_what_was_not_read_is_shown_with_the_reason() -> None:
    evidence = (
        EvidenceView(Evidence.SOURCE_LOGS, 1_700_000_000_000),
        EvidenceView(Evidence.GROUPS, None, "Topic t: not authorized."),
        EvidenceView(Evidence.HEARTBEATS),
        EvidenceView(Evidence.WORKERS, None, "Topic t: not authorized."),
    )
    assert looked_at(dataclasses.replace(flow(), evidence=evidence)) == (
        "looked at: logs of A 22:13:20 UTC; not read: groups on both clusters, workers of the flow (Topic t: not authorized); "
        "heartbeats on B"
    )
