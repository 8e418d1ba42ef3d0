"""Data classes as JSON, and back, generated from their annotations.

A dataclass is an object with a key for each field, a NamedTuple is an array, an Enum its value, a set a sorted array, bytes are base64. `stored` gives a
field another key. A class with `written_as` is only written. Reading ignores unknown keys, takes the default of a missing field, and converts nothing: a
number is no text.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import json
import math
import operator
import types
import typing
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from typing import Any, Final, NamedTuple, TypeVar

T = TypeVar("T")

_SCALARS: Final = frozenset({str, int, float, bool, type(None)})
#: Key of a field's metadata.
_STORED: Final = "mm2.codec"
#: Keys of classes with `written_as`.
_WRITTEN_AS: Final[dict[Any, str]] = {}


class _Stored(NamedTuple):
    key: str
    parts: tuple[str, ...]
    omits_default: bool
    same_as: str
    is_left_out: bool


def stored(
    key: str = "",
    *,
    parts: tuple[str, ...] = (),
    omits_default: bool = False,
    same_as: str = "",
    is_left_out: bool = False,
) -> dict[str, Any]:
    """Metadata of a field (`dataclasses.field`).

    ``key``: instead of its name; ``"source.id"`` is the key ``id`` of an object ``source``. ``parts``: keys of the items of a NamedTuple,
    of which all but the first are left out where they are the default. ``omits_default``: no key for the default. ``same_as``: the name
    of an earlier field, whose value is the default. ``is_left_out``: not written, and not read.
    """
    return {_STORED: _Stored(key, parts, omits_default, same_as, is_left_out)}


def written_as(keys: str) -> Callable[[type[T]], type[T]]:
    """Decorator of a class: its keys. ``"topic end=source_end at_least=missing.least"`` are three, each with the attribute of that name,
    or with the path after ``=``.
    """

    def noted(kind: type[T]) -> type[T]:
        _WRITTEN_AS[kind] = keys
        return kind

    return noted


def encode(value: Any) -> Any:
    """What `json.dumps` accepts. A class with a method ``to_json`` decides itself."""
    kind: Any = type(value)
    if kind in _SCALARS:
        return value
    return _encoder(kind)(value)


def decode(cls: type[T], data: Any) -> T:
    """The inverse of `encode`. Raises ValueError for anything that this class is not encoded to, naming the place."""
    kind: Any = cls
    found: T = _decoder(kind)(data, cls.__name__)
    return found


def _encoded_as(keys: str, value: Any) -> dict[str, Any]:
    """An object with these keys of a value, in the form of `written_as`."""
    return {key: encode(get(value)) for key, get in _getters(keys)}


def json_bytes(value: Any, errors: str = "strict") -> bytes:
    """Compact JSON. ``errors``: what becomes of characters that cannot be encoded (`str.encode`)."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", errors)


def read_json(data: bytes | str) -> Any:
    """JSON that any client may have written. Raises ValueError, also for nesting that is too deep, and for numbers that are not finite or
    have more than 64 bits. "?" replaces half a surrogate pair, which metrics and pages cannot contain.
    """
    text = data if isinstance(data, str) else data.decode()
    try:
        found = _DECODER.decode(text)
        if "\\u" in text:
            found = _DECODER.decode(json_bytes(found, errors="replace").decode())
        return found
    except RecursionError as error:
        message = "JSON is nested too deeply"
        raise ValueError(message) from error


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        message = f"{text[:20]} is not a finite number"
        raise ValueError(message)
    return number


def _int64(text: str) -> int:
    number = int(text)
    if not -(1 << 63) <= number < 1 << 63:
        message = f"{text[:20]} has more than 64 bits"
        raise ValueError(message)
    return number


_DECODER: Final = json.JSONDecoder(parse_float=_finite, parse_int=_int64, parse_constant=_finite)


def encode_fields(value: Any) -> dict[str, Any]:
    """`encode` of a dataclass, for its own ``to_json``."""
    kind: Any = type(value)
    return _object_encoder(kind)(value)


def decode_fields(cls: type[T], data: Any) -> T:
    """`decode` of a dataclass, for its own ``from_json``."""
    kind: Any = cls
    found: T = _object_decoder(kind)(data, cls.__name__)
    return found


@functools.cache
def _getters(keys: str) -> list[tuple[str, Callable[[Any], Any]]]:
    rows = (one.partition("=") for one in keys.split())
    return [(key, operator.attrgetter(path or key)) for key, _, path in rows]


