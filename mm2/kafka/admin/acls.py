"""Access control lists."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Any, TypeVar

from kafka.protocol.admin import CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest

from mm2.kafka.admin.calls import NOT_DONE, AdminCalls
from mm2.kafka.client.answer_checks import exactly
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.structs import AclBinding, AclFilter, AclOperation, AclPermission, PatternType, ResourceType

_Kind = TypeVar("_Kind", bound=IntEnum)
_EVERYTHING = AclFilter()


class AclCalls(AdminCalls):
    """ACLs: describe, create and delete."""

    def describe_acls(self, matching: AclFilter = _EVERYTHING) -> list[AclBinding]:
        """List the ACLs that match the filter.

        Raises BrokerFailure: SECURITY_DISABLED without an authorizer, CLUSTER_AUTHORIZATION_FAILED without DESCRIBE.
        """
        answer = self._ask_any(
            lambda: DescribeAclsRequest(
                **_filter(matching),
                # Version 0 has no pattern types: a prefixed ACL would look like a literal one.
                min_version=1,
            )
        )
        if answer.error_code:
            raise BrokerFailure.of(
                answer.error_code,
                answer.error_message,
                subject=f"ACLs of cluster {self.cluster.name}",
                needed="DESCRIBE",
            )
        return [_binding(resource, acl) for resource in answer.resources for acl in resource.acls]

    def create_acls(self, bindings: Iterable[AclBinding]) -> dict[AclBinding, KafkaFailure | None]:
        """Create ACLs; an ACL that already exists counts as created."""

        def ask(wanted: list[AclBinding], timeout_s: float) -> dict[AclBinding, KafkaFailure | None]:
            creations = [
                CreateAclsRequest.AclCreation(
                    resource_type=int(binding.resource_type),
                    resource_name=binding.resource_name,
                    resource_pattern_type=int(binding.pattern_type),
                    principal=binding.principal,
                    host=binding.host,
                    operation=int(binding.operation),
                    permission_type=int(binding.permission),
                )
                for binding in wanted
            ]
            request = CreateAclsRequest(creations=creations, min_version=1)
            answer = self.cluster.send(None, request, timeout_s=timeout_s)
            # Results carry no names; they are in the order of the request.
            return {
                binding: self._outcome(
                    "ACL on", binding.resource_name, result.error_code, result.error_message, needed="ALTER"
                )
                for binding, result in zip(wanted, exactly(len(wanted), answer.results, "ACLs"), strict=True)
            }

        # CreateAcls is idempotent.
        return self._settle(bindings, ask, again=NOT_DONE, repeatable=True)

    def delete_acls(self, bindings: Iterable[AclBinding]) -> dict[AclBinding, KafkaFailure | None]:
        """Delete exactly these ACLs; an ACL that does not exist counts as deleted."""

        def ask(wanted: list[AclBinding], timeout_s: float) -> dict[AclBinding, KafkaFailure | None]:
            filters = [DeleteAclsRequest.DeleteAclsFilter(**_filter(binding)) for binding in wanted]
            answer = self.cluster.send(None, DeleteAclsRequest(filters=filters, min_version=1), timeout_s=timeout_s)
            # Results carry no names; they are in the order of the request.
            return {
                binding: self._outcome(
                    "ACL on", binding.resource_name, result.error_code, result.error_message, needed="ALTER"
                )
                or next(
                    (
                        self._outcome(
                            "ACL on", binding.resource_name, acl.error_code, acl.error_message, needed="ALTER"
                        )
                        for acl in result.matching_acls
                        if acl.error_code
                    ),
                    None,
                )
                for binding, result in zip(wanted, exactly(len(wanted), answer.filter_results, "ACLs"), strict=True)
            }

        return self._settle(bindings, ask, again=NOT_DONE, repeatable=True)


def _filter(acl: AclFilter | AclBinding) -> dict[str, Any]:
    """The filter fields of DescribeAcls and DeleteAcls."""
    return {
        "resource_type_filter": int(acl.resource_type),
        "resource_name_filter": acl.resource_name,
        "pattern_type_filter": int(acl.pattern_type),
        "principal_filter": acl.principal,
        "host_filter": acl.host,
        "operation": int(acl.operation),
        "permission_type": int(acl.permission),
    }


def _binding(resource: Any, acl: Any) -> AclBinding:
    return AclBinding(
        resource_type=_member(ResourceType, resource.resource_type),
        resource_name=resource.resource_name,
        pattern_type=_member(PatternType, resource.pattern_type),
        principal=acl.principal,
        host=acl.host,
        operation=_member(AclOperation, acl.operation),
        permission=_member(AclPermission, acl.permission_type),
    )


def _member(kind: type[_Kind], number: int) -> _Kind:
    """The enum member for a protocol number, or UNKNOWN (0 in every enum) for numbers of newer brokers."""
    try:
        return kind(number)
    except ValueError:
        return kind(0)
