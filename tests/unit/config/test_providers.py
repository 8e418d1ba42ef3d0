from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm2.config.configdef import ConfigException
from mm2.config.providers import AllowedPaths, ConfigTransformer, ProviderError, is_reference, references

if TYPE_CHECKING:
    from pathlib import Path

JAVA = "org.apache.kafka.common.config.provider"
FILE = {"config.providers": "file", "config.providers.file.class": f"{JAVA}.FileConfigProvider"}
DIRECTORY = {"config.providers": "dir", "config.providers.dir.class": f"{JAVA}.DirectoryConfigProvider"}
ENVIRONMENT = {"config.providers": "env", "config.providers.env.class": f"{JAVA}.EnvVarConfigProvider"}


def transform(props: dict[str, str], value: str) -> str:
    return ConfigTransformer.from_props(props).transform({"k": value})["k"]


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    folder = tmp_path / "secrets"
    folder.mkdir()
    (folder / "a.properties").write_text("user=bob\npassword=s3cret\nbadge=caf\u00e9\nchain=${file:x:y}\n", "utf-8")
    (folder / "token").write_text("t0ken\n")
    (tmp_path / "outside").write_text("out")
    return folder


@given(st.text(alphabet="${}:a", max_size=30))
def test_references_are_those_of_kafka(text: str) -> None:
    """Kafka's ConfigTransformer uses this expression, which takes minutes for 16 kB of colons."""
    kafka = re.compile(r"\$\{([^}]*?):(([^}]*?):)?([^}]*?)\}")
    assert references(text) == [(found[1], found[3] or "", found[4]) for found in kafka.finditer(text)]
    assert is_reference(text) == (re.fullmatch(r"\$\{[^}]*:[^}]*\}", text) is not None)


def test_a_long_text_takes_no_time() -> None:
    for text in ("${" + ":" * 1_000_000, "${:" * 300_000, "${" * 500_000 + "}"):
        assert references(text) == []


def test_references_are_found_with_and_without_path() -> None:
    assert references("a${file:/x/y:key}b${env:HOME} ${p:/a:b:c} $x {y} ${novalue}") == [
        ("file", "/x/y", "key"),
        ("env", "", "HOME"),
        ("p", "/a", "b:c"),
    ]


def test_file_values_can_be_anywhere_in_a_text(secrets: Path) -> None:
    at = f"{secrets}/a.properties"
    text = f'module required username="${{file:{at}:user}}" password="${{file:{at}:password}}";'
    assert transform(FILE, text) == 'module required username="bob" password="s3cret";'
    assert transform(FILE, f"${{file:{at}:badge}}") == "café"


def test_resolved_values_are_not_resolved_again(secrets: Path) -> None:
    assert transform(FILE, f"${{file:{secrets}/a.properties:chain}}") == "${file:x:y}"


def test_directory_provider_reads_a_key_per_file(secrets: Path) -> None:
    assert transform(DIRECTORY, f"${{dir:{secrets}:token}}") == "t0ken\n"


@pytest.mark.parametrize("key", ["../outside", "..", ".", "absent", "a/../token"])
def test_directory_keys_stay_in_the_directory(secrets: Path, key: str) -> None:
    with pytest.raises(ConfigException, match="there is no such key"):
        transform(DIRECTORY, f"${{dir:{secrets}:{key}}}")


def test_environment_is_limited_by_its_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MM2_PASSWORD", "s3cret")
    monkeypatch.setenv("OTHER", "x")
    props = {**ENVIRONMENT, "config.providers.env.param.allowlist.pattern": "MM2_.*"}
    assert transform(props, "${env:MM2_PASSWORD}") == "s3cret"
    assert transform(ENVIRONMENT, "${env:OTHER}") == "x"
    with pytest.raises(ConfigException, match="Config provider env, key OTHER: there is no such key"):
        transform(props, "${env:OTHER}")
    with pytest.raises(
        ConfigException, match="Config provider env, path p, key OTHER: environment variables have no path"
    ):
        transform(ENVIRONMENT, "${env:p:OTHER}")


@pytest.mark.parametrize("provider", [FILE, DIRECTORY])
def test_allowed_paths_restrict_a_provider(provider: dict[str, str], secrets: Path, tmp_path: Path) -> None:
    name = provider["config.providers"]
    props = {**provider, f"config.providers.{name}.param.allowed.paths": str(secrets)}
    path, key, value = (secrets / "a.properties", "user", "bob") if name == "file" else (secrets, "token", "t0ken\n")
    assert transform(props, f"${{{name}:{path}:{key}}}") == value
    for outside in (tmp_path, secrets / ".." / "outside", f"{secrets}x"):
        with pytest.raises(ConfigException, match=r"not below one of allowed\.paths"):
            transform(props, f"${{{name}:{outside}:{key}}}")


