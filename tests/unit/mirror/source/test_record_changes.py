"""What changes copied records: which settings do, what they are identified by, and what they make of a record."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from mm2.config.configdef import ConfigDef, ConfigException
from mm2.config.mirrormaker import MirrorMakerConfig
from mm2.connect.api import ConnectError, RetriableError, Transformation
from mm2.connect.transforms import RegexRouter
from mm2.copy.changes import ChangeDelayed, ChangeFailed, Changer, Passing
from mm2.copy.spec import ChangesSpec, CopySpec, PartitionSpec
from mm2.kafka.records.record import Record
from mm2.mirror.common.plugins import connect_plugins
from mm2.mirror.process.plans import plan_flows
from mm2.mirror.source.record_chain import RecordChain
from mm2.mirror.source.record_changes import changes_spec

FILE = {
    "clusters": "A, B",
    "A.bootstrap.servers": "127.0.0.1:1",
    "B.bootstrap.servers": "127.0.0.1:2",
    "A->B.enabled": "true",
}
JSON = "org.apache.kafka.connect.json.JsonConverter"
BYTES = "org.apache.kafka.connect.converters.ByteArrayConverter"
WORKER = {"key.converter": BYTES, "value.converter": BYTES}
PART = PartitionSpec("orders", 3, "A.orders")
RECORD = Record(b"k", b"v", (("h", b"1"), ("n", None)), 1_700_000_000_000, 42)
DROP = {"transforms": "drop", "transforms.drop.type": "Filter"}
TOMBSTONES = {
    "transforms.drop.predicate": "empty",
    "predicates": "empty",
    "predicates.empty.type": "RecordIsTombstone",
}
HEADER = {
    "transforms": "add",
    "transforms.add.type": "org.apache.kafka.connect.transforms.InsertHeader",
    "transforms.add.header": "origin",
    "transforms.add.value.literal": "A",
}


class Busy(Transformation):
    """Fails with a temporary error as often as the test says."""

    deterministic = True
    failures = 0

    def config(self) -> ConfigDef:
        return ConfigDef()

    def configure(self, props: Any) -> None:
        return

    def apply(self, record: Any) -> Any:
        assert record.source_partition == {"cluster": "A", "partition": 3, "topic": "orders"}
        assert record.source_offset == {"offset": 42}
        if Busy.failures:
            Busy.failures -= 1
            raise RetriableError("later")
        return record


class Dice(Busy):
    """Not declared deterministic itself."""


class OwnRouter(RegexRouter):
    """Routes as it likes."""


class Router(Busy):
    deterministic = True

    def apply(self, record: Any) -> Any:
        return record.new_record(topic="elsewhere")


class Origin(Busy):
    """Writes where the record comes from, and goes to, as its value."""

    deterministic = True

    def apply(self, record: Any) -> Any:
        origin = record.source_partition
        text = (
            f"{origin['cluster']} {origin['topic']} {origin['partition']} {record.source_offset['offset']} "
            f"{record.topic} {record.partition}"
        )
        return record.new_record(value=text.encode())


BUSY = {"transforms": "busy", "transforms.busy.type": f"{__name__}.Busy"}


def spec(props: dict[str, str], worker: dict[str, str] | None = None) -> ChangesSpec | None:
    return changes_spec({"source.cluster.alias": "A", **props}, worker or WORKER, connector="C", task=1)


def chain(props: dict[str, str]) -> RecordChain:
    found = spec(props)
    assert found is not None
    return RecordChain(found.settings)


@pytest.mark.parametrize(
    "props",
    [
        {},
        {"transforms": "", "predicates": "p"},
        {"key.converter": "ByteArrayConverter", "header.converter": "ByteArray"},
    ],
)
def test_a_flow_without_changes_stays_on_the_byte_path(props: dict[str, str]) -> None:
    assert spec(props) is None


def test_the_default_header_converter_of_a_worker_does_not_count() -> None:
    """With SimpleHeaderConverter Java's connector writes the bytes of headers as texts."""
    assert spec({}, {**WORKER, "header.converter.x": "1"}) is None
    assert spec({}, {**WORKER, "header.converter": "SimpleHeaderConverter"}) is not None


def test_settings_of_a_worker_apply_where_the_connector_names_no_converter() -> None:
    found = spec({}, {**WORKER, "value.converter": JSON, "value.converter.schemas.enable": "false"})
    assert found is not None
    with RecordChain(found.settings) as built:
        assert built.apply(PART, RECORD) == RECORD._replace(value=b'"dg=="')


