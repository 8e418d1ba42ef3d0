"""Search, sort and pagination of a snapshot's rows, computed once for all clients with the same query. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, TypeVar

#: Characters of a search.
MOST_TEXT: Final = 200
_MOST_PAGES: Final = 1_000_000
_MOST_DIGITS: Final = len(str(_MOST_PAGES))
_ALL: Final = "all"
_DESCENDING: Final = "descending"
_WILDCARDS: Final = frozenset("*?")
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

    @classmethod
    def of(cls, params: Mapping[str, str], kind: str = "", name: str = "state") -> Query:
        """The query in the address of a page; ``kind`` is the default of its filter, ``name`` the filter's name there."""
        page, wanted = params.get("page", ""), params.get(name, kind)
        number = min(int(page), _MOST_PAGES) if page.isascii() and page.isdigit() and len(page) <= _MOST_DIGITS else 0
        return cls(
            params.get("flow", ""),
            "" if wanted == _ALL else wanted,
            params.get("search", "")[:MOST_TEXT],
            params.get("sort", ""),
            params.get("order", "") == _DESCENDING,
            max(number - 1, 0),
        )

    def params(self, kind: str = "", name: str = "state") -> dict[str, str]:
        """The inverse of `of`; "" for what the address does not need."""
        return {
            "flow": self.flow,
            name: "" if self.kind == kind else self.kind or _ALL,
            "search": self.text,
            "sort": self.sort,
            "order": _DESCENDING if self.sort and self.descending else "",
            "page": str(self.page + 1) if self.page else "",
        }

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

    A row matches if its text contains all words. A word with ``*`` or ``?`` must match a whole word of the text.
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
        plain = [one for one in words if not _WILDCARDS & set(one)]
        globs = [_Glob(one) for one in words if _WILDCARDS & set(one)]
        found: Sequence[T] = rows
        if query.flow:
            found = [row for row in found if self.flow(row) == query.flow]
        if query.kind:
            found = [row for row in found if self.kind(row, query.kind)]
        if words:
            texts = ((row, self.text(row).lower()) for row in found)
            found = [
                row
                for row, text in texts
                if all(word in text for word in plain) and all(glob.matches_any(text) for glob in globs)
            ]
        key = self.keys.get(query.sort)
        if key is None:
            return found
        known = [row for row in found if key(row) is not None]
        known.sort(key=key, reverse=query.descending)
        return [*known, *(row for row in found if key(row) is None)] if len(known) < len(found) else known


class _Glob:
    """A word with wildcards: ``*`` is any text, ``?`` any character. Takes linear time, unlike a regular expression."""

    def __init__(self, word: str) -> None:
        parts = word.split("*")
        self._sizes = [*map(len, parts)]
        self._parts = [re.compile(re.escape(part).replace(r"\?", ".")) for part in parts]

    def matches_any(self, text: str) -> bool:
        """Whether a whole word of the text matches."""
        return any(map(self._matches, text.split()))

    def _matches(self, word: str) -> bool:
        first, *middle = self._parts
        if not middle:
            return first.fullmatch(word) is not None
        found = first.match(word)
        for part in middle[:-1]:
            if found is None:
                return False
            found = part.search(word, found.end())  # the earliest place leaves most for the others
        end = len(word) - self._sizes[-1]
        return found is not None and found.end() <= end and middle[-1].match(word, end) is not None


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
