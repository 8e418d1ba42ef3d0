"""Syncs the configs of remote topics from their sources; `config_sync` computes what to write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from mm2.kafka.admin import Admin
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure, UnsupportedVersion
from mm2.kafka.structs import AlterOp
from mm2.mirror.common.discovery import TOPICS_PER_REQUEST, chunks, vanished
from mm2.mirror.common.recurring_errors import RecurringErrors
from mm2.mirror.topics.config_sync import ConfigSync

log = structlog.get_logger("mm2.mirror.topic_configs")

# A broker rejects all changes of a topic because of one of them.
_REJECTIONS: Final = frozenset({ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST, ErrorCode.POLICY_VIOLATION})
_ONE_OF_THEM: Final = _REJECTIONS | {ErrorCode.UNKNOWN_SERVER_ERROR}


@dataclass(frozen=True)
class TopicConfigs:
    """The config sync of one flow; `target` is the alias of its target, for messages."""

    source_admin: Admin
    target_admin: Admin
    rules: ConfigSync
    target: str
    recurring: RecurringErrors

    def sync(self, pairs: Iterable[tuple[str, str]]) -> bool:
        """Alter the differing configs, for pairs of a source topic and its remote topic. False if a change failed and may succeed soon;
        a change that the target rejects is tried again at the next call.

        Raises UnsupportedVersion for a target that cannot alter single properties (before Kafka 2.3).
        """
        complete = True
        for changes, known in self._changes(pairs):
            complete &= known & self._alter(changes)
        return complete

    def _changes(self, pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[dict[str, list[AlterOp]], bool]]:
        """Yield in batches what is to be altered, by remote topic, and whether all of them could be read."""
        for some in chunks(pairs, TOPICS_PER_REQUEST):
            complete = True
            source = self.source_admin.describe_configs([topic for topic, _ in some])
            target = self.target_admin.describe_configs([remote for _, remote in some])
            changes: dict[str, list[AlterOp]] = {}
            for topic, remote in some:
                here, there = source.get(topic), target.get(remote)
                subject = f"configs of {topic}"
                if isinstance(here, Mapping) and isinstance(there, Mapping):
                    self.recurring.resolve(subject)
                    for name in self.rules.unknown(here, there):
                        self.recurring.report(
                            f"property {name}",
                            f"Cluster {self.target} does not support the topic property {name}, so it is not copied to remote topics.",
                            is_note=True,
                        )
                    if operations := self.rules.changes(here, there):
                        changes[remote] = operations
                    else:
                        self.recurring.resolve(change_of(remote))
                elif vanished(here) or vanished(there):
                    self.recurring.resolve(subject)  # the next refresh sees it too
                else:
                    failure = here if isinstance(here, KafkaFailure) else there
                    self.recurring.report(subject, f"The configs of topic {topic} are not synced: {failure}")
                    complete = False
            yield changes, complete

    def _alter(self, changes: Mapping[str, list[AlterOp]]) -> bool:
        answers = self.target_admin.incremental_alter_configs(changes) if changes else {}
        complete = True
        for remote, operations in changes.items():
            answer = answers.get(remote)
            if isinstance(answer, UnsupportedVersion):
                raise answer
            done: list[AlterOp] = operations
            refused: list[AlterOp] = []
            if isinstance(answer, BrokerFailure) and answer.code in _ONE_OF_THEM and len(operations) > 1:
                done, refused, answer = self._one_by_one(remote, operations)
            elif isinstance(answer, KafkaFailure):
                done, refused = [], operations
            if refused:
                names = ", ".join(sorted(_text(operation) for operation in refused))
                sentence = f"Of topic {remote} on cluster {self.target} cannot be altered: {names}. {answer}"
                self.recurring.report(change_of(remote), sentence)
                complete &= _is_rejection(answer)
            else:
                self.recurring.resolve(change_of(remote))
            if done:
                log.info("Synced topic configs.", topic=remote, configs=sorted(operation.name for operation in done))
        return complete

    def _one_by_one(
        self, remote: str, operations: list[AlterOp]
    ) -> tuple[list[AlterOp], list[AlterOp], KafkaFailure | None]:
        """The changes that were made, those that were rejected, and the error of the last rejected one."""
        done, refused = [], []
        why: KafkaFailure | None = None
        for operation in operations:
            answer = self.target_admin.incremental_alter_configs({remote: [operation]}).get(remote)
            if isinstance(answer, KafkaFailure):
                refused.append(operation)
                why = answer if why is None or _is_rejection(why) else why
            else:
                done.append(operation)
        return done, refused, why


def _is_rejection(failure: KafkaFailure | None) -> bool:
    """Whether the target rejects the change itself, for instance a property that needs tiered storage."""
    return isinstance(failure, BrokerFailure) and failure.code in _REJECTIONS


def change_of(remote: str) -> str:
    """The subject of a change of a remote topic that the target rejects."""
    # Not the subject of a source topic that cannot be described: under identity naming both have one name.
    return f"change of the configs of {remote}"


def _text(operation: AlterOp) -> str:
    return operation.name if operation.value is None else f"{operation.name}={operation.value}"
