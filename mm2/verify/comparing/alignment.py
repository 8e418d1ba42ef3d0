"""Aligns two lists: finds the items that match, and those that do not. Pure.

The algorithm is that of patience diff: items that are on both sides exactly once and in the same order are anchors. The
parts between them are aligned separately, down to lists that are short enough for the longest common subsequence.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Sequence
from typing import Final, NamedTuple

from mm2.verify.comparing.records import Item

#: If the product of the two lengths exceeds this, the items are not all compared with each other.
_TABLE: Final = 1 << 20

Pair = tuple[int, int]


class Alignment(NamedTuple):
    """Indexes in both lists. ``pairs`` ascend on both sides; ``crossed`` are equal items in a different order."""

    pairs: list[Pair]
    crossed: list[Pair]


def align(source: Sequence[Hashable], target: Sequence[Hashable]) -> Alignment:
    """Pair as many items as possible in order, then the remaining equal ones in any order."""
    pairs: list[Pair] = []
    parts = [(0, len(source), 0, len(target))]
    while parts:
        low, high, first, after = parts.pop()
        while low < high and first < after and source[low] == target[first]:
            pairs.append((low, first))
            low, first = low + 1, first + 1
        while low < high and first < after and source[high - 1] == target[after - 1]:
            high, after = high - 1, after - 1
            pairs.append((high, after))
        if low == high or first == after:
            continue
        anchors = _anchors(source, target, low, high, first, after)
        if anchors:
            pairs += anchors
            for (here, there), (until, end) in zip(
                [(low - 1, first - 1), *anchors], [*anchors, (high, after)], strict=True
            ):
                parts.append((here + 1, until, there + 1, end))
        elif (high - low) * (after - first) <= _TABLE:
            scores = _table([[int(one == other) for other in target[first:after]] for one in source[low:high]])
            pairs += [(low + one, first + other) for one, other in scores]
        else:
            pairs += _longest_ascending(_pair_occurrences(source, target, range(low, high), range(first, after)))
    pairs.sort()
    paired, paired_target = {one for one, _ in pairs}, {other for _, other in pairs}
    left = [index for index in range(len(source)) if index not in paired]
    left_target = [index for index in range(len(target)) if index not in paired_target]
    return Alignment(pairs, _pair_occurrences(source, target, left, left_target))


def pair_similar(source: Sequence[Item], target: Sequence[Item]) -> list[Pair]:
    """Pair records that are similar but not equal, in order, with the greatest similarity possible."""
    if len(source) * len(target) <= _TABLE >> 4:
        return _table([[one.similarity(other) for other in target] for one in source])
    return [
        (index, index) for index, (one, other) in enumerate(zip(source, target, strict=False)) if one.similarity(other)
    ]


def _anchors(
    source: Sequence[Hashable], target: Sequence[Hashable], low: int, high: int, first: int, after: int
) -> list[Pair]:
    """Pairs of items that occur once on each side."""
    here = Counter(source[low:high])
    there = Counter(target[first:after])
    positions = {target[index]: index for index in range(first, after) if there[target[index]] == 1}
    unique = [
        (index, positions[source[index]])
        for index in range(low, high)
        if here[source[index]] == 1 and source[index] in positions
    ]
    return _longest_ascending(unique)


def _pair_occurrences(
    source: Sequence[Hashable], target: Sequence[Hashable], here: Sequence[int], there: Sequence[int]
) -> list[Pair]:
    """Pair the n-th occurrence of an item with its n-th occurrence on the other side."""
    waiting: defaultdict[Hashable, deque[int]] = defaultdict(deque)
    for index in there:
        waiting[target[index]].append(index)
    return [(index, waiting[source[index]].popleft()) for index in here if waiting.get(source[index])]


def _longest_ascending(pairs: Sequence[Pair]) -> list[Pair]:
    """The longest subsequence of these pairs, sorted by the first index, in which the second one ascends too."""
    ends: list[int] = []  # the lowest second index at the end of a run of this length
    holders: list[int] = []
    before: list[int] = []
    for index, (_, there) in enumerate(pairs):
        length = bisect_left(ends, there)
        before.append(holders[length - 1] if length else -1)
        if length == len(ends):
            ends.append(there)
            holders.append(index)
        else:
            ends[length], holders[length] = there, index
    run: list[Pair] = []
    index = holders[-1] if holders else -1
    while index >= 0:
        run.append(pairs[index])
        index = before[index]
    return run[::-1]


def _table(scores: list[list[int]]) -> list[Pair]:
    """The pairs in order with the highest sum of scores; none of score 0."""
    rows, columns = len(scores), len(scores[0]) if scores else 0
    best = [[0] * (columns + 1) for _ in range(rows + 1)]
    for row in range(rows - 1, -1, -1):
        here, below, own = best[row], best[row + 1], scores[row]
        for column in range(columns - 1, -1, -1):
            score = own[column]
            here[column] = max(below[column], here[column + 1], below[column + 1] + score if score else 0)
    pairs: list[Pair] = []
    row = column = 0
    while row < rows and column < columns:
        score = scores[row][column]
        if score and best[row][column] == best[row + 1][column + 1] + score:
            pairs.append((row, column))
            row, column = row + 1, column + 1
        elif best[row][column] == best[row + 1][column]:
            row += 1
        else:
            column += 1
    return pairs
