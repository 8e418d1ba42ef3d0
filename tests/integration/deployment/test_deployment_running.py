"""Runs conf/compose and conf/kubernetes with real brokers and processes (slow)."""

from __future__ import annotations

import re
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from subprocess import Popen
from typing import Any

import httpx
import pytest
import yaml
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from mm2.cli import health
from mm2.sandbox.jars import KAFKA, classpath
from mm2.sandbox.java import java_executable
from mm2.sandbox.kafka import LocalKafka, start_all, stop_all
from mm2.sandbox.ports import free_ports
from mm2.sandbox.process import end, spawn
from tests.integration.copy_flow import admin_of, create, producer_of
from tests.integration.mirror_process import MirrorProcess, has_all
from tests.support import certificates
from tests.support.access import token_header
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[3]
COMPOSE = ROOT / "conf" / "compose"
KUBERNETES = ROOT / "conf" / "kubernetes"

Manifest = dict[str, Any]


def broker_settings(service: Manifest) -> dict[str, str]:
    """Properties from the environment as in Kafka's image: KAFKA_ABC_DEF is abc.def, two underscores are one."""
    found = {}
    for name, value in service["environment"].items():
        if name.startswith("KAFKA_"):
            key = name.removeprefix("KAFKA_").lower().replace("__", "\0").replace("_", ".").replace("\0", "_")
            found[key] = str(value)
    return found


@contextmanager
def brokers_of_compose(folder: Path) -> Iterator[dict[str, int]]:
    """Both brokers with only the settings of compose, and the ports that replace those of compose, by name and number."""
    services = {
        name: made
        for name, made in yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"].items()
        if name.startswith("kafka-")
    }
    ports: dict[str, int] = {}
    running: list[tuple[Popen[bytes], Path, int]] = []
    with ExitStack() as stack:
        for name, service in services.items():
            settings = broker_settings(service)
            inside = sorted(set(re.findall(r":(\d{4,5})", settings["listeners"])))
            mapped = dict(zip(inside, free_ports(len(inside)), strict=True))
            ports |= {f"{name}:{number}": port for number, port in mapped.items()}
            place = folder / name
            place.mkdir()
            for key, value in settings.items():
                for number, port in mapped.items():
                    value = re.sub(rf":{number}\b", f":{port}", value)  # noqa: PLW2901
                value = value.replace("://:", "://127.0.0.1:").replace(name, "127.0.0.1")  # noqa: PLW2901
                settings[key] = value.replace("localhost", "127.0.0.1")
            settings["log.dirs"] = str(place / "data")
            file = place / "server.properties"
            file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
            log = place / "broker.log"
            java = [java_executable(), "-Xmx384m", "-cp", classpath(KAFKA)]
            cluster = ("--cluster-id", service["environment"]["CLUSTER_ID"])
            subprocess.run(
                [*java, "kafka.tools.StorageTool", "format", *cluster, "--config", str(file)],
                check=True, capture_output=True, timeout=120,
            )  # fmt: skip
            process = spawn([*java, "kafka.Kafka", str(file)], output=log, folder=place)
            stack.callback(end, process)
            running.append((process, log, mapped["9092"]))
        for process, log, port in running:
            wait_until(partial(_serves, port), 240, detail=log.read_text)
            assert process.poll() is None
        yield ports


