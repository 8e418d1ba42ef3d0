"""The sandbox of local brokers that the fault tests use."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from mm2.sandbox.errors import SandboxError
from mm2.sandbox.kafka import LocalKafka
from tests.support.cluster import LocalCluster
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until


def _topics(broker: LocalKafka) -> set[str]:
    return set(AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=60).topics)


@pytest.mark.slow
def test_topics_survive_kill9_and_restart(tmp_path: Path) -> None:
    with LocalKafka("K", tmp_path) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for done in admin.create_topics([NewTopic("kept", 2, 1)]).values():
            done.result()
        before = broker.bootstrap
        broker.kill9()
        broker.start()
        assert broker.bootstrap == before
        assert "kept" in _topics(broker)
        assert admin.list_topics(timeout=60).cluster_id == broker.cluster_id


def test_a_dead_broker_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match=r"Kafka bad died with exit code 1(.|\n)*Invalid value abc"):
        LocalKafka("bad", tmp_path, overrides={"log.segment.bytes": "abc"}).start()


def test_a_broker_dies_with_its_killed_parent(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from mm2.sandbox.kafka import LocalKafka;"
        "b = LocalKafka('orphan', Path(sys.argv[1])).start(); print(b.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3]
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)
    wait_until(lambda: not _alive(pid), what="the end of the broker")


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_clients_of_a_proxied_listener_stay_with_the_proxy(tmp_path: Path) -> None:
    listeners = {"PLAINTEXT": "PLAINTEXT", "PROXIED": "PLAINTEXT"}
    with (
        LocalKafka("P", tmp_path, listeners=listeners, proxied=["PROXIED"]) as broker,
        Proxy.before(broker) as proxy,
    ):
        for address in (broker.bootstrap, proxy.address):
            seen = AdminClient({"bootstrap.servers": address}).list_topics(timeout=60).brokers.values()
            assert [f"{node.host}:{node.port}" for node in seen] == [address]
        assert proxy.counters()["bytes_down"] > 0


@pytest.mark.slow
def test_a_cluster_of_two_elects_the_other_broker(tmp_path: Path) -> None:
    with LocalCluster("Q", tmp_path) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        for done in admin.create_topics([NewTopic("t", 1, replica_assignment=[[1, 2]])]).values():
            done.result()

        def await_state(leader: int, in_sync: set[int]) -> None:
            def state() -> tuple[int, set[int]] | None:
                found = admin.list_topics("t", timeout=60).topics["t"].partitions.get(0)
                return None if found is None else (found.leader, set(found.isrs))

            wait_until(lambda: state() == (leader, in_sync), 20, what=f"leader {leader}, ISR {in_sync}", detail=state)

        for victim, heir in ((1, 2), (2, 1)):
            await_state(victim, {1, 2})
            cluster.broker(victim).kill9()
            await_state(heir, {heir})
            cluster.broker(victim).start()
