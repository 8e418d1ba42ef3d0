"""`mm2 pause` and `mm2 resume` of topics, with a ledger in memory."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from mm2.cli.change import control
from mm2.cli.change.control import _PAUSE, _RESUME
from mm2.cli.common.flow import CommandError, ConfiguredFlow
from mm2.copy.progress.ledger import Ledger, Pause, entry_record, pause_record
from mm2.copy.progress.session import LedgerEntry, Mark, PartitionCondition
from mm2.kafka.records.record import Record
from mm2.mirror.notes.promotions import Promotion

AT_MS = 1_700_000_000_000


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """The ledger of a flow that has copied one topic."""
    made = Ledger()
    monkeypatch.setattr(ConfiguredFlow, "ledger", lambda _: made)
    monkeypatch.setattr(control, "write_to_ledger", lambda _, records: apply(made, *records))
    apply(made, entry_record(LedgerEntry("orders", 0, "A.orders", Mark(90, 90, 90))))
    return made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mm2.properties"
    path.write_text("clusters = A, B\nA.bootstrap.servers = a:1\nB.bootstrap.servers = b:1\nA->B.enabled = true\n")
    return path


def apply(ledger: Ledger, *records: Record) -> None:
    for record in records:
        ledger.apply(record.key, record.value)


def promote(ledger: Ledger, *, turned: bool = False) -> None:
    """Promote the topic, as the task that copies it has confirmed."""
    promotion = Promotion("orders", "orders", "failover", AT_MS, turned)
    condition = PartitionCondition("PAUSED", str(promotion.pause), 90, AT_MS)
    apply(
        ledger,
        promotion.record(),
        entry_record(LedgerEntry("orders", 0, "A.orders", Mark(90, 90, 90), condition=condition)),
    )


def run(file: Path, action: control._Action) -> int:
    options = argparse.Namespace(
        config=file,
        flow="A->B",
        topic="orders",
        partition=None,
        connector=None,
        task=None,
        reason="",
        timeout=0.0,
        json=False,
        output="table",
    )
    return control.run(options, action)


@pytest.mark.parametrize(("turned", "reason"), [(False, "promoted, until mm2 failback"), (True, "since mm2 failback")])
def test_a_promoted_topic_is_not_resumed_and_the_reason_is_reported(
    ledger: Ledger, file: Path, turned: bool, reason: str
) -> None:
    promote(ledger, turned=turned)
    with pytest.raises(CommandError, match=f"{reason}; mm2 resume does not continue it"):
        run(file, _RESUME)


def test_the_pause_of_a_promoted_topic_is_withdrawn_and_the_promotion_stays(
    ledger: Ledger, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    promote(ledger)
    apply(ledger, pause_record("orders", None, Pause("ann", 5)))
    assert run(file, _RESUME) == 0
    assert not ledger.pauses()
    out = capsys.readouterr().out
    assert "orders: resumed" in out
    assert "orders: paused by mm2 failover at 2023-11-14 22:13:20 UTC: promoted, until mm2 failback" in out


def test_a_pause_of_a_promoted_topic_is_not_waited_for(ledger: Ledger, file: Path) -> None:
    """The tasks apply the promotion, and would never report the pause."""
    promote(ledger)
    assert run(file, _PAUSE) == 0
    assert ledger.pauses()


def test_a_pause_that_no_task_has_applied_is_not_reported_as_done(
    ledger: Ledger, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(file, _PAUSE) == 1
    assert "not applied after 0 s: orders-0; is the flow running?" in capsys.readouterr().err


@pytest.mark.parametrize("state", ["INCONSISTENT", "DIVERGED"])
def test_a_partition_that_has_stopped_until_a_reset_is_not_waited_for(
    ledger: Ledger, file: Path, state: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its task keeps this state in the ledger, whether the partition is paused or not."""
    condition = PartitionCondition(state, "why", 95, AT_MS)
    apply(ledger, entry_record(LedgerEntry("orders", 0, "A.orders", Mark(90, 90, 90), condition=condition)))
    assert run(file, _PAUSE) == 0
    assert ledger.pauses()
    assert run(file, _RESUME) == 0
    assert capsys.readouterr().err == ""
