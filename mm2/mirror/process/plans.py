"""Derives the configuration of each flow of a process from the properties file, validated without connecting."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from mm2.config.configdef import AbstractConfig, ConfigException
from mm2.config.keys.mirror_keys import CONNECTOR_CLASSES, CONNECTOR_NAMES, SOURCE_CONNECTOR
from mm2.config.keys.worker_keys import storage_topics
from mm2.config.mirrormaker import MirrorMakerConfig, SourceAndTarget
from mm2.config.providers import ConfigTransformer
from mm2.connect.api import ConnectError, Connector, Converter, HeaderConverter
from mm2.connect.plugins import Plugins
from mm2.mirror.common.connector import MirrorConnector
from mm2.mirror.preserved.preserved_offsets import PreservedOffsets
from mm2.mirror.preserved.shared_topics import FlowTopics, check_shared_topics, configured_names
from mm2.mirror.source.record_changes import CONVERTER_KEYS, check_changes
from mm2.mirror.source_connector import topic_selection


@dataclass(frozen=True)
class FlowPlan:
    """Settings of the flow's worker and, by name, of its connectors: as written, and with references resolved.

    Resolved settings contain secrets.
    """

    worker: Mapping[str, str] = field(repr=False)
    connectors: Mapping[str, Mapping[str, str]] = field(repr=False)
    resolved: Mapping[str, Mapping[str, str]] = field(repr=False)

    @property
    def replicates(self) -> bool:
        """Whether the flow copies topics; a flow that does not still emits heartbeats."""
        return self.resolved[_name(SOURCE_CONNECTOR)]["enabled"].strip().lower() == "true"


def absent_connectors(existing: Iterable[str]) -> str:
    """Which connectors of a flow do not exist, and how to create them again: a message without a full stop, "" if none is absent."""
    absent = sorted(set(CONNECTOR_NAMES) - set(existing))
    if not absent:
        return ""
    does = "does not exist" if len(absent) == 1 else "do not exist"
    return f"{' and '.join(absent)} {does}: restart the processes of the flow, whose leader creates the connectors of the file"


@dataclass(frozen=True)
class Changes:
    """The changes between two sets of plans.

    ``restarted`` are flows whose worker settings differ. Of the other flows, by connector name: ``reconfigured`` are
    those whose written settings differ, ``changed_values`` those with the same written settings but different resolved
    values.
    """

    added: tuple[SourceAndTarget, ...]
    removed: tuple[SourceAndTarget, ...]
    restarted: tuple[SourceAndTarget, ...]
    reconfigured: Mapping[SourceAndTarget, tuple[str, ...]]
    changed_values: Mapping[SourceAndTarget, tuple[str, ...]]

    @classmethod
    def between(cls, old: Mapping[SourceAndTarget, FlowPlan], new: Mapping[SourceAndTarget, FlowPlan]) -> Self:
        """The changes from ``old`` to ``new``."""
        both = [pair for pair in new if pair in old]
        restarted = tuple(pair for pair in both if old[pair].worker != new[pair].worker)
        reconfigured, changed_values = {}, {}
        for pair in both:
            if pair not in restarted:
                before, after = old[pair], new[pair]
                written = tuple(name for name, props in after.connectors.items() if before.connectors[name] != props)
                resolved = {name for name, props in after.resolved.items() if before.resolved[name] != props}
                reconfigured[pair] = written
                changed_values[pair] = tuple(sorted(resolved - set(written)))
        added = tuple(pair for pair in new if pair not in old)
        removed = tuple(pair for pair in old if pair not in new)
        return cls(added, removed, restarted, reconfigured, changed_values)

    def to_json(self) -> dict[str, Any]:
        """The changes for the log, with flows as ``A->B``."""
        touched = {
            str(pair): [*names, *self.changed_values[pair]]
            for pair, names in self.reconfigured.items()
            if names or self.changed_values[pair]
        }
        return {
            "started": [str(pair) for pair in self.added],
            "stopped": [str(pair) for pair in self.removed],
            "restarted": [str(pair) for pair in self.restarted],
            "reconfigured": touched,
        }


def plan_flows(
    config: MirrorMakerConfig, targets: Sequence[str] | None, plugins: Plugins
) -> dict[SourceAndTarget, FlowPlan]:
    """The flows into ``targets`` (None: all), validated. Raises ConfigException."""
    pairs = chosen_pairs(config, targets)
    config.validate({pair.target for pair in pairs})
    plans = {pair: plan_flow(config, pair, plugins) for pair in pairs}
    check_flows(plans)
    return plans


def check_flows(plans: Mapping[SourceAndTarget, FlowPlan]) -> None:
    """Raises ConfigException for flows that exclude each other."""
    name = _name(SOURCE_CONNECTOR)
    copying = {pair: plan for pair, plan in plans.items() if plan.replicates}
    preserved = {pair: PreservedOffsets.of(plan.resolved[name]) for pair, plan in copying.items()}
    if any(one.pattern is not None for one in preserved.values()):
        check_shared_topics(
            FlowTopics(
                pair,
                topic_selection(plan.resolved[name], storage_topics(plan.worker)),
                preserved[pair],
                configured_names(plan.connectors[name]),
            )
            for pair, plan in copying.items()
        )


def chosen_pairs(config: MirrorMakerConfig, targets: Sequence[str] | None) -> list[SourceAndTarget]:
    """The flows to run.

    Raises ConfigException for an alias that `clusters` does not contain, and if there are no flows.
    """
    known = ", ".join(config.clusters) or "none"
    if unknown := config.unknown_clusters(targets or ()):
        hint = " Separate aliases with spaces." if any("," in alias for alias in unknown) else ""
        raise ConfigException(f"--clusters names {' '.join(unknown)}, but the clusters of the file are {known}.{hint}")
    pairs = config.cluster_pairs()
    chosen = [pair for pair in pairs if targets is None or pair.target in targets]
    if not chosen:
        there = ", ".join(map(str, pairs)) or "none"
        given = "" if targets is None else f", --clusters {' '.join(targets)} given"
        raise ConfigException(
            f"No source->target replication flows: clusters = {known}{given}, enabled flows: {there}. "
            "Enable one with SOURCE->TARGET.enabled = true."
        )
    return chosen


def plan_flow(config: MirrorMakerConfig, pair: SourceAndTarget, plugins: Plugins) -> FlowPlan:
    """Validate what a worker or connector of the flow would otherwise reject only at run time.

    Raises ConfigException.
    """
    written, resolved = {}, {}
    try:
        transformer = ConfigTransformer.from_props(config.originals)
        worker = config.worker_config(pair)
        for java_class in CONNECTOR_CLASSES:
            written[_name(java_class)] = config.connector_config(pair, java_class)
            resolution = transformer.resolve(written[_name(java_class)])
            resolved[_name(java_class)] = props = resolution.data
            with resolution.values.hidden_in_errors():
                _dry_run(java_class, props, worker, plugins)
    except (ConfigException, ConnectError) as error:
        raise ConfigException(f"Flow {pair}: {error}") from error
    return FlowPlan(worker, written, resolved)


def _dry_run(java_class: str, props: dict[str, str], worker: Mapping[str, str], plugins: Plugins) -> None:
    connector = plugins.new(props["connector.class"], Connector, key="connector.class")
    if isinstance(connector, MirrorConnector):
        connector.dry_run(props)
    if java_class == SOURCE_CONNECTOR and AbstractConfig(connector.config(), props).bool("enabled"):
        check_changes(props, worker)
    for key in CONVERTER_KEYS:
        kind = HeaderConverter if key == "header.converter" else Converter
        plugins.find(props.get(key, worker[key]), kind, key=key)


def _name(java_class: str) -> str:
    return java_class.rpartition(".")[2]
