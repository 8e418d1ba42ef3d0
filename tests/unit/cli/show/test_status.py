"""Output of `mm2 status` for a snapshot."""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
from typing import Any

import pytest
from rich.console import Console

from mm2.cli.common.flow import CommandError
from mm2.cli.common.output import write_document
from mm2.cli.common.tables import COLLAPSED_ABOVE, MOST_ROWS
from mm2.cli.show.status import _coloured, _flow_blocks, document, exit_code, selected
from mm2.config.definitions.java_regex import compile_java
from mm2.copy.states import PartitionState
from mm2.evidence import Evidence
from mm2.observer.views import (
    ConnectorView,
    EvidenceView,
    FlowState,
    FlowView,
    LossView,
    PartitionView,
    Risk,
    Snapshot,
    TaskView,
)

HEALTHY = PartitionView(
    "orders",
    0,
    "A.orders",
    PartitionState.RUNNING,
    position=1200,
    source_end=1200,
    target_offset=1190,
    lag_records=0,
    lag_seconds=0.0,
    bytes_per_s=2500.7,
    verified_offset=1100,
)
TOO_LARGE = PartitionView(
    "orders", 1, "A.orders", PartitionState.TOO_LARGE, "A record is too large.", 1_700_000_000_000, position=9
)
LOST = LossView("orders", 0, 300, 899, "retention", 1_700_000_000_000)
NOTED = PartitionView("orders", 2, "A.orders", PartitionState.RUNNING, note="at least once")


#: What is read from outside of the process that runs the flow.
OUTSIDE = tuple(EvidenceView(what, 1_700_000_000_000) for what in Evidence if what is not Evidence.PROCESS)


def flow(state: FlowState = FlowState.RUNNING, **changes: Any) -> FlowView:
    base: dict[str, Any] = {
        "sentence": "If A dies now you lose nothing.",
        "risk": Risk(0.0, 0, 0),
        "partitions": (HEALTHY,),
    }
    return FlowView("A", "B", state, **{**base, **changes})


def snapshot(*flows: FlowView) -> Snapshot:
    return Snapshot(1_700_000_000_000, "0.1.0", flows)


def lines(*flows: FlowView, partitions: bool = True, by_topic: bool = True, wide: bool = False) -> list[str]:
    blocks = _flow_blocks(flows, partitions=partitions, by_topic=by_topic, wide=wide)
    return [" ".join(line.split()) for block in blocks for line in block.text.splitlines()]


def test_the_summary_comes_first_then_the_flow_then_its_partitions() -> None:
    assert lines(flow(bytes_per_s=2500.7)) == [
        "A->B RUNNING If A dies now you lose nothing.",
        "",
        "FLOW PARTITIONS UNHEALTHY LAG SECONDS BYTES BYTES/S LOST FOREIGN TASKS",
        "A->B 1 0 0 0.0 0 2,500 0 0 -",
        "",
        "PARTITION STATE POSITION SOURCE END LAG SECONDS TARGET OFFSET VERIFIED BYTES/S",
        "orders-0 RUNNING 1,200 1,200 0 0.0 1,190 1,100 2,500",
    ]
    assert len(lines(flow(), partitions=False)) == 4


def test_losses_are_unknown_before_the_ledger_was_read() -> None:
    """The target does not answer."""
    unread = flow(FlowState.DEGRADED, partitions=(), risk=Risk(), target_error="timed out", is_ledger_read=False)
    assert "A->B 0 0 - - - - - - -" in lines(unread)


