"""`mm2 sandbox up`: two clusters that a flow can be tried with, until Ctrl-C."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from mm2.config.files.properties import load_properties
from mm2.sandbox.errors import SandboxError
from mm2.sandbox.samples import MIRROR_MAKER, sample
from tests.support.waiting import wait_until


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_two_clusters_run_until_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-P", "-m", "mm2.cli.mm2", "sandbox", "up", "--folder", str(tmp_path / "sandbox")]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        wait_until(lambda: "Ctrl-C" in log.read_text() or process.poll() is not None, 60, detail=log.read_text)
        addresses = dict(re.findall(r"(\w).bootstrap.servers = (\S+)", log.read_text()))
        assert addresses.keys() == {"A", "B"}, log.read_text()
        for address in addresses.values():
            assert len(AdminClient({"bootstrap.servers": address}).list_topics(timeout=30).brokers) == 1
        props = load_properties(tmp_path / "sandbox" / MIRROR_MAKER)
        assert {name: props[f"{name}.bootstrap.servers"] for name in "AB"} == addresses
        process.send_signal(number)
        assert process.wait(60) == 130, log.read_text()
        assert "Traceback" not in log.read_text()
    finally:
        process.kill()
        process.wait()


def test_a_missing_sample_is_reported() -> None:
    with pytest.raises(SandboxError, match=r"The sample file nothing\.properties is missing in "):
        sample("nothing.properties")
