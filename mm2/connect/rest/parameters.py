"""Request parameters, converted as in Java."""

from __future__ import annotations

import re
import urllib.parse
from typing import Annotated, Final

from fastapi import Path, Query
from pydantic import AfterValidator

from mm2.connect.rest.failures import RestFailure

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
FORWARD_DOC: Final = "Between workers: whether the one that is asked may pass the request on."
Forward = Annotated[str | None, Query(description=FORWARD_DOC, json_schema_extra={"enum": ["true", "false"]})]
