"""Compare the offsets of records on both clusters, for runs with `preserve.offsets`."""

from typing import Any

from tests.faults.oracle import ClusterTopic, Reader


def shifted(source: ClusterTopic, target: ClusterTopic) -> list[str]:
    """One sentence for each partition of the target with a record that the source has at another offset, or not at all, and for
    each whose log end differs. Raises KafkaException.
    """
    readers = [Reader(side.bootstrap, "read_uncommitted") for side in (source, target)]
    problems = []
    try:
        for partition in readers[0].partitions(source.topic):
            wanted, got = (
                {message.offset(): _content(message) for message in reader.messages(side.topic, partition)}
                for reader, side in zip(readers, (source, target), strict=True)
            )
            wrong = next((offset for offset, content in got.items() if wanted.get(offset) != content), None)
            ends = [
                reader.range(side.topic, partition)[1] for reader, side in zip(readers, (source, target), strict=True)
            ]
            if wrong is not None:
                problems.append(f"{target.topic}-{partition} has another record than the source at offset {wrong}")
            elif ends[0] != ends[1]:
                problems.append(f"{target.topic}-{partition} ends at {ends[1]}, the source at {ends[0]}")
    finally:
        for reader in readers:
            reader.close()
    return problems


def _content(message: Any) -> tuple[Any, ...]:
    return message.key(), message.value(), message.headers(), message.timestamp()[1]