@functools.cache
def _encoder(kind: Any) -> Callable[[Any], Any]:
    own = getattr(kind, "to_json", None)
    if own is not None:
        return typing.cast("Callable[[Any], Any]", own)
    if kind in _WRITTEN_AS:
        return functools.partial(_encoded_as, _WRITTEN_AS[kind])
    if issubclass(kind, Enum):
        return lambda value: value.value
    if dataclasses.is_dataclass(kind):
        return encode_fields
    if issubclass(kind, Mapping):
        return lambda value: {str(encode(key)): encode(one) for key, one in value.items()}
    if issubclass(kind, AbstractSet):
        return lambda value: sorted(encode(one) for one in value)
    if issubclass(kind, (list, tuple)):
        return lambda value: [one if type(one) in _SCALARS else encode(one) for one in value]
    if issubclass(kind, (bytes, bytearray, memoryview)):
        return lambda value: base64.b64encode(value).decode("ascii")
    if issubclass(kind, (str, int, float)):
        return lambda value: value
    message = f"{kind.__name__} has no JSON form"
    raise TypeError(message)


_MISSING: Final = object()


class _Field(NamedTuple):
    """A field. ``path`` are its key, or that of the object which contains it and its key there."""

    name: str
    path: tuple[str, ...]
    stored: _Stored
    default: Callable[[], Any] | None
    hint: Any

    def omitted(self) -> Any:
        """The value that is not written."""
        return _MISSING if self.default is None or not self.stored.omits_default else self.default()


def _encoded_parts(value: Any, keys: tuple[str, ...]) -> dict[str, Any]:
    defaults: dict[str, Any] = type(value)._field_defaults
    rows = zip(keys, value, value._fields, strict=True)
    return {key: encode(one) for key, one, name in rows if key == keys[0] or one != defaults[name]}


@functools.cache
def _fields(kind: Any) -> tuple[_Field, ...]:
    hints, found = typing.get_type_hints(kind), []
    for field in dataclasses.fields(kind):
        one: _Stored = field.metadata.get(_STORED, _Stored("", (), omits_default=False, same_as="", is_left_out=False))
        default: Callable[[], Any] | None = None
        if field.default is not dataclasses.MISSING:
            default = functools.partial(_same, field.default)
        elif field.default_factory is not dataclasses.MISSING:
            default = field.default_factory
        if not one.is_left_out and field.init:
            path = tuple((one.parts[0] if one.parts else one.key or field.name).split(".", 1))
            found.append(_Field(field.name, path, one, default, hints[field.name]))
    return tuple(found)


def _same(value: Any) -> Any:
    return value


@functools.cache
def _object_encoder(kind: Any) -> Callable[[Any], dict[str, Any]]:
    # Each partition that is copied is encoded every second: what does not depend on the value is done once.
    rows = [
        (field.name, field.path[0], field.path[1:], field.omitted(), field.stored.same_as, field.stored.parts)
        for field in _fields(kind)
    ]

    def encoded(value: Any) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for name, key, rest, omitted, same_as, parts in rows:
            one = getattr(value, name)
            if one is omitted or one == omitted or (same_as and one == getattr(value, same_as)):
                continue
            if parts:
                data |= _encoded_parts(one, parts)
                continue
            form = one if type(one) in _SCALARS else encode(one)
            if rest:
                data.setdefault(key, {})[rest[0]] = form
            else:
                data[key] = form
        return data

    return encoded


