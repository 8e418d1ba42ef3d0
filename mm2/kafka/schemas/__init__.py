"""Requests of Kafka that kafka-python does not have yet, as it loads its own: fields, types and versions by name of the message."""
