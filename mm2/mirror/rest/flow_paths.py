"""Paths of flows in the REST interface of a MirrorMaker process, and what it serves beside them."""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from mm2.config.mirrormaker import SourceAndTarget

if TYPE_CHECKING:
    from starlette.types import ASGIApp

RESERVED: Final = ("ui", "metrics", "overview", "health", "admin", "connectors", "flows")
"""First path segments that are reserved for the process."""

Apps: TypeAlias = Mapping[str, "Callable[[ASGIApp], ASGIApp]"]
"""Further applications of the process, by the first path segment, one of RESERVED.

The values create ASGI applications. They are passed the resources of the process, to call them on behalf of an
authenticated client (`Access.within`). The applications themselves, HTTP and WebSockets, are behind the same authentication
as the resources, and require a role with `Access.require`.
"""

Progress: TypeAlias = Callable[[SourceAndTarget], list[dict[str, Any]]]
"""The newest progress of each task of a flow in this process, in the form of StreamingQueryProgress."""

Failing: TypeAlias = Callable[[SourceAndTarget], list[str]]
"""Why a flow cannot copy although its workers respond: one sentence for each lane."""


def encoded(segment: str) -> str:
    """An alias as a path segment."""
    return urllib.parse.quote(segment, safe="")


def flow_path(pair: SourceAndTarget) -> str:
    """The path of a flow: ``/{source}/{target}``, with the prefix ``/flows`` if that would be ambiguous."""
    path = f"/{encoded(pair.source)}/{encoded(pair.target)}"
    return f"/flows{path}" if pair.source in RESERVED else path
