"""Leaves WRITE on remote topics with preserved offsets to the flow (`preserve.offsets.deny.writes`).

Kafka has no ACL that allows an operation to one user only, and a DENY for all users would include the flow (StandardAuthorizer: DENY
wins over ALLOW). Where an ACL applies to a topic, a user may write only if an ACL allows it. So for each ACL that allows WRITE to another
principal there is one that denies it to this principal, on this topic only. Not denied are super users, to whom no ACL applies.

The flow's ledger has a note of each denial, written before the ACL, so that no crash leaves an ACL that `mm2 failover` does not know: it
would keep applications from writing. A promotion and a denial cannot miss each other: the leader reads the ledger again after it has
created ACLs, and a command deletes those in the ledger after it has stored the promotion.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import structlog

from mm2.config.configdef import ConfigException
from mm2.config.keys.mirror_keys import DENY_WRITES_KEY
from mm2.connect.api import ConnectError
from mm2.copy.progress.ledger import Ledger, note_record
from mm2.kafka.admin import Admin
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.records.record import Record
from mm2.kafka.structs import (
    LATEST,
    AclBinding,
    AclOperation,
    AclPermission,
    OffsetInfo,
    PatternType,
    ResourceType,
    TopicInfo,
    TopicPartition,
)
from mm2.mirror.common.clients import ClientKind, MirrorClients, Side
from mm2.mirror.common.discovery import chunks, vanished
from mm2.mirror.common.recurring_errors import RecurringErrors
from mm2.mirror.notes.ledgers import ACL_NOTE, DENIAL_NOTE, FILLING_NOTE, Ledgers
from mm2.mirror.notes.promotions import promoted
from mm2.mirror.topics.remote_acls import EVERYBODY, acl_filter, applies_to
from mm2.mirror.topics.selection import TopicSelection
from mm2.mirror.topics.topic_acls import ACLS_PER_REQUEST, acl_of, fields_of, sentence, writing_principals

log = structlog.get_logger("mm2.mirror.write_denials")

_WRITING: Final = frozenset({AclOperation.WRITE, AclOperation.ALL})
_REFUSALS: Final = frozenset({ErrorCode.SECURITY_DISABLED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED})
#: A broker applies an ACL, or its removal, some time after the controller has acknowledged it.
VISIBLE_S: Final = 10.0
_POLL_S: Final = 0.1


class WantedDenials(NamedTuple):
    """The ACLs that leave WRITE on a topic to the flow, or why there are none that do."""

    acls: frozenset[AclBinding]
    problem: str = ""


def wanted_denials(remote: str, acls: Iterable[AclBinding], own: Collection[str]) -> WantedDenials:
    """The denials for a remote topic, given all ACLs of topics. ``own``: the principals of the flow."""
    applying = [acl for acl in acls if applies_to(acl, remote)]
    if not applying:
        problem = (
            f"no ACL applies to topic {remote}, so with allow.everyone.if.no.acl.found=true every user may write to it: create an ACL "
            "for those who read it"
        )
        return WantedDenials(frozenset(), problem)
    writing = [acl for acl in applying if acl.operation in _WRITING]
    denials = set()
    for acl in writing:
        if acl.permission is not AclPermission.ALLOW or acl.principal in own:
            continue
        if acl.principal == EVERYBODY:
            problem = f"{sentence(acl)}, so WRITE on {remote} cannot be left to the flow: replace this ACL by one for each user"
            return WantedDenials(frozenset(), problem)
        denials.add(
            dataclasses.replace(
                acl,
                resource_name=remote,
                pattern_type=PatternType.LITERAL,
                operation=AclOperation.WRITE,
                permission=AclPermission.DENY,
            )
        )
    return WantedDenials(frozenset(denials))


def noted_denials(ledger: Ledger) -> dict[AclBinding, str]:
    """The denials of a flow, with their source topics, from its ledger. They may not exist yet."""
    notes = ledger.notes(DENIAL_NOTE).items()
    return {
        acl: str(value.get("topic", ""))
        for name, value in notes
        if (acl := acl_of(name)) is not None and is_denial(acl)
    }


def is_denial(acl: AclBinding) -> bool:
    """Whether it denies WRITE on one topic: a note can name any ACL, and the flow creates no other ones here."""
    kind = (acl.resource_type, acl.pattern_type, acl.operation, acl.permission)
    return kind == (ResourceType.TOPIC, PatternType.LITERAL, AclOperation.WRITE, AclPermission.DENY)


def denial_note(acl: AclBinding, topic: str | None) -> Record:
    """The note of a denial for a source topic; None: its deletion."""
    return note_record(DENIAL_NOTE, fields_of(acl), None if topic is None else {"topic": topic})


def flow_principals(clients: MirrorClients) -> frozenset[str]:
    """The principals with which a flow writes to its target. Raises ConfigException if they are not known."""
    found: set[str] = set()
    for kind in (ClientKind.PRODUCER, ClientKind.ADMIN):
        settings = clients.settings(Side.TARGET, kind, "")
        users = writing_principals(settings) - {EVERYBODY}
        options = {} if settings.sasl is None else dict(settings.sasl.options)
        if not users or options.get("tokenauth", "").lower() == "true":
            reason = (
                f"the user name of the flow on {clients.target_alias} is known only with sasl.mechanism=PLAIN or SCRAM and without "
                "delegation tokens; without it, WRITE could be denied to the flow"
            )
            raise ConfigException(DENY_WRITES_KEY, "true", reason)
        found |= users
    return frozenset(found)


def refusal(failure: BrokerFailure, target: str) -> str:
    """Why WRITE cannot be denied on a cluster, as a sentence; "" for a failure that may pass."""
    if failure.code == ErrorCode.SECURITY_DISABLED:
        return f"{DENY_WRITES_KEY}=true needs an authorizer on cluster {target}, which has none (authorizer.class.name)"
    if failure.code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        return f"{DENY_WRITES_KEY}=true needs the rights DESCRIBE and ALTER on cluster {target}: {failure}"
    return ""


def delete_denials(
    admin: Admin, acls: Collection[AclBinding], synced: Collection[AclBinding]
) -> dict[AclBinding, KafkaFailure]:
    """Delete denials, except those that are copies of the source's ACLs, too; returns the failures. An ACL that is gone is deleted."""
    answers: dict[AclBinding, KafkaFailure | None] = {}
    for some in chunks([acl for acl in acls if acl not in synced], ACLS_PER_REQUEST):
        answers.update(admin.delete_acls(some))
    return {acl: answer for acl, answer in answers.items() if answer is not None}


