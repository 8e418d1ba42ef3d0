"""Which topics of a flow have the same offsets on the target as on the source. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Self

from mm2.config.configdef import ConfigException
from mm2.config.definitions.java_regex import JavaPattern
from mm2.config.keys.mirror_keys import DENY_WRITES_KEY, OWN_CONFIG, PRESERVE_KEY, PRESERVE_TOPICS_KEY
from mm2.mirror.common.plugins import replication_policy
from mm2.mirror.filters import pattern_list
from mm2.mirror.policy import ReplicationPolicy
from mm2.mirror.source.start_from import START_FROM_KEY

_RESETS: Final = ("consumer.auto.offset.reset", "source.consumer.auto.offset.reset")


@dataclass(frozen=True)
class PreservedOffsets:
    """The topics by ``pattern``; None: no topic. Heartbeats are never among them, because every flow writes some."""

    policy: ReplicationPolicy
    pattern: JavaPattern | None

    @classmethod
    def of(cls, props: Mapping[str, str]) -> Self:
        """From the properties of a connector or task. Raises ConfigException."""
        is_on = OWN_CONFIG.keys[PRESERVE_KEY].parse(props.get(PRESERVE_KEY, "false"), shown_as=PRESERVE_KEY)
        pattern = pattern_list(PRESERVE_TOPICS_KEY, props.get(PRESERVE_TOPICS_KEY, ".*"))
        return cls(replication_policy(props), pattern if is_on else None)

    def __contains__(self, topic: str) -> bool:
        """Whether the offsets of this source topic are preserved."""
        if self.pattern is None or self.policy.is_heartbeats_topic(topic):
            return False
        return self.pattern.fullmatch(topic) is not None

    def among(self, topics: Iterable[str]) -> tuple[str, ...]:
        """Those of the topics whose offsets are preserved, sorted."""
        return tuple(sorted({topic for topic in topics if topic in self}))


def denies_writes(props: Mapping[str, str]) -> bool:
    """Whether other principals than the flow's may not write to topics with preserved offsets. Raises ConfigException."""
    return bool(OWN_CONFIG.keys[DENY_WRITES_KEY].parse(props.get(DENY_WRITES_KEY, "false"), shown_as=DENY_WRITES_KEY))


def check_preserved_offsets(props: Mapping[str, str]) -> None:
    """Raises ConfigException for values that are not accepted, and for those that do not go with preserved offsets."""
    if PreservedOffsets.of(props).pattern is None:
        if denies_writes(props):
            raise ConfigException(DENY_WRITES_KEY, "true", f"it has no effect without {PRESERVE_KEY}=true")
        return
    reason = f"copying starts at the beginning of the source log with {PRESERVE_KEY}=true"
    if start := props.get(START_FROM_KEY, "").strip():
        raise ConfigException(START_FROM_KEY, start, reason)
    for key in _RESETS:
        if (reset := props.get(key, "").strip()) not in {"", "earliest"}:
            raise ConfigException(key, reset, reason)


def refuse_transactions(preserved: Iterable[str]) -> None:
    """Raises ConfigException if there are preserved topics: the flow writes in transactions."""
    if any(preserved):
        reason = "offsets are not preserved with exactly.once.source.support=enabled, whose transactions write markers between records"
        raise ConfigException(PRESERVE_KEY, "true", reason)
