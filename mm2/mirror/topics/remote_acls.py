"""Computes the ACLs of the target from those of the source (MirrorSourceConnector.syncTopicAcls). Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from mm2.kafka.structs import AclBinding, AclFilter, AclOperation, AclPermission, PatternType, ResourceType
from mm2.mirror.filters import GroupFilter
from mm2.mirror.topics.selection import TopicSelection

ALL_TOPICS: Final = "*"
"""The resource name of a literal pattern that matches every topic (or group)."""
EVERYBODY: Final = "User:*"
"""The principal that matches every user."""
_READING: Final = frozenset(
    {AclOperation.READ, AclOperation.WRITE, AclOperation.ALL, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS}
)
"""Operations of the source whose copies, see `remote_operation`, change nothing."""


def acl_filter(resource_type: ResourceType) -> AclFilter:
    """A filter for all ACLs of one resource type, with any name, pattern and entry."""
    return AclFilter(resource_type=resource_type)


def remote_acls(
    acls: Iterable[AclBinding],
    selection: TopicSelection,
    topics: Collection[str],
    groups: GroupFilter | None = None,
    *,
    refused: Collection[str] = (),
    writers: Collection[str] = (EVERYBODY,),
) -> dict[AclBinding, AclBinding]:
    """Return the ACLs that the target shall have; each is mapped to the source ACL it derives from.

    Topic ACLs: `remote_operation` defines how WRITE is mapped. A prefix, or `*` for all topics, becomes a prefix of
    remote topic names. It becomes one ACL for each of `topics`, the topics that are replicated now, if the prefix on the target would
    also match others: the policy does not keep prefixes, or adds nothing to them, so that the target's own topics have them, too; one of
    the `refused` topics, which the selection accepts but which are not replicated; or a topic that the flow uses itself, unless the
    operation only reads.

    Group ACLs, if there is a filter for groups: groups have the same names on both clusters. The ACL is copied
    unchanged if its resource name, also that of a prefix or `*`, passes the filter.
    """
    remote: dict[AclBinding, AclBinding] = {}
    for acl in acls:
        if acl.resource_type == ResourceType.GROUP:
            if groups is not None and groups.should_replicate_group(acl.resource_name):
                remote.setdefault(acl, acl)
        elif acl.resource_type == ResourceType.TOPIC and (operation := remote_operation(acl, writers)) is not None:
            for name, pattern in _patterns(acl, selection, topics, refused):
                copy = dataclasses.replace(acl, resource_name=name, pattern_type=pattern, operation=operation)
                remote.setdefault(copy, acl)
    return remote


def remote_operation(acl: AclBinding, writers: Collection[str]) -> AclOperation | None:
    """The operation of a topic ACL on the target; None if the ACL is dropped.

    Only MirrorMaker writes to remote topics, so no other principal is allowed to. WRITE must not be denied to the
    principals that MirrorMaker may use, its `writers`: a DENY that stops all producers of the source is not meant for
    replication. In both cases WRITE is dropped and ALL becomes READ. All other ACLs are copied unchanged, including
    DENY.
    """
    if acl.permission == AclPermission.ALLOW or acl.principal in writers:
        if acl.operation == AclOperation.WRITE:
            return None
        if acl.operation == AclOperation.ALL:
            return AclOperation.READ
    return acl.operation


def is_copy(acl: AclBinding, of: AclBinding, selection: TopicSelection) -> bool:
    """Whether the flow may have created an ACL of the target as a copy of this ACL of the source.

    A note in the ledger says that it has, and a client that may write there can name any ACL. Where names on the target do not show
    their source, an ACL of a topic that is not from the source is not distinguished.
    """
    if acl.resource_type is ResourceType.GROUP:
        return acl == of
    same = dataclasses.replace(
        of, resource_name=acl.resource_name, pattern_type=acl.pattern_type, operation=acl.operation
    )
    if (
        acl.resource_type is not ResourceType.TOPIC
        or acl != same
        or acl.operation not in {of.operation, AclOperation.READ}
    ):
        return False
    if of.pattern_type is PatternType.LITERAL and of.resource_name != ALL_TOPICS:
        return acl.pattern_type is PatternType.LITERAL and acl.resource_name == selection.remote(of.resource_name)
    prefix = "" if of.pattern_type is PatternType.LITERAL else of.resource_name
    remote_prefix = selection.remote_prefix(prefix)
    if acl.pattern_type is PatternType.PREFIXED:
        return bool(acl.resource_name) and acl.resource_name == remote_prefix
    if acl.resource_name == ALL_TOPICS or selection.reserves(acl.resource_name):
        return False
    is_kept = selection.names_show_origin or remote_prefix == prefix
    return not is_kept or acl.resource_name.startswith(remote_prefix)


def covering(acl: AclBinding, of: AclBinding, selection: TopicSelection) -> AclBinding | None:
    """The prefixed ACL that includes `acl`; None if there is none.

    `acl` is one of several derived from the source ACL `of`.
    """
    if of.pattern_type != PatternType.PREFIXED and of.resource_name != ALL_TOPICS:
        return None
    prefix = selection.remote_prefix("" if of.pattern_type == PatternType.LITERAL else of.resource_name)
    if acl.pattern_type != PatternType.LITERAL or not prefix or not acl.resource_name.startswith(prefix):
        return None
    return dataclasses.replace(acl, resource_name=prefix, pattern_type=PatternType.PREFIXED)


def applies_to(acl: AclBinding, topic: str) -> bool:
    """Whether an ACL of topics applies to this topic."""
    if acl.pattern_type is PatternType.PREFIXED:
        return topic.startswith(acl.resource_name)
    return acl.pattern_type is PatternType.LITERAL and acl.resource_name in {topic, ALL_TOPICS}


def may_hold_for(acl: AclBinding, topics: Collection[str]) -> bool:
    """Whether some of these topics may need the ACL.

    A topic ACL must match one of them. Any group ACL counts, since the groups that read the topics are not known.
    """
    if acl.resource_type == ResourceType.GROUP:
        return bool(topics)
    if acl.pattern_type == PatternType.PREFIXED:
        return any(topic.startswith(acl.resource_name) for topic in topics)
    return acl.resource_name in topics


def _patterns(
    acl: AclBinding, selection: TopicSelection, topics: Collection[str], refused: Collection[str]
) -> Iterator[tuple[str, PatternType]]:
    """Resource names and pattern types on the target for a topic ACL."""
    name = acl.resource_name
    if acl.pattern_type == PatternType.LITERAL and name != ALL_TOPICS:
        if name not in refused and selection.should_replicate(name):
            yield selection.remote(name), PatternType.LITERAL
        return
    if acl.pattern_type not in {PatternType.LITERAL, PatternType.PREFIXED}:
        return
    prefix = "" if acl.pattern_type == PatternType.LITERAL else name
    covered = [topic for topic in topics if topic.startswith(prefix)]
    if not covered:
        return
    remote_prefix = selection.remote_prefix(prefix)
    prefixed = {topic for topic in covered if remote_prefix and selection.remote(topic).startswith(remote_prefix)}
    if any(selection.remote(topic).startswith(remote_prefix) for topic in refused):
        prefixed = set()
    # Topics of the target have the same prefix, among them those in which Connect's configurations and the ledger are.
    if remote_prefix == prefix:
        prefixed = set()
    if acl.operation not in _READING and any(name.startswith(remote_prefix) for name in selection.reserved):
        prefixed = set()
    if prefixed:
        yield remote_prefix, PatternType.PREFIXED
    for topic in covered:
        if topic not in prefixed:
            yield selection.remote(topic), PatternType.LITERAL
