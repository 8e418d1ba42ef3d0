"""Connectors that show whether a cluster of workers does what it should (org.apache.kafka.connect.tools): counting sources, a
sink that tells what it gets, and connectors that fail when they are told to."""

from mm2.connect.verifiable.counting import VerifiableSourceConnector, VerifiableSourceTask
from mm2.connect.verifiable.failing import MockSinkConnector, MockSinkTask, MockSourceConnector, MockSourceTask
from mm2.connect.verifiable.structured import SchemaSourceConnector, SchemaSourceTask
from mm2.connect.verifiable.telling import VerifiableSinkConnector, VerifiableSinkTask

__all__ = [
    "MockSinkConnector",
    "MockSinkTask",
    "MockSourceConnector",
    "MockSourceTask",
    "SchemaSourceConnector",
    "SchemaSourceTask",
    "VerifiableSinkConnector",
    "VerifiableSinkTask",
    "VerifiableSourceConnector",
    "VerifiableSourceTask",
]
