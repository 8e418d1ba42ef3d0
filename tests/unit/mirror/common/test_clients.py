import pytest

from mm2.mirror.common.clients import ClientKind, MirrorClients, Side

PROPS = {
    "name": "MirrorSourceConnector",
    "source.cluster.alias": "A",
    "target.cluster.alias": "B",
    "source.cluster.bootstrap.servers": "a:9092",
    "source.cluster.security.protocol": "PLAINTEXT",
    "source.cluster.request.timeout.ms": "1",
    "source.consumer.isolation.level": "read_committed",
    "consumer.isolation.level": "read_uncommitted",
    "consumer.max.poll.records": "9",
    "target.cluster.bootstrap.servers": "b:9092",
    "target.admin.security.protocol": "SSL",
    "target.admin.client.id": "mine",
    "producer.override.batch.size": "1",
}


def test_client_keys_are_selected_by_cluster_and_client_type() -> None:
    consumer = MirrorClients(PROPS).client_props(Side.SOURCE, ClientKind.CONSUMER, "replication-consumer")
    assert consumer == {
        "bootstrap.servers": "a:9092",
        "security.protocol": "PLAINTEXT",
        "isolation.level": "read_committed",
        "max.poll.records": "9",
        "enable.auto.commit": "false",
        "auto.offset.reset": "earliest",
        "client.id": "A->B|MirrorSourceConnector|replication-consumer",
    }


def test_settings_of_the_client_type_override_those_of_the_cluster() -> None:
    admin = MirrorClients(PROPS).client_props(Side.TARGET, ClientKind.ADMIN, "replication-target-admin")
    assert admin["security.protocol"] == "SSL"
    assert admin["bootstrap.servers"] == "b:9092"


def test_client_ids() -> None:
    clients = MirrorClients({**PROPS, "task.index": "3"}, task=True)
    assert clients.client_id("replication-consumer") == "A->B|MirrorSourceConnector-3|replication-consumer"
    assert MirrorClients(PROPS, task=True).client_id("r") == "A->B|MirrorSourceConnector-?|r"
    admin = MirrorClients(PROPS).client_props(Side.TARGET, ClientKind.ADMIN, "replication-target-admin")
    assert admin["client.id"] == "mine|A->B|MirrorSourceConnector|replication-target-admin"


def test_prefixes_are_stripped_naively_as_in_java() -> None:
    producer = MirrorClients(PROPS).client_props(Side.SOURCE, ClientKind.PRODUCER, "offset-syncs-source-producer")
    assert producer["override.batch.size"] == "1"


def test_settings_have_their_types() -> None:
    settings = MirrorClients(PROPS).settings(Side.SOURCE, ClientKind.CONSUMER, "replication-consumer")
    assert settings.bootstrap == (("a", 9092),)
    assert settings.request_timeout_ms == 30_000, "not a client key, so the cluster's own key does not count"


@pytest.mark.parametrize("group", ["A-mm2", "own"])
def test_both_connectors_of_a_file_use_one_ledger(group: str) -> None:
    """The task of the source connector writes the ledger by which that of the checkpoint connector translates offsets."""
    props = {"source.cluster.alias": "A", "target.cluster.alias": "B"}
    if group == "own":
        props["target.cluster.group.id"] = group
    names = ("MirrorSourceConnector", "MirrorCheckpointConnector")
    written, read = (MirrorClients({**props, "name": name}, group=group).ledger_topic for name in names)
    assert written == read == MirrorClients(props).ledger_topic
    other = MirrorClients({**props, "name": "MirrorSourceConnector"}, group="another").ledger_topic
    assert other != written
