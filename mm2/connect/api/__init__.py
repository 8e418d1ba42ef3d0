"""What plugin authors implement and use: Kafka Connect's plugin API (the packages of Java's connect-api).

    connector       Connector, Task, ConnectorContext
    source          SourceConnector, SourceTask and their contexts
    sink            SinkConnector, SinkTask and their contexts
    converter       Converter, HeaderConverter
    transformation  Transformation
    predicate       Predicate

Records, schemas and errors are those of `mm2.connect.data`. Everything is importable from here.

Threads: a connector's methods run on its ``connector-thread-<name>``, one at a time. A task's methods run on its
``task-thread-<connector>-<n>``, with three exceptions of source tasks: :meth:`SourceTask.commit` is called by the offset
committer, :meth:`SourceTask.commit_record` by the thread that got the acknowledgement (both on the task's thread with exactly-once),
and :meth:`Task.stop` may be called from the herder's threads **while** ``poll`` runs (see there).
"""

from mm2.connect.api.connector import UNDEFINED_VERSION, Connector, ConnectorContext, Task
from mm2.connect.api.converter import Converter, HeaderConverter, KafkaHeaders
from mm2.connect.api.predicate import Predicate
from mm2.connect.api.sink import ErrantRecordReporter, SinkConnector, SinkTask, SinkTaskContext
from mm2.connect.api.source import (
    OffsetReader,
    SourceConnector,
    SourceTask,
    SourceTaskContext,
    TransactionContext,
    WorkerView,
)
from mm2.connect.api.transformation import Transformation
from mm2.connect.data.errors import (
    ConnectError,
    DataError,
    IllegalWorkerStateError,
    RetriableError,
    SchemaBuilderError,
    SchemaProjectorError,
)
from mm2.connect.data.headers import Header, Headers
from mm2.connect.data.record import ConnectRecord, SinkRecord, SourceRecord, TimestampType
from mm2.connect.data.schema import Field, Schema, SchemaAndValue, Type
from mm2.kafka.structs import OffsetAndMetadata, TopicPartition

__all__ = [
    "UNDEFINED_VERSION",
    "ConnectError",
    "ConnectRecord",
    "Connector",
    "ConnectorContext",
    "Converter",
    "DataError",
    "ErrantRecordReporter",
    "Field",
    "Header",
    "HeaderConverter",
    "Headers",
    "IllegalWorkerStateError",
    "KafkaHeaders",
    "OffsetAndMetadata",
    "OffsetReader",
    "Predicate",
    "RetriableError",
    "Schema",
    "SchemaAndValue",
    "SchemaBuilderError",
    "SchemaProjectorError",
    "SinkConnector",
    "SinkRecord",
    "SinkTask",
    "SinkTaskContext",
    "SourceConnector",
    "SourceRecord",
    "SourceTask",
    "SourceTaskContext",
    "Task",
    "TimestampType",
    "TopicPartition",
    "TransactionContext",
    "Transformation",
    "Type",
    "WorkerView",
]
