"""Bringing the ACLs of remote topics, and of groups when asked, up to those of the source; which they are says `acl_sync`.

Java creates all of them in every interval and never takes one away. Here what is there is not created again, and what
this flow has created goes when the ACL that it was created for is gone from the source. Which those are stands in the
flow's ledger, with the id of the source cluster: an ACL that somebody else has made is never touched, and a source that
was built anew, without its ACLs, takes none from the target.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from mm2.copy.ledger import note_record
from mm2.kafka.admin import Admin
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.records.record import Record
from mm2.kafka.settings import ClientSettings
from mm2.kafka.structs import AclBinding, AclOperation, AclPermission, PatternType, ResourceType
from mm2.mirror.acl_sync import EVERYBODY, acl_filter, covering, may_hold_for, remote_acls, remote_operation
from mm2.mirror.discovery import chunks
from mm2.mirror.filters import GroupFilter
from mm2.mirror.ledgers import ACL_NOTE, Ledgers, Notes
from mm2.mirror.policy import DefaultReplicationPolicy
from mm2.mirror.promotions import promoted
from mm2.mirror.recurring_errors import RecurringErrors
from mm2.mirror.selection import TopicSelection

log = structlog.get_logger(__name__)

GROUP_ACLS_KEY: Final = "sync.group.acls.enabled"
ACLS_PER_REQUEST: Final = 1000
"""KRaft refuses a request with more than 10,000 as a whole."""


@dataclass(frozen=True)
class AclPlan:
    """What `TopicAcls.sync` would do: ACLs to ``create`` and to ``note`` (they are there, and were for another ACL of the source
    or for other flows only), with the source's for which they are; and ACLs to ``remove``, None while it is not known which are
    the flow's own, and to ``leave`` to other flows, which have them, too.

    ``eased`` are those of the source which deny MirrorMaker to write, and do not on the target. ``there`` are those that the
    target has, ``cluster_id`` is the source's.
    """

    create: Mapping[AclBinding, AclBinding]
    note: Mapping[AclBinding, AclBinding]
    remove: tuple[AclBinding, ...] | None
    leave: tuple[AclBinding, ...]
    eased: tuple[AclBinding, ...]
    there: frozenset[AclBinding]
    cluster_id: str


@dataclass
class TopicAcls:
    """The ACL sync of one flow. `groups` None: ACLs of groups are left alone. `writers`: the principals which may be the
    flow's own on the target."""

    source_admin: Admin
    target_admin: Admin
    selection: TopicSelection
    groups: GroupFilter | None
    ledgers: Ledgers
    recurring: RecurringErrors
    writers: frozenset[str] = frozenset({EVERYBODY})
    # What we have created, with the note of it; None while that is not known.
    _created: dict[AclBinding, Mapping[str, Any]] | None = field(default=None, init=False)
    _told: set[AclBinding] = field(default_factory=set, init=False)
    _hint_given: bool = field(default=False, init=False)

    def sync(self, topics: Collection[str], refused: Collection[str] = ()) -> bool:
        """Create what is missing and remove what is over.

        `topics` are those of the source that are replicated now, `refused` those that are not, though they are selected.

        False when some of it did not succeed. Raises KafkaFailure when a cluster does not tell its ACLs.
        """
        try:
            plan = self.plan(topics, refused)
        except BrokerFailure as failure:
            if failure.code != ErrorCode.SECURITY_DISABLED:
                raise
            level = log.debug if self._hint_given else log.info
            self._hint_given = True
            level("A cluster has no authorizer, so there are no ACLs to sync; consider sync.topic.acls.enabled=false.")
            return True
        for acl in set(plan.eased) - self._told:
            log.info("Not on the target, where MirrorMaker has to write and nobody else may.", acl=sentence(acl))
        self._told = set(plan.eased)
        created = self._create(plan.create)
        removed = True
        if plan.remove is not None:
            noted = {**{acl: plan.create[acl] for acl in created}, **plan.note}
            notes = {acl: {"of": _fields(of), "cluster": plan.cluster_id} for acl, of in noted.items()}
            self._note({**notes, **dict.fromkeys(plan.leave)})
            removed = self._remove(plan.remove, plan.there)
        return removed and len(created) == len(plan.create)

    def plan(self, topics: Collection[str], refused: Collection[str] = ()) -> AclPlan:
        """What `sync` would do; changes nothing. Raises KafkaFailure when a cluster does not tell its ACLs, BrokerFailure 54
        when one has no authorizer."""
        here = self._described(self.source_admin)
        there = self._described(self.target_admin)
        here -= self._brought()
        wanted = remote_acls(here, self.selection, topics, self.groups, refused=refused, writers=self.writers)
        cluster_id = self.source_admin.describe_cluster().cluster_id or ""
        create = {
            acl: of for acl, of in wanted.items() if acl not in there and covering(acl, of, self.selection) not in there
        }
        eased = tuple(acl for acl in here if self._denies_us(acl))
        if not self._load():
            return AclPlan(create, {}, None, (), eased, frozenset(there), cluster_id)
        gone = {acl: of for acl, of in self._sources().items() if of not in here}
        over = [
            acl
            for acl in gone
            if acl not in wanted and self._notes()[acl].get("cluster") == cluster_id and self._ours(acl)
        ]
        if over:
            # Topics that were handed over are at home on the target: who uses them there keeps what they may do, also when
            # the source is closed to everybody so that nobody works there any more.
            held = {one.remote_topic for one in promoted(self.ledgers.own()).values()}
            over = [acl for acl in over if not may_hold_for(acl, held)]
        others = self._of_others()
        shared = {acl for acl in others if acl in there and acl in wanted and acl not in self._notes()}
        note = {acl: wanted[acl] for acl in {acl for acl in gone if acl in wanted} | shared}
        remove = tuple(acl for acl in over if acl not in others)
        leave = tuple(acl for acl in over if acl in others)
        return AclPlan(create, note, remove, leave, eased, frozenset(there), cluster_id)

    def _described(self, admin: Admin) -> set[AclBinding]:
        kinds = [ResourceType.TOPIC] + ([ResourceType.GROUP] if self.groups is not None else [])
        return {acl for kind in kinds for acl in admin.describe_acls(acl_filter(kind))}

    def _brought(self) -> set[AclBinding]:
        """ACLs of the source that flows into it have created, where names do not say so.

        Two flows in opposite directions would keep each other's alive for ever.
        """
        if self._names_tell():
            return set()
        return _bindings(self.ledgers.notes_of_source(ACL_NOTE, self.source_admin))

    def _of_others(self) -> set[AclBinding]:
        """ACLs of the target that other flows into it have created, or want as much as the one that did.

        Two flows from clusters with the same groups would take each other's away.
        """
        return set() if self._names_tell() else _bindings(self.ledgers.notes_of_others(ACL_NOTE))

    def _denies_us(self, acl: AclBinding) -> bool:
        is_denial = acl.resource_type == ResourceType.TOPIC and acl.permission == AclPermission.DENY
        return is_denial and remote_operation(acl, self.writers) is not acl.operation

    def _names_tell(self) -> bool:
        """Whose an ACL is, is said by the name of its topic."""
        return self.groups is None and type(self.selection.policy) is DefaultReplicationPolicy

    def _create(self, missing: Mapping[AclBinding, AclBinding]) -> list[AclBinding]:
        """Those that have been created."""
        answers: dict[AclBinding, KafkaFailure | None] = {}
        for some in chunks(missing, ACLS_PER_REQUEST):
            answers.update(self.target_admin.create_acls(some))
        created = []
        for acl in missing:
            subject, answer = sentence(acl), answers.get(acl)
            if isinstance(answer, KafkaFailure):
                target = self.selection.target_alias
                self.recurring.report(subject, f"{subject} cannot be created on cluster {target}: {answer}")
            else:
                self.recurring.resolve(subject)
                log.info("Created ACL.", acl=subject)
                created.append(acl)
        return created

    def _remove(self, over: Collection[AclBinding], there: Collection[AclBinding]) -> bool:
        present = [acl for acl in over if acl in there]
        answers: dict[AclBinding, KafkaFailure | None] = {}
        for some in chunks(present, ACLS_PER_REQUEST):
            answers.update(self.target_admin.delete_acls(some))
        gone = []
        for acl in over:
            subject, answer = sentence(acl), answers.get(acl)
            if isinstance(answer, KafkaFailure):
                target = self.selection.target_alias
                self.recurring.report(subject, f"{subject} cannot be removed from cluster {target}: {answer}")
                continue
            self.recurring.resolve(subject)
            gone.append(acl)
            if acl in there:
                log.info("Removed an ACL that is gone from the source.", acl=subject)
        self._note(dict.fromkeys(gone))
        return len(gone) == len(over)

    def _ours(self, acl: AclBinding) -> bool:
        # Group ACLs that were synced once are left alone when nobody asks for them any more.
        return acl.resource_type == ResourceType.TOPIC or self.groups is not None

    # -- what we have created

    def _load(self) -> bool:
        """Whether it is known what we have created."""
        if self._created is not None:
            return True
        subject = "ledger of ACLs"
        try:
            notes = self.ledgers.own().notes(ACL_NOTE)
        except KafkaFailure as failure:
            self.recurring.report(
                subject, f"Which ACLs this flow has created is not known, so none is removed: {failure}"
            )
            return False
        self.recurring.resolve(subject)
        self._created = {acl: value for name, value in notes.items() if (acl := _binding(name)) is not None}
        return True

    def _notes(self) -> dict[AclBinding, Mapping[str, Any]]:
        return self._created if self._created is not None else {}

    def _sources(self) -> dict[AclBinding, AclBinding | None]:
        """For which ACL of the source each of ours was created."""
        return {acl: _binding(note.get("of", ())) for acl, note in self._notes().items()}

    def _note(self, notes: Mapping[AclBinding, Mapping[str, Any] | None]) -> None:
        """Remember, in the ledger first."""
        records: list[Record] = [note_record(ACL_NOTE, _fields(acl), value) for acl, value in notes.items()]
        self.ledgers.write(records)
        for acl, value in notes.items():
            if value is None:
                self._notes().pop(acl, None)
            else:
                self._notes()[acl] = value


