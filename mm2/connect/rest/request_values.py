"""Bodies and parameters of requests, read as Jackson and Jersey read them in Java.

Scalars become strings where strings are expected; unknown fields and other shapes are rejected with 500. Messages never
contain a value: it may be a secret.
"""

from __future__ import annotations

import asyncio
import functools
import json
import math
import re
import threading
import urllib.parse
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Annotated, Any, Concatenate, Final, NoReturn, ParamSpec, TypeVar

from fastapi import Path, Query
from pydantic import AfterValidator
from starlette.requests import Request

from mm2.config.definitions.values import trim
from mm2.connect.errors import MalformedBody
from mm2.connect.herder.answers import ConnectorOffsets
from mm2.connect.rest.failures import RestFailure
from mm2.connect.stores.config_state import Props, TargetState

#: Larger bodies are parsed on a thread, one after the other: a value needs many times the memory of its text.
_LARGE_BYTES: Final = 64 * 1024
_PARSER: Final = ThreadPoolExecutor(1, thread_name_prefix="rest-json")
_PARSING: Final = threading.Lock()
#: Jackson's limit (StreamReadConstraints). Python's own limits the depth, to about as much as Jackson.
_MAX_DIGITS: Final = 1000
#: Of a body: names, values and containers. Jackson has no such limit, but needs less memory.
_MAX_TOKENS: Final = 500_000
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)

P = ParamSpec("P")
T = TypeVar("T")


