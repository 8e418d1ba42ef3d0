"""MirrorMaker 2 in Python: replicates Kafka clusters, configured like Kafka's own, copying batches as bytes on Spark."""

__version__ = "0.2.0"

#: The Kafka version whose protocol and behaviour this project implements. REST reports it: tools check it before they use
#: newer features.
KAFKA_VERSION = "4.3.0"