def _bindings(flows: Iterable[Notes]) -> set[AclBinding]:
    return {acl for names in flows for name in names if (acl := _binding(name)) is not None}


def writing_principals(settings: ClientSettings) -> frozenset[str]:
    """Those which a client may be. A user's name is known where it logs in by one; what the broker makes of a certificate or a
    token is its own affair."""
    sasl = settings.sasl
    named = sasl is not None and (sasl.mechanism == "PLAIN" or sasl.mechanism.startswith("SCRAM"))
    users = [value for name, value in sasl.options if name == "username"] if sasl is not None and named else []
    return frozenset({EVERYBODY, *(f"User:{user}" for user in users)})


def _fields(acl: AclBinding) -> list[str]:
    return [
        acl.resource_type.name,
        acl.resource_name,
        acl.pattern_type.name,
        acl.principal,
        acl.host,
        acl.operation.name,
        acl.permission.name,
    ]


def _binding(fields: Any) -> AclBinding | None:
    """The inverse of `_fields`; None for what is none."""
    try:
        kind, name, pattern, principal, host, operation, permission = fields
        return AclBinding(
            ResourceType[kind],
            name,
            PatternType[pattern],
            principal,
            host,
            AclOperation[operation],
            AclPermission[permission],
        )
    except (ValueError, KeyError, TypeError):
        return None


def sentence(acl: AclBinding) -> str:
    """An ACL in words."""
    prefixed = " (prefix)" if acl.pattern_type == PatternType.PREFIXED else ""
    what = f"{acl.resource_type.name} {acl.resource_name}{prefixed}"
    return f"ACL {acl.principal} from {acl.host} {acl.permission.name} {acl.operation.name} on {what}"
