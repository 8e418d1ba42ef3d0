"""Promotions in the ledger."""

from __future__ import annotations

import dataclasses

from mm2.copy.progress.ledger import Ledger, note_record
from mm2.mirror.notes.promotions import PROMOTED_NOTE, Promotion, holds, promoted, withdrawn

ONE = Promotion("orders", "A.orders", "failover", 1_700_000_000_000)


def test_a_promotion_is_valid_until_it_is_withdrawn() -> None:
    ledger = Ledger()
    for promotion in (ONE, dataclasses.replace(ONE, turned=True)):
        row = promotion.record()
        ledger.apply(row.key, row.value)
        assert promoted(ledger) == {"orders": promotion}
    assert {key: str(pause) for key, pause in holds(ledger).items()} == {
        ("orders", None): "paused by mm2 failover at 2023-11-14 22:13:20 UTC: promoted, until mm2 failback"
    }
    row = withdrawn("orders")
    ledger.apply(row.key, row.value)
    assert (promoted(ledger), holds(ledger)) == ({}, {})


def test_a_partly_readable_promotion_is_valid() -> None:
    ledger = Ledger()
    row = note_record(PROMOTED_NOTE, ["orders"], {"at_ms": "yesterday", "later": 1})
    ledger.apply(row.key, row.value)
    assert promoted(ledger) == {"orders": Promotion("orders", "orders", "", 0)}
