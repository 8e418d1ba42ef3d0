"""Headers of a record in Connect's form: named values with schemas, in order, names may repeat (connect.header.Headers)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, Self

from mm2.connect.data.schema import Schema


class Header(NamedTuple):
    """One header; a schema of None says that the value has none."""

    key: str
    value: Any
    schema: Schema | None = None


class Headers(tuple[Header, ...]):
    """An ordered multi-map. Immutable: what changes it gives a new one."""

    __slots__ = ()

    @classmethod
    def of(cls, headers: Iterable[Header | tuple[str, Any]] = ()) -> Self:
        """From pairs of key and value, or from `Header`."""
        return cls(header if isinstance(header, Header) else Header(*header) for header in headers)

    def with_header(self, key: str, value: Any, schema: Schema | None = None) -> Headers:
        """One more at the end."""
        return Headers((*self, Header(key, value, schema)))

    def without(self, *keys: str) -> Headers:
        """All but those with one of the keys."""
        return Headers(header for header in self if header.key not in keys)

    def last_with_name(self, key: str) -> Header | None:
        """The one that was added last under a key."""
        return next((header for header in reversed(self) if header.key == key), None)

    def all_with_name(self, key: str) -> Headers:
        """Those with a key, in order."""
        return Headers(header for header in self if header.key == key)

    def apply(self, change: Callable[[Header], Header | None]) -> Headers:
        """Each one replaced by what ``change`` says; None leaves it out."""
        return Headers(changed for header in self if (changed := change(header)) is not None)


NO_HEADERS: Final = Headers()
