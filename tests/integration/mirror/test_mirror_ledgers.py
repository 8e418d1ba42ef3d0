"""Reads of a flow's ledger by its leader, on a real broker."""

from collections.abc import Iterator

import pytest

from mm2.kafka.admin import Admin
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.errors import BrokerFailure
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.mirror.common.clients import MirrorClients
from mm2.mirror.notes.ledgers import Ledgers
from mm2.mirror.notes.promotions import Promotion, promoted, withdrawn
from mm2.sandbox.kafka import LocalKafka
from tests.integration.mirror_flow import admin, create, flow_props, write
from tests.support.waiting import wait_until

COMPACTED = {"cleanup.policy": "compact"}


@pytest.fixture
def ledgers(kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str) -> Iterator[Ledgers]:
    props = flow_props("MirrorSourceConnector", kafka_a, kafka_b) | {"source.cluster.alias": unique}
    cluster = Cluster(ClientSettings.from_props({"bootstrap.servers": kafka_b.bootstrap}), name="B")
    try:
        yield Ledgers(MirrorClients(props), Admin(cluster))
    finally:
        cluster.close()


def test_the_own_ledger_is_current_and_only_new_records_are_read(
    ledgers: Ledgers, kafka_b: LocalKafka, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = f"mm2-ledger.{unique}.internal"
    with pytest.raises(BrokerFailure):
        ledgers.own()
    create(kafka_b, topic, config=COMPACTED)
    note(kafka_b, topic, "one", "two")
    read: list[bytes] = []
    apply = type(ledgers.own()).apply

    def noting(self: object, key: bytes, value: bytes | None, timestamp: int) -> None:
        read.append(key)
        apply(self, key, value, timestamp)  # type: ignore[arg-type]

    monkeypatch.setattr("mm2.copy.progress.ledger.Ledger.apply", noting)
    assert set(promoted(ledgers.own())) == {"one", "two"}
    assert not read, "nothing is new"
    gone = withdrawn("one")
    write(kafka_b, topic, [(gone.key, gone.value)], 0)
    note(kafka_b, topic, "three")
    assert set(promoted(ledgers.own())) == {"two", "three"}
    assert len(read) == 2

    admin(kafka_b).delete_topics([topic])[topic].result(30)
    wait_until(lambda: topic not in admin(kafka_b).list_topics(timeout=60).topics, 30, what="its end")
    create(kafka_b, topic, config=COMPACTED)
    note(kafka_b, topic, "four", "five", "six", "seven", "eight")
    assert set(promoted(ledgers.own())) == {"four", "five", "six", "seven", "eight"}, "another ledger, though longer"


def note(broker: LocalKafka, topic: str, *topics: str) -> None:
    records = [Promotion(one, f"A.{one}", "promote", 1).record() for one in topics]
    write(broker, topic, [(record.key, record.value) for record in records], 0)
