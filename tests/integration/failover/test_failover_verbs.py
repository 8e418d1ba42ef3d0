"""`mm2 failover`, `promote` and `failback` on a flow without running processes, from its ledger, checkpoints and groups."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicCollection
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import NewPartitions

from mm2.copy.progress.ledger import LEDGER_CONFIGS, chunk_record, entry_record, ledger_topic, note_record
from mm2.copy.progress.segments import Segment, SegmentChunk
from mm2.copy.progress.session import LedgerEntry, Mark, Session
from mm2.failover import failback
from mm2.failover.copy_control import hand_over, stop_copying
from mm2.failover.evidence import GroupEvidence
from mm2.failover.failback import _FlowReversal
from mm2.failover.groups import Groups
from mm2.failover.sides import Sides
from mm2.kafka.records.record import Record
from mm2.kafka.structs import ProducerIdentity
from mm2.mirror.common.formats import Checkpoint
from mm2.mirror.notes.ledgers import PROVENANCE_NOTE, write_to_ledger
from mm2.mirror.notes.promotions import withdrawn
from mm2.sandbox.kafka import LocalKafka
from tests.integration.asking import asked, terminal
from tests.integration.copy_flow import admin_of, batches, producer_of
from tests.integration.mirror_flow import admin, commit, committed, create, partitions_of, write
from tests.integration.mirror_process import ROOT, ends, table, write_config
from tests.support.waiting import PATIENCE, wait_until

GONE = "127.0.0.1:1"
NUMBER = b"1"


def properties(tmp_path: Path, unique: str, source: str, target: str, **more: str) -> Path:
    """A flow whose source has a unique alias, so that its topics are not shared."""
    props = {"clusters": f"{unique},B", f"{unique}.bootstrap.servers": source, "B.bootstrap.servers": target}
    return write_config(tmp_path / "mm2.properties", {**props, "topics": f"t-{unique}", **more})


def identity_properties(tmp_path: Path, aliases: tuple[str, str], a: LocalKafka, b: LocalKafka, topic: str) -> Path:
    """A flow that keeps the names of topics; both aliases are unique."""
    source, target = aliases
    props = {
        "clusters": f"{source},{target}",
        f"{source}.bootstrap.servers": a.bootstrap,
        f"{target}.bootstrap.servers": b.bootstrap,
        "topics": topic,
        "replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
    }
    return write_config(tmp_path / "mm2.properties", props)


def left_behind(broker: LocalKafka, alias: str, remote: str, topic: str) -> None:
    """1,000 records of partition 0 were copied, and none of partition 1 from offset 50 on; the source had 1,010 and 50."""
    create(broker, remote, 2)
    write(broker, remote, [(None, NUMBER)] * 1_000, 0)
    create(broker, ledger_topic(alias), config=LEDGER_CONFIGS)
    full = LedgerEntry(topic, 0, remote, Mark(1_200, 1_000, 1_000), 1_200, end=1_210)
    rows = [
        entry_record(full),
        chunk_record(full.source, SegmentChunk(0, [Segment(0, 0, 400), Segment(600, 400, 600)])),
        entry_record(LedgerEntry(topic, 1, remote, Mark(50, 0, 0), 50, end=50)),
    ]
    write(broker, ledger_topic(alias), [(row.key, row.value) for row in rows], 0)


def checkpointed(broker: LocalKafka, alias: str, checkpoints: list[Checkpoint]) -> None:
    topic = f"{alias}.checkpoints.internal"
    create(broker, topic, config={"cleanup.policy": "compact"})
    write(broker, topic, [(one.key(), one.value()) for one in checkpoints], 0)


def everything(broker: LocalKafka, alias: str, groups: Mapping[str, str]) -> tuple[Any, ...]:
    """The state that a verb could change: ledger, ends of the other topics, offsets of groups."""
    offsets = [committed(broker, group, topic, part) for group, topic in groups.items() for part in (0, 1)]
    others = [ends(broker, topic) for topic in (*groups.values(), f"{alias}.checkpoints.internal")]
    return table(broker, ledger_topic(alias)), others, offsets


def outcomes(out: str) -> dict[tuple[str, int], tuple[int | None, str, str]]:
    """(target offset, source of the offset, outcome) by group and partition."""
    return {
        (row["group"], row["partition"]): (row["translated"], row["found_by"], row["outcome"])
        for row in json.loads(out)["groups"]
    }


def test_groups_of_an_unreachable_source_continue_where_the_ledger_has_an_offset(
    kafka_b: LocalKafka, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, flow = "t-" + unique, f"{unique}->B"
    remote = f"{unique}.{topic}"
    file = properties(tmp_path, unique, GONE, kafka_b.bootstrap)
    left_behind(kafka_b, unique, remote, topic)
    names = ("exact", "ahead", "behind", "first", "beyond")
    exact, ahead, behind, first, beyond = (f"{unique}-{name}" for name in names)
    groups = dict.fromkeys((exact, ahead, behind, first, beyond), remote)
    # The checkpoints are older than the ledger: the exact offset is 500, not 450.
    checkpointed(
        kafka_b,
        unique,
        [
            Checkpoint(exact, remote, 0, 700, 450, ""),
            Checkpoint(ahead, remote, 0, 700, 500, ""),
            Checkpoint(behind, remote, 0, 450, 400, ""),
            Checkpoint(first, remote, 1, 50, 0, ""),
            Checkpoint(beyond, remote, 0, 1_300, 1_100, ""),  # of a copy that the target does not have any more
        ],
    )
    commit(kafka_b, ahead, {(remote, 0): 900})
    before = everything(kafka_b, unique, groups)
    code, out, err = asked(capsys, "failover", file, flow, "--json", "--dry-run")
    document = json.loads(out)
    assert (code, err, document["source_answers"]) == (0, "", False)
    bounds = [document[f"records_at_risk{bound}"] for bound in ("", "_at_least", "_at_most")]
    assert bounds == [None, 10, None], "the source may have received more since its last answer"
    assert document["seconds_at_risk"] < 120
    assert everything(kafka_b, unique, groups) == before, "a dry run changes nothing"
    assert {row[2] for row in outcomes(out).values()} == {"to be written", "ahead"}

    code, out, err = asked(capsys, "failover", file, flow, "--json")
    assert (code, err) == (0, "")
    assert outcomes(out) == {
        (exact, 0): (500, "segments", "written"),
        (ahead, 0): (500, "segments", "ahead"),
        (behind, 0): (400, "conservative", "written"),  # the target offsets after 400 are unknown
        (first, 1): (0, "segments", "written"),
        (beyond, 0): (1_000, "conservative", "written"),
    }
    assert [committed(kafka_b, group, remote) for group in (exact, ahead, behind)] == [500, 900, 400]
    held = [
        json.loads(value or b"")
        for key, (value, _) in table(kafka_b, ledger_topic(unique)).items()
        if b'"promoted"' in key
    ]
    assert [(one["verb"], one["remote_topic"], one["turned"]) for one in held] == [("failover", remote, False)]

    code, out, err = asked(capsys, "failover", file, flow)
    assert (code, err) == (0, ""), "once more: nothing is left to be done"
    lines = out.splitlines()
    assert lines[0] == f"failover {flow}"
    assert lines[1].startswith(f"{unique} does not answer: ")
    assert f"  {topic}-0: offsets 1200-1209" in lines
    assert "done: 1 topic had already been promoted" in lines
    assert f"done: no process of {flow} is running; the promotion applies when one starts" in lines
    assert "done: 5 offsets unchanged: already committed, or the group is ahead" in lines


def test_an_offset_before_the_log_start_of_the_remote_partition_is_not_done(
    kafka_b: LocalKafka, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Retention of the target has deleted what the group has not read: with auto.offset.reset=latest it would skip the rest."""
    topic, flow = "t-" + unique, f"{unique}->B"
    remote = f"{unique}.{topic}"
    file = properties(tmp_path, unique, GONE, kafka_b.bootstrap)
    left_behind(kafka_b, unique, remote, topic)
    fresh, there, ahead, behind = (f"{unique}-{name}" for name in ("fresh", "there", "ahead", "behind"))
    checkpoints = [Checkpoint(group, remote, 0, 700, 500, "") for group in (fresh, there, ahead)]
    checkpointed(kafka_b, unique, [*checkpoints, Checkpoint(behind, remote, 0, 900, 700, "")])
    for group, offset in ((there, 500), (ahead, 900), (behind, 500)):
        commit(kafka_b, group, {(remote, 0): offset})
    place = ConfluentPartition(remote, 0, 600)
    admin_of(kafka_b).delete_records([place])[place].result()

    def reasons(*more: str) -> dict[str, str]:
        code, out, _ = asked(capsys, "failover", file, flow, "--json", *more)
        assert code == 1, out
        found = outcomes(out)
        assert {group: found[group, 0][2] for group in (fresh, there, ahead, behind)} == {
            fresh: "failed",
            there: "failed",
            ahead: "ahead",
            behind: "to be written" if more else "written",
        }
        problems = " ".join(json.loads(out)["problems"])
        assert fresh in problems
        assert there in problems
        return {row["group"]: row["reason"] for row in json.loads(out)["groups"]}

    rows = json.loads(asked(capsys, "groups", file, flow, "--json")[1])["groups"]
    found = {row["group"]: (row["if_moved"], row["reason"]) for row in rows}
    why = f"the offset 500 is before the log start offset 600 of {remote}-0"
    assert {group: code for group, (code, _) in found.items()} == {
        fresh: "no_offset",
        there: "out_of_range",
        ahead: "ahead",
        behind: "out_of_range",
    }
    assert [why in found[group][1] for group in (fresh, there, behind)] == [True, True, False]
    for more in (["--dry-run"], []):
        told = reasons(*more)
        assert why in told[fresh]
        assert why in told[there]
        assert "so its consumers would start as auto.offset.reset says" in told[there]
    assert [committed(kafka_b, group, remote) for group in (there, ahead, behind)] == [500, 900, 700]
    for group in (fresh, there):
        commit(kafka_b, group, {(remote, 0): 600})
    code, out, _ = asked(capsys, "failover", file, flow, "--json")
    assert (code, {row[2] for row in outcomes(out).values()}) == (0, {"ahead", "there already"})


