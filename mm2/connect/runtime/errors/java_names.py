"""Java names of our exceptions; tools look for them in traces and in headers of dead letters."""

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
    """The name of the corresponding Java class; the dotted Python name if there is none."""
    kind = type(error)
    return _NAMES.get(kind) or (
        kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    )


def stack_trace(error: BaseException) -> str:
    """A trace like Java's: the first line has name and message, then follow the locations."""
    return f"{java_name(error)}: {error}\n" + "".join(traceback.format_exception(error))
