"""Admin calls with a result or an error *per item*.

A method that takes several keys returns a dict with every key and its value or KafkaFailure, and does not raise. A
method that lists or describes one thing raises KafkaFailure. Retriable errors (a moved coordinator, a new leader, a
busy controller) are retried until `request.timeout.ms`; other errors are returned immediately. An unknown result is a
failure, never an empty value.
"""

from __future__ import annotations

from mm2.kafka.admin.acls import AclCalls
from mm2.kafka.admin.configs import ConfigCalls
from mm2.kafka.admin.log_starts import LogStartCalls
from mm2.kafka.admin.rights import RightsCalls
from mm2.kafka.admin.share_groups import ShareGroupCalls
from mm2.kafka.admin.topics import TopicCalls

__all__ = ["Admin"]


class Admin(TopicCalls, ConfigCalls, AclCalls, LogStartCalls, ShareGroupCalls, RightsCalls):
    """All admin calls to one cluster. Thread-safe. Does not close the Cluster that it uses."""
