"""Sums over partitions: what would be lost if the source failed now, and figures of topics. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from mm2.observer.views import PartitionView, Risk

_Number = TypeVar("_Number", int, float)


def sum_if_known(values: Iterable[_Number | None]) -> _Number | None:
    """The sum; None if a value is not known."""
    total: Any = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total  # type: ignore[no-any-return]


@dataclass(slots=True)
class RiskSum:
    """The sum over some partitions. A sum is unknown only if all of its parts are unknown."""

    records: int = 0
    records_known: bool = False
    is_exact: bool = True
    bytes: int = 0
    bytes_known: bool = True
    oldest: float = 0.0
    oldest_known: bool = True

    def add(self, view: PartitionView) -> None:
        """Add one partition."""
        is_empty = view.lag_records is None and view.source_end == 0
        self.is_exact = self.is_exact and view.is_lag_exact and (is_empty or view.lag_records is not None)
        if is_empty:
            return
        if view.lag_bytes is None:
            self.bytes_known = False
        else:
            self.bytes += view.lag_bytes
        if view.lag_seconds is None:
            self.oldest_known = False
        else:
            self.oldest = max(self.oldest, view.lag_seconds)
        if view.lag_records is not None:
            self.records_known = True
            self.records += view.lag_records

    def risk(self, *, is_nothing: bool) -> Risk:
        """The sum. ``is_nothing``: it is known that there are no partitions."""
        known = self.records_known or is_nothing
        # A partition of unknown lag may contain an older record. A bound of zero says nothing.
        seconds = round(self.oldest, 1) if known and (self.oldest_known or self.oldest > 0) else None
        return Risk(
            seconds if self.oldest_known else None,
            self.records if known and self.is_exact else None,
            self.bytes if known and self.bytes_known else None,
            self.records if known else None,
            seconds,
        )


def risk_of(partitions: Iterable[PartitionView]) -> Risk:
    """The risk of some partitions of a flow that was observed; those that are not counted are left out."""
    counted = [view for view in partitions if view.is_counted]
    total = RiskSum()
    for view in counted:
        total.add(view)
    return total.risk(is_nothing=not counted)
