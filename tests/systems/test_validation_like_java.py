"""``PUT …/config/validate`` of Java's worker and of ours: the same keys in the same order, every column, every value, every error (A2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from mm2 import __version__
from mm2.config.keys.mirror_keys import OWN_CONFIG
from mm2.sandbox.jars import KAFKA_VERSION
from mm2.sandbox.kafka import LocalKafka
from tests.support.java import CONNECT_VERSION
from tests.systems.workers import (
    DistributedWorker,
    JavaDistributedWorker,
    NewestJavaWorker,
    WorkerProcess,
    distributed_props,
)

SOURCE = "org.apache.kafka.connect.file.FileStreamSourceConnector"
SINK = "org.apache.kafka.connect.file.FileStreamSinkConnector"
JSON = "org.apache.kafka.connect.json.JsonConverter"
FILTER = "org.apache.kafka.connect.transforms.Filter"
ROUTER = "org.apache.kafka.connect.transforms.RegexRouter"
GOOD_SOURCE = {"name": "c", "connector.class": SOURCE, "topic": "t", "file": "f"}
GOOD_SINK = {"name": "c", "connector.class": SINK, "topics": "t"}
OURS = {"plugin.isolation", "tombstone.dead.groups.enabled", *OWN_CONFIG.names}


def mirror(kind: str, **more: str) -> dict[str, str]:
    """A Mirror connector; in keys `__` stands for a dot and `_` for a dash."""
    return {
        "name": "c",
        "connector.class": f"org.apache.kafka.connect.mirror.Mirror{kind}Connector",
        "source.cluster.alias": "A",
        "source.cluster.bootstrap.servers": "127.0.0.1:1",
        "target.cluster.bootstrap.servers": "127.0.0.1:1",
        **{key.replace("__", ".").replace("_", "-"): value for key, value in more.items()},
    }


BODIES: dict[str, dict[str, str]] = {
    "good source": GOOD_SOURCE,
    "good sink": GOOD_SINK,
    "nothing but the class": {"connector.class": SOURCE},
    "bad values": {
        **GOOD_SOURCE,
        "tasks.max": "0",
        "errors.tolerance": "some",
        "errors.retry.timeout": "soon",
        "errors.log.enable": "yes",
        "predicates": "p,p",
        "batch.size": "many",
        "exactly.once.support": "maybe",
        "transaction.boundary.interval.ms": "-1",
        "offsets.storage.topic": " ",
    },
    "a name of control characters": {**GOOD_SOURCE, "name": "a\u0001b"},
    "sink without topics": {"name": "c", "connector.class": SINK},
    "sink with both": {**GOOD_SINK, "topics.regex": "t.*"},
    "sink reading its dead letters": {**GOOD_SINK, "errors.deadletterqueue.topic.name": "t"},
    "converter of its own": {**GOOD_SOURCE, "value.converter": JSON, "value.converter.schemas.enable": "perhaps"},
    "converter that is not there": {**GOOD_SOURCE, "key.converter": "Nope"},
    "converter that is none": {**GOOD_SOURCE, "key.converter": FILTER},
    "transformation": {
        **GOOD_SOURCE,
        "transforms": "r",
        "transforms.r.type": ROUTER,
        "transforms.r.regex": ".*",
        "transforms.r.replacement": "x",
    },
    "transformation without a type": {**GOOD_SOURCE, "transforms": "r"},
    "transformation that is not there": {**GOOD_SOURCE, "transforms": "r", "transforms.r.type": "Nope"},
    "transformation that is none": {**GOOD_SOURCE, "transforms": "r", "transforms.r.type": JSON},
    "a group of topics named twice": {**GOOD_SOURCE, "topic.creation.groups": "g1, g2, g1"},
    "negated without predicate": {
        **GOOD_SOURCE,
        "transforms": "r",
        "transforms.r.type": FILTER,
        "transforms.r.negate": "true",
    },
    "predicate": {
        **GOOD_SOURCE,
        "predicates": "p",
        "predicates.p.type": "org.apache.kafka.connect.transforms.predicates.TopicNameMatches",
        "predicates.p.pattern": "a.*",
    },
    "overrides": {**GOOD_SOURCE, "producer.override.acks": "1", "producer.override.odd": "x"},
    "an unknown key": {**GOOD_SOURCE, "odd": "1"},
    "mirror source": mirror("Source", topics="a, b.*", source__consumer__isolation__level="read_committed"),
    "mirror source, bad values": mirror(
        "Source", topics="a,a", replication__factor="x", offset__lag__max="-1", enabled="yes", tasks__max="0"
    ),
    "mirror source without its cluster": {"connector.class": mirror("Source")["connector.class"]},
    "mirror source without syncs": mirror(
        "Source", emit__offset_syncs__enabled="false", offset_syncs__topic__replication__factor="1"
    ),
    "mirror source, classes that are not there": mirror(
        "Source",
        replication__policy__class="org.acme.Nope",
        topic__filter__class="org.acme.Nope",
        forwarding__admin__class="org.acme.Nope",
        key__converter="org.acme.Nope",
        sasl__login__class="org.acme.Nope",
        ssl__engine__factory__class="org.acme.Nope",
    ),
    "mirror source with converters": mirror("Source", key__converter=JSON, value__converter=JSON),
    "mirror source, another policy": mirror(
        "Source",
        replication__policy__class="org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
        replication__policy__separator="-",
        offset_syncs__topic__location="elsewhere",
        metric__names__formats="legacy,old",
    ),
    "mirror checkpoints": mirror("Checkpoint", groups="g.*", sync__group__offsets__enabled="true"),
    "mirror checkpoints without syncs": mirror("Checkpoint", emit__offset_syncs__enabled="false"),
    "mirror checkpoints without checkpoints": mirror("Checkpoint", emit__checkpoints__enabled="false", groups="g,g"),
    "mirror heartbeats": mirror("Heartbeat", emit__heartbeats__interval__seconds="5"),
}


#: Keys of clients that came with Kafka 4.4, which the mirror connectors of 4.3 do not have.
NEWER = {f"sasl.oauthbearer.allow.unverified.{what}" for what in ("audience", "issuer")}


@pytest.fixture(scope="module", params=[JavaDistributedWorker, pytest.param(NewestJavaWorker, marks=pytest.mark.slow)])
def java(
    request: pytest.FixtureRequest, broker: LocalKafka, group: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[JavaDistributedWorker]:
    folder = tmp_path_factory.mktemp("java")
    kind: type[JavaDistributedWorker] = request.param
    with kind(folder, distributed_props(broker.bootstrap, f"java-{kind.version}-{group}")) as java:
        yield java


def validated(worker: WorkerProcess, body: dict[str, str]) -> tuple[dict[str, Any], list[tuple[str, dict[str, Any]]]]:
    """The response without documentation and versions, which may differ."""
    name = body["connector.class"].rpartition(".")[2]
    answer = worker.rest.ask("PUT", f"/connector-plugins/{name}/config/validate", json=body)
    rows = []
    for info in answer["configs"]:
        definition, value = info["definition"], info["value"]
        if value["name"] in OURS:
            continue
        if definition is not None:
            del definition["documentation"]
            definition["default_value"] = _version(definition["default_value"])
        value["value"] = _version(value["value"])
        # Recommended values differ: each worker has its own test plugins.
        value["recommended_values"] = bool(value["recommended_values"])
        columns = {"no definition": definition is None, **(definition or {})}
        rows.append((value["name"], columns | {f"value {key}": one for key, one in value.items()}))
    return {key: answer[key] for key in ("name", "error_count", "groups")}, rows


def _version(text: str | None) -> str | None:
    return "the version" if text in {KAFKA_VERSION, CONNECT_VERSION, __version__} else text


@pytest.mark.timeout(240)
@pytest.mark.parametrize("body", BODIES)
def test_a02_every_row_of_the_response_equals_java_s(
    java: JavaDistributedWorker, worker: DistributedWorker, body: str
) -> None:
    if isinstance(java, NewestJavaWorker) and "mirror" in BODIES[body]["connector.class"]:
        pytest.skip(f"MirrorMaker {java.version} is not in Maven Central")
    expected_head, expected = validated(java, BODIES[body])
    head, rows = validated(worker, BODIES[body])
    rows = [(name, row) for name, row in rows if name not in NEWER - dict(expected).keys()]
    assert list(differences(dict(rows), dict(expected))) == []
    # Java returns the keys of converters and clients in the order of a hash table.
    prefixes = ("key.converter.", "value.converter.", "header.converter.", "producer.", "consumer.", "admin.")
    in_order = [[name for name, _ in each if not name.startswith(prefixes)] for each in (rows, expected)]
    assert in_order[0] == in_order[1]
    for each in (head, expected_head):
        each["groups"].sort()
    assert head == expected_head


def differences(found: dict[str, Any], expected: dict[str, Any]) -> Iterator[str]:
    """One line for each column of each key that differs."""
    for name in sorted(found.keys() | expected.keys()):
        if name not in found or name not in expected:
            yield f"{name}: {'Java has it' if name in expected else 'we have it'}: {expected.get(name, found.get(name))}"
            continue
        yield from (
            f"{name} {column}: {found[name].get(column)!r}, Java has {value!r}"
            for column, value in expected[name].items()
            if found[name].get(column) != value
        )
