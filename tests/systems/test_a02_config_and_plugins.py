"""Settings (A2, A3), plugins of folders (A4), aliases (A5), old keys (A45), loaders of connectors (A49), and processes of plugins."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from mm2.config.keys.connector_keys import SOURCE_CONNECTOR_CONFIG
from mm2.sandbox.kafka import LocalKafka
from tests.integration.connect_reading import create_topic, read_all
from tests.support.waiting import wait_until
from tests.systems.workers import FILE_CONNECTORS, STRING_CONVERTER, DistributedWorker, distributed_props
from tests.unit.connect.plugin_folders import CONVERTER, dependency, entry_points, write_archive, write_files
from tests.unit.connect.test_plugins_document import printed_files

FILE_SOURCE = "org.apache.kafka.connect.file.FileStreamSourceConnector"
HIDDEN = "from mm2.connect.converters import StringConverter\nclass Secret(StringConverter): ...\n"
GZIP = 1


def acme(version: str) -> dict[str, str]:
    """A converter that needs this version of the package dep and writes the version to the topic."""
    manifest = entry_points("acme.convert:AcmeConverter")
    return {
        "acme/__init__.py": "",
        "acme/convert.py": CONVERTER.format(name="AcmeConverter", version=version),
        **dependency(version),
        **manifest,
    }


@pytest.fixture(scope="module")
def worker(broker: LocalKafka, group: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DistributedWorker]:
    folder = tmp_path_factory.mktemp("worker")
    plugins = folder / "plugins"
    write_files(plugins / "old", acme("1.0"))
    write_archive(plugins / "new.whl", acme("2.0"))
    write_files(plugins / "broken", entry_points("no.such:Plugin"))
    poems = {name.partition("/")[2]: text for name, text in printed_files().items() if name.startswith("poems/")}
    write_files(plugins / "poems", {**poems, "acme_poems/__init__.py": "", "acme_poems/hidden.py": HIDDEN})
    props = {
        "plugin.path": f"{plugins},{folder / 'absent'},{FILE_CONNECTORS}",
        "plugin.discovery": "service_load",
        "producer.compression.type": "gzip",
    }
    with DistributedWorker(folder, distributed_props(broker.bootstrap, group) | props) as worker:
        yield worker


@pytest.fixture
def topic(broker: LocalKafka, unique: str) -> str:
    create_topic(broker.bootstrap, unique)
    return unique


@pytest.fixture
def file_source(topic: str, folder: Path) -> dict[str, str]:
    """A source connector that reads the two lines of a file."""
    (folder / "lines").write_text("one line\nanother line\n")
    return {"connector.class": FILE_SOURCE, "topic": topic, "file": str(folder / "lines")}


def values(broker: LocalKafka, topic: str, count: int) -> list[bytes]:
    wait_until(lambda: len(read_all(broker.bootstrap, topic)) >= count, 60)
    return [message.value() for message in read_all(broker.bootstrap, topic)]


def test_a02_validation_returns_every_definition_and_every_value(worker: DistributedWorker) -> None:
    config = {"connector.class": "FileStreamSource", "name": "v", "tasks.max": "many", "errors.tolerance": "some"}
    infos = worker.rest.ask("PUT", "/connector-plugins/FileStreamSource/config/validate", json=config)
    found = {info["value"]["name"]: info for info in infos["configs"]}
    assert set(SOURCE_CONNECTOR_CONFIG.names) | {"file", "topic", "batch.size"} <= set(found)
    assert found["tasks.max"]["value"] == {
        "name": "tasks.max",
        "value": None,
        "recommended_values": [],
        "errors": [
            "Invalid value many for configuration tasks.max: Not a number of type INT",
            "Invalid value null for configuration tasks.max: Value must be non-null",
        ],
        "visible": True,
    }
    assert found["errors.tolerance"]["value"]["errors"] == [
        "Invalid value some for configuration errors.tolerance: String must be one of: none, all"
    ]
    definition = found["tasks.max"]["definition"]
    assert (definition["type"], definition["default_value"], definition["group"]) == ("INT", "1", "Common")
    assert (definition["order_in_group"], definition["width"], definition["display_name"]) == (4, "SHORT", "Tasks max")
    assert infos["error_count"] == sum(len(info["value"]["errors"]) for info in infos["configs"])


def test_an_override_that_is_refused_is_an_error_and_one_without_effect_is_logged(
    worker: DistributedWorker, broker: LocalKafka, topic: str, file_source: dict[str, str]
) -> None:
    refused = {**file_source, "name": topic, "producer.override.partitioner.class": "com.example.Partitioner"}
    infos = worker.rest.ask("PUT", "/connector-plugins/FileStreamSource/config/validate", json=refused)
    errors = [error for info in infos["configs"] for error in info["value"]["errors"]]
    assert len(errors) == 1
    assert "com.example.Partitioner for configuration producer.override.partitioner.class: Java classes" in errors[0]
    worker.rest.create(topic, {**file_source, "producer.override.linger.ms": "7"})
    assert values(broker, topic, 2)
    assert "Configuration producer.override.linger.ms has no effect: " in worker.tail(1000)
    worker.rest.delete(topic)


def test_a03_the_worker_s_producer_settings_reach_the_topic(
    worker: DistributedWorker, broker: LocalKafka, topic: str, file_source: dict[str, str]
) -> None:
    worker.rest.create(topic, file_source)
    assert values(broker, topic, 2) == [b"one line", b"another line"]
    segment = next((broker.folder / "data" / f"{topic}-0").glob("*.log")).read_bytes()
    # Attributes of a batch: two bytes after base offset, length, leader epoch, magic and checksum.
    assert int.from_bytes(segment[21:23], "big") & 0b111 == GZIP
    worker.rest.delete(topic)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_a04_two_folders_with_different_versions_of_a_dependency_both_work(
    worker: DistributedWorker, broker: LocalKafka, topic: str, file_source: dict[str, str], version: str
) -> None:
    listed = worker.rest.get("/connector-plugins?connectorsOnly=false")
    mine = [plugin for plugin in listed if plugin["class"] == "acme.convert.AcmeConverter"]
    assert mine == [{"class": "acme.convert.AcmeConverter", "type": "converter", "version": v} for v in ("1.0", "2.0")]
    chosen = {"value.converter": "Acme", "value.converter.plugin.version": version}
    worker.rest.create(topic, {**file_source, **chosen})
    assert values(broker, topic, 2) == [f"dep {version}".encode()] * 2
    worker.rest.delete(topic)


def test_a04_the_list_has_types_and_versions(worker: DistributedWorker) -> None:
    connectors = worker.rest.get("/connector-plugins")
    assert {"class": "acme_poems.source.PoemSourceConnector", "type": "source", "version": "1.0.0"} in connectors
    assert {plugin["type"] for plugin in connectors} == {"source", "sink"}
    kinds = {plugin["type"] for plugin in worker.rest.get("/connector-plugins?connectorsOnly=false")}
    assert kinds == {"sink", "source", "transformation", "predicate", "converter", "header_converter"}
    text = worker.log.read_text()
    assert "no.such:Plugin" in text
    assert "absent" in text


def test_a05_an_alias_resolves_to_its_class(
    worker: DistributedWorker, broker: LocalKafka, topic: str, file_source: dict[str, str]
) -> None:
    for alias in ("FileStreamSource", "FileStreamSourceConnector"):
        worker.rest.create(f"{topic}-{alias}", {**file_source, "connector.class": alias})
    assert sorted(values(broker, topic, 4)) == sorted([b"one line", b"another line"] * 2)
    for alias in ("FileStreamSource", "FileStreamSourceConnector"):
        worker.rest.delete(f"{topic}-{alias}")


@pytest.mark.timeout(120)
def test_a45_host_and_port_of_old_files_are_accepted_with_a_warning(
    broker: LocalKafka, unique: str, folder: Path
) -> None:
    worker = DistributedWorker(folder, distributed_props(broker.bootstrap, unique))
    del worker.props["listeners"]
    worker.props |= {"rest.host.name": "127.0.0.1", "rest.port": str(worker.port)}
    with worker:
        assert httpx.get(f"http://127.0.0.1:{worker.port}/", trust_env=False, timeout=60).status_code == 200
        assert f"listeners=http://127.0.0.1:{worker.port}" in worker.log.read_text()


def poem(topic: str, **more: str) -> dict[str, str]:
    printed: dict[str, Any] = json.loads(printed_files()["poem.json"])
    return {**printed, "name": topic, "topic": topic, **{key.replace("__", "."): value for key, value in more.items()}}


def test_a49_a_converter_of_the_connector_s_folder_works_for_that_connector_only(
    worker: DistributedWorker, broker: LocalKafka, topic: str, file_source: dict[str, str]
) -> None:
    hidden = "acme_poems.hidden.Secret"
    worker.rest.create(topic, poem(topic, value__converter=hidden))
    assert values(broker, topic, 2) == [b"A ROSE?", b"IS A ROSE?"]
    refused = worker.rest.http.post(
        "/connectors", json={"name": f"{topic}-other", "config": {**file_source, "value.converter": hidden}}
    )
    if refused.status_code == 201:
        wait_until(lambda: "FAILED" in worker.rest.states(f"{topic}-other"), 30)
        trace = str(worker.rest.status(f"{topic}-other"))
        worker.rest.delete(f"{topic}-other")
    else:
        trace = refused.text
    assert hidden in trace
    worker.rest.delete(topic)


def test_the_documented_example_writes_the_documented_records(
    worker: DistributedWorker, broker: LocalKafka, topic: str
) -> None:
    worker.rest.create(topic, poem(topic))
    assert values(broker, topic, 2) == [b"?ESOR A", b"?ESOR A SI"]
    worker.rest.delete(topic)


def plugin_processes(worker: DistributedWorker) -> list[psutil.Process]:
    found = []
    for child in psutil.Process(worker.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            if "mm2.connect.plugins.process.child" in child.cmdline():
                found.append(child)
    return found


@pytest.mark.timeout(180)
def test_a_plugin_process_that_dies_fails_only_its_connector(
    worker: DistributedWorker, broker: LocalKafka, topic: str, file_source: dict[str, str]
) -> None:
    other = f"{topic}-other"
    worker.rest.create(other, {**file_source, "topic": f"{topic}-files", "value.converter": STRING_CONVERTER})
    worker.rest.create(topic, poem(topic, plugin__isolation="process"))
    worker.rest.await_running(topic, 1)
    worker.rest.await_running(other, 1)
    assert values(broker, topic, 2) == [b"?ESOR A", b"?ESOR A SI"]
    processes = plugin_processes(worker)
    assert len(processes) == 2, processes
    for process in processes:
        process.kill()
    wait_until(
        lambda: worker.rest.states(topic) == ["FAILED", "FAILED"], 30, detail=lambda: str(worker.rest.status(topic))
    )
    trace = worker.rest.status(topic)["tasks"][0]["trace"]
    assert "of plugin acme_poems.source.PoemSourceTask was killed by signal 9" in trace
    assert worker.rest.states(other) == ["RUNNING", "RUNNING"]
    worker.rest.ask("POST", f"/connectors/{topic}/restart?includeTasks=true", expect=[200, 202, 204])
    worker.rest.await_running(topic, 1)
    worker.rest.delete(topic)
    worker.rest.delete(other)
    wait_until(lambda: not plugin_processes(worker), 30)
