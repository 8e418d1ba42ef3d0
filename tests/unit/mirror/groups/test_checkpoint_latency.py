"""Metrics of the checkpoint latency."""

from __future__ import annotations

import pytest

from mm2.kafka.structs import TopicPartition
from mm2.metrics.metric import Cardinality, Sheet
from mm2.mirror.groups.checkpoint_latency import CheckpointLatencies

LEGACY = "kafka_connect_mirror_mirrorcheckpointconnector_checkpoint_latency_ms"
T0, T1, U0 = TopicPartition("A.t", 0), TopicPartition("A.t", 1), TopicPartition("A.u", 0)


@pytest.fixture
def latencies() -> CheckpointLatencies:
    made = CheckpointLatencies()
    task = made.begin("A", "B", 3, frozenset({"legacy"}))
    for group, place, latency_ms in (("g", T0, 30), ("g", T0, 10), ("g", T1, 20), ("g", U0, 80), ("h", T0, 5)):
        task.add(group, place, latency_ms)
    return made


def exported(latencies: CheckpointLatencies, cardinality: Cardinality, name: str) -> dict[tuple[str, ...], float]:
    """Values by the labels except source and target."""
    sheet = Sheet()
    latencies.write(sheet, cardinality)
    return {
        tuple(value for label, value in one.labels.items() if label not in ("source", "target")): one.value
        for family in sheet.families()
        for one in family.samples
        if one.name == name
    }


def test_each_partition_of_a_group_has_last_min_max_and_average(latencies: CheckpointLatencies) -> None:
    found = {
        suffix: exported(latencies, Cardinality.FULL, LEGACY + suffix)[("g", "A.t", "0")]
        for suffix in ("", "_min", "_max", "_avg")
    }
    assert found == {"": 10, "_min": 10, "_max": 30, "_avg": 20}
    assert sorted(exported(latencies, Cardinality.FULL, LEGACY)) == [
        ("g", "A.t", "0"),
        ("g", "A.t", "1"),
        ("g", "A.u", "0"),
        ("h", "A.t", "0"),
    ]


@pytest.mark.parametrize(
    ("cardinality", "average"),
    [
        (Cardinality.TOPIC, {("g", "A.t", ""): 20, ("g", "A.u", ""): 80, ("h", "A.t", ""): 5}),
        (Cardinality.FLOW, {("g", "", ""): 35, ("h", "", ""): 5}),
    ],
)
def test_sums_are_of_all_checkpoints(
    latencies: CheckpointLatencies, cardinality: Cardinality, average: dict[tuple[str, ...], float]
) -> None:
    assert exported(latencies, cardinality, f"{LEGACY}_avg") == average
    # The maximum of the last ones.
    assert max(exported(latencies, cardinality, LEGACY).values()) == 80


def test_the_new_format_has_connector_and_task_labels_and_ends_with_the_task() -> None:
    made = CheckpointLatencies()
    first = made.begin("A", "B", 0, frozenset({"new"}))
    second = made.begin("A", "B", 1, frozenset({"legacy", "new"}))
    first.add("g", T0, 1)
    second.add("h", T0, 2)
    new = "kafka_connect_plugins_checkpoint_latency_ms"
    assert exported(made, Cardinality.FULL, new) == {
        ("MirrorCheckpointConnector", "0", "g", "A.t", "0"): 1,
        ("MirrorCheckpointConnector", "1", "h", "A.t", "0"): 2,
    }
    assert exported(made, Cardinality.FULL, LEGACY) == {("h", "A.t", "0"): 2}
    made.end(first)
    made.end(first)
    assert list(exported(made, Cardinality.FULL, new).values()) == [2]
