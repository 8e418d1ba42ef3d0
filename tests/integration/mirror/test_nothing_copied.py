"""A flow that copies nothing is not green: an empty source, topics that match nothing, a failover, no enabled flow."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from mm2.copy.progress.ledger import LEDGER_CONFIGS, entry_record, ledger_topic
from mm2.copy.progress.session import LedgerEntry, Mark
from mm2.sandbox.kafka import LocalKafka, start_pair
from mm2.sandbox.ports import free_ports
from tests.integration.asking import asked
from tests.integration.copy_flow import producer_of
from tests.integration.mirror_flow import create, write
from tests.integration.mirror_process import MirrorProcess, has_all, write_config
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(300)

LONG_CONVERTER = "org.apache.kafka.connect.converters.LongConverter"
Capsys = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalKafka, LocalKafka]]:
    with start_pair(tmp_path_factory.mktemp("nothing")) as pair:
        yield pair


def config(folder: Path, pair: tuple[LocalKafka, LocalKafka], **more: str) -> Path:
    props = {"clusters": "A, B", "B.bootstrap.servers": pair[1].bootstrap}
    if "clusters" not in more:
        props["A.bootstrap.servers"] = pair[0].bootstrap
    return write_config(folder / "mm2.properties", {**props, **more})


def status(capsys: Capsys, file: Path) -> tuple[int, str, str]:
    """The exit code of `mm2 status`, and the flow's state and sentence."""
    code, out, err = asked(capsys, "status", file, "A->B", "--json")
    (flow,) = json.loads(out)["flows"] if out else [{"state": "", "sentence": err}]
    return code, flow["state"], flow["sentence"]


def test_a_flow_that_copies_nothing_is_not_green(
    pair: tuple[LocalKafka, LocalKafka], tmp_path: Path, capsys: Capsys
) -> None:
    a, b = pair
    file = config(tmp_path, pair, **{"A->B.enabled": "true", "A->B.topics": "oders"})
    code, out, _ = asked(capsys, "plan", file, "A->B", "--json")
    assert (code, any("Nothing is copied yet" in note for note in json.loads(out)["flows"][0]["notes"])) == (0, True)
    process = MirrorProcess(file, tmp_path / "log", "B")
    try:
        process.await_log("joined the group")

        def awaited(wanted: int, state: str, *words: str) -> str:
            seen: list[Any] = []

            def is_so() -> bool:
                seen[:] = status(capsys, file)
                return seen[:2] == [wanted, state] and all(word in seen[2] for word in words)

            wait_until(is_so, 60, detail=lambda: f"{seen} {process.tail()}")
            return str(seen[2])

        awaited(1, "NO_TOPICS", "Nothing is copied: A has no topics that this client may describe.")
        create(a, "orders", 1)
        write(a, "orders", [(None, b"1")] * 10, 0)
        awaited(
            1, "NO_TOPICS", "Nothing is copied: topics = oders and topics.exclude do not select the only topic of A."
        )
        code, out, _ = asked(capsys, "plan", file, "A->B")
        assert code == 1
        assert (
            "! Nothing would be copied: topics and topics.exclude select no topic of cluster A, which has orders."
            in out
        )

        create(a, "oders", 2)
        write(a, "oders", [(None, b"1")] * 10, 0)
        write(a, "oders", [(None, b"1")] * 10, 1)
        process.eventually(lambda: has_all(a, "oders", b, "A.oders"), 60)
        assert "oders" not in awaited(0, "RUNNING", "you lose nothing")

        asked(capsys, "pause", file, "A->B", "--topic", "oders", "--partition", "0")
        awaited(0, "RUNNING", "1 of 2 partitions are paused and not copied: 1 by a user (mm2 resume).")
        code, _, err = asked(capsys, "failover", file, "A->B", "--leave-behind", "--yes")
        assert (code, err) == (0, "")
        awaited(1, "PAUSED", "2 of 2 partitions are paused and not copied: 2 promoted by mm2 failover or mm2 promote")
        flow = json.loads(asked(capsys, "status", file, "A->B", "--json")[1])["flows"][0]
        assert flow["troubles"] == []
    finally:
        process.clean_up()


def test_few_old_records_are_a_backlog(pair: tuple[LocalKafka, LocalKafka], tmp_path: Path, capsys: Capsys) -> None:
    """A lag of ten records is small by count; they have been missing on the target for 143 seconds."""
    a, b = pair
    file = config(tmp_path, (a, b), clusters="L, B", **{"L.bootstrap.servers": a.bootstrap, "L->B.enabled": "true"})
    create(a, "late", 1)
    producer = producer_of(a)
    for _ in range(10):
        producer.produce("late", b"1", partition=0, timestamp=int((time.time() - 143) * 1000))
    assert producer.flush(30) == 0
    create(b, "L.late", 1)
    write(b, "L.late", [(None, b"1")] * 2, 0)
    create(b, ledger_topic("L"), config=LEDGER_CONFIGS)
    record = entry_record(LedgerEntry("late", 0, "L.late", Mark(2, 2, 2), 2, end=10))
    write(b, ledger_topic("L"), [(record.key, record.value)], 0)
    (flow,) = json.loads(asked(capsys, "status", file, "L->B", "--topic", "late", "--json")[1])["flows"]
    (late,) = flow["partitions"]
    assert (late["state"], late["lag_records"], late["lag_seconds"] > 140) == ("CATCHING_UP", 8, True)
    # By the batch at the position: no process has copied anything.
    assert 8 < late["lag_bytes"] < 800
    rows = [line.split() for line in asked(capsys, "lag", file, "L->B")[1].splitlines()]
    assert next(row for row in rows if row and row[0] == "late-0")[2] == str(late["lag_bytes"])


