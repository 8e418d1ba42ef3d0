"""The replication policy of the process in `state_run`; in a module of its own, because that process loads it."""

from __future__ import annotations

from mm2.mirror.policy import DefaultReplicationPolicy


class MergingPolicy(DefaultReplicationPolicy):
    """Topics whose names are equal up to ``-merge-`` have one remote topic."""

    def format_remote_topic(self, source_alias: str, topic: str) -> str:
        prefix, found, _ = topic.partition("-merge-")
        return super().format_remote_topic(source_alias, f"{prefix}-all" if found else topic)
