"""Requests that another worker must answer (A13): at most two hops, 409 when the leader is unreachable."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import httpx
import pytest

from mm2.connect.request_signing import SessionKey
from mm2.connect.rest.access.roles import Kind, Principal, Role
from mm2.connect.rest.access.vouchers import voucher_headers
from mm2.sandbox.kafka import LocalKafka
from mm2.sandbox.ports import free_ports
from tests.integration.copy_flow import create, read
from tests.support.access import token_header
from tests.support.certificates import PASSWORD, Issued, issue
from tests.support.waiting import wait_until
from tests.systems.counting import counting
from tests.systems.workers import DistributedWorker, distributed_props

HOST = "127.0.0.1"


@contextmanager
def two_workers(broker: LocalKafka, group: str, folder: Path) -> Iterator[tuple[DistributedWorker, DistributedWorker]]:
    """Leader and follower, both ready; the first worker leads."""
    props = distributed_props(broker.bootstrap, group)
    with (
        DistributedWorker(folder / "leader", props) as leader,
        DistributedWorker(folder / "follower", props) as follower,
    ):
        wait_until(lambda: follows(follower), 60, detail=follower.tail)
        yield leader, follower


def follows(worker: DistributedWorker) -> bool:
    """Whether a worker's last join of the group made it a follower."""
    joins = [line for line in worker.log.read_text().splitlines() if '"joined the group"' in line]
    return bool(joins) and '"leader": false' in joins[-1]


def test_a13_a_follower_forwards_requests_to_the_leader(broker: LocalKafka, unique: str, folder: Path) -> None:
    create(broker, unique)
    with two_workers(broker, unique, folder) as (leader, follower):
        http = follower.rest.http
        config = counting(unique, 2)
        created = http.post("/connectors", json={"name": "a b", "config": config, "initial_state": "STOPPED"})
        assert created.status_code == 201, created.text
        assert created.headers["location"] == "/connectors/a%20b"
        assert created.json()["config"] == {**config, "name": "a b"}
        again = http.post("/connectors", json={"name": "a b", "config": config})
        assert (again.status_code, again.json()["error_code"]) == (409, 409)
        assert "already exists" in again.json()["message"]

        # a request marked as forwarded may not be forwarded again by a follower
        last = http.post("/connectors?forward=false", json={"name": "x", "config": config})
        assert last.status_code == 409
        assert last.json()["message"] == (
            "Cannot complete request because of a conflicting operation (e.g. worker rebalance)"
        )
        hop = http.patch("/connectors/a%20b/config?forward=true", json={"pause.s": "0.1"})
        assert (hop.status_code, hop.json()["config"]["pause.s"]) == (200, "0.1")
        bad = http.put("/connectors/a%20b/config", json={"connector.class": "no.such.Class"})
        assert (bad.status_code, bad.json()["error_code"]) == (400, 400)

        follower.rest.resume("a b")
        follower.rest.await_running("a b", 2)
        owners = {task["id"]: task["worker_id"] for task in follower.rest.status("a b")["tasks"]}
        assert set(owners.values()) == {leader.worker_id, follower.worker_id}
        for number in owners:  # each also at a worker that does not own it
            for asked in (leader, follower):
                restarted = asked.rest.http.post(f"/connectors/a%20b/tasks/{number}/restart")
                assert restarted.status_code == 204, restarted.text
        assert http.post("/connectors/a%20b/restart").status_code == 204
        plan = http.post("/connectors/a%20b/restart?includeTasks=true")
        assert plan.status_code == 202
        assert {task["state"] for task in plan.json()["tasks"]} == {"RESTARTING"}
        follower.rest.await_running("a b", 2)
        follower.rest.stop("a b")
        assert http.delete("/connectors/a%20b/offsets").status_code == 200
        assert http.delete("/connectors/a%20b").status_code == 204
        assert http.delete("/connectors/a%20b").status_code == 404
        assert "PUT /connectors/a%20b/stop?forward=true" in leader.log.read_text()


def test_a13_without_a_leader_requests_return_409_until_one_is_elected(
    broker: LocalKafka, unique: str, folder: Path
) -> None:
    create(broker, unique)
    config = counting(unique)
    with two_workers(broker, unique, folder) as (leader, follower):
        leader.kill9()
        answer = follower.rest.http.post("/connectors", json={"name": "x", "config": config})
        assert answer.status_code == 409, answer.text
        assert answer.json()["error_code"] == 409
        assert leader.worker_id in answer.json()["message"]
        follower.rest.create("x", config)  # retries until the session of the dead worker has expired
        follower.rest.await_running("x", 1)


