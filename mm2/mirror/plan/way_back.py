"""Which topics the flow in the opposite direction copies back after a failover, evaluated for each topic.

After a failover A->B producers write to a topic of B that has the name of the source topic on A. Whether its records reach
A is decided by B->A: whether it is enabled, its topic filters and replication policy, where the topic came from, and whether
a user has paused it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from mm2.config.configdef import ConfigException
from mm2.config.mirrormaker import SourceAndTarget
from mm2.connect.api import ConnectError
from mm2.kafka.admin import Admin
from mm2.kafka.errors import KafkaFailure
from mm2.mirror.common.clients import MirrorClients
from mm2.mirror.common.recurring_errors import RecurringErrors
from mm2.mirror.notes.ledgers import Ledgers
from mm2.mirror.source_connector import topic_selection
from mm2.mirror.topics.provenance import Provenance
from mm2.mirror.topics.selection import TopicSelection
from mm2.reasons import WayBackCode

_SHOWN: Final = 5


@dataclass(frozen=True)
class WayBack:
    """By topic, whether the opposite flow of ``pair`` copies it. ``error``: why this is UNKNOWN. ``is_enabled``: the file enables it."""

    pair: SourceAndTarget
    topics: Mapping[str, WayBackCode] = field(default_factory=dict)
    error: str = ""
    is_enabled: bool = True

    def sentences(self, *, copied: bool = True) -> list[str]:
        """What to know and to do, grouped by cause. ``copied``: also the topics that are copied."""
        source, target = self.pair.source, self.pair.target
        reverse = f"{target}->{source}"
        start = f"run a process with --clusters {source}"
        found = []
        if not self.is_enabled:
            found.append(
                f"no enabled flow copies what is written on {target} to {source}: for the way back set {reverse}.enabled = true and {start}"
            )
        for code in WayBackCode:
            names = sorted(topic for topic, one in self.topics.items() if one is code)
            if not names:
                continue
            of = _first_of(names)
            match code:
                case WayBackCode.COPIED if copied:
                    found.append(f"{reverse} is configured to copy to {source} what is written on {target} to {of}")
                case WayBackCode.COPIED | WayBackCode.DISABLED:
                    pass
                case WayBackCode.NEVER_RUN:
                    found.append(f"{reverse} is enabled and has never run, which the way back requires: {start}")
                case WayBackCode.NOT_SELECTED:
                    found.append(
                        f"{reverse} does not copy {of} to {source}: its topics and topics.exclude, or its replication policy, do not "
                        f"select them, so records written to them on {target} stay there"
                    )
                case WayBackCode.LOOP:
                    found.append(
                        f"{reverse} does not copy {of} to {source}, where they came from by its own policy: records written to them "
                        f"on {target} stay there"
                    )
                case WayBackCode.HELD:
                    found.append(
                        f"{reverse} is paused or stopped, so it does not copy {of} to {source}: mm2 resume FILE '{reverse}'"
                    )
                case WayBackCode.UNKNOWN:
                    found.append(f"whether {reverse} copies {of} to {source} is not known: {self.error.rstrip('.')}")
        return found


def way_back(
    pair: SourceAndTarget,
    reverse: Mapping[str, str] | None,
    topics: Mapping[str, str],
    *,
    source: Admin | None = None,
    target: Admin | None = None,
    has_run: bool = True,
    is_held: bool = False,
    error: str = "",
) -> WayBack:
    """Evaluate the opposite flow of ``pair`` for these source topics, with their remote topics.

    ``reverse`` are the settings of its source connector; None: it is not enabled. ``source`` and ``target`` are the clusters
    of ``pair``; without them it is not examined where topics came from. ``error``: why its settings are not known.
    """
    if error:
        return WayBack(pair, dict.fromkeys(topics, WayBackCode.UNKNOWN), error)
    if reverse is None:
        return WayBack(pair, dict.fromkeys(topics, WayBackCode.DISABLED), is_enabled=False)
    try:
        selection = topic_selection(reverse)
        selected = {topic for topic in topics if selection.should_replicate(topic)}
        refused = _loops(reverse, selection, selected, topics, source, target)
    except (ConfigException, ConnectError, KafkaFailure) as failure:
        return WayBack(pair, dict.fromkeys(topics, WayBackCode.UNKNOWN), str(failure))
    good = WayBackCode.COPIED if has_run else WayBackCode.NEVER_RUN
    good = WayBackCode.HELD if is_held else good
    codes = {}
    for topic in topics:
        code = WayBackCode.LOOP if topic in refused else good
        codes[topic] = code if topic in selected else WayBackCode.NOT_SELECTED
    return WayBack(pair, codes)


def _loops(
    reverse: Mapping[str, str],
    selection: TopicSelection,
    selected: Collection[str],
    topics: Mapping[str, str],
    source: Admin | None,
    target: Admin | None,
) -> set[str]:
    """The topics that the opposite flow refuses because of where they came from.

    Not those with the same name on both clusters: `mm2 failback` turns their direction. Raises KafkaFailure.
    """
    renamed = {topic for topic in selected if topics[topic] != topic}
    if source is None or target is None or not renamed:
        return set()
    ledgers = Ledgers(MirrorClients(reverse), source)
    provenance = Provenance(target, source, selection, ledgers, RecurringErrors(), lambda _: False)
    return renamed - provenance.foreseen(renamed)


def _first_of(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
