"""`mm2 failover`, `promote` and `failback` where it is not certain that a source is down, or that everything is on the target.

Given ledgers, checkpoints and groups as a flow leaves them, without a process. Validates exit codes, reports, and that a refusal changes
nothing: a source that rejects the login, or that only a process of the flow reaches; a source that has lost a broker; records that the
flow has not begun to copy; a topic that was created again, excluded or deleted; a target that has lost records.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException

from mm2.copy.progress.ledger import LEDGER_CONFIGS, entry_record, ledger_topic, note_record
from mm2.copy.progress.session import LedgerEntry, Mark
from mm2.mirror.common.formats import Checkpoint
from mm2.mirror.notes.promotions import Promotion
from mm2.mirror.notes.source_answers import SOURCE_NOTE
from mm2.sandbox.kafka import LocalKafka
from tests.integration.asking import asked
from tests.integration.copy_flow import admin_of
from tests.integration.failover.test_failover_verbs import (
    GONE,
    NUMBER,
    checkpointed,
    copied_completely,
    identity_properties,
    left_behind,
    outcomes,
    properties,
)
from tests.integration.mirror_flow import commit, create, write
from tests.integration.mirror_process import delete, grow, table
from tests.support import passworded
from tests.support.cluster import LocalCluster
from tests.support.passworded import LISTENERS, PASSWORDS
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    """A broker with a listener that requires a password."""
    with LocalKafka("guarded", tmp_path_factory.mktemp("guarded"), listeners=LISTENERS, overrides=PASSWORDS) as broker:
        yield broker


def login(unique: str, password: str) -> dict[str, str]:
    return {f"{unique}.{key}": value for key, value in passworded.login(password).items()}


def test_a_wrong_password_does_not_halt_a_healthy_flow(
    guarded: LocalKafka, kafka_b: LocalKafka, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, flow = "t-" + unique, f"{unique}->B"
    copied_completely(guarded, kafka_b, unique, topic)
    file = properties(tmp_path, unique, guarded.address("LOGIN"), kafka_b.bootstrap, **login(unique, "expired"))
    known = table(kafka_b, ledger_topic(unique))
    for arguments in (("failover", file, flow), ("failover", file, flow, "--yes"), ("promote", file, flow, "--yes")):
        code, out, err = asked(capsys, *arguments)
        assert (code, out) == (2, "")
        assert err.startswith(
            f"mm2: Cluster {unique} cannot be asked with the security settings of the file, and may be running: "
        )
        assert "SASL PLAIN" in err
        assert f"or use --leave-behind if {unique} is down" in err
    code, out, _ = asked(capsys, "failover", file, flow, "--dry-run", "--json")
    (problem,) = json.loads(out)["problems"]
    assert code == 1
    assert problem.endswith("without --leave-behind this would be refused")
    code, _, err = asked(capsys, "failover", file, flow, "--leave-behind")
    assert code == 2
    assert "there is no terminal to confirm on" in err, "it may still be running"
    assert table(kafka_b, ledger_topic(unique)) == known
    code, out, _ = asked(capsys, "failover", file, flow, "--leave-behind", "--yes", "--json")
    assert (code, json.loads(out)["source_answers"]) == (0, False)

    properties(tmp_path, unique, guarded.address("LOGIN"), kafka_b.bootstrap, **login(unique, "secret"))
    code, out, _ = asked(capsys, "failover", file, flow, "--wait", "30", "--yes", "--json")
    assert (code, json.loads(out)["source_answers"]) == (0, True)


@contextmanager
def process_that_reaches_the_source(broker: LocalKafka, alias: str) -> Iterator[None]:
    """A member of the flow's group of workers, and the notes of its leader."""
    member = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": f"{alias}-mm2", "log_level": 0})
    member.subscribe([ledger_topic(alias)])
    stop = threading.Event()

    def note() -> None:
        while not stop.wait(0.5):
            record = note_record(SOURCE_NOTE, [], {"answered_ms": time.time_ns() // 1_000_000})
            write(broker, ledger_topic(alias), [(record.key, record.value)], 0)
            member.poll(0)

    thread = threading.Thread(target=note)
    try:
        wait_until(lambda: member.poll(0.1) is not None or bool(member.assignment()), 60)
        thread.start()
        yield
    finally:
        stop.set()
        if thread.ident is not None:
            thread.join()
        member.close()


def test_a_source_that_a_process_reaches_is_confirmed(
    kafka_b: LocalKafka, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The machine of the command has no route to it."""
    topic, flow = "t-" + unique, f"{unique}->B"
    file = properties(tmp_path, unique, GONE, kafka_b.bootstrap)
    left_behind(kafka_b, unique, f"{unique}.{topic}", topic)
    first = note_record(SOURCE_NOTE, [], {"answered_ms": 1})
    write(kafka_b, ledger_topic(unique), [(first.key, first.value)], 0)
    reason = f"Cluster {unique} does not answer here, but a process of {flow} has just reached it"
    with process_that_reaches_the_source(kafka_b, unique):
        for verb in ("failover", "promote"):
            code, out, err = asked(capsys, verb, file, flow)
            assert (code, out) == (2, "")
            assert err.startswith(f"mm2: {reason}, and there is no terminal to confirm on: ")
        code, out, _ = asked(capsys, "failover", file, flow, "--dry-run", "--json")
        assert (code, json.loads(out)["advice"][0]) == (
            0,
            f"{reason}: check that it is down; to fail over has to be confirmed",
        )
    assert not any(b'"promoted"' in key for key in table(kafka_b, ledger_topic(unique)))
    code, _, _ = asked(capsys, "failover", file, flow)
    assert code == 0, "nothing reaches it any more"


@pytest.fixture(scope="module")
def halved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two brokers without replication; a test stops the second one."""
    overrides = dict.fromkeys(("offsets.topic.replication.factor", "default.replication.factor"), "1")
    overrides["offsets.topic.num.partitions"] = "8"
    with LocalCluster("halved", tmp_path_factory.mktemp("halved"), overrides=overrides) as cluster:
        yield cluster


def coordinator_of(broker: LocalKafka, group: str) -> int:
    found: list[int] = []

    def is_found() -> bool:
        """False while the topic of committed offsets is being created."""
        with contextlib.suppress(KafkaException):
            found.append(admin_of(broker).describe_consumer_groups([group])[group].result(60).coordinator.id)
        return bool(found)

    wait_until(is_found, 60)
    return found[0]


@pytest.mark.slow
def test_a_source_that_has_lost_a_broker_is_left_with_all_its_groups(
    halved: LocalCluster, kafka_b: LocalKafka, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Groups of the other broker are not listed, the offset syncs and a partition have no leader."""
    topic, flow = "t-" + unique, f"{unique}->B"
    remote, source = f"{unique}.{topic}", halved.brokers[0]
    timeouts = {f"{unique}.request.timeout.ms": "3000", f"{unique}.default.api.timeout.ms": "3000"}
    file = properties(tmp_path, unique, source.bootstrap, kafka_b.bootstrap, **timeouts)
    left_behind(kafka_b, unique, remote, topic)
    create(source, topic, 2)
    write(source, topic, [(None, NUMBER)] * 1_200, 0)
    write(source, topic, [(None, NUMBER)] * 50, 1)
    create(source, "mm2-offset-syncs.B.internal")
    groups: list[str] = []
    for coordinator in halved.brokers:
        named = (f"{unique}-{number}" for number in range(1_000))
        groups += itertools.islice(
            (name for name in named if coordinator_of(source, name) == coordinator.place.node_id), 2
        )
    for group in groups:
        commit(source, group, {(topic, 0): 700})
    checkpointed(kafka_b, unique, [Checkpoint(group, remote, 0, 600, 400, "") for group in groups])
    halved.brokers[1].kill9()
    wait_until(lambda: len(admin_of(source).list_topics(timeout=10).brokers) == 1, 60)

    code, out, err = asked(capsys, "failover", file, flow, "--wait", "1", "--yes", "--group", f"{unique}-.*")
    assert (code, out) == (2, "")
    assert "does not return the end offset" in err
    code, out, err = asked(
        capsys, "failover", file, flow, "--leave-behind", "--yes", "--json", "--group", f"{unique}-.*"
    )
    document = json.loads(out)
    assert code == 0, (document["problems"], err)
    told = {row["group"]: row["told_by"] for row in document["groups"]}
    assert told.keys() == set(groups)
    assert [told[group] for group in groups] == ["source", "source", "checkpoint", "checkpoint"]
    for (group, _), (translated, _, outcome) in outcomes(out).items():
        assert (translated, outcome) == (500 if told[group] == "source" else 400, "written")
    unread = [group for group in groups if told[group] == "checkpoint"]
    assert sum("so its last checkpoint is used" in note for note in document["notes"]) == len(unread)


def test_records_of_a_new_partition_are_not_left_behind(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was added after the last refresh of topics, so the ledger does not have it."""
    topic, flow = "t-" + unique, f"{unique}->B"
    file = properties(tmp_path, unique, kafka_a.bootstrap, kafka_b.bootstrap)
    copied_completely(kafka_a, kafka_b, unique, topic)
    grow(kafka_a, topic, 3)
    write(kafka_a, topic, [(None, NUMBER)] * 3, 2)
    known = table(kafka_b, ledger_topic(unique))
    code, out, err = asked(capsys, "failover", file, flow, "--wait", "1", "--yes")
    assert (code, out) == (2, "")
    assert err == (
        f"mm2: Timed out after 1 s waiting for cluster {unique}: 3 records are left to copy. Nothing was changed.\n"
    )
    code, _, err = asked(capsys, "promote", file, flow, "--yes")
    assert code == 2
    assert f"has 3 records that are not on B yet ({topic}-2: 0 of 3)" in err
    assert table(kafka_b, ledger_topic(unique)) == known
    code, out, _ = asked(capsys, "failover", file, flow, "--leave-behind", "--yes", "--json")
    document = json.loads(out)
    assert (code, document["records_at_risk"], document["partitions"][-1]["partition"]) == (0, 3, 2)


def test_a_topic_that_was_created_again_is_not_left(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, flow = "t-" + unique, f"{unique}->B"
    file = properties(tmp_path, unique, kafka_a.bootstrap, kafka_b.bootstrap)
    copied_completely(kafka_a, kafka_b, unique, topic)
    entry = entry_record(
        LedgerEntry(topic, 0, f"{unique}.{topic}", Mark(1_200, 1_000, 1_000), source_id="of-the-deleted-topic")
    )
    write(kafka_b, ledger_topic(unique), [(entry.key, entry.value)], 0)
    code, out, err = asked(capsys, "failover", file, flow, "--wait", "30", "--yes")
    assert (code, out) == (2, "")
    assert (
        f"has 1,200 records that are not on B yet ({topic}-0: 0 of 1200; {topic} was deleted and created again" in err
    )


def test_topics_that_are_not_selected_or_are_deleted_do_not_block(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, flow = "t-" + unique, f"{unique}->B"
    file = properties(tmp_path, unique, kafka_a.bootstrap, kafka_b.bootstrap)
    copied_completely(kafka_a, kafka_b, unique, topic)
    create(kafka_a, f"u-{unique}")
    write(kafka_a, f"u-{unique}", [(None, NUMBER)] * 5, 0)
    create(kafka_b, f"{unique}.u-{unique}")
    excluded = LedgerEntry(f"u-{unique}", 0, f"{unique}.u-{unique}", Mark(0, 0, 0), end=5)
    rows = [entry_record(excluded)]
    write(kafka_b, ledger_topic(unique), [(row.key, row.value) for row in rows], 0)
    code, out, _ = asked(capsys, "failover", file, flow, "--wait", "30", "--yes", "--json")
    document = json.loads(out)
    assert (code, document["records_at_risk"], document["problems"]) == (0, 0, [])
    assert {row["topic"] for row in document["partitions"]} == {topic}
    assert document["notes"] == [f"left out, because not selected by {flow} any more: u-{unique}"]
    delete(kafka_a, topic)
    code, out, _ = asked(capsys, "failover", file, flow, "--wait", "30", "--yes", "--json")
    document = json.loads(out)
    assert (code, document["records_at_risk"]) == (0, 0)
    assert all(row["deleted_on_source"] for row in document["partitions"])


def test_records_that_the_target_has_lost_are_a_problem(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As after an unclean election on the target. Under identity naming, the opposite flow does not start after them."""
    topic, a, b = "t-" + unique, f"{unique}-a", f"{unique}-b"
    flow = f"{a}->{b}"
    file = identity_properties(tmp_path, (a, b), kafka_a, kafka_b, topic)
    create(kafka_a, topic)
    write(kafka_a, topic, [(None, NUMBER)] * 100, 0)
    create(kafka_b, topic)
    write(kafka_b, topic, [(None, NUMBER)] * 60, 0)
    create(kafka_b, ledger_topic(a), config=LEDGER_CONFIGS)
    row = entry_record(LedgerEntry(topic, 0, topic, Mark(100, 100, 100), 100, end=100))
    write(kafka_b, ledger_topic(a), [(row.key, row.value)], 0)
    lost = (
        f"{b} does not have all records that were copied to it, in 1 partition, first {topic}-0: {topic}-0 ends at offset 60, and "
        "records were copied up to offset 100"
    )
    code, _, err = asked(capsys, "failover", file, flow, "--wait", "10", "--yes")
    assert code == 2
    assert lost in err
    code, out, _ = asked(capsys, "failover", file, flow, "--leave-behind", "--yes", "--json")
    document = json.loads(out)
    assert (code, document["problems"], document["records_at_risk"]) == (1, [lost], None)
    assert [(row["target_offset"], row["target_end"]) for row in document["partitions"]] == [(60, 60)]
    write(kafka_b, topic, [(None, NUMBER)] * 10, 0)  # by applications
    known = table(kafka_b, ledger_topic(a))
    assert any(key == Promotion(topic, topic, "failover", 0).record().key for key in known)
    create(kafka_a, f"mm2-offsets.{b}.internal", 5, {"cleanup.policy": "compact"})
    code, out, _ = asked(capsys, "failback", file, flow, "--divergent", "keep", "--json")
    document = json.loads(out)
    assert code == 1
    (problem,) = document["problems"]
    assert problem.startswith(f"{b} does not have all records that were copied to it, in 1 partition, first {topic}-0")
    assert table(kafka_b, ledger_topic(a)) == known
