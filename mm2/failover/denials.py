"""Removes the ACLs with which a flow leaves WRITE on remote topics to itself (`preserve.offsets.deny.writes`)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mm2.config.keys.mirror_keys import DENY_WRITES_KEY
from mm2.evidence import counted
from mm2.failover.groups import Choice
from mm2.failover.sides import Sides
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.structs import AclBinding, ResourceType
from mm2.mirror.notes.promotions import promoted
from mm2.mirror.topics.remote_acls import acl_filter
from mm2.mirror.topics.topic_acls import sentence
from mm2.mirror.topics.write_denials import (
    VISIBLE_S,
    delete_denials,
    denial_note,
    noted_denials,
    polled_until_empty,
    synced_acls,
)


def denials_of(sides: Sides, topics: Collection[str]) -> list[AclBinding]:
    """The denials of the flow on the remote topics of these source topics."""
    return sorted((acl for acl, topic in noted_denials(sides.ledger).items() if topic in topics), key=sentence)


def to_allow(sides: Sides, acls: Sequence[AclBinding]) -> list[str]:
    """What would be done, for a dry run."""
    what, target = counted(len(acls), "ACL"), sides.pair.target
    return [f"{what} that deny WRITE on {target} would be deleted ({DENY_WRITES_KEY})"] if acls else []


def allow_writes(sides: Sides, topics: Collection[str], before: Collection[AclBinding]) -> tuple[list[str], list[str]]:
    """Delete the denials on promoted topics: (done, problems). ``before``: those from before the promotion, of which the leader of the
    flow may have deleted some since.
    """
    target = sides.pair.target
    try:
        sides.refresh()  # none is created after the promotion was stored
        acls = sorted({*before, *denials_of(sides, topics)}, key=sentence)
        if not acls:
            return [], []
        synced = synced_acls(sides.ledger)
        there = _there(sides, acls)
        failed = delete_denials(sides.target, there, synced)
        gone = [acl for acl in acls if acl not in failed]
        deleted = {acl for acl in gone if acl not in synced}
        left = sorted(polled_until_empty(lambda: _there(sides, deleted)), key=sentence)
        # A note without an ACL stays for the leader of the flow, which may be about to create the ACL.
        sides.write_ledger([denial_note(acl, None) for acl in gone if acl in there])
    except KafkaFailure as failure:
        return [], [f"ACLs that deny WRITE on {target} may still be there, run the command again: {failure}"]
    problems = [f"{sentence(acl)} is not deleted, run the command again: {failure}" for acl, failure in failed.items()]
    problems += [f"{sentence(acl)} was deleted, but is still visible after {VISIBLE_S:.0f} s" for acl in left]
    done = [f"{counted(len(deleted), 'ACL')} that denied WRITE on {target} are deleted"] if deleted else []
    done += [f"{sentence(acl)} stays, since {sides.pair.source} has such an ACL, too" for acl in gone if acl in synced]
    return done, problems


def still_denied(sides: Sides, topics: Collection[str], choice: Choice) -> list[str]:
    """Chosen topics that are not among those to be promoted, because nothing of them was copied, as problems."""
    others = {
        topic for topic in noted_denials(sides.ledger).values() if topic not in topics and choice.has_topic(topic)
    }
    return [
        f"WRITE on {sides.selection.remote(topic)} stays denied, since nothing of {topic} was copied: set {DENY_WRITES_KEY}=false"
        for topic in sorted(others - promoted(sides.ledger).keys())
    ]


def _there(sides: Sides, acls: Collection[AclBinding]) -> set[AclBinding]:
    return set(acls) & set(sides.target.describe_acls(acl_filter(ResourceType.TOPIC)))
