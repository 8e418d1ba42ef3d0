"""What each key of Kafka does here; tests/integration/config/test_config_keys.py compares the table with Kafka's own definitions."""

from __future__ import annotations

from pathlib import Path

import pytest

from mm2.config.configdef import ConfigException
from mm2.config.files.java_options import ineffective_variables
from mm2.config.keys.key_effects import (
    Effect,
    Place,
    check_effects,
    connector_uses,
    effect_of,
    key_effects,
    worker_uses,
)
from mm2.config.mirrormaker import MirrorMakerConfig

FLOW = {
    "clusters": "A,B",
    "A.bootstrap.servers": "localhost:1",
    "B.bootstrap.servers": "localhost:2",
    "A->B.enabled": "true",
}
JMX = "org.apache.kafka.common.metrics.JmxReporter"


def ineffective(props: dict[str, str]) -> dict[str, Effect]:
    return {one.key: one.effect for one in MirrorMakerConfig({**FLOW, **props}).ineffective_keys()}


def test_each_key_has_one_row_for_each_place_and_a_reason_unless_it_is_honoured() -> None:
    rows = key_effects()
    assert len({(row.place, row.key) for row in rows}) == len(rows)
    for row in rows:
        assert bool(row.reason) == (row.effect is not Effect.HONOURED), row
        assert not row.reason.endswith("."), row


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("A.consumer.max.poll.records", "9"),
        ("A->B.consumer.session.timeout.ms", "9"),
        ("A->B.source.consumer.enable.auto.commit", "true"),
        ("A->B.consumer.poll.timeout.ms", "9"),
        ("A->B.admin.timeout.ms", "9"),
        ("B.producer.linger.ms", "9"),
        ("A->B.producer.override.linger.ms", "9"),
        ("A->B.producer.acks", "0"),  # the producer of offset syncs
        ("B.metrics.num.samples", "9"),
        ("A.admin.metrics.num.samples", "9"),
        ("ssl.provider", "Other"),
        ("B.ssl.provider", "Other"),
        ("listeners.https.ssl.provider", "Other"),
        ("listeners.https.ssl.principal.mapping.rules", "RULE:^CN=([^,]+).*$/$1/L"),
        ("metric.reporters", "com.example.Reporter"),
        ("A->B.topic.creation.default.partitions", "9"),
        ("A->B.value.converter.converter.type", "key"),
        ("B.key.converter.converter.type", "value"),
    ],
)
def test_a_key_without_effect_is_reported(key: str, value: str) -> None:
    assert ineffective({key: value}) == {key: Effect.NONE}


@pytest.mark.parametrize("key", ["B.producer.compression.type", "A->B.producer.override.compression.type"])
def test_a_key_for_some_clients_only_is_reported(key: str) -> None:
    assert ineffective({key: "zstd"}) == {key: Effect.PARTLY}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("A.consumer.fetch.min.bytes", "9"),
        ("A.consumer.request.timeout.ms", "9000"),
        ("A.consumer.client.rack", "r"),
        ("A.consumer.check.crcs", "true"),
        ("A.consumer.interceptor.classes", ""),
        ("B.producer.acks", "ALL"),
        ("A.producer.client.id", "x"),
        ("metric.reporters", JMX),
        ("ssl.keystore.type", "pkcs12"),
        ("ssl.truststore.type", "PEM"),
        ("A->B.transforms", "t"),
        ("A->B.transforms.t.type", "x"),
        ("B.offset.flush.interval.ms", "9"),
        ("A->B.topics", "t"),
        ("listeners", "http://127.0.0.1:0"),
        ("A.consumer.acme.url", "http://plugin"),
    ],
)
def test_a_key_with_effect_or_with_an_accepted_value_is_not_reported(key: str, value: str) -> None:
    assert not ineffective({key: value})


