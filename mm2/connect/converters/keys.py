"""The key that all configured converters share (org.apache.kafka.connect.storage.ConverterConfig)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mm2.config.configdef import ConfigDef, Importance, Type, one_of

TYPE: Final = "converter.type"


def converter_config() -> ConfigDef:
    """A definition that begins with ``converter.type``, which the runtime sets."""
    return ConfigDef().define(
        TYPE,
        Type.STRING,
        validator=one_of("key", "value", "header"),
        importance=Importance.LOW,
        doc="What the converter is used for; set by the worker.",
    )


def with_type(props: Mapping[str, Any], *, is_key: bool) -> dict[str, Any]:
    """A converter's settings with ``converter.type``; a header converter's settings already have it."""
    return {TYPE: "key" if is_key else "value", **props}
