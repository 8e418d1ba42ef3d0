"""Texts contain the references of a configuration, never the values that config providers gave for them."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

import pytest

from mm2.codec import encode
from mm2.config.configdef import ConfigDef, ConfigException, Type
from mm2.config.definitions.config_infos import ConfigInfos
from mm2.config.files.provider_values import hide_known
from mm2.config.keys.connector_keys import CONNECTOR_CONFIG
from mm2.config.providers import ConfigTransformer, ConfigTransformerResult

SECRET = "Tr0ub4dor&3, correct horse"
FILE = {
    "config.providers": "file",
    "config.providers.file.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
}


def resolved(folder: Path, values: dict[str, str], **props: str) -> ConfigTransformerResult:
    """``props`` with ``@key`` in place of a reference to a value of ``values``."""
    file = folder / "values.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    written = {
        key.replace("__", "."): value.replace("@", f"${{file:{file}:") + ("}" if "@" in value else "")
        for key, value in props.items()
    }
    return ConfigTransformer.from_props({**FILE, "config.providers.file.param.allowed.paths": str(folder)}).resolve(
        written
    )


@pytest.mark.parametrize(
    "spelling",
    [
        SECRET,
        f"user:{SECRET}@host",
        repr(SECRET),
        json.dumps({"a": SECRET}),
        f"[{SECRET}]",
        "Tr0ub4dor&3",
        "the item correct horse",
        "Tr0ub4dor%263%2C%20correct%20horse",
    ],
)
def test_a_value_is_replaced_by_its_reference_in_every_spelling(tmp_path: Path, spelling: str) -> None:
    result = resolved(tmp_path, {"p": SECRET}, password="@p")
    assert result.data["password"] == SECRET
    shown = result.values.hide(f"before {spelling} after")
    assert f"${{file:{tmp_path}/values.properties:p}}" in shown
    assert "Tr0ub4dor" not in shown
    assert "correct horse" not in shown


def test_a_short_value_is_replaced_only_where_it_is_the_value_of_its_setting(tmp_path: Path) -> None:
    result = resolved(tmp_path, {"n": "1x"}, tasks__max="@n")
    with pytest.raises(ConfigException) as caught:
        CONNECTOR_CONFIG.keys["tasks.max"].value_in(result.data)
    shown = result.values.hide(f"11 tasks of 1x: {caught.value}")
    assert shown == (
        f"11 tasks of 1x: Invalid value ${{file:{tmp_path}/values.properties:n}} for configuration tasks.max: "
        "Not a number of type INT"
    )


def test_the_result_of_a_validation_contains_no_value(tmp_path: Path) -> None:
    definition = ConfigDef().define("topics", Type.LIST).define("n", Type.INT).define("password", Type.PASSWORD)
    result = resolved(tmp_path, {"p": SECRET, "s": "ab"}, topics="x,@p", n="@s", password="@s")
    infos = definition.config_infos("C", result.data).hidden(result.values.written, result.values.hide)
    by_name = {config.value.name: config.value for config in infos.configs if config.value is not None}
    assert by_name["topics"].value == f"x,${{file:{tmp_path}/values.properties:p}}"
    assert by_name["n"].value is None
    assert by_name["password"].value == "[hidden]"
    assert "Invalid value ${file:" in by_name["n"].errors[0]
    assert isinstance(infos, ConfigInfos)
    assert "Tr0ub4dor" not in json.dumps(encode(infos))


def test_an_error_keeps_its_class_and_loses_the_value(tmp_path: Path) -> None:
    result = resolved(tmp_path, {"p": SECRET}, password="@p")

    class Own(Exception):
        def __str__(self) -> str:
            return f"own text with {SECRET}"

    with pytest.raises(ValueError, match=r"cannot log in with \$\{file:"), result.values.hidden_in_errors():
        raise ValueError(f"cannot log in with {SECRET}")
    with pytest.raises(ConfigException, match=r"own text with \$\{file:"), result.values.hidden_in_errors():
        raise Own
    with pytest.raises(KeyError, match="nothing"), result.values.hidden_in_errors():
        raise KeyError("nothing")


def test_logs_of_the_process_hide_values_but_keep_the_names_of_topics_and_brokers(tmp_path: Path) -> None:
    password, topic = secrets.token_hex(6), f"topic{secrets.token_hex(2)}"
    values = {"p": password, "t": f"{topic},other", "b": "broker-7:9092"}
    resolved(tmp_path, values, sasl__jaas__config="x @p", topics="@t", A__bootstrap__servers="@b")
    assert hide_known(f"login with {password} failed") == (
        f"login with ${{file:{tmp_path}/values.properties:p}} failed"
    )
    kept = f"{topic} of broker-7:9092 has no leader"
    assert hide_known(kept) == kept


def test_a_value_with_two_references_is_shown_as_the_last_that_was_read(tmp_path: Path) -> None:
    """The error of a connector would name the file of another one, or one that has been renamed."""
    password = secrets.token_hex(6)
    for name in ("old", "new", "old", "new"):
        (tmp_path / name).mkdir(exist_ok=True)
        resolved(tmp_path / name, {"p": password}, password="@p")
        assert hide_known(f"login with {password} failed") == (
            f"login with ${{file:{tmp_path}/{name}/values.properties:p}} failed"
        )
