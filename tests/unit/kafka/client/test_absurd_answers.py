"""A broker whose answers are well-formed and absurd: each call ends soon, with what was asked for or a typed failure."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, Final

import pytest
from kafka.protocol.metadata import ApiVersionsRequest, FindCoordinatorRequest, MetadataRequest

from mm2.copy.executor.clusters.discovery import new_producer
from mm2.kafka.admin import Admin
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.client.connection import Connection
from mm2.kafka.errors import BrokerFailure, CorruptBatch, KafkaFailure
from mm2.kafka.producer.transactions import TransactionCoordinatorClient
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import (
    EARLIEST,
    LATEST,
    AclBinding,
    AclOperation,
    AclPermission,
    AlterOp,
    NewTopic,
    OffsetAndMetadata,
    OffsetInfo,
    PatternType,
    ProducerIdentity,
    ResourceType,
    TopicPartition,
)
from mm2.mirror.client import MirrorClient
from tests.faults.absurd import Absurdity, absurd
from tests.faults.wire import Request
from tests.fuzz.hostile_broker import TOPIC, HostileBroker

_PARTITION: Final = TopicPartition(TOPIC, 0)
_BINDING: Final = AclBinding(
    ResourceType.TOPIC, TOPIC, PatternType.LITERAL, "User:u", "*", AclOperation.READ, AclPermission.ALLOW
)
#: The broker is the coordinator of this key.
_ID: Final = "g"
_PRODUCER: Final = ProducerIdentity(1, 0)
#: With so many requests a call ends; a call that repeats its request waits between them.
_MOST_REQUESTS: Final = 40


class AbsurdBroker(HostileBroker):
    """All answers but those that find the broker are changed in one way."""

    def __init__(self, absurdity: Absurdity) -> None:
        super().__init__(1)
        self._absurdity = absurdity
        self.honest = {ApiVersionsRequest.API_KEY, MetadataRequest.API_KEY, FindCoordinatorRequest.API_KEY}

    def _choose(self, key: int) -> Any:
        return self._valid if key in self.honest else self._absurd

    def _absurd(self, connection: socket.socket, key: int, version: int, correlation_id: int) -> bool:
        answer = correlation_id.to_bytes(4, "big") + self._answer(key, version)
        changed = absurd(Request(key, version, correlation_id, b""), answer, self._absurdity)
        connection.sendall(len(changed).to_bytes(4, "big") + changed)
        return True


def _props(port: int) -> dict[str, str]:
    return {
        "bootstrap.servers": f"127.0.0.1:{port}",
        "request.timeout.ms": "60000",
        "default.api.timeout.ms": "300",
        "retry.backoff.ms": "20",
    }


def _calls(cluster: Cluster, port: int) -> dict[str, Callable[[], Any]]:
    admin = Admin(cluster)
    transactions = TransactionCoordinatorClient(cluster, _ID, patience_s=0.3)

    def heartbeats() -> int:
        with MirrorClient(_props(port)) as client:
            return client.offset(TOPIC, 1_000)

    return {
        "earliest": lambda: admin.list_offsets({_PARTITION: EARLIEST}),
        "latest": lambda: admin.list_offsets({_PARTITION: LATEST}),
        "at a time": lambda: admin.list_offsets({_PARTITION: 1_000}),
        "at a time or the end": heartbeats,
        "epochs": lambda: admin.epoch_ends({_PARTITION: 0}),
        "producers": lambda: admin.describe_producers([_PARTITION]),
        "delete records": lambda: admin.delete_records({_PARTITION: 1}),
        "configs": lambda: admin.describe_configs([TOPIC]),
        "alter configs": lambda: admin.incremental_alter_configs({TOPIC: [AlterOp("a", "b")]}),
        "broker": lambda: admin.describe_broker(1, ["producer.id.expiration.ms"]),
        "create topics": lambda: admin.create_topics([NewTopic(TOPIC)], validate_only=True),
        "groups": admin.list_groups,
        "describe groups": lambda: admin.describe_groups(["g"]),
        "group offsets": lambda: admin.list_group_offsets(["g"]),
        "alter group offsets": lambda: admin.alter_group_offsets("g", {_PARTITION: OffsetAndMetadata(1, "")}),
        "delete group offsets": lambda: admin.delete_group_offsets("g", [_PARTITION]),
        "delete groups": lambda: admin.delete_groups(["g"]),
        "fence": lambda: admin.fence_producers([_ID]),
        "ACLs": admin.describe_acls,
        "create ACLs": lambda: admin.create_acls([_BINDING]),
        "delete ACLs": lambda: admin.delete_acls([_BINDING]),
        "topic rights": lambda: admin.topic_rights([TOPIC]),
        "group rights": lambda: admin.group_rights(["g"]),
        "cluster rights": admin.cluster_rights,
        "new producer": lambda: new_producer(cluster),
        "init producer": lambda: transactions.init_producer_id(60_000),
        "add partitions": lambda: transactions.add_partitions(_PRODUCER, [_PARTITION]),
        "end": lambda: transactions.end(_PRODUCER, commit=True),
    }


@pytest.fixture(params=list(Absurdity))
def broker(request: pytest.FixtureRequest) -> Iterator[AbsurdBroker]:
    with closing(AbsurdBroker(request.param)) as made:
        yield made


def test_each_call_ends_with_what_was_asked_for_or_a_typed_failure(broker: AbsurdBroker) -> None:
    """ListOffsets with negative offsets was asked again without end, at any rate; a wrong number of ACLs raised ValueError."""
    settings = ClientSettings.from_props(_props(broker.port), client_id="c")
    outcomes: dict[str, Any] = {}
    with closing(Cluster(settings, name="A")) as cluster:
        for name, call in _calls(cluster, broker.port).items():
            before = broker.answers.total()
            try:
                outcomes[name] = call()
            except KafkaFailure as failure:
                outcomes[name] = failure
            assert broker.answers.total() - before <= _MOST_REQUESTS, name
    for name, outcome in outcomes.items():
        for one in outcome.values() if isinstance(outcome, dict) else (outcome,):
            assert not isinstance(one, OffsetInfo) or 0 <= one.offset < 1 << 62, name
            assert not isinstance(one, ProducerIdentity) or min(one) >= 0, name
            assert not isinstance(one, BrokerFailure | CorruptBatch) or len(str(one)) < 4_000, name


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_each_login_ends_soon(broker: AbsurdBroker, mechanism: str) -> None:
    """With a login, or with one failure of limited length."""
    login = "scram.ScramLoginModule" if mechanism.startswith("SCRAM") else "plain.PlainLoginModule"
    props = {
        **_props(broker.port),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f'org.apache.kafka.common.security.{login} required username="u" password="p";',
    }
    settings = ClientSettings.from_props(props, client_id="c")
    with closing(Cluster(settings, name="A")) as cluster:
        try:
            cluster.metadata([TOPIC])
        except KafkaFailure as failure:
            assert len(str(failure)) < 4_000  # noqa: PT017
    assert broker.answers.total() <= _MOST_REQUESTS


def test_the_name_of_a_host_is_short_in_messages() -> None:
    """A megabyte of it was logged with each failure to connect."""
    settings = ClientSettings.from_props({"bootstrap.servers": "localhost:1"}, client_id="c")
    with pytest.raises(KafkaFailure) as caught:
        Connection.open("x" * (1 << 20), 1, settings, timeout_s=60, cluster="A")
    assert len(str(caught.value)) < 4_000


def test_partitions_that_an_answer_leaves_out_are_not_in_the_transaction() -> None:
    """They counted as added."""
    with closing(AbsurdBroker(Absurdity.EMPTY)) as broker:
        settings = ClientSettings.from_props({**_props(broker.port), "default.api.timeout.ms": "60000"}, client_id="c")
        with closing(Cluster(settings, name="A")) as cluster:
            transactions = TransactionCoordinatorClient(cluster, _ID, patience_s=60)
            with pytest.raises(BrokerFailure, match="partition t-0: UNKNOWN_SERVER_ERROR"):
                transactions.add_partitions(_PRODUCER, [_PARTITION])


def test_a_producer_without_an_id_is_refused() -> None:
    """Its batches would not be idempotent: a repeated one would be a duplicate."""
    with closing(AbsurdBroker(Absurdity.NEGATIVE)) as broker:
        settings = ClientSettings.from_props({**_props(broker.port), "default.api.timeout.ms": "60000"}, client_id="c")
        with closing(Cluster(settings, name="A")) as cluster, pytest.raises(CorruptBatch, match="producer_id is -7"):
            new_producer(cluster)


def test_offsets_that_a_client_has_committed_are_no_reason_to_refuse_an_answer() -> None:
    """Brokers store any number; refusing it would let one client stop the synchronization of all groups."""
    with closing(AbsurdBroker(Absurdity.NEGATIVE)) as broker:
        settings = ClientSettings.from_props({**_props(broker.port), "default.api.timeout.ms": "60000"}, client_id="c")
        with closing(Cluster(settings, name="A")) as cluster:
            assert Admin(cluster).list_group_offsets(["g"]) == {"g": {}}
