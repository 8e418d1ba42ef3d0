"""Settings that change copied records: transformations, and converters other than ByteArrayConverter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mm2.config.configdef import ConfigException
from mm2.config.values import split_list

CONVERTER_KEYS: Final = ("key.converter", "value.converter", "header.converter")
TRANSFORMS_KEY: Final = "transforms"
#: All names of the converter that passes bytes on.
BYTE_ARRAY_CONVERTERS: Final = frozenset(
    {
        "org.apache.kafka.connect.converters.ByteArrayConverter",
        "ByteArrayConverter",
        "ByteArray",
        "mm2.connect.converters.ByteArrayConverter",
    }
)


def check_unchanged(props: Mapping[str, str], worker: Mapping[str, str] | None = None) -> None:
    """Raise ConfigException for a setting that would change records: they are copied as they are.

    ``worker`` has the converters of connectors that name none.
    """
    transforms = props.get(TRANSFORMS_KEY, "")
    if split_list(transforms):
        raise ConfigException(
            TRANSFORMS_KEY,
            transforms,
            "transformations are not applied to copied records; they would be copied unchanged",
        )
    for key in CONVERTER_KEYS:
        converter = {**(worker or {}), **props}.get(key)
        if converter is not None and converter.strip() not in BYTE_ARRAY_CONVERTERS:
            raise ConfigException(
                key,
                converter,
                "copied records are bytes; only ByteArrayConverter is possible for MirrorSourceConnector",
            )
