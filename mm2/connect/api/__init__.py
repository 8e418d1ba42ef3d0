"""What plugin authors implement and use: Kafka Connect's plugin API (the packages of Java's connect-api).

  connector       Connector, SourceConnector, SinkConnector, their tasks, and what the runtime provides to them
  converter       Converter, HeaderConverter
  transformation  Transformation, Predicate

Records, schemas and values are those of `mm2.connect.data`, errors those of `mm2.connect.errors`;
`mm2.connect.data.schema` lists the Python type of each schema type. Everything is importable from here.

Threads: a connector's methods run on its ``connector-thread-<name>``, one at a time. A task's methods run on its
``task-thread-<connector>-<n>``, with three exceptions. The offset committer calls :meth:`SourceTask.commit`. The thread
that received the acknowledgement calls :meth:`SourceTask.commit_record`. (With exactly-once support, both run on the
task's thread.) The herder's threads may call :meth:`Task.stop` of a source task **while** ``poll`` runs (see there).
"""

from mm2.connect.api.connector import (
    UNDEFINED_VERSION,
    Connector,
    ConnectorContext,
    ErrantRecordReporter,
    OffsetReader,
    SinkConnector,
    SinkTask,
    SinkTaskContext,
    SourceConnector,
    SourceTask,
    SourceTaskContext,
    Task,
    TransactionContext,
    WorkerView,
)
from mm2.connect.api.converter import Converter, HeaderConverter, KafkaHeaders
from mm2.connect.api.transformation import Predicate, Transformation
from mm2.connect.data.builder import SchemaBuilder
from mm2.connect.data.logical import (
    DATE_SCHEMA,
    OPTIONAL_DATE_SCHEMA,
    OPTIONAL_TIME_SCHEMA,
    OPTIONAL_TIMESTAMP_SCHEMA,
    TIME_SCHEMA,
    TIMESTAMP_SCHEMA,
    decimal_schema,
)
from mm2.connect.data.record import ConnectRecord, Header, Headers, SinkRecord, SourceRecord, TimestampType
from mm2.connect.data.schema import (
    BOOLEAN_SCHEMA,
    BYTES_SCHEMA,
    FLOAT32_SCHEMA,
    FLOAT64_SCHEMA,
    INT8_SCHEMA,
    INT16_SCHEMA,
    INT32_SCHEMA,
    INT64_SCHEMA,
    OPTIONAL_BOOLEAN_SCHEMA,
    OPTIONAL_BYTES_SCHEMA,
    OPTIONAL_FLOAT32_SCHEMA,
    OPTIONAL_FLOAT64_SCHEMA,
    OPTIONAL_INT8_SCHEMA,
    OPTIONAL_INT16_SCHEMA,
    OPTIONAL_INT32_SCHEMA,
    OPTIONAL_INT64_SCHEMA,
    OPTIONAL_STRING_SCHEMA,
    STRING_SCHEMA,
    Field,
    Schema,
    SchemaAndValue,
    Type,
)
from mm2.connect.data.struct import Struct, project
from mm2.connect.errors import (
    ConnectError,
    DataError,
    IllegalWorkerStateError,
    RetriableError,
    SchemaBuilderError,
    SchemaProjectorError,
)
from mm2.kafka.structs import OffsetAndMetadata, TopicPartition

__all__ = [
    "BOOLEAN_SCHEMA",
    "BYTES_SCHEMA",
    "DATE_SCHEMA",
    "FLOAT32_SCHEMA",
    "FLOAT64_SCHEMA",
    "INT8_SCHEMA",
    "INT16_SCHEMA",
    "INT32_SCHEMA",
    "INT64_SCHEMA",
    "OPTIONAL_BOOLEAN_SCHEMA",
    "OPTIONAL_BYTES_SCHEMA",
    "OPTIONAL_DATE_SCHEMA",
    "OPTIONAL_FLOAT32_SCHEMA",
    "OPTIONAL_FLOAT64_SCHEMA",
    "OPTIONAL_INT8_SCHEMA",
    "OPTIONAL_INT16_SCHEMA",
    "OPTIONAL_INT32_SCHEMA",
    "OPTIONAL_INT64_SCHEMA",
    "OPTIONAL_STRING_SCHEMA",
    "OPTIONAL_TIMESTAMP_SCHEMA",
    "OPTIONAL_TIME_SCHEMA",
    "STRING_SCHEMA",
    "TIMESTAMP_SCHEMA",
    "TIME_SCHEMA",
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
    "SchemaBuilder",
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
    "Struct",
    "Task",
    "TimestampType",
    "TopicPartition",
    "TransactionContext",
    "Transformation",
    "Type",
    "WorkerView",
    "decimal_schema",
    "project",
]
