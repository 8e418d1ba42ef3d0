"""Bringing the ACLs of remote topics, and of groups when asked, up to those of the source; which they are says `acl_sync`.

Java creates all of them in every interval and never takes one away. Here what is there is not created again, and what
this flow has created goes when the ACL that it was created for is gone from the source. Which those are stands in the
flow's ledger, with the id of the source cluster: an ACL that somebody else has made is never touched, and a source that
was built anew, without its ACLs, takes none from the target.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from mm2.copy.ledger import note_record
from mm2.kafka.admin import Admin
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.records.record import Record
from mm2.kafka.structs import AclBinding, AclOperation, AclPermission, PatternType, ResourceType
from mm2.mirror.acl_sync import acl_filter, remote_acls
from mm2.mirror.complaints import Complaints
from mm2.mirror.filters import GroupFilter
from mm2.mirror.ledgers import ACL_NOTE, Ledgers
from mm2.mirror.policy import DefaultReplicationPolicy
from mm2.mirror.selection import TopicSelection

log = structlog.get_logger(__name__)

GROUP_ACLS_KEY: Final = "sync.group.acls.enabled"


@dataclass
class TopicAcls:
    """The ACL sync of one flow. `groups` None: ACLs of groups are left alone."""

    source_admin: Admin
    target_admin: Admin
    selection: TopicSelection
    groups: GroupFilter | None
    ledgers: Ledgers
    complaints: Complaints
    # What we have created, with the note of it; None while that is not known.
    _created: dict[AclBinding, Mapping[str, Any]] | None = field(default=None, init=False)
    _hint_given: bool = field(default=False, init=False)

    def sync(self, topics: Collection[str], refused: Collection[str] = ()) -> bool:
        """Create what is missing and remove what is over.

        `topics` are those of the source that are replicated now, `refused` those that are not, though they are selected.

        False when some of it did not succeed. Raises KafkaFailure when a cluster does not tell its ACLs.
        """
        try:
            here = self._described(self.source_admin)
            there = self._described(self.target_admin)
        except BrokerFailure as failure:
            if failure.code != ErrorCode.SECURITY_DISABLED:
                raise
            level = log.debug if self._hint_given else log.info
            self._hint_given = True
            level("A cluster has no authorizer, so there are no ACLs to sync; consider sync.topic.acls.enabled=false.")
            return True
        here -= self._brought()
        wanted = remote_acls(here, self.selection, topics, self.groups, refused=refused)
        cluster_id = self.source_admin.describe_cluster().cluster_id or ""
        known = self._load()
        created = self._create({acl: of for acl, of in wanted.items() if acl not in there})
        if known:
            self._note({acl: {"of": _fields(wanted[acl]), "cluster": cluster_id} for acl in created})
            moved = {acl: wanted[acl] for acl, of in self._sources().items() if acl in wanted and of not in here}
            self._note({acl: {"of": _fields(of), "cluster": cluster_id} for acl, of in moved.items()})
            over = [
                acl
                for acl, of in self._sources().items()
                if acl not in wanted and of not in here and self._notes()[acl].get("cluster") == cluster_id
            ]
            removed = self._remove([acl for acl in over if self._ours(acl)], there)
        else:
            removed = True
        return removed and len(created) == len(wanted.keys() - there)

    def _described(self, admin: Admin) -> set[AclBinding]:
        kinds = [ResourceType.TOPIC] + ([ResourceType.GROUP] if self.groups is not None else [])
        return {acl for kind in kinds for acl in admin.describe_acls(acl_filter(kind))}

    def _brought(self) -> set[AclBinding]:
        """ACLs of the source that flows into it have created, where names do not say so.

        Two flows in opposite directions would keep each other's alive for ever.
        """
        if self.groups is None and type(self.selection.policy) is DefaultReplicationPolicy:
            return set()
        flows = self.ledgers.notes_of_source(ACL_NOTE, self.source_admin)
        return {acl for names in flows for name in names if (acl := _binding(name)) is not None}

    def _create(self, missing: Mapping[AclBinding, AclBinding]) -> list[AclBinding]:
        """Those that have been created."""
        answers = self.target_admin.create_acls(missing) if missing else {}
        created = []
        for acl in missing:
            subject, answer = _sentence(acl), answers.get(acl)
            if isinstance(answer, KafkaFailure):
                target = self.selection.target_alias
                self.complaints.say(subject, f"{subject} cannot be created on cluster {target}: {answer}")
            else:
                self.complaints.over(subject)
                log.info("Created ACL.", acl=subject)
                created.append(acl)
        return created

    def _remove(self, over: list[AclBinding], there: set[AclBinding]) -> bool:
        present = [acl for acl in over if acl in there]
        answers = self.target_admin.delete_acls(present) if present else {}
        gone = []
        for acl in over:
            subject, answer = _sentence(acl), answers.get(acl)
            if isinstance(answer, KafkaFailure):
                target = self.selection.target_alias
                self.complaints.say(subject, f"{subject} cannot be removed from cluster {target}: {answer}")
                continue
            self.complaints.over(subject)
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
            self.complaints.say(
                subject, f"Which ACLs this flow has created is not known, so none is removed: {failure}"
            )
            return False
        self.complaints.over(subject)
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


def _sentence(acl: AclBinding) -> str:
    prefixed = " (prefix)" if acl.pattern_type == PatternType.PREFIXED else ""
    what = f"{acl.resource_type.name} {acl.resource_name}{prefixed}"
    return f"ACL {acl.principal} from {acl.host} {acl.permission.name} {acl.operation.name} on {what}"
