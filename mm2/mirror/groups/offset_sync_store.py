"""Keeps recent offset syncs and translates group offsets conservatively (OffsetSyncStore).

Pure: records arrive through `update`, in the order of the offset-syncs topic; the reader of the topic reports when the
first read is complete. The history is sparse: 64 syncs per source partition, dense near the end and exponentially
sparser before it. A group with a large lag is translated to an older sync and re-reads more records, but never skips
any.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from mm2.kafka.structs import MAX_TOPIC_NAME
from mm2.mirror.common.formats import OffsetSync

SIZE: Final = 64
_LAST: Final = SIZE - 1
_INT64_MAX: Final = (1 << 63) - 1

SyncHistory: TypeAlias = tuple[OffsetSync, ...]
"""Exactly 64 syncs, newest first; [63] is the oldest usable one. Equal neighbours are the same object."""


def _near_enough(x: OffsetSync, y: OffsetSync, i: int, j: int) -> bool:
    """Invariant B: x (at i) is not too far ahead of y (at j)."""
    bound = y.upstream_offset + (1 << j) - (1 << i)
    return x is y or bound > _INT64_MAX or x.upstream_offset <= bound


def _far_enough(x: OffsetSync, y: OffsetSync, i: int) -> bool:
    """Invariant C: x (at i) is far enough from y (at j) for both to be worth keeping."""
    bound = y.upstream_offset + (1 << max(i - 2, 0))
    return x is y or (bound <= _INT64_MAX and x.upstream_offset >= bound)


def started(sync: OffsetSync) -> SyncHistory:
    """A history that contains only `sync`."""
    return (sync,) * SIZE


def advanced(history: SyncHistory, sync: OffsetSync) -> SyncHistory:
    """The history with `sync` as its newest entry. If the upstream offset goes back, all older syncs are discarded."""
    if sync.upstream_offset < history[0].upstream_offset:
        return started(sync)
    old, new = history, list(history)
    new[0] = candidate = sync
    at = 0
    for i in range(1, SIZE):
        while True:
            entry = old[at]
            apart = _far_enough(new[i - 1], entry, i - 1)
            take = (
                apart
                and _near_enough(new[i - 1], entry, i - 1, i)
                and (i == _LAST or _far_enough(entry, new[i + 1], i))
            )
            skip = not apart or (at < _LAST and old[at + 1] is entry)
            if take:
                candidate = entry
            if take or skip:
                at += 1
            if not (at < i and skip):
                break
        if _near_enough(new[i - 1], new[i], i - 1, i):
            break  # the remaining entries satisfied the invariants before and still do
        new[i] = candidate
    return tuple(new)


def lookup(history: SyncHistory, upstream_offset: int) -> OffsetSync:
    """Newest sync at or below `upstream_offset`, else the oldest usable one."""
    for sync in history:
        if sync.upstream_offset <= upstream_offset:
            return sync
    return history[_LAST]


class OffsetSyncStore:
    """Syncs of all partitions of one flow. One thread updates, any thread translates.

    `must_read_to_end`: the checkpoints emitted before this start are not known. Of the syncs read up to
    `first_read_done`, only the last of each partition is then usable; an older one could move a group backwards.
    """

    TOO_OLD: Final = -1
    """The translation of an offset before every usable sync."""

    def __init__(self, *, must_read_to_end: bool) -> None:
        self._must_read_to_end = must_read_to_end
        self._ready = False
        self.changes = 0
        """A number that changes with every sync, and at the end of the first read."""
        self._histories: dict[tuple[str, int], SyncHistory] = {}

    @property
    def ready(self) -> bool:
        return self._ready

    def first_read_done(self) -> None:
        """The offset-syncs topic has been read to its end once; translation may begin."""
        self._ready = True
        self.changes += 1

    def update(self, sync: OffsetSync) -> None:
        """Add a sync; one that names no possible topic is not kept: other clients may write to the offset-syncs topic."""
        if len(sync.topic) > MAX_TOPIC_NAME:
            return
        key = (sync.topic, sync.partition)
        history = self._histories.get(key)
        if history is None or (self._must_read_to_end and not self._ready):
            self._histories[key] = started(sync)
        else:
            self._histories[key] = advanced(history, sync)
        self.changes += 1

    def translate(
        self,
        topic: str,
        partition: int,
        upstream_offset: int,
        is_valid: Callable[[OffsetSync], bool] = lambda _sync: True,
    ) -> int | None:
        """Downstream offset for a group's committed `upstream_offset`.

        None if there is no basis for a translation (first read in progress, or no sync of this partition); TOO_OLD if
        the offset is before every usable sync, or the sync before it is not valid. Between two syncs the result is one past
        the lower one (KAFKA-12468): how offsets advance after a sync cannot be inferred from it.
        """
        history = self._histories.get((topic, partition)) if self._ready else None
        if history is None:
            return None
        sync = lookup(history, upstream_offset)
        if sync.upstream_offset > upstream_offset or not is_valid(sync):
            return self.TOO_OLD
        return sync.downstream_offset + (0 if sync.upstream_offset == upstream_offset else 1)

    def history(self, topic: str, partition: int) -> SyncHistory | None:
        return self._histories.get((topic, partition))
