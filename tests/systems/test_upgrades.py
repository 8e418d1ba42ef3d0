"""This version continues from the state that each released version has written, and that version from the state of this one.

Given the data of two brokers of a version, whose processes were killed while records waited (`written_state.py`). Validates that
every record is on the target once, in order, in the same sessions, and that the group reads on at the same record.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from mm2.sandbox.kafka import LocalKafka
from tests.integration.copy_flow import batches
from tests.support.waiting import PATIENCE
from tests.systems.written_state import EXACTLY_ONCE, RELEASED, FlowMode, Released, StatePair, restored, unpack


def producers(broker: LocalKafka, topic: str) -> list[set[int]]:
    """The ids of the producers of each partition: a session keeps its producer."""
    return [{header.producer_id for header, _ in batches(broker, topic, partition)} for partition in range(2)]


def continue_flow(pair: StatePair, mode: FlowMode, first: int, code: Path | None = None) -> None:
    """Copy what waits and records from number `first` on, and move the group, with this program or the one in `code`."""
    before = producers(pair.target, mode.remote)
    with pair.running(mode, code) if code else pair.running(mode) as process:
        pair.await_copied(mode, process)
        pair.write(mode, first)
        pair.await_copied(mode, process)
        pair.await_group(mode, process, {0: first + 10, 1: first // 60 * 63 + 5})
        assert process.stop()[0] == 0
    pair.check_equal(mode)
    if mode is not EXACTLY_ONCE:  # which has the producer of its transactions
        assert producers(pair.target, mode.remote) == before


@pytest.mark.timeout(int(600 * PATIENCE))
@pytest.mark.parametrize("released", RELEASED, ids=lambda released: released.version)
def test_state_of_a_released_version_is_continued(released: Released, tmp_path: Path) -> None:
    with restored(released, tmp_path) as pair:
        for mode in released.modes:
            continue_flow(pair, mode, 180)


@pytest.mark.slow
@pytest.mark.timeout(int(900 * PATIENCE))
@pytest.mark.parametrize("released", RELEASED, ids=lambda released: released.version)
def test_the_released_version_takes_over_again(released: Released, tmp_path: Path) -> None:
    try:
        code = unpack(released.revision, tmp_path / "code")
    except subprocess.CalledProcessError:
        pytest.skip(f"This clone does not have the revision {released.revision}")
    with restored(released, tmp_path) as pair:
        for mode in released.modes:
            continue_flow(pair, mode, 180)
            continue_flow(pair, mode, 240, code)
            continue_flow(pair, mode, 300)
