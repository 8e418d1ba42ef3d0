"""Schemas of Kafka requests that kafka-python lacks, in its own JSON format."""
