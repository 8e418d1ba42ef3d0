"""Which ACLs of the source hold on the target (spec mirrormaker §3.6). Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from mm2.kafka.structs import AclBinding, AclFilter, AclOperation, AclPermission, PatternType, ResourceType
from mm2.mirror.filters import GroupFilter
from mm2.mirror.selection import TopicSelection

ALL_TOPICS: Final = "*"
"""As the name of a literal pattern: whatever topic (or group)."""
EVERYBODY: Final = "User:*"
"""As a principal."""


def acl_filter(resource_type: ResourceType) -> AclFilter:
    """All ACLs of a kind of resource, whatever their name, pattern and entry."""
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
    """The ACLs that the target shall have, and for which one of the source each of them is.

    Of topics: see `remote_operation` for what becomes of WRITE. A prefix, or `*` for all topics, becomes a prefix of remote
    names; it becomes one ACL for each of `topics`, those that are replicated now, under a policy that does not keep prefixes,
    since `*` on the target would speak of topics that are none of the source's, and where the prefix would speak of one of
    the `refused` topics: those are not replicated, though the selection has nothing against them.

    Of groups, when there is a filter for them: groups have the same names on both clusters, so they are taken as they are
    when the name in the ACL, be it that of a prefix or `*`, passes the filter.
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
    """What an ACL of a topic speaks of on the target; None for nothing.

    Nobody but MirrorMaker writes remote topics, so nobody is allowed to, and it must not be denied to the principals which
    MirrorMaker may be, its `writers`: whoever stops all producers of the source does not mean the copy. WRITE is dropped and
    ALL becomes READ there. Everything else is taken as it is, DENY included.
    """
    if acl.permission == AclPermission.ALLOW or acl.principal in writers:
        if acl.operation == AclOperation.WRITE:
            return None
        if acl.operation == AclOperation.ALL:
            return AclOperation.READ
    return acl.operation


def covering(acl: AclBinding, of: AclBinding, selection: TopicSelection) -> AclBinding | None:
    """The ACL of a prefix of remote names that says the same as `acl` and more, which is one of several for `of` of the source;
    None when there is none."""
    if of.pattern_type != PatternType.PREFIXED and of.resource_name != ALL_TOPICS:
        return None
    prefix = selection.remote("" if of.pattern_type == PatternType.LITERAL else of.resource_name)
    if acl.pattern_type != PatternType.LITERAL or not prefix or not acl.resource_name.startswith(prefix):
        return None
    return dataclasses.replace(acl, resource_name=prefix, pattern_type=PatternType.PREFIXED)


def may_hold_for(acl: AclBinding, topics: Collection[str]) -> bool:
    """Whether some of these topics may need it: one of a topic when it covers one of them, any one of a group, since who reads
    them nobody knows."""
    if acl.resource_type == ResourceType.GROUP:
        return bool(topics)
    if acl.pattern_type == PatternType.PREFIXED:
        return any(topic.startswith(acl.resource_name) for topic in topics)
    return acl.resource_name in topics


def _patterns(
    acl: AclBinding, selection: TopicSelection, topics: Collection[str], refused: Collection[str]
) -> Iterator[tuple[str, PatternType]]:
    """Names and pattern types of remote topics for a topic ACL."""
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
    remote_prefix = selection.remote(prefix)
    prefixed = {topic for topic in covered if remote_prefix and selection.remote(topic).startswith(remote_prefix)}
    if any(selection.remote(topic).startswith(remote_prefix) for topic in refused):
        prefixed = set()
    if prefixed:
        yield remote_prefix, PatternType.PREFIXED
    for topic in covered:
        if topic not in prefixed:
            yield selection.remote(topic), PatternType.LITERAL
