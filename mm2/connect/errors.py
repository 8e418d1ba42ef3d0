"""Errors of the Connect runtime and of plugins (org.apache.kafka.connect.errors), and of requests to a herder.

ConnectError                    final for the connector or task that raises it; as the result of a request, status 500
├─ RetriableError               retried
├─ IllegalWorkerStateError      a method of a context was called at the wrong time
├─ DataError                    an invalid schema, or a value that does not fit it
│  ├─ SchemaBuilderError        a schema that is not possible
│  └─ SchemaProjectorError      a value cannot be projected to another schema
└─ RequestError                 rejects a request with its own HTTP status; the message is one sentence for the user
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
   ├─ NotReady                  503
   └─ Busy                      503
"""

from __future__ import annotations

from typing import ClassVar


class ConnectError(Exception):
    """An error in the Connect runtime or in a plugin; final for the connector or task that raises it."""


class RetriableError(ConnectError):
    """A transient failure: the runtime logs it, waits and retries instead of failing the task."""


class IllegalWorkerStateError(ConnectError):
    """A method of a context was called at the wrong time, e.g. for an offset before the task was started."""


class DataError(ConnectError):
    """A schema or a value is invalid, or they do not fit each other."""


class SchemaBuilderError(DataError):
    """A schema that is not possible: a field without a name, or a default that does not fit the type."""


class SchemaProjectorError(DataError):
    """A value cannot be projected to another schema."""


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


class Busy(RequestError):
    """Too many requests of this kind are in progress."""

    status = 503
