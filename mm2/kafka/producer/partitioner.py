"""Partition of a key, the same as in Java producers."""

from kafka.partitioner import murmur2


def partition_for(key: bytes, partitions: int) -> int:
    """Partition of a key among `partitions` (`BuiltInPartitioner.partitionForKey`)."""
    return int(murmur2(key) & 0x7FFFFFFF) % partitions
