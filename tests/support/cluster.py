"""A local Kafka cluster of several brokers, for tests of followers, elections and epochs.

The controller is a separate node, so that any broker can be killed and the remaining ones elect leaders.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from kafka.protocol.admin import ElectLeadersRequest

from mm2.kafka.client.cluster import Cluster
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.sandbox.kafka import LocalKafka, NodeRole, new_id, start_all, stop_all
from mm2.sandbox.process import Startable

_CONTROLLER_ID = 100


class LocalCluster(Startable):
    """`brokers[0]` has node id 1, and so on. All nodes start and stop together; each can also be controlled alone.

    `listeners` and `proxied` apply to every broker, `racks` are those of the brokers in order. By default, topics have
    as many replicas as there are brokers. A stalled follower is removed from the ISR after 1.5 s, and a dead broker is
    fenced after 3 s.
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
        racks: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.cluster_id = new_id()
        self.controller = LocalKafka(
            f"{name}-controller",
            data_dir / "controller",
            heap="192m",
            place=NodeRole(_CONTROLLER_ID, is_broker=False, cluster_id=self.cluster_id),
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
                listeners=listeners,
                proxied=proxied,
                place=NodeRole(number, is_controller=False, cluster_id=self.cluster_id, voters=voters),
                overrides={
                    **replicas,
                    "replica.lag.time.max.ms": "1500",
                    **({"broker.rack": racks[number - 1]} if racks else {}),
                    **(overrides or {}),
                },
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
        """The broker with that node id."""
        return self.brokers[node_id - 1]

    def start(self, timeout_s: float = 60.0) -> Self:
        """Start all nodes at once. Raises SandboxError."""
        start_all(self.nodes, timeout_s)
        return self

    def stop(self, patience_s: float = 10.0) -> None:
        """Stop all nodes; their data is kept."""
        stop_all(self.brokers, patience_s)  # brokers first: a stopping broker waits for the controller
        self.controller.stop(patience_s)

    def elect(self, topics: Mapping[str, Sequence[int]] | None = None, *, unclean: bool = False) -> dict[str, int]:
        """Elect leaders: the preferred ones, or, `unclean`, any live replica where none is in sync.

        `topics`: partitions by topic, None for all. Returns the error codes by `topic-partition` of the partitions that
        did not change (84: no election was needed). Raises KafkaFailure.
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
        """Raise SandboxError when a node has died."""
        for node in self.nodes:
            node.check()


@contextmanager
def frozen(*brokers: LocalKafka) -> Iterator[None]:
    """Freeze these brokers inside the `with` block: connections stay open, and no request is answered."""
    for broker in brokers:
        broker.pause()
    try:
        yield
    finally:
        for broker in brokers:
            broker.resume()
