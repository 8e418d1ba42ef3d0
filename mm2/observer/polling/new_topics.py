"""Finds partitions of the source with records that the flow is to copy and has not discovered yet.

The flow finds new topics and partitions when it refreshes its topics, by default every ten minutes. Until then no ledger and no
assignment contains them, although all their records would be lost.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final

from mm2.config.configdef import ConfigException
from mm2.config.keys.mirror_keys import is_job_on
from mm2.connect.errors import ConnectError
from mm2.copy.progress.ledger import Ledger
from mm2.copy.states import PartitionState
from mm2.kafka.admin import Admin
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.structs import EARLIEST, LATEST, OffsetInfo, TopicPartition
from mm2.mirror.common.clients import Side
from mm2.mirror.common.discovery import see_topics, vanished
from mm2.mirror.common.recurring_errors import RecurringErrors
from mm2.mirror.filters import close_quietly
from mm2.mirror.notes.ledgers import Ledgers, copied_to
from mm2.mirror.notes.preparation import Preparation, preparations, since
from mm2.mirror.notes.promotions import promoted
from mm2.mirror.preserved.preserved_offsets import PreservedOffsets
from mm2.mirror.source_connector import topic_selection
from mm2.mirror.topics.own_topics import is_own_topic
from mm2.mirror.topics.provenance import Provenance
from mm2.mirror.topics.selection import TopicSelection
from mm2.mirror.topics.topic_limits import over_limit_message
from mm2.observer.polling.polls import FlowClients

#: Interval of the poll: a list of all topics of a cluster is a large response.
NEW_TOPICS_S: Final = 60.0
_LONGEST_TOPICS: Final = 100
_REASON: Final = "nothing was copied yet: new topics are found after refresh.topics.interval.seconds at the latest"
_NOT_REFRESHED: Final = "nothing was copied yet: with refresh.topics.enabled=false or a negative interval, new topics are found when the connector is restarted"


class NewTopicsPoll:
    """Polls for such partitions; ``found`` has them, with the time when they were first seen.

    ``came_back``: the number of selected topics that the flow in the opposite direction copies to the source under the same name, so
    that this flow does not copy them.

    ``nothing_selected``: why no topic of the source is selected, as of the last poll; "" if one is, or if that is not known.

    The reader sets ``ledger`` (None: not read yet), and ``assigned`` to the partitions that the tasks have.
    """

    def __init__(self, clients: FlowClients) -> None:
        """Opens nothing."""
        self.found: Mapping[TopicPartition, Preparation] = {}
        self.nothing_selected = ""
        self.came_back = 0
        self.ledger: Ledger | None = None
        self.assigned: Collection[TopicPartition] = ()
        self._props = clients.props
        self._source, self._target = clients.cluster(Side.SOURCE), clients.cluster(Side.TARGET)
        self._admin, self._target_admin = Admin(self._source), Admin(self._target)
        self._ledgers = Ledgers(clients.mirror, self._target_admin)
        # None: not created yet. A flow whose classes cannot be loaded is observed, too: it finds no topics, and reports why.
        self._rules: tuple[TopicSelection, Provenance] | None = None
        self._is_idle = _is_false(clients.props, "enabled")
        self._refused: set[str] = set()  # they came from the target

    def __call__(self) -> None:
        """List the topics of the source. Raises KafkaFailure."""
        ledger = self.ledger
        if ledger is None or self._is_idle:
            return
        if self._rules is None:
            try:
                self._rules = self._created_rules()
            except (ConfigException, ConnectError):
                self._is_idle = True
                return
        selection, provenance = self._rules

        listed = 0

        def is_selected(topic: str) -> bool:
            nonlocal listed
            policy = selection.policy
            if policy.is_heartbeats_topic(topic) or policy.is_internal_topic(topic) or is_own_topic(topic):
                return False
            listed += 1
            return selection.is_selected(topic)

        # A topic that cannot be described now still has the partitions that were found.
        counts = Counter(tp.topic for tp in self.found)
        seen = see_topics(self._admin, is_selected, counts)
        selected = seen.partitions
        self.nothing_selected = "" if selected or seen.unknown else self._nothing_selected(listed)
        known = {*self.assigned, *preparations(ledger), *ledger.partitions()}
        topics = {tp.topic for tp in known}
        new = selected.keys() - topics - self._refused
        preserved = PreservedOffsets.of(self._props).among(selected)
        new -= selection.unroutable(selected.keys(), preserved, lambda: copied_to(ledger)).keys()
        if not selection.names_show_origin and new:
            allowed = provenance.foreseen(new)
            self._refused |= new - allowed
            new = allowed
        self.came_back = len(self._refused & selected.keys() - topics)
        copied = selected.keys() & topics - promoted(ledger).keys()
        missing = {TopicPartition(topic, number) for topic in new | copied for number in range(selected[topic])} - known
        reason = self._reason(ledger)
        self.found = {
            tp: since(self.found.get(tp), _preparation(tp, selection, reason))
            for tp in sorted(self._with_records(missing))
        }

    def close(self) -> None:
        """Abort the requests in flight."""
        self._ledgers.stop()
        self._source.close()
        self._target.close()
        if self._rules is not None:
            close_quietly(self._rules[0].topic_filter)

    def _created_rules(self) -> tuple[TopicSelection, Provenance]:
        """Raises ConfigException and ConnectError."""
        selection = topic_selection(self._props)
        reporting = _Unreported()
        return selection, Provenance(
            self._admin, self._target_admin, selection, self._ledgers, reporting, lambda _: False
        )

    def _with_records(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        """Those that have records, or of which this is not known now."""
        starts = self._admin.list_offsets(dict.fromkeys(partitions, EARLIEST)) if partitions else {}
        ends = self._admin.list_offsets(dict.fromkeys(partitions, LATEST)) if partitions else {}
        return [tp for tp in partitions if _may_have_records(starts[tp], ends[tp])]

    def _nothing_selected(self, listed: int) -> str:
        source = self._source.name
        if not listed:
            return f"{source} has no topics that this client may describe"
        topics = self._props.get("topics", "").strip()
        shown = topics if len(topics) <= _LONGEST_TOPICS else f"{topics[:_LONGEST_TOPICS]}…"
        some = "the only topic" if listed == 1 else f"any of the {listed:,} topics"
        return f"topics = {shown or '.*'} and topics.exclude do not select {some} of {source}"

    def _reason(self, ledger: Ledger) -> str:
        over_limit = over_limit_message(ledger)
        reason = _REASON if is_job_on(self._props, "refresh.topics") else _NOT_REFRESHED
        return f"{reason}; not copied at all: {over_limit}" if over_limit else reason


def _is_false(props: Mapping[str, str], key: str) -> bool:
    return props.get(key, "true").strip().lower() == "false"


def _may_have_records(start: OffsetInfo | KafkaFailure, end: OffsetInfo | KafkaFailure) -> bool:
    if isinstance(start, OffsetInfo) and isinstance(end, OffsetInfo):
        return start.offset < end.offset
    return not (vanished(start) or vanished(end))


def _preparation(tp: TopicPartition, selection: TopicSelection, reason: str) -> Preparation:
    remote, since_ms = selection.remote(tp.topic), time.time_ns() // 1_000_000
    return Preparation(tp.topic, tp.partition, remote, PartitionState.PREPARING, reason, since_ms)


class _Unreported(RecurringErrors):
    """The flow itself logs which topics it refuses."""

    def report(self, subject: str, message: str, *, is_note: bool = False) -> None:
        pass