@pytest.mark.parametrize("provider", [FILE, DIRECTORY])
def test_links_are_resolved_before_allowed_paths_are_checked(
    provider: dict[str, str], secrets: Path, tmp_path: Path
) -> None:
    name = provider["config.providers"]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a.properties").write_text("user=eve\n")
    (secrets / "out").symlink_to(tmp_path / "other")
    (secrets / "out.properties").symlink_to(tmp_path / "other" / "a.properties")
    (secrets / "in.properties").symlink_to(secrets / "a.properties")
    (tmp_path / "to-secrets").symlink_to(secrets)
    # The allowed path may be a link itself.
    props = {**provider, f"config.providers.{name}.param.allowed.paths": str(tmp_path / "to-secrets")}
    inside = f"{secrets}/in.properties:user" if name == "file" else f"{secrets}:in.properties"
    assert transform(props, f"${{{name}:{inside}}}")
    outside = (
        (f"{secrets}/out.properties:user", f"{secrets}/out/a.properties:user", f"{secrets}/../other/a.properties:user")
        if name == "file"
        else (f"{secrets}:out.properties", f"{secrets}/out:a.properties")
    )
    for reference in outside:
        with pytest.raises(ConfigException, match=r"not below one of allowed\.paths"):
            transform(props, f"${{{name}:{reference}}}")


def test_a_link_that_is_replaced_after_the_check_has_no_effect(secrets: Path, tmp_path: Path) -> None:
    allowed = AllowedPaths.of({"allowed.paths": str(secrets)})
    admitted = allowed.admit(str(secrets / "a.properties"))
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil" / "a.properties").write_text("user=eve\n")
    secrets.rename(tmp_path / "moved")
    secrets.symlink_to(tmp_path / "evil")
    with pytest.raises(ProviderError, match=r"not below one of allowed\.paths"):
        allowed.read(admitted)


@pytest.mark.timeout(20)
def test_only_regular_files_of_a_limited_size_are_read(secrets: Path) -> None:
    os.mkfifo(secrets / "pipe")
    (secrets / "big").write_bytes(b"k=" + b"v" * 1024 * 1024)
    props = {**FILE, "config.providers.file.param.allowed.paths": f"{secrets},/dev"}
    for name, reason in (("pipe", "is not a regular file"), ("big", "is larger than 1048576 bytes")):
        with pytest.raises(ConfigException, match=reason):
            transform(props, f"${{file:{secrets}/{name}:k}}")
    for path in (secrets, "/dev/zero"):
        with pytest.raises(ConfigException, match=r"is not a regular file|Is a directory"):
            transform(props, f"${{file:{path}:k}}")


def test_a_provider_reports_whether_it_is_restricted(secrets: Path) -> None:
    for props, key, value in (
        (FILE, "file.param.allowed.paths", str(secrets)),
        (DIRECTORY, "dir.param.allowed.paths", str(secrets)),
        (ENVIRONMENT, "env.param.allowlist.pattern", "MM2_.*"),
    ):
        (name,) = ConfigTransformer.from_props(props).restricted
        assert ConfigTransformer.from_props(props).restricted == {name: False}
        assert ConfigTransformer.from_props({**props, f"config.providers.{key}": value}).restricted == {name: True}


def test_allowed_paths_must_be_absolute_and_exist(tmp_path: Path) -> None:
    key = "config.providers.file.param.allowed.paths"
    with pytest.raises(ConfigException, match=f"Invalid value here for configuration {key}: Path is not absolute"):
        transform({**FILE, key: "here"}, "")
    with pytest.raises(ConfigException, match="Path does not exist"):
        transform({**FILE, key: str(tmp_path / "absent")}, "")


def test_unknown_provider_is_left_as_it_is() -> None:
    assert transform(FILE, "${nope:a:b} ${x}") == "${nope:a:b} ${x}"
    assert ConfigTransformer().transform({"k": "${file:a:b}"}) == {"k": "${file:a:b}"}


def test_failure_is_one_sentence_without_the_secret(secrets: Path) -> None:
    at = f"{secrets}/a.properties"
    with pytest.raises(ConfigException) as caught:
        transform(FILE, f"${{file:{at}:password}} ${{file:{at}:pasword}}")
    assert (
        str(caught.value)
        == f"Config provider file, path {at}, key pasword: there is no such key, or it may not be read."
    )
    with pytest.raises(
        ConfigException, match=r"Config provider file, path .*/absent, key k: Cannot read .*: No such file"
    ):
        transform(FILE, f"${{file:{secrets}/absent:k}}")
    with pytest.raises(ConfigException, match="the path is not a directory"):
        transform(DIRECTORY, f"${{dir:{at}:k}}")
    with pytest.raises(ConfigException, match="the reference names no path"):
        transform(FILE, "${file:k}")


def test_a_provider_needs_a_known_class() -> None:
    with pytest.raises(ConfigException, match=r'Missing required configuration "config\.providers\.p\.class"'):
        ConfigTransformer.from_props({"config.providers": "p"})
    with pytest.raises(
        ConfigException, match=r"Invalid value com\.acme\.Vault for configuration config\.providers\.p\.class"
    ):
        ConfigTransformer.from_props({"config.providers": "p", "config.providers.p.class": "com.acme.Vault"})


def test_bad_allowlist_pattern_is_named() -> None:
    with pytest.raises(ConfigException, match=r"Invalid value \( for .*param\.allowlist\.pattern: Invalid regex"):
        ConfigTransformer.from_props({**ENVIRONMENT, "config.providers.env.param.allowlist.pattern": "("})


@given(st.text())
def test_text_without_providers_is_untouched(text: str) -> None:
    assert ConfigTransformer().transform({"k": text}) == {"k": text}