def polled_until_empty(left: Callable[[], set[AclBinding]]) -> set[AclBinding]:
    """Wait until no ACLs are left, but not longer than `VISIBLE_S`; returns those that are."""
    deadline = time.monotonic() + VISIBLE_S
    while (acls := left()) and time.monotonic() <= deadline:
        time.sleep(_POLL_S)
    return acls


def synced_acls(ledger: Ledger) -> set[AclBinding]:
    """The ACLs that the flow's ACL sync has created."""
    return {acl for name in ledger.notes(ACL_NOTE) if (acl := acl_of(name)) is not None}


@dataclass
class WriteDenials:
    """The denials of one flow. Used by one thread.

    ``own``: the principals of the flow; None: nothing is denied any more. ``keeps``: whether a source topic is denied by the
    configuration, also one that is not there at the moment.
    """

    target_admin: Admin
    selection: TopicSelection
    ledgers: Ledgers
    recurring: RecurringErrors
    own: frozenset[str] | None
    keeps: Callable[[str], bool]
    _noted: dict[AclBinding, str] = field(default_factory=dict, init=False)
    _is_read: bool = field(default=False, init=False)
    _losses: int = field(default=0, init=False)  # of the ledger, when it was read
    _is_checked: bool = field(default=False, init=False)
    # Denials that took WRITE away from the flow, with the reason.
    _harmful: dict[AclBinding, str] = field(default_factory=dict, init=False)

    @property
    def noted(self) -> Collection[AclBinding]:
        """The denials of the flow, as of the last `ensure`."""
        return self._noted.keys()

    def ensure(self, topics: Collection[str]) -> dict[str, str]:
        """Deny writes to the remote topics of ``topics``, and remove denials that are not wanted any more.

        Returns why topics are not protected, by source topic. Raises ConnectError if the target has no authorizer or a right is missing,
        KafkaFailure if a cluster does not answer.
        """
        if self.own is None:
            self._forget()
            return {}
        try:
            return self._ensure(topics)
        except BrokerFailure as failure:
            if reason := refusal(failure, self.selection.target_alias):
                raise ConnectError(reason) from failure
            raise

    def _ensure(self, topics: Collection[str]) -> dict[str, str]:
        ledger = self._read()
        free = {topic for topic in topics if topic not in promoted(ledger)}
        there = self._there()
        if not self._is_checked:
            there -= self._delete_harmful(there, synced_acls(ledger))
            self._is_checked = True
        wanted, problems = self._wanted(free, there)
        missing = {acl: topic for acl, topic in wanted.items() if acl not in there}
        foreign = self._foreign(ledger, set(missing.values()))
        missing = {acl: topic for acl, topic in missing.items() if topic not in foreign}
        problems |= {topic: self._harmful[acl] for acl, topic in missing.items() if acl in self._harmful}
        missing = {acl: topic for acl, topic in missing.items() if acl not in self._harmful}
        if missing:
            problems |= self._create(missing)
            ledger = self.ledgers.own()  # it may have been promoted meanwhile
        over = self._over(ledger, wanted, free - problems.keys())
        self._delete(over, synced_acls(ledger))
        self._report(problems)
        return problems

    def _foreign(self, ledger: Ledger, topics: Collection[str]) -> set[str]:
        """Those of the topics whose remote topics have records that this flow has not written, as far as its ledger shows.

        Where names do not show the flow, a client of the source could otherwise take WRITE on a topic of the target's own from its
        applications, with a topic of this name. The first batch shows whether the flow may copy to it.
        """
        if not topics:  # at almost every refresh: the ledger may have ten thousand entries
            return set()
        own = {remote for remote, *_ in ledger.notes(FILLING_NOTE)}
        for tp in ledger.partitions():
            if (entry := ledger.entry(tp)) is not None and not entry.is_unbegun:
                own.add(entry.remote_topic)
        remotes = {remote: topic for topic in topics if (remote := self.selection.remote(topic)) not in own}
        described = self.target_admin.describe_topics(sorted(remotes)) if remotes else {}
        ends = self.target_admin.list_offsets(
            {
                TopicPartition(remote, partition): LATEST
                for remote, found in described.items()
                if isinstance(found, TopicInfo)
                for partition in found.partitions
            }
        )
        unknown = {
            remote for remote, found in described.items() if not (isinstance(found, TopicInfo) or vanished(found))
        }
        written = {tp.topic for tp, end in ends.items() if not isinstance(end, OffsetInfo) or end.offset > 0}
        return {remotes[remote] for remote in unknown | written}

    def _forget(self) -> None:
        """Delete what was denied before the setting was removed."""
        if self._is_read and not self._noted:
            return
        try:
            ledger = self._read()
            self._delete(list(self._noted), synced_acls(ledger))
        except KafkaFailure as failure:
            if self._noted:  # otherwise there is no ledger yet, and the next refresh reads it again
                self.recurring.report("denied writes", f"ACLs that deny WRITE cannot be deleted: {failure}")

    def _read(self) -> Ledger:
        ledger = self.ledgers.own()
        noted = noted_denials(ledger)
        if self._is_read and self._losses != self.ledgers.losses:
            # Without their notes, a failover would not delete the denials, and no application could write.
            lost = {acl: topic for acl, topic in self._noted.items() if acl not in noted}
            self.ledgers.write([denial_note(acl, topic) for acl, topic in lost.items()])
            noted |= lost
        self._noted, self._is_read, self._losses = noted, True, self.ledgers.losses
        return ledger

    def _there(self) -> set[AclBinding]:
        return set(self.target_admin.describe_acls(acl_filter(ResourceType.TOPIC)))

    def _wanted(
        self, topics: Iterable[str], there: Collection[AclBinding]
    ) -> tuple[dict[AclBinding, str], dict[str, str]]:
        wanted: dict[AclBinding, str] = {}
        problems: dict[str, str] = {}
        users = [acl for acl in there if acl not in self._noted]
        for topic in topics:
            found = wanted_denials(self.selection.remote(topic), users, self.own or ())
            wanted.update(dict.fromkeys(found.acls, topic))
            if found.problem:
                problems[topic] = found.problem
        return wanted, problems

    def _create(self, missing: Mapping[AclBinding, str]) -> dict[str, str]:
        """Create denials; returns why topics are not protected."""
        remotes = {acl.resource_name: topic for acl, topic in missing.items()}
        before = self._writable(remotes)
        self.ledgers.write([denial_note(acl, topic) for acl, topic in missing.items()])
        self._noted.update(missing)
        problems: dict[str, str] = {}
        for some in chunks(missing, ACLS_PER_REQUEST):
            for acl, answer in self.target_admin.create_acls(some).items():
                if isinstance(answer, BrokerFailure) and answer.code in _REFUSALS:
                    raise answer
                if answer is not None:
                    problems[missing[acl]] = f"{sentence(acl)} cannot be created: {answer}"
                else:
                    log.info("WRITE is denied, since offsets are preserved.", acl=sentence(acl))
        not_visible = polled_until_empty(lambda: set(missing) - self._there())
        problems |= {missing[acl]: f"{sentence(acl)} is not in effect yet" for acl in not_visible}
        for remote in before - self._writable(remotes):
            acls = [acl for acl in missing if acl.resource_name == remote]
            problems[remotes[remote]] = self._mark_harmful(remote, acls)
            self._delete(acls, ())
        return problems

    def _delete_harmful(self, there: Collection[AclBinding], synced: Collection[AclBinding]) -> set[AclBinding]:
        """Delete denials with which a predecessor took WRITE away from the flow, and was killed before it noticed; returns those that
        existed.
        """
        denials = {acl for acl in self._noted if acl in there and acl not in synced}
        unwritable = self._unwritable({acl.resource_name for acl in denials})
        deleted = {acl for acl in denials if acl.resource_name in unwritable}
        if not deleted:
            return deleted
        self._delete(deleted, synced)
        polled_until_empty(lambda: deleted & self._there())
        for remote in self._writable(unwritable):  # elsewhere the flow lacks the right for another reason
            self._mark_harmful(remote, [acl for acl in deleted if acl.resource_name == remote])
        return deleted

    def _mark_harmful(self, remote: str, acls: Collection[AclBinding]) -> str:
        """Do not create these denials again; returns the reason: the broker gives the flow another name than its user name."""
        names = ", ".join(sorted({acl.principal for acl in acls}))
        us = ", ".join(sorted(self.own or ()))
        reason = (
            f"WRITE on {remote} for {names} cannot be denied, since the flow would lose it, too: it is not only {us}"
        )
        self._harmful.update(dict.fromkeys(acls, reason))
        return reason

    def _writable(self, remotes: Iterable[str]) -> set[str]:
        rights = self.target_admin.topic_rights(remotes)
        return {
            remote for remote, found in rights.items() if isinstance(found, frozenset) and AclOperation.WRITE in found
        }

    def _unwritable(self, remotes: Collection[str]) -> set[str]:
        if not remotes:
            return set()
        rights = self.target_admin.topic_rights(remotes)
        return {
            remote
            for remote, found in rights.items()
            if (isinstance(found, frozenset) and AclOperation.WRITE not in found)
            or (isinstance(found, BrokerFailure) and found.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        }

    def _over(self, ledger: Ledger, wanted: Collection[AclBinding], decided: Collection[str]) -> list[AclBinding]:
        """The denials of promoted topics, of those that the configuration does not keep, and for principals that may not write any more.
        ``decided``: the topics of which ``wanted`` has all denials.
        """
        held = promoted(ledger)
        return [
            acl
            for acl, topic in self._noted.items()
            if topic in held
            or not self.keeps(topic)
            or self.selection.remote(topic) != acl.resource_name
            or (topic in decided and acl not in wanted)
        ]

    def _delete(self, acls: Collection[AclBinding], synced: Collection[AclBinding]) -> None:
        """Delete denials and their notes."""
        if not acls:
            return
        failed = delete_denials(self.target_admin, acls, synced)
        for acl, failure in failed.items():
            self.recurring.report(f"denial {sentence(acl)}", f"{sentence(acl)} cannot be deleted: {failure}")
        gone = [acl for acl in acls if acl not in failed]
        self.ledgers.write([denial_note(acl, None) for acl in gone])
        for acl in gone:
            self._noted.pop(acl, None)
            self.recurring.resolve(f"denial {sentence(acl)}")
            log.info("WRITE is not denied any more.", acl=sentence(acl))

    def _report(self, problems: Mapping[str, str]) -> None:
        prefix = "denied writes of "
        for topic, problem in problems.items():
            self.recurring.report(f"{prefix}{topic}", f"{topic} is not copied: {problem}")
        self.recurring.keep_only(prefix, {f"{prefix}{topic}" for topic in problems})
