"""A whole process with a hostile source cluster: memory, health, what it reports, and its healthy flow."""

from __future__ import annotations

from pathlib import Path

import pytest

from mm2.sandbox.kafka import LocalKafka
from tests.fuzz.hostile_process import attacked_process
from tests.support.waiting import PATIENCE


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_hostile_source_is_reported_and_harms_no_other_flow(
    kafka_a: LocalKafka, kafka_b: LocalKafka, tmp_path: Path
) -> None:
    """Two minutes of bombs, huge arrays, endless metadata and wrong lengths; `bin/fuzz --process MINUTES` takes longer."""
    attack = attacked_process((kafka_a, kafka_b), tmp_path, minutes=2, seed=23)
    assert attack.answers.total() > 1000
    assert attack.slowest_health_s < 5 * PATIENCE, "on a quiet machine a tenth of a second"
    assert attack.findings() == []
