"""Which partitions cannot continue with preserved offsets after a failover, and what is said about them."""

from __future__ import annotations

from mm2.codec import encode
from mm2.config.mirrormaker import SourceAndTarget
from mm2.failover.evidence import PartitionEvidence
from mm2.failover.records.divergence import Divergence, DivergentRange
from mm2.failover.sides import FlowConfig, Sides
from mm2.kafka.structs import TopicPartition

T0 = TopicPartition("t", 0)


def flow(source: str, target: str, **more: str) -> FlowConfig:
    props = {
        "source.cluster.alias": source,
        "target.cluster.alias": target,
        "source.cluster.bootstrap.servers": "127.0.0.1:1",
        "target.cluster.bootstrap.servers": "127.0.0.1:1",
        "replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
        **{key.replace("__", "."): value for key, value in more.items()},
    }
    return FlowConfig(SourceAndTarget(source, target), props, props, {})


PRESERVING = {"preserve__offsets": "true"}


def divergence(
    *partitions: PartitionEvidence,
    there: dict[str, str] = PRESERVING,
    back: dict[str, str] = PRESERVING,
    named: tuple[str, ...] = (),
    gone: tuple[str, ...] = (),
) -> Divergence:
    return Divergence(Sides(flow("A", "B", **there)), flow("B", "A", **back), partitions, named, gone)


def partition(end: int | None, remote_topic: str = "t", target_end: int | None = None) -> PartitionEvidence:
    """A partition of which 100 records were copied."""
    return PartitionEvidence("t", 0, remote_topic, 100, 100, end, target_end=target_end)


def test_a_source_that_ends_where_the_copy_ends_can_continue() -> None:
    assert divergence(partition(100)).ranges == []
    assert divergence(partition(80)).ranges == [], "the source has lost records, which it gets back"


def test_records_that_were_not_copied_have_the_offsets_of_others() -> None:
    found = divergence(partition(150))
    assert found.ranges == [DivergentRange("A", T0, 100, 150)]
    assert encode(found.ranges[0]) == {"cluster": "A", "topic": "t", "partition": 0, "first": 100, "last": 149}
    for keep in (False, True):
        (problem,) = found.problems(keep=keep)
        assert "t-0: offsets 100..149" in problem
        assert "delete t on A and run the command again" in problem
        assert "B->A.preserve.offsets=false" in problem


def test_without_preservation_on_the_way_there_everything_is_at_other_offsets() -> None:
    assert divergence(partition(100), there={}).ranges == [DivergentRange("A", T0, 0, 100)]


def test_a_flow_back_that_preserves_no_offsets_can_continue_anywhere() -> None:
    assert divergence(partition(150), back={}).ranges == []
    other = {**PRESERVING, "preserve__offsets__topics": "other"}
    assert divergence(partition(150), back=other).ranges == []


def test_a_deleted_topic_is_copied_back_from_the_beginning() -> None:
    found = divergence(partition(150), gone=("t",))
    assert (found.ranges, found.copied_back) == ([], {"t"})
    assert divergence(partition(150), gone=("t",), back={}).copied_back == set()


def test_records_of_other_producers_on_the_target_are_in_the_way_of_a_resumed_flow() -> None:
    found = divergence(partition(150, remote_topic="A.t", target_end=130), named=("t",))
    assert found.ranges == [DivergentRange("B", TopicPartition("A.t", 0), 100, 130)]
    (problem,) = found.problems(keep=False)
    assert "A.t-0: offsets 100..129" in problem
    assert found.problems(keep=True) == []
    assert divergence(partition(150, target_end=100), named=("t",)).ranges == []
