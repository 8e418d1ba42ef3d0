from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest

from mm2.config.configdef import ConfigException
from mm2.connect.api import ConnectError, RetriableError
from mm2.copy.states import PartitionState
from mm2.kafka.structs import TopicPartition
from mm2.mirror.checkpoint_connector import MirrorCheckpointConnector
from mm2.mirror.common.clients import MirrorClients, Side
from mm2.mirror.common.connector import MirrorConnector
from mm2.mirror.common.syncs_topic import SYNCS_FACTOR_KEY, kept_syncs, syncs_side, syncs_topic
from mm2.mirror.filters import DefaultTopicFilter
from mm2.mirror.source.assigned_partitions import decode_partitions, encode_partitions
from mm2.mirror.source_connector import MirrorSourceConnector, topic_selection
from mm2.mirror.topics.own_topics import (
    DEAD_LETTER_FACTOR_KEY,
    LEDGER_FACTOR_KEY,
    dead_letter_topic,
    kept_dead_letters,
    kept_ledger,
)

PROPS = {
    "name": "MirrorSourceConnector",
    "connector.class": "org.apache.kafka.connect.mirror.MirrorSourceConnector",
    "source.cluster.alias": "A",
    "target.cluster.alias": "B",
    "source.cluster.bootstrap.servers": "127.0.0.1:1",
    "target.cluster.bootstrap.servers": "127.0.0.1:1",
}


def test_assigned_partitions_with_dashes_in_names_are_kept() -> None:
    partitions = [TopicPartition("a-b-1", 0), TopicPartition("t", 12)]
    assert decode_partitions(encode_partitions(partitions)) == partitions


def test_a_disabled_connector_does_nothing() -> None:
    connector = MirrorSourceConnector()
    connector.start({**PROPS, "enabled": "false"})
    assert connector.task_configs(10) == []
    connector.stop()


def test_partitions_are_unknown_and_not_empty_while_no_cluster_responds() -> None:
    connector = MirrorSourceConnector()
    connector.start(PROPS)
    try:
        with pytest.raises(RetriableError, match="A->B"):
            connector.task_configs(1)
    finally:
        connector.stop()


def test_partitions_that_the_target_refuses_to_create_have_a_reason() -> None:
    connector = MirrorSourceConnector()
    connector._selection = topic_selection(PROPS)
    connector._syncs = SimpleNamespace(remote_topics=SimpleNamespace(refused={"A.t": "no rights"}))  # type: ignore[assignment]
    found = connector._not_created({"t": 3, "u": 2}, {"A.t": 1})
    assert found == {TopicPartition("t", 1): "no rights", TopicPartition("t", 2): "no rights"}
    preparation = connector._refused(TopicPartition("t", 1), "no rights")
    assert (preparation.remote_topic, preparation.state, preparation.reason) == (
        "A.t",
        PartitionState.REFUSED,
        "no rights",
    )


def errors(**props: str) -> list[str]:
    full = {**PROPS, **{key.replace("__", ".").replace("_", "-"): value for key, value in props.items()}}
    return [key for key, _ in MirrorSourceConnector().validate(full)]


class Held(DefaultTopicFilter):
    """A filter with a resource that it releases when it is closed."""

    held: ClassVar[list[object]] = []

    def configure(self, props: Mapping[str, str]) -> None:
        super().configure(props)
        self.held.append(self)

    def close(self) -> None:
        self.held.remove(self)
        message = "and is not good at it"
        raise ValueError(message)


@pytest.mark.parametrize("connector", [MirrorSourceConnector(), MirrorCheckpointConnector()])
def test_a_filter_is_closed_when_its_connector_stops(connector: MirrorConnector) -> None:
    props = {**PROPS, "topic.filter.class": f"{__name__}.Held"}
    connector.dry_run(props)
    assert not Held.held
    connector.start(props)
    assert len(Held.held) == 1
    connector.stop()
    assert not Held.held


def test_exactly_once_requires_read_committed() -> None:
    assert errors(exactly__once__support="required") == ["exactly.once.support"]
    assert errors(exactly__once__support="requested") == []
    committed = {
        "source__consumer__isolation__level": "read_committed",
        "consumer__isolation__level": "read_uncommitted",
    }
    assert errors(exactly__once__support="required", **committed) == []
    assert errors(exactly__once__support="required", consumer__isolation__level="garbage") == ["exactly.once.support"]


def test_offset_syncs_settings_without_offset_syncs_are_rejected() -> None:
    off = {"emit__offset_syncs__enabled": "false"}
    assert errors(**off) == []
    assert errors(**off, offset_syncs__topic__location="target") == ["emit.offset-syncs.enabled"]


