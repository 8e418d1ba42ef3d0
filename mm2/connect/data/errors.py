"""What goes wrong in the Connect runtime and in plugins (org.apache.kafka.connect.errors).

ConnectError                 final for the connector or task that sees it
├─ RetriableError            tried again
├─ IllegalWorkerStateError   a context was asked for something at the wrong time
└─ DataError                 a schema, or a value that does not fit it
├─ SchemaBuilderError     a schema that cannot be
└─ SchemaProjectorError   a value of one schema cannot be told in another
"""

from __future__ import annotations


class ConnectError(Exception):
    """Something in the Connect runtime or in a plugin went wrong; final for the connector or task that sees it."""


class RetriableError(ConnectError):
    """A failure that may pass by itself: the runtime logs it, waits and calls again instead of failing the task."""


class IllegalWorkerStateError(ConnectError):
    """A context was asked for something that makes no sense at this time, e.g. an offset before the task was started."""


class DataError(ConnectError):
    """A schema or a value is wrong, or they do not fit each other."""


class SchemaBuilderError(DataError):
    """A schema that cannot be: a field without a name, a default that its own type refuses."""


class SchemaProjectorError(DataError):
    """A value of one schema cannot be told in another."""
