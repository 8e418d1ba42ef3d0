"""Errors with which a herder rejects a request, and their HTTP status.

ConnectError                    500
└─ RequestError                 its own status; each message is one sentence for the user
   ├─ BadRequest                400
   ├─ Forbidden                 403
   ├─ NotFound                  404
   ├─ AlreadyExists             409
   ├─ Conflict                  409
   │  ├─ RebalanceNeeded        409   this worker's view is stale
   │  └─ RequestTarget          409   only at the last hop: another worker must handle it
   │     ├─ NotLeader
   │     └─ NotAssigned
   ├─ RequestTimedOut           500   names the stage in progress
   ├─ NotSupported              500
   └─ NotReady                  503
"""

from __future__ import annotations

from typing import ClassVar

from mm2.connect.api import ConnectError


class RequestError(ConnectError):
    """A request was rejected; ``status`` is the HTTP status of the response."""

    status: ClassVar[int] = 500


class BadRequest(RequestError):
    """The request itself is invalid: its body, its parameters, or the connector configuration in it."""

    status = 400


class Forbidden(RequestError):
    """The worker does not allow this request: the feature is disabled, or the signature is invalid."""

    status = 403


class NotFound(RequestError):
    """The connector, task, plugin, logger or status does not exist."""

    status = 404


class Conflict(RequestError):
    """The request conflicts with an operation in progress; it may succeed later."""

    status = 409


class AlreadyExists(Conflict):
    """A connector of that name exists and must not be replaced."""


class RebalanceNeeded(Conflict):
    """The worker knows of a change for which the group has not rebalanced yet, so it cannot determine the owner."""

    def __init__(
        self,
        message: str = "Cannot complete request momentarily due to stale configuration (typically caused by a concurrent "
        "config change)",
    ) -> None:
        super().__init__(message)


class RequestTarget(Conflict):
    """Another worker must handle the request. ``forward_url`` is its REST URL, None when it is currently unknown."""

    def __init__(self, message: str, forward_url: str | None) -> None:
        super().__init__(message)
        self.forward_url = forward_url


class NotLeader(RequestTarget):
    """Only the leader of the group can handle this request."""


class NotAssigned(RequestTarget):
    """Only the worker that owns the connector or task can handle this request."""


class RequestTimedOut(RequestError):
    """The herder did not start or complete the request in time; the message ends with the stage in progress."""


class NotSupported(RequestError):
    """The herder or the connector does not support the request."""


class MalformedBody(RequestError):
    """The body does not have the shape that the request needs; Java responds with 500, too."""


class NotReady(RequestError):
    """The worker's startup has not progressed far enough to answer."""

    status = 503