def test_topics_with_preserved_offsets_and_one_remote_topic_are_rejected() -> None:
    router = {"transforms": "r", "transforms__r__type": "RegexRouter", "transforms__r__regex": ".*"}
    router |= {"transforms__r__replacement": "all", "topics": "orders,people"}
    assert errors(**router, preserve__offsets="true") == ["preserve.offsets"]
    assert errors(**router, preserve__offsets="false") == []
    assert errors(**{**router, "topics": "orders"}, preserve__offsets="true") == []


def test_a_bad_number_is_named() -> None:
    assert errors(replication__factor="two") == ["replication.factor"]


def test_our_own_keys_are_checked(tmp_path: Path) -> None:
    assert errors(start__from="yesterday") == ["start.from"]
    assert errors(start__from=f"file:{tmp_path}/offsets") == ["start.from"]
    assert errors(start__from="2026-11-20T15:00:00Z", copy__throttle__bytes__per__sec__orders="1000") == []
    limit = "copy.throttle.bytes.per.sec.orders"
    assert errors(**{limit.replace(".", "__"): "-1"}) == [limit]
    with pytest.raises(ConfigException, match=r"for configuration start\.from: neither"):
        MirrorSourceConnector().dry_run({**PROPS, "start.from": "soon"})


def test_internal_topics_have_java_s_names() -> None:
    assert dead_letter_topic(PROPS) == "mm2-dead-letters.A.internal"
    assert dead_letter_topic({**PROPS, "dead.letter.topic": " dlq "}) == "dlq"
    ledger = kept_ledger(MirrorClients(PROPS))
    assert (ledger.side, ledger.key, ledger.or_broker_default) == (Side.TARGET, LEDGER_FACTOR_KEY, True)
    new = ledger.new
    assert (new.name, new.partitions, new.replication_factor) == ("mm2-ledger.A.internal", 1, 3)
    assert new.configs["cleanup.policy"] == "compact"
    assert new.configs["segment.bytes"] == "16777216"
    assert new.configs["min.cleanable.dirty.ratio"] == "0.1"
    asked_for = {"dead.letter.topic": "dlq", DEAD_LETTER_FACTOR_KEY: "-1"}
    assert not kept_dead_letters({**PROPS, **asked_for}).or_broker_default, "the factor was configured"
    letters = kept_dead_letters({**PROPS, **asked_for}).new
    assert (letters.name, letters.partitions, letters.replication_factor) == ("dlq", 1, -1)
    assert (letters.configs["cleanup.policy"], letters.configs["retention.ms"]) == ("delete", "-1")
    assert int(letters.configs["max.message.bytes"]) >= 50_000_000


def test_the_offset_syncs_topic_is_on_the_configured_cluster() -> None:
    assert syncs_topic(PROPS) == "mm2-offset-syncs.B.internal"
    at_target = {**PROPS, "offset-syncs.topic.location": "target"}
    assert syncs_topic(at_target) == "mm2-offset-syncs.A.internal"
    assert syncs_side(at_target).value == "target"
    made = kept_syncs({**at_target, SYNCS_FACTOR_KEY: "2"})
    assert (made.side, made.new.name, made.new.replication_factor) == (Side.TARGET, "mm2-offset-syncs.A.internal", 2)
    assert (made.new.partitions, dict(made.new.configs)) == (1, {"cleanup.policy": "compact"})
    with pytest.raises(ConfigException, match=r"offset-syncs\.topic\.replication\.factor"):
        kept_syncs({**PROPS, SYNCS_FACTOR_KEY: "many"})


GOOD = {"cluster": "A", "topic": "t", "partition": 3}


@pytest.mark.parametrize(
    "entry",
    [
        (GOOD, {"offset": 0}),
        (GOOD, {"offset": 2**40}),
        (GOOD, None),
        ({"anything": 1}, None),
    ],
)
def test_valid_offsets_can_be_written(entry: tuple[dict[str, object], dict[str, object] | None]) -> None:
    assert MirrorSourceConnector().alter_offsets(PROPS, [entry])


@pytest.mark.parametrize(
    "entry",
    [
        ({**GOOD, "cluster": None}, {"offset": 1}),
        ({"cluster": "A", "partition": 3}, {"offset": 1}),
        ({**GOOD, "partition": "3"}, {"offset": 1}),
        ({**GOOD, "partition": -1}, {"offset": 1}),
        ({**GOOD, "partition": 2**31}, {"offset": 1}),
        ({**GOOD, "partition": True}, {"offset": 1}),
        (GOOD, {"offset": -1}),
        (GOOD, {"offset": "1"}),
        (GOOD, {"offset": 1.0}),
        (GOOD, {"offset": None}),
        (GOOD, {}),
    ],
)
def test_invalid_offsets_are_rejected(entry: tuple[dict[str, object], dict[str, object]]) -> None:
    with pytest.raises(ConnectError):
        MirrorSourceConnector().alter_offsets(PROPS, [entry])