@pytest.mark.parametrize(
    ("leader_scheme", "follower_scheme"),
    [
        ("https", "https"),
        pytest.param("https", "http", marks=pytest.mark.slow),
        pytest.param("http", "https", marks=pytest.mark.slow),
    ],
)
def test_a13_workers_reach_each_other_over_tls(
    broker: LocalKafka, unique: str, folder: Path, leader_scheme: str, follower_scheme: str
) -> None:
    create(broker, unique)
    authority = issue("authority")

    def worker(name: str, scheme: str) -> DistributedWorker:
        home = folder / name
        home.mkdir()
        own = issue(HOST, authority, address=HOST)
        made = DistributedWorker(
            home,
            distributed_props(broker.bootstrap, unique)
            | {
                "ssl.keystore.location": str(own.pkcs12(home / "own.p12", authority)),
                "ssl.keystore.password": PASSWORD,
                "ssl.truststore.location": str(trust(home, authority)),
                "ssl.truststore.type": "PEM",
                # the certificate that a worker shows as a client
                "ssl.client.auth": "required" if scheme == "https" else "none",
            },
        )
        made.props["listeners"] = f"{scheme}://{HOST}:{made.port}"
        if scheme == "https":
            context = ssl.create_default_context(cadata=authority.certificate_pem)
            client = home / "client.pem"
            client.write_text(own.key_pem() + own.certificate_pem)
            context.load_cert_chain(client)
            made.rest.http = httpx.Client(
                base_url=f"https://{HOST}:{made.port}", verify=context, timeout=100, trust_env=False
            )
        return made

    with worker("leader", leader_scheme) as leader, worker("follower", follower_scheme) as follower:
        wait_until(lambda: follows(follower), 60, detail=follower.tail)
        created = follower.rest.http.post("/connectors", json={"name": "x", "config": counting(unique)})
        if (leader_scheme, follower_scheme) == ("http", "https"):
            assert created.status_code == 409, created.text + leader.tail()
            assert "uses no TLS, and this worker does" in created.json()["message"]
        else:
            assert created.status_code == 201, created.text + leader.tail()


def trust(folder: Path, authority: Issued) -> Path:
    file = folder / "trust.pem"
    file.write_text(authority.certificate_pem)
    return file


def test_a13_the_credentials_of_the_client_are_forwarded(broker: LocalKafka, unique: str, folder: Path) -> None:
    create(broker, unique)
    (folder / "credentials").write_text("u=p\n")
    (folder / "login.conf").write_text(
        f'KafkaConnect {{ PropertyFileLoginModule required file="{folder}/credentials"; }};'
    )
    props = distributed_props(broker.bootstrap, unique) | {
        "rest.extension.classes": "BasicAuthSecurityRestExtension",
        "java.security.auth.login.config": str(folder / "login.conf"),
        "rest.unauthenticated.access": "none",
    }
    leader, follower = DistributedWorker(folder / "leader", props), DistributedWorker(folder / "follower", props)
    leader.rest.http.auth = follower.rest.http.auth = ("u", "p")
    with leader, follower:
        wait_until(lambda: follows(follower), 60, detail=follower.tail)
        follower.rest.create("x", counting(unique))
        follower.rest.await_running("x", 1)


def audited(worker: DistributedWorker) -> list[dict[str, str]]:
    """The changes in the audit log of a worker."""
    lines = [json.loads(line) for line in worker.log.read_text().splitlines() if '"mm2.audit"' in line]
    return [line for line in lines if line["result"] == "done"]


def test_a13_with_a_secret_of_the_workers_one_vouches_for_a_client_that_the_leader_does_not_know(
    broker: LocalKafka, unique: str, folder: Path
) -> None:
    create(broker, unique)
    secret = {"rest.inter.worker.secret": "s" * 32}
    props = distributed_props(broker.bootstrap, unique) | {"rest.unauthenticated.access": "none"} | secret
    leader, follower = DistributedWorker(folder / "leader", props), DistributedWorker(folder / "follower", props)
    with leader, follower:
        assert follower.rest.http.get("/connectors").status_code == 401
        follower.rest.http.headers.update(token_header(follower.port))
        assert leader.rest.http.get("/connectors", headers=follower.rest.http.headers).status_code == 401
        wait_until(lambda: follows(follower), 60, detail=follower.tail)
        follower.rest.create("x", counting(unique))
        follower.rest.await_running("x", 1)
        # The audit log of the leader names the client.
        wait_until(lambda: any(line["kind"] == "local" for line in audited(leader)), 20, detail=leader.tail)


