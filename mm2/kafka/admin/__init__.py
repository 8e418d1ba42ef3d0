"""Administrative calls with a result or an error *per item*: unknown is never empty.

A method that takes many keys returns a dict with every one of them, the value or the KafkaFailure that befell it, and raises
nothing itself; a method that lists or describes one thing raises KafkaFailure. Passing trouble (a moved coordinator, a new leader, a
busy controller) is tried again until `request.timeout.ms`; what cannot pass is reported at once.
"""

from __future__ import annotations

from mm2.kafka.admin.acls import AclCalls
from mm2.kafka.admin.configs import ConfigCalls
from mm2.kafka.admin.partitions import PartitionCalls
from mm2.kafka.admin.rights import RightsCalls
from mm2.kafka.admin.share_groups import ShareGroupCalls
from mm2.kafka.admin.topics import TopicCalls

__all__ = ["Admin"]


class Admin(TopicCalls, ConfigCalls, AclCalls, PartitionCalls, ShareGroupCalls, RightsCalls):
    """All administrative calls to one cluster; thread-safe, as the Cluster under it, which it does not close."""