def test_a_group_in_use_is_reported_and_skipped_and_the_others_are_moved(
    kafka_b: LocalKafka, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, flow = "t-" + unique, f"{unique}->B"
    remote = f"{unique}.{topic}"
    file = properties(tmp_path, unique, GONE, kafka_b.bootstrap)
    left_behind(kafka_b, unique, remote, topic)
    idle, busy = f"{unique}-idle", f"{unique}-busy"
    checkpointed(kafka_b, unique, [Checkpoint(group, remote, 0, 700, 450, "") for group in (idle, busy)])
    consumer = Consumer({"bootstrap.servers": kafka_b.bootstrap, "group.id": busy, "enable.auto.commit": False})
    consumer.subscribe([remote])
    try:
        while not consumer.assignment():
            consumer.poll(0.1)
        code, out, _ = asked(capsys, "failover", file, flow, "--json", "--group", f"{unique}-.*")
        document = json.loads(out)
        assert code == 1
        assert outcomes(out) == {(idle, 0): (500, "segments", "written"), (busy, 0): (500, "segments", "in use")}
        assert document["problems"] == [
            f"group {busy}, {topic}-0: in use: it has members on B (stable): stop them first"
        ]
        assert committed(kafka_b, idle, remote) == 500
        code, out, _ = asked(capsys, "failover", file, flow, "--json", "--group", idle)
        assert (code, outcomes(out)) == (0, {(idle, 0): (500, "segments", "there already")})
    finally:
        consumer.close()


def test_a_reachable_source_with_uncopied_records_is_not_abandoned_by_accident(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, flow = "t-" + unique, f"{unique}->B"
    remote, group = f"{unique}.{topic}", f"{unique}-group"
    file = properties(tmp_path, unique, kafka_a.bootstrap, kafka_b.bootstrap)
    left_behind(kafka_b, unique, remote, topic)
    create(kafka_a, topic, 2)
    write(kafka_a, topic, [(None, NUMBER)] * 1_210, 0)
    commit(kafka_a, group, {(topic, 0): 700})
    known = table(kafka_b, ledger_topic(unique))
    code, out, err = asked(capsys, "failover", file, flow, "--group", group)
    assert (code, out) == (2, "")
    assert err == (
        f"mm2: Cluster {unique} answers and has 10 records that are not on B yet ({topic}-0: 1200 of 1210). Stop its "
        "producers and use --wait SECONDS, or use --leave-behind to leave these records behind.\n"
    )
    code, _, err = asked(capsys, "failover", file, flow, "--wait", "1", "--yes")
    assert (code, err) == (
        2,
        f"mm2: Timed out after 1 s waiting for cluster {unique}: 10 records are left to copy. Nothing was changed.\n",
    )
    code, _, err = asked(capsys, "promote", file, flow)
    assert code == 2
    assert err.endswith("or use --leave-behind to leave these records behind.\n")
    assert table(kafka_b, ledger_topic(unique)) == known
    code, _, err = asked(capsys, "failback", file, flow)
    assert (code, err) == (
        2,
        f"mm2: No selected topic of {flow} is promoted, so there is nothing to fail back: see mm2 failover, mm2 promote.\n",
    )

    code, out, err = asked(capsys, "promote", file, flow, "--leave-behind", "--yes", "--json")
    document = json.loads(out)
    assert (code, err, document["records_at_risk"], document["groups"]) == (0, "", 10, [])
    assert "a cluster has no authorizer, so there are no ACLs" in document["notes"]
    assert document["advice"][0] == f"applications can now write to {remote} on B"
    assert document["advice"][1].startswith(f"no enabled flow copies what is written on B to {unique}: ")
    code, out, _ = asked(capsys, "failover", file, flow, "--leave-behind", "--yes", "--json", "--group", group)
    assert (code, outcomes(out)) == (0, {(group, 0): (500, "segments", "written")})
    assert json.loads(out)["groups"][0]["told_by"] == "source"

    # The promoted topic is written to; the source has ten records that were not copied.
    write(kafka_b, remote, [(None, NUMBER)] * 7, 0)
    code, out, _ = asked(capsys, "failback", file, flow, "--json")
    document = json.loads(out)
    assert code == 1
    assert document["problems"] == [
        f"on {unique} only: 10 records in 1 partition, and nothing was changed: check these records, then use --divergent keep"
    ]
    assert [(row["missing"], row["others"]) for row in document["partitions"]] == [(10, 7), (0, 0)]
    assert any(
        sentence.startswith(f"7 records of other producers are in {remote} on B") for sentence in document["advice"]
    )
    code, out, _ = asked(capsys, "failback", file, flow, "--divergent", "keep")
    assert code == 0
    assert f"done: 1 topic no longer promoted: {flow} resumes copying" in out.splitlines()
    assert not any(b'"promoted"' in key for key, (value, _) in table(kafka_b, ledger_topic(unique)).items() if value)


def copied_completely(source: LocalKafka, target: LocalKafka, alias: str, topic: str) -> None:
    """As `left_behind`, and the source has no more records than the target."""
    left_behind(target, alias, f"{alias}.{topic}", topic)
    create(source, topic, 2)
    write(source, topic, [(None, NUMBER)] * 1_200, 0)
    write(source, topic, [(None, NUMBER)] * 50, 1)


def test_a_reachable_source_is_not_left_without_a_decision_and_a_confirmation(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All records are on the target, but a producer may write the next one at any time."""
    topic, flow = "t-" + unique, f"{unique}->B"
    file = properties(tmp_path, unique, kafka_a.bootstrap, kafka_b.bootstrap)
    copied_completely(kafka_a, kafka_b, unique, topic)
    commit(kafka_a, f"{unique}-group", {(topic, 0): 700})
    remote = f"{unique}.{topic}"
    before = everything(kafka_b, unique, {f"{unique}-group": remote})
    for arguments in ((), ("--yes",), ("--json",), ("--group", f"{unique}-.*")):
        code, out, err = asked(capsys, "failover", file, flow, *arguments)
        assert (code, out) == (2, ""), arguments
        assert err == (
            f"mm2: Cluster {unique} answers, so its producers may still write: use --dry-run to see what would be done. To "
            "fail over, stop its producers and use --wait SECONDS, or use --leave-behind to leave what they still write behind.\n"
        )
    for verb, *more in (("failover", "--wait", "60"), ("failover", "--leave-behind"), ("promote",)):
        code, out, err = asked(capsys, verb, file, flow, *more)
        assert (code, out) == (2, ""), verb
        assert err == (
            f"mm2: Cluster {unique} answers, and there is no terminal to confirm on: see what would be done with --dry-run, "
            "then use --yes.\n"
        )
    code, out, _ = asked(capsys, "failover", file, flow, "--dry-run", "--json", "--group", f"{unique}-.*")
    assert (code, json.loads(out)["problems"]) == (0, [])
    assert json.loads(out)["advice"][0].startswith(f"{unique} answers: to fail over, stop its producers and use --wait")
    assert everything(kafka_b, unique, {f"{unique}-group": remote}) == before, "nothing was changed"


@pytest.mark.parametrize(("isolation", "records"), [("read_committed", 0), ("read_uncommitted", 3)], ids=str)
def test_failback_counts_the_records_of_an_aborted_transaction_as_the_flow_would_copy_them(
    kafka_a: LocalKafka,
    kafka_b: LocalKafka,
    unique: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    isolation: str,
    records: int,
) -> None:
    """A producer that died with the source leaves one; its four offsets are three records and a marker."""
    topic, flow = "t-" + unique, f"{unique}->B"
    isolated = {f"{unique}.consumer.isolation.level": isolation}
    file = properties(tmp_path, unique, kafka_a.bootstrap, kafka_b.bootstrap, **isolated)
    copied_completely(kafka_a, kafka_b, unique, topic)
    arguments = ("--wait", "60", "--yes", "--group", f"{unique}-nobody")
    code, _, err = asked(capsys, "failover", file, flow, *arguments)
    assert (code, err) == (0, "")
    producer = producer_of(kafka_a, transactional__id=unique)
    producer.init_transactions(30)
    producer.begin_transaction()
    for _ in range(3):
        producer.produce(topic, NUMBER, partition=0)
    assert producer.flush(30) == 0
    producer.abort_transaction(30)
    wait_until(lambda: ends(kafka_a, topic) == [1_204, 50])  # the marker is written after the answer
    code, out, _ = asked(capsys, "failback", file, flow, "--dry-run", "--json")
    document = json.loads(out)
    assert document["records_at_risk"] == records, document
    assert (code, bool(document["problems"])) == ((1, True) if records else (0, False))
    _, out, _ = asked(capsys, "failback", file, flow, "--dry-run")
    assert f"on {unique} only: {records} records\n" in out
    assert f"  {topic}-0: offsets 1200-1203, {records} records to be copied\n" in out


def test_a_failback_that_continues_after_another_failover_withdraws_no_promotion(
    kafka_a: LocalKafka,
    kafka_b: LocalKafka,
    unique: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Given names that show the origin, and a failback that is frozen before it withdraws the promotion, while another one completes
    and the flow is failed over again; validates that it does not copy to the remote topic, which applications write to.
    """
    topic, flow = "t-" + unique, f"{unique}->B"
    file = properties(tmp_path, unique, kafka_a.bootstrap, kafka_b.bootstrap)
    copied_completely(kafka_a, kafka_b, unique, topic)
    arguments = ("failover", file, flow, "--wait", "60", "--yes", "--group", f"{unique}-nobody")

    def continued(*rest: Any) -> None:
        monkeypatch.undo()
        for command in (("failback", file, flow), arguments):
            assert asked(capsys, *command)[0] == 0
        resumed(*rest)

    assert asked(capsys, *arguments)[0] == 0
    resumed = failback._resume
    monkeypatch.setattr(failback, "_resume", continued)
    code, out, _ = asked(capsys, "failback", file, flow, "--json")
    (problem,) = json.loads(out)["problems"]
    assert (code, problem.startswith(f"{topic} was promoted again meanwhile, and nothing was changed")) == (1, True)
    code, out, _ = asked(capsys, "failback", file, flow, "--dry-run")
    assert code == 0, "it is still promoted"


def test_a_failover_that_continues_after_another_one_was_failed_back_promotes_nothing(
    kafka_a: LocalKafka,
    kafka_b: LocalKafka,
    unique: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Given a failover that is frozen before it stores the promotion, while another one and a failback complete."""
    topic, flow = "t-" + unique, f"{unique}->B"
    file = properties(tmp_path, unique, kafka_a.bootstrap, kafka_b.bootstrap)
    copied_completely(kafka_a, kafka_b, unique, topic)
    arguments = ("failover", file, flow, "--wait", "60", "--yes", "--group", f"{unique}-nobody")

    def continued(*rest: Any) -> Any:
        monkeypatch.undo()
        for command in (arguments, ("failback", file, flow)):
            assert asked(capsys, *command)[0] == 0
        return hand_over(*rest)

    monkeypatch.setattr("mm2.failover.failover.hand_over", continued)
    code, _, error = asked(capsys, *arguments)
    assert (code, "changed promotions" in error) == (2, True), error
    code, out, _ = asked(capsys, "failback", file, flow, "--dry-run")
    assert code == 2, f"nothing is promoted: {out}"


def test_a_promotion_that_another_command_changes_at_the_same_time_is_reported(
    kafka_a: LocalKafka,
    kafka_b: LocalKafka,
    unique: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Given another command that writes between the last read and the write, which nothing on the broker excludes."""
    topic, flow = "t-" + unique, f"{unique}->B"
    file = properties(tmp_path, unique, kafka_a.bootstrap, kafka_b.bootstrap)
    copied_completely(kafka_a, kafka_b, unique, topic)

    def written(sides: Sides, records: Sequence[Record], *, promotions: int = 0) -> None:
        write_to_ledger(sides.clients, [withdrawn(topic)])
        appended(sides, records, promotions=promotions)

    appended = Sides.write_ledger
    monkeypatch.setattr(Sides, "write_ledger", written)
    code, out, _ = asked(capsys, "promote", file, flow, "--topic", topic, "--yes", "--json")
    assert code == 1
    assert [one for one in json.loads(out)["problems"] if one.startswith("another command has changed promotions")]


def test_a_failover_is_confirmed_on_the_terminal(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, tmp_path: Path
) -> None:
    topic, flow = "t-" + unique, f"{unique}->B"
    file = properties(tmp_path, unique, kafka_a.bootstrap, kafka_b.bootstrap)
    copied_completely(kafka_a, kafka_b, unique, topic)
    known = table(kafka_b, ledger_topic(unique))
    for answer, code in (("yes", 2), ("", 2), (unique, 0)):
        done, printed = on_terminal(answer, "failover", file, flow, "--wait", "60", "--group", f"{unique}-nobody")
        assert (done, f"Write {unique} to continue: " in printed) == (code, True), printed
        assert f"failover {flow}, dry run: nothing is changed" in printed
        assert (table(kafka_b, ledger_topic(unique)) == known) is (code == 2)


def on_terminal(answer: str, *arguments: str | Path) -> tuple[int, str]:
    """Run `mm2` with this line as the input of its terminal: exit code, and both outputs."""
    command = [sys.executable, "-P", "-m", "mm2.cli.mm2", *map(str, arguments)]
    with terminal(answer) as stdin:
        done = subprocess.run(
            command,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            timeout=120 * PATIENCE,
            check=False,
        )
    return done.returncode, done.stdout.decode()


def test_records_of_a_writer_that_was_not_stopped_are_reported(
    kafka_a: LocalKafka,
    kafka_b: LocalKafka,
    unique: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic, flow = "t-" + unique, f"{unique}->B"
    file = properties(tmp_path, unique, kafka_a.bootstrap, kafka_b.bootstrap)
    left_behind(kafka_b, unique, f"{unique}.{topic}", topic)
    create(kafka_a, topic, 2)
    write(kafka_a, topic, [(None, NUMBER)] * 1_200, 0)
    write(kafka_a, topic, [(None, NUMBER)] * 50, 1)

    def meanwhile(sides: Sides, topics: Collection[str], verb: str) -> tuple[list[str], list[str]]:
        write(kafka_a, topic, [(None, NUMBER)] * 3, 0)
        return stop_copying(sides, topics, verb)

    monkeypatch.setattr("mm2.failover.copy_control.stop_copying", meanwhile)
    code, out, _ = asked(
        capsys, "failover", file, flow, "--wait", "60", "--yes", "--json", "--group", f"{unique}-nobody"
    )
    document = json.loads(out)
    assert (code, document["records_at_risk"]) == (1, 3)
    assert document["problems"] == [
        f"producers still write to {unique}; written after copying was stopped, and not on B: 3 records"
    ]
    assert any(sentence.startswith("1 topic promoted") for sentence in document["done"])
    assert "no selected group has committed offsets of these topics" in document["done"]


def test_an_error_is_reported_in_one_sentence_and_changes_nothing(
    kafka_b: LocalKafka, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flow = f"{unique}->B"
    file = properties(tmp_path, unique, GONE, kafka_b.bootstrap)
    for arguments, sentence in (
        (("failover", file, "X->B"), f"mm2: {file} has no flow X->B; its flows are"),
        (
            ("failover", file, flow),
            f"mm2: Cluster B has no ledger mm2-ledger.{unique}.internal: nothing has been copied",
        ),
        (("failover", file, flow, "--topic", "["), "mm2: Invalid value [ for configuration --topic"),
        (("failover", file, flow, "--group", ""), "mm2: --group is empty; omit it to select all."),
        (("failover", file, flow, "--wait", "-1"), "mm2: --wait -1 is not a number of seconds."),
        (
            ("failback", file, flow, "--divergent", "truncate"),
            "mm2: The end of a log cannot be truncated: DeleteRecords",
        ),
    ):
        code, out, err = asked(capsys, *arguments)
        assert (code, out) == (2, ""), arguments
        assert err.startswith(sentence), err
        assert err.count("\n") == 1, err
    left_behind(kafka_b, unique, f"{unique}.t-{unique}", "t-" + unique)
    known = table(kafka_b, ledger_topic(unique))
    for arguments, sentence in (
        (
            ("failover", file, flow, "--topic", "other"),
            f"mm2: No topic of {flow} matches --topic; topics in its ledger (1): t-{unique}.",
        ),
        (("failover", file, flow, "--wait", "5"), f"mm2: Cluster {unique} does not answer: "),
        (("failback", file, flow), f"mm2: Cluster {unique} does not answer yet: "),
    ):
        code, out, err = asked(capsys, *arguments)
        assert (code, out) == (2, ""), arguments
        assert err.startswith(sentence), err
    assert table(kafka_b, ledger_topic(unique)) == known


def test_under_identity_naming_the_reverse_flow_starts_after_the_copied_records(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, a, b = "t-" + unique, f"{unique}-a", f"{unique}-b"
    there, back = f"{a}->{b}", f"{b}->{a}"
    file = identity_properties(tmp_path, (a, b), kafka_a, kafka_b, topic)
    left_behind(kafka_b, a, topic, topic)
    create(kafka_a, topic, 2)
    write(kafka_a, topic, [(None, NUMBER)] * 1_210, 0)
    code, _, err = asked(capsys, "failover", file, there, "--leave-behind", "--yes", "--group", f"{unique}-nobody")
    assert (code, err) == (0, "")
    write(kafka_b, topic, [(None, NUMBER)] * 30, 0)  # applications are on B now
    code, _, err = asked(capsys, "failback", file, there, "--divergent", "keep")
    assert code == 2
    assert err == (
        f"mm2: Cluster {a} has no topic mm2-offsets.{b}.internal, so the flow {back} has never run: set {back}.enabled = true, "
        "start it once, then run the command again.\n"
    )
    create(kafka_a, f"mm2-offsets.{b}.internal", 5, {"cleanup.policy": "compact"})
    create(kafka_a, ledger_topic(b), config=LEDGER_CONFIGS)
    code, out, _ = asked(capsys, "failback", file, there, "--json")
    document = json.loads(out)
    assert (code, [start["offset"] for start in document["starts"]]) == (1, [1_000, 0])
    assert ends(kafka_a, f"mm2-offsets.{b}.internal") == [0] * 5, "not before the tail was agreed to"
    code, out, _ = asked(capsys, "failback", file, there, "--divergent", "keep", "--json")
    document = json.loads(out)
    assert code == 0
    assert [(start["offset"], start["offset_before"], start["verified"]) for start in document["starts"]] == [
        (1_000, None, True),
        (0, None, True),
    ]
    positions = {
        json.loads(key)[1]["partition"]: json.loads(value or b"")["offset"]
        for key, (value, _) in table(kafka_a, f"mm2-offsets.{b}.internal").items()
    }
    assert positions == {0: 999, 1: -1}, "the last offset that is done"
    code, out, _ = asked(capsys, "failback", file, there)
    assert code == 0
    assert f"done: {back} had already taken over 1 topic, first {topic}" in out.splitlines()
    (note,) = [value for key, (value, _) in table(kafka_b, ledger_topic(a)).items() if b'"promoted"' in key]
    assert json.loads(note or b"")["turned"]


@pytest.mark.parametrize("missing", [300, 0])
def test_each_source_partition_of_a_merge_has_its_own_evidence(
    kafka_a: LocalKafka,
    kafka_b: LocalKafka,
    unique: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    missing: int,
) -> None:
    """Given two topics that are merged, of which one has records that were not copied, or none has; validates both, by the
    counts of their own sessions: 10 and 500 records.
    """
    counts, remote = {f"t1-{unique}": 10, f"t2-{unique}": 500}, f"t-{unique}-all"
    file = properties(tmp_path, unique, kafka_a.bootstrap, kafka_b.bootstrap, topics=f"t.-{unique}")
    create(kafka_b, remote)
    rows, at = [], 0
    create(kafka_b, ledger_topic(unique), config=LEDGER_CONFIGS)
    for topic, count in counts.items():
        create(kafka_a, topic)
        write(kafka_a, topic, [(None, NUMBER)] * count, 0)
        copier = producer_of(kafka_b, **{"enable.idempotence": True})
        for _ in range(count):
            copier.produce(remote, NUMBER, partition=0)
        assert copier.flush(60) == 0
        header = batches(kafka_b, remote)[-1][0]
        session = Session(ProducerIdentity(header.producer_id, header.producer_epoch), Mark(0, at, 0))
        at += count
        rows.append(
            entry_record(LedgerEntry(topic, 0, remote, Mark(count, at, count), count, session=session, end=count))
        )
    write(kafka_b, ledger_topic(unique), [(row.key, row.value) for row in rows], 0)
    first = next(iter(counts))
    write(kafka_a, first, [(None, NUMBER)] * missing, 0)
    code, out, err = asked(capsys, "failover", file, f"{unique}->B", "--dry-run", "--json")
    document = json.loads(out)
    found = [(one["missing"], one["unmarked"], one["target_trouble"], one["others"]) for one in document["partitions"]]
    assert (found, err) == ([(missing, 0, "", 0), (0, 0, "", 0)], "")
    assert (document["records_at_risk"], code) == (missing, 1 if missing else 0)
    code, _, err = asked(capsys, "failover", file, f"{unique}->B", "--wait", "1", "--yes")
    assert (code, f"{missing} records are left to copy" in err) == ((2, True) if missing else (0, False)), err


def test_records_on_the_copy_before_the_last_copied_one_are_not_taken_for_returned(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Given identity naming, and 10 records that applications wrote to the copy on B before its last record from A; validates that
    each command names them, as kept once they were, and that a group that has not read them is not reported as moved exactly.
    """
    topic, group, a, b = f"t-{unique}", f"g-{unique}", f"{unique}-a", f"{unique}-b"
    there, back, early = f"{a}->{b}", f"{b}->{a}", f"10 records in 1 partition: t-{unique}-0: offsets 100-109"
    file = identity_properties(tmp_path, (a, b), kafka_a, kafka_b, topic)
    for broker, count in ((kafka_a, 101), (kafka_b, 111)):
        create(broker, topic)
        write(broker, topic, [(None, NUMBER)] * count, 0)
    copied = LedgerEntry(topic, 0, topic, Mark(101, 111, 101), 101, topic_id(kafka_a, topic), end=101, foreign=10)
    segments = [Segment(0, 0, 100), Segment(100, 110, 1)]
    create(kafka_b, ledger_topic(a), config=LEDGER_CONFIGS)
    write_ledger(kafka_b, a, copied, segments)
    arguments = ("--wait", "1", "--yes", "--group", group, "--json")
    code, out, err = asked(capsys, "failover", file, there, *arguments)
    assert (code, err) == (0, "")
    (note,) = json.loads(out)["notes"]
    assert early in note, note
    create(kafka_a, f"mm2-offsets.{b}.internal", 5, {"cleanup.policy": "compact"})
    returned = LedgerEntry(topic, 0, topic, Mark(112, 102, 1), 112, end=112)
    create(kafka_a, ledger_topic(b), config=LEDGER_CONFIGS)
    write(kafka_b, topic, [(None, NUMBER)], 0)
    code, out, err = asked(capsys, "failback", file, there, "--json")
    document = json.loads(out)
    assert (code, [start["offset"] for start in document["starts"]], err) == (1, [111], "")
    (problem,) = document["problems"]
    assert early in problem, problem
    assert "use --divergent keep" in problem
    assert ends(kafka_a, f"mm2-offsets.{b}.internal") == [0] * 5, "nothing was changed"
    code, out, _ = asked(capsys, "failback", file, there, "--divergent", "keep", "--json")
    document = json.loads(out)
    assert (code, document["problems"], early in document["notes"][0]) == (0, [], True), document
    # B->A has copied the record that was written later.
    write(kafka_a, topic, [(None, NUMBER)], 0)
    write_ledger(kafka_a, b, returned, [Segment(111, 101, 1)])
    commit(kafka_b, group, {(topic, 0): 103})
    code, out, err = asked(capsys, "gaps", file, back, "--json")
    (gaps,) = json.loads(out)["partitions"]
    assert (code, gaps["kept_on_source"]) == (0, [{"first": 100, "last": 109, "records": 10}]), err
    (status,) = json.loads(asked(capsys, "status", file, back, "--json")[1])["flows"]
    assert f"mm2 failback has kept 10 records on {b} only" in status["sentence"], status["sentence"]
    code, out, err = asked(capsys, "failover", file, back, *arguments)
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert (document["records_at_risk"], document["notes"]) == (
        0,
        [f"kept on {b} by mm2 failback before, and not counted as missing: {early}"],
    )
    (row,) = document["groups"]
    assert (row["translated"], row["found_by"], row["outcome"]) == (100, "conservative", "written")
    assert (
        row["reason"]
        == "its next records, at offsets 103 to 109, are on the source only: the offset on the target is after them"
    )


def write_ledger(broker: LocalKafka, alias: str, entry: LedgerEntry, segments: list[Segment]) -> None:
    rows = [entry_record(entry), chunk_record(entry.source, SegmentChunk(0, segments))]
    write(broker, ledger_topic(alias), [(row.key, row.value) for row in rows], 0)


class Copied:
    """A flow A->B with identity naming that has copied 10 records, has no process, and was failed over; B->A has run before."""

    def __init__(
        self, a: LocalKafka, b: LocalKafka, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.a, self.b, self.capsys = a, b, capsys
        self.topic, self.group, self.aliases = f"t-{unique}", f"g-{unique}", (f"{unique}-a", f"{unique}-b")
        self.there, self.back = "->".join(self.aliases), "->".join(reversed(self.aliases))
        self.file = identity_properties(tmp_path, self.aliases, a, b, f"{self.topic}.*")
        for broker in (a, b):
            create(broker, self.topic)
            write(broker, self.topic, [(None, NUMBER)] * 10, 0)
        create(a, f"mm2-offsets.{self.aliases[1]}.internal", 5, {"cleanup.policy": "compact"})
        for broker, alias in ((b, self.aliases[0]), (a, self.aliases[1])):
            create(broker, ledger_topic(alias), config=LEDGER_CONFIGS)
        entry = LedgerEntry(self.topic, 0, self.topic, Mark(10, 10, 10), 10, topic_id(a, self.topic), end=10)
        write_ledger(b, self.aliases[0], entry, [Segment(0, 0, 10)])
        assert self.ask("failover", self.there, "--wait", "1", "--yes")["problems"] == []

    def ask(self, verb: str, flow: str, *arguments: str, code: int = 0) -> dict[str, Any]:
        groups = ("--group", self.group) if verb == "failover" else ()
        got, out, err = asked(self.capsys, verb, self.file, flow, *arguments, *groups, "--json")
        assert got == code, (got, out, err)
        return dict(json.loads(out)) if out else {"sentence": err}

    def receive(self, topic: str) -> None:
        """Let A->B have created an empty topic on B, which B->A does not copy for this reason; A->B is copying the other one again."""
        first, second = self.aliases
        self.ask("failback", self.there)
        returned = LedgerEntry(self.topic, 0, self.topic, Mark(10, 10, 0), 10, end=10)
        write_ledger(self.a, second, returned, [])
        for broker in (self.a, self.b):
            create(broker, topic)
        now_ms = time.time_ns() // 1_000_000
        notes = [
            note_record(
                PROVENANCE_NOTE, [topic], {"paths": [[[admin(self.a).list_topics(timeout=60).cluster_id, now_ms]]]}
            ),
            note_record(PROVENANCE_NOTE, [], {"until.ms": now_ms + 3_600_000}),
        ]
        write(self.b, ledger_topic(first), [(row.key, row.value) for row in notes], 0)
        with self.file.open("a") as file:
            file.write(f"\n{self.back}.enabled = true\n")

    def left_behind(self) -> list[dict[str, int]]:
        """The records of the other topic on B that a failover to A would leave behind; the command is refused for their sake."""
        report = self.ask("failover", self.back, "--dry-run", code=1)
        runs = [run for one in report["partitions"] for run in one["foreign_on_source"]]
        count = sum(run["records"] for run in runs)
        sentence = self.ask("failover", self.back, "--wait", "1", "--yes", code=2)["sentence"]
        assert f"has {count} records that are not on {self.aliases[0]}" in sentence, sentence
        return runs

    def is_turned(self) -> bool:
        return sum(ends(self.a, f"mm2-offsets.{self.aliases[1]}.internal")) > 0


@pytest.fixture
def failed_over(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Copied:
    return Copied(kafka_a, kafka_b, unique, tmp_path, capsys)


def topic_id(broker: LocalKafka, topic: str) -> str:
    (described,) = admin(broker).describe_topics(TopicCollection([topic])).values()
    found = str(described.result(30 * PATIENCE).topic_id)
    return found.replace("+", "-").replace("/", "_")  # as Kafka prints it


def test_records_of_a_partition_that_was_added_after_the_failover_are_not_left_behind(failed_over: Copied) -> None:
    """Given a partition with 10 records on A that B does not have; validates that failback changes nothing without a decision."""
    (grown,) = admin(failed_over.a).create_partitions([NewPartitions(failed_over.topic, 2)]).values()
    grown.result(30 * PATIENCE)
    wait_until(lambda: partitions_of(failed_over.a, failed_over.topic) == 2)
    write(failed_over.a, failed_over.topic, [(None, NUMBER)] * 10, 1)
    report = failed_over.ask("failback", failed_over.there, code=1)
    a = failed_over.aliases[0]
    assert report["records_at_risk"] == 10
    assert report["problems"][0].startswith(f"on {a} only: 10 records in 1 partition, and nothing was changed")
    assert not failed_over.is_turned()
    report = failed_over.ask("failback", failed_over.there, "--divergent", "keep")
    assert (report["records_at_risk"], len(report["starts"]), failed_over.is_turned()) == (10, 1, True)


def test_records_of_a_topic_that_was_created_again_are_on_its_copy_only(failed_over: Copied) -> None:
    """Given a topic that was deleted on A after the failover, and created again; validates that its records on B count."""
    a, topic, second = failed_over.a, failed_over.topic, failed_over.aliases[1]
    admin(a).delete_topics([topic])[topic].result(30 * PATIENCE)
    wait_until(lambda: partitions_of(a, topic) == 0)
    create(a, topic)
    on_b = f"on {second} only: 10 records in 1 partition: {topic}-0: offsets 0-9"
    report = failed_over.ask("failback", failed_over.there, code=1)
    assert [problem for problem in report["problems"] if problem.startswith(on_b)], report["problems"]
    assert not failed_over.is_turned()
    report = failed_over.ask("failback", failed_over.there, "--divergent", "keep")
    assert report["notes"][0].startswith(on_b), report["notes"]
    entry = LedgerEntry(topic, 0, topic, Mark(10, 0, 0), 10, topic_id(failed_over.b, topic), topic_id(a, topic), end=10)
    write_ledger(a, second, entry, [])
    report = failed_over.ask("failover", failed_over.back, "--dry-run")
    kept = f"kept on {second} by mm2 failback before, and not counted as missing: 10 records in 1 partition: {topic}-0: offsets 0-9"
    assert (report["records_at_risk"], report["notes"]) == (0, [kept])


@pytest.mark.parametrize("late", [0, 2])
def test_records_that_the_opposite_flow_has_copied_back_are_not_on_the_source_only(
    failed_over: Copied, late: int
) -> None:
    """Given B->A, which has copied 20 records to A after those of A->B; validates that only those that another producer has written to A
    count as records that B does not have.
    """
    a, b, topic, (first, second) = failed_over.a, failed_over.b, failed_over.topic, failed_over.aliases
    failed_over.ask("failback", failed_over.there)
    write(a, topic, [(None, NUMBER)] * late, 0)
    for broker in (a, b):
        write(broker, topic, [(None, NUMBER)] * 20, 0)
    entry = LedgerEntry(topic, 0, topic, Mark(30, late + 30, 20), 30, topic_id(b, topic), topic_id(a, topic), end=30)
    write_ledger(a, second, entry, [Segment(10, late + 10, 20)])
    arguments = ("failover", failed_over.there, "--wait", "1", "--yes")
    if late:
        sentence = failed_over.ask(*arguments, code=2)["sentence"]
        assert f"{first} answers and has 2 records that are not on {second} yet" in sentence, sentence
    report = failed_over.ask("failover", failed_over.there, "--dry-run", code=1 if late else 0)
    (partition,) = report["partitions"]
    assert (report["records_at_risk"], partition["missing"]) == (late, late)
    assert partition["foreign_on_source"] == ([{"first": 10, "last": 11, "records": 2}] if late else [])
    if not late:
        assert failed_over.ask(*arguments)["problems"] == []


@pytest.mark.parametrize("step", ["_write_positions", "_permit_copying"])
def test_a_failback_that_continues_after_another_one_changes_nothing(
    failed_over: Copied, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Given a command that is frozen before it writes, while another one completes, and B->A copies; validates that it does not put B->A
    back, which would copy records again.
    """
    frozen, written = getattr(_FlowReversal, step), list[int]()

    def continued(*arguments: Any) -> None:
        monkeypatch.undo()
        failed_over.ask("failback", failed_over.there)
        written.extend(changed())
        frozen(*arguments)

    def changed() -> list[int]:
        topics = [f"mm2-offsets.{failed_over.aliases[1]}.internal", ledger_topic(failed_over.aliases[1])]
        return [
            *(sum(ends(failed_over.a, one)) for one in topics),
            *ends(failed_over.b, ledger_topic(failed_over.aliases[0])),
        ]

    monkeypatch.setattr(_FlowReversal, step, continued)
    report = failed_over.ask("failback", failed_over.there, code=1)
    (problem,) = report["problems"]
    assert f"another command has changed the promotion or a position of {failed_over.topic}" in problem
    assert changed() == written


def test_a_failover_that_continues_after_another_one_rewinds_no_group(
    failed_over: Copied, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a command that is frozen before it commits offsets, while the group commits later ones."""
    write, topic, group = Groups.write, failed_over.topic, failed_over.group
    commit(failed_over.a, group, {(topic, 0): 6})

    def continued(groups: Groups, rows: Sequence[GroupEvidence]) -> list[GroupEvidence]:
        commit(failed_over.b, group, {(topic, 0): 9})
        return write(groups, rows)

    monkeypatch.setattr(Groups, "write", continued)
    (row,) = failed_over.ask("failover", failed_over.there, "--wait", "1", "--yes")["groups"]
    assert (row["translated"], row["offset_after"], row["outcome"]) == (6, 9, "ahead")
    assert committed(failed_over.b, group, topic) == 9


@pytest.mark.parametrize("lost", [10, 4])
def test_records_that_the_source_has_lost_since_they_were_copied_are_on_the_copy_only(
    failed_over: Copied, lost: int
) -> None:
    """Given a topic of which A has lost all records, as on a new disk, which keeps the topic id, or the last four; validates that
    failback names the copies that stay on B before it changes anything.
    """
    a, b, topic, copied = failed_over.a, failed_over.b, failed_over.topic, 10
    if lost == copied:
        admin(a).delete_topics([topic])[topic].result(30 * PATIENCE)
        wait_until(lambda: partitions_of(a, topic) == 0)
        create(a, topic)
    else:
        copied += lost
        write(b, topic, [(None, NUMBER)] * lost, 0)
    entry = LedgerEntry(topic, 0, topic, Mark(copied, copied, copied), copied, topic_id(a, topic), end=copied)
    write_ledger(b, failed_over.aliases[0], entry, [Segment(0, 0, copied)])
    write(b, topic, [(None, NUMBER)] * 5, 0)
    only = f"on {failed_over.aliases[1]} only: {lost} records in 1 partition: {topic}-0: offsets {copied - lost}-{copied - 1}"
    report = failed_over.ask("failback", failed_over.there, code=1)
    assert [problem for problem in report["problems"] if problem.startswith(only)], report["problems"]
    assert not failed_over.is_turned()
    report = failed_over.ask("failback", failed_over.there, "--divergent", "keep")
    assert [note for note in report["notes"] if note.startswith(only)], report["notes"]
    assert [start["offset"] for start in report["starts"]] == [copied]


def test_a_topic_that_belongs_to_the_other_flow_is_listed_with_its_own_records(failed_over: Copied) -> None:
    """Given a topic that A->B has created on B, where applications have written 50 records to it; validates that B->A, which does
    not copy it, does not leave them behind, and gives its groups no offset in the empty topic on A.
    """
    new, (first, second) = f"{failed_over.topic}-new", failed_over.aliases
    failed_over.receive(new)
    write(failed_over.b, new, [(None, NUMBER)] * 50, 0)
    write_ledger(failed_over.b, first, LedgerEntry(new, 0, new, Mark(0, 50, 0), 0, end=0), [])
    commit(failed_over.b, failed_over.group, {(new, 0): 20})
    out = asked(failed_over.capsys, "status", failed_over.file, failed_over.back, "--json")[1]
    (status,) = json.loads(out)["flows"]
    assert f"{second} has 1 topic that came from {first}: records that other producers" in status["sentence"], status
    arguments = ("failover", failed_over.back, "--wait", "1", "--yes")
    sentence = failed_over.ask(*arguments, code=2)["sentence"]
    assert f"has 50 records that are not on {first}" in sentence, sentence
    assert "offsets 0-49" in sentence, sentence
    report = failed_over.ask(*arguments, "--leave-behind", code=1)
    rows = {row["topic"]: row["missing"] for row in report["partitions"]}
    assert (rows[new], report["records_at_risk"]) == (50, 50)
    (group,) = report["groups"]
    assert (group["translated"], group["outcome"]) == (None, "no place")
    assert committed(failed_over.a, failed_over.group, new) < 0


@pytest.mark.parametrize("early", [0, 1])
def test_records_around_the_transactions_of_a_copy_are_listed(failed_over: Copied, early: int) -> None:
    """Given a topic that A->B has copied to B in exactly-once mode, where applications have written 50 records since, and none or one
    before; validates that B->A, which does not copy it, does not leave them behind, and takes no record of A->B for one of theirs.
    """
    topic = f"{failed_over.topic}-new"
    failed_over.receive(topic)
    write(failed_over.b, topic, [(None, NUMBER)] * early, 0)
    producer = producer_of(failed_over.b, transactional__id=topic)
    producer.init_transactions(60)
    for _ in range(2):  # the entry below is that of the first one
        producer.begin_transaction()
        for _ in range(10):
            producer.produce(topic, NUMBER)
        producer.commit_transaction(60)
    written_by = {header.producer_id for header, _ in batches(failed_over.b, topic) if header.base_offset >= early}
    write(failed_over.b, topic, [(None, NUMBER)] * 50, 0)
    entry = LedgerEntry(topic, 0, topic, Mark(10, early + 10, 10), 10, end=20, written_by=written_by.pop())
    write_ledger(failed_over.b, failed_over.aliases[0], entry, [Segment(0, early, 10)])
    before = [{"first": 0, "last": 0, "records": 1}] * early
    assert failed_over.left_behind() == [*before, {"first": early + 22, "last": early + 71, "records": 50}]


def test_records_after_a_copy_with_preserved_offsets_are_listed(failed_over: Copied) -> None:
    """Given a topic that A->B has copied to B with its offsets, of which two filled a gap, where applications have written 50 records
    since; validates that B->A, which does not copy it, does not leave them behind.
    """
    topic = f"{failed_over.topic}-new"
    failed_over.receive(topic)
    write(failed_over.b, topic, [(None, NUMBER)] * 4, 0)
    producer = producer_of(failed_over.b, transactional__id=topic)
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, NUMBER)
    producer.commit_transaction(60)
    write(failed_over.b, topic, [(None, NUMBER)] * 54, 0)
    session = Session(ProducerIdentity(0, 0), Mark(0, 0, 0))
    entry = LedgerEntry(topic, 0, topic, Mark(10, 10, 9), 10, end=10, session=session, is_preserved=True)
    write_ledger(failed_over.b, failed_over.aliases[0], entry, [Segment(0, 0, 5), Segment(6, 6, 4)])
    assert failed_over.left_behind() == [{"first": 10, "last": 59, "records": 50}]
