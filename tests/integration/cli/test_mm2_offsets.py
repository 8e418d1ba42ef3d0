"""`mm2 offsets list` and `delete` on topics like those of workers."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from mm2.sandbox.kafka import LocalKafka
from tests.integration.asking import asked
from tests.integration.copy_flow import create, producer_of
from tests.integration.mirror_process import table

DAY_MS = 86_400_000


@pytest.fixture
def file(kafka_b: LocalKafka, unique: str, tmp_path: Path) -> Path:
    """Two connectors, one of them configured; a key that is not Connect's; a record of an aborted transaction."""
    create(kafka_b, f"{unique}-offsets", 2, cleanup__policy="compact")
    create(kafka_b, f"{unique}-configs", 1, cleanup__policy="compact")
    producer = producer_of(kafka_b)
    now = int(time.time() * 1000)
    for key, value, age, partition in (
        ('["gone",{"topic":"t","partition":0}]', '{"offset":1}', 40, 0),
        ('["gone",{"topic":"t","partition":0}]', '{"offset":2}', 35, 0),
        ('["gone",{"topic":"u","partition":1}]', '{"offset":3}', 1, 1),
        ('["gone",{"topic":"v","partition":2}]', '{"offset":4}', 50, 1),
        ('["gone",{"topic":"v","partition":2}]', None, 40, 1),
        ('["here",{"topic":"t","partition":0}]', '{"offset":5}', 40, 0),
        ("something else", "whatever", 40, 0),
    ):
        producer.produce(f"{unique}-offsets", value, key, partition=partition, timestamp=now - age * DAY_MS)
    configs = {"connector-here": '{"properties":{"name":"here"}}', "target-state-here": '{"state":"STARTED"}'}
    for key, value in configs.items():
        producer.produce(f"{unique}-configs", value, key)
    assert producer.flush(30) == 0
    writer = producer_of(kafka_b, transactional__id=unique)
    writer.init_transactions(30)
    writer.begin_transaction()
    writer.produce(f"{unique}-offsets", '{"offset":99}', '["gone",{"topic":"t","partition":0}]', partition=0)
    assert writer.flush(30) == 0
    writer.abort_transaction(30)
    path = tmp_path / "worker.properties"
    path.write_text(
        f"bootstrap.servers={kafka_b.bootstrap}\noffset.storage.topic={unique}-offsets\n"
        f"config.storage.topic={unique}-configs\n"
    )
    return path


def test_all_keys_are_listed_with_age_and_connector(
    file: Path, unique: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = asked(capsys, "offsets", "list", file)
    assert code == 0
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["gone", "gone", "here"]
    assert '{"offset":2}' in lines[1]
    assert ("STARTED" in lines[3], "STARTED" in lines[1]) == (True, False)
    assert "not Connect's" in lines[4]
    assert lines[5] == f"4 of 4 keys of topic {unique}-offsets"
    code, out, _ = asked(capsys, "offsets", "list", file, "--json", "--older-than", "30d", "--connector", "gone")
    (row,) = json.loads(out)["offsets"]
    assert (row["connector"], row["configured"], row["partition"], row["offset"], row["log"]) == (
        "gone",
        None,
        {"topic": "t", "partition": 0},
        {"offset": 2},
        {"partition": 0, "offset": 1},
    )


def test_old_keys_are_deleted_and_keys_in_use_are_kept(
    kafka_b: LocalKafka, file: Path, unique: str, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = f"{unique}-offsets"
    before = table(kafka_b, topic)
    code, out, _ = asked(capsys, "offsets", "delete", file, "--older-than", "30d", "--dry-run")
    assert code == 1
    assert f"1 of 4 keys of topic {topic} would be removed" in out
    assert table(kafka_b, topic) == before
    code, out, _ = asked(capsys, "offsets", "delete", file, "--older-than", "30d")
    assert code == 1
    assert f"1 of 4 keys of topic {topic} removed, which was checked by reading the topic again" in out
    assert "1 kept: their connectors (here) are configured and not stopped" in out
    after = table(kafka_b, topic)
    key = b'["gone",{"topic":"t","partition":0}]'
    assert after.pop(key) == (None, 0)
    before.pop(key)
    assert after == before
    code, out, _ = asked(capsys, "offsets", "delete", file, "--connector", "here", "--where", "partition=0", "--force")
    assert code == 0
    code, out, _ = asked(capsys, "offsets", "list", file, "--json")
    assert [row["connector"] for row in json.loads(out)["offsets"]] == ["gone", None]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([], "Select the offsets to delete"),
        (["--older-than", "soon"], "'soon' is not an age; write for instance 30d"),
        (["--where", "topic"], "'topic' is not a field of a source partition"),
        (["--connector", "c", "--topic", "no-such-topic"], "There is no topic no-such-topic at"),
    ],
)
def test_a_failed_action_is_reported(
    file: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], why: str
) -> None:
    code, out, err = asked(capsys, "offsets", "delete", file, *arguments)
    assert (code, out) == (2, "")
    assert why in err


def test_offsets_of_a_flow_are_found_by_its_name(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alias = unique.replace("-", "")
    create(kafka_b, f"mm2-offsets.{alias}.internal", 1, cleanup__policy="compact")
    create(kafka_b, f"mm2-configs.{alias}.internal", 1, cleanup__policy="compact")
    path = tmp_path / "mm2.properties"
    path.write_text(
        f"clusters={alias},B\n{alias}.bootstrap.servers={kafka_a.bootstrap}\nB.bootstrap.servers={kafka_b.bootstrap}\n"
    )
    code, out, _ = asked(capsys, "offsets", "list", path, f"{alias}->B")
    assert (code, out) == (0, f"0 of 0 keys of topic mm2-offsets.{alias}.internal\n")
    code, _, err = asked(capsys, "offsets", "list", path)
    assert code == 2
    assert "name one of its flows" in err
