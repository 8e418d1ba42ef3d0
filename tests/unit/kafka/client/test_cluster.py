"""Brokers of one cluster that know different things. Their connections are simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.protocol.admin import CreateTopicsRequest
from kafka.protocol.consumer import ListOffsetsRequest
from kafka.protocol.metadata import MetadataRequest

from mm2.kafka.admin import Admin
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.client.connection import Connection
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import RefusedFailure, TimeoutFailure
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import LATEST, Broker, NewTopic, OffsetInfo, PartitionInfo, TopicInfo, TopicPartition
from mm2.kafka.wire.metadata import MetadataAnswer, TopicAnswer

TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"


class ScriptedBroker:
    """A broker with its own view of the cluster. Broker n has port n. Only the controller creates topics."""

    def __init__(self, brokers: dict[int, ScriptedBroker], node: int) -> None:
        self.brokers = brokers
        self.node = node
        self.controller = 1
        self.topics: dict[str, TopicInfo] = {}
        self.refuses = self.hangs = False
        self.created: list[str] = []
        self.log_end = 0

    def answer(self, request: Any) -> Any:
        if self.hangs:
            raise TimeoutFailure(f"broker {self.node} did not answer in time")
        if request.API_KEY == MetadataRequest.API_KEY:
            brokers = tuple(Broker(node, "h", node) for node in self.brokers)
            wanted = None if request.topics is None else {topic.name for topic in request.topics}
            topics = tuple(
                TopicAnswer(0, info) for name, info in self.topics.items() if wanted is None or name in wanted
            )
            return MetadataAnswer(12, brokers, "id", self.controller, topics)
        if request.API_KEY == ListOffsetsRequest.API_KEY:
            return self._log_end(request)
        assert request.API_KEY == CreateTopicsRequest.API_KEY
        names = [topic.name for topic in request.topics]
        code = 0
        if self.node == self.controller:
            self.created += names
            for one in self.brokers.values():
                one.topics.update({name: topic(name, leader=self.node) for name in names})
        else:
            code = ErrorCode.NOT_CONTROLLER
        return SimpleNamespace(
            topics=[SimpleNamespace(name=name, error_code=code, error_message=None) for name in names]
        )

    def _log_end(self, request: Any) -> Any:
        """As a broker answers a request of replica -2: also as a follower, unless it knows another leader epoch."""
        (topic,) = request.topics
        (asked,) = topic.partitions
        assert request.replica_id == -2
        epoch = self.topics[topic.name].partitions[asked.partition_index].leader_epoch
        row = SimpleNamespace(
            partition_index=asked.partition_index,
            error_code=0 if asked.current_leader_epoch in {-1, epoch} else ErrorCode.FENCED_LEADER_EPOCH,
            offset=self.log_end,
            timestamp=-1,
            leader_epoch=epoch,
        )
        return SimpleNamespace(topics=[SimpleNamespace(name=topic.name, partitions=[row])])


class ScriptedConnection:
    def __init__(self, broker: ScriptedBroker) -> None:
        self.host, self.port = "h", broker.node
        self.closed = False
        self.in_flight = 0
        self._broker = broker

    def is_stale(self) -> bool:
        return False

    def request(self, request: Any, *, timeout_s: float) -> Any:
        del timeout_s
        return self._broker.answer(request)

    def close(self) -> None:
        self.closed = True

    abort = close


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> dict[int, ScriptedBroker]:
    made: dict[int, ScriptedBroker] = {}
    made.update({node: ScriptedBroker(made, node) for node in (1, 2)})

    def connect(_host: str, port: int, *_args: object, **_more: object) -> ScriptedConnection:
        if made[port].refuses:
            raise RefusedFailure(f"broker {port} refused")
        return ScriptedConnection(made[port])

    monkeypatch.setattr(Connection, "open", connect)
    return made


@pytest.fixture
def client() -> Iterator[Callable[..., Cluster]]:
    """Makes clusters whose only bootstrap server is broker 1."""
    made: list[Cluster] = []

    def make(**settings: Any) -> Cluster:
        props = {"bootstrap.servers": "h:1", "retry.backoff.ms": "1", "reconnect.backoff.ms": "1"}
        props |= {"request.timeout.ms": "2000", "metadata.recovery.strategy": "none"}
        given = replace(ClientSettings.from_props(props, client_id="c"), **settings)
        made.append(Cluster(given, name="B"))
        return made[-1]

    yield make
    for cluster in made:
        cluster.close()


def topic(name: str, *, leader: int, epoch: int = 0, topic_id: str = TOPIC_ID) -> TopicInfo:
    return TopicInfo(name, topic_id, False, {0: PartitionInfo(leader, epoch, (1, 2), (1, 2))})


Brokers = dict[int, ScriptedBroker]
Client = Callable[..., Cluster]


def test_topics_are_created_by_the_controller(brokers: Brokers, client: Client) -> None:
    """With ZooKeeper other brokers reject the request, and the connection to one of them is idle."""
    for broker in brokers.values():
        broker.controller = 2
    cluster = client()
    cluster.preflight(1)
    assert Admin(cluster).create_topics([NewTopic("t", 1, 1)]) == {"t": None}
    assert brokers[2].created == ["t"]


def test_a_dead_controller_is_replaced(brokers: Brokers, client: Client) -> None:
    """Broker 1 reports the dead controller until it is asked for the third time."""
    asked: list[object] = []
    answer = brokers[1].answer

    def answer_and_elect(request: Any) -> Any:
        asked.append(request)
        brokers[1].controller = 2 if len(asked) < 3 else 1
        return answer(request)

    brokers[1].answer = answer_and_elect  # type: ignore[method-assign]
    brokers[2].refuses = True
    assert Admin(client()).create_topics([NewTopic("t", 1, 1)]) == {"t": None}
    assert brokers[1].created == ["t"]


def test_a_stopped_cluster_is_reported_at_once(brokers: Brokers, client: Client) -> None:
    for broker in brokers.values():
        broker.refuses = True
    (failure,) = Admin(client()).create_topics([NewTopic("t", 1, 1)]).values()
    assert isinstance(failure, RefusedFailure)


def test_an_older_answer_does_not_replace_a_newer_leader(brokers: Brokers, client: Client) -> None:
    """Broker 1 was the leader and has lost its connection to the controller."""
    brokers[1].topics = {"t": topic("t", leader=1, epoch=4), "u": topic("u", leader=1, epoch=4)}
    brokers[2].topics = {"t": topic("t", leader=2, epoch=5), "u": topic("u", leader=2, epoch=4)}
    cluster = client()
    assert cluster.metadata_of(2, ["t", "u"]).topics["t"].partitions[0].leader == 2
    assert cluster.metadata_of(1, ["t", "u"]).topics["t"].partitions[0].leader == 1, "what this broker knows"
    assert cluster.leader("t", 0) == 2
    assert cluster.leader("u", 0) == 1, "the newest answer for the same epoch"
    cluster.invalidate("t")
    brokers[2].hangs = True
    with pytest.raises(TimeoutFailure):
        cluster.metadata_of(2, ["t"])
    assert cluster.metadata(["t"]).topics["t"].partitions[0].leader == 2
    assert cluster.metadata(None).topics["t"].partitions[0].leader == 2
    assert cluster.leader("t", 0) == 2


def test_the_leader_of_a_recreated_topic_is_accepted(brokers: Brokers, client: Client) -> None:
    brokers[1].topics = {"t": topic("t", leader=1, epoch=0, topic_id="AAAAAAAAAAAAAAAAAAAAAg")}
    brokers[2].topics = {"t": topic("t", leader=2, epoch=5)}
    cluster = client()
    cluster.metadata_of(2, ["t"])
    cluster.metadata_of(1, ["t"])
    assert cluster.leader("t", 0) == 1


def test_an_older_leader_is_accepted_if_no_broker_names_the_newer_one(brokers: Brokers, client: Client) -> None:
    """As after the cluster was restored to an older state."""
    brokers[1].topics = {"t": topic("t", leader=1, epoch=4)}
    brokers[2].topics = {"t": topic("t", leader=2, epoch=5)}
    cluster = client(metadata_max_age_ms=0)
    cluster.metadata_of(2, ["t"])
    brokers[2].hangs = True
    with pytest.raises(TimeoutFailure):
        cluster.metadata_of(2, ["t"])
    assert cluster.metadata(["t"]).topics["t"].partitions[0].leader == 1


def test_the_log_end_is_that_of_the_leader(brokers: Brokers, client: Client) -> None:
    """Broker 1, which was the leader, is a follower behind it."""
    cluster, t0 = client(), TopicPartition("t", 0)
    brokers[1].topics = {"t": topic("t", leader=1, epoch=4)}
    assert cluster.leader("t", 0) == 1
    for broker in brokers.values():
        broker.topics = {"t": topic("t", leader=2, epoch=5)}
        broker.log_end = 7 if broker.node == 1 else 9
    assert Admin(cluster).list_offsets({t0: LATEST}, log_end=True) == {t0: OffsetInfo(9, -1, 5)}
