"""The worked example of docs/how-to/plugins.md, run as it is printed there."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mm2.connect.api import Connector, Converter, SourceTaskContext, Transformation, WorkerView
from mm2.connect.plugins import Plugins
from tests.unit.connect.plugin_folders import write_files

DOCUMENT = Path(__file__).parents[3] / "docs" / "how-to" / "plugins.md"


def printed_files() -> dict[str, str]:
    """The files of the document: a path in backquotes on a separate line, and the following block."""
    text = DOCUMENT.read_text(encoding="utf-8")
    return dict(re.findall(r"^`([^`\n]+)`\n\n```[a-z]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    files = printed_files()
    write_files(tmp_path, {**files, "poems/acme_poems/__init__.py": ""})
    return files


def test_the_example_is_complete(files: dict[str, str]) -> None:
    assert set(files) == {
        "poems/acme_poems/source.py",
        "poems/acme_poems/transform.py",
        "poems/acme_poems/convert.py",
        "poems/shout.py",
        "poems/mm2-plugins.txt",
        "poem.json",
    }


@pytest.mark.parametrize("isolation", ["loader", "process"])
def test_the_example_does_what_the_document_describes(files: dict[str, str], tmp_path: Path, isolation: str) -> None:
    props = {**json.loads(files["poem.json"]), "plugin.isolation": isolation}
    plugins = Plugins({"plugin.path": str(tmp_path), "plugin.discovery": "service_load"})
    assert {"class": "acme_poems.source.PoemSourceConnector", "type": "source", "version": "1.0.0"} in plugins.listing()
    connector = plugins.new_connector(props)
    loader = plugins.connector_loader(props)
    assert connector.validate(props) == []
    connector.initialize(SimpleNamespace(raise_error=lambda error: None))
    connector.start(props)
    (task_props,) = connector.task_configs(3)
    task: Any = plugins.new_task(plugins.name_of(connector.task_class(), Connector), props)
    shout: Any = plugins.new("Shout", Transformation, key="transforms.loud.type", loader=loader)
    shout.configure({"mark": "?"})
    converter = plugins.new(props["value.converter"], Converter, key="value.converter", loader=loader)
    written: list[bytes | None] = []

    def life() -> None:
        reader = SimpleNamespace(offsets=lambda partitions: [None for _ in partitions])
        worker = WorkerView({}, "g", "o", {}, exactly_once=False)
        task.initialize(SourceTaskContext("poem", 0, task_props, reader, worker))
        task.start(task_props)
        while records := task.poll():
            for record in records:
                changed = shout.apply(record)
                written.append(converter.from_connect_data(changed.topic, [], None, changed.value))
        task.stop()

    thread = threading.Thread(target=life)
    thread.start()
    thread.join(60)
    connector.stop()
    assert written == [b"?ESOR A", b"?ESOR A SI"]