def test_a13_what_the_config_topic_contains_authenticates_no_client(
    broker: LocalKafka, unique: str, folder: Path
) -> None:
    """Given a client that may read the config topic, and so knows the session key; validates that its voucher is worth nothing,
    and that the token of a process is valid at this process only.
    """
    create(broker, unique)
    props = distributed_props(broker.bootstrap, unique) | {"rest.unauthenticated.access": "none"}
    leader, follower = DistributedWorker(folder / "leader", props), DistributedWorker(folder / "follower", props)
    with leader, follower:
        wait_until(lambda: follows(follower), 60, detail=follower.tail)
        keys = [r.value for r in read(broker, f"{unique}-configs") if r.key == b"session-key" and r.value]
        known = SessionKey.from_json(json.loads(keys[-1]))
        someone = Principal("local", Kind.LOCAL)
        for worker in (leader, follower):
            url = f"http://{worker.worker_id}"
            forged = voucher_headers(known, someone, Role.ADMIN, url, "GET", "/connectors", b"")
            assert worker.rest.http.get("/connectors", headers=forged).status_code == 401
        config = {"name": "x", "config": counting(unique)}
        refused = follower.rest.http.post("/connectors", json=config, headers=token_header(follower.port))
        assert refused.status_code == 403, refused.text
        assert f"The worker at http://{leader.worker_id}" in refused.json()["message"]
        accepted = leader.rest.http.post("/connectors", json=config, headers=token_header(leader.port))
        assert accepted.status_code == 201, accepted.text


class Trap(BaseHTTPRequestHandler):
    """A process whose URL a member of the Connect group advertises; it asks ``worker`` what it cannot answer itself."""

    worker: ClassVar[str] = ""
    seen: ClassVar[list[tuple[str, dict[str, str], bytes]]] = []

    def answer(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = self.rfile.read(int(headers.get("content-length", 0)))
        self.seen.append((self.command, headers, body))
        found = httpx.get(f"{self.worker}{self.path}", headers={"X-Mm2-Challenge": headers.get("x-mm2-challenge", "")})
        self.send_response(200)
        self.send_header("X-Mm2-Proof", found.headers.get("X-Mm2-Proof", ""))
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    do_GET = answer  # noqa: N815 - named by the base class
    do_POST = answer  # noqa: N815


def test_a13_a_process_that_does_not_prove_itself_gets_no_credentials(
    broker: LocalKafka, unique: str, folder: Path
) -> None:
    """Given a leader whose address in the group is that of another process, which relays the challenge to a real worker."""
    create(broker, unique)
    (folder / "credentials").write_text("u=p\n")
    (folder / "login.conf").write_text(
        f'KafkaConnect {{ PropertyFileLoginModule required file="{folder}/credentials"; }};'
    )
    props = distributed_props(broker.bootstrap, unique) | {
        "rest.extension.classes": "BasicAuthSecurityRestExtension",
        "java.security.auth.login.config": str(folder / "login.conf"),
        "rest.unauthenticated.access": "none",
    }
    trap = ThreadingHTTPServer((HOST, 0), Trap)
    threading.Thread(target=trap.serve_forever, daemon=True).start()
    advertised = {"rest.advertised.host.name": HOST, "rest.advertised.port": str(trap.server_port)}
    leader = DistributedWorker(folder / "leader", props | advertised)
    follower = DistributedWorker(folder / "follower", props)
    follower.rest.http.auth = ("u", "p")
    Trap.seen.clear()
    Trap.worker = f"http://{HOST}:{follower.port}"
    try:
        with leader, follower:
            wait_until(lambda: follows(follower), 60, detail=follower.tail)
            config = {**counting(unique), "database.password": "hunter2"}
            refused = follower.rest.http.post("/connectors", json={"name": "x", "config": config})
            assert refused.status_code == 409, refused.text
            assert "has not proved that it has the session key of the group" in refused.json()["message"]
    finally:
        trap.shutdown()
        trap.server_close()
    assert [(method, body) for method, _, body in Trap.seen] == [("GET", b"")]
    assert "authorization" not in Trap.seen[0][1]


def test_a13_a_request_is_not_forwarded_twice(broker: LocalKafka, unique: str, folder: Path) -> None:
    # Two workers that advertise each other's address would forward a request forever without a hop limit.
    ports = free_ports(2)
    props = distributed_props(broker.bootstrap, unique)
    workers = []
    for number, name in enumerate(("one", "two")):
        worker = DistributedWorker(folder / name, props)
        worker.props |= {"listeners": f"http://{HOST}:{ports[number]}", "rest.advertised.port": str(ports[1 - number])}
        worker.rest.http.base_url = httpx.URL(f"http://{HOST}:{ports[number]}")
        workers.append(worker)
    with workers[0], workers[1] as follower:
        wait_until(lambda: follows(follower), 60, detail=follower.tail)
        answer = follower.rest.http.post("/connectors", json={"name": "x", "config": counting(unique)})
        assert answer.status_code == 409, answer.text
        assert "conflicting operation" in answer.json()["message"]
        assert follower.rest.get("/connectors") == []