def _serves(port: int) -> bool:
    try:
        return bool(
            AdminClient({"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0}).list_topics(timeout=5).brokers
        )
    except KafkaException:
        return False


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_brokers_start_with_the_compose_settings_and_records_are_copied(tmp_path: Path) -> None:
    with brokers_of_compose(tmp_path) as ports:
        for name, outside in (("kafka-a", "19092"), ("kafka-b", "29092")):
            for number in ("9092", outside):  # each listener advertises itself
                port = ports[f"{name}:{number}"]
                found = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}"}).list_topics(timeout=60)
                assert [f"{broker.host}:{broker.port}" for broker in found.brokers.values()] == [f"127.0.0.1:{port}"]
        text = (COMPOSE / "mm2.properties").read_text()
        for name in ("kafka-a", "kafka-b"):
            text = text.replace(f"{name}:9092", f"127.0.0.1:{ports[f'{name}:9092']}")
        (rest,) = free_ports(1)
        file = tmp_path / "mm2.properties"
        file.write_text(text.replace("0.0.0.0:8083", f"127.0.0.1:{rest}"))
        a, b = (_at(ports[f"{name}:9092"]) for name in ("kafka-a", "kafka-b"))
        create(a, "orders", 2)
        producer = producer_of(a)
        for index in range(100):
            producer.produce("orders", value=b"%d" % index)
        assert producer.flush(60) == 0
        process = MirrorProcess(file, tmp_path / "mm2.log", "B", variables={"XDG_STATE_HOME": str(tmp_path)})
        try:
            process.eventually(lambda: has_all(a, "orders", b, "A.orders"), 180)
            process.eventually(lambda: health.main([f"http://127.0.0.1:{rest}/health"]) == 0, 60)
            assert process.stop()[0] == 0
        finally:
            process.clean_up()


def _at(port: int) -> Any:
    """The broker interface that the test helpers need."""
    return type("Broker", (), {"bootstrap": f"127.0.0.1:{port}"})()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_processes_with_the_properties_of_the_pods_are_one_group_behind_tls_and_passwords(tmp_path: Path) -> None:
    authority = certificates.issue("Authority")
    certificates.issue("broker", authority, address="127.0.0.1").pkcs12(tmp_path / "server.p12", authority)
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    brokers = [
        LocalKafka(
            name,
            tmp_path / name,
            listeners={"OPEN": "PLAINTEXT", "BOTH": "SASL_SSL"},
            overrides={
                "listener.name.both.sasl.enabled.mechanisms": "SCRAM-SHA-512",
                "listener.name.both.scram-sha-512.sasl.jaas.config": scram,
                **certificates.key_settings(tmp_path / "server.p12"),
            },
            heap="384m",
        )
        for name in "AB"
    ]
    start_all(brokers, timeout_s=240)
    pods: list[MirrorProcess] = []
    try:
        source, target = brokers
        secrets = _secrets(tmp_path, brokers, authority)
        text = (KUBERNETES / "mm2.properties").read_text().replace("/etc/mm2/secrets", str(secrets))
        for name, broker in (("a", source), ("b", target)):
            text = text.replace(f"kafka-{name}.example.com:9093", broker.address("BOTH"))
        text = text.replace("${env:POD_NAME}.mm2.${env:POD_NAMESPACE}.svc", "${env:POD_NAME}")
        text = text.replace("seconds = 10", "seconds = 1")
        # The sandbox has one broker and no authorizer.
        factors = ("offset.storage", "status.storage", "config.storage", "offset-syncs.topic", "checkpoints.topic")
        text += "".join(f"{name}.replication.factor = 1\n" for name in (*factors, "heartbeats.topic", "ledger.topic"))
        text += "replication.factor = 1\nsync.topic.acls.enabled = false\n"
        create(source, "orders", 4)
        producer = producer_of(source)
        for index in range(1000):
            producer.produce("orders", value=b"%d" % index)
        assert producer.flush(60) == 0
        ports = [free_ports(2) for _ in range(2)]
        for index, (outside, inside) in enumerate(ports):
            file = tmp_path / f"pod-{index}.properties"
            file.write_text(text.replace(":8083", f":{outside}").replace(":8084", f":{inside}").replace(
                "rest.advertised.port = 8083", f"rest.advertised.port = {outside}"
            ))  # fmt: skip
            variables = {"POD_NAME": "127.0.0.1", "POD_NAMESPACE": "mm2"}
            pods.append(MirrorProcess(file, tmp_path / f"pod-{index}.log", "B", variables=variables))
        for process, (_, inside) in zip(pods, ports, strict=True):
            process.eventually(partial(_is_well, [f"http://127.0.0.1:{inside}/health"]), 180)
        pods[0].eventually(lambda: has_all(source, "orders", target, "A.orders"), 180)
        flow = f"http://127.0.0.1:{ports[0][1]}/A/B/connectors"

        def workers() -> set[str]:
            url, headers = f"{flow}/MirrorSourceConnector/status", token_header(ports[0][1])
            status = httpx.get(url, headers=headers, trust_env=False, timeout=60).json()
            return {task["worker_id"] for task in status["tasks"]}

        pods[0].eventually(lambda: len(workers()) == 2, 120)
        # Whichever of the two is the leader: one of these requests is forwarded between the pods.
        for _, inside in ports:
            for verb in ("pause", "resume"):
                done = httpx.put(
                    f"http://127.0.0.1:{inside}/A/B/connectors/MirrorHeartbeatConnector/{verb}",
                    headers=token_header(inside),
                    trust_env=False,
                    timeout=90,
                )
                assert done.status_code == 202, done.text
        with pytest.raises(httpx.HTTPError):
            httpx.get(
                f"https://127.0.0.1:{ports[0][0]}/health", verify=_trusting(secrets, None), trust_env=False, timeout=60
            )
        scraper = certificates.issue("prometheus", authority)
        (secrets / "scraper").mkdir()
        (secrets / "scraper" / "tls.crt").write_text(scraper.certificate_pem)
        (secrets / "scraper" / "tls.key").write_text(scraper.key_pem())
        for name, statuses in (("scraper", [200, 200, 403]), ("rest", [200, 403, 403])):
            with httpx.Client(verify=_trusting(secrets, secrets / name), trust_env=False, timeout=60) as client:
                urls = [f"https://127.0.0.1:{ports[0][0]}/{path}" for path in ("health", "metrics", "overview")]
                assert [client.get(url).status_code for url in urls] == statuses, name
        assert [process.stop()[0] for process in pods] == [0, 0]
        for process in pods:
            assert "5ecret" not in process.log.read_text()
    finally:
        for process in pods:
            process.clean_up()
        stop_all(brokers)


def _is_well(arguments: list[str]) -> bool:
    return health.main(arguments) == 0


def _secrets(folder: Path, brokers: list[LocalKafka], authority: certificates.Issued) -> Path:
    """Create the three Secrets as folders, and their users on the brokers."""
    for broker in brokers:
        wanted = UserScramCredentialUpsertion(
            "mirror", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), f"5ecret-{broker.name}".encode()
        )
        for done in admin_of(broker).alter_user_scram_credentials([wanted]).values():
            done.result(30)
        place = folder / "secrets" / broker.name.lower()
        place.mkdir(parents=True)
        (place / "username").write_text("mirror")
        (place / "password").write_text(f"5ecret-{broker.name}")
        (place / "ca.crt").write_text(authority.certificate_pem)
    rest = folder / "secrets" / "rest"
    rest.mkdir()
    own = certificates.issue("mm2", authority, address="127.0.0.1")
    (rest / "tls.key").write_text(own.key_pem())
    (rest / "tls.crt").write_text(own.certificate_pem)
    (rest / "ca.crt").write_text(authority.certificate_pem)
    return folder / "secrets"


def _trusting(secrets: Path, own: Path | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(secrets / "rest" / "ca.crt"))
    if own is not None:
        context.load_cert_chain(own / "tls.crt", own / "tls.key")
    return context