def test_unhealthy_partitions_are_listed_with_their_reason_in_every_view() -> None:
    failed = ConnectorView(
        "MirrorSourceConnector",
        "source",
        "RUNNING",
        "w",
        tasks=(
            TaskView(0, "RUNNING", "w"),
            TaskView(1, "FAILED", "w", "Traceback (most recent call last):\n  at x\nConnectError: it broke"),
        ),
    )
    paused = ConnectorView("MirrorHeartbeatConnector", "source", "PAUSED", "w")
    one = flow(
        FlowState.DEGRADED,
        partitions=(HEALTHY, TOO_LARGE, NOTED),
        connectors=(failed, paused),
        troubles=("Something is slow.",),
        source_error="A does not answer.",
    )
    for partitions in (True, False):
        assert lines(one, partitions=partitions)[-6:] == [
            "A->B orders-1 TOO_LARGE since 2023-11-14 22:13:20 UTC: A record is too large.",
            "A->B orders-2 at least once",
            "A->B MirrorSourceConnector-1 FAILED: ConnectError: it broke",
            "A->B MirrorHeartbeatConnector PAUSED",
            "A->B Something is slow.",
            "A->B A does not answer.",
        ]
    assert "A->B 3 1 0 0.0 0 - 0 0 1 of 2 running" in lines(one)


@pytest.mark.parametrize(
    ("flows", "code"),
    [
        ([flow(), flow(FlowState.CATCHING_UP)], 0),
        ([flow(), flow(FlowState.PAUSED)], 1),
        ([flow(), flow(FlowState.NO_TOPICS)], 1),
        ([flow(FlowState.DEGRADED, source_error="unreachable")], 1),
        ([flow(FlowState.STOPPED)], 1),
        ([flow(), flow(losses=(LOST,))], 1),  # it is running, and lost records today
        ([flow(lost_ranges=3)], 0),  # and this was longer ago
        ([flow(target_error="unreachable", losses=(LOST,))], 2),
        ([flow(), flow(FlowState.UNKNOWN)], 2),
        ([flow(FlowState.DEGRADED, target_error="unreachable"), flow()], 2),
    ],
)
def test_the_exit_code_is_that_of_the_worst_flow(flows: list[FlowView], code: int) -> None:
    assert exit_code(snapshot(*flows)) == code


def test_json_has_every_field_of_the_snapshot() -> None:
    out = io.StringIO()
    shown = document(snapshot(flow(states={PartitionState.RUNNING: 1}, losses=(LOST,), evidence=OUTSIDE)))
    write_document(argparse.Namespace(), shown, out)
    reported = json.loads(out.getvalue())
    (one,) = reported["flows"]
    assert (reported["at_ms"], one["name"], one["state"], one["states"]) == (
        1_700_000_000_000,
        "A->B",
        "RUNNING",
        {"RUNNING": 1},
    )
    assert one["metric_formats"] == ["legacy"]
    assert [(lost["topic"], lost["first"], lost["last"], lost["reason"]) for lost in one["losses"]] == [
        ("orders", 300, 899, "retention")
    ]
    assert one["partitions"][0]["lag_seconds"] == 0.0
    assert one["partitions"][0]["verified_offset"] == 1100


def test_what_only_a_process_knows_is_null_in_json() -> None:
    """0 records would contradict `/overview` of the process, and the figure of the demo."""
    shown = document(snapshot(flow(evidence=OUTSIDE)))
    (one,) = shown["flows"]
    names = ["records", "bytes", "batches", "latency", "micro_batches", "lost_micro_batches", "failing_lanes", "filled"]
    names.append("moved_partitions")
    assert {name: one[name] for name in names} == dict.fromkeys(names)
    assert (one["partitions"][0]["records"], one["partitions"][0]["bytes"]) == (None, None)
    assert (shown["spark"], shown["reloads"], shown["certificates"]) == (None, None, None)
    assert one["gaps"] == {}, "read from the ledger"
    unread = tuple(read for read in OUTSIDE if read.what is not Evidence.LEDGER)
    (one,) = document(snapshot(flow(evidence=unread)))["flows"]
    assert (one["gaps"], one["lost_ranges"], one["connectors"]) == (None, None, ()), "0 would be a statement"


def many(count: int) -> tuple[PartitionView, ...]:
    """Partitions of two topics; the last one of `payments` is blocked, of unknown lag."""
    half = count // 2
    rows = [dataclasses.replace(HEALTHY, partition=number, lag_records=number) for number in range(count - half)]
    rows += [dataclasses.replace(HEALTHY, topic="payments", partition=number) for number in range(half - 1)]
    return (*rows, dataclasses.replace(TOO_LARGE, topic="payments", partition=half - 1))


