"""Applies the transformations and converters of a flow to the source's records again, to know what must be on the target.

The chain is made by the same factory as in the executors that copy (`mm2.copy.changes`).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from mm2.copy.changes import ChangedBatch, ChangeDelayed, ChangeFailed, record_changes
from mm2.copy.spec import ChangesSpec, PartitionSpec
from mm2.kafka.records.batch import BatchView
from mm2.kafka.records.codec import DECOMPRESSION_MAX_BYTES
from mm2.kafka.records.record import Record, decode_batch
from mm2.verify.comparing.records import Change

_SLEEP_S: Final = 0.5
_RECORDS_PER_REPORT: Final = 100


class RepeatedChanges:
    """The changes of a flow, for one thread. Raises what their factory raises. Records that fail are not logged again.

    ``patience_s``: how long one record may be delayed by RetriableErrors. ``on_progress`` is called at least every hundred
    records. ``limit`` is ``decompression.max.bytes``.
    """

    def __init__(
        self,
        spec: ChangesSpec,
        patience_s: float,
        on_progress: Callable[[], None],
        limit: int = DECOMPRESSION_MAX_BYTES,
    ) -> None:
        self._limit = limit
        self._changes = record_changes(replace(spec, settings={**spec.settings, "errors.log.enable": "false"}))
        self._patience_s = patience_s
        self._on_progress = on_progress

    def of(self, part: PartitionSpec) -> Change:
        """The changes of one partition.

        They raise CorruptBatch, and ChangeFailed for a record that cannot be changed (errors.tolerance is none).
        """
        return functools.partial(self._change, part)

    def close(self) -> None:
        """No more records follow."""
        self._changes.close()

    def _change(self, part: PartitionSpec, view: BatchView, first: int, after: int) -> ChangedBatch:
        batch = ChangedBatch(after)
        records = (one for one in decode_batch(view, self._limit) if first <= one.offset < after)
        for index, record in enumerate(records):
            if index % _RECORDS_PER_REPORT == 0:
                self._on_progress()
            changed = self._apply(part, record)
            if isinstance(changed, str):
                batch.drop(record.offset, changed)
            else:
                batch.records.append(changed)  # with its source offset
        return batch

    def _apply(self, part: PartitionSpec, record: Record) -> Record | str:
        until_s = time.monotonic() + self._patience_s
        while True:
            try:
                return self._changes.apply(part, record)
            except ChangeDelayed as delayed:
                if time.monotonic() + delayed.after_s > until_s:
                    raise ChangeFailed(f"{delayed} (tried for {self._patience_s:.0f} s)") from delayed
                self._sleep(delayed.after_s)

    def _sleep(self, for_s: float) -> None:
        until_s = time.monotonic() + for_s
        while (left_s := until_s - time.monotonic()) > 0:
            time.sleep(min(left_s, _SLEEP_S))
            self._on_progress()
