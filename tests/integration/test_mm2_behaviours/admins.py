"""Admin classes for `forwarding.admin.class` (KIP-787), configured by their Python path."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from mm2.kafka.admin import Admin
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.structs import AclBinding, AlterOp, ConfigEntry, ConfigSource, NewTopic, OffsetInfo, TopicPartition


class NotingAdmin(Admin):
    """Records the changes: the operation, the alias of the cluster, the topic."""

    noted: ClassVar[list[tuple[str, str, str]]] = []

    def _note(self, verb: str, topics: Iterable[str]) -> None:
        self.noted.extend((verb, self.cluster.name, topic) for topic in topics)

    def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False
    ) -> dict[str, KafkaFailure | None]:
        wanted = list(topics)
        self._note("create", [topic.name for topic in wanted])
        return super().create_topics(wanted, validate_only=validate_only)

    def create_partitions(
        self, counts: Mapping[str, int], *, validate_only: bool = False
    ) -> dict[str, KafkaFailure | None]:
        self._note("grow", counts)
        return super().create_partitions(counts, validate_only=validate_only)

    def incremental_alter_configs(
        self, changes: Mapping[str, Sequence[AlterOp]], *, validate_only: bool = False
    ) -> dict[str, KafkaFailure | None]:
        self._note("configure", changes)
        return super().incremental_alter_configs(changes, validate_only=validate_only)

    def create_acls(self, bindings: Iterable[AclBinding]) -> dict[AclBinding, KafkaFailure | None]:
        wanted = list(bindings)
        self._note("allow", [acl.resource_name for acl in wanted])
        return super().create_acls(wanted)


class NewerSourceAdmin(Admin):
    """Simulates a newer source: it returns an additional property, and a value that the target rejects."""

    def describe_configs(
        self, topics: Iterable[str], keys: Iterable[str] | None = None
    ) -> dict[str, dict[str, ConfigEntry] | KafkaFailure]:
        answers = super().describe_configs(topics, keys)
        if self.cluster.name == "A":
            for answer in answers.values():
                if isinstance(answer, dict):
                    for name, value in (("future.property", "1"), ("segment.bytes", "5")):
                        answer[name] = ConfigEntry(name, value, ConfigSource.DYNAMIC_TOPIC_CONFIG, False, False, False)
        return answers


class GhostlyAdmin(Admin):
    """Simulates a source topic that is deleted between list and describe."""

    ghost: ClassVar[str] = ""

    def list_topics(self, *, include_internal: bool = False) -> set[str]:
        topics = super().list_topics(include_internal=include_internal)
        return topics | {self.ghost} if self.cluster.name == "A" else topics


class BlindAdmin(Admin):
    """While `blind` is set, reading ledgers is not authorized."""

    blind: ClassVar[bool] = False

    def list_offsets(
        self, timestamps: Mapping[TopicPartition, int], isolation: str = "read_uncommitted", **options: Any
    ) -> dict[TopicPartition, OffsetInfo | KafkaFailure]:
        answers = super().list_offsets(timestamps, isolation, **options)
        for tp in answers:
            if self.blind and tp.topic.startswith("mm2-ledger."):
                answers[tp] = BrokerFailure.of(ErrorCode.TOPIC_AUTHORIZATION_FAILED, subject=f"topic {tp.topic}")
        return answers
