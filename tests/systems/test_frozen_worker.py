"""A worker that is frozen past its session and wakes up again runs nothing that others run by then.

What tells is who wrote which record when: records of one task, in the order of the topic, with the process that wrote them.
"""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path

from mm2.sandbox.kafka import LocalKafka
from tests.integration.connect_reading import create_topic, read_all
from tests.integration.copy_flow import eventually
from tests.systems.herder_toys import CLASS
from tests.systems.test_a33_a37_group import group_of, owners, spread, told
from tests.systems.workers import DistributedWorker


def writers(broker: LocalKafka, topic: str, task: int) -> list[int]:
    """Processes that wrote a task's records, one after another; each stands there once for each time it began."""
    beats = [json.loads(message.value()) for message in read_all(broker.bootstrap, topic)]
    return [worker for worker, _ in groupby(beat["worker"] for beat in beats if beat["task"] == task)]


def test_a_frozen_worker_that_wakes_up_runs_no_task_twice_and_loses_nothing(
    broker: LocalKafka, group: str, folder: Path
) -> None:
    group, topic = f"{group}-frozen", f"{group}-data"
    create_topic(broker.bootstrap, topic)
    # Without a delay the group gives the work of who is gone to others at once.
    with group_of(2, broker, group, folder, **{"scheduled.rebalance.max.delay.ms": "0"}) as (first, second):
        first.rest.create("c", {"connector.class": CLASS, "topic": topic, "tasks.max": "4", "pause.s": "0.02"})
        eventually(lambda: spread(first, "c") == [2, 2], timeout_s=60, why=told(first, "c"))
        frozen, awake = _victim(first, second)
        mine = [task for task, owner in owners(awake, "c").items() if owner == frozen.worker_id]
        frozen.freeze()
        eventually(lambda: set(owners(awake, "c").values()) == {awake.worker_id}, timeout_s=40, why=told(awake, "c"))
        eventually(lambda: all(writers(broker, topic, task)[-1:] == [awake.pid] for task in mine))
        frozen.thaw()
        eventually(lambda: spread(awake, "c") == [2, 2], timeout_s=15, why=told(awake, "c"))
        eventually(lambda: "the session has ended" in frozen.log.read_text(), why=frozen.tail)

        for task in range(4):
            order = writers(broker, topic, task)
            # frozen, awake, and perhaps the one that was frozen again once the task was given back to it in order
            expected = [frozen.pid, awake.pid] if task in mine else [awake.pid]
            assert order[: len(expected)] == expected
            assert len(order) <= len(expected) + 1, f"task {task} was run by two at once: {order}"
            beats = [json.loads(message.value()) for message in read_all(broker.bootstrap, topic)]
            counts = {beat["count"] for beat in beats if beat["task"] == task}
            assert counts == set(range(1, max(counts) + 1)), "no beat is missing"


def _victim(first: DistributedWorker, second: DistributedWorker) -> tuple[DistributedWorker, DistributedWorker]:
    """Who is frozen: the one that does not run the connector's instance, so that the other one need not be the leader."""
    at = first.rest.status("c")["connector"]["worker_id"]
    return (second, first) if at == first.worker_id else (first, second)
