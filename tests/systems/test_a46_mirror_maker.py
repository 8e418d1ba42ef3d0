"""MirrorMaker's driver: selected flows (A46) and command-line arguments (A48)."""

from __future__ import annotations

from pathlib import Path

import pytest

from mm2.sandbox.kafka import LocalKafka
from tests.integration.copy_flow import create
from tests.integration.mirror_process import MirrorProcess, heartbeats, is_running, topics_of, write_config
from tests.support import programs
from tests.support.waiting import wait_until


@pytest.mark.timeout(240)
def test_a46_flows_are_selected_by_target_and_heartbeats_need_none_enabled(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, folder: Path
) -> None:
    create(kafka_a, unique)
    a, b = f"a-{unique[-6:]}", f"b-{unique[-6:]}"
    props = {
        "clusters": f"{a}, {b}",
        f"{a}.bootstrap.servers": kafka_a.bootstrap,
        f"{b}.bootstrap.servers": kafka_b.bootstrap,
        f"{a}->{b}.enabled": "true",
        f"{a}->{b}.topics": unique,
    }
    file = write_config(folder / "mm2.properties", props)
    only_b = MirrorProcess(file, folder / "only-b.log", b)
    try:
        only_b.eventually(lambda: is_running(kafka_b, a), 90)
        assert f"mm2-configs.{a}.internal" in topics_of(kafka_b)
        assert f"mm2-configs.{b}.internal" not in topics_of(kafka_a)
        only_b.stop()
    finally:
        only_b.clean_up()
    both = MirrorProcess(file, folder / "both.log")
    try:
        # b->a is not enabled: its herder exists for the heartbeats that a->b copies.
        both.eventually(lambda: "heartbeats" in topics_of(kafka_a) and (b, a) in heartbeats(kafka_a, "heartbeats"), 90)
        assert f"mm2-configs.{b}.internal" in topics_of(kafka_a)
        wait_until(lambda: f"{a}.heartbeats" in topics_of(kafka_b), 60, detail=both.tail)
        both.stop()
    finally:
        both.clean_up()


@pytest.mark.parametrize(
    ("program", "arguments", "code", "output"),
    [
        ("connect_mirror_maker", ["--help"], 0, "--clusters"),
        ("connect_mirror_maker", [], None, "mm2.properties"),
        ("connect_mirror_maker", ["no-such.properties"], None, "no-such.properties"),
        ("connect_mirror_maker", ["no-such.properties", "--clusters", "A", "B"], None, "no-such.properties"),
        ("connect_distributed", ["no-such.properties"], None, "no-such.properties"),
        ("connect_standalone", ["no-such.properties", "c.properties"], None, "no-such.properties"),
    ],
)
def test_a48_arguments_are_a_file_and_a_list(program: str, arguments: list[str], code: int | None, output: str) -> None:
    done = programs.run(program, *arguments, PATH="")
    assert output in done.stdout + done.stderr
    if code is None:
        assert done.returncode != 0
        assert "Traceback" not in done.stderr
    else:
        assert done.returncode == code
