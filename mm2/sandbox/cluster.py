"""A Kafka cluster of several brokers on this machine, for what one broker cannot show: followers, elections, epochs.

The controller is a node of its own, so that each broker can be killed and the others elect.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from kafka.protocol.admin import ElectLeadersRequest

from mm2.kafka.cluster import Cluster
from mm2.kafka.settings import ClientSettings
from mm2.sandbox.kafka import LocalKafka, Place, new_id, start_all, stop_all

_CONTROLLER_ID = 100


class LocalCluster:
    """`brokers[0]` has node id 1, and so on. All of it is started and stopped together; each node also by itself.

    `listeners` and `proxied` are those of every broker, `jvm_options` those of every node. Topics have
    as many replicas as there are brokers unless they say otherwise; a follower that stands still is out of sync after a
    second and a half, and a broker that is dead is fenced after three.
    """

    def __init__(
        self,
        name: str,
        data_dir: Path,
        *,
        size: int = 2,
        overrides: Mapping[str, str] | None = None,
        heap: str = "384m",
        listeners: Mapping[str, str] | None = None,
        proxied: Collection[str] = (),
        jvm_options: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.cluster_id = new_id()
        self.controller = LocalKafka(
            f"{name}-controller",
            data_dir / "controller",
            heap="192m",
            jvm_options=jvm_options,
            place=Place(_CONTROLLER_ID, is_broker=False, cluster_id=self.cluster_id),
            overrides=overrides,
        )
        voters = f"{_CONTROLLER_ID}@{self.controller.address('CONTROLLER')}"
        replicas = dict.fromkeys(
            (
                "default.replication.factor",
                "offsets.topic.replication.factor",
                "transaction.state.log.replication.factor",
            ),
            str(size),
        )
        self.brokers = [
            LocalKafka(
                f"{name}-{number}",
                data_dir / str(number),
                heap=heap,
                jvm_options=jvm_options,
                listeners=listeners,
                proxied=proxied,
                place=Place(number, is_controller=False, cluster_id=self.cluster_id, voters=voters),
                overrides={**replicas, "replica.lag.time.max.ms": "1500", **(overrides or {})},
            )
            for number in range(1, size + 1)
        ]

    def __repr__(self) -> str:
        return f"LocalCluster({self.name} at {self.bootstrap})"

    @property
    def bootstrap(self) -> str:
        """`host:port` of all brokers, separated by commas."""
        return ",".join(broker.bootstrap for broker in self.brokers)

    @property
    def nodes(self) -> list[LocalKafka]:
        return [self.controller, *self.brokers]

    def broker(self, node_id: int) -> LocalKafka:
        """The broker with that id, as metadata name it."""
        return self.brokers[node_id - 1]

    def start(self, timeout_s: float = 60.0) -> Self:
        """Starts all nodes at once. Raises SandboxError."""
        start_all(self.nodes, timeout_s)
        return self

    def stop(self, patience_s: float = 10.0) -> None:
        """Stops all nodes; their data stay."""
        stop_all(self.brokers, patience_s)  # a broker that stops tells the controller, and waits for it
        self.controller.stop(patience_s)

    def elect(self, topics: Mapping[str, Sequence[int]] | None = None, *, unclean: bool = False) -> dict[str, int]:
        """Has leaders elected: the preferred ones, or, `unclean`, any that live where none is in sync.

        `topics`: partitions by topic, None for all. Returns error codes by `topic-partition` of those that did not
        change (84: no election was needed). Raises KafkaFailure.
        """
        wanted = None
        if topics is not None:
            rows = ElectLeadersRequest.TopicPartitions
            wanted = [rows(topic=topic, partitions=list(partitions)) for topic, partitions in topics.items()]
        request = ElectLeadersRequest(election_type=int(unclean), topic_partitions=wanted, timeout_ms=20_000)
        cluster = Cluster(ClientSettings.from_props({"bootstrap.servers": self.bootstrap}), name=self.name)
        try:
            answer = cluster.send(None, request, timeout_s=30)
        finally:
            cluster.close()
        return {
            f"{row.topic}-{result.partition_id}": result.error_code
            for row in answer.replica_election_results
            for result in row.partition_result
            if result.error_code
        }

    def check(self) -> None:
        """Raises SandboxError when a node has died on its own."""
        for node in self.nodes:
            node.check()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, _type: type[BaseException] | None, _exc: BaseException | None, _tb: TracebackType | None
    ) -> None:
        self.stop()


@contextmanager
def frozen(*brokers: LocalKafka) -> Iterator[None]:
    """These stand still inside the `with` block: connections stay open and nothing answers."""
    for broker in brokers:
        broker.pause()
    try:
        yield
    finally:
        for broker in brokers:
            broker.resume()
