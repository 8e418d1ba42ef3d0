"""Syncs the ACLs of remote topics, and optionally of groups, from the source; `remote_acls` computes them.

Java creates all ACLs in each interval and never deletes any. Here existing ACLs are not created again, and an ACL that
this flow has created is deleted when its source ACL no longer exists. The flow's ledger stores which these are, with
the id of the source cluster. An ACL that another client has created is never changed, and a source that was recreated
without its ACLs deletes none on the target.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from mm2.copy.progress.ledger import note_record
from mm2.kafka.admin import Admin
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.records.record import Record
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import AclBinding, AclOperation, AclPermission, PatternType, ResourceType
from mm2.mirror.common.discovery import chunks
from mm2.mirror.common.recurring_errors import RecurringErrors
from mm2.mirror.filters import GroupFilter
from mm2.mirror.notes.ledgers import ACL_NOTE, DENIAL_NOTE, Ledgers, Notes
from mm2.mirror.notes.promotions import promoted
from mm2.mirror.topics.remote_acls import (
    EVERYBODY,
    acl_filter,
    covering,
    is_copy,
    may_hold_for,
    remote_acls,
    remote_operation,
)
from mm2.mirror.topics.selection import TopicSelection

log = structlog.get_logger("mm2.mirror.topic_acls")

GROUP_ACLS_KEY: Final = "sync.group.acls.enabled"
ACLS_PER_REQUEST: Final = 1000
"""ACLs per request; KRaft rejects a request with more than 10,000 as a whole."""


@dataclass(frozen=True)
class AclPlan:
    """What `TopicAcls.sync` does.

    ``create`` are ACLs to create. ``note`` are existing ACLs to note as the flow's own, which so far were noted for
    another source ACL or for other flows only. Both are mapped to their source ACLs. ``remove`` are ACLs to delete;
    None while it is not known which ones are the flow's own. ``leave`` are those that other flows have noted too, and
    that are left to them.

    ``eased`` are source ACLs that deny WRITE to MirrorMaker, and do not deny it on the target. ``there`` are the
    existing ACLs of the target; ``cluster_id`` is that of the source.
    """

    create: Mapping[AclBinding, AclBinding]
    note: Mapping[AclBinding, AclBinding]
    remove: tuple[AclBinding, ...] | None
    leave: tuple[AclBinding, ...]
    eased: frozenset[AclBinding]
    there: frozenset[AclBinding]
    cluster_id: str


@dataclass
class TopicAcls:
    """The ACL sync of one flow.

    `groups` None: ACLs of groups are not synced. `writers`: the principals that the flow's clients may have on the
    target. `denied`: ACLs that `WriteDenials` has created; those that are copies, too, have notes of both.
    """

    source_admin: Admin
    target_admin: Admin
    selection: TopicSelection
    groups: GroupFilter | None
    ledgers: Ledgers
    recurring: RecurringErrors
    writers: frozenset[str] = frozenset({EVERYBODY})
    denied: Callable[[], Collection[AclBinding]] = tuple
    # The ACLs that we have created, with their notes; None while they are not known.
    _created: dict[AclBinding, Mapping[str, Any]] | None = field(default=None, init=False)
    _losses: int = field(default=0, init=False)  # of the ledger, when all notes were in it
    #: The source ACLs of the last `sync` that deny WRITE to MirrorMaker, and do not deny it on the target.
    eased: frozenset[AclBinding] = field(default=frozenset(), init=False)
    #: Whether a cluster has none.
    lacks_authorizer: bool = field(default=False, init=False)

    def sync(self, topics: Collection[str], refused: Collection[str] = ()) -> bool:
        """Create missing ACLs and delete obsolete ones.

        `topics` are the replicated topics of the source, `refused` those that are selected but not replicated. False if
        a change failed. Raises KafkaFailure if a cluster does not return its ACLs.
        """
        try:
            plan = self.plan(topics, refused)
        except BrokerFailure as failure:
            if failure.code != ErrorCode.SECURITY_DISABLED:
                raise
            level = log.debug if self.lacks_authorizer else log.info
            self.lacks_authorizer = True
            level("A cluster has no authorizer, so there are no ACLs to sync; consider sync.topic.acls.enabled=false.")
            return True
        for acl in plan.eased - self.eased:
            log.info("ACL is not copied to the target, where only MirrorMaker may write.", acl=sentence(acl))
        self.eased = plan.eased
        created = self._create(plan.create)
        removed = True
        if plan.remove is not None:
            noted = {**{acl: plan.create[acl] for acl in created}, **plan.note}
            notes = {acl: {"of": fields_of(of), "cluster": plan.cluster_id} for acl, of in noted.items()}
            losses = self.ledgers.losses
            # Without its note, the next process would take an ACL for that of another client, and never delete it.
            lost = self._notes() if losses != self._losses else {}
            self._note({**lost, **notes, **dict.fromkeys(plan.leave)})
            self._losses = losses
            removed = self._remove(plan.remove, plan.there)
        return removed and len(created) == len(plan.create)

    def plan(self, topics: Collection[str], refused: Collection[str] = ()) -> AclPlan:
        """What `sync` does; changes nothing.

        Raises KafkaFailure if a cluster does not return its ACLs, SECURITY_DISABLED if it has no authorizer.
        """
        here = self._described(self.source_admin)
        there = self._described(self.target_admin)
        # Without a proof another client of the source may have written a note, to have copies on the target deleted.
        present = here - self._brought(proven=True)
        here -= self._brought()
        wanted = remote_acls(here, self.selection, topics, self.groups, refused=refused, writers=self.writers)
        cluster_id = self.source_admin.describe_cluster().cluster_id or ""
        is_known = self._load()
        denied = set(self.denied())
        copied = there - (denied - self._notes().keys())
        create = {
            acl: of
            for acl, of in wanted.items()
            if acl not in copied and covering(acl, of, self.selection) not in there
        }
        eased = frozenset(acl for acl in here if self._denies_us(acl))
        if not is_known:
            return AclPlan(create, {}, None, (), eased, frozenset(there), cluster_id)
        # A prefix of an earlier version, in place of which there is now an ACL for each topic.
        literal = {of for acl, of in wanted.items() if acl.pattern_type is PatternType.LITERAL}
        gone = {
            acl: of
            for acl, of in self._sources().items()
            if of not in present or (acl.pattern_type is PatternType.PREFIXED and of in literal)
        }
        over = [
            acl
            for acl in gone
            if acl not in wanted and self._notes()[acl].get("cluster") == cluster_id and self._ours(acl)
        ]
        if over:
            # Promoted topics belong to the target: their clients keep their ACLs there, even if the source is closed to
            # all clients after the failover.
            held = {one.remote_topic for one in promoted(self.ledgers.own()).values()}
            over = [acl for acl in over if not may_hold_for(acl, held)]
        others = self._of_others()
        shared = {acl for acl in others if acl in there and acl in wanted and acl not in self._notes()}
        note = {acl: wanted[acl] for acl in {acl for acl in gone if acl in wanted} | shared}
        remove = tuple(acl for acl in over if acl not in others | denied)
        leave = tuple(acl for acl in over if acl in others | denied)
        return AclPlan(create, note, remove, leave, eased, frozenset(there), cluster_id)

    def _described(self, admin: Admin) -> set[AclBinding]:
        kinds = [ResourceType.TOPIC] + ([ResourceType.GROUP] if self.groups is not None else [])
        return {acl for kind in kinds for acl in admin.describe_acls(acl_filter(kind))}

    def _brought(self, *, proven: bool = False) -> set[AclBinding]:
        """ACLs of the source that flows into it have created, if topic names do not show this. ``proven``: by proven ledgers.

        Otherwise two flows in opposite directions would preserve each other's ACLs forever.
        """
        if self._names_show_flow():
            return set()
        kinds = (ACL_NOTE, DENIAL_NOTE)
        notes = (self.ledgers.notes_of_source(kind, self.source_admin, proven=proven) for kind in kinds)
        return set().union(*map(_bindings, notes))

    def _of_others(self) -> set[AclBinding]:
        """ACLs of the target that other flows have created, or want in addition to the flow that created them.

        Otherwise two flows from clusters with the same groups would delete each other's ACLs.
        """
        return set() if self._names_show_flow() else _bindings(self.ledgers.notes_of_others(ACL_NOTE))

    def _denies_us(self, acl: AclBinding) -> bool:
        is_denial = acl.resource_type == ResourceType.TOPIC and acl.permission == AclPermission.DENY
        return is_denial and remote_operation(acl, self.writers) is not acl.operation

    def _names_show_flow(self) -> bool:
        """Whether the name of its topic shows which flow an ACL belongs to."""
        return self.groups is None and self.selection.names_show_origin

    def _create(self, missing: Mapping[AclBinding, AclBinding]) -> list[AclBinding]:
        """Create ACLs; returns those that were created."""
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
                log.info("Removed an ACL that no longer exists on the source.", acl=subject)
        self._note(dict.fromkeys(gone))
        return len(gone) == len(over)

    def _ours(self, acl: AclBinding) -> bool:
        # ACLs of groups that were synced once are kept when their sync is disabled.
        return acl.resource_type == ResourceType.TOPIC or self.groups is not None

    # -- ACLs that we have created

    def _load(self) -> bool:
        """Load which ACLs we have created; whether this is known."""
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
        self._created = {
            acl: value
            for name, value in notes.items()
            if (acl := acl_of(name)) is not None
            and (of := acl_of(value.get("of", ()))) is not None
            and is_copy(acl, of, self.selection)
        }
        self._losses = self.ledgers.losses
        return True

    def _notes(self) -> dict[AclBinding, Mapping[str, Any]]:
        return self._created if self._created is not None else {}

    def _sources(self) -> dict[AclBinding, AclBinding | None]:
        """The source ACL of each ACL that we have created."""
        return {acl: acl_of(note.get("of", ())) for acl, note in self._notes().items()}

    def _note(self, notes: Mapping[AclBinding, Mapping[str, Any] | None]) -> None:
        """Store the notes, first in the ledger."""
        records: list[Record] = [note_record(ACL_NOTE, fields_of(acl), value) for acl, value in notes.items()]
        self.ledgers.write(records)
        for acl, value in notes.items():
            if value is None:
                self._notes().pop(acl, None)
            else:
                self._notes()[acl] = value


def _bindings(flows: Iterable[Notes]) -> set[AclBinding]:
    return {acl for names in flows for name in names if (acl := acl_of(name)) is not None}


def writing_principals(settings: ClientSettings) -> frozenset[str]:
    """The principals that a client may have.

    A user name is known if the client authenticates with one. The principal of a certificate or a token depends on the
    broker's configuration.
    """
    sasl = settings.sasl
    named = sasl is not None and (sasl.mechanism == "PLAIN" or sasl.mechanism.startswith("SCRAM"))
    users = [value for name, value in sasl.options if name == "username"] if sasl is not None and named else []
    return frozenset({EVERYBODY, *(f"User:{user}" for user in users)})


def fields_of(acl: AclBinding) -> list[str]:
    """The name of an ACL in notes of a ledger."""
    return [
        acl.resource_type.name,
        acl.resource_name,
        acl.pattern_type.name,
        acl.principal,
        acl.host,
        acl.operation.name,
        acl.permission.name,
    ]


def acl_of(fields: Any) -> AclBinding | None:
    """The inverse of `fields_of`; None for an invalid value."""
    try:
        kind, name, pattern, principal, host, operation, permission = map(str, fields)
        # Anything else is a filter, and would delete all ACLs that match it.
        if {kind, pattern, operation, permission} & {"UNKNOWN", "ANY", "MATCH"}:
            return None
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
    """An ACL as text."""
    prefixed = " (prefix)" if acl.pattern_type == PatternType.PREFIXED else ""
    what = f"{acl.resource_type.name} {acl.resource_name}{prefixed}"
    return f"ACL {acl.principal} from {acl.host} {acl.permission.name} {acl.operation.name} on {what}"