async def read_json(
    request: Request, parse: Callable[Concatenate[bytes, P], T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """``parse(body, …)`` of a request, without blocking the event loop.

    Raises RestFailure 415 unless the content type is JSON, and the exceptions of ``parse``.
    """
    body = await request.body()
    if body and "*" in request.headers.get("content-type", "*/*").partition(";")[0]:
        raise RestFailure.plain(415)
    if len(body) <= _LARGE_BYTES:
        return parse(body, *args, **kwargs)
    call = functools.partial(parse, body, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_PARSER, call)


_INT: Final = re.compile(r"[+-]?[0-9]+")
_INT_MIN, _INT_MAX = -(2**31), 2**31 - 1


def java_int(text: str) -> int:
    """As Integer.parseInt. Raises RestFailure 404, like Jersey for an invalid path parameter."""
    number = int(text) if _INT.fullmatch(text) and len(text) <= 11 else None
    if number is None or not _INT_MIN <= number <= _INT_MAX:
        raise RestFailure.plain(404)
    return number


def java_bool(text: str | None, default: bool | None) -> bool | None:
    """As Boolean.valueOf: anything except "true" is false. If missing or empty, the default."""
    return text.lower() == "true" if text else default


#: A name in a path, percent-encoded as in the request.
Name = Annotated[str, Path(), AfterValidator(urllib.parse.unquote)]
TaskNumber = Annotated[str, Path(json_schema_extra={"pattern": "^[0-9]{1,9}$"}), AfterValidator(urllib.parse.unquote)]
Flag = Annotated[str | None, Query(json_schema_extra={"enum": ["true", "false"]})]
FORWARD_DOC: Final = "Between workers: whether the receiving worker may forward the request."
Forward = Annotated[str | None, Query(description=FORWARD_DOC, json_schema_extra={"enum": ["true", "false"]})]


#: ``initial_state`` of a new connector, by KIP-980's names.
INITIAL_STATES: Final = {
    "RUNNING": TargetState.STARTED,
    "PAUSED": TargetState.PAUSED,
    "STOPPED": TargetState.STOPPED,
}


@dataclass(frozen=True)
class CreateConnectorRequest:
    """The body of ``POST /connectors``."""

    name: str
    config: dict[str, str | None] = field(repr=False)
    initial_state: TargetState | None = None


def parse_json(body: bytes, *, numbers_as_text: bool = False) -> Any:
    """The value of a JSON body; None for an empty one. ``numbers_as_text`` keeps numbers as they are written.

    Raises MalformedBody with line and column.
    """
    if not body:
        return None
    if len(body) <= _LARGE_BYTES:
        return _parse_json(body, numbers_as_text=numbers_as_text)
    with _PARSING:
        return _parse_json(body, numbers_as_text=numbers_as_text)


def _parse_json(body: bytes, *, numbers_as_text: bool) -> Any:
    if _has_too_many_tokens(body):
        raise MalformedBody(f"The body has more than {_MAX_TOKENS} names and values")
    try:
        text = body.decode(json.detect_encoding(body), errors="strict").removeprefix("\ufeff")
        value = (
            json.loads(text, parse_constant=_no_constant, parse_int=_number_text, parse_float=_number_text)
            if numbers_as_text
            else json.loads(text, parse_constant=_no_constant, parse_int=_integer, parse_float=_decimal)
        )
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as error:
        raise MalformedBody(
            f"The body is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from None
    except UnicodeError:
        raise MalformedBody("The body contains bytes or escapes that are not Unicode text") from None
    except RecursionError:
        raise MalformedBody("The body is nested too deeply") from None
    except ValueError as error:
        raise MalformedBody(f"The body contains a number that cannot be parsed: {error}") from None
    return value


class _Number(str):
    """A number in its original notation."""

    __slots__ = ()


def _number_text(text: str) -> _Number:
    if len(text) > _MAX_DIGITS:
        raise MalformedBody(f"The body contains a number with more than {_MAX_DIGITS} digits")
    return _Number(text)


def _integer(text: str) -> int:
    return int(_number_text(text))


def _decimal(text: str) -> float:
    number = float(_number_text(text))
    if math.isinf(number):
        raise MalformedBody("The body contains a number that is too large")
    return number


def _has_too_many_tokens(body: bytes) -> bool:
    """Without parsing it. Text may contain the characters that are counted, and is removed if there are many."""
    if _tokens(body) <= _MAX_TOKENS:
        return False
    # Removing millions of strings would take seconds.
    strings = (body.count(b'"') - body.count(b'\\"')) // 2
    return strings > _MAX_TOKENS or _tokens(_STRING.sub(b"", body)) > _MAX_TOKENS


def _tokens(body: bytes) -> int:
    return sum(map(body.count, (b",", b":", b"[", b"{")))


def _no_constant(name: str) -> NoReturn:
    raise MalformedBody(f"The body is not valid JSON: {name} is not a number")


def parse_create_request(body: bytes) -> CreateConnectorRequest:
    """The body of ``POST /connectors``. Raises MalformedBody."""
    return create_request_of(parse_json(body, numbers_as_text=True))


def create_request_of(value: Any) -> CreateConnectorRequest:
    """Same as `parse_create_request`, for a value parsed with numbers as text. Raises MalformedBody."""
    if not isinstance(value, Mapping):
        raise MalformedBody(
            f"{_shape(value)} where an object with the fields name, config and initial_state was expected"
        )
    if unknown := sorted(set(value) - {"name", "config", "initial_state"}):
        raise MalformedBody(f"Unrecognized field {unknown[0]!r}; the known ones are name, config and initial_state")
    if value.get("config") is None:
        raise MalformedBody("The request has no field config, the map of the connector's settings")
    name = _text(value.get("name"), "name")
    # A missing name is left to its validator, which accepts it.
    return CreateConnectorRequest(
        trim(name or ""), string_map_of(value["config"], "config"), _initial_state(value.get("initial_state"))
    )


def parse_string_map(body: bytes, what: str) -> dict[str, str | None]:
    """A body that is a map with string values; ``what`` names it in errors. Raises MalformedBody."""
    return string_map_of(parse_json(body, numbers_as_text=True), what)


def parse_string_maps(body: bytes) -> list[Props]:
    """The body of ``POST /connectors/{connector}/tasks``. Raises MalformedBody."""
    value = parse_json(body, numbers_as_text=True)
    if not isinstance(value, list):
        raise MalformedBody(f"{_shape(value)} where a list of task configurations was expected")
    return [string_map_of(item, f"task configuration {number}") for number, item in enumerate(value)]


def parse_offsets(body: bytes) -> ConnectorOffsets:
    """The body of ``PATCH /connectors/{connector}/offsets``. Raises MalformedBody or BadRequest."""
    return ConnectorOffsets.from_json(parse_json(body))


def string_map_of(value: Any, what: str) -> dict[str, str | None]:
    """A map with string values, from a value parsed with numbers as text. Raises MalformedBody."""
    if not isinstance(value, Mapping):
        raise MalformedBody(f"{_shape(value)} where a map of strings was expected ({what})")
    return {key: _text(item, f"{what}[{key!r}]") for key, item in value.items()}


def _text(value: Any, what: str) -> str | None:
    match value:
        case None:
            return None
        case bool():
            return str(value).lower()
        case str():
            return str(value)
    raise MalformedBody(f"{_shape(value)} where a string was expected ({what})")


def _initial_state(value: Any) -> TargetState | None:
    state = _text(value, "initial_state")
    if state is None:
        return None
    try:
        return INITIAL_STATES[state.upper()]
    except KeyError:
        raise MalformedBody(f"Unknown initial_state; it is one of {', '.join(INITIAL_STATES)}") from None


def _shape(value: Any) -> str:
    match value:
        case None:
            return "Nothing"
        case bool():
            return "A boolean"
        case _Number():
            return "A number"
        case str():
            return "A string"
        case list():
            return "A list"
        case _:
            return "An object"
