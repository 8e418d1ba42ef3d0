"""More group ids than the configuration of a checkpoint task holds: mm2 status and mm2 groups report that some are left out.

Given two brokers and a process. A client that may use any group of the source commits for 36 groups with ids of 30,000 characters.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mm2.sandbox.kafka import LocalKafka
from tests.integration.asking import asked
from tests.integration.mirror_flow import commit, create, write
from tests.integration.mirror_process import MirrorProcess, write_config


@pytest.mark.timeout(400)
def test_groups_that_are_left_out_are_reported_until_all_fit(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create(kafka_a, unique)
    write(kafka_a, unique, [(b"k", b"v")] * 10, 0)
    commit(kafka_a, f"{unique}-app", {(unique, 0): 5})
    props = {
        "clusters": "A, B",
        "A.bootstrap.servers": kafka_a.bootstrap,
        "B.bootstrap.servers": kafka_b.bootstrap,
        "A->B.enabled": "true",
        "B->A.emit.heartbeats.enabled": "false",
        "topics": unique,
        "groups": f"{unique}-.*",
        "tasks.max": "1",
    }
    file = write_config(tmp_path / "mm2.properties", props)

    def groups() -> tuple[int, dict[str, object], str]:
        code, out, err = asked(capsys, "groups", file, "A->B", "--json")
        return code, json.loads(out or "{}"), err

    def troubles() -> list[str]:
        (flow,) = json.loads(asked(capsys, "status", file, "--json")[1])["flows"]
        return [str(one) for one in flow["troubles"]]

    process = MirrorProcess(file, tmp_path / "log")
    try:
        process.eventually(lambda: groups()[1].get("groups"), 120)
        assert groups()[1]["left_out"] is None
        for number in range(36):
            commit(kafka_a, f"{unique}-{number:02}{'x' * 30_000}", {(unique, 0): 1})
        process.eventually(lambda: groups()[1].get("left_out"), 120)
        code, document, err = groups()
        left_out = str(document["left_out"])
        assert "consumer groups of 37 get no checkpoints" in left_out
        assert (code, left_out in err) == (1, True)
        process.eventually(lambda: left_out in troubles())
        # Started again with two tasks, which have room for all of them.
        process.stop()
        write_config(file, {**props, "tasks.max": "2"})
        process = MirrorProcess(file, tmp_path / "log2")
        process.eventually(lambda: groups()[1].get("left_out", "") is None and left_out not in troubles(), 120)
    finally:
        process.clean_up()
