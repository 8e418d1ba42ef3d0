"""Errors of the Connect runtime and of plugins (org.apache.kafka.connect.errors).

ConnectError                 final for the connector or task that raises it
├─ RetriableError            retried
├─ IllegalWorkerStateError   a method of a context was called at the wrong time
└─ DataError                 an invalid schema, or a value that does not fit it
   ├─ SchemaBuilderError     a schema that is not possible
   └─ SchemaProjectorError   a value cannot be projected to another schema
"""

from __future__ import annotations


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
