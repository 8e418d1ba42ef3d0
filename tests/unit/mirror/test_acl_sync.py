import dataclasses

from mm2.kafka.structs import AclBinding, AclOperation, AclPermission, PatternType, ResourceType
from mm2.mirror.acl_sync import remote_acls
from mm2.mirror.filters import DefaultTopicFilter
from mm2.mirror.policy import DefaultReplicationPolicy
from mm2.mirror.selection import TopicSelection

READ = AclBinding(ResourceType.TOPIC, "t", PatternType.LITERAL, "User:u", "*", AclOperation.READ, AclPermission.ALLOW)


def remote(*acls: AclBinding) -> list[AclBinding]:
    topic_filter = DefaultTopicFilter()
    topic_filter.configure({})
    return remote_acls(acls, TopicSelection(DefaultReplicationPolicy(), topic_filter, "A", "B"))


def test_an_acl_moves_to_the_remote_topic() -> None:
    assert remote(READ) == [dataclasses.replace(READ, resource_name="A.t")]


def test_nobody_else_may_write_remote_topics() -> None:
    assert remote(dataclasses.replace(READ, operation=AclOperation.WRITE)) == []
    (acl,) = remote(dataclasses.replace(READ, operation=AclOperation.ALL))
    assert acl.operation is AclOperation.READ


def test_denials_and_other_operations_are_taken_as_they_are() -> None:
    for operation in (AclOperation.WRITE, AclOperation.ALL):
        denied = dataclasses.replace(READ, operation=operation, permission=AclPermission.DENY)
        assert remote(denied) == [dataclasses.replace(denied, resource_name="A.t")]
    altering = dataclasses.replace(READ, operation=AclOperation.ALTER_CONFIGS)
    assert remote(altering) == [dataclasses.replace(altering, resource_name="A.t")]


def test_prefixed_patterns_other_resources_and_unreplicated_topics_are_skipped() -> None:
    assert remote(dataclasses.replace(READ, pattern_type=PatternType.PREFIXED)) == []
    assert remote(dataclasses.replace(READ, resource_type=ResourceType.GROUP)) == []
    assert remote(dataclasses.replace(READ, resource_name="B.t")) == []


def test_two_acls_that_become_one_are_created_once() -> None:
    assert len(remote(READ, dataclasses.replace(READ, operation=AclOperation.ALL))) == 1
