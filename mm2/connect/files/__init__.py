"""The FileStream connectors that ship with Kafka: lines of files to and from topics (org.apache.kafka.connect.file)."""

from mm2.connect.files.sink import FileStreamSinkConnector, FileStreamSinkTask
from mm2.connect.files.source import FileStreamSourceConnector, FileStreamSourceTask

__all__ = ["FileStreamSinkConnector", "FileStreamSinkTask", "FileStreamSourceConnector", "FileStreamSourceTask"]
