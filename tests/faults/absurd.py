"""Answers that are well-formed and absurd: what a malicious broker sends in place of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from kafka.protocol.metadata import ApiVersionsRequest

from tests.faults.wire import Request
from tests.fuzz.hostile_broker import response_classes

UNKNOWN_CODE: Final = 999
_GIANT: Final = "x" * (1 << 20)
_GIANT_BEFORE_FLEXIBLE: Final = _GIANT[:0x7FFF]
_LARGEST: Final = {"Int8": 0x7F, "Int16": 0x7FFF, "Int32": 0x7FFF_FFFF, "Int64": (1 << 63) - 1}


class Absurdity(StrEnum):
    """What is changed in an answer."""

    NEGATIVE = "negative"
    """All numbers but error codes and the indexes of partitions."""
    HUGE = "huge"
    EMPTY = "empty"
    """All arrays."""
    DOUBLED = "doubled"
    """Each element of each array."""
    FOREIGN = "foreign"
    """Names and ids that nobody has asked for."""
    GIANT = "giant"
    """Each string has a megabyte."""
    UNKNOWN_CODE = "unknown_code"
    THROTTLED = "throttled"
    """For 24 days."""


@dataclass
class AbsurdAnswers:
    """Changes all answers to the requests of some API keys, and counts the answers of all. For `Wire.answer`."""

    absurdity: Absurdity | None = None
    keys: frozenset[int] = frozenset()
    counts: Counter[int] = field(default_factory=Counter)
    changed: Counter[int] = field(default_factory=Counter)

    def __call__(self, request: Request, response: bytes) -> bytes:
        self.counts[request.api_key] += 1
        if self.absurdity is None or request.api_key not in self.keys:
            return response
        self.changed[request.api_key] += 1
        return absurd(request, response, self.absurdity)

    def begin(self, absurdity: Absurdity | None, keys: frozenset[int] = frozenset()) -> None:
        """Change these answers from now on, and count again."""
        self.absurdity, self.keys = absurdity, keys
        self.counts.clear()
        self.changed.clear()


def absurd(request: Request, response: bytes, absurdity: Absurdity) -> bytes:
    """The response with this change. The same one if kafka-python has no schema for it."""
    response_class = response_classes().get(request.api_key)
    if response_class is None or request.version > response_class.max_version:
        return response
    is_flexible = response_class.flexible_version_q(request.version)
    head = 5 if is_flexible and request.api_key != ApiVersionsRequest.API_KEY else 4
    answer = response_class.decode(memoryview(response)[head:], version=request.version)
    if absurdity is Absurdity.GIANT and not is_flexible:
        _strings(lambda _: _GIANT_BEFORE_FLEXIBLE, ids=False)(answer)
    else:
        _CHANGES[absurdity](answer)
    return response[:head] + bytes(answer.encode())


def _fields(item: Any) -> Iterator[tuple[Any, Any, str]]:
    """All values of an answer: their structure, their field, and its primitive type ("" for arrays)."""
    struct_ = item._struct
    for one in struct_._fields:
        value = getattr(item, one.name, None)
        inner = getattr(one, "array_of", None)
        if inner is not None:
            if getattr(inner, "_fields", None):
                for element in value or ():
                    yield from _fields(element)
            yield item, one, ""
        elif getattr(one, "_fields", None):
            if value is not None:
                yield from _fields(value)
        else:
            yield item, one, str(one._type_str).capitalize()


def _numbers(change: Callable[[str], int]) -> Callable[[Any], None]:
    def changed(answer: Any) -> None:
        for item, one, kind in _fields(answer):
            named = one.name in {"error_code", "partition_index", "partition", "throttle_time_ms"}
            if kind in _LARGEST and not named and getattr(item, one.name) is not None:
                setattr(item, one.name, change(kind))

    return changed


def _arrays(change: Callable[[list[Any]], list[Any]]) -> Callable[[Any], None]:
    def changed(answer: Any) -> None:
        for item, one, kind in _fields(answer):
            if not kind and getattr(item, one.name):
                setattr(item, one.name, change(list(getattr(item, one.name))))

    return changed


def _strings(change: Callable[[str], str], *, ids: bool) -> Callable[[Any], None]:
    def changed(answer: Any) -> None:
        for item, one, kind in _fields(answer):
            if kind == "String" and isinstance(getattr(item, one.name), str):
                setattr(item, one.name, change(getattr(item, one.name)))
            elif kind == "Uuid" and ids:
                setattr(item, one.name, UUID(int=0xABCDEF))

    return changed


def _codes(answer: Any) -> None:
    for item, one, _ in _fields(answer):
        if one.name == "error_code":
            item.error_code = UNKNOWN_CODE


def _throttle(answer: Any) -> None:
    if hasattr(answer, "throttle_time_ms"):
        answer.throttle_time_ms = 0x7FFF_FFFF


_CHANGES: Final[dict[Absurdity, Callable[[Any], None]]] = {
    Absurdity.NEGATIVE: _numbers(lambda _: -7),
    Absurdity.HUGE: _numbers(lambda kind: _LARGEST[kind]),
    Absurdity.EMPTY: _arrays(lambda _: []),
    Absurdity.DOUBLED: _arrays(lambda items: [one for one in items for _ in range(2)]),
    Absurdity.FOREIGN: _strings(lambda text: f"foreign-{text}", ids=True),
    Absurdity.GIANT: _strings(lambda _: _GIANT, ids=False),
    Absurdity.UNKNOWN_CODE: _codes,
    Absurdity.THROTTLED: _throttle,
}
