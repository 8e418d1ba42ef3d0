"""The changes of a flow, applied again: which records are read, what delays them, and what fails."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from mm2.config.configdef import ConfigDef
from mm2.connect.api import RetriableError, Transformation
from mm2.copy.changes import ChangeFailed, DroppedRange
from mm2.copy.spec import PartitionSpec
from mm2.kafka.records.batch import iter_batches
from mm2.kafka.records.record import Record, encode_batch
from mm2.mirror.source.record_changes import changes_spec
from mm2.verify.changes import RepeatedChanges

PART = PartitionSpec("orders", 3, "A.orders")
CHAIN = {"source.cluster.alias": "A", "transforms": "x", "transforms.x.type": f"{__name__}.Picky"}
RETRYING = {"errors.retry.timeout": "-1", "errors.retry.delay.max.ms": "60000"}


class Picky(Transformation):
    """Drops records of the value ``drop``, fails at ``bad``, and at ``busy`` as often as the test says."""

    deterministic = True
    failures = 0

    def config(self) -> ConfigDef:
        return ConfigDef()

    def configure(self, props: Any) -> None:
        return

    def apply(self, record: Any) -> Any:
        if record.value == b"bad":
            raise ValueError("no")
        if record.value == b"busy" and Picky.failures:
            Picky.failures -= 1
            raise RetriableError("later")
        return None if record.value == b"drop" else record.new_record(key=b"%s" % record.topic.encode())


class Calls:
    """Counts calls."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


def repeated(
    more: Mapping[str, str] | None = None, *, patience_s: float = 60, calls: Calls | None = None
) -> RepeatedChanges:
    spec = changes_spec({**CHAIN, **(more or {})}, {}, connector="C", task=0)
    assert spec is not None
    return RepeatedChanges(spec, patience_s, calls or Calls())


def batch(*values: bytes) -> Any:
    (view,) = iter_batches(memoryview(encode_batch([Record(b"k", value, (), 7) for value in values], base_offset=10)))
    return view


def test_records_of_the_range_are_changed_and_keep_their_offsets() -> None:
    calls = Calls()
    changes = repeated(calls=calls)
    changed = changes.of(PART)(batch(b"bad", b"1", b"drop", b"drop", b"2", b"bad"), 11, 15)
    assert [(one.offset, one.key, one.value, one.timestamp) for one in changed.records] == [
        (11, b"A.orders", b"1", 7),
        (14, b"A.orders", b"2", 7),
    ]
    assert changed.dropped == [DroppedRange(12, 14, "filtered")]
    assert calls.count
    changes.close()


def test_a_record_that_cannot_be_changed_is_skipped_or_ends_the_comparison() -> None:
    tolerant = repeated({"errors.tolerance": "all"})
    assert tolerant.of(PART)(batch(b"1", b"bad"), 0, 99).dropped == [DroppedRange(11, 12, "skipped")]
    strict = repeated()
    with pytest.raises(
        ChangeFailed, match=r"orders-3: transformation x .* offset 11: ValueError: no \(errors.tolerance"
    ):
        strict.of(PART)(batch(b"1", b"bad"), 0, 99)


def test_a_temporary_error_is_tried_again_as_long_as_patience_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls()
    monkeypatch.setattr(Picky, "failures", 2)
    patient = repeated(RETRYING, calls=calls)
    assert [one.value for one in patient.of(PART)(batch(b"busy"), 0, 99).records] == [b"busy"]
    assert calls.count > 2, "progress is reported meanwhile"
    monkeypatch.setattr(Picky, "failures", 3)
    hasty = repeated(RETRYING, patience_s=1)
    with pytest.raises(ChangeFailed, match=r"offset 10: RetriableError: later \(tried for 1 s\)"):
        hasty.of(PART)(batch(b"busy"), 0, 99)