@functools.cache
def _decoder(hint: Any) -> Callable[[Any, str], Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return lambda data, _: data
    if origin is typing.Annotated:
        return _decoder(arguments[0])
    if origin in {typing.Union, types.UnionType}:
        return _optional_decoder(arguments)
    if origin is tuple:
        return _tuple_decoder(arguments)
    if origin in {list, set, frozenset} or (isinstance(origin, type) and issubclass(origin, (list, AbstractSet))):
        return _array_decoder(origin if origin in {list, set, frozenset} else frozenset, _decoder(arguments[0]))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping_decoder(_decoder(arguments[0]), _decoder(arguments[1]))
    own = getattr(hint, "from_json", None)
    if own is not None:
        return _guarded(own)
    if issubclass(hint, Enum):
        return _guarded(hint)
    if dataclasses.is_dataclass(hint):
        kind: Any = hint
        return _object_decoder(kind)
    if issubclass(hint, tuple):
        return _row_decoder(hint)
    return _scalar_decoder(hint)


def _guarded(read: Callable[[Any], Any]) -> Callable[[Any, str], Any]:
    def decoded(data: Any, place: str) -> Any:
        try:
            return read(data)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise _wrong(data, place) from error

    return decoded


def _wrong(data: Any, place: str) -> ValueError:
    return ValueError(f"{place}: {data!r:.100}")


def _scalar_decoder(hint: type[Any]) -> Callable[[Any, str], Any]:
    kinds = {float: (float, int)}.get(hint, (hint,))

    def decoded(data: Any, place: str) -> Any:
        # A bool is an int in Python, and no number in JSON.
        if not isinstance(data, kinds) or (isinstance(data, bool) and hint is not bool):
            raise _wrong(data, place)
        return data

    return decoded


def _optional_decoder(arguments: tuple[Any, ...]) -> Callable[[Any, str], Any]:
    (inner,) = (_decoder(one) for one in arguments if one is not type(None))
    return lambda data, place: None if data is None else inner(data, place)


def _array_decoder(kind: Any, inner: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    def decoded(data: Any, place: str) -> Any:
        if not isinstance(data, list):
            raise _wrong(data, place)
        return kind(inner(one, place) for one in data)

    return decoded


def _tuple_decoder(arguments: tuple[Any, ...]) -> Callable[[Any, str], Any]:
    if arguments[-1] is Ellipsis:
        return _array_decoder(tuple, _decoder(arguments[0]))
    inner = [_decoder(one) for one in arguments]

    def decoded(data: Any, place: str) -> Any:
        if not isinstance(data, list) or len(data) != len(inner):
            raise _wrong(data, place)
        return tuple(read(one, place) for read, one in zip(inner, data, strict=True))

    return decoded


def _mapping_decoder(
    of_key: Callable[[Any, str], Any], of_value: Callable[[Any, str], Any]
) -> Callable[[Any, str], Any]:
    def decoded(data: Any, place: str) -> Any:
        if not isinstance(data, dict):
            raise _wrong(data, place)
        return {of_key(key, place): of_value(one, f"{place}.{key}") for key, one in data.items()}

    return decoded


def _row_decoder(kind: Any) -> Callable[[Any, str], Any]:
    names: tuple[str, ...] = kind._fields
    hints, least = typing.get_type_hints(kind), len(names) - len(kind._field_defaults)
    inner = [_decoder(hints[name]) for name in names]

    is_of_numbers = all(hints[name] is int for name in names)

    def decoded(data: Any, place: str) -> Any:
        if not isinstance(data, list) or not least <= len(data) <= len(names):
            raise _wrong(data, place)
        if is_of_numbers and all(type(one) is int for one in data):
            return kind(*data)
        return kind(*(read(one, f"{place}.{name}") for read, one, name in zip(inner, data, names, strict=False)))

    return decoded


@functools.cache
def _object_decoder(kind: Any) -> Callable[[Any, str], Any]:
    # Made at the first call: a class may contain itself.
    readers = functools.cache(lambda: [_field_decoder(field) for field in _fields(kind)])

    def decoded(data: Any, place: str) -> Any:
        if not isinstance(data, dict):
            raise _wrong(data, place)
        found: dict[str, Any] = {}
        for field, read in zip(_fields(kind), readers(), strict=True):
            one = read(data, place)
            if one is not _MISSING:
                found[field.name] = one
            elif field.stored.same_as in found:
                found[field.name] = found[field.stored.same_as]
            elif field.default is None:
                message = f"{place}.{'.'.join(field.path)} is missing"
                raise ValueError(message)
        return kind(**found)

    return decoded


def _field_decoder(field: _Field) -> Callable[[dict[str, Any], str], Any]:
    inner, path, parts = _decoder(field.hint), field.path, field.stored.parts

    def decoded(data: dict[str, Any], place: str) -> Any:
        found: Any = data
        for key in path:
            if not isinstance(found, dict):
                raise _wrong(found, place)
            found = found.get(key, _MISSING)
            if found is _MISSING:
                return _MISSING
        if parts:
            rest = [data[key] for key in parts[1:] if key in data]
            found = [found, *rest]
        return inner(found, f"{place}.{'.'.join(path)}")

    return decoded
