"""Formats of the connector files of connect-standalone."""

from __future__ import annotations

from pathlib import Path

import pytest

from mm2.cli.connect_standalone import read_connector_file
from mm2.config.configdef import ConfigException
from mm2.connect.rest.request_values import CreateConnectorRequest
from mm2.connect.stores.config_state import TargetState


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name=c\nconnector.class = X\n", CreateConnectorRequest("c", {"name": "c", "connector.class": "X"})),
        (
            '{"name":"c","tasks.max":2,"b":true}',
            CreateConnectorRequest("c", {"name": "c", "tasks.max": "2", "b": "true"}),
        ),
        (
            '{"name":"c","config":{"a":1},"initial_state":"stopped","more":[1]}',
            CreateConnectorRequest("c", {"a": "1", "name": "c"}, TargetState.STOPPED),
        ),
        ('{"name":"c","config":{"name":"c"}}', CreateConnectorRequest("c", {"name": "c"})),
        ("{name=c\nname=d", CreateConnectorRequest("d", {"{name": "c", "name": "d"})),
    ],
)
def test_json_map_json_request_and_properties(tmp_path: Path, text: str, expected: CreateConnectorRequest) -> None:
    file = tmp_path / "connector"
    file.write_text(text)
    assert read_connector_file(file) == expected


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("connector.class=X", "'name'"),
        ('{"connector.class":"X"}', "'name'"),
        ('{"name":"c","config":{"name":"d"}}', "doesn't match"),
        ('{"name":"c","config":{},"initial_state":"BOGUS"}', "initial_state"),
        ('{"name":"c","config":{"a":[]}}', "config"),
        ('{"config":[]}', "config"),
    ],
)
def test_other_files_are_rejected_with_file_and_field(tmp_path: Path, text: str, output: str) -> None:
    file = tmp_path / "connector.json"
    file.write_text(text)
    with pytest.raises(ConfigException, match=output) as raised:
        read_connector_file(file)
    assert str(file) in str(raised.value)
    with pytest.raises(ConfigException, match="none"):
        read_connector_file(tmp_path / "none")