def test_many_partitions_are_one_line_for_each_topic() -> None:
    printed = lines(flow(partitions=many(COLLAPSED_ABOVE + 1)))
    table = printed.index("TOPIC PARTITIONS UNHEALTHY LAG SECONDS BYTES/S STATES")
    assert printed[table + 1 : table + 5] == [
        "payments 25 1 - 0.0 - RUNNING 24, TOO_LARGE 1",
        "orders 26 0 325 0.0 65,018 RUNNING 26",
        "51 partitions of 2 topics; one by one: --topic",
        "A->B payments-24 TOO_LARGE since 2023-11-14 22:13:20 UTC: A record is too large.",
    ]
    assert any(line.startswith("PARTITION STATE") for line in lines(flow(partitions=many(COLLAPSED_ABOVE))))


def topics_of(*changed: PartitionView) -> FlowView:
    """500 topics with one partition each; those of ``changed`` replace them."""
    given = {one.topic: one for one in changed}
    names = [f"t{number:03}" for number in range(500)]
    rows = [given.get(name) or dataclasses.replace(HEALTHY, topic=name) for name in names]
    return flow(partitions=tuple(rows), risk=Risk(1.0, 700, 0))


def test_of_many_topics_those_that_need_attention_come_first() -> None:
    """Blocked, paused, of unknown lag, and with lag; the sums count all topics, also those that are not shown."""
    changed = [
        dataclasses.replace(HEALTHY, topic="t100", lag_records=7),
        dataclasses.replace(HEALTHY, topic="t200", lag_records=700),
        dataclasses.replace(HEALTHY, topic="t300", lag_records=None),
        dataclasses.replace(HEALTHY, topic="t400", state=PartitionState.PAUSED),
        dataclasses.replace(TOO_LARGE, topic="t499"),
    ]
    printed = lines(topics_of(*changed))
    assert "A->B 500 1 700 1.0 0 - 0 0 -" in printed, "a paused partition is not unhealthy"
    table = printed.index("TOPIC PARTITIONS UNHEALTHY LAG SECONDS BYTES/S STATES")
    shown = [line.split()[0] for line in printed[table + 1 :] if line.startswith("t")]
    assert shown[:6] == ["t499", "t400", "t300", "t200", "t100", "t000"]
    assert len(shown) == MOST_ROWS
    assert printed[table + 1 + MOST_ROWS : table + 3 + MOST_ROWS] == [
        "… and 450 more topics, all RUNNING and with lag 0: --topic PATTERNS or --output wide",
        "500 partitions of 500 topics; one by one: --topic",
    ]


def test_how_many_of_the_topics_that_are_left_out_are_well_is_shown() -> None:
    lagging = [dataclasses.replace(HEALTHY, topic=f"t{number:03}", lag_records=1) for number in range(480)]
    assert any(
        "… and 450 more topics, 20 of them RUNNING and with lag 0:" in line for line in lines(topics_of(*lagging))
    )
    everything = [dataclasses.replace(HEALTHY, topic=f"t{number:03}", lag_records=1) for number in range(500)]
    assert any(
        "… and 450 more topics, none of them RUNNING and with lag 0:" in line for line in lines(topics_of(*everything))
    )


def test_wide_output_has_all_partitions() -> None:
    assert sum(line.startswith("t") for line in lines(topics_of(), by_topic=False, wide=True)) == 500


def test_one_cause_in_many_partitions_is_one_message() -> None:
    """With what to do; those with another cause are listed beside it, and texts are shortened."""
    blocked = [
        dataclasses.replace(TOO_LARGE, partition=number, reason=f"orders-{number}: record {number * 7}: {'x' * 1900}")
        for number in range(79)
    ]
    other = dataclasses.replace(TOO_LARGE, topic="other", state=PartitionState.FAILED, reason="broke")
    printed = lines(flow(partitions=(*blocked, other)))
    (cause,) = [line for line in printed if "xxx" in line]
    assert cause.startswith("A->B 79 partitions TOO_LARGE since 2023-11-14 22:13:20 UTC: orders-0: record 0: xxx")
    assert cause.endswith("more characters)")
    assert any(line.startswith("A->B what to do: Raise max.message.bytes of the remote topic") for line in printed)
    assert "A->B other-1 FAILED since 2023-11-14 22:13:20 UTC: broke" in printed
    assert len("".join(printed)) < 3_000


