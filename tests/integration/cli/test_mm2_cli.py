"""`mm2 gaps` and `mm2 status` on a ledger like that of a copier."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mm2.cli.mm2 import main
from mm2.cli.show.gaps import merged
from mm2.copy.progress.ledger import LEDGER_CONFIGS, chunk_record, entry_record, ledger_topic
from mm2.copy.progress.segments import Gap, Segment, SegmentChunk
from mm2.copy.progress.session import LedgerEntry, Lost, Mark, PartitionCondition, Session
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import ProducerIdentity
from mm2.mirror.common.formats import Checkpoint
from mm2.mirror.notes.promotions import Promotion
from mm2.sandbox.kafka import LocalKafka
from tests.integration.asking import asked
from tests.integration.mirror_flow import commit, create, write
from tests.integration.mirror_process import delete, write_config

FOUND_MS = 1_700_000_000_000


@pytest.fixture
def file(kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, tmp_path: Path) -> Path:
    """A flow whose source has a unique alias, so that its ledger is not shared."""
    props = {
        "clusters": f"{unique}, B",
        f"{unique}.bootstrap.servers": kafka_a.bootstrap,
        "B.bootstrap.servers": kafka_b.bootstrap,
    }
    return write_config(tmp_path / "mm2.properties", props)


def write_ledger(broker: LocalKafka, source_alias: str, entries: list[LedgerEntry], chunks: list[SegmentChunk]) -> None:
    """Write entries, the chunks of the first entry, and as many records to the remote topics as were copied."""
    for remote in {entry.remote_topic for entry in entries}:
        create(broker, remote, len(entries))
    for entry in entries:
        write(broker, entry.remote_topic, [(None, b"1")] * entry.mark.target, entry.partition)
    topic = ledger_topic(source_alias)
    create(broker, topic, config=LEDGER_CONFIGS)
    rows = [*map(entry_record, entries), *(chunk_record(entries[0].source, chunk) for chunk in chunks)]
    write(broker, topic, [(row.key, row.value) for row in rows], 0)


def orders(unique: str) -> list[LedgerEntry]:
    """One partition with gaps of all kinds, one without."""
    session = Session(ProducerIdentity(4001, 2), Mark(0, 0, 0))
    gaps = {"compacted": 1_030, "control": 2, "retention": 50}
    lost = (Lost(100, 150, "retention", FOUND_MS),)
    full = LedgerEntry(
        unique, 0, f"X.{unique}", Mark(9, 7, 7), 9, session=session, gaps=gaps, lost=lost, rate=1_234, chunk=3
    )
    full = full.replace(lost_before=4)
    return [full, LedgerEntry(unique, 1, f"X.{unique}", Mark(4, -1, 4))]


CHUNKS = [
    SegmentChunk(2, [Segment(0, 0, 3)], [Gap(3, 23, "compacted"), Gap(30, 31, "control")]),
    SegmentChunk(
        3, [Segment(31, 23, 9)], [Gap(40, 50, "compacted"), Gap(60, 61, "control"), Gap(100, 150, "retention")]
    ),
]


def test_gaps_are_listed_by_reason_with_the_known_ranges(
    kafka_b: LocalKafka, file: Path, unique: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_ledger(kafka_b, unique, orders(unique), CHUNKS)
    code, out, err = asked(capsys, "gaps", file, f"{unique}->B")
    assert (code, err) == (1, ""), "50 records are lost"
    *lines, last = out.splitlines()
    assert last.startswith(
        f"2 partitions of {unique}->B: compacted 1,030, control 2, retention 50; the logs of B reach the positions of the ledger ("
    )
    assert lines == [
        f"{unique}-0  compacted  1,030: 1,000 earlier, 3-22, 40-49",
        f"{unique}-0  control  2: 30, 60",
        f"{unique}-0  retention  50: 100-149",
        f"{unique}-0  4 lost ranges before these",
        f"{unique}-0  found at 2023-11-14 22:13:20 UTC: 100-149 retention",
    ]
    code, out, _ = asked(capsys, "gaps", file, f"{unique} -> B", "--json", "--topic", unique)
    document: dict[str, Any] = json.loads(out)
    assert code == 1
    assert document["totals"] == {"compacted": 1_030, "control": 2, "retention": 50}
    first, second = document["partitions"]
    assert (first["topic"], first["partition"], first["position"]) == (unique, 0, 9)
    assert first["ranges"] == [
        {"first": 3, "last": 22, "reason": "compacted"},
        {"first": 30, "last": 30, "reason": "control"},
        {"first": 40, "last": 49, "reason": "compacted"},
        {"first": 60, "last": 60, "reason": "control"},
        {"first": 100, "last": 149, "reason": "retention"},
    ]
    assert first["lost"] == [{"first": 100, "last": 149, "reason": "retention", "found_ms": FOUND_MS}]
    assert (first["lost_before"], second["lost_before"]) == (4, 0)
    assert (second["partition"], second["gaps"], second["ranges"]) == (1, {}, [])


def test_intended_gaps_are_no_loss_but_records_of_a_deleted_topic_are(
    kafka_b: LocalKafka, file: Path, unique: str, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = orders(unique)[0].replace(gaps={"compacted": 5, "aborted": 1}, lost=(), lost_before=0)
    write_ledger(kafka_b, unique, [entry], [])
    code, out, _ = asked(capsys, "gaps", file, f"{unique}->B")
    assert code == 0
    assert out.splitlines()[-1].startswith(f"1 partition of {unique}->B: aborted 1, compacted 5; the logs of B reach ")
    # A recreated topic reuses its offsets, so there is no gap.
    recreated = entry.replace(gaps={}, lost=(Lost(5, 9, "recreated", FOUND_MS),))
    write(kafka_b, ledger_topic(unique), [(row.key, row.value) for row in [entry_record(recreated)]], 0)
    code, out, _ = asked(capsys, "gaps", file, f"{unique}->B")
    assert code == 1
    assert out.splitlines()[0] == f"{unique}-0  found at 2023-11-14 22:13:20 UTC: 5-8 recreated"
    code, out, err = asked(capsys, "gaps", file, f"{unique}->B", "--topic", "other")
    assert (code, out, err) == (2, "", f"mm2: The ledger of {unique}->B has no topic other.\n")


def test_status_of_a_stopped_flow_comes_from_its_ledger(
    kafka_a: LocalKafka, kafka_b: LocalKafka, file: Path, unique: str, capsys: pytest.CaptureFixture[str]
) -> None:
    create(kafka_a, unique, 2)
    write(kafka_a, unique, [(None, b"%d" % i) for i in range(12)], 0)
    write(kafka_a, unique, [(None, b"%d" % i) for i in range(4)], 1)
    write_ledger(kafka_b, unique, orders(unique), CHUNKS)
    code, out, err = asked(capsys, "status", file, f"{unique}->B")
    assert (code, err) == (1, "")
    rows = [" ".join(line.split()) for line in out.splitlines()]
    assert rows[0].startswith(f"{unique}->B STOPPED Nothing is copied: ")
    assert "3 records" in rows[0]
    assert "Permanently lost" not in rows[0], "that was years ago"
    assert any(row.startswith(f"{unique}->B 2 0 3 ") for row in rows[1:])
    assert [row.split()[:5] for row in rows[1:] if row.startswith((f"{unique}-0", f"{unique}-1"))] == [
        [f"{unique}-0", "RUNNING", "9", "12", "3"],
        [f"{unique}-1", "RUNNING", "4", "4", "0"],
    ]
    code, out, _ = asked(capsys, "status", file, f"{unique}->B", "--json")
    (flow,) = json.loads(out)["flows"]
    assert (code, flow["state"], flow["risk"]["records"]) == (1, "STOPPED", 3)
    assert (flow["lost_ranges"], flow["losses"]) == (5, [])
    first, second = flow["partitions"]
    assert (first["remote_topic"], first["position"], first["source_end"]) == (f"X.{unique}", 9, 12)
    assert (first["lag_records"], first["target_offset"]) == (3, 7)
    assert (second["target_offset"], second["lag_records"]) == (None, 0)


def test_what_the_opposite_flow_copies_to_the_source_is_not_at_risk(
    kafka_a: LocalKafka, kafka_b: LocalKafka, file: Path, unique: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Given identity naming, after `mm2 failback`: the opposite flow adds records to the topic on the source."""
    flow = f"{unique}->B"
    condition = PartitionCondition("PAUSED", "promoted, until mm2 failback", 5, FOUND_MS)
    create(kafka_a, unique)
    write(kafka_a, unique, [(None, b"1")] * 12, 0)
    write_ledger(kafka_b, unique, [LedgerEntry(unique, 0, unique, Mark(5, 5, 5), condition=condition)], [])
    for turned, records in ((False, 7), (True, 0)):
        note = Promotion(unique, unique, "failover", FOUND_MS, turned).record()
        write(kafka_b, ledger_topic(unique), [(note.key, note.value)], 0)
        (status,) = json.loads(asked(capsys, "status", file, flow, "--json")[1])["flows"]
        (partition,) = status["partitions"]
        assert (status["risk"]["records"], partition["is_counted"]) == (records, not turned)
        assert partition["pause"] == ("turned" if turned else "promoted")
        code, out, _ = asked(capsys, "lag", file, flow, "--threshold", "3", "--json")
        (lag,) = json.loads(out)["flows"]
        assert (code, lag["records"], lag["over_threshold"]) == ((0, 0, 0) if turned else (1, 7, 1))
    assert f"If {unique} dies now you lose nothing." in status["sentence"]
    code, out, err = asked(capsys, "resume", file, flow, "--topic", unique)
    assert (code, out) == (2, "")
    assert "mm2 failback; mm2 resume does not continue it" in err


