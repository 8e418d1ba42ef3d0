"""A worker that resumes after its session has expired runs no task that was reassigned.

The records of each task, in topic order, show it: they contain the worker, the start of the task and the time.
"""

from __future__ import annotations

import json
import time
from itertools import groupby
from pathlib import Path
from typing import Any

from mm2.sandbox.kafka import LocalKafka
from tests.integration.connect_reading import create_topic, read_all
from tests.support.waiting import wait_until
from tests.systems.herder_toys import CLASS
from tests.systems.test_a33_a37_group import group_of, owners, spread, status_text
from tests.systems.workers import DistributedWorker


def beats_of(broker: LocalKafka, topic: str, task: int) -> list[dict[str, Any]]:
    beats = [json.loads(message.value()) for message in read_all(broker.bootstrap, topic)]
    return [beat for beat in beats if beat["task"] == task]


def writer(broker: LocalKafka, topic: str, task: int) -> int:
    """The process that wrote a task's last record; IndexError if there is no record yet."""
    return int(beats_of(broker, topic, task)[-1]["worker"])


def test_a_frozen_worker_that_resumes_runs_no_task_twice_and_loses_no_record(
    broker: LocalKafka, group: str, folder: Path
) -> None:
    group, topic = f"{group}-frozen", f"{group}-data"
    create_topic(broker.bootstrap, topic)
    # Without scheduled.rebalance.max.delay.ms the group reassigns the tasks of a lost worker immediately.
    with group_of(2, broker, group, folder, **{"scheduled.rebalance.max.delay.ms": "0"}) as (first, second):
        first.rest.create("c", {"connector.class": CLASS, "topic": topic, "tasks.max": "4", "pause.s": "0.02"})
        wait_until(lambda: spread(first, "c") == [2, 2], timeout_s=60, detail=status_text(first, "c"))
        frozen, awake = _victim(first, second)
        mine = [task for task, owner in owners(awake, "c").items() if owner == frozen.worker_id]
        wait_until(lambda: all(writer(broker, topic, task) == frozen.pid for task in mine))
        frozen.freeze()
        frozen_at = time.time()
        wait_until(
            lambda: set(owners(awake, "c").values()) == {awake.worker_id}, timeout_s=60, detail=status_text(awake, "c")
        )
        wait_until(lambda: all(writer(broker, topic, task) == awake.pid for task in mine))
        frozen.thaw()
        wait_until(lambda: spread(awake, "c") == [2, 2], timeout_s=60, detail=status_text(awake, "c"))
        wait_until(lambda: "group session expired" in frozen.log.read_text(), detail=frozen.tail)

        for task in range(4):
            beats = beats_of(broker, topic, task)
            # Tasks that it ran when it was frozen: none may write a record that was not in flight then.
            asleep = {beat["run"] for beat in beats if beat["worker"] == frozen.pid and beat["at"] <= frozen_at}
            late = [beat for beat in beats if beat["run"] in asleep and beat["at"] > frozen_at]
            assert late == [], f"task {task} continued after it was reassigned"
            in_time = [beat for beat in beats if beat["run"] not in asleep]
            runs = [run for run, _ in groupby(beat["run"] for beat in in_time)]
            assert len(runs) == len(set(runs)), f"two workers ran task {task} at the same time: {runs}"
            assert (task in mine) <= bool(asleep), "the worker that was frozen ran it"
            counts = {beat["count"] for beat in beats}
            assert counts == set(range(1, max(counts) + 1)), "no beat is missing"


def _victim(first: DistributedWorker, second: DistributedWorker) -> tuple[DistributedWorker, DistributedWorker]:
    """The worker to freeze: the one that does not run the connector instance, so that the other need not be the leader."""
    at = first.rest.status("c")["connector"]["worker_id"]
    return (second, first) if at == first.worker_id else (first, second)
