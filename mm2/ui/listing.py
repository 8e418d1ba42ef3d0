"""Search, sort and pagination of a snapshot's rows, computed once for all clients with the same query. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Query:
    """A query: rows of one flow ("" = all) and kind ("" = all) that contain ``text``, at ``page``, counted from 0.

    ``sort`` is the name of a column; "" keeps the order of the rows.
    """

    flow: str = ""
    kind: str = ""
    text: str = ""
    sort: str = ""
    descending: bool = False
    page: int = 0

    def sorted_by(self, column: str) -> Query:
        """The query sorted by another column, largest first; for the current column the order is reversed."""
        return replace(self, sort=column, descending=True if self.sort != column else not self.descending, page=0)


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some of ``total`` rows, starting at index ``first``."""

    rows: Sequence[T]
    first: int
    total: int


@dataclass(frozen=True)
class Listing(Generic[T]):
    """How rows of one kind are searched and sorted.

    ``text`` is the searched text, ``keys`` are the sort keys by column: None for an unknown value, which is last in
    both orders.
    """

    flow: Callable[[T], str]
    text: Callable[[T], str]
    keys: dict[str, Callable[[T], Any]]
    kind: Callable[[T, str], bool] = lambda _row, _kind: True

    def select(self, rows: Sequence[T], query: Query) -> Sequence[T]:
        """The matching rows, sorted."""
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
    """A listing of consecutive snapshots: rows are gathered and selected once for all clients."""

    def __init__(self, listing: Listing[T], gather: Callable[[S], Sequence[T]]) -> None:
        self._listing = listing
        self._gather = gather
        self._source: S | None = None
        self._rows: Sequence[T] = ()
        self._found: dict[Query, Sequence[T]] = {}

    def select(self, source: S, query: Query) -> Sequence[T]:
        """The matching rows of ``source``, sorted. A new source is recognized by object identity."""
        if source is not self._source:
            self._source, self._rows, self._found = source, self._gather(source), {}
        wanted = replace(query, page=0)
        if wanted not in self._found:
            self._found[wanted] = self._listing.select(self._rows, wanted)
        return self._found[wanted]


def page_of(rows: Sequence[T], number: int, size: int) -> Page[T]:
    """The page with that number, or the last page if there are fewer."""
    last = max(0, (len(rows) - 1) // size)
    first = min(max(number, 0), last) * size
    return Page(rows[first : first + size], first, len(rows))