def test_nothing_was_copied_of_a_topic_that_was_recreated_since(
    kafka_a: LocalKafka, kafka_b: LocalKafka, file: Path, unique: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """No state shows it, because the flow is stopped."""

    def sums() -> tuple[int, int | None, int | None]:
        code, out, _ = asked(capsys, "lag", file, f"{unique}->B", "--json")
        (flow,) = json.loads(out)["flows"]
        return code, flow["records"], flow["records_at_least"]

    create(kafka_a, unique)
    write(kafka_a, unique, [(None, b"old")] * 12, 0)
    with closing(Cluster(ClientSettings.from_props({"bootstrap.servers": kafka_a.bootstrap}), name="A")) as cluster:
        source_id = cluster.metadata([unique]).topics[unique].topic_id
    write_ledger(kafka_b, unique, [LedgerEntry(unique, 0, f"X.{unique}", Mark(12, 12, 12), source_id=source_id)], [])
    assert sums() == (0, 0, 0)
    delete(kafka_a, unique)
    create(kafka_a, unique)
    write(kafka_a, unique, [(None, b"new")] * 5, 0)
    assert sums() == (1, None, 5)
    sentence = asked(capsys, "status", file, f"{unique}->B")[1].splitlines()[0]
    assert "at least 5 records" in sentence


def test_a_flow_that_never_ran_does_not_claim_zero_loss(
    kafka_a: LocalKafka, file: Path, unique: str, capsys: pytest.CaptureFixture[str]
) -> None:
    create(kafka_a, unique)
    write(kafka_a, unique, [(None, b"1")], 0)
    code, out, err = asked(capsys, "status", file, f"{unique}->B")
    assert (code, err) == (1, "")
    assert out.splitlines()[0] == (
        f"{unique}->B  STOPPED  Nothing is copied: no worker is in the flow's group. What would be lost is not known: B has no ledger "
        f"of what comes from {unique}."
    )
    code, out, err = asked(capsys, "lag", file, f"{unique}->B")
    assert (code, err) == (1, "")
    looked, counted = out.splitlines()
    assert looked.endswith("; not read: logs of B")
    assert counted == f"{unique}->B: 0 partitions, - records, - bytes, - seconds behind"


def test_heartbeats_of_the_reachable_cluster_are_listed_while_the_other_is_unreachable(
    file: Path, unique: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with file.open("a") as appended:
        appended.write(f"{unique}.bootstrap.servers = 127.0.0.1:1\n{unique}->B.enabled = true\n")
    code, out, err = asked(capsys, "heartbeats", file)
    assert (code, err.count("\n")) == (2, 1)
    assert (
        err
        == f"mm2: cluster {unique}: The broker 127.0.0.1:1 of cluster {unique} cannot be reached: connection refused.\n"
    )
    assert ["B", "heartbeats", f"{unique}->B", "-", "-", "silent"] in [line.split() for line in out.splitlines()]
    code, out, _ = asked(capsys, "heartbeats", file, "--json")
    document = json.loads(out)
    assert (code, set(document["clusters"]), set(document["troubles"])) == (2, {"B"}, {unique})


def test_status_without_the_source_shows_what_the_ledger_contains(
    kafka_b: LocalKafka, file: Path, unique: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_ledger(kafka_b, unique, orders(unique), [])
    with file.open("a") as appended:
        appended.write(f"{unique}.bootstrap.servers = 127.0.0.1:1\n")
    code, out, err = asked(capsys, "status", file, f"{unique}->B")
    assert (code, err) == (1, "")
    (row,) = [line.split() for line in out.splitlines() if line.startswith(f"{unique}-0 ")]
    assert row[1:3] == ["UNREACHABLE", "9"]
    assert "127.0.0.1:1" in out


def test_nothing_is_claimed_about_an_unknown_group(
    kafka_b: LocalKafka, file: Path, unique: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_ledger(kafka_b, unique, orders(unique), [])
    group, flow = f"{unique}-billing", f"{unique}->B"

    unheard = f"mm2: {flow} has no checkpoint of {group} and reports no reason: "
    code, out, err = asked(capsys, "groups", file, flow, "--group", group)
    no_topic = f"B has no topic {unique}.checkpoints.internal"
    assert (code, out, err) == (1, "", f"{unheard}{no_topic}.\n")
    code, out, err = asked(capsys, "groups", file, flow)
    assert (code, out) == (0, f"{flow}: no reason for a missing offset is in the ledger; {no_topic}\n"), (
        "it may be deleted"
    )
    create(kafka_b, f"{unique}.checkpoints.internal", config={"cleanup.policy": "compact"})
    code, out, err = asked(capsys, "groups", file, flow, "--group", group, "--json")
    assert (code, json.loads(out)["offsets"], err.startswith(unheard)) == (1, [], True)
    checkpoint = Checkpoint(group, f"X.{unique}", 0, 5, 5, "")
    write(kafka_b, f"{unique}.checkpoints.internal", [(checkpoint.key(), checkpoint.value())], 0)
    code, out, err = asked(capsys, "groups", file, flow, "--group", group)
    assert (code, err) == (0, "")
    assert out.endswith(f"\n{flow}: no reason for a missing offset is in the ledger\n")
    assert "starts as its auto.offset.reset specifies" in out, "it has no offset on B"


def test_a_committed_offset_that_the_target_does_not_have_is_recognized(
    kafka_b: LocalKafka, file: Path, unique: str, capsys: pytest.CaptureFixture[str]
) -> None:
    group, flow = f"{unique}-billing", f"{unique}->B"
    write_ledger(kafka_b, unique, orders(unique), [])
    create(kafka_b, f"{unique}.checkpoints.internal", config={"cleanup.policy": "compact"})
    checkpoint = Checkpoint(group, f"X.{unique}", 0, 5, 5, "")
    write(kafka_b, f"{unique}.checkpoints.internal", [(checkpoint.key(), checkpoint.value())], 0)
    for offset, code, records in ((7, "ahead", 2), (8, "out_of_range", None)):
        commit(kafka_b, group, {(f"X.{unique}", 0): offset})
        (row,) = json.loads(asked(capsys, "groups", file, flow, "--json")[1])["groups"]
        assert (row["target_offset"], row["if_moved"], row["if_moved_records"]) == (offset, code, records)
    assert "the partition does not have its committed offset" in asked(capsys, "groups", file, flow)[1]


@pytest.mark.parametrize("verb", ["gaps", "groups"])
def test_an_unanswerable_request_fails_with_one_sentence(
    file: Path, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    def sentence(*arguments: str | Path) -> str:
        code, out, err = asked(capsys, verb, *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)
        return err

    flow = f"{unique}->B"
    assert "no ledger" in sentence(file, flow)
    assert "has no flow B->C" in sentence(file, "B->C")
    assert "Cannot read" in sentence(tmp_path / "nowhere", flow)
    with file.open("a") as appended:
        appended.write("B.bootstrap.servers = 127.0.0.1:1\n")
    assert "127.0.0.1:1" in sentence(file, flow)
    with pytest.raises(SystemExit) as caught:
        main([verb])
    assert caught.value.code == 2


def test_ranges_are_joined_within_their_reason() -> None:
    gaps = [Gap(5, 9, "a"), Gap(0, 5, "a"), Gap(3, 4, "b"), Gap(8, 12, "a"), Gap(13, 14, "a"), Gap(0, 5, "a")]
    assert merged(gaps) == [Gap(0, 12, "a"), Gap(3, 4, "b"), Gap(13, 14, "a")]


def test_status_shows_what_blocks_a_partition(
    kafka_a: LocalKafka, kafka_b: LocalKafka, file: Path, unique: str, capsys: pytest.CaptureFixture[str]
) -> None:
    create(kafka_a, unique, 2)
    entries = orders(unique)
    condition = PartitionCondition("TOO_LARGE", "A record is too large.", 9, FOUND_MS)
    write_ledger(
        kafka_b, unique, [entries[0].replace(condition=condition), entries[1].replace(note="at least once")], CHUNKS
    )
    code, out, _ = asked(capsys, "status", file, f"{unique}->B")
    assert code == 1
    assert f"{unique}-0  TOO_LARGE since 2023-11-14 22:13:20 UTC: A record is too large." in out
    assert f"{unique}-1  at least once\n" in out


def test_throttle_sets_shows_and_removes_limits(
    kafka_a: LocalKafka, kafka_b: LocalKafka, file: Path, unique: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flow = f"{unique}->B"
    write_ledger(kafka_b, unique, orders(unique), CHUNKS)
    assert asked(capsys, "throttle", file, flow) == (0, f"{flow}: as in the properties file\n", "")
    assert asked(capsys, "throttle", file, flow, "20MB") == (
        0,
        f"{flow}, all topics together: 20,000,000 bytes/s\n",
        "",
    )
    code, out, err = asked(capsys, "throttle", file, flow, "none", "--topic", "absent")
    assert (code, out) == (2, "")
    assert err == f"mm2: Cluster {unique} has no topic absent, and the ledger of {flow} does not contain it.\n"
    create(kafka_a, f"__{unique}", 1)
    code, out, err = asked(capsys, "throttle", file, flow, "1k", "--topic", f"__{unique}")
    assert (code, out) == (2, "")
    assert err == f"mm2: {flow} does not copy __{unique}: topics and topics.exclude do not select it.\n"
    new = f"{unique}-new"
    create(kafka_a, new, 1)
    assert asked(capsys, "throttle", file, flow, "1k", "--topic", new)[0] == 0, "it is not copied yet, but it exists"
    assert asked(capsys, "throttle", file, flow, "none", "--topic", unique)[0] == 0
    code, out, _ = asked(capsys, "throttle", file, flow, "--json")
    assert (code, json.loads(out)["bytes.per.sec"]) == (0, {"": 20_000_000, new: 1_000, unique: 0})
    assert asked(capsys, "throttle", file, flow, "--reset", "--topic", new)[0] == 0
    assert asked(capsys, "throttle", file, flow, "--reset")[1] == f"{unique}: no limit\n"
    code, out, err = asked(capsys, "throttle", file, flow, "fast")
    assert (code, out) == (2, "")
    assert err == "mm2: 'fast' is not a number of bytes per second; write for instance 500000, 500k, 20MB or none.\n"
