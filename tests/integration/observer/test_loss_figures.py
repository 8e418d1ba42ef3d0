"""Figures about loss, and the guard of failover, on a flow with a running, a paused and a blocked topic.

Given one process between two brokers of its own. Validates `mm2 status`, `mm2 failover --dry-run`, /overview and /metrics against
the records counted on both clusters: while the source answers, and after it was killed. The tests depend on their order.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from mm2.copy.progress.ledger import ledger_topic
from mm2.sandbox.kafka import LocalKafka, start_pair
from mm2.sandbox.ports import free_ports
from tests.integration.asking import asked
from tests.integration.copy_flow import create, producer_of
from tests.integration.mirror_flow import commit
from tests.integration.mirror_process import MirrorProcess, delete, ends, partitions_of, table, write_config
from tests.support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.timeout(int(300 * PATIENCE))

TOPICS = ("blocked", "paused", "running")
TOO_LARGE = b"x" * 20_000
Capsys = pytest.CaptureFixture[str]


@dataclass
class Environment:
    """The brokers, the process, and what the tests have found out."""

    a: LocalKafka
    b: LocalKafka
    process: MirrorProcess
    file: Path
    url: str
    killed_ms: int = 0

    def write(self, topic: str, count: int, value: bytes = b"1") -> None:
        producer = producer_of(self.a)
        for _ in range(count):
            producer.produce(topic, value, partition=0)
        assert producer.flush(30) == 0

    def missing(self) -> dict[str, int]:
        """The records that are on A only, counted on both clusters. Only while A runs."""
        return {topic: sum(ends(self.a, topic)) - sum(ends(self.b, f"A.{topic}")) for topic in TOPICS}

    def overview(self) -> dict[str, Any]:
        return dict(httpx.get(f"{self.url}/overview/A/B", timeout=20).json())

    def states(self) -> dict[str, str]:
        rows = httpx.get(f"{self.url}/overview/A/B/partitions", timeout=20).json()["rows"]
        return {row["topic"]: row["state"] for row in rows if row["topic"] in TOPICS}

    def metric(self, name: str) -> float | None:
        text = httpx.get(f"{self.url}/metrics", timeout=20).text
        found = [one.value for family in parse(text) for one in family.samples if one.name == name]
        return found[0] if found else None

    def asked(self, capsys: Capsys, verb: str, *arguments: str) -> tuple[int, str, str]:
        return asked(capsys, verb, self.file, "A->B", *arguments)

    def status(self, capsys: Capsys) -> dict[str, Any]:
        return dict(json.loads(self.asked(capsys, "status", "--json")[1])["flows"][0])

    def dry_run(self, capsys: Capsys) -> dict[str, Any]:
        return dict(json.loads(self.asked(capsys, "failover", "--dry-run", "--json")[1]))

    def ledger(self, kind: bytes) -> dict[bytes, dict[str, Any]]:
        rows = table(self.b, ledger_topic("A"))
        return {key: json.loads(value) for key, (value, _) in rows.items() if value and kind in key}

    def noted_ends(self) -> dict[str, list[int]]:
        """The end offsets of A that the leader has noted last."""
        notes = {json.loads(key)["note"][-1]: value for key, value in self.ledger(b'{"note":["source"').items()}
        return {topic: notes.get(topic, {}).get("ends", []) for topic in TOPICS}


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    folder = tmp_path_factory.mktemp("loss")
    (port,) = free_ports(1)
    with ExitStack() as stack:
        a, b = stack.enter_context(start_pair(folder))
        for topic in TOPICS:
            create(a, topic)
        create(b, "A.blocked", max__message__bytes="10000")
        props = {
            "clusters": "A, B",
            "A.bootstrap.servers": a.bootstrap,
            "B.bootstrap.servers": b.bootstrap,
            "A->B.enabled": "true",
            "A->B.topics": ", ".join([*TOPICS, "late.*"]),
            "refresh.topics.interval.seconds": "600",
            "B->A.emit.heartbeats.enabled": "false",
            "sync.topic.configs.enabled": "false",
            "listeners": f"http://127.0.0.1:{port}",
        }
        file = write_config(folder / "mm2.properties", props)
        process = MirrorProcess(file, folder / "mirror.log", "B")
        stack.callback(process.clean_up)
        made = Environment(a, b, process, file, f"http://127.0.0.1:{port}")
        process.eventually(lambda: partitions_of(b, "A.running") == 1, 120)
        for topic in TOPICS:
            made.write(topic, 10)
        process.eventually(lambda: set(made.missing().values()) == {0}, 120)
        yield made


def test_a_flow_that_is_written_to_is_not_failed_over_by_accident(env: Environment, capsys: Capsys) -> None:
    """The records on A are all copied again and again, which shows nothing about the next one."""
    stop = threading.Event()

    def write() -> None:
        while not stop.wait(0.02):
            env.write("running", 1)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(4):
            code, out, err = env.asked(capsys, "failover")
            assert (code, out) == (2, ""), "nothing was changed"
            assert "Cluster A answers" in err
            assert "--wait SECONDS" in err
    finally:
        stop.set()
        writer.join()
    assert not env.ledger(b'"promoted"')
    assert not env.ledger(b'{"pause"')
    wait_until(lambda: set(env.missing().values()) == {0}, 60)


def test_the_figures_of_a_source_that_answers_are_exact(env: Environment, capsys: Capsys) -> None:
    assert asked(capsys, "pause", env.file, "A->B", "--topic", "paused")[0] == 0
    oldest_s = time.time()
    env.write("blocked", 1, TOO_LARGE)
    wait_until(lambda: env.states()["blocked"] == "TOO_LARGE", 60, detail=env.states)
    limit = "and topic A.blocked accepts 10,000. "
    wait_until(lambda: limit in env.asked(capsys, "status", "--topic", "blocked")[1], 60)
    out = env.asked(capsys, "status", "--topic", "blocked")[1]
    assert "The record at source offset 10 takes 20," in out
    assert "Raise max.message.bytes of topic A.blocked" in out
    env.write("blocked", 30)
    env.write("paused", 40)
    env.write("running", 5)
    wait_until(lambda: env.missing() == {"blocked": 31, "paused": 40, "running": 0}, 60, detail=env.missing)
    wait_until(lambda: env.overview()["risk"]["records"] == 71, 30, detail=env.overview)
    assert env.metric("mm2_flow_records_at_risk") == env.metric("mm2_flow_records_at_risk_at_least") == 71
    asked_s = time.time()
    flow = env.status(capsys)
    assert (flow["risk"]["records"], flow["risk"]["records_at_least"]) == (71, 71)
    assert asked_s - oldest_s - 1 < flow["risk"]["seconds"] < time.time() - oldest_s + 1
    report = env.dry_run(capsys)
    assert [report[f"records_at_risk{bound}"] for bound in ("", "_at_least", "_at_most")] == [71, 71, 71]
    assert {row["topic"]: row["missing"] for row in report["partitions"]} == env.missing()
    for verb in ("status", "lag", "failover"):
        dry = ("--dry-run",) if verb == "failover" else ()
        assert env.asked(capsys, verb, "--topic", "absent", *dry)[0] == 2, verb
    code, out, _ = env.asked(capsys, "lag", "--topic", "paus.*", "--json")
    (lag,) = json.loads(out)["flows"]
    assert (code, lag["records"], lag["records_at_least"]) == (0, 40, 40), "of the selected topic"
    assert [(row["topic"], row["records"], row["is_exact"]) for row in lag["partitions"]] == [("paused", 40, True)]
    for sentence in (flow["sentence"], env.overview()["sentence"]):
        assert ", 71 records" in sentence
        assert "at least" not in sentence


def test_groups_show_what_their_consumers_would_do_on_the_target_now(env: Environment, capsys: Capsys) -> None:
    """Translated offsets are not committed there (sync.group.offsets.enabled=false), and old ones are."""
    end = sum(ends(env.a, "running"))
    groups = ("billing", "fresh", "moved")
    for group in groups:
        commit(env.a, group, {("running", 0): end - 2})
    commit(env.b, "billing", {("A.running", 0): 7})
    commit(env.b, "moved", {("A.running", 0): end - 2})

    def rows() -> dict[str, dict[str, Any]]:
        found = httpx.get(f"{env.url}/overview/A/B/groups", timeout=20).json()["rows"]
        return {row["group"]: row for row in found}

    def is_complete() -> bool:
        found = rows()
        return all(found.get(group, {}).get("translated") == end - 2 for group in groups) and all(
            found[group]["target_offset"] is not None for group in ("billing", "moved")
        )

    wait_until(is_complete, 60, detail=rows)
    again = sum(ends(env.b, "A.running")) - 2 - 7
    wanted = {
        "billing": (end - 2, 2, end - 2, 7, again + 2, "reads_again", again),
        "fresh": (end - 2, 2, end - 2, None, None, "no_offset", None),
        "moved": (end - 2, 2, end - 2, end - 2, 2, "continues", 0),
    }
    names = ("source_offset", "source_lag", "translated", "target_offset", "target_lag", "if_moved", "if_moved_records")
    code, out, _ = env.asked(capsys, "groups", "--json")
    document = json.loads(out)
    assert (code, document["offsets"]) == (0, [])
    for found in (rows(), {row["group"]: row for row in document["groups"]}):
        assert {group: tuple(row[name] for name in names) for group, row in found.items()} == wanted
    code, out, err = env.asked(capsys, "groups", "--group", "billing")
    assert (code, err) == (0, "")
    assert f"reads {again:,} records again that are before its translated offset" in out
    assert (
        "sync.group.offsets.enabled=false: translated offsets are not committed on B; mm2 failover commits them." in out
    )
    assert "fresh" not in out


def test_plan_lists_typing_errors_and_what_would_not_be_copied_any_more(
    env: Environment, tmp_path: Path, capsys: Capsys
) -> None:
    def plan(*lines: str) -> tuple[int, dict[str, Any], str]:
        file = tmp_path / "mm2.properties"
        file.write_text(env.file.read_text() + "".join(f"{line}\n" for line in lines))
        (code, out, _), text = asked(capsys, "plan", file, "A->B", "--json"), asked(capsys, "plan", file, "A->B")[1]
        return code, dict(json.loads(out)), text

    def stopped(document: dict[str, Any]) -> dict[str, dict[str, str]]:
        steps = document["flows"][0]["steps"]
        return {step["subject"]: step["details"] for step in steps if step["action"] == "stop copying"}

    code, document, _ = plan()
    assert (code, document["unread"], stopped(document)) == (0, [], {})
    assert any(
        note.startswith("After a failover: producers need these topics") and "there: blocked, paused, running." in note
        for note in document["flows"][0]["notes"]
    )
    code, document, text = plan("A->B.topics = running, paused", "A->B.topics.exlude = x")
    assert (code, document["unread"]) == (1, [{"key": "A->B.topics.exlude", "nearest": "A->B.topics.exclude"}])
    assert stopped(document) == {"blocked": {"": "topics and topics.exclude do not select it"}}
    assert "B: stop copying blocked: topics and topics.exclude do not select it" in text
    assert f"! Unknown key A->B.topics.exlude in {tmp_path}/mm2.properties. Did you mean A->B.topics.exclude?" in text
    assert set(stopped(plan("A->B.enabled = false")[1])) == set(TOPICS)


def test_next_steps_evaluate_the_opposite_flow_for_each_topic(env: Environment, tmp_path: Path, capsys: Capsys) -> None:
    """An enabled opposite flow copies back only what its filters and its policy select; `plan` prints it, too."""
    document = env.dry_run(capsys)
    assert set(document["way_back"].values()) == {"disabled"}
    assert "for the way back set B->A.enabled = true" in " ".join(document["advice"])
    file = tmp_path / "mm2.properties"

    def asked_with(topics: str) -> tuple[dict[str, str], str, str]:
        file.write_text(f"{env.file.read_text()}B->A.enabled = true\nB->A.topics = {topics}\n")
        found = json.loads(asked(capsys, "failover", file, "A->B", "--dry-run", "--json")[1])
        (planned,) = json.loads(asked(capsys, "plan", file, "A->B", "--json")[1])["flows"]
        return found["way_back"], "\n".join(found["advice"]), "\n".join(planned["notes"])

    stays = "so records written to them on B stay there"
    way_back, advice, notes = asked_with("none")
    assert set(way_back.values()) == {"not_selected"}
    assert "is configured to copy to A" not in advice
    assert "B->A does not copy blocked, paused, running to A" in advice
    assert stays in advice
    assert stays in notes
    way_back, advice, notes = asked_with("paus.*, B\\\\..*")
    assert way_back == {"paused": "never_run", "blocked": "not_selected", "running": "not_selected"}
    assert "B->A does not copy blocked, running to A" in advice
    assert "B->A is enabled and has never run" in advice
    assert "After a failover: B->A does not copy blocked, running to A" in notes
    assert stays not in asked_with(".*")[2]


def test_topics_that_the_flow_has_not_found_yet_are_not_left_out(env: Environment, capsys: Capsys) -> None:
    """`mm2 status` said "lose 7 records" with 5,000 records in a new topic."""
    create(env.a, "late.empty")
    create(env.a, "late.topic")
    env.write("late.topic", 50)
    flow = env.status(capsys)
    assert "at least 71 records, and 1 partition not copied yet" in flow["sentence"]
    assert (flow["risk"]["records"], flow["risk"]["records_at_least"]) == (None, 71)
    states = {row["topic"]: (row["state"], row["source_end"]) for row in flow["partitions"]}
    assert states["late.topic"] == ("PREPARING", 50)
    assert "late.empty" not in states
    for arguments in ((), ("--topic", "late.topic")):
        report = json.loads(env.asked(capsys, "failover", "--dry-run", "--json", *arguments)[1])
        assert {row["topic"]: row["missing"] for row in report["partitions"]}["late.topic"] == 50
    refused: dict[tuple[str, ...], str] = {
        (): "50 records that are not on B yet",
        ("--leave-behind", "--yes"): "Nothing was copied yet of late.topic",
        ("--wait", "1", "--yes"): "50 records are left to copy",
    }
    for options, reason in refused.items():
        code, out, err = env.asked(capsys, "failover", "--topic", "late.topic", *options)
        assert (code, out) == (2, ""), "nothing was changed"
        assert reason in err
    for topic in ("late.empty", "late.topic"):
        delete(env.a, topic)
    flow = env.status(capsys)
    assert (flow["risk"]["records"], "not copied yet" in flow["sentence"]) == (71, False)


def test_the_figures_of_a_source_that_has_died_are_lower_bounds(env: Environment, capsys: Capsys) -> None:
    """All of it was known before the death: nothing was written after the last note of the end offsets."""
    truth = env.missing()
    wanted = {topic: ends(env.a, topic) for topic in TOPICS}
    wait_until(lambda: env.noted_ends() == wanted, 60, detail=env.noted_ends)
    env.killed_ms = int(time.time() * 1000)
    env.a.kill9()
    wait_until(lambda: env.overview()["source_error"], 30)
    overview, flow, report = env.overview(), env.status(capsys), env.dry_run(capsys)
    for risk in (overview["risk"], flow["risk"]):
        assert (risk["records"], risk["records_at_least"]) == (None, sum(truth.values()))
    assert env.metric("mm2_flow_records_at_risk") is None
    assert env.metric("mm2_flow_records_at_risk_at_least") == sum(truth.values())
    bounds = [report[f"records_at_risk{bound}"] for bound in ("", "_at_least", "_at_most")]
    assert bounds == [None, sum(truth.values()), None]
    assert {row["topic"]: row["missing_at_least"] for row in report["partitions"]} == truth
    assert {row["missing"] for row in report["partitions"]} == {None}
    for sentence in (overview["sentence"], flow["sentence"]):
        assert "you lost" in sentence
        assert "at least 71 records" in sentence
    for verb, *arguments in (("status",), ("lag",), ("failover", "--dry-run")):
        assert "at least 71 records" in env.asked(capsys, verb, *arguments)[1], verb
    rows = httpx.get(f"{env.url}/overview/A/B/partitions", timeout=20).json()["rows"]
    lag = json.loads(env.asked(capsys, "lag", "--json")[1])["flows"][0]["partitions"]
    topics = json.loads(env.asked(capsys, "topics", "--json")[1])["topics"]
    for found in (
        {row["topic"]: (row["lag_records"], row["is_lag_exact"]) for row in rows},
        {row["topic"]: (row["lag_records"], row["is_lag_exact"]) for row in topics},
        {row["topic"]: (row["records"], row["is_exact"]) for row in lag},
    ):
        assert {topic: found[topic] for topic in TOPICS} == {topic: (truth[topic], False) for topic in TOPICS}
    printed = [" ".join(line.split()) for line in env.asked(capsys, "lag")[1].splitlines()]
    assert any(line.startswith("paused-0 at least 40 ") for line in printed), printed


def test_groups_of_a_source_that_has_died_are_those_of_its_last_answer(env: Environment, capsys: Capsys) -> None:
    code, out, err = env.asked(capsys, "groups", "--json")
    document = json.loads(out)
    assert (code, document["groups_error"]) == (0, None)
    assert {row["group"] for row in document["groups"]} >= {"billing", "fresh", "moved"}
    assert "A->B: " in err, "why the offsets on the source are not known"


def test_a_source_that_has_died_has_been_silent_since_its_last_answer(env: Environment, capsys: Capsys) -> None:
    """And nothing that depends on it is shown as healthy, whichever program asks."""
    wait_until(lambda: time.time() * 1000 > env.killed_ms + 5_000, 30)
    last_ms = env.dry_run(capsys)["last_sign_of_source_ms"]
    assert last_ms <= env.killed_ms, "it is the time of the last answer, not of asking"
    assert env.killed_ms - last_ms < 10_000 * PATIENCE
    for sentence in (env.status(capsys)["sentence"], env.overview()["sentence"]):
        since = sentence.partition("has not answered since ")[2].partition(" UTC")[0]
        since_ms = datetime.fromisoformat(f"{since}+00:00").timestamp() * 1000
        assert since_ms <= env.killed_ms, sentence
        assert env.killed_ms - since_ms < 10_000 * PATIENCE, sentence
    wanted = {"blocked": "TOO_LARGE", "paused": "PAUSED", "running": "UNREACHABLE"}
    assert env.states() == wanted
    assert {row["topic"]: row["state"] for row in env.status(capsys)["partitions"] if row["topic"] in TOPICS} == wanted
    assert env.overview()["states"].get("RUNNING") is None
    for arguments in (("B",), ()):
        code, out, _ = asked(capsys, "heartbeats", env.file, *arguments, "--json")
        verdicts = [row["verdict"] for row in json.loads(out)["clusters"]["B"] if row["source"] == "A"]
        assert verdicts == ["unproven"]
        assert code == (1 if arguments else 2)