def test_a_header_is_added_by_a_header_converter_for_texts() -> None:
    """That converter writes the headers of the source as base64, as in Java."""
    with chain(HEADER | {"header.converter": "SimpleHeaderConverter"}) as built:
        added = built.apply(PART, RECORD)
        assert added == RECORD._replace(headers=(("h", b"MQ=="), ("n", None), ("origin", b"A")))


def test_a_header_that_is_no_bytes_fails_as_in_java() -> None:
    """InsertHeader makes a string, which ByteArrayConverter rejects."""
    with (
        chain(HEADER) as built,
        pytest.raises(ChangeFailed, match=r"orders-3: converter .*ByteArrayConverter failed .* offset 42"),
    ):
        built.apply(PART, RECORD)
    with chain(HEADER | {"errors.tolerance": "all"}) as built:
        assert built.apply(PART, RECORD) == "skipped"


def test_tombstones_are_dropped() -> None:
    with chain(DROP | TOMBSTONES) as built:
        assert built.apply(PART, RECORD._replace(value=None)) == "filtered"
        assert built.apply(PART, RECORD) == RECORD


@pytest.mark.parametrize(("pattern", "expected"), [(r"A\..*", "filtered"), ("other", RECORD)])
def test_a_predicate_has_its_settings(pattern: str, expected: object) -> None:
    named = {"predicates.empty.type": "TopicNameMatches", "predicates.empty.pattern": pattern}
    with chain(DROP | TOMBSTONES | named) as built:
        assert built.apply(PART, RECORD) == expected


def test_a_record_without_timestamp_does_not_get_that_of_the_copy() -> None:
    with chain(DROP | TOMBSTONES) as built:
        assert built.apply(PART, RECORD._replace(timestamp=-1)) == RECORD._replace(timestamp=-1)


@pytest.mark.parametrize("props", [DROP | TOMBSTONES, HEADER | {"header.converter": "SimpleHeaderConverter"}])
def test_an_invalid_timestamp_stops_the_partition(props: dict[str, str]) -> None:
    """As in Java's ProducerRecord, also where no transformation changes the record."""
    with chain(props) as built, pytest.raises(ChangeFailed, match=r"offset 42 cannot be copied: .* timestamp -2"):
        built.apply(PART, RECORD._replace(timestamp=-2))


def test_an_unchanged_record_is_converted_unless_all_converters_pass_bytes() -> None:
    with chain(DROP | TOMBSTONES) as built:
        assert built.apply(PART, RECORD) is RECORD
    with chain(DROP | TOMBSTONES | {"header.converter": "SimpleHeaderConverter"}) as built:
        assert built.apply(PART, RECORD) == RECORD._replace(headers=(("h", b"MQ=="), ("n", None)))


def test_each_partition_has_its_own_origin() -> None:
    props = {"transforms": "o", "transforms.o.type": f"{__name__}.Origin"}
    with chain(props) as built:
        for topic, number in (("orders", 3), ("orders", 4), ("x", 3), ("orders", 3)):
            changed = built.apply(PartitionSpec(topic, number, f"A.{topic}"), RECORD)
            assert changed == RECORD._replace(value=f"A {topic} {number} 42 A.{topic} {number}".encode())


def test_a_changed_topic_stops_the_partition() -> None:
    props = {"transforms": "r", "transforms.r.type": f"{__name__}.Router"}
    with chain(props) as built, pytest.raises(ChangeFailed, match=r"to partition 3 of elsewhere; only A\.orders-3"):
        built.apply(PART, RECORD)


def test_a_temporary_error_is_tried_again_until_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Busy, "failures", 3)
    retrying = BUSY | {"errors.retry.timeout": "-1", "errors.retry.delay.max.ms": "1000"}
    with chain(retrying) as built:
        delays = []
        for _ in range(3):
            with pytest.raises(ChangeDelayed, match="later") as delayed:
                built.apply(PART, RECORD)
            delays.append(delayed.value.after_s)
        assert delays[:2] == [0.3, 0.6]
        assert delays[2] <= 1
        assert built.apply(PART, RECORD) == RECORD
        monkeypatch.setattr(Busy, "failures", 1)
        with pytest.raises(ChangeDelayed) as again:
            built.apply(PART, RECORD)
        assert again.value.after_s == 0.3, "its attempts are forgotten when it succeeds"
    monkeypatch.setattr(Busy, "failures", 1)
    with chain(BUSY) as built, pytest.raises(ChangeFailed, match="later"):
        built.apply(PART, RECORD)