def test_one_cause_in_79_partitions_is_one_message(
    pair: tuple[LocalKafka, LocalKafka], tmp_path: Path, capsys: Capsys
) -> None:
    """A converter that cannot convert any record. `plan` reports it before anything runs."""
    a, b = pair
    create(a, "many", 79)
    for partition in range(79):
        write(a, "many", [(None, b"no number %d" % partition)] * 3, partition)
    more = {"C->B.enabled": "true", "C->B.topics": "many", "C->B.value.converter": LONG_CONVERTER}
    file = config(tmp_path, (a, b), clusters="C, B", **{"C.bootstrap.servers": a.bootstrap, **more})
    code, out, _ = asked(capsys, "plan", file, "C->B")
    (error,) = [line for line in out.splitlines() if line.startswith("! ")]
    assert (code, len(error) < 800) == (1, True)
    assert "value.converter would stop 79 of 79 partitions of C from which sample records were read" in error
    assert "set value.converter = org.apache.kafka.connect.converters.ByteArrayConverter" in error
    process = MirrorProcess(file, tmp_path / "log", "B")
    try:
        out = ""

        def is_stopped() -> bool:
            nonlocal out
            code, out, _ = asked(capsys, "status", file, "C->B")
            return code == 1 and "79 partitions  FAILED" in out

        wait_until(is_stopped, 60, detail=lambda: out + process.tail())
        assert len(out) < 6_000, out
        assert out.count("converter org.apache.kafka.connect.converters.LongConverter failed") <= 12
        wide = asked(capsys, "status", file, "C->B", "--output", "wide")[1]
        assert wide.count("FAILED") > 79
        (flow,) = json.loads(asked(capsys, "status", file, "C->B", "--json")[1])["flows"]
        assert sum(cause["partitions"] for cause in flow["causes"]) == 79
        assert len(json.dumps(flow["troubles"])) < 4_000
    finally:
        process.clean_up()


@pytest.mark.slow
def test_a_process_with_another_file_is_reported(pair: tuple[LocalKafka, LocalKafka], tmp_path: Path) -> None:
    """It joins the group of the flow and gets tasks of the stored configuration, not of its file."""
    a, b = pair
    props = {"clusters": "D, B", "D.bootstrap.servers": a.bootstrap, "D->B.enabled": "true", "D->B.topics": "second"}
    create(a, "second", 2)
    processes = []
    try:
        for name, more in (("one", {}), ("two", {"D->B.topics": "other"}), ("three", {})):
            folder = tmp_path / name
            folder.mkdir()
            processes.append(MirrorProcess(config(folder, (a, b), **{**props, **more}), folder / "log", "B"))
            processes[-1].await_log("joined the group")
        seen = processes[1].await_log("The file of this process differs from the stored configuration", flow="D->B")
        assert "MirrorSourceConnector: topics: second -> other" in seen["differences"]
        processes[2].await_log("assigned")
        time.sleep(12)
        assert not processes[2].lines(event="The file of this process differs"), "it has the same file"
        assert len(processes[1].lines(event="The file of this process differs")) == 1
    finally:
        for process in processes:
            process.clean_up()


