"""What clients of REST may configure in a MirrorMaker process."""

from __future__ import annotations

import pytest

from mm2.connect.errors import BadRequest
from mm2.mirror.rest_rules import RestRules

NAME = "MirrorSourceConnector"
OWN = "file:/etc/mm2/offsets.json"


def rules(**written: str) -> RestRules:
    return RestRules(frozenset, lambda: {NAME: written}, {"file": False, "env": True})


def test_a_file_of_start_positions_is_set_in_the_properties_file_only() -> None:
    allowed = rules(**{"start.from": OWN})
    allowed.check(NAME, {"start.from": OWN})
    for value in ("file:/etc/shadow", "  file:/dev/zero"):
        with pytest.raises(BadRequest, match=r"start\.from names a file of the process"):
            allowed.check(NAME, {"start.from": value})
    with pytest.raises(BadRequest, match=r"start\.from names a file of the process"):
        allowed.check("another", {"start.from": OWN})


def test_a_start_time_may_be_set() -> None:
    rules().check(NAME, {"start.from": "2026-11-20T15:00:00Z"})
    rules().check(NAME, {"start.from": ""})


def test_a_provider_without_a_limit_is_used_by_the_properties_file_only() -> None:
    secret = "${file:/etc/mm2/secrets:password}"
    rules(key=secret).check(NAME, {"key": secret, "other": "${env:MM2_PASSWORD}"})
    with pytest.raises(BadRequest, match=r"set config\.providers\.file\.param\.allowed\.paths"):
        rules(key=secret).check(NAME, {"other": secret})


ADDRESS = {"source.cluster.bootstrap.servers": "a:9092", "source.cluster.security.protocol": "SASL_SSL", "topics": "x"}


@pytest.mark.parametrize(
    "patch",
    [
        {"source.admin.bootstrap.servers": "evil:9092"},
        {"source.cluster.bootstrap.servers": "evil:9092"},
        {"source.cluster.security.protocol": None},
        {"producer.override.sasl.login.class": "my.Login"},
        {"source.consumer.ssl.truststore.certificates": "-----BEGIN"},
        {"source.cluster.sasl.oauthbearer.token.endpoint.url": "https://evil"},
        {"value.converter.schema.registry.url": "https://evil"},
        {"spark.master": "spark://evil:7077"},
    ],
)
def test_how_the_clusters_of_the_file_are_reached_is_set_in_the_file_only(patch: dict[str, str | None]) -> None:
    with pytest.raises(BadRequest, match="is a connector of the properties file"):
        rules(**ADDRESS).check(NAME, patch)
    rules(**ADDRESS).check(NAME, {**ADDRESS, "topics": "y"}, is_whole=True)
    with pytest.raises(BadRequest, match=r"source\.cluster\.security\.protocol of MirrorSourceConnector cannot"):
        rules(**ADDRESS).check(NAME, {"source.cluster.bootstrap.servers": "a:9092"}, is_whole=True)


def test_a_connector_that_rest_has_created_has_its_own_addresses() -> None:
    rules(**ADDRESS).check("another", {"source.cluster.bootstrap.servers": "c:9092"})
