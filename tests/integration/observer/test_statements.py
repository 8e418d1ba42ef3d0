"""What `mm2` states of a flow whose target lost what was copied, while nothing copies: the ledger alone is no evidence for it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from mm2.codec import encode
from mm2.copy.progress.ledger import LEDGER_CONFIGS, chunk_record, entry_record, ledger_topic
from mm2.copy.progress.segments import Segment, SegmentChunk
from mm2.copy.progress.session import LedgerEntry, Lost, Mark
from mm2.copy.states import PartitionState
from mm2.kafka.admin import Admin
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import TopicInfo, TopicPartition
from mm2.observer.views import FlowState
from mm2.reasons import TargetLossCode
from mm2.sandbox.kafka import LocalKafka
from mm2.sandbox.ports import free_ports
from mm2.verify.driver import Verifier
from mm2.verify.planning import VerifyRequest
from mm2.verify.report import Verdict
from mm2.verify.verification import Verification
from tests.integration.asking import asked
from tests.integration.copy_flow import create, end_offset
from tests.integration.mirror_process import MirrorProcess, delete, topics_of
from tests.integration.verified_flow import file_of, flow_of, is_copied, numbered, write
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(300)
Capsys = pytest.CaptureFixture[str]
COPIED = 10


@dataclass
class Environment:
    """A flow that has copied ten records of one topic, and does not run."""

    source: LocalKafka
    target: LocalKafka
    unique: str
    file: Path
    entry: LedgerEntry

    @property
    def flow(self) -> str:
        return f"{self.unique}-a->{self.unique}-b"

    @property
    def remote(self) -> str:
        return self.entry.remote_topic

    def run(self, capsys: Capsys, verb: str, *more: str) -> tuple[int, str]:
        code, out, err = asked(capsys, verb, self.file, self.flow, *more)
        return code, out + err

    def json(self, capsys: Capsys, verb: str, *more: str) -> Any:
        return json.loads(asked(capsys, verb, self.file, self.flow, *more, "--json")[1])


def topic_id(broker: LocalKafka, topic: str) -> str:
    cluster = Cluster(ClientSettings.from_props({"bootstrap.servers": broker.bootstrap}), name="test")
    try:
        found = Admin(cluster).describe_topics([topic])[topic]
    finally:
        cluster.close()
    assert isinstance(found, TopicInfo)
    return found.topic_id


@pytest.fixture
def env(kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, tmp_path: Path) -> Environment:
    topic, remote = f"{unique}.t", f"{unique}-a.{unique}.t"
    for broker, name in ((kafka_a, topic), (kafka_b, remote)):
        create(broker, name, retention__ms="-1")
        write(broker, name, numbered(COPIED))
    configs: dict[str, Any] = {key.replace(".", "__"): value for key, value in LEDGER_CONFIGS.items()}
    create(kafka_b, ledger_topic(f"{unique}-a"), **configs)
    ids = topic_id(kafka_a, topic), topic_id(kafka_b, remote)
    entry = LedgerEntry(topic, 0, remote, Mark(COPIED, COPIED, COPIED), COPIED, *ids)
    rows = [chunk_record(entry.source, SegmentChunk(0, [Segment(0, 0, COPIED)])), entry_record(entry)]
    write(kafka_b, ledger_topic(f"{unique}-a"), rows)
    return Environment(kafka_a, kafka_b, unique, file_of(kafka_a, kafka_b, unique, tmp_path), entry)


def recreated(env: Environment) -> None:
    delete(env.target, env.remote)
    create(env.target, env.remote, retention__ms="-1")
    wait_until(lambda: env.remote in topics_of(env.target))  # a loaded broker may not describe it at once


def recreated_and_filled(env: Environment) -> None:
    recreated(env)
    write(env.target, env.remote, numbered(COPIED + 5))


def deleted(env: Environment) -> None:
    delete(env.target, env.remote)


def shortened(env: Environment) -> None:
    """As if a directory of a broker had been put back: only the ledger is known to have more records."""
    count = 2 * COPIED
    write(env.source, env.entry.topic, numbered(count)[COPIED:])
    entry = env.entry.replace(mark=Mark(count, count, count), previous=count)
    rows = [chunk_record(entry.source, SegmentChunk(0, [Segment(0, 0, count)])), entry_record(entry)]
    write(env.target, ledger_topic(f"{env.unique}-a"), rows)


AGAIN = "{remote} was deleted and created again: records were copied up to offset 10 of {remote}-0, and the new log ends at offset"
LOSSES = [
    pytest.param(recreated, TargetLossCode.RECREATED, f"{AGAIN} 0", id="recreated"),
    pytest.param(recreated_and_filled, TargetLossCode.RECREATED, f"{AGAIN} 15", id="recreated and filled"),
    pytest.param(deleted, TargetLossCode.DELETED, "there is no {remote}-0", id="deleted"),
    pytest.param(
        shortened,
        TargetLossCode.SHORTER,
        "{remote}-0 ends at offset 10, and records were copied up to offset 20",
        id="shortened",
    ),
]


def test_a_complete_copy_is_reported_with_what_was_looked_at(env: Environment, capsys: Capsys) -> None:
    code, text = env.run(capsys, "gaps")
    assert (code, "every source offset" in text) == (0, False), text
    assert f"1 partition of {env.flow}: the ledger lists no gap; the logs of {env.unique}-b reach the positions" in text
    code, text = env.run(capsys, "lag")
    assert code == 0, text
    assert f"looked at: logs of {env.unique}-a " in text
    assert "not read" not in text
    assert "does not have all records" not in env.run(capsys, "plan")[1]
    assert f"If {env.unique}-a dies now you lose nothing." in env.run(capsys, "status")[1]
    (flow,) = env.json(capsys, "status")["flows"]
    read = {one["what"] for one in flow["evidence"] if one["at_ms"] and not one["error"]}
    assert read >= {"source_logs", "ledger", "target_logs", "source_topics"}, flow["evidence"]


@pytest.mark.parametrize(("lose", "code", "why"), LOSSES)
def test_no_verb_reports_a_complete_copy_after_the_target_has_lost_it(
    env: Environment,
    verifier: Verifier,
    capsys: Capsys,
    lose: Callable[[Environment], None],
    code: TargetLossCode,
    why: str,
) -> None:
    lose(env)
    why = why.format(remote=env.remote)
    exit_code, text = env.run(capsys, "gaps")
    assert exit_code == 1, text
    assert f"{env.unique}.t-0  LOST on {env.unique}-b: {why}" in text
    assert "reach" not in text
    (row,) = env.json(capsys, "gaps")["partitions"]
    assert row["target_loss"]["code"] == code

    exit_code, text = env.run(capsys, "status")
    assert exit_code == 1, text
    assert "you lose nothing" not in text
    assert f"{env.unique}-b does not have all records of {env.unique}.t-0 that were copied to it: {why}" in text
    (flow,) = env.json(capsys, "status")["flows"]
    assert (flow["state"], flow["risk"]["records"]) == (FlowState.STOPPED, None), "no process runs it"
    assert flow["target_losses"] == 1

    exit_code, text = env.run(capsys, "lag")
    assert exit_code == 1, text
    (lag,) = env.json(capsys, "lag")["flows"]
    assert (lag["records"], lag["seconds"], lag["partitions"][0]["is_exact"]) == (None, None, False)
    assert lag["partitions"][0]["state"] in {PartitionState.LOST_RANGE, PartitionState.DELETED}

    exit_code, text = env.run(capsys, "plan")
    assert (exit_code, "no problem was found" in text) == (1, False), text
    assert f"does not have all records that were copied to it, in 1 partition, first {env.unique}.t-0: {why}" in text

    report = Verification(flow_of(env.file, env.unique).props, verifier).run(VerifyRequest())
    if code is TargetLossCode.DELETED:
        assert report.verdict is Verdict.INCOMPLETE, encode(report)
    elif lose is recreated_and_filled:
        assert (report.verdict, report.counts) == (Verdict.DIFFERENT, {"extra": 5}), encode(report)
    else:
        assert (report.verdict, report.counts) == (Verdict.DIFFERENT, {"missing": COPIED}), encode(report)


def test_a_lost_range_without_a_total_is_not_no_gap(env: Environment, capsys: Capsys) -> None:
    """As after a truncation of the source: the same offsets have been copied again since."""
    row = entry_record(env.entry.replace(lost=(Lost(5, 10, "truncated", 1_000),)))
    write(env.target, ledger_topic(f"{env.unique}-a"), [row])
    code, text = env.run(capsys, "gaps")
    assert code == 1, text
    assert f"1 partition of {env.flow}: 1 lost range; the logs of" in text


def test_a_topic_that_both_clusters_have_deleted_is_no_loss(
    env: Environment, kafka_a: LocalKafka, capsys: Capsys
) -> None:
    delete(kafka_a, f"{env.unique}.t")
    deleted(env)
    code, text = env.run(capsys, "gaps")
    assert (code, "LOST" in text) == (0, False), text
    assert f"{env.unique}.t-0  deleted on both clusters" in text


def test_a_running_flow_whose_remote_topic_is_deleted_is_not_reported_as_complete(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, tmp_path: Path, capsys: Capsys
) -> None:
    """The flow creates the topic again; whatever it does then, nobody may read that nothing is missing while the topic is empty."""
    (port,) = free_ports(1)
    topic, remote = f"{unique}.t", f"{unique}-a.{unique}.t"
    create(kafka_a, topic, retention__ms="-1")
    write(kafka_a, topic, numbered(COPIED))
    more = {"listeners": f"http://127.0.0.1:{port}", "refresh__topics__interval__seconds": "2"}
    file = file_of(kafka_a, kafka_b, unique, tmp_path, **more)
    flow, url = flow_of(file, unique), f"http://127.0.0.1:{port}/overview/{unique}-a/{unique}-b"
    process = MirrorProcess(file, tmp_path / "log")
    checked = 0
    try:
        process.eventually(lambda: is_copied(flow, kafka_b, {TopicPartition(topic, 0): COPIED}), 120)
        process.eventually(lambda: "you lose nothing" in httpx.get(url, timeout=60).json()["sentence"], 60)
        delete(kafka_b, remote)
        deleted_ms = time.time() * 1000
        until_s = time.monotonic() + 10
        while time.monotonic() < until_s:
            before = records_of(kafka_b, remote)
            overview = httpx.get(url, timeout=60).json()
            found = [asked(capsys, verb, file, str(flow.pair)) for verb in ("gaps", "lag", "status")]
            if max(before, records_of(kafka_b, remote)) == COPIED:
                continue  # copied again, meanwhile
            checked += 1
            for code, out, _ in found:
                assert (code, "you lose nothing" in out) == (max(1, code), False), out
            read_ms = {one["what"]: one["at_ms"] for one in overview["evidence"]}["target_logs"]
            if read_ms > deleted_ms:
                assert "you lose nothing" not in overview["sentence"], overview
                assert overview["risk"]["records"] is None, overview
    finally:
        process.clean_up()
    assert checked, "the topic was never empty"


@pytest.mark.parametrize("lost", ["config", "status"])
def test_a_flow_that_copies_without_a_topic_of_its_workers_is_not_stopped(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, tmp_path: Path, capsys: Capsys, lost: str
) -> None:
    """A topic that does not exist is no evidence that no worker runs; the members of the group are."""
    topic, internal = f"{unique}.t", {"config": "mm2-configs", "status": "mm2-status"}[lost] + f".{unique}-a.internal"
    create(kafka_a, topic, retention__ms="-1")
    write(kafka_a, topic, numbered(COPIED))
    file = file_of(kafka_a, kafka_b, unique, tmp_path)
    flow, shown = flow_of(file, unique), f"{unique}-a->{unique}-b"
    process = MirrorProcess(file, tmp_path / "log")
    try:
        process.eventually(lambda: is_copied(flow, kafka_b, {TopicPartition(topic, 0): COPIED}), 120)
        delete(kafka_b, internal)
        line = process.await_log("reading failed", topic=internal)
        assert line["action"].startswith("Restart the worker, which creates it again.")
        write(kafka_a, topic, numbered(2 * COPIED)[COPIED:])
        process.eventually(lambda: is_copied(flow, kafka_b, {TopicPartition(topic, 0): 2 * COPIED}), 120)
        code, text = asked(capsys, "status", file, shown)[:2]
        assert (code, "Nothing is copied" in text, "ever run" in text) == (1, False, False), text
        assert f"Its workers are not known: Topic {internal} of cluster {unique}-b: UNKNOWN_TOPIC_OR_PARTITION" in text
        (found,) = json.loads(asked(capsys, "status", file, shown, "--json")[1])["flows"]
        assert (found["state"], found["connectors"], found["states"]) == (FlowState.DEGRADED, None, None), found
        assert process.stop()[0] == 0
        wait_until(lambda: "no worker is in the flow's group" in asked(capsys, "status", file, shown)[1], 60)
        (found,) = json.loads(asked(capsys, "status", file, shown, "--json")[1])["flows"]
        assert found["state"] == FlowState.STOPPED, found
    finally:
        process.clean_up()


@pytest.mark.parametrize("mode", ["disabled", "enabled"])
def test_records_that_are_copied_again_without_a_position_are_reported_and_not_explained(
    kafka_a: LocalKafka,
    kafka_b: LocalKafka,
    verifier: Verifier,
    unique: str,
    tmp_path: Path,
    capsys: Capsys,
    mode: str,
) -> None:
    """The ledger and the offsets topic were lost. No other program has ever written to the remote topic."""
    topic, remote, place = f"{unique}.t", f"{unique}-a.{unique}.t", TopicPartition(f"{unique}.t", 0)
    create(kafka_a, topic, retention__ms="-1")
    write(kafka_a, topic, numbered(COPIED))
    more = {f"{unique}-b__exactly__once__source__support": mode}
    file = file_of(kafka_a, kafka_b, unique, tmp_path, **more)
    flow, shown = flow_of(file, unique), f"{unique}-a->{unique}-b"
    processes = [MirrorProcess(file, tmp_path / "log")]
    try:
        processes[0].eventually(lambda: is_copied(flow, kafka_b, {place: COPIED}), 120)
        assert processes[0].stop()[0] == 0
        end = records_of(kafka_b, remote)
        for lost in (ledger_topic(f"{unique}-a"), f"mm2-offsets.{unique}-a.internal"):
            delete(kafka_b, lost)
        processes.append(MirrorProcess(file, tmp_path / "again"))
        processes[1].eventually(lambda: is_copied(flow, kafka_b, {place: COPIED}), 120)
        (line,) = [one for one in processes[1].lines(level="warning") if "have no ledger entry" in one["event"]]
        assert (line["partitions"], line["target_end"]) == ({"no_position": 1}, end)
        assert processes[1].stop()[0] == 0
    finally:
        for process in processes:
            process.clean_up()
    report = Verification(flow.props, verifier).run(VerifyRequest())
    assert (report.verdict, report.counts) == (Verdict.DIFFERENT, {"doubled": COPIED}), encode(report)
    (row,) = report.partitions
    assert (row.records, row.explained) == (COPIED, {}), encode(report)
    assert row.notes[0].endswith(f"the flow began without a position, when the remote partition ended at offset {end}")
    note = "copying began without a position, and the remote partition was not empty"
    code, text = asked(capsys, "gaps", file, shown)[:2]
    assert (code, f"{topic}-0  at target offset {end} {note}" in text) == (0, True), text
    (found,) = json.loads(asked(capsys, "status", file, shown, "--json")[1])["flows"]
    assert found["partitions"][0]["note"].startswith(note), found


def records_of(broker: LocalKafka, topic: str) -> int:
    """The end offset of a topic that may not exist."""
    return end_offset(broker, topic) if topic in topics_of(broker) else 0
