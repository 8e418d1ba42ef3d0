"""Lines of files into Kafka and out of it: the FileStream connectors that ship with Kafka (org.apache.kafka.connect.file)."""

from mm2.connect.files.sink import FileStreamSinkConnector, FileStreamSinkTask
from mm2.connect.files.source import FileStreamSourceConnector, FileStreamSourceTask

__all__ = ["FileStreamSinkConnector", "FileStreamSinkTask", "FileStreamSourceConnector", "FileStreamSourceTask"]
