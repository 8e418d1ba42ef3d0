"""The worst entries come first, and states can be distinguished without colours."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from mm2.copy.progress.segments import INTENDED
from mm2.copy.states import HEALTHY, PartitionState
from mm2.evidence import Evidence
from mm2.observer.views import (
    CertificateView,
    ConnectorView,
    EvidenceView,
    FlowState,
    FlowView,
    GroupView,
    LaneView,
    PartitionView,
    Risk,
    Snapshot,
    TaskView,
)
from mm2.ui.elements.listing import Query
from mm2.ui.elements.parts import TONES, rank_of
from mm2.ui.views import gaps as gaps_page
from mm2.ui.views import groups as groups_page
from mm2.ui.views import topic as topic_page
from mm2.ui.views.connectors import failures
from mm2.ui.views.flows import worst_first
from mm2.ui.views.gaps import GAPS, MEANINGS
from mm2.ui.views.groups import GROUPS
from mm2.ui.views.partitions import PARTITIONS, lead
from mm2.ui.views.partitions import row_of as partition_row
from mm2.ui.views.spark import blocked_first
from mm2.ui.views.workers import certificates


def flow(state: FlowState = FlowState.RUNNING, **more: object) -> FlowView:
    evidence = tuple(EvidenceView(what, 1) for what in Evidence)
    return FlowView("A", "B", state, "", Risk(), **{"evidence": evidence, **more})  # type: ignore[arg-type]


def partition(number: int, state: PartitionState = PartitionState.RUNNING, **more: object) -> PartitionView:
    return PartitionView("t", number, "A.t", state, **more)  # type: ignore[arg-type]


def shown(snapshot: Snapshot, query: Query | None = None) -> list[int]:
    return [view.partition for _, view in PARTITIONS.select(snapshot, query or Query())]


def test_unhealthy_partitions_come_first_in_a_stable_order() -> None:
    states = (
        PartitionState.RUNNING,
        PartitionState.CATCHING_UP,
        PartitionState.PAUSED,
        PartitionState.RUNNING,
        PartitionState.TOO_LARGE,
        PartitionState.THROTTLED,
    )
    snapshot = Snapshot(0, "1", (flow(partitions=[partition(n, state) for n, state in enumerate(states)]),))
    assert shown(snapshot) == [4, 5, 2, 1, 0, 3]
    assert shown(snapshot, Query().sorted_by("state"))[:3] == [
        4,
        5,
        2,
    ]  # the order of the first click on the column head


def test_a_lag_that_may_be_larger_is_marked() -> None:
    cells = partition_row(("A->B", partition(0, lag_records=7, is_lag_exact=False))).cells
    assert [cell for cell in cells if cell in ("7", "at least 7")] == ["at least 7"]


def test_data_of_an_unreachable_cluster_is_reported_as_stale() -> None:
    here = flow(states={PartitionState.RUNNING: 2, PartitionState.TOO_LARGE: 1}, source_error="it cannot be reached")
    stale = "A does not respond: the data of A->B is stale."
    assert lead([here, flow(states={PartitionState.RUNNING: 4})]) == f"7 partitions, 1 unhealthy. {stale}"
    assert lead([flow(states={PartitionState.RUNNING: 4})]) == "4 partitions, all healthy."
    assert lead([flow(source_error="it cannot be reached")]) == f"0 partitions. {stale}", "of which nothing is known"


def test_losses_are_not_denied_before_the_ledger_was_read() -> None:
    """And those that are known are of the last answer of the target."""
    first, unread = "Offsets of the source without a record on the target, and why.", flow(is_ledger_read=False)
    unknown = "The ledger of A->B has not been read yet: nothing is known of this flow."
    assert gaps_page.lead([flow()]) == f"{first} No lost range is in the ledgers."
    assert gaps_page.lead([unread]) == f"{first} {unknown}"
    assert gaps_page.lead([flow(), unread]) == f"{first} No lost range is in the ledgers. {unknown}"
    assert gaps_page.lead([flow(lost_ranges=2), unread]) == (
        f"{first} Lost: 2 ranges that the source had deleted. {unknown}"
    )
    stale = "B does not respond: the data of A->B is stale."
    lost = "B does not have all records of A->B that were copied to it, in 2 partitions: see Partitions."
    assert gaps_page.lead([flow(target_losses=2)]) == f"{first} {lost}", "not: no lost range"
    assert gaps_page.lead([flow(target_error="timed out")]) == f"{first} No lost range is in the ledgers. {stale}"


@pytest.mark.parametrize(
    ("lag", "is_exact", "state", "tone"),
    [
        (0, True, PartitionState.RUNNING, "ok s0"),
        (7, True, PartitionState.RUNNING, "ok s1"),
        (7, False, PartitionState.RUNNING, "ok s1"),
        (0, False, PartitionState.RUNNING, "unknown s0"),
        (None, True, PartitionState.CATCHING_UP, "unknown s0"),
        (None, False, PartitionState.LOST_RANGE, "bad s0"),
    ],
)
def test_an_unknown_lag_is_not_drawn_as_none(lag: int | None, is_exact: bool, state: PartitionState, tone: str) -> None:
    view = partition(3, state, lag_records=lag, is_lag_exact=is_exact)
    assert topic_page.mark_of(view) == f'<i class="{tone}" title="3: {state}"></i>'


def test_groups_without_a_translated_offset_come_first() -> None:
    groups = (
        GroupView("a", "t", 0, "A.t", 5, 5, 5),
        GroupView("b", "t", 0, "A.t", 5, 5, None, "it is in use"),
        GroupView("c", "t", 0, "A.t", 5, None, None, "no offset sync yet"),
    )
    found = GROUPS.select(Snapshot(0, "1", (flow(groups=groups),)), Query())
    assert [view.group for _, view in found] == ["c", "b", "a"]


def test_the_filter_of_groups_is_about_translation() -> None:
    """A translated offset may not be on the target: only failover and the sync of group offsets commit it there."""
    groups = (GroupView("a", "t", 0, "A.t", 5, 5, None), GroupView("b", "t", 0, "A.t", 5, None, 3))
    (kind,) = (kind for kind, label in groups_page.KINDS.items() if label == "Not translated yet")
    found = GROUPS.select(Snapshot(0, "1", (flow(groups=groups),)), Query(kind=kind))
    assert [view.group for _, view in found] == ["b"]


def test_the_groups_page_reports_what_is_not_known() -> None:
    nothing = "No consumer group has a checkpoint of A->B, or a reason in the ledger why it has none."
    assert groups_page.lead([flow()]) == nothing
    denied = "Not all offsets of groups of A->B are known: not authorized."
    assert groups_page.lead([flow(groups_error="not authorized.")]) == denied
    one = (GroupView("a", "t", 0, "A.t", 5, 5, 5),)
    known, stale = groups_page.lead([flow(groups=one)]), "offsets of groups of A->B on A are those of its last answer."
    assert known.startswith("1 group with 1 committed offset; all have a checkpoint.")
    assert groups_page.lead([flow(groups=one, source_error="timed out")]) == f"{known} A does not respond: {stale}"


def test_missing_records_come_before_expected_gaps() -> None:
    partitions = (
        partition(0, gaps={"control": 900}),
        partition(1, gaps={"quarantined": 3}),
        partition(2, gaps={"retention": 5}, lost_ranges=1),
        partition(3, gaps={"retention": 0}),
        partition(4, foreign_records=2),
    )
    found = GAPS.select(Snapshot(0, "1", (flow(partitions=partitions),)), Query())
    assert [view.partition for _, view in found] == [2, 1, 4, 0]


def test_blocked_lanes_come_first() -> None:
    lanes = [LaneView(f"lane {n}", 0, 1, None, 0, 1, error) for n, error in enumerate(("", "no slot", "", "no way"))]
    assert [lane.name for lane in blocked_first(lanes)] == ["lane 1", "lane 3", "lane 0", "lane 2"]


def test_the_worst_flow_comes_first() -> None:
    flows = [flow(state) for state in FlowState]
    assert [one.state for one in worst_first(flows)] == [
        "STOPPED",
        "DEGRADED",
        "UNKNOWN",
        "NO_TOPICS",
        "PAUSED",
        "CATCHING_UP",
        "RUNNING",
    ]


def test_failed_connectors_and_tasks_are_listed() -> None:
    tasks = (TaskView(0, "RUNNING", "w"), TaskView(1, "FAILED", "w", "no"))
    running = ConnectorView("MirrorSourceConnector", "source", "RUNNING", "w", tasks=tasks)
    assert failures(flow(), running) == ["Task 1 of MirrorSourceConnector of A->B has failed"]
    assert failures(flow(), ConnectorView("Sink", "sink", "FAILED", "w")) == ["Sink of A->B has failed"]


def test_certificates_are_sorted_by_expiry_date() -> None:
    day_ms, at_ms = 86_400_000, 1_795_327_951_000
    snapshot = Snapshot(
        at_ms,
        "1",
        (),
        certificates=(
            CertificateView("A", "B", "B", "mm2.pem", at_ms + 40 * day_ms),
            CertificateView("", "", "", "rest.p12", at_ms + 2 * day_ms, "half a file"),
            CertificateView("A", "B", "A", "old.pem", at_ms - 1),
        ),
    )
    assert [tuple(row.cells) for row in certificates(snapshot)] == [
        ("old.pem", "cluster A", "A->B", "2026-11-22 06:12:30 UTC", "expired", ""),
        (
            "rest.p12",
            "listeners of this process",
            "",
            "2026-11-24 06:12:31 UTC",
            "2 d",
            "replaced, but not in use: half a file",
        ),
        ("mm2.pem", "cluster B", "A->B", "2027-01-01 06:12:31 UTC", "40 d", ""),
    ]


@pytest.mark.parametrize("state", [*FlowState, *PartitionState, *MEANINGS])
def test_every_state_and_reason_has_a_tone(state: str) -> None:
    assert state in TONES
    assert (rank_of(state) > rank_of("CATCHING_UP")) == (state in {"RUNNING", *INTENDED})
    if isinstance(state, PartitionState):
        assert (TONES[state] in {"ok", "busy"}) == (state in HEALTHY)


def test_stopped_and_degraded_flows_have_alarming_tones() -> None:
    assert (TONES[FlowState.STOPPED], TONES[FlowState.DEGRADED]) == (
        "critical",
        "bad",
    )  # unlike the STOPPED of a connector


def test_no_two_tones_have_the_same_shape() -> None:
    style = files("mm2.ui").joinpath("dashboard.css").read_text("utf-8")
    shapes = {tone: re.findall(rf"\.state\.{tone}::before {{ ([^}}]+) }}", style) for tone in set(TONES.values())}
    assert len({tuple(shape) for shape in shapes.values()}) == len(shapes), shapes
