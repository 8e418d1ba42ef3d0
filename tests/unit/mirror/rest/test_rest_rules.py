"""What clients of REST may configure in a MirrorMaker process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from mm2.connect.errors import BadRequest
from mm2.mirror.rest.rest_rules import RestRules

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


@dataclass(frozen=True)
class Secrets:
    """A connector of the file with a password from a file of secrets, and the rules."""

    file: Path
    written: dict[str, str]
    rules: RestRules

    @classmethod
    def of(cls, folder: Path) -> Secrets:
        file = folder / "secrets"
        file.write_text("jaas=x\nother=y\n")
        written = {
            **ADDRESS,
            "target.cluster.bootstrap.servers": "b:9092",
            "source.cluster.sasl.jaas.config": f"${{file:{file}:jaas}}",
        }
        values = [*written.values(), "${env:OF_ANOTHER_FLOW}"]
        allowed = {"file": True, "dir": True, "env": True}
        return cls(file, written, RestRules(frozenset, lambda: {NAME: written}, allowed, lambda: values))


@pytest.fixture
def secrets(tmp_path: Path) -> Secrets:
    return Secrets.of(tmp_path)


EVIL = {"source.cluster.bootstrap.servers": "evil:9092"}
REFUSED = "refers to a value that the properties file uses"


def test_a_reference_of_the_file_may_be_used_with_its_address(secrets: Secrets) -> None:
    new = {**secrets.written, "topics": "y", "target.cluster.bootstrap.servers": "c:9092"}
    secrets.rules.check("another", new, is_whole=True)
    secrets.rules.check("another", {"topics": "z"}, stored=new)
    secrets.rules.check(NAME, {"topics": "z"}, stored=secrets.written)
    # Another value is the client's own.
    key = "source.cluster.sasl.jaas.config"
    secrets.rules.check("another", {**EVIL, key: f"${{file:{secrets.file}:other}}"}, is_whole=True)


def test_a_reference_of_the_file_goes_to_no_other_address(secrets: Secrets) -> None:
    key, reference = "source.cluster.sasl.jaas.config", secrets.written["source.cluster.sasl.jaas.config"]
    for change in (
        EVIL,
        {"source.admin.bootstrap.servers": "evil:9092"},
        {"source.cluster.security.protocol": "SASL_PLAINTEXT"},
        {"transforms.add.static.value": reference},
        {"target.cluster.sasl.jaas.config": reference},
        {key: f"x{reference}"},
    ):
        with pytest.raises(BadRequest, match=REFUSED):
            secrets.rules.check("another", {**secrets.written, **change}, is_whole=True)
    with pytest.raises(BadRequest, match=REFUSED):
        secrets.rules.check("another", {key: reference}, stored=EVIL)
    with pytest.raises(BadRequest, match=REFUSED):
        secrets.rules.check("another", EVIL, stored=secrets.written)
    with pytest.raises(BadRequest, match=REFUSED):
        secrets.rules.check(NAME, {"transforms.add.static.value": reference}, stored=secrets.written)
    with pytest.raises(BadRequest, match=REFUSED):
        secrets.rules.check("another", {"source.cluster.sasl.jaas.config": "${env:OF_ANOTHER_FLOW}"}, is_whole=True)


def test_another_spelling_of_a_reference_is_the_same_value(secrets: Secrets) -> None:
    link, hard = secrets.file.with_name("link"), secrets.file.with_name("hard")
    link.symlink_to(secrets.file)
    hard.hardlink_to(secrets.file)
    folder = secrets.file.parent
    for reference in (
        f"${{file:{folder}//secrets:jaas}}",
        f"${{file:{folder}/x/../secrets:jaas}}",
        f"${{file:{link}:jaas}}",
        f"${{file:{hard}:jaas}}",
        f"${{dir:{folder}:secrets}}",
        f"${{dir:{folder}:link}}",
    ):
        with pytest.raises(BadRequest, match=REFUSED):
            secrets.rules.check("another", {**EVIL, "source.cluster.sasl.jaas.config": reference}, is_whole=True)
