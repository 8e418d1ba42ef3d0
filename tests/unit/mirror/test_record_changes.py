"""Settings that change copied records are refused."""

from __future__ import annotations

import pytest

from mm2.config.configdef import ConfigException
from mm2.config.mirrormaker import MirrorMakerConfig
from mm2.mirror.maker import connect_plugins
from mm2.mirror.plans import plan_flows
from mm2.mirror.source_connector import MirrorSourceConnector

FILE = {
    "clusters": "A, B",
    "A.bootstrap.servers": "127.0.0.1:1",
    "B.bootstrap.servers": "127.0.0.1:2",
    "A->B.enabled": "true",
}
JSON = "org.apache.kafka.connect.json.JsonConverter"
BYTES = "org.apache.kafka.connect.converters.ByteArrayConverter"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"A->B.transforms": "drop", "A->B.transforms.drop.type": "Filter"}, "transforms"),
        ({"transforms": "drop"}, "transforms"),
        ({"A->B.key.converter": JSON}, "key.converter"),
        ({"value.converter": JSON}, "value.converter"),
        ({"B.header.converter": "SimpleHeaderConverter"}, "header.converter"),
    ],
)
def test_what_would_change_records_is_refused(given: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigException, match=rf"Flow A->B: .*{named}"):
        plan_flows(MirrorMakerConfig(FILE | given), ["B"], connect_plugins())


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"A->B.transforms": "", "A->B.predicates": "p"},
        {"A->B.key.converter": BYTES, "value.converter": "ByteArrayConverter", "B.header.converter": "ByteArray"},
        # The flow B->A emits heartbeats only, which Connect's runtime transforms.
        {"B->A.transforms": "drop", "B->A.transforms.drop.type": "Filter", "B->A.value.converter": JSON},
    ],
)
def test_what_changes_no_copied_record_is_accepted(given: dict[str, str]) -> None:
    assert plan_flows(MirrorMakerConfig(FILE | given), None, connect_plugins())


def test_rest_reports_it_for_the_key() -> None:
    errors = MirrorSourceConnector().validate({"source.cluster.alias": "A", "transforms": "drop"})
    assert "not applied" in dict(errors)["transforms"]
