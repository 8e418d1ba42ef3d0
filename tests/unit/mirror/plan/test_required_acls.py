"""ACLs that a flow needs, by its configuration."""

from __future__ import annotations

from pathlib import Path

from mm2.config.keys.worker_keys import WorkerConfig
from mm2.kafka.structs import AclOperation, ResourceType
from mm2.mirror.common.clients import Side
from mm2.mirror.plan.required_acls import (
    RIGHTS,
    AclState,
    AclStatus,
    Feature,
    Names,
    RequiredAcl,
    Resource,
    features,
    required_acls,
)
from mm2.mirror.plan.rights_reference import FILE, page

WORKER = {
    "bootstrap.servers": "b:1",
    "group.id": "A-mm2",
    "key.converter": "org.apache.kafka.connect.converters.ByteArrayConverter",
    "value.converter": "org.apache.kafka.connect.converters.ByteArrayConverter",
    "offset.storage.topic": "offsets",
    "config.storage.topic": "configs",
    "status.storage.topic": "status",
}
NAMES = Names(
    {
        Resource.SELECTED_TOPICS: {"orders", "quiet"},
        Resource.REMOTE_TOPICS: {"A.orders", "A.quiet"},
        Resource.GROUPS: {"billing"},
        Resource.SYNCS_TOPIC: {"syncs"},
        Resource.STORES: {"offsets", "configs", "status"},
        Resource.LEDGER: {"ledger"},
        Resource.HEARTBEATS_TOPIC: {"heartbeats"},
    }
)
PAGE = Path(__file__).parents[4] / FILE


def found(
    source: dict[str, str] | None = None,
    checkpoints: dict[str, str] | None = None,
    *,
    replicates: bool = True,
    **worker: str,
) -> set[tuple[str, str, str, str]]:
    """(side, operation, kind, names) of each required ACL."""
    config = WorkerConfig({**WORKER, **{key.replace("__", "."): value for key, value in worker.items()}})
    some = required_acls(features(source or {}, checkpoints or {}, config, replicates=replicates), "A-mm2", NAMES)
    return {(one.side.value, one.operation.name, one.kind.name, " ".join(one.names)) for one in some}


def test_a_flow_with_default_settings_needs_these_acls() -> None:
    wanted = found()
    for operation in ("DESCRIBE", "READ", "DESCRIBE_CONFIGS"):
        assert ("source", operation, "TOPIC", "orders quiet") in wanted
    for operation in ("DESCRIBE", "CREATE", "WRITE", "READ", "ALTER", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"):
        assert ("target", operation, "TOPIC", "A.orders A.quiet") in wanted
    assert ("source", "WRITE", "TOPIC", "syncs") in wanted
    assert ("source", "DESCRIBE", "GROUP", "billing") in wanted
    assert ("target", "ALTER", "CLUSTER", "kafka-cluster") in wanted
    assert ("target", "READ", "GROUP", "A-mm2") in wanted
    assert {("target", "WRITE", "TOPIC", "configs offsets status"), ("target", "WRITE", "TOPIC", "ledger")} <= wanted
    assert not [one for one in wanted if one[0] == "source" and one[1] == "WRITE" and one[3] != "syncs"], (
        "nothing else there"
    )


def test_preserved_offsets_need_rights_to_fill_gaps() -> None:
    wanted = found({"preserve.offsets": "true"}) - found()
    assert wanted == {
        ("target", "CLUSTER_ACTION", "CLUSTER", "kafka-cluster"),
        ("target", "DELETE", "TOPIC", "A.orders A.quiet"),
        ("target", "WRITE", "TRANSACTIONAL_ID", "mm2-gaps-*"),
    }


def test_disabled_features_need_no_acls() -> None:
    off = {
        "sync.topic.acls.enabled": "false",
        "sync.topic.configs.enabled": "FALSE",
        "emit.offset-syncs.enabled": "false",
    }
    wanted = found(off, {"emit.checkpoints.enabled": "false"})
    assert not [
        one
        for one in wanted
        if (one[2] == "CLUSTER" and one[1] != "DESCRIBE_CONFIGS")
        or one[1] == "ALTER_CONFIGS"
        or one[3] in {"syncs", "billing"}
    ]


def test_a_heartbeat_only_flow_uses_only_its_own_topics() -> None:
    assert {(side, kind) for side, _, kind, _ in found(replicates=False)} == {("target", "TOPIC"), ("target", "GROUP")}
    assert not [one for one in found(replicates=False) if "orders" in one[3]]


def test_enabled_features_need_their_acls() -> None:
    wanted = found(None, {"sync.group.offsets.enabled": "true"}, exactly__once__source__support="enabled")
    assert ("target", "READ", "GROUP", "billing") in wanted
    assert ("target", "WRITE", "TRANSACTIONAL_ID", "A-mm2-* connect-cluster-A-mm2") in wanted


def test_a_permission_has_the_state_of_its_worst_resource() -> None:
    need = RequiredAcl(Side.SOURCE, ResourceType.TOPIC, ("a", "b"), AclOperation.READ, "copying")
    reported = [AclStatus(need), AclStatus(need, unknown=("a",)), AclStatus(need, missing=("b",), unknown=("a",))]
    assert [one.allowed for one in reported] == [AclState.YES, AclState.UNKNOWN, AclState.NO]


def test_the_page_is_generated_from_the_list() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: .venv/bin/python -m mm2.mirror.plan.rights_reference"


def test_every_feature_and_every_resource_has_rights() -> None:
    assert {right.feature for right in RIGHTS} == set(Feature)
    assert {right.resource for right in RIGHTS} == set(Resource)
