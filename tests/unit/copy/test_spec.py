from __future__ import annotations

import dataclasses
import json

from mm2.codec import decode, encode
from mm2.copy.driver.engine import _sum_gaps
from mm2.copy.spec import ChangesSpec, CopySpec, PartitionProgress, PartitionSpec, SyncsSpec, TransactionsSpec
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import TopicPartition

PLAIN = ClientSettings.from_props({"bootstrap.servers": "a:1,b:2"}, client_id="c")
SECRET = ClientSettings.from_props(
    {
        "bootstrap.servers": "[::1]:9092",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.jaas.config": 'org.apache.kafka.common.security.scram.ScramLoginModule required username="u" password="hush";',
    },
    client_id="t",
)


def spec_of(partitions: int, lanes: int = 0) -> CopySpec:
    return CopySpec(
        flow="A->B",
        connector="MirrorSourceConnector",
        task_id=3,
        source_alias="A",
        target_alias="B",
        source=PLAIN,
        target=SECRET,
        partitions=tuple(PartitionSpec("tö", index, "A.tö", "named" * (index % 2)) for index in range(partitions)),
        offsets_topic="mm2-offsets.A.internal",
        offsets=SECRET,
        syncs=SyncsSpec(SECRET, "mm2-offset-syncs.B.internal", 100),
        read_committed=True,
        source_data_loss="stop",
        partition_error="fail",
        ledger_topic="mm2-ledger.A.internal",
        dead_letter_topic="mm2-dead-letters.A.internal",
        throttle=1e6,
        throttle_topics={"tö": 5e5},
        start_timestamp_ms=1_700_000_000_000,
        transactions=TransactionsSpec("group-connector-3", 30_000, 500),
        changes=ChangesSpec(
            "a.module:Chain", {"transforms.mask.key": "hush"}, "0a1b", "Mask is not declared deterministic"
        ),
        lanes=lanes,
    )


def test_a_spec_travels_as_json() -> None:
    spec = spec_of(3)
    text = json.dumps(encode(spec))
    assert "\n" not in text
    assert decode(CopySpec, json.loads(text)) == spec
    assert {field.name for field in dataclasses.fields(CopySpec)} == set(json.loads(text))


def test_a_spec_with_as_little_as_possible_travels_as_json() -> None:
    spec = CopySpec("A->B", "C", 0, "A", "B", PLAIN, PLAIN, (), "offsets")
    assert decode(CopySpec, json.loads(json.dumps(encode(spec)))) == spec


def test_the_secrets_of_a_spec_are_not_printed() -> None:
    assert "hush" in json.dumps(encode(spec_of(1)))
    assert "hush" not in repr(spec_of(1))


def test_partitions_know_both_ends() -> None:
    part = PartitionSpec("t", 4, "A.t")
    assert (part.source, part.target) == (TopicPartition("t", 4), TopicPartition("A.t", 4))


def progress(position: int = 5, high_watermark: int = 12) -> PartitionProgress:
    gaps = {"control": 2}
    return PartitionProgress("t", 0, position, 7, high_watermark, "RUNNING", "", -1, -1, False, 5, 500, gaps, 1, 3)


def test_progress_travels_as_a_row() -> None:
    row = json.loads(json.dumps(progress()))
    assert PartitionProgress(*row) == progress()


def test_lag_is_zero_while_unknown_and_never_negative() -> None:
    assert progress().lag == 7
    assert progress(position=-1).lag == 0
    assert progress(high_watermark=-1).lag == 0
    assert progress(position=13).lag == 0


def test_gaps_add_up_by_reason() -> None:
    other = progress()._replace(gaps={"control": 1, "compacted": 9})
    assert _sum_gaps([progress(), other]) == {"control": 3, "compacted": 9}
