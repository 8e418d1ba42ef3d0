"""MirrorMaker 2 in Python: replicates Kafka clusters, configured like Kafka's own, copying batches as bytes on Spark."""

__version__ = "0.2.0"
