"""The chain of a connector's transformations (TransformationChain of Connect)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import structlog

from mm2.config.configdef import AbstractConfig
from mm2.config.definitions.values import split_list
from mm2.connect.api import ConnectError, ConnectRecord, Predicate, Transformation
from mm2.connect.plugins import Plugins
from mm2.connect.plugins.loader import PluginLoader
from mm2.connect.runtime.tolerance import ProcessingContext, ProcessingStage, RetryWithToleranceOperator

log = structlog.get_logger(__name__)

AnyRecord = TypeVar("AnyRecord", bound=ConnectRecord)
_Plugin = TypeVar("_Plugin", Transformation, Predicate)


@dataclass(frozen=True)
class TransformationStage:
    """One transformation with its predicate."""

    alias: str
    transformation: Transformation
    #: For messages and dead letters.
    class_name: str
    predicate: Predicate | None = None
    negate: bool = False

    def apply(self, record: AnyRecord) -> AnyRecord | None:
        """The transformed record; None when it is dropped."""
        if self.predicate is not None and self.predicate.test(record) is self.negate:
            return record
        return self.transformation.apply(record)


class TransformationChain:
    """Applied to every record; ends at the first transformation that drops it."""

    def __init__(self, stages: Sequence[TransformationStage], operator: RetryWithToleranceOperator[Any]) -> None:
        self.stages = tuple(stages)
        self._operator = operator

    def apply(self, context: ProcessingContext[Any], record: AnyRecord) -> AnyRecord | None:
        """The transformed record; None when it is dropped, or has failed and that is tolerated.

        Raises ConnectError when a failure is not tolerated.
        """
        current: AnyRecord | None = record
        for stage in self.stages:
            given = cast("AnyRecord", current)
            current = self._operator.execute(
                context,
                ProcessingStage.TRANSFORMATION,
                stage.class_name,
                lambda s=stage, r=given: s.apply(r),  # type: ignore[misc]
            )
            if current is None:
                return None
        return current

    def close(self) -> None:
        """Close all plugins."""
        closed: set[int] = set()
        for stage in self.stages:
            for plugin in (stage.transformation, stage.predicate):
                if plugin is None or id(plugin) in closed:
                    continue
                closed.add(id(plugin))
                try:
                    plugin.close()
                except Exception:
                    log.exception("transformation or predicate could not be closed", transformation=stage.alias)


def build_stages(
    plugins: Plugins, config: AbstractConfig, props: Mapping[str, str], loader: PluginLoader | None
) -> list[TransformationStage]:
    """The stages in a connector's configuration, configured. Raises ConnectError or ConfigException."""
    predicates: dict[str, Predicate] = {}
    stages: list[TransformationStage] = []
    try:
        for alias in config.list("transforms"):
            prefix = f"transforms.{alias}."
            transformation = _configured(Transformation, plugins, props, prefix, loader)
            named = props.get(f"{prefix}predicate")
            negate = _boolean(props, f"{prefix}negate")
            if named and named not in predicates:
                predicates[named] = _predicate(plugins, config, props, named, f"{prefix}predicate", loader)
            if negate and not named:
                raise ConnectError(f"Configuration {prefix}negate needs {prefix}predicate, which names no predicate")
            stages.append(
                TransformationStage(
                    alias,
                    transformation,
                    plugins.name_of(type(transformation), Transformation),
                    predicates[named] if named else None,
                    negate,
                )
            )
    except Exception:
        for stage in stages:
            stage.transformation.close()
        for predicate in predicates.values():
            predicate.close()
        raise
    return stages


def _predicate(
    plugins: Plugins,
    config: AbstractConfig,
    props: Mapping[str, str],
    alias: str,
    key: str,
    loader: PluginLoader | None,
) -> Predicate:
    if alias not in config.list("predicates"):
        known = ", ".join(split_list(props.get("predicates", ""))) or "none"
        raise ConnectError(f"Configuration {key} names the predicate {alias}; the connector's predicates are: {known}")
    return _configured(Predicate, plugins, props, f"predicates.{alias}.", loader)


def _configured(
    kind: type[_Plugin], plugins: Plugins, props: Mapping[str, str], prefix: str, loader: PluginLoader | None
) -> _Plugin:
    plugin = plugins.new(
        props.get(f"{prefix}type", ""),
        kind,
        key=f"{prefix}type",
        version=props.get(f"{prefix}plugin.version"),
        loader=loader,
    )
    with plugins.swap(plugins.loader_of(plugin)):
        plugin.configure(_behind(props, prefix))
    return plugin


def _behind(props: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {key.removeprefix(prefix): value for key, value in props.items() if key.startswith(prefix)}


def _boolean(props: Mapping[str, str], key: str) -> bool:
    text = props.get(key, "").strip().lower()
    if text not in {"", "true", "false"}:
        raise ConnectError(f"Invalid value {props[key]} for configuration {key}: must be true or false")
    return text == "true"
