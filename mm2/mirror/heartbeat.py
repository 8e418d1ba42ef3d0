"""The heartbeat connector and task: each flow writes heartbeats to a topic that is itself replicated."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Final

import structlog

from mm2 import __version__
from mm2.config.configdef import AbstractConfig
from mm2.config.keys.mirror_keys import MIRROR_HEARTBEAT_CONFIG, is_job_on
from mm2.connect.api import SourceRecord, SourceTask, Task
from mm2.mirror.common.clients import MirrorClients, Side
from mm2.mirror.common.connector import MirrorConnector
from mm2.mirror.common.formats import Heartbeat
from mm2.mirror.common.internal_topics import KeptTopic, create_kept_topic
from mm2.mirror.common.offset_checks import Offsets, check_heartbeat_offsets
from mm2.mirror.common.plugins import replication_policy
from mm2.mirror.common.scheduler import Scheduler

log = structlog.get_logger(__name__)

INTERVAL_KEY: Final = "emit.heartbeats.interval.seconds"
TOPIC_FACTOR_KEY: Final = "heartbeats.topic.replication.factor"

# With an interval of 0 Java's task runs a busy loop; this task waits between two heartbeats.
_SHORTEST_INTERVAL_S: Final = 0.05


def kept_heartbeats(props: Mapping[str, str]) -> KeptTopic:
    """The heartbeats topic to create. Raises ConfigException for a bad replication factor."""
    topic = replication_policy(props).heartbeats_topic()
    return KeptTopic.compacted(Side.TARGET, topic, props, MIRROR_HEARTBEAT_CONFIG, TOPIC_FACTOR_KEY)


class MirrorHeartbeatConnector(MirrorConnector):
    """Creates the heartbeats topic on the target; runs for disabled flows too."""

    DEFINITION = MIRROR_HEARTBEAT_CONFIG

    def task_class(self) -> type[Task]:
        return MirrorHeartbeatTask

    def _active(self) -> bool:
        return True

    def _schedule(self, scheduler: Scheduler) -> None:
        self._target_admin = self._admin(Side.TARGET, "heartbeats-target-admin")
        scheduler.once("Creating the heartbeats topic", self._reaching(self._create_topic, self._target_admin))

    def _create_topic(self) -> bool:
        topic = kept_heartbeats(self._props)
        return create_kept_topic(self._target_admin, topic, self._clients.target_alias, self._recurring)

    def task_configs(self, max_tasks: int) -> list[dict[str, str]]:
        return (
            [dict(self._props)] if is_job_on(self._props, "emit.heartbeats") else []
        )  # without a task index, as in Java

    def alter_offsets(self, props: object, offsets: Offsets) -> bool:
        check_heartbeat_offsets(offsets)
        return True


class MirrorHeartbeatTask(SourceTask):
    """Emits one record per interval, at a fixed rate, to partition 0 of the heartbeats topic."""

    def __init__(self) -> None:
        self._stopping = threading.Event()

    def version(self) -> str:
        return __version__

    def start(self, props: dict[str, str]) -> None:
        clients = MirrorClients(props, task=True)
        self._source, self._target = clients.source_alias, clients.target_alias
        self._topic = replication_policy(props).heartbeats_topic()
        seconds = AbstractConfig(MIRROR_HEARTBEAT_CONFIG, props).int(INTERVAL_KEY)
        self._interval_s = max(float(seconds), _SHORTEST_INTERVAL_S)
        self._due = time.monotonic() + self._interval_s

    def poll(self) -> list[SourceRecord] | None:
        """Wait for the next heartbeat; None if the task stops first."""
        if self._stopping.wait(max(0.0, self._due - time.monotonic())):
            return None
        # Heartbeats that were missed while the target did not answer are not sent later.
        self._due = max(self._due + self._interval_s, time.monotonic())
        heartbeat = Heartbeat(self._source, self._target, int(time.time() * 1000))
        return [
            SourceRecord(
                source_partition=dict(heartbeat.connect_partition()),
                source_offset={"offset": 0},
                topic=self._topic,
                partition=0,
                key=heartbeat.key(),
                value=heartbeat.value(),
                timestamp=heartbeat.timestamp_ms,
            )
        ]

    def stop(self) -> None:
        self._stopping.set()
