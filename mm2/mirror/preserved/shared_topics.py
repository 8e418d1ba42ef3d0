"""Flows, and topics of one flow, that would be written to the same remote topic, although offsets are preserved. Pure.

Such a topic can have the offsets of one source only (`mm2.mirror.preserved.preserved_offsets`). Which topics there are is not known
before the flows run, so the names in the configuration are compared, and one name that only a pattern such as ``.*``
matches. What is not found here stops one of the flows at run time, as DIVERGED. Of topics of one flow, the connector copies
none then (`mm2.mirror.topics.selection.TopicSelection.unroutable`).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from mm2.config.configdef import ConfigException
from mm2.config.definitions.values import split_list
from mm2.config.keys.mirror_keys import PRESERVE_KEY, PRESERVE_TOPICS_KEY
from mm2.config.mirrormaker import SourceAndTarget
from mm2.mirror.filters import TOPICS_KEY
from mm2.mirror.preserved.preserved_offsets import PreservedOffsets
from mm2.mirror.topics.selection import TopicSelection, merge_refused

_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_ANY_NAME: Final = "any-topic-of-the-source"


@dataclass(frozen=True)
class FlowTopics:
    """The topics of a flow that copies. ``names`` are those in its configuration."""

    pair: SourceAndTarget
    selection: TopicSelection
    preserved: PreservedOffsets
    names: frozenset[str]

    def remotes(self, names: Iterable[str]) -> dict[str, bool]:
        """The remote topics of those of the names that are copied, and whether they have the source's offsets."""
        wanted = [name for name in names if self.selection.should_replicate(name)]
        return {self.selection.remote(name): name in self.preserved for name in wanted}


def configured_names(written: Mapping[str, str]) -> frozenset[str]:
    """The topics that the properties of a connector name, references not resolved."""
    items = [item for key in (TOPICS_KEY, PRESERVE_TOPICS_KEY) for item in split_list(written.get(key) or "")]
    return frozenset(item for item in items if _NAME.fullmatch(item))


def check_merges(selection: TopicSelection, preserved: PreservedOffsets, names: Iterable[str]) -> None:
    """Raises ConfigException for topics of one flow with the same remote topic, at least one of which preserves its offsets."""
    wanted = [name for name in names if selection.should_replicate(name)]
    for remote, several in selection.merges(wanted).items():
        if any(name in preserved for name in several):
            raise ConfigException(PRESERVE_KEY, "true", merge_refused(several, remote))


def check_shared_topics(flows: Iterable[FlowTopics]) -> None:
    """Raises ConfigException for two flows into one topic, at least one of which preserves its offsets."""
    flows = list(flows)
    for one in flows:
        check_merges(one.selection, one.preserved, one.names)
    for one, other in itertools.combinations(flows, 2):
        if one.pair.target != other.pair.target:
            continue
        names = [*sorted(one.names | other.names), _ANY_NAME]
        theirs = other.remotes(names)
        for remote, is_preserved in one.remotes(names).items():
            if remote in theirs and (is_preserved or theirs[remote]):
                raise ConfigException(_reason(one.pair, other.pair, remote))


def _reason(one: SourceAndTarget, other: SourceAndTarget, remote: str) -> str:
    what = "topics of the same names" if _ANY_NAME in remote else f"the topic {remote}"
    return (
        f"{PRESERVE_KEY}: {one} and {other} copy to {what} on {one.target}, which can have the offsets of one source only; "
        f"choose different {TOPICS_KEY} for them, or a replication policy that gives them different names"
    )
