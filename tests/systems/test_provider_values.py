"""Values of config providers are in no response, status, log or metric of a worker; Java returns them."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from mm2.sandbox.kafka import LocalKafka
from tests.integration.copy_flow import create, read_all
from tests.integration.mirror_process import partitions_of
from tests.support.waiting import wait_until
from tests.systems.workers import DistributedWorker, distributed_props

SECRET = f"Tr0ub4dor-{secrets.token_hex(8)}"
SHORT = "q7z"


@pytest.fixture(scope="module")
def vault(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("vault") / "values.properties"
    file.write_text(f"secret={SECRET}\nshort={SHORT}\n")
    return file


@pytest.fixture(scope="module")
def worker(
    broker: LocalKafka, group: str, vault: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DistributedWorker]:
    props = distributed_props(broker.bootstrap, group) | {
        "config.providers": "file",
        "config.providers.file.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
        "config.providers.file.param.allowed.paths": str(vault.parent),
    }
    with DistributedWorker(tmp_path_factory.mktemp("worker"), props) as worker:
        yield worker


def contains_a_value(text: str) -> bool:
    return SECRET in text or f"value {SHORT} " in text


def ask(worker: DistributedWorker, method: str, path: str, **how: object) -> httpx.Response:
    answer = worker.rest.http.request(method, path, **how)  # type: ignore[arg-type]
    assert not contains_a_value(answer.text), f"{method} {path}: {answer.text}"
    return answer


def test_a_validation_shows_references(worker: DistributedWorker, vault: Path) -> None:
    secret, short = f"${{file:{vault}:secret}}", f"${{file:{vault}:short}}"
    config = {
        "connector.class": "FileStreamSink",
        "name": "v",
        "topics": secret,
        "file": f"/nowhere/{secret}",
        "tasks.max": short,
        "errors.tolerance": secret,
        "transforms": "t",
        "transforms.t.type": "org.apache.kafka.connect.transforms.RegexRouter",
        "transforms.t.regex": f"({secret}",
        "transforms.t.replacement": "x",
        "consumer.override.max.poll.records": short,
        "key.converter": secret,
    }
    answer = ask(worker, "PUT", "/connector-plugins/FileStreamSink/config/validate", json=config)
    values = {one["value"]["name"]: one["value"] for one in answer.json()["configs"]}
    assert answer.status_code == 200
    assert (values["topics"]["value"], values["file"]["value"]) == (secret, f"/nowhere/{secret}")
    assert values["tasks.max"]["errors"] == [
        f"Invalid value {short} for configuration tasks.max: Not a number of type INT",
        "Invalid value null for configuration tasks.max: Value must be non-null",
    ]
    for key in ("errors.tolerance", "transforms.t.regex", "consumer.override.max.poll.records", "key.converter"):
        assert values[key]["errors"], key
    refused = ask(worker, "POST", "/connectors", json={"name": "v", "config": config})
    assert (refused.status_code, short in refused.text) == (400, True)
    unknown = config | {"connector.class": secret}
    ask(worker, "PUT", f"/connector-plugins/{secret}/config/validate", json=unknown)
    ask(worker, "POST", "/connectors", json={"name": "v", "config": unknown})


@pytest.mark.timeout(180)
def test_a_trace_a_status_a_log_and_a_metric_show_references(
    broker: LocalKafka, worker: DistributedWorker, group: str, unique: str, vault: Path
) -> None:
    create(broker, unique)
    reference = f"${{file:{vault}:secret}}"
    config = {"connector.class": "FileStreamSink", "topics": unique, "file": f"/nowhere/{reference}/sink.txt"}
    worker.rest.create(unique, config)
    wait_until(lambda: worker.rest.states(unique) == ["RUNNING", "FAILED"], 60, detail=worker.tail)
    trace = ask(worker, "GET", f"/connectors/{unique}/status").json()["tasks"][0]["trace"]
    assert f"/nowhere/{reference}/sink.txt" in trace
    ask(worker, "POST", f"/connectors/{unique}/restart?includeTasks=true")
    # A connector whose client settings are wrong.
    broken = config | {"consumer.override.security.protocol": reference, "name": f"{unique}-b"}
    ask(worker, "PUT", f"/connectors/{unique}-b/config", json=broken)
    for path in ("/metrics", f"/connectors/{unique}/offsets", "/connectors?expand=info&expand=status"):
        ask(worker, "GET", path)
    log = worker.log.read_text()
    assert "task failed and will not recover" in log
    assert not contains_a_value(log)
    for topic in (f"{group}-status", f"{group}-configs"):
        rows = read_all(broker, topic, range(partitions_of(broker, topic)))
        written = b"\n".join((row.value or b"") for found in rows.values() for row in found)
        assert reference.encode() in written
        assert SECRET.encode() not in written
