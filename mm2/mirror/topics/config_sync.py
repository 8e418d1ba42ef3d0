"""Selects the topic properties that are copied to the remote topic. Pure.

Java rewrites every property of every topic in each interval (KAFKA-14082). Here only differences are written.
Properties that the target does not know are left out, so that they do not fail the whole topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mm2.kafka.structs import AlterOp, AlterOpType, ConfigEntry, ConfigSource
from mm2.mirror.filters import ConfigPropertyFilter


@dataclass(frozen=True, slots=True)
class ConfigDifference:
    """A property with another value on the remote topic than on its source.

    A value is None if the cluster does not know the property. ``is_synced``: the flow copies it, so the difference ends with
    the next sync of configs.
    """

    name: str
    source: str | None
    target: str | None
    is_synced: bool


@dataclass(frozen=True)
class ConfigSync:
    """The config sync rules of one flow."""

    property_filter: ConfigPropertyFilter

    def for_creation(self, source: Mapping[str, ConfigEntry]) -> dict[str, str]:
        """The configs to create the remote topic with."""
        return {
            entry.name: entry.value
            for entry in source.values()
            if self._copied(entry) and not self._left_to_target(entry) and entry.value is not None
        }

    def changes(self, source: Mapping[str, ConfigEntry], target: Mapping[str, ConfigEntry]) -> list[AlterOp]:
        """The changes to make on the remote topic; empty if nothing differs.

        A default value on the source removes an override on the target, unless defaults are copied from the source as
        well.
        """
        changes = []
        for entry in source.values():
            remote = target.get(entry.name)
            if remote is None or not self._copied(entry):
                continue
            if self._left_to_target(entry):
                if remote.source == ConfigSource.DYNAMIC_TOPIC_CONFIG:
                    changes.append(AlterOp(entry.name, None, AlterOpType.DELETE))
            elif entry.value is not None and entry.value != remote.value:
                changes.append(AlterOp(entry.name, entry.value, AlterOpType.SET))
        return changes

    def unknown(self, source: Mapping[str, ConfigEntry], target: Mapping[str, ConfigEntry]) -> list[str]:
        """Properties that would be copied to the remote topic if the target knew them."""
        return [
            entry.name
            for entry in source.values()
            if entry.name not in target and self._copied(entry) and not self._left_to_target(entry)
        ]

    def differences(
        self, source: Mapping[str, ConfigEntry], target: Mapping[str, ConfigEntry], *, is_enabled: bool
    ) -> list[ConfigDifference]:
        """The properties whose values differ, by name. ``is_enabled``: the flow syncs configs.

        Sensitive properties are left out, since brokers do not return their values.
        """
        synced = {one.name for one in self.changes(source, target)} if is_enabled else set()
        found = []
        for name in sorted(source.keys() | target.keys()):
            here, there = source.get(name), target.get(name)
            if any(entry is not None and entry.sensitive for entry in (here, there)):
                continue
            before, after = (None if entry is None else entry.value for entry in (here, there))
            if before != after:
                found.append(ConfigDifference(name, before, after, name in synced))
        return found

    def _copied(self, entry: ConfigEntry) -> bool:
        return not (
            entry.read_only
            or entry.sensitive
            or entry.source == ConfigSource.STATIC_BROKER_CONFIG
            or not self.property_filter.should_replicate_config_property(entry.name)
        )

    def _left_to_target(self, entry: ConfigEntry) -> bool:
        return entry.is_default and not self.property_filter.should_replicate_source_default(entry.name)
