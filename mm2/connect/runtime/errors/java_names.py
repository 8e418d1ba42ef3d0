"""What Java calls our exceptions: names that tools look for in traces and in headers of dead letters."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Final

from mm2.config.configdef import ConfigException
from mm2.connect.api import (
    ConnectError,
    DataError,
    IllegalWorkerStateError,
    RetriableError,
    SchemaBuilderError,
    SchemaProjectorError,
)

_ERRORS: Final = "org.apache.kafka.connect.errors"
_NAMES: Final[Mapping[type[BaseException], str]] = {
    ConnectError: f"{_ERRORS}.ConnectException",
    DataError: f"{_ERRORS}.DataException",
    IllegalWorkerStateError: f"{_ERRORS}.IllegalWorkerStateException",
    RetriableError: f"{_ERRORS}.RetriableException",
    SchemaBuilderError: f"{_ERRORS}.SchemaBuilderException",
    SchemaProjectorError: f"{_ERRORS}.SchemaProjectorException",
    ConfigException: "org.apache.kafka.common.config.ConfigException",
}


def java_name(error: BaseException) -> str:
    """The name of the Java class of that meaning; the dotted Python name of all others."""
    kind = type(error)
    return _NAMES.get(kind) or (
        kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    )


def stack_trace(error: BaseException) -> str:
    """As Java's: a first line with name and message, then where it comes from."""
    return f"{java_name(error)}: {error}\n" + "".join(traceback.format_exception(error))
