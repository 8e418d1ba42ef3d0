"""Connectors for tests of a cluster of workers (org.apache.kafka.connect.tools).

Counting sources, a sink that prints what it receives, and connectors that fail on request.
"""

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