def test_partitions_that_are_not_selected_are_not_to_be_resumed_only() -> None:
    paused = [
        dataclasses.replace(HEALTHY, state=PartitionState.PAUSED, reason="not selected", partition=at)
        for at in range(9)
    ]
    (line,) = [line for line in lines(flow(partitions=tuple(paused))) if "what to do" in line]
    assert "topics and topics.exclude for one that is not selected" in line


def test_of_many_causes_some_are_listed() -> None:
    names = [f"{chr(97 + one % 26)}{chr(97 + one // 26)}" for one in range(COLLAPSED_ABOVE + 10)]
    blocked = [
        dataclasses.replace(TOO_LARGE, topic="t", partition=at, reason=f"because of {name}")
        for at, name in enumerate(names)
    ]
    printed = lines(flow(partitions=tuple(blocked)))
    assert sum("because of" in line for line in printed) == COLLAPSED_ABOVE
    assert "A->B 10 more reasons or notes: --topic or --output wide" in printed


def test_selected_topics_are_shown_partition_by_partition() -> None:
    everything = snapshot(flow(partitions=many(200)))
    chosen = selected(everything, compile_java("pay.*"), "pay.*").flows[0]
    assert {one.topic for one in chosen.partitions} == {"payments"}
    assert "\n".join(lines(chosen, by_topic=False)).count("payments-") == 101, "100 rows, and the reason of one"
    silent = "A does not answer"
    for known in (everything, snapshot(flow(partitions=many(200), source_error=silent)), snapshot(flow(partitions=()))):
        with pytest.raises(CommandError, match="No topic of A->B matches --topic absent"):
            selected(known, compile_java("absent"), "absent")
    unknown = snapshot(flow(partitions=(), source_error=silent))
    assert selected(unknown, compile_java("absent"), "absent") == unknown, "the topics of a silent source are not known"


def test_a_narrow_terminal_shows_the_whole_summary_and_the_states() -> None:
    """`--watch` on 80 columns: sentences and reasons are wrapped, and rows of tables are cut off after the state."""
    sentence = (
        "A has not answered since 2023-11-14 22:13:20 UTC. If it died then, you lost 12 minutes, at least 71 records."
    )
    partition = dataclasses.replace(
        TOO_LARGE, topic="orders.of.all.countries", reason=f"The record is too large. {sentence}"
    )
    one = flow(FlowState.DEGRADED, sentence=sentence, partitions=(partition,))
    out = io.StringIO()
    options = argparse.Namespace(flow="A->B", topic=None, output="table")
    Console(file=out, width=80).print(_coloured(snapshot(one), options))
    printed = out.getvalue()
    assert max(map(len, printed.splitlines())) <= 80
    words = " ".join(printed.split())
    assert f"A->B DEGRADED {sentence}" in words
    assert f"A->B orders.of.all.countries-1 TOO_LARGE since 2023-11-14 22:13:20 UTC: {partition.reason}" in words
    row = next(line for line in printed.splitlines() if line.startswith("orders.of.all.countries-1"))
    assert row.split()[1] == "TOO_LARGE"
    assert row.endswith("\u2026"), "rows are not wrapped"
    assert "\n\nFLOW " in printed


def test_lags_of_a_source_that_does_not_answer_are_lower_bounds() -> None:
    few = (dataclasses.replace(HEALTHY, state=PartitionState.UNREACHABLE, lag_records=7, is_lag_exact=False),)
    assert any(line.startswith("orders-0 UNREACHABLE 1,200 1,200 at least 7 ") for line in lines(flow(partitions=few)))
    collapsed = tuple(dataclasses.replace(few[0], partition=number) for number in range(COLLAPSED_ABOVE + 1))
    assert any(line.startswith("orders 51 51 at least 357 ") for line in lines(flow(partitions=collapsed)))
