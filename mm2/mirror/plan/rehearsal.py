"""Admin clients that change nothing, so `mm2 plan` runs the code that changes a cluster and prints what it requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import getmembers, isfunction
from typing import Any, NoReturn

from mm2.copy.progress.ledger import Ledger
from mm2.kafka.admin import Admin
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.records.record import Record
from mm2.kafka.structs import (
    AclBinding,
    AclFilter,
    AlterOp,
    AlterOpType,
    ConfigEntry,
    NewTopic,
    OffsetInfo,
    ResourceType,
    TopicInfo,
    TopicPartition,
)
from mm2.mirror.common.discovery import vanished
from mm2.mirror.common.recurring_errors import RecurringErrors
from mm2.mirror.notes.ledgers import Ledgers
from mm2.mirror.topics.topic_acls import sentence

NOT_ALLOWED = frozenset({ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED})
_EVERY_ACL = AclFilter()
_BY_DEFAULT = "the brokers' default.replication.factor"


@dataclass(frozen=True, slots=True)
class Step:
    """An action on a cluster (an alias). ``error`` is the reason why it would fail; "" if none is known."""

    cluster: str
    action: str
    subject: str
    details: Mapping[str, str] = field(default_factory=dict)
    error: str = ""


class Rehearsal:
    """The steps that were requested on all clusters. What is requested again replaces what was requested before."""

    def __init__(self) -> None:
        # Each detail with its error.
        self._requests: dict[tuple[str, str, str], dict[str, tuple[str, str]]] = {}

    def add(self, step: Step) -> None:
        """Add a step, or what it changes of an earlier one."""
        details = self._requests.setdefault((step.cluster, step.action, step.subject), {})
        details |= {name: (value, step.error) for name, value in step.details.items()}

    def drop(self, cluster: str, action: str, subject: str) -> str:
        """Forget a step that is requested in another way; returns the replication factor that it had."""
        return self._requests.pop((cluster, action, subject), {}).get("replication.factor", ("", ""))[0]

    def steps(self) -> Iterator[Step]:
        """All of them. One of which a part would fail is two steps."""
        for key, details in self._requests.items():
            for error in dict.fromkeys(error for _, error in details.values()) or [""]:
                yield Step(*key, {name: value for name, (value, why) in details.items() if why == error}, error)


class RehearsingAdmin(Admin):
    """Has changes of topics validated instead of made, and adds them to ``rehearsal``; brokers do not validate changes of ACLs.

    Reads return what there would be, as far as it is read again: ACLs, and the offsets of new partitions.
    """

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self.rehearsal = Rehearsal()
        #: By missing topic, whether it may be created.
        self.creatable: dict[str, bool] = {}
        self._existing: dict[str, int] = {}  # partitions of topics that get more
        self._granted: set[AclBinding] = set()
        self._deleted: set[AclBinding] = set()

    def _add(
        self, action: str, subject: str, details: Mapping[str, str] | None = None, answer: KafkaFailure | None = None
    ) -> None:
        error = "" if answer is None else str(answer)
        self.rehearsal.add(Step(self.cluster.name, action, subject, details or {}, error))

    def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False
    ) -> dict[str, KafkaFailure | None]:
        wanted = list(topics)
        answers = super().create_topics(wanted, validate_only=True)
        found = {} if validate_only else self.describe_topics(topic.name for topic in wanted)
        for topic in wanted:
            there = found.get(topic.name)
            if vanished(there) or (
                isinstance(there, BrokerFailure) and there.code == ErrorCode.INVALID_TOPIC_EXCEPTION
            ):
                answer = answers.get(topic.name)
                self._existing[topic.name] = 0
                self.creatable[topic.name] = not (isinstance(answer, BrokerFailure) and answer.code in NOT_ALLOWED)
                self._add("create topic", topic.name, self._details(topic), answer)
        return answers

    def _details(self, new: NewTopic) -> dict[str, str]:
        cluster, factor = self.cluster.name, str(new.replication_factor)
        before = self.rehearsal.drop(cluster, "create topic", new.name)
        if new.replication_factor < 0:
            factor = f"{_BY_DEFAULT}, since {cluster} has fewer brokers than {before}" if before else _BY_DEFAULT
        partitions = str(new.partitions) if new.partitions > 0 else "the brokers' num.partitions"
        return {"partitions": partitions, "replication.factor": factor, **new.configs}

    def create_partitions(
        self, counts: Mapping[str, int], *, validate_only: bool = True
    ) -> dict[str, KafkaFailure | None]:
        # A class of a user need not know validate_only.
        answers = Admin.create_partitions(self, counts, validate_only=True)
        for name, found in self.describe_topics(counts).items():
            self._existing[name] = len(found.partitions) if isinstance(found, TopicInfo) else 0
            self._add(
                "add partitions", name, {"partitions": f"{self._existing[name]} -> {counts[name]}"}, answers[name]
            )
        return answers

    def list_offsets(
        self, timestamps: Mapping[TopicPartition, int], isolation: str = "read_uncommitted", **options: Any
    ) -> dict[TopicPartition, OffsetInfo | KafkaFailure]:
        new = [tp for tp in timestamps if tp.partition >= self._existing.get(tp.topic, tp.partition + 1)]
        there = {tp: at for tp, at in timestamps.items() if tp not in new}
        return super().list_offsets(there, isolation, **options) | dict.fromkeys(new, OffsetInfo(0, -1, -1))

    def describe_configs(
        self, topics: Iterable[str], keys: Iterable[str] | None = None
    ) -> dict[str, dict[str, ConfigEntry] | KafkaFailure]:
        answers = super().describe_configs(topics, keys)
        return {name: {} if vanished(one) and name in self._existing else one for name, one in answers.items()}

    def incremental_alter_configs(
        self, changes: Mapping[str, Sequence[AlterOp]], *, validate_only: bool = True
    ) -> dict[str, KafkaFailure | None]:
        answers = Admin.incremental_alter_configs(self, changes, validate_only=True)
        for name, operations in changes.items():
            details = {
                one.name: "back to the default" if one.op is AlterOpType.DELETE else str(one.value)
                for one in operations
            }
            self._add("alter configs", name, details, answers[name])
        return answers

    def describe_acls(self, matching: AclFilter = _EVERY_ACL) -> list[AclBinding]:
        found = {acl for acl in super().describe_acls(matching) if acl not in self._deleted}
        return [*(found | {acl for acl in self._granted if acl.resource_type == matching.resource_type})]

    def create_acls(self, bindings: Iterable[AclBinding]) -> dict[AclBinding, KafkaFailure | None]:
        answers: dict[AclBinding, KafkaFailure | None] = dict.fromkeys(bindings)
        new = answers.keys() - self._acls(answers)
        for acl in filter(new.__contains__, answers):
            self._add("create ACL", sentence(acl))
        self._granted |= new
        self._deleted -= new
        return answers

    def delete_acls(self, bindings: Iterable[AclBinding]) -> dict[AclBinding, KafkaFailure | None]:
        answers: dict[AclBinding, KafkaFailure | None] = dict.fromkeys(bindings)
        there = self._acls(answers)
        for acl in filter(there.__contains__, answers):
            self._add("remove ACL", sentence(acl))
        self._deleted |= answers.keys()
        self._granted -= answers.keys()
        return answers

    def _acls(self, wanted: Iterable[AclBinding]) -> set[AclBinding]:
        """The ACLs of the kinds of resources of these ones."""
        kinds: set[ResourceType] = {acl.resource_type for acl in wanted}
        return {acl for kind in kinds for acl in self.describe_acls(AclFilter(resource_type=kind))}


def _refuse(*_: object, **__: object) -> NoReturn:
    raise TypeError("this request of an admin client cannot be rehearsed")


def _not_rehearsed() -> Iterator[str]:
    """The methods of admin clients that are neither reads nor rehearsed."""
    for name, _ in getmembers(Admin, isfunction):
        is_read = name.startswith(("_", "describe_", "list_")) or name.endswith("_rights") or name == "epoch_ends"
        if not is_read and name not in vars(RehearsingAdmin):
            yield name


def rehearsing(admin: Admin, rehearsal: Rehearsal) -> RehearsingAdmin:
    """A client like this one, also of a user's class, that changes nothing: a request that is not rehearsed is a TypeError."""
    refused = dict.fromkeys(_not_rehearsed(), _refuse)
    kind: type[RehearsingAdmin] = type("RehearsingAdmin", (RehearsingAdmin, type(admin)), refused)
    found = kind(admin.cluster)
    found.rehearsal = rehearsal
    return found


class RehearsedLedgers(Ledgers):
    """Writes nothing. A ledger that does not exist is empty, as the one that the connector creates first."""

    def own(self) -> Ledger:
        try:
            return super().own()
        except BrokerFailure as failure:
            if not vanished(failure):
                raise
            return Ledger()

    def write(self, records: Sequence[Record]) -> None:
        pass


class CollectedErrors(RecurringErrors):
    """Collects what would be logged."""

    def __init__(self) -> None:
        super().__init__()
        self._notes: set[str] = set()

    def report(self, subject: str, message: str, *, is_note: bool = False) -> None:
        self._messages[subject] = message
        if is_note:
            self._notes.add(subject)

    def pop(self, subject: str, default: str) -> str:
        """Take out the message of a subject, which is shown elsewhere."""
        return self._messages.pop(subject, default)

    @property
    def errors(self) -> list[str]:
        """The messages that are not notes."""
        return [message for subject, message in self._messages.items() if subject not in self._notes]

    @property
    def notes(self) -> list[str]:
        """The messages of what does not affect replication."""
        return [message for subject, message in self._messages.items() if subject in self._notes]
