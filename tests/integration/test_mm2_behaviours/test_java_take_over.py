"""Java's MirrorMaker 2 and ours on one and the same file, one after the other, under load.

Given a topic that gets records all the time, and groups of the source that commit. When Java copies, is stopped or killed, ours
continues, is stopped or killed, Java continues, and so forth. Validates that each starts at the record after the last position that
the other one has committed: no record is lost, and only records after it are duplicated, none with exactly-once; that no group
skips a record or moves backwards; that existing configurations are not written again; and that positions keep their keys.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from mm2.sandbox.kafka import LocalKafka
from tests.integration.copy_flow import Traffic, create
from tests.integration.java_mirror import JavaMirrorProcess, NewestJavaMirrorProcess, java_says
from tests.integration.mirror_process import MirrorProcess, checkpoints, contents, heartbeats, syncs
from tests.integration.test_mm2_behaviours.in_turns import (
    PARTITIONS,
    PER_SECOND,
    Committing,
    SharedFlow,
    await_records,
    name_of,
    shared_flow,
)
from tests.support.waiting import PATIENCE

#: How each process ends before the next one starts; the last one is stopped.
ONCE = ("stop", "kill")
#: Each direction with and without a clean stop, combined with both of the other direction.
THREE_TIMES = ("stop", "kill", "kill", "stop", "kill", "kill")


@pytest.mark.timeout(int(900 * PATIENCE))
@pytest.mark.parametrize(
    ("endings", "exactly_once", "java"),
    [
        pytest.param(ONCE, False, JavaMirrorProcess, id="once", marks=pytest.mark.slow),
        pytest.param(ONCE, False, NewestJavaMirrorProcess, id="once-newest", marks=pytest.mark.slow),
        pytest.param(THREE_TIMES, False, JavaMirrorProcess, id="three-times", marks=pytest.mark.slow),
        pytest.param(THREE_TIMES, True, JavaMirrorProcess, id="exactly-once", marks=pytest.mark.slow),
        pytest.param(ONCE, True, NewestJavaMirrorProcess, id="exactly-once-newest", marks=pytest.mark.slow),
    ],
)
def test_each_implementation_continues_at_the_other_s_next_record(
    kafka_pair: tuple[LocalKafka, LocalKafka],
    tmp_path: Path,
    unique: str,
    endings: tuple[str, ...],
    exactly_once: bool,
    java: type[JavaMirrorProcess],
) -> None:
    name = f"turns{unique[-6:]}"
    with shared_flow(kafka_pair, tmp_path, name, exactly_once=exactly_once, more={}) as flow:
        create(flow.east, name, PARTITIONS)
        kinds = (java, MirrorProcess)
        with Traffic(flow.east, name, PARTITIONS, PER_SECOND) as traffic:
            await_records(flow, 50)
            with Committing(flow) as groups:
                process = flow.start(kinds[0])
                repeated = 0
                for turn, ending in enumerate(endings):
                    began = time.monotonic()
                    flow.await_new_worker(process)
                    flow.await_growth(process)
                    print(f"{name_of(process)} copies after {time.monotonic() - began:.1f} s")  # noqa: T201
                    again = end(flow, process, ending)
                    repeated += again
                    process = flow.start(kinds[(turn + 1) % 2])
                flow.await_new_worker(process)
                flow.await_growth(process)
                traffic.finish()
                groups.finish()
        flow.await_copied(process)
        flow.await_checkpoints(process)
        assert end(flow, process, "stop") == 0
        flow.check(0 if exactly_once else repeated)
        print(f"{repeated} of {traffic.sent} records came twice")  # noqa: T201
        check_that_java_reads_it(flow)


def end(flow: SharedFlow, process: MirrorProcess, how: str) -> int:
    """End a process; returns the number of records that its successor copies again. Ours leaves none when it is stopped."""
    if how == "stop":
        process.stop()
    else:
        process.kill9(whole_family=True)
        time.sleep(1)  # batches in flight are appended or lost by now
    behind = flow.uncommitted()
    print(f"{name_of(process)}: {how}, behind its positions: {behind}")  # noqa: T201
    assert min(behind.values()) >= 0, "a position ahead of what is on the target"
    if flow.exactly_once or (how == "stop" and not isinstance(process, JavaMirrorProcess)):
        assert not any(behind.values())
    return sum(behind.values())


def check_that_java_reads_it(flow: SharedFlow) -> None:
    """The three topics that both have written: all records, those of aborted transactions too, in the same partitions."""
    here, there = flow.west.bootstrap, flow.east.bootstrap
    points, beats, syncing = (
        f"{flow.source}.checkpoints.internal",
        "heartbeats",
        f"mm2-offset-syncs.{flow.target}.internal",
    )
    group = flow.group("close")
    translated, *printed = java_says(
        ("translate", here, flow.source, group),
        ("format", here, points, "Checkpoint"),
        ("format", here, beats, "Heartbeat"),
        ("format", there, syncing, "OffsetSync"),
    )
    found = checkpoints(flow.west, points)
    assert translated == {
        f"{flow.remote}-{partition}": [found[group, flow.remote, partition][1], ""] for partition in range(PARTITIONS)
    }
    seen = [contents(flow.west, points)[0], contents(flow.west, beats)[0], contents(flow.east, syncing)[0]]
    assert all(len(lines) >= len(rows) > 0 for lines, rows in zip(printed, seen, strict=True))
    assert (flow.source, flow.target) in heartbeats(flow.west, beats)
    assert syncs(flow.east, syncing)