def test_a_flow_without_a_connector_of_its_file_is_not_green(
    pair: tuple[LocalKafka, LocalKafka], tmp_path: Path, capsys: Capsys
) -> None:
    """As after a program has deleted it in the config topic; REST does not."""
    a, b = pair
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    props = {"clusters": "F, B", "F.bootstrap.servers": a.bootstrap, "F->B.enabled": "true", "F->B.topics": "kept"}
    file = config(tmp_path, pair, **props, listeners=url)
    create(a, "kept", 1)
    write(a, "kept", [(None, b"1")] * 10, 0)
    process = MirrorProcess(file, tmp_path / "log", "B")

    def answer(method: str, path: str) -> httpx.Response:
        return httpx.request(method, url + path, timeout=20, trust_env=False)

    def flow() -> tuple[int, dict[str, Any]]:
        code, out, _ = asked(capsys, "status", file, "F->B", "--json")
        return code, json.loads(out)["flows"][0]

    def is_measured(state: str) -> bool:
        lines = [line for line in answer("GET", "/metrics").text.splitlines() if line.startswith("mm2_flow_state{")]
        return any(f'state="{state}"' in line and 'source="F"' in line and line.endswith(" 1.0") for line in lines)

    def rows() -> list[dict[str, Any]]:
        return [one for one in flow()[1]["partitions"] if one["topic"] == "kept"]

    try:
        process.eventually(lambda: has_all(a, "kept", b, "F.kept"), 60)
        process.eventually(lambda: flow()[0] == 0, 30)
        names = ("MirrorCheckpointConnector", "MirrorHeartbeatConnector", "MirrorSourceConnector")
        for name in names:
            refused = answer("DELETE", f"/F/B/connectors/{name}")
            assert (refused.status_code, "connector of the properties file" in refused.text) == (403, True)
        changed = answer("GET", "/F/B/connectors/MirrorSourceConnector/config").json() | {
            "connector.class": "MirrorHeartbeatConnector"
        }
        refused = httpx.put(
            f"{url}/F/B/connectors/MirrorSourceConnector/config", json=changed, trust_env=False, timeout=60
        )
        assert (refused.status_code, "connector of the properties file" in refused.text) == (400, True)
        for enabled, code, state in (("false", 1, "STOPPED"), ("true", 0, "RUNNING")):
            source = f"{url}/F/B/connectors/MirrorSourceConnector/config"
            assert httpx.patch(source, json={"enabled": enabled}, timeout=20, trust_env=False).status_code == 200
            wait_until(lambda: (flow()[0], flow()[1]["state"]) == (code, state), 60, detail=lambda: str(flow()))  # noqa: B023
        for name, state, more in (
            ("MirrorCheckpointConnector", "DEGRADED", "MirrorCheckpointConnector does not exist"),
            (
                "MirrorSourceConnector",
                "STOPPED",
                "MirrorCheckpointConnector and MirrorSourceConnector do not exist: restart the processes of the flow",
            ),
        ):
            write(
                b,
                "mm2-configs.F.internal",
                [(f"{kind}-{name}".encode(), None) for kind in ("connector", "target-state")],
                0,
            )
            process.eventually(lambda: answer("GET", "/health").status_code == 503, 30)
            assert more in answer("GET", "/health").json()["message"]
            code, found = flow()
            assert (code, found["state"]) == (1, state)
            assert more in f"{found['sentence']} {found['troubles']}"
            wait_until(lambda: answer("GET", "/overview/F/B").json()["state"] == state, 30)  # noqa: B023
            wait_until(lambda: is_measured(state), 30)  # noqa: B023
        write(a, "kept", [(None, b"1")] * 10, 0)
        wait_until(lambda: [one["lag_records"] for one in rows()] == [10], 30)
        assert [one["state"] for one in rows()] == ["PAUSED"]
        assert asked(capsys, "lag", file, "F->B", "--json")[1].count("RUNNING") == 0
        for verb in ("resume", "restart", "pause"):
            code, out, err = asked(capsys, verb, file, "F->B", "--url", url)
            assert (code, f"F->B is {verb}" in out) == (1, False), out
            assert "MirrorCheckpointConnector and MirrorSourceConnector do not exist: restart the processes" in err
        asked(capsys, "resume", file, "F->B", "--url", url)
        assert process.stop()[0] == 0
        process = MirrorProcess(file, tmp_path / "log2", "B")
        process.eventually(lambda: has_all(a, "kept", b, "F.kept"), 60)
        process.eventually(lambda: flow()[0] == 0, 30)
        process.kill9()
        wait_until(lambda: flow()[1]["state"] == "STOPPED", 60)
        shown = flow()[1]
        assert {one["state"] for one in shown["partitions"]} == {"PAUSED"}
        assert {task["state"] for one in shown["connectors"] for task in one["tasks"]} == {"UNASSIGNED"}
    finally:
        process.clean_up()


def test_a_file_that_enables_no_flow_is_not_green(
    pair: tuple[LocalKafka, LocalKafka], tmp_path: Path, capsys: Capsys
) -> None:
    """The process writes heartbeats, as Java's does, and reports that it copies nothing."""
    (port,) = free_ports(1)
    file = config(tmp_path, pair, topics=".*", listeners=f"http://127.0.0.1:{port}")
    code, out, _ = asked(capsys, "plan", file)
    assert (code, "! The file enables no flow, so nothing is copied" in out) == (1, True)
    code, _, err = asked(capsys, "status", file)
    assert (code, "enables no flow, so nothing is copied" in err) == (2, True)
    process = MirrorProcess(file, tmp_path / "log")
    try:
        process.await_log("The file enables no flow, so nothing is copied", level="warning")

        def health() -> tuple[int, str]:
            try:
                answer = httpx.get(f"http://127.0.0.1:{port}/health", timeout=5, trust_env=False)
            except httpx.HTTPError:
                return 0, ""
            return answer.status_code, answer.json()["message"]

        wait_until(lambda: "enables no flow, so nothing is copied" in health()[1], 60, detail=process.tail)
        assert health()[0] == 503
    finally:
        process.clean_up()
