"""A worker of Java's MirrorMaker 2 and one of ours in the group of one flow, on one file, replaced in turns under load.

Given both, with internal REST, and a topic that gets records all the time. When the older one leaves, the other one leads and
runs all tasks; then a new worker of the kind that left joins, and so on, so that each kind has led while the other followed.
Validates that no record is lost, that only records that a killed worker had not committed are duplicated, and none with
exactly-once; that no task runs on both at once, by the statuses in their order; that no config is written again; that no group
skips a record. `MM2_ROLLING_MINUTES` is the duration of the slow tests.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection
from pathlib import Path

import pytest

from mm2.sandbox.kafka import LocalKafka
from tests.integration.copy_flow import Traffic, create
from tests.integration.java_mirror import JavaMirrorProcess, NewestJavaMirrorProcess
from tests.integration.mirror_process import MirrorProcess, records, table
from tests.integration.test_mm2_behaviours.in_turns import (
    PARTITIONS,
    PER_SECOND,
    SOURCE_TASKS,
    Committing,
    SharedFlow,
    await_records,
    name_of,
    shared_flow,
)
from tests.support.waiting import PATIENCE

MINUTES = float(os.environ.get("MM2_ROLLING_MINUTES", "10"))
TOGETHER = {"dedicated.mode.enable.internal.rest": "true", "task.shutdown.graceful.timeout.ms": "20000"}


@pytest.mark.timeout(int(60 * MINUTES + 900 * PATIENCE))
@pytest.mark.parametrize(
    ("minutes", "exactly_once", "java"),
    [
        pytest.param(0, False, JavaMirrorProcess, id="once", marks=pytest.mark.slow),
        pytest.param(0, False, NewestJavaMirrorProcess, id="once-newest", marks=pytest.mark.slow),
        pytest.param(MINUTES, False, JavaMirrorProcess, id="long", marks=pytest.mark.slow),
        pytest.param(MINUTES, True, JavaMirrorProcess, id="exactly-once", marks=pytest.mark.slow),
    ],
)
def test_java_and_python_workers_replace_each_other_with_either_as_leader(
    kafka_pair: tuple[LocalKafka, LocalKafka],
    tmp_path: Path,
    unique: str,
    minutes: float,
    exactly_once: bool,
    java: type[JavaMirrorProcess],
) -> None:
    name = f"roll{unique[-6:]}"
    # By default Java reassigns the tasks of a lost worker after five minutes.
    more = {**TOGETHER, f"{name}west.scheduled.rebalance.max.delay.ms": "0"}
    killed: set[str] = set()
    repeated = turns = 0
    with shared_flow(kafka_pair, tmp_path, name, exactly_once=exactly_once, more=more) as flow:
        create(flow.east, name, PARTITIONS)
        with Traffic(flow.east, name, PARTITIONS, PER_SECOND) as traffic:
            await_records(flow, 50)
            with Committing(flow) as groups:
                older = flow.start(java)
                older_id = flow.await_new_worker(older)
                deadline = time.monotonic() + 60 * minutes
                while True:
                    newer = flow.start(MirrorProcess if isinstance(older, JavaMirrorProcess) else java)
                    newer_id = flow.await_new_worker(newer, beside={older_id})
                    flow.await_growth(newer)
                    if turns >= 2 and time.monotonic() > deadline:
                        break
                    if turns % 4 < 2 or minutes == 0:
                        older.stop()
                    else:
                        held = partitions_of(flow, older_id)
                        older.kill9(whole_family=True)
                        killed.add(older_id)
                        time.sleep(1)  # batches in flight are appended or lost by now
                        behind = flow.uncommitted()
                        repeated += sum(behind[partition] for partition in held)
                    newer.eventually(lambda: flow.workers() == {newer_id}, 60)  # noqa: B023
                    flow.await_growth(newer)
                    print(f"{name_of(newer)} leads")  # noqa: T201
                    turns += 1
                    older, older_id = newer, newer_id
                    if turns == 2 and minutes == 0:
                        break
                traffic.finish()
                groups.finish()
        last = flow.started[-1]
        flow.await_copied(last)
        flow.await_checkpoints(last)
        for process in flow.started:
            if process.is_running:
                process.stop()
            assert not process.lines(event="There is no ledger: delivery is at-least-once.")
        check_that_no_task_ran_twice(flow, killed)
        flow.check(0 if exactly_once else range(repeated + 1))
        print(f"{turns} turns, {len(killed)} of them killed, at most {repeated} of {traffic.sent} records came twice")  # noqa: T201


def partitions_of(flow: SharedFlow, worker: str) -> list[int]:
    """The partitions of a worker's source tasks."""
    configs = table(flow.west, flow.internal("configs"))
    found = []
    for name, row in flow.rows().items():
        if name.startswith(SOURCE_TASKS) and row["worker_id"] == worker:
            value, _ = configs[name.encode()]
            assigned = json.loads(value or b"{}")["properties"]["task.assigned.partitions"]
            found += [int(one.rpartition("-")[2]) for one in assigned.split(",")]
    return found


def check_that_no_task_ran_twice(flow: SharedFlow, killed: Collection[str]) -> None:
    """Assert that a worker that was not killed wrote UNASSIGNED before another one wrote RUNNING for the task."""
    holders: dict[bytes, str] = {}
    moves = 0
    for rows in records(flow.west, flow.internal("status")):
        for record in rows:
            key, value = record.key or b"", json.loads(record.value or b"{}")
            if not key.startswith(b"status-task-") or not value:
                continue
            worker = value["worker_id"]
            if value["state"] == "RUNNING":
                holder = holders.get(key, worker)
                moves += holder != worker or key not in holders
                assert holder in {worker, *killed}, f"{key!r} runs on {worker} while {holder} has it"
                holders[key] = worker
            elif holders.get(key) == worker:
                del holders[key]
    assert moves > len(holders), "nothing has moved"
