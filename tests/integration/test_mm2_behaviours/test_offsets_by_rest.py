"""Behaviours 27 and 28: the Mirror connectors' offsets, read, set and removed through REST (KIP-875), exactly once and by default.

A process serves the interface of a worker for each flow; requests and responses are exactly Java's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from mm2.sandbox.kafka import LocalKafka
from tests.integration.mirror_flow import commit
from tests.integration.mirror_process import contents, is_running
from tests.integration.test_mm2_behaviours.variants import (
    CHECKPOINT,
    DEFAULT,
    EXACTLY_ONCE,
    HEARTBEAT,
    PARTITIONS,
    PER_PARTITION,
    SOURCE,
    Environment,
    Variant,
    staged,
)

pytestmark = pytest.mark.timeout(600)

ALL = range(PARTITIONS)
FIRST, SECOND = "main-1", "main-2"


@pytest.fixture(scope="module", params=[EXACTLY_ONCE, pytest.param(DEFAULT, marks=pytest.mark.slow)], ids=str)
def env(
    request: pytest.FixtureRequest,
    kafka_pair: tuple[LocalKafka, LocalKafka],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Environment]:
    plain: Variant = request.param
    variant = Variant(plain.name, f"{plain.short}o", both_ways=False, exactly_once=plain.exactly_once)
    with staged(variant, kafka_pair, tmp_path_factory.mktemp(variant.short)) as made:
        for name in (FIRST, SECOND):
            made.fill(made.create(name))
        commit(made.a, made.topic("group"), {(made.topic(FIRST), number): 5 for number in ALL})
        made.start()
        made.process.eventually(lambda: all(made.is_copied(made.topic(name)) for name in (FIRST, SECOND)), 150)
        made.process.eventually(lambda: is_running(made.b, made.alias("p")))
        made.process.eventually(lambda: len(made.checkpoints(made.topic("group"), made.topic(FIRST))) == PARTITIONS)
        yield made


def partition(env: Environment, name: str, number: int) -> dict[str, Any]:
    return {"cluster": env.alias("p"), "partition": number, "topic": env.topic(name)}


def rows(env: Environment, name: str) -> list[list[Any]]:
    """Keys of all records on the target, by partition, in order."""
    return [[key for _, key, _, _ in found] for found in contents(env.b, env.remote(env.topic(name)))]


def by_place(found: list[dict[str, Any]]) -> dict[tuple[str, int], int]:
    """Offsets of the source connector by topic and partition."""
    return {(row["partition"]["topic"], row["partition"]["partition"]): row["offset"]["offset"] for row in found}


def offsets(env: Environment, connector: str) -> list[dict[str, Any]]:
    return list(env.rest.get(f"/connectors/{connector}/offsets")["offsets"])


def test_27_copying_continues_at_altered_offsets(env: Environment) -> None:
    rest, path = env.rest, f"/connectors/{SOURCE}/offsets"
    once = {name: rows(env, name) for name in (FIRST, SECOND)}
    last = [
        {"partition": partition(env, name, number), "offset": {"offset": PER_PARTITION - 1}}
        for name in (FIRST, SECOND)
        for number in ALL
    ]
    env.process.eventually(lambda: by_place(offsets(env, SOURCE)).items() >= by_place(last).items(), 30)
    # Rejected while it is running.
    change = [{"partition": partition(env, FIRST, number), "offset": {"offset": 0}} for number in ALL]
    refused = rest.ask("PATCH", path, json={"offsets": change}, expect=400)
    assert "STOPPED" in refused["message"]
    rest.stop(SOURCE)
    # Offsets of other connectors are rejected.
    for wrong in (
        {"partition": partition(env, FIRST, 0), "offset": {"offset": -1}},
        {"partition": partition(env, FIRST, 0), "offset": {"offset": "0"}},
        {"partition": {"cluster": "x", "topic": "y"}, "offset": {"offset": 0}},
    ):
        rest.ask("PATCH", path, json={"offsets": [wrong]}, expect=500)
    removed = [{"partition": partition(env, SECOND, number), "offset": None} for number in ALL]
    response = rest.ask("PATCH", path, json={"offsets": change + removed})
    assert response["message"] == "The offsets for this connector have been altered successfully"
    found = by_place(offsets(env, SOURCE))
    assert found.items() >= by_place(change).items()
    assert not any(topic == env.topic(SECOND) for topic, _ in found)
    rest.resume(SOURCE)
    # Offset 0 was copied last: nine of ten records are copied again, and all ten of the other topic.
    env.process.eventually(lambda: rows(env, FIRST) == [keys + keys[1:] for keys in once[FIRST]], 60)
    env.process.eventually(lambda: rows(env, SECOND) == [keys + keys for keys in once[SECOND]], 60)


def test_28_after_an_offset_reset_everything_is_copied_again(env: Environment) -> None:
    rest = env.rest
    before = {name: rows(env, name) for name in (FIRST, SECOND)}
    source = {name: [[key for _, key, _, _ in found] for found in contents(env.a, env.topic(name))] for name in before}
    for connector in (SOURCE, CHECKPOINT, HEARTBEAT):
        rest.stop(connector)
        assert offsets(env, connector)
        response = rest.ask("DELETE", f"/connectors/{connector}/offsets")
        assert response["message"] == "The offsets for this connector have been reset successfully"
        assert rest.get(f"/connectors/{connector}/offsets") == {"offsets": []}
    for connector in (SOURCE, CHECKPOINT, HEARTBEAT):
        rest.resume(connector)
    wanted = {
        name: [old + new for old, new in zip(before[name], source[name], strict=True)] for name in (FIRST, SECOND)
    }
    env.process.eventually(lambda: {name: rows(env, name) for name in wanted} == wanted, 60)
    env.process.eventually(lambda: is_running(env.b, env.alias("p")))
    # A group still continues at its next record, in the latest copy.
    group = env.topic("group")
    commit(env.a, group, {(env.topic(FIRST), number): 6 for number in ALL})
    env.process.eventually(
        lambda: {offset for offset, _ in env.checkpoints(group, env.topic(FIRST)).values()} == {6}, 30
    )
    first = env.topic(FIRST)
    env.process.eventually(lambda: env.skips_and_repeats_nothing(first, env.checkpoints(group, first)), 30)
