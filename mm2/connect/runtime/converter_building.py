"""Builds the converters of a task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from mm2.connect.api import Converter, HeaderConverter
from mm2.connect.plugins import PluginLoader, Plugins
from mm2.connect.runtime.tasks.base import Converters

C = TypeVar("C", Converter, HeaderConverter)


def build_converters(
    plugins: Plugins,
    props: Mapping[str, str],
    loader: PluginLoader | None,
    worker_props: Mapping[str, str],
    worker_class: Callable[[str], str],
) -> Converters:
    """The connector's converters where ``props`` name them, otherwise the worker's, each with the settings beside its name.

    ``worker_class`` returns the worker's class for a key. Raises ConnectError or ConfigException.
    """

    def build(key: str, kind: type[C]) -> C:
        own = props.get(key) is not None
        given = props if own else worker_props
        converter = plugins.new(
            given.get(key) or worker_class(key),
            kind,
            key=key,
            version=given.get(f"{key}.plugin.version"),
            loader=loader if own else None,
        )
        prefix = f"{key}."
        settings = {name.removeprefix(prefix): value for name, value in given.items() if name.startswith(prefix)}
        with plugins.swap(plugins.loader_of(converter)):
            if isinstance(converter, Converter) and kind is Converter:
                converter.configure(settings, is_key=key == "key.converter")
            elif isinstance(converter, HeaderConverter):
                converter.configure({**settings, "converter.type": "header"})
        return converter

    key, value = build("key.converter", Converter), build("value.converter", Converter)
    header = build("header.converter", HeaderConverter)
    return Converters(
        key,
        value,
        header,
        plugins.name_of(type(key), Converter),
        plugins.name_of(type(value), Converter),
        plugins.name_of(type(header), HeaderConverter),
    )