def test_a_key_that_is_used_in_two_places_has_an_effect_if_it_has_one_in_any() -> None:
    props = {"A.consumer.max.poll.records": "9", "B->A.enabled": "true", "A.producer.acks": "1"}
    assert ineffective(props) == {"A.consumer.max.poll.records": Effect.NONE, "A.producer.acks": Effect.PARTLY}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("A.consumer.interceptor.classes", "com.example.Mask"),
        ("B.producer.interceptor.classes", "com.example.Mask"),
        ("A->B.producer.override.interceptor.classes", "com.example.Mask"),
        ("A->B.producer.interceptor.classes", "com.example.Mask"),
        ("B.admin.bootstrap.controllers", "localhost:9"),
        ("A.ssl.engine.factory.class", "com.example.Engine"),
        ("ssl.keystore.type", "BCFKS"),
        ("A->B.offsets.storage.topic", "elsewhere"),
        ("B.producer.transaction.two.phase.commit.enable", "true"),
    ],
)
def test_a_refused_key_is_named_with_its_value(key: str, value: str) -> None:
    config = MirrorMakerConfig({**FLOW, key: value})
    with pytest.raises(ConfigException, match="Invalid value") as error:
        config.validate()
    assert (error.value.name, error.value.value) == (key, value)


def test_keys_of_flows_into_other_targets_are_not_judged() -> None:
    config = MirrorMakerConfig({**FLOW, "A->B.offsets.storage.topic": "elsewhere"})
    assert config.ineffective_keys({"A"}) == []


def test_a_reference_is_resolved_before_it_is_judged(tmp_path: Path) -> None:
    values = tmp_path / "values.properties"
    values.write_text("crcs=true\n")
    providers = {
        "config.providers": "file",
        "config.providers.file.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
    }
    assert not ineffective({**providers, "A.consumer.check.crcs": f"${{file:{values}:crcs}}"})


def test_a_reference_of_a_key_with_effect_is_not_resolved(tmp_path: Path) -> None:
    providers = {
        "config.providers": "file",
        "config.providers.file.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
    }
    assert not ineffective({**providers, "A.consumer.client.rack": f"${{file:{tmp_path}/missing:rack}}"})


def test_keys_of_a_worker_s_file_and_of_its_connectors() -> None:
    worker = {"bootstrap.servers": "b:1", "metrics.num.samples": "3", "producer.linger.ms": "1", "producer.acks": "1"}
    assert [one.key for one in check_effects(worker_uses(worker))] == ["metrics.num.samples", "producer.linger.ms"]
    converters = {"value.converter.converter.type": "key", "value.converter.schemas.enable": "false"}
    for uses in (worker_uses, connector_uses):
        assert [one.key for one in check_effects(uses(converters))] == ["value.converter.converter.type"]
    sink = {"connector.class": "X", "consumer.override.share.acquire.mode": "record_limit", "acme.linger.ms": "3"}
    assert [one.key for one in check_effects(connector_uses(sink))] == ["consumer.override.share.acquire.mode"]
    mirror = {
        "connector.class": "org.apache.kafka.connect.mirror.MirrorSourceConnector",
        "consumer.poll.timeout.ms": "9",
        "source.cluster.alias": "A",
        "target.cluster.ssl.provider": "Other",
        "source.consumer.max.poll.records": "3",
    }
    assert [one.key for one in check_effects(connector_uses(mirror))] == [
        "consumer.poll.timeout.ms",
        "target.cluster.ssl.provider",
        "source.consumer.max.poll.records",
    ]
    with pytest.raises(ConfigException, match=r"producer\.partitioner\.class"):
        check_effects(worker_uses({"producer.partitioner.class": "com.example.P"}))


def test_a_prefix_stands_for_the_keys_that_begin_with_it() -> None:
    found = effect_of(Place.MIRROR, "topic.creation.default.partitions")
    assert found is not None
    assert found.key == "topic.creation.*"
    assert effect_of(Place.MIRROR, "no.such.key") is None


def test_variables_of_kafka_s_scripts_without_effect_are_reported() -> None:
    given = {"KAFKA_HEAP_OPTS": "-Xmx2g", "KAFKA_LOG4J_OPTS": "", "KAFKA_OPTS": "-Da=b", "JMX_PORT": "9999"}
    assert ineffective_variables(given) == [
        "The environment variable KAFKA_HEAP_OPTS has no effect: only Spark has a Java heap, which spark.driver.memory sets.",
        "The environment variable JMX_PORT has no effect: metrics are served over HTTP at /metrics.",
    ]
