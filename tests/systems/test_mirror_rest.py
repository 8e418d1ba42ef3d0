"""REST in MirrorMaker's dedicated mode: a worker interface for each flow, and requests between processes."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from mm2.sandbox.kafka import LocalKafka
from mm2.sandbox.ports import free_ports
from tests.integration.copy_flow import create, read
from tests.integration.mirror_process import MirrorProcess, write_config
from tests.support.waiting import wait_until
from tests.systems.workers import ROOT

SOURCE, TARGET = "north", "south pole"


def props(kafka_a: LocalKafka, kafka_b: LocalKafka, source: str, target: str, unique: str) -> dict[str, str]:
    return {
        "clusters": f"{source},{target}",
        f"{source}.bootstrap.servers": kafka_a.bootstrap,
        f"{target}.bootstrap.servers": kafka_b.bootstrap,
        f"{source}->{target}.enabled": "true",
        f"{source}->{target}.topics": unique,
        f"{target}->{source}.emit.heartbeats.enabled": "false",
        "replication.factor": "1",
        # otherwise the alias of the target would be part of a topic's name
        "offset-syncs.topic.location": "target",
        **{f"{name}.storage.replication.factor": "1" for name in ("config", "offset", "status")},
    }


@contextmanager
def mirroring(folder: Path, name: str, settings: Mapping[str, str]) -> Iterator[MirrorProcess]:
    folder.mkdir(exist_ok=True)
    escaped = {key.replace(" ", "\\ "): value for key, value in settings.items()}
    process = MirrorProcess(
        write_config(folder / f"{name}.properties", escaped),
        folder / f"{name}.log",
        variables={"XDG_STATE_HOME": str(folder)},
    )
    try:
        yield process
    finally:
        process.clean_up()


def url_of(process: MirrorProcess) -> str:
    return str(process.await_log("REST server listening.")["advertised_url"]).rstrip("/")


def ask(method: str, url: str, **how: object) -> httpx.Response:
    return httpx.request(method, url, timeout=60, trust_env=False, **how)  # type: ignore[arg-type]


@pytest.mark.timeout(240)
def test_the_interface_of_a_worker_is_served_for_each_flow(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, folder: Path
) -> None:
    create(kafka_a, unique)
    settings = props(kafka_a, kafka_b, SOURCE, TARGET, unique)
    with mirroring(folder, "one", settings) as process:
        url = url_of(process)
        assert url.startswith("http://127.0.0.1:")
        flow = f"{url}/north/south%20pole"
        wait_until(lambda: ask("GET", f"{url}/health").status_code == 200, 120, detail=process.tail)
        wait_until(lambda: len(ask("GET", f"{flow}/connectors").json()) == 3, 60, detail=process.tail)
        assert ask("GET", f"{flow}/connectors").json() == [
            "MirrorCheckpointConnector",
            "MirrorHeartbeatConnector",
            "MirrorSourceConnector",
        ]
        heartbeat = f"{flow}/connectors/MirrorHeartbeatConnector"

        def state() -> str:
            return str(ask("GET", f"{heartbeat}/status").json()["connector"]["state"])

        wait_until(lambda: state() == "RUNNING", 60, detail=process.tail)
        assert ask("PUT", f"{heartbeat}/pause").status_code == 202
        wait_until(lambda: state() == "PAUSED", 60, detail=process.tail)
        assert ask("PUT", f"{heartbeat}/resume").status_code == 202
        wait_until(lambda: state() == "RUNNING", 60, detail=process.tail)
        assert ask("GET", f"{heartbeat}/config").json()["source.cluster.alias"] == SOURCE
        assert ask("GET", flow).json()["kafka_cluster_id"]
        assert "/connectors/{connector}/status" in ask("GET", f"{flow}/openapi.json").json()["paths"]

        # the same below /flows, what belongs to the process, and what does not exist
        assert (
            ask("GET", f"{url}/flows/north/south%20pole/connectors").json() == ask("GET", f"{flow}/connectors").json()
        )
        assert [entry["path"] for entry in ask("GET", f"{url}/flows").json()] == ["/north/south%20pole"]
        assert ask("GET", f"{url}/health").json()["flows"] == {
            f"{SOURCE}->{TARGET}": {
                "status": "healthy",
                "message": "Worker has completed startup and is ready to handle requests.",
            }
        }
        assert "root" in ask("GET", f"{url}/admin/loggers").json()
        for unknown in (
            "/south%20pole/north/connectors",
            "/a/b",
            "/connectors",
            "/flows/a/b/connectors",
        ):
            answer = ask("GET", url + unknown)
            assert (answer.status_code, answer.json()["error_code"]) == (404, 404), unknown
        assert f"{flow.removeprefix(url)}/connectors" in ask("GET", f"{url}/connectors").json()["message"]
        # without the setting no process sends requests to others
        assert ask("PUT", f"{flow}/connectors/MirrorSourceConnector/fence").status_code == 404

        # the next process takes the next port, and the mm2 command knows both
        other = {
            **settings,
            "clusters": f"{SOURCE},{TARGET},third",
            "third.bootstrap.servers": kafka_b.bootstrap,
            # no flow may have a source alias that is invalid in a topic's name
            f"{TARGET}->third.emit.heartbeats.enabled": "false",
        }
        with mirroring(folder, "two", other) as second:
            assert url_of(second) != url
            wait_until(lambda: len(running(folder)) == 2, 90, detail=second.tail, interval_s=1)
            assert {entry["url"].rstrip("/") for entry in running(folder)} == {url, url_of(second)}
            second.kill9()
            wait_until(lambda: len(running(folder)) == 1, 30, interval_s=1)
        assert process.stop()[0] == 0
    assert running(folder) == []


def running(folder: Path) -> list[dict[str, str]]:
    answer = subprocess.run(
        [sys.executable, "-P", "-m", "mm2.cli.mm2", "processes", "--json"],
        env={"PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(folder), "PATH": ""},
        capture_output=True,
        check=True,
        timeout=60,
    )
    return list(json.loads(answer.stdout)["processes"])


@pytest.mark.timeout(240)
def test_a_reserved_alias_is_served_below_flows(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, folder: Path
) -> None:
    settings = props(kafka_a, kafka_b, "health", "b", unique) | {"dedicated.mode.enable.internal.rest": "true"}
    with mirroring(folder, "reserved", settings) as process:
        url = url_of(process)
        wait_until(lambda: ask("GET", f"{url}/health").status_code == 200, 120, detail=process.tail)
        assert [entry["path"] for entry in ask("GET", f"{url}/flows").json()] == ["/flows/health/b"]
        assert ask("GET", f"{url}/flows/health/b/connectors").status_code == 200
        assert ask("GET", f"{url}/health/b/connectors").status_code == 404
        # but the endpoints that Java's processes use respond
        assert ask("PUT", f"{url}/health/b/connectors/x/fence").status_code == 400


@pytest.mark.timeout(240)
def test_a47_without_listeners_it_opens_no_port(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, folder: Path
) -> None:
    with mirroring(folder, "none", props(kafka_a, kafka_b, "a", "b", unique) | {"listeners": ""}) as process:
        process.await_log("Connector is configured.", timeout_s=120)
        listening = [
            connection
            for connection in process.family()[0].net_connections("tcp")
            if connection.status == "LISTEN" and connection.laddr.port in range(8083, 8100)
        ]
        assert listening == []
        assert process.lines(event="REST server listening.") == []


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_processes_call_each_other_over_internal_rest(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, folder: Path
) -> None:
    create(kafka_a, unique)
    source, target = f"s-{unique[-6:]}", f"t-{unique[-6:]}"
    settings = props(kafka_a, kafka_b, source, target, f"{unique}.*") | {
        "dedicated.mode.enable.internal.rest": "true",
        "refresh.topics.interval.seconds": "1",
        f"{source}->{target}.tasks.max": "2",
    }
    ports = free_ports(2)
    first = settings | {"listeners": f"http://127.0.0.1:{ports[0]}"}
    second = settings | {"listeners": f"http://127.0.0.1:{ports[1]}"}
    with mirroring(folder, "first", first) as one:
        health = f"http://127.0.0.1:{ports[0]}/health"
        wait_until(lambda: answers(health), 120, detail=one.tail)
        with mirroring(folder, "second", second) as two:
            wait_until(lambda: answers(f"http://127.0.0.1:{ports[1]}/health"), 120, detail=two.tail)
            flows = [f"http://127.0.0.1:{port}/{source}/{target}" for port in ports]
            status = f"{flows[1]}/connectors/MirrorSourceConnector/status"
            wait_until(
                lambda: ask("GET", status).json().get("connector", {}).get("state") == "RUNNING", 90, detail=two.tail
            )

            def hosts() -> set[str]:
                return {
                    str(ask("GET", f"{flows[0]}/connectors/{name}/status").json().get("connector", {}).get("worker_id"))
                    for name in ask("GET", f"{flows[0]}/connectors").json()
                }

            # connectors run on both, so a follower must send its task configs to the leader
            both = {f"127.0.0.1:{port}/{source}->{target}" for port in ports}
            wait_until(lambda: hosts() == both, 60, detail=lambda: f"{hosts()} {one.tail()}")
            create(kafka_a, f"{unique}-later")
            tasks = f"{flows[1]}/connectors/MirrorSourceConnector/tasks"
            wait_until(lambda: f"{unique}-later" in ask("GET", tasks).text, 90, detail=lambda: one.tail() + two.tail())

            # unsigned, wrong signature, signed: only the last is accepted
            fence = "/connectors/MirrorSourceConnector/fence"
            for flow in flows:
                assert ask("PUT", flow + fence).status_code == 400
                wrong = {"X-Connect-Authorization": "AAAA", "X-Connect-Request-Signature-Algorithm": "HmacSHA256"}
                assert ask("PUT", flow + fence, headers=wrong).status_code == 403
                mac = hmac.new(session_key(kafka_b, source), b"", hashlib.sha256).digest()
                right = wrong | {"X-Connect-Authorization": base64.b64encode(mac).decode()}
                assert ask("PUT", flow + fence, headers=right).status_code == 204
            # each process accepts requests that only the leader can handle
            for flow in flows:
                assert (
                    ask("POST", f"{flow}/connectors/MirrorSourceConnector/restart?includeTasks=true").status_code == 202
                )


def answers(url: str) -> bool:
    try:
        return ask("GET", url).status_code == 200
    except httpx.TransportError:
        return False


def session_key(broker: LocalKafka, source: str) -> bytes:
    keys = [
        json.loads(record.value)
        for record in read(broker, f"mm2-configs.{source}.internal")
        if record.key == b"session-key" and record.value
    ]
    return base64.b64decode(keys[-1]["key"])


def test_a_port_in_use_ends_the_process_with_exit_code_2(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, folder: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listener = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with mirroring(folder, "taken", props(kafka_a, kafka_b, "a", "b", unique) | {"listeners": listener}) as process:
            wait_until(lambda: process.exit_code == 2, 60, detail=process.tail)
            assert listener in process.tail()


@pytest.mark.timeout(240)
def test_rest_may_name_only_classes_and_providers_that_the_file_allows(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, folder: Path
) -> None:
    create(kafka_a, unique)
    provider = "org.apache.kafka.common.config.provider"
    (folder / "secrets").write_text("user=none\nown=none\n")
    settings = props(kafka_a, kafka_b, "near", "far", unique) | {
        "far.plugin.path": "libs/connect-file-4.3.0.jar",
        "plugin.allowed.classes": "FileStreamSink",
        "config.providers": "all,some",
        "config.providers.all.class": f"{provider}.FileConfigProvider",
        "config.providers.some.class": f"{provider}.FileConfigProvider",
        "config.providers.some.param.allowed.paths": str(folder),
        # The file itself may use every provider.
        "near->far.groups.exclude": f"${{all:{folder}/secrets:user}}",
    }
    with mirroring(folder, "one", settings) as process:
        flow = f"{url_of(process)}/near/far"
        source = f"{flow}/connectors/MirrorSourceConnector"
        wait_until(lambda: ask("GET", f"{source}/config").status_code == 200, 120, detail=process.tail)
        assert [entry["class"].rpartition(".")[2] for entry in ask("GET", f"{flow}/connector-plugins").json()] == [
            "FileStreamSinkConnector",
            "MirrorCheckpointConnector",
            "MirrorHeartbeatConnector",
            "MirrorSourceConnector",
        ]
        sentence = "is not allowed in a MirrorMaker process: add it to plugin.allowed.classes in the properties file."
        config = ask("GET", f"{source}/config").json()
        for change in (
            {"connector.class": "FileStreamSource", "file": "/etc/passwd", "topic": unique},
            {"connector.class": "VerifiableSource"},
            {"connector.class": "antigravity.Connector"},
            {"value.converter": "antigravity.Converter"},
            {"transforms": "t", "transforms.t.type": "antigravity.Transformation"},
            {"predicates": "p", "predicates.p.type": "antigravity.Predicate"},
            {"topic.filter.class": "antigravity.Filter"},
            {"replication.policy.class": "antigravity.Policy"},
        ):
            for method, url, body in (
                (
                    "POST",
                    f"{flow}/connectors",
                    {"name": "x", "config": {"connector.class": "MirrorHeartbeat"} | change},
                ),
                ("PUT", f"{source}/config", config | change),
                ("PATCH", f"{source}/config", change),
            ):
                answer = ask(method, url, json=body)
                # A connector of the file keeps its class.
                is_own = method != "POST" and "connector.class" in change
                expected = "connector.class of MirrorSourceConnector cannot be changed" if is_own else sentence
                assert (answer.status_code, expected in answer.text) == (400, True), (change, method, answer.text)
        assert ask("GET", f"{flow}/connector-plugins/antigravity.Connector/config").status_code == 404
        for change in ({"topics": f"${{all:{folder}/secrets:user}}"}, {"my.key": f"x${{all:{folder}/secrets:user}}"}):
            for method, url in (
                ("PUT", f"{source}/config"),
                ("PUT", f"{flow}/connector-plugins/MirrorSource/config/validate"),
            ):
                answer = ask(method, url, json=config | change)
                assert answer.status_code == 400, answer.text
                assert "config.providers.all.param.allowed.paths" in answer.text
        # A value that the file uses is used where the file uses it only, whichever provider reads it.
        secret = f"${{some:{folder}/secrets:user}}"
        own = {"connector.class": "MirrorHeartbeat", "groups.exclude": secret}
        for name, body in (("MirrorSourceConnector", config | {"my.key": secret}), ("y", own)):
            answer = ask("PUT", f"{flow}/connectors/{name}/config", json=body)
            assert (answer.status_code, "a value that the properties file uses" in answer.text) == (400, True), (
                answer.text
            )
        # What the file contains can be written back, a restricted provider can be used, an allowed class runs.
        changed = config | {"my.key": f"${{some:{folder}/secrets:own}}"}
        assert changed["groups.exclude"].startswith("${all:")
        wait_until(lambda: ask("PUT", f"{source}/config", json=changed).status_code == 200, 60, detail=process.tail)
        sink = {"connector.class": "FileStreamSink", "topics": f"near.{unique}", "file": str(folder / "sink")}
        created = ask("POST", f"{flow}/connectors", json={"name": "x", "config": sink})
        assert created.status_code in {201, 409}, created.text