@pytest.mark.parametrize("timeout_ms", ["0", "1"])
def test_a_temporary_error_is_no_reason_to_skip_what_may_be_on_the_target(
    timeout_ms: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Busy, "failures", 4)
    tolerant = BUSY | {"errors.tolerance": "all", "errors.retry.timeout": timeout_ms}
    with chain(tolerant) as built:
        for _ in range(3):
            with pytest.raises(ChangeDelayed, match="later"):
                built.apply(PART, RECORD, may_pass=False)
            time.sleep(0.002)
        skipped = built.apply(PART, RECORD)
        assert (skipped, isinstance(skipped, Passing)) == ("skipped", True)
        assert built.attempts == {}
    monkeypatch.setattr(Busy, "failures", 1)
    with chain(BUSY) as built, pytest.raises(ChangeFailed, match="later"):
        built.apply(PART, RECORD, may_pass=False)


def test_the_timeout_of_retries_counts_across_micro_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain lives for one micro-batch. Otherwise a timeout that is longer would never end."""
    now, rows = 1000.0, list[Any]()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(Busy, "failures", 100)
    failures: list[type[Exception]] = []
    while ChangeFailed not in failures and len(failures) < 20:
        with chain(BUSY | {"errors.retry.timeout": "150000", "errors.retry.delay.max.ms": "10"}) as built:
            changer = Changer(built, lambda call: call())
            changer.continue_attempts(json.loads(json.dumps(rows)))
            with pytest.raises((ChangeDelayed, ChangeFailed), match="later") as failed:
                built.apply(PART, RECORD)
            failures.append(failed.type)
            now += 60
            rows = changer.attempts()
    assert failures == [ChangeDelayed] * 3 + [ChangeFailed]
    assert rows == []


def test_the_timeout_of_retries_is_that_of_one_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Busy, "failures", 1)
    with chain(BUSY | {"errors.retry.timeout": "150000"}) as built:
        changer = Changer(built, lambda call: call())
        changer.continue_attempts([["orders", 3, RECORD.offset - 1, 3, 180_000]])
        with pytest.raises(ChangeDelayed):
            built.apply(PART, RECORD)
        assert [row[:4] for row in changer.attempts()] == [["orders", 3, RECORD.offset, 1]]
        assert built.apply(PART, RECORD) == RECORD
        assert changer.attempts() == []


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ("key", RECORD._replace(key=b'"aw=="')),
        ("value", RECORD._replace(value=b'"dg=="')),
        ("header", RECORD._replace(headers=(("h", b'"MQ=="'), ("n", b"null")))),
    ],
)
def test_a_converter_and_its_settings_change_a_part_of_a_record(part: str, expected: Record) -> None:
    given = {f"{part}.converter": JSON, f"{part}.converter.schemas.enable": "false"}
    with chain(given) as built:
        assert built.apply(PART, RECORD) == expected
    del given[f"{part}.converter.schemas.enable"]
    with chain(given) as built:
        assert built.apply(PART, RECORD) not in {expected, RECORD}


@pytest.mark.parametrize("part", ["key", "value", "header"])
def test_a_missing_version_of_a_converter_is_refused(part: str) -> None:
    given = {f"{part}.converter": JSON}
    assert spec(given) is not None
    with pytest.raises(ConnectError, match=r"version range \[99,\)"):
        spec({**given, f"{part}.converter.plugin.version": "[99,)"})


@pytest.mark.parametrize(
    ("given", "is_logged", "has_place"),
    [
        ({}, False, False),
        ({"errors.log.enable": "true"}, True, False),
        ({"errors.log.enable": "true", "errors.log.include.messages": "true"}, True, True),
    ],
    ids=["default", "errors.log.enable", "errors.log.include.messages"],
)
def test_skipped_records_are_logged_as_configured(given: dict[str, str], is_logged: bool, has_place: bool) -> None:
    with capture_logs() as logs, chain(HEADER | {"errors.tolerance": "all"} | given) as built:
        assert built.apply(PART, RECORD) == "skipped"
    lines = [line for line in logs if line["event"] == "Error encountered in task"]
    assert len(lines) == is_logged
    assert any(line.get("source_offset") == {"offset": 42} for line in lines) is has_place


def test_only_classes_that_declare_it_themselves_are_deterministic() -> None:
    found = [spec(BUSY), spec({"transforms": "d", "transforms.d.type": f"{__name__}.Dice"}), spec(DROP)]
    assert [one.not_repeatable for one in found if one] == ["", "Dice is not declared deterministic", ""]


def test_the_digest_is_that_of_what_decides() -> None:
    def digest(props: dict[str, str]) -> str:
        found = spec(props)
        assert found is not None
        return found.digest

    same = digest(DROP)
    assert digest(DROP | {"tasks.max": "3", "errors.log.enable": "true", "name": "x"}) == same
    others = [DROP | TOMBSTONES, DROP | {"errors.tolerance": "all"}, DROP | {"value.converter": JSON}, HEADER]
    assert len({same, *map(digest, others)}) == 5


def test_what_is_sent_to_the_executor_has_only_what_it_needs() -> None:
    found = spec(
        DROP | {"target.cluster.sasl.jaas.config": "hush", "errors.tolerance": "all"}, WORKER | {"group.id": "g"}
    )
    assert found is not None
    assert found.settings == {
        "name": "C",
        "task.id": "1",
        "source.cluster.alias": "A",
        "errors.tolerance": "all",
        **WORKER,
        "header.converter": BYTES,
        **DROP,
    }
    assert CopySpec.__dataclass_fields__["changes"].default is None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"A->B.transforms": "x"}, "transforms.x.type"),
        ({"transforms": "x", "transforms.x.type": "Filter"}, "transforms.x.type"),
        ({"A->B.transforms": "x", "A->B.transforms.x.type": "No"}, "No"),
        ({"A->B.transforms": "x", "A->B.transforms.x.type": "RegexRouter"}, "regex"),
        (
            {"A->B.transforms": "x", "A->B.transforms.x.type": "TimestampRouter"},
            "depend on the timestamp of each record",
        ),
        (
            {
                "A->B.transforms": "x",
                "A->B.transforms.x.type": f"{__name__}.OwnRouter",
                "A->B.transforms.x.regex": "A(.*)",
                "A->B.transforms.x.replacement": "$1",
            },
            "a class of your own cannot name remote topics",
        ),
        ({"A->B.transforms": "x", "A->B.transforms.x.type": "Filter", "A->B.transforms.x.predicate": "p"}, "predicate"),
        ({"A->B.value.converter": "No"}, "value.converter"),
        ({"A->B.key.converter": BYTES, "A->B.key.converter.plugin.version": "9"}, "9"),
    ],
)
def test_what_cannot_be_applied_is_refused_before_the_start(given: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigException, match=rf"Flow A->B: .*{words}"):
        plan_flows(MirrorMakerConfig(FILE | given), ["B"], connect_plugins())


def test_a_flow_that_only_emits_heartbeats_copies_no_records_to_be_changed() -> None:
    given = {"B->A.transforms": "x", "B->A.transforms.x.type": "TimestampRouter", "B->A.value.converter": JSON}
    assert plan_flows(MirrorMakerConfig(FILE | given), None, connect_plugins())


def test_errors_of_the_chain_are_those_of_connect() -> None:
    with pytest.raises(ConnectError):
        spec({"transforms": "x", "transforms.x.type": "No"})


class Quoting(Busy):
    """Fails with a text from the record."""

    def apply(self, record: Any) -> Any:
        raise ValueError(f"no column {json.loads(record.value)}")


def test_an_error_that_quotes_half_a_surrogate_pair_is_a_reason() -> None:
    """A text that was cut within an emoji is valid JSON."""
    quoting = {"transforms": "q", "transforms.q.type": f"{__name__}.Quoting"}
    with chain(quoting) as built, pytest.raises(ChangeFailed, match=r"ValueError: no column a\?b"):
        built.apply(PART, RECORD._replace(value=b'"a\\ud83db"'))


def test_values_of_config_providers_are_not_in_the_reason_of_a_partition(tmp_path: Path) -> None:
    """The ledger, `mm2 status` and the dashboard have it."""
    (tmp_path / "secrets").write_text("pattern=yyyy-'Hunter2'\n")
    reference = f"${{file:{tmp_path}/secrets:pattern}}"
    prefix = "A->B.transforms"
    file = {
        **FILE,
        "config.providers": "file",
        "config.providers.file.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
        prefix: "text,date",
        f"{prefix}.text.type": "org.apache.kafka.connect.transforms.Cast$Value",
        f"{prefix}.text.spec": "string",
        f"{prefix}.date.type": "org.apache.kafka.connect.transforms.TimestampConverter$Value",
        f"{prefix}.date.target.type": "Timestamp",
        f"{prefix}.date.format": reference,
    }
    (plan,) = plan_flows(MirrorMakerConfig(file), ["B"], connect_plugins()).values()
    spec = changes_spec(plan.resolved["MirrorSourceConnector"], plan.worker, connector="c", task=0)
    assert spec is not None
    with RecordChain(spec.settings) as chain, pytest.raises(ChangeFailed) as caught:
        chain.apply(PART, RECORD)
    assert f"does not match pattern ({reference})" in str(caught.value)
    assert "Hunter2" not in str(caught.value)
