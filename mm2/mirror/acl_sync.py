"""Which ACLs of source topics hold for the remote topics (spec mirrormaker §3.6). Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Final

from mm2.kafka.structs import AclBinding, AclFilter, AclOperation, AclPermission, PatternType, ResourceType
from mm2.mirror.selection import TopicSelection

TOPIC_ACLS: Final = AclFilter(resource_type=ResourceType.TOPIC)
"""All ACLs of topics, whatever their name, pattern and entry."""


def remote_acls(acls: Iterable[AclBinding], selection: TopicSelection) -> list[AclBinding]:
    """The ACLs that remote topics shall have.

    Literal ones of replicated topics only. Nobody but MirrorMaker writes remote topics, so ALLOW WRITE is dropped and
    ALLOW ALL becomes ALLOW READ; everything else, DENY included, is taken as it is.
    """
    remote: dict[AclBinding, None] = {}
    for acl in acls:
        allow = acl.permission == AclPermission.ALLOW
        if (
            acl.resource_type != ResourceType.TOPIC
            or acl.pattern_type != PatternType.LITERAL
            or (allow and acl.operation == AclOperation.WRITE)
            or not selection.should_replicate(acl.resource_name)
        ):
            continue
        operation = AclOperation.READ if allow and acl.operation == AclOperation.ALL else acl.operation
        name = selection.remote(acl.resource_name)
        remote[dataclasses.replace(acl, resource_name=name, operation=operation)] = None
    return list(remote)
