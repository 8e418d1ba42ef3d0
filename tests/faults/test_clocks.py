"""Clocks jump or differ (rows C of docs/reference/reliability.md)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.environment import Environment, MirrorMaker, ReplicatedTopic, running_mirror_maker
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
def mirror_maker(shared_environment: Environment, clock: Path) -> Iterator[MirrorMaker]:
    environment = shared_environment
    variables = {"PYTHONPATH": os.pathsep.join([str(CLOCK), str(ROOT)]), "MM2_TEST_CLOCK": str(clock)}
    settings = {"copy.batch.duration.ms": "5000"}  # new executors start under each clock
    with running_mirror_maker(
        environment.folder / "C",
        "C",
        source=environment.a,
        target=environment.b,
        topics=2,
        settings=settings,
        variables=variables,
    ) as flow:
        yield flow


@pytest.mark.slow
def test_c1_a_clock_jump_of_hours_changes_only_timestamps(
    replicated: ReplicatedTopic, mirror_maker: MirrorMaker, clock: Path
) -> None:
    lost = len(mirror_maker.lines("micro-batch lost"))
    with replicated.load():
        replicated.await_copied()
        for hours in (1, -1, 0):
            clock.write_text(str(hours * HOUR_S))
            replicated.await_copied(20)
            time.sleep(3)
            replicated.await_copied(20)
    replicated.judge().assert_exactly_once()
    assert len(mirror_maker.lines("micro-batch lost")) == lost, "leases must not depend on the wall clock"
    for line in mirror_maker.lines("Copied so far."):
        assert all(0 <= value < HOUR_S * 1000 * 1.1 for value in line["latency_ms"]), line


@pytest.mark.slow
def test_c2_records_with_a_clock_skew_of_minutes_are_copied_unchanged(
    replicated: ReplicatedTopic, mirror_maker: MirrorMaker, environment: Environment
) -> None:
    producer = producer_of(environment.a)
    now_ms = int(time.time() * 1000)
    for number in range(200):
        off_ms = (10 if number % 2 else -10) * 60_000
        producer.produce(replicated.topic, b"%d" % number, b"k", number % 2, timestamp=now_ms + off_ms)
    assert producer.flush(30) == 0
    wait_until(lambda: replicated.arrived() == 200, 30, what="copying", detail=mirror_maker.tail)
    replicated.judge().assert_exactly_once()
    for line in mirror_maker.lines("Copied so far."):
        assert all(value >= 0 for value in line["latency_ms"]), line
