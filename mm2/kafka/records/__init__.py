"""Kafka record batches as bytes: the 61-byte header, records inside a batch, codecs and batch rewriting (no I/O)."""
