"""Examples of the settings that MirrorMaker's file gives to clusters, workers and connectors.

Beside these examples, 210 random files gave the same pairs and the same cluster, worker and connector maps as the class
MirrorMakerConfig of connect-mirror 4.3.0.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm2.config.configdef import ConfigException
from mm2.config.keys.mirror_keys import CHECKPOINT_CONNECTOR, CONNECTOR_CLASSES, HEARTBEAT_CONNECTOR, SOURCE_CONNECTOR
from mm2.config.mirrormaker import MirrorMakerConfig, SourceAndTarget

if TYPE_CHECKING:
    from pathlib import Path

A_TO_B = SourceAndTarget("A", "B")
BYTES = "org.apache.kafka.connect.converters.ByteArrayConverter"


def mirror_maker(clusters: str = "A,B", **props: str) -> MirrorMakerConfig:
    return MirrorMakerConfig({"clusters": clusters, **props})


def of(lines: str, clusters: str = "A,B") -> MirrorMakerConfig:
    """A configuration from space-separated ``key=value`` pairs."""
    return mirror_maker(clusters, **dict(word.split("=", 1) for word in lines.split()))


def pairs(lines: str, clusters: str) -> set[str]:
    return set(map(str, of(lines, clusters).cluster_pairs()))


# -- flows -------------------------------------------------------------------------------------------------------------


def test_heartbeats_alone_create_every_pair() -> None:
    assert pairs("", "A,B,C") == {"A->B", "A->C", "B->A", "B->C", "C->A", "C->B"}


def test_without_heartbeats_and_flows_there_are_no_pairs() -> None:
    assert pairs("emit.heartbeats.enabled=false", "A,B,C") == set()


def test_heartbeats_of_single_flows_can_be_off() -> None:
    lines = "A->B.emit.heartbeats.enabled=false C->A.emit.heartbeats.enabled=false"
    assert pairs(lines, "A,B,C") == {"A->C", "B->A", "B->C", "C->B"}


def test_without_heartbeats_only_enabled_flows_exist() -> None:
    lines = "emit.heartbeats.enabled=false A->B.enabled=true B->C.enabled=TRUE C->A.enabled=True"
    assert pairs(lines, "A,B,C") == {"A->B", "B->C", "C->A"}


def test_a_flow_s_own_heartbeats_key_overrides_the_top_level_one() -> None:
    lines = "emit.heartbeats.enabled=false A->B.enabled=true B->C.enabled=true C->B.emit.heartbeats.enabled=true"
    assert pairs(lines, "A,B,C") == {"A->B", "B->C", "C->B"}


@pytest.mark.parametrize("value", ["yes", "1", "true ", " true", "", "on"])
def test_anything_but_true_is_false(value: str) -> None:
    config = mirror_maker(**{"A->B.enabled": value, "B->A.enabled": "true", "emit.heartbeats.enabled": "false"})
    assert list(map(str, config.cluster_pairs())) == ["B->A"]
    assert mirror_maker(**{"A->B.emit.heartbeats.enabled": value}).cluster_pairs() == [SourceAndTarget("B", "A")]


def test_top_level_enabled_creates_no_flow() -> None:
    assert pairs("enabled=true emit.heartbeats.enabled=false", "A,B") == set()


@pytest.mark.parametrize(
    ("props", "expected"),
    [
        ({"A->B.enabled": "true"}, ["A->B"]),
        ({"A->B.enabled": "TRUE "}, ["A->B"]),
        ({"A->B.enabled": "true ", "emit.heartbeats.enabled": "false"}, []),
        ({"enabled": "true", "B->A.enabled": "false"}, ["A->B"]),
        ({}, []),
    ],
)
def test_flows_replicate_by_the_settings_of_their_connectors(props: dict[str, str], expected: list[str]) -> None:
    """A blank after the value, which Java keeps, is ignored by the connectors of a flow that exists for its heartbeats."""
    assert list(map(str, mirror_maker(**props).replicating_pairs())) == expected


def test_flows_may_be_enabled_by_a_config_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MM2_TEST_ENABLED", "true")
    config = mirror_maker(
        **{
            "config.providers": "env",
            "config.providers.env.class": "EnvVarConfigProvider",
            "A->B.enabled": "${env:MM2_TEST_ENABLED}",
            "emit.heartbeats.enabled": "false",
        }
    )
    assert config.cluster_pairs() == config.replicating_pairs() == [A_TO_B]


def test_duplicate_clusters_are_merged_and_the_list_may_be_empty() -> None:
    assert mirror_maker("A, B,A").clusters == ("A", "B")
    assert mirror_maker("").cluster_pairs() == []
    assert mirror_maker("A").cluster_pairs() == []
    assert mirror_maker().unknown_clusters(["B", "C", "b"]) == ["C", "b"]


_FLAG = st.sampled_from([None, "true", "false", "True", "x"])


@given(st.dictionaries(st.tuples(st.sampled_from("ABC"), st.sampled_from("ABC")), st.tuples(_FLAG, _FLAG)), _FLAG)
def test_a_pair_exists_iff_it_replicates_or_emits_heartbeats(
    flags: dict[tuple[str, str], tuple[str | None, str | None]], default: str | None
) -> None:
    props = {} if default is None else {"emit.heartbeats.enabled": default}
    for (s, t), values in flags.items():
        for name, value in zip(("enabled", "emit.heartbeats.enabled"), values, strict=True):
            if value is not None:
                props[f"{s}->{t}.{name}"] = value
    expected = set()
    for s, t in ((s, t) for s in "ABC" for t in "ABC" if s != t):
        enabled, heartbeats = flags.get((s, t), (None, None))
        beating = next(flag for flag in (heartbeats, default, "true") if flag is not None)
        if "true" in {(enabled or "").lower(), beating.lower()}:
            expected.add(SourceAndTarget(s, t))
    assert set(mirror_maker("A,B,C", **props).cluster_pairs()) == expected


# -- clusters ----------------------------------------------------------------------------------------------------------


def test_cluster_props_are_the_cluster_s_keys_and_the_inherited_client_keys() -> None:
    config = of("A.bootstrap.servers=a:1 A.x=1 A->B.y=2 AB.z=3 ssl.key.password=p topics=t", "A,B")
    expected = {
        f"{role}{key}": value
        for role in ("", "producer.", "consumer.", "admin.")
        for key, value in (("bootstrap.servers", "a:1"), ("ssl.key.password", "p"))
    }
    assert config.cluster_props("A") == {**expected, "x": "1"}


@pytest.mark.parametrize(
    ("lines", "consumer", "plain"),
    [
        ("security.protocol=SSL", "SSL", "SSL"),
        ("security.protocol=SSL A.security.protocol=PLAINTEXT", "PLAINTEXT", "PLAINTEXT"),
        ("A.security.protocol=PLAINTEXT A.consumer.security.protocol=SASL_SSL", "SASL_SSL", "PLAINTEXT"),
        ("security.protocol=SSL A.consumer.security.protocol=SASL_SSL", "SASL_SSL", "SSL"),
    ],
)
def test_client_keys_role_before_cluster_before_top(lines: str, consumer: str, plain: str) -> None:
    props = of(lines).cluster_props("A")
    assert (props["consumer.security.protocol"], props["security.protocol"]) == (consumer, plain)


def test_top_bootstrap_servers_is_a_default_for_clusters_without() -> None:
    config = of("bootstrap.servers=x:1 B.bootstrap.servers=b:1")
    assert config.cluster_props("A")["consumer.bootstrap.servers"] == "x:1"
    assert config.cluster_props("B")["bootstrap.servers"] == "b:1"


def test_other_client_settings_are_not_inherited() -> None:
    props = of("A.request.timeout.ms=1 request.timeout.ms=2 linger.ms=3").cluster_props("A")
    assert props == {"request.timeout.ms": "1"}


def test_an_alias_may_contain_dots() -> None:
    config = of("us.west.bootstrap.servers=u:1", "us,us.west")
    assert config.cluster_props("us.west")["bootstrap.servers"] == "u:1"
    assert config.cluster_props("us") == {"west.bootstrap.servers": "u:1"}


def test_mirror_client_sees_top_keys_below_the_cluster_s(tmp_path: Path) -> None:
    secret = tmp_path / "s.properties"
    secret.write_text("k=s3cret")
    config = of(
        "config.providers=f config.providers.f.class=org.apache.kafka.common.config.provider.FileConfigProvider "
        f"replication.policy.separator=- A.replication.policy.separator=_ A.ssl.key.password=${{f:{secret}:k}} "
        "forwarding.admin.class=x"
    )
    props = config.client_config("A")
    assert props["replication.policy.separator"] == "_"
    assert (props["ssl.key.password"], props["forwarding.admin.class"]) == ("s3cret", "x")


# -- workers -----------------------------------------------------------------------------------------------------------


def test_worker_defaults() -> None:
    assert of("B.bootstrap.servers=b:1").worker_config(A_TO_B) == {
        **{f"{role}bootstrap.servers": "b:1" for role in ("", "producer.", "consumer.", "admin.")},
        "client.id": "A->B",
        "group.id": "A-mm2",
        "offset.storage.topic": "mm2-offsets.A.internal",
        "status.storage.topic": "mm2-status.A.internal",
        "config.storage.topic": "mm2-configs.A.internal",
        "key.converter": BYTES,
        "value.converter": BYTES,
        "header.converter": BYTES,
    }


def test_worker_lives_on_the_target_and_reads_its_keys() -> None:
    worker = of("A.group.id=no B.group.id=shared B.producer.linger.ms=5 B.offset.flush.interval.ms=7").worker_config(
        A_TO_B
    )
    assert (worker["group.id"], worker["producer.linger.ms"], worker["offset.flush.interval.ms"]) == (
        "shared",
        "5",
        "7",
    )


@pytest.mark.parametrize(
    "key",
    [
        "offset.storage.replication.factor",
        "config.storage.topic",
        "status.storage.partitions",
        "key.converter",
        "value.converter.schemas.enable",
        "header.converter",
        "task.shutdown.graceful.timeout.ms",
        "worker.sync.timeout.ms",
        "replication.policy.separator",
        "tasks.max",
    ],
)
def test_top_keys_of_the_nine_prefixes_beat_the_cluster_s(key: str) -> None:
    assert of(f"{key}=1 B.{key}=2").worker_config(A_TO_B)[key] == "1"
    assert of(f"B.{key}=2").worker_config(A_TO_B)[key] == "2"


def test_topic_names_ignore_the_separator() -> None:
    worker = of("replication.policy.separator=_").worker_config(A_TO_B)
    assert worker["offset.storage.topic"] == "mm2-offsets.A.internal"


def test_flow_keys_are_not_passed_to_the_worker() -> None:
    worker = of("A->B.group.id=g A->B.offset.storage.topic=t A->B.producer.acks=1").worker_config(A_TO_B)
    assert (worker["group.id"], worker["offset.storage.topic"]) == ("A-mm2", "mm2-offsets.A.internal")
    assert "producer.acks" not in worker


DROPPED = [
    "group.id",
    "client.id",
    "offset.flush.interval.ms",
    "exactly.once.source.support",
    "plugin.path",
    "producer.linger.ms",
    "consumer.fetch.min.bytes",
    "admin.retries",
    "producer.override.acks",
    "exactly.once.support",
    "transaction.boundary",
    "transaction.boundary.interval.ms",
    "topic.creation.groups",
    "offsets.storage.topic",
    "use.defaults.from",
    "my.filter.key",
]


@pytest.mark.parametrize("key", DROPPED)
def test_other_top_keys_are_dropped(key: str) -> None:
    with_key, without = of(f"{key}=7"), of("")
    assert with_key.worker_config(A_TO_B) == without.worker_config(A_TO_B)
    assert with_key.cluster_props("B") == without.cluster_props("B") == {}
    for connector in CONNECTOR_CLASSES:
        assert with_key.connector_config(A_TO_B, connector) == without.connector_config(A_TO_B, connector)


# -- connectors --------------------------------------------------------------------------------------------------------


def test_the_worked_example_gives_its_documented_settings() -> None:
    config = of(
        "A.consumer.isolation.level=read_committed B.producer.linger.ms=5 A->B.producer.override.batch.size=1 "
        "A->B.source.consumer.fetch.min.bytes=7 A->B.consumer.max.poll.records=9 tasks.max=4 B.tasks.max=9 A.topics=no "
        "topics=t.*"
    )
    assert config.connector_config(A_TO_B, SOURCE_CONNECTOR) == {
        "name": "MirrorSourceConnector",
        "connector.class": SOURCE_CONNECTOR,
        "source.cluster.alias": "A",
        "target.cluster.alias": "B",
        "enabled": "false",
        "source.consumer.isolation.level": "read_committed",
        "target.producer.linger.ms": "5",
        "producer.override.batch.size": "1",
        "source.consumer.fetch.min.bytes": "7",
        "consumer.max.poll.records": "9",
        "tasks.max": "4",
        "topics": "t.*",
        "target.cluster.tasks.max": "9",
        "source.cluster.topics": "no",
    }


def test_the_three_connectors_differ_in_name_and_class_only() -> None:
    config = of("topics=t groups=g emit.heartbeats.interval.seconds=2 A->B.enabled=true A->B.own.key=1")
    maps = [config.connector_config(A_TO_B, name) for name in CONNECTOR_CLASSES]
    assert [m.pop("name") for m in maps] == [
        "MirrorSourceConnector",
        "MirrorHeartbeatConnector",
        "MirrorCheckpointConnector",
    ]
    assert [m.pop("connector.class") for m in maps] == [SOURCE_CONNECTOR, HEARTBEAT_CONNECTOR, CHECKPOINT_CONNECTOR]
    assert maps[0] == maps[1] == maps[2]
    assert maps[0]["own.key"] == "1"
    assert maps[0]["groups"] == "g"


@pytest.mark.parametrize(
    ("lines", "key", "value"),
    [
        ("offset.lag.max=1 A->B.offset.lag.max=2", "offset.lag.max", "2"),
        ("enabled=true", "enabled", "true"),
        ("enabled=true A->B.enabled=false", "enabled", "false"),
        ("name=top", "name", "top"),
        ("name=top A->B.name=flow", "name", "flow"),
        ("source.cluster.alias=X", "source.cluster.alias", "X"),
        ("A.alias=Y", "source.cluster.alias", "Y"),
        ("source.cluster.alias=X A.alias=Y", "source.cluster.alias", "Y"),
        ("B.connector.class=c", "target.cluster.connector.class", "c"),
        ("A.consumer.x=1 A->B.source.consumer.x=2", "source.consumer.x", "2"),
        ("B.offset.flush.interval.ms=1", "target.cluster.offset.flush.interval.ms", "1"),
        ("A.administrator=1", "source.administrator", "1"),
        ("A.consumerism=1", "source.consumerism", "1"),
        ("replication.policy.mine=1", "replication.policy.mine", "1"),
        ("config.providers.f.param.q=1", "config.providers.f.param.q", "1"),
        ("copy.lanes=3", "copy.lanes", "3"),
        ("copy.throttle.bytes.per.sec.a.b=3", "copy.throttle.bytes.per.sec.a.b", "3"),
        ("copy.throttle.bytes.per.sec.t=3 A->B.copy.throttle.bytes.per.sec.t=4", "copy.throttle.bytes.per.sec.t", "4"),
        ("ssl.key.password=p", "target.cluster.ssl.key.password", "p"),
        ("ssl.key.password=p", "ssl.key.password", "p"),
        ("ssl.key.password=p B.ssl.key.password=q", "target.admin.ssl.key.password", "q"),
    ],
)
def test_layers_of_a_connector_s_settings(lines: str, key: str, value: str) -> None:
    assert of(lines).connector_config(A_TO_B, SOURCE_CONNECTOR)[key] == value


# -- providers ---------------------------------------------------------------------------------------------------------


def test_worker_settings_are_resolved_and_connector_settings_are_not(tmp_path: Path) -> None:
    secret = tmp_path / "s.properties"
    secret.write_text("k=s3cret")
    reference = f"${{f:{secret}:k}}"
    config = of(
        "config.providers=f config.providers.f.class=org.apache.kafka.common.config.provider.FileConfigProvider "
        f"config.providers.f.param.note={reference} B.ssl.key.password={reference} A->B.my.key={reference} B.odd=${{g:x:y}} "
        f"replication.policy.separator={reference} spark.authenticate.secret={reference} ssl.truststore.password={reference}"
    )
    worker = config.worker_config(A_TO_B)
    assert worker["ssl.key.password"] == worker["producer.ssl.key.password"] == "s3cret"
    assert worker["replication.policy.separator"] == "s3cret"
    assert worker["config.providers"] == "f"
    assert worker["config.providers.f.param.note"] == reference
    assert worker["odd"] == "${g:x:y}"
    connector = config.connector_config(A_TO_B, SOURCE_CONNECTOR)
    for key in (
        "target.cluster.ssl.key.password",
        "target.producer.ssl.key.password",
        "my.key",
        "replication.policy.separator",
    ):
        assert connector[key] == reference
    assert config.cluster_props("B")["ssl.key.password"] == reference
    assert config.spark_props() == {"spark.authenticate.secret": "s3cret"}
    assert config.rest_props() == {"ssl.truststore.password": "s3cret"}
    assert config.originals["B.ssl.key.password"] == reference


# -- the process's own settings ----------------------------------------------------------------------------------------


def test_rest_is_read_from_the_top_only() -> None:
    config = of(
        "dedicated.mode.enable.internal.rest=true listeners=http://:1 B.listeners=http://:2 "
        "listeners.https.ssl.key.password=p topics=t"
    )
    assert config.internal_rest
    assert config.rest_props() == {"listeners": "http://:1", "listeners.https.ssl.key.password": "p"}
    assert not of("").internal_rest
    assert of("").top.list("listeners") == ["http://:8083"]


def test_spark_props_are_top_keys() -> None:
    assert of("spark.master=local[2] B.spark.x=1 sparkle=2").spark_props() == {"spark.master": "local[2]"}


def test_keys_of_a_cluster_named_spark_are_not_passed_to_spark() -> None:
    config = of("spark.sasl.jaas.config=s3cret spark.consumer.fetch.min.bytes=1 spark.master=local[2]", "A,spark")
    assert config.spark_props() == {"spark.master": "local[2]"}


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        (
            "security.protocol",
            "foo",
            (
                "Invalid value foo for configuration security.protocol: String must be one of (case insensitive): SASL_SSL, "
                "PLAINTEXT, SSL, SASL_PLAINTEXT"
            ),
        ),
        (
            "dedicated.mode.enable.internal.rest",
            "yes",
            "Invalid value yes for configuration dedicated.mode.enable.internal.rest: Expected value to be either true or false",
        ),
        ("clusters", "A,,B", "Configuration 'clusters' values must not be empty."),
        (
            "rest.advertised.port",
            "q",
            "Invalid value q for configuration rest.advertised.port: Not a number of type INT",
        ),
        (
            "sasl.login.refresh.window.factor",
            "3",
            "Invalid value 3.0 for configuration sasl.login.refresh.window.factor: Value must be no more than 1.0",
        ),
    ],
)
def test_bad_top_level_keys_fail_immediately(key: str, value: str, text: str) -> None:
    with pytest.raises(ConfigException) as caught:
        MirrorMakerConfig({"clusters": "A,B", key: value})
    assert str(caught.value) == text


def test_clusters_is_required_and_security_protocol_ignores_case() -> None:
    with pytest.raises(ConfigException, match='Missing required configuration "clusters" which has no default value'):
        MirrorMakerConfig({})
    assert of("security.protocol=sasl_ssl").top.str("security.protocol") == "sasl_ssl"


# -- validation --------------------------------------------------------------------------------------------------------

SERVERS = "A.bootstrap.servers=a:1 B.bootstrap.servers=b:1 C.bootstrap.servers=c:1 "


def problem(lines: str, *targets: str, clusters: str = "A,B") -> str:
    with pytest.raises(ConfigException) as caught:
        of(SERVERS + lines, clusters).validate(targets or None)
    return str(caught.value)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("A->B.offset.lag.max=abc", "Not a number of type LONG"),
        ("tasks.max=x", "Not a number of type INT"),
        ("A->B.tasks.max=0", "Value must be at least 1"),
        ("B.offset.storage.replication.factor=two", "Not a number of type SHORT"),
        ("config.storage.replication.factor=two", "Not a number of type SHORT"),
        ("B.session.timeout.ms=1s", "Not a number of type INT"),
        (
            "B.exactly.once.source.support=on",
            "String must be one of (case insensitive): DISABLED, ENABLED, PREPARING",
        ),
        ("A->B.enabled=yes", "Expected value to be either true or false"),
        ("emit.checkpoints.enabled=no", "Expected value to be either true or false"),
        ("A->B.offset-syncs.topic.location=Source", "String must be one of: source, target"),
        ("A->B.source.data.loss=x", "String must be one of: continue, stop"),
        ("A->B.preserve.offsets=yes", "Expected value to be either true or false"),
        ("copy.throttle.bytes.per.sec.orders.eu=fast", "Not a number of type LONG"),
        ("A->B.copy.throttle.bytes.per.sec.orders=-1", "Value must be at least 0"),
        (
            "A.security.protocol=foo",
            "String must be one of (case insensitive): SASL_SSL, PLAINTEXT, SSL, SASL_PLAINTEXT",
        ),
        ("A.consumer.max.poll.records=many", "Not a number of type INT"),
        ("A->B.consumer.fetch.min.bytes=-1", "Value must be at least 0"),
        (
            "A->B.source.consumer.isolation.level=committed",
            "String must be one of: read_committed, read_uncommitted",
        ),
        ("A->B.producer.override.linger.ms=x", "Not a number of type LONG"),
        ("B.producer.compression.type=zip", "String must be one of: none, gzip, snappy, lz4, zstd"),
        (
            "B.inter.worker.signature.algorithm=HmacMD5",
            "Signature algorithm must be present in inter.worker.verification.algorithms list",
        ),
    ],
)
def test_bad_values_name_the_key_of_the_file(line: str, reason: str) -> None:
    name, value = line.split("=")
    assert problem(line) == f"Invalid value {value} for configuration {name}: {reason}"


def test_preserved_offsets_and_transactions_exclude_each_other() -> None:
    key = "B.exactly.once.source.support"
    found = problem(f"A->B.preserve.offsets=true\n{key}=enabled")
    assert found.startswith(
        f"Invalid value enabled for configuration {key}: preserve.offsets of A->B cannot be combined"
    )
    for lines in (f"A->B.preserve.offsets=true\n{key}=preparing", f"A->B.preserve.offsets=false\n{key}=enabled"):
        of(f"{SERVERS}{lines}").validate()


def test_processes_that_send_each_other_requests_need_a_port() -> None:
    lines = "dedicated.mode.enable.internal.rest=true A.bootstrap.servers=a:1 B.bootstrap.servers=b:1"
    of(lines).validate()
    with pytest.raises(ConfigException, match="needs a port for the other processes to reach"):
        of(f"{lines} listeners=").validate()


def test_missing_servers_name_the_cluster() -> None:
    for alias, other in (("A", "B"), ("B", "A")):
        config = of(f"{other}.bootstrap.servers=x:1 {other}->{alias}.emit.heartbeats.enabled=false")
        with pytest.raises(ConfigException) as caught:
            config.validate()
        assert (
            str(caught.value)
            == f'Missing required configuration "{alias}.bootstrap.servers" which has no default value.'
        )
    assert problem("A.bootstrap.servers=").startswith("Configuration 'A.bootstrap.servers' must not be empty.")


def test_only_flows_into_the_targets_are_checked() -> None:
    lines = "A->B.offset.lag.max=abc C.session.timeout.ms=x"
    assert "C.session.timeout.ms" in problem(lines, "C", clusters="A,B,C")
    assert "A->B.offset.lag.max" in problem(lines, "B", clusters="A,B,C")
    of(SERVERS + lines, "A,B,C").validate(["A"])
    of(SERVERS + lines, "A,B,C").validate([])


def test_an_overridden_value_is_not_validated() -> None:
    of(SERVERS + "tasks.max=x A->B.tasks.max=2 B->A.tasks.max=2").validate()
    of(SERVERS + "B.offset.storage.partitions=x A.offset.storage.partitions=y offset.storage.partitions=3").validate()


def test_a_good_file_passes() -> None:
    of(
        SERVERS + "A->B.enabled=true A->B.topics=a.*,b tasks.max=4 replication.factor=-1 sync.topic.acls.enabled=false "
        "offset.storage.replication.factor=1 B.consumer.auto.offset.reset=by_duration:PT1H A->B.my.filter.key=x "
        "emit.heartbeats.interval.seconds=-1 copy.lanes=2 B.exactly.once.source.support=enabled listeners=http://:0"
    ).validate()


def test_a_bad_value_from_a_provider_is_not_shown(tmp_path: Path) -> None:
    secret = tmp_path / "s.properties"
    secret.write_text("k=s3cret")
    reference = f"${{f:{secret}:k}}"
    provider = "config.providers=f config.providers.f.class=org.apache.kafka.common.config.provider.FileConfigProvider "
    for line in (f"A->B.offset.lag.max={reference}", f"B.session.timeout.ms={reference}"):
        text = problem(provider + line)
        assert text.startswith(
            f"Invalid value {reference} for configuration {line.split('=')[0]}: The referenced value"
        )
        assert "s3cret" not in text
    with pytest.raises(ConfigException) as caught:
        of(f"{provider} security.protocol={reference}")
    assert "s3cret" not in str(caught.value)
    assert caught.value.__context__ is None


def test_an_unresolvable_reference_stops_the_start(tmp_path: Path) -> None:
    provider = "config.providers=f config.providers.f.class=org.apache.kafka.common.config.provider.FileConfigProvider "
    text = problem(f"{provider} B.ssl.key.password=${{f:{tmp_path}/absent:k}}")
    assert text.startswith(f"Config provider f, path {tmp_path}/absent, key k: Cannot read")


@pytest.mark.parametrize("key", ["topics", "A->B.groups.exclude", "config.properties.exclude"])
def test_a_duplicate_that_the_herder_would_reject_is_refused_in_the_file(key: str) -> None:
    """Java starts, and then fails to configure the connector: nothing is copied."""
    props = {"clusters": "A,B", "A.bootstrap.servers": "a:1", "B.bootstrap.servers": "b:1", "A->B.enabled": "true"}
    with pytest.raises(ConfigException, match=rf"^Configuration '{re.escape(key)}' values must not be duplicated\.$"):
        MirrorMakerConfig({**props, key: "fresh, fresh"}).validate()
