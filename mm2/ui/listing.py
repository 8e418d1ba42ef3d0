"""Search, sort and pages over rows of a snapshot, done once for all who look at the same. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Query:
    """What somebody wants to see: rows of one flow ("" = all) and kind ("" = all) with ``text`` in them, from ``page`` 0 on.

    ``sort`` names a column, "" is the order in which the rows come.
    """

    flow: str = ""
    kind: str = ""
    text: str = ""
    sort: str = ""
    descending: bool = False
    page: int = 0

    def sorted_by(self, column: str) -> Query:
        """By another column, largest first, since that is what one looks for; by the same one the other way round."""
        return replace(self, sort=column, descending=True if self.sort != column else not self.descending, page=0)


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some of ``total`` rows, from the ``first`` on (counted from 0)."""

    rows: Sequence[T]
    first: int
    total: int


@dataclass(frozen=True)
class Listing(Generic[T]):
    """How rows of one kind are searched and sorted. ``text`` is what is searched, ``keys`` are what columns are sorted by: None
    for what is not known, which comes last either way."""

    flow: Callable[[T], str]
    text: Callable[[T], str]
    keys: dict[str, Callable[[T], Any]]
    kind: Callable[[T, str], bool] = lambda _row, _kind: True

    def select(self, rows: Sequence[T], query: Query) -> Sequence[T]:
        """All rows that are wanted, sorted."""
        words = query.text.lower().split()
        found: Sequence[T] = rows
        if query.flow:
            found = [row for row in found if self.flow(row) == query.flow]
        if query.kind:
            found = [row for row in found if self.kind(row, query.kind)]
        if words:
            found = [row for row in found if all(word in self.text(row).lower() for word in words)]
        key = self.keys.get(query.sort)
        if key is None:
            return found
        known = [row for row in found if key(row) is not None]
        known.sort(key=key, reverse=query.descending)
        return [*known, *(row for row in found if key(row) is None)] if len(known) < len(found) else known


class Shared(Generic[S, T]):
    """A listing of what one snapshot after the other holds: rows are gathered and selected once for all who look."""

    def __init__(self, listing: Listing[T], gather: Callable[[S], Sequence[T]]) -> None:
        self._listing = listing
        self._gather = gather
        self._source: S | None = None
        self._rows: Sequence[T] = ()
        self._found: dict[Query, Sequence[T]] = {}

    def select(self, source: S, query: Query) -> Sequence[T]:
        """All rows of ``source`` that are wanted, sorted. Another source is told by its being another object."""
        if source is not self._source:
            self._source, self._rows, self._found = source, self._gather(source), {}
        wanted = replace(query, page=0)
        if wanted not in self._found:
            self._found[wanted] = self._listing.select(self._rows, wanted)
        return self._found[wanted]


def page_of(rows: Sequence[T], number: int, size: int) -> Page[T]:
    """The page of that number, or the last one when there are not so many."""
    last = max(0, (len(rows) - 1) // size)
    first = min(max(number, 0), last) * size
    return Page(rows[first : first + size], first, len(rows))
