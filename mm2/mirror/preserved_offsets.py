"""Which topics of a flow have the same offsets on the target as on the source. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from mm2.config.configdef import ConfigException
from mm2.config.mirror_keys import OWN_CONFIG, PRESERVE_KEY, PRESERVE_TOPICS_KEY
from mm2.mirror.filters import pattern_list
from mm2.mirror.plugins import replication_policy
from mm2.mirror.policy import ReplicationPolicy


@dataclass(frozen=True)
class PreservedOffsets:
    """The topics by ``pattern``; None: no topic. Heartbeats are never among them, because every flow writes some."""

    policy: ReplicationPolicy
    pattern: re.Pattern[str] | None

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


def check_preserved_offsets(props: Mapping[str, str]) -> None:
    """Raises ConfigException for values that are not accepted."""
    PreservedOffsets.of(props)


def refuse_transactions(preserved: Iterable[str]) -> None:
    """Raises ConfigException if there are preserved topics: the flow writes in transactions."""
    if any(preserved):
        reason = "offsets are not preserved with exactly.once.source.support=enabled, whose transactions write markers between records"
        raise ConfigException(PRESERVE_KEY, "true", reason)
