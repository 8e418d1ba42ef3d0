"""What a herder refuses a request with, and the HTTP status that says so (spec connect C).

ConnectError                    500
└─ RequestError                 its own status; each message is one sentence for the user
   ├─ BadRequest                400
   ├─ Forbidden                 403
   ├─ NotFound                  404
   ├─ AlreadyExists             409
   ├─ Conflict                  409
   │  ├─ RebalanceNeeded        409   this worker's view is stale
   │  └─ RequestTarget          409   only at the last hop: another worker has to do it
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
    """A request was refused; ``status`` is the HTTP status that says so."""

    status: ClassVar[int] = 500


class BadRequest(RequestError):
    """The request itself is wrong: its body, its parameters, or the connector's configuration in it."""

    status = 400


class Forbidden(RequestError):
    """The worker does not do this, or not for this caller: a feature that is off, a signature that is wrong."""

    status = 403


class NotFound(RequestError):
    """There is no such connector, task, plugin, logger or status."""

    status = 404


class Conflict(RequestError):
    """It cannot be done right now, because something else is going on; the same request may succeed later."""

    status = 409


class AlreadyExists(Conflict):
    """A connector of that name exists and was not to be replaced."""


class RebalanceNeeded(Conflict):
    """The worker knows of a change that the group has not rebalanced for yet, so it cannot tell who has to do it."""

    def __init__(
        self,
        message: str = "Cannot complete request momentarily due to stale configuration (typically caused by a concurrent "
        "config change)",
    ) -> None:
        super().__init__(message)


class RequestTarget(Conflict):
    """Another worker has to do it. ``forward_url`` is its REST URL, None when it is not known at the moment."""

    def __init__(self, message: str, forward_url: str | None) -> None:
        super().__init__(message)
        self.forward_url = forward_url


class NotLeader(RequestTarget):
    """Only the leader of the group can do this."""


class NotAssigned(RequestTarget):
    """Only the worker that owns the connector or task can do this."""


class RequestTimedOut(RequestError):
    """The herder did not get to it, or through with it, in time; the message ends with the stage in progress."""


class NotSupported(RequestError):
    """The herder, or the connector, cannot do it at all."""


class MalformedBody(RequestError):
    """The body is not of the shape that the request needs; Java answers 500 to that, too."""


class NotReady(RequestError):
    """The worker has not started up so far that it could tell."""

    status = 503
