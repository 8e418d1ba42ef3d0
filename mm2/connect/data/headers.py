"""Record headers: ordered named values with schemas; names may repeat (connect.header.Headers)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, Self

from mm2.connect.data.schema import Schema


class Header(NamedTuple):
    """One header; the schema is None if the value has none."""

    key: str
    value: Any
    schema: Schema | None = None


class Headers(tuple[Header, ...]):
    """An ordered multimap. Immutable: methods that change it return a new one."""

    __slots__ = ()

    @classmethod
    def of(cls, headers: Iterable[Header | tuple[str, Any]] = ()) -> Self:
        """Create headers from (key, value) pairs or from `Header` objects."""
        return cls(header if isinstance(header, Header) else Header(*header) for header in headers)

    def with_header(self, key: str, value: Any, schema: Schema | None = None) -> Headers:
        """These headers with one appended."""
        return Headers((*self, Header(key, value, schema)))

    def without(self, *keys: str) -> Headers:
        """These headers without those that have one of the keys."""
        return Headers(header for header in self if header.key not in keys)

    def last_with_name(self, key: str) -> Header | None:
        """The last header with a key."""
        return next((header for header in reversed(self) if header.key == key), None)

    def all_with_name(self, key: str) -> Headers:
        """All headers with a key, in order."""
        return Headers(header for header in self if header.key == key)

    def apply(self, change: Callable[[Header], Header | None]) -> Headers:
        """Replace each header by the result of ``change``; None removes it."""
        return Headers(changed for header in self if (changed := change(header)) is not None)


NO_HEADERS: Final = Headers()
