"""Clocks jump or differ (rows C of docs/RELIABILITY.md)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.stage import Mirror, Play, Stage
from tests.faults.stage import mirror as running_mirror
from tests.integration.copy_flow import producer_of
from tests.integration.mirror_process import ROOT
from tests.support.waiting import wait_until

HOUR_S = 3600
CLOCK = Path(__file__).with_name("clock")


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("clock") / "off"
    file.write_text("0")
    return file


@pytest.fixture(scope="module")
def mirror(shared_stage: Stage, clock: Path) -> Iterator[Mirror]:
    stage = shared_stage
    variables = {"PYTHONPATH": os.pathsep.join([str(CLOCK), str(ROOT)]), "MM2_TEST_CLOCK": str(clock)}
    settings = {"copy.batch.duration.ms": "5000"}  # executors are started under each of the clocks
    with running_mirror(
        stage.folder / "C",
        "C",
        source=stage.a,
        target=stage.b,
        topics=2,
        settings=settings,
        variables=variables,
    ) as flow:
        yield flow


def test_c1_a_clock_jump_of_hours_changes_only_timestamps(play: Play, mirror: Mirror, clock: Path) -> None:
    lost = len(mirror.lines("micro-batch lost"))
    with play.load():
        play.await_flow()
        for hours in (1, -1, 0):
            clock.write_text(str(hours * HOUR_S))
            play.await_flow(20)
            time.sleep(3)
            play.await_flow(20)
    play.judge().assert_exactly_once()
    assert len(mirror.lines("micro-batch lost")) == lost, "a lease is no matter of the wall clock"
    for line in mirror.lines("Copied so far."):
        assert all(0 <= value < HOUR_S * 1000 * 1.1 for value in line["latency_ms"]), line


def test_c2_records_with_a_clock_skew_of_minutes_are_copied_unchanged(play: Play, mirror: Mirror, stage: Stage) -> None:
    producer = producer_of(stage.a)
    now_ms = int(time.time() * 1000)
    for number in range(200):
        off_ms = (10 if number % 2 else -10) * 60_000
        producer.produce(play.topic, b"%d" % number, b"k", number % 2, timestamp=now_ms + off_ms)
    assert producer.flush(30) == 0
    wait_until(lambda: play.arrived() == 200, 30, what="copying", why=mirror.tail)
    play.judge().assert_exactly_once()
    for line in mirror.lines("Copied so far."):
        assert all(value >= 0 for value in line["latency_ms"]), line
