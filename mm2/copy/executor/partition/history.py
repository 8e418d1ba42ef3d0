"""Finds out by leader epochs whether a source log still has the records that were read from it (KIP-101, KIP-320).
Pure.

Each leader writes its epoch into its batches, and a log records the start offset of each epoch. Two logs are equal up
to the end of the newest epoch that both have. `EpochEnd` responses come from `LeaderEpochFileCache.endOffsetFor` of
the leader.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Final, NamedTuple

from mm2.copy.progress.session import EpochStart
from mm2.kafka.structs import EpochEnd

#: How many leader epochs of a partition are remembered, the newest.
EPOCHS_KEPT: Final = 32


class HistoryVerdict(Enum):
    """Result of the comparison."""

    SAME = auto()
    """The log has all records that were read."""
    TRUNCATED = auto()
    """A later leader truncated the log at an offset; the records before it are those that were read."""
    REWOUND = auto()
    """Records are missing although the newest epoch is not newer than what was read: it is an older copy or another log."""
    UNKNOWN = auto()
    """The log has no epochs."""


class Finding(NamedTuple):
    """``offset``: from here on the log has other records than those that were read, or none. ``epoch`` is the leader
    epoch before it (-1: unknown).
    """

    verdict: HistoryVerdict
    offset: int
    epoch: int = -1


def read(epochs: tuple[EpochStart, ...], epoch: int, offset: int) -> tuple[EpochStart, ...]:
    """The epochs with that of a batch that was read from ``offset`` on; ``epoch`` -1 is that of a format without epochs."""
    if epochs and epochs[-1].epoch == epoch:
        return epochs
    return (*(one for one in epochs if one.epoch < epoch), EpochStart(epoch, offset))[-EPOCHS_KEPT:]


def before(epochs: tuple[EpochStart, ...], offset: int) -> tuple[EpochStart, ...]:
    """The epochs of what was read before ``offset``."""
    return tuple(one for one in epochs if one.start < offset)


def common_end(epochs: Sequence[EpochStart], epoch: int, end_offset: int) -> tuple[int, int]:
    """(offset, epoch before it) where a log and what was read from another part, if ``epoch`` is the newest one that the log has of
    those up to ours, and ends there at ``end_offset``.

    Records of later epochs that were read are not in the log. If a deposed leader is elected again, ``epoch`` ends there behind
    the offset at which the reader met the epoch after it (`ReplicaFetcherThread` truncates to the smaller of both as well).
    """
    end_offset = min([end_offset, *(one.start for one in epochs if one.epoch > epoch)])
    return end_offset, next((one.epoch for one in reversed(epochs) if one.start < end_offset), epoch)


def examine(ask: Callable[[int], EpochEnd], epoch: int, offset: int, epochs: Sequence[EpochStart] = ()) -> Finding:
    """Compare a log with what was read from it: up to ``offset``, the last batch of leader epoch ``epoch``.

    ``ask`` sends an OffsetForLeaderEpoch request. A leader's own epoch has no successor in its log, so its end is the
    current log end. If the log has been written to since, that end does not show where the histories diverge; the
    start of that epoch does.
    """
    found = ask(epoch)
    if not found.is_defined:
        latest = _latest(ask, epoch)
        return (
            Finding(HistoryVerdict.UNKNOWN, offset)
            if latest < 0
            else Finding(HistoryVerdict.REWOUND, _start_of(ask, latest, offset))
        )
    if found.leader_epoch < epoch:
        return Finding(HistoryVerdict.TRUNCATED, *common_end(epochs, found.leader_epoch, min(found.end_offset, offset)))
    if found.end_offset >= offset:
        return Finding(HistoryVerdict.SAME, offset)
    if ask(epoch + 1).is_defined:
        return Finding(HistoryVerdict.TRUNCATED, found.end_offset, epoch)
    return Finding(HistoryVerdict.REWOUND, _start_of(ask, epoch, offset))


def _latest(ask: Callable[[int], EpochEnd], above: int) -> int:
    """The newest epoch of a log, below ``above``; -1 for none."""
    known, unknown = -1, above
    while unknown - known > 1:
        epoch = (known + unknown) // 2
        if ask(epoch).is_defined:
            known = epoch
        else:
            unknown = epoch
    return known


def _start_of(ask: Callable[[int], EpochEnd], epoch: int, offset: int) -> int:
    """The start offset of an epoch, at most ``offset``."""
    return 0 if epoch <= 0 else max(0, min(ask(epoch - 1).end_offset, offset))
