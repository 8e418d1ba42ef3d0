"""Replication on a Spark context that the process did not start: by `spark-submit`, or of a program with a SparkSession."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pyspark
import pytest

from mm2.sandbox.kafka import LocalKafka
from tests.integration.copy.test_copy_engine import numbered, write
from tests.integration.copy_flow import admin_of, create, end_offset
from tests.integration.mirror_process import ROOT, write_config
from tests.support.waiting import wait_until

_NOTEBOOK = """
import sys, threading
from pyspark.sql import SparkSession
import mm2.spark

spark = SparkSession.builder.master("local[4]").appName("notebook").config("spark.ui.enabled", "false").getOrCreate()
replication = mm2.spark.start(spark, sys.argv[1], ["B"])
{listener}
print("STARTED", sorted(replication.status()), flush=True)
sys.stdin.readline()
replication.stop()
assert replication.wait(5)
print("STOPPED", replication.failure, spark.range(7).count(), flush=True)
sys.stdin.readline()
replication = mm2.spark.start(spark, sys.argv[1], ["B"])
sys.stdin.readline()
spark.stop()
assert replication.wait(60)
print("ENDED", replication.failure, flush=True)
"""


def documented(page: str, begin: str) -> str:
    """The Python example of a page that begins so."""
    blocks = (ROOT / "docs" / page).read_text().split("```python\n")[1:]
    (found,) = (block.partition("```")[0] for block in blocks if block.startswith(begin))
    return found


_LISTENER = documented("how-to/spark.md", "from pyspark.sql.streaming import StreamingQueryListener")


@pytest.fixture
def config(kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, tmp_path: Path) -> Path:
    create(kafka_a, unique, retention__ms="-1")
    props = {
        "clusters": "A, B",
        "A.bootstrap.servers": kafka_a.bootstrap,
        "B.bootstrap.servers": kafka_b.bootstrap,
        "A->B.enabled": "true",
        "A->B.topics": unique,
        "A->B.emit.heartbeats.enabled": "false",
        "spark.app.name": "of the file",
        "spark.driver.memory": "600m",
    }
    return write_config(tmp_path / "mm2.properties", props)


@contextmanager
def running(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=output, stderr=output, env=environment, start_new_session=True
        )
        family = psutil.Process(process.pid)
        try:
            yield process
        finally:
            for member in [family, *family.children(recursive=True)] if process.poll() is None else []:
                with contextlib.suppress(psutil.Error):
                    member.kill()
            process.wait()


def say(process: subprocess.Popen[bytes], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line.encode() + b"\n")
    process.stdin.flush()


def copy(kafka_a: LocalKafka, kafka_b: LocalKafka, topic: str, first: int, log: Path) -> None:
    """Write ten records, and wait until the target has them."""
    write(kafka_a, topic, numbered(first, 10))
    wait_until(
        lambda: topic_exists(kafka_b, f"A.{topic}") and end_offset(kafka_b, f"A.{topic}") == first + 10,
        120,
        detail=log.read_text,
    )


def python_of(process: subprocess.Popen[bytes]) -> psutil.Process:
    """The program that spark-submit runs."""
    (found,) = (one for one in psutil.Process(process.pid).children() if "mirror.py" in _arguments(one))
    return found


def _arguments(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.ZombieProcess:
        return ""


def topic_exists(broker: LocalKafka, topic: str) -> bool:
    return topic in admin_of(broker).list_topics(timeout=30).topics


def java(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    family = psutil.Process(process.pid)
    return [one for one in [family, *family.children(recursive=True)] if one.name() == "java"]


def test_a_session_of_a_program_is_used_and_kept(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, config: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with running([sys.executable, "-P", "-c", _NOTEBOOK.replace("{listener}", _LISTENER), str(config)], log) as process:
        copy(kafka_a, kafka_b, unique, 0, log)
        text = log.read_text()
        assert "STARTED ['A->B']" in text
        assert (
            "spark.app.name has no effect: the Spark context of this process was created before, with another value"
            in text
        )
        assert "spark.driver.memory has no effect" in text
        assert len(java(process)) == 1
        say(process, "stop")
        wait_until(lambda: "STOPPED  7" in log.read_text(), 60, detail=log.read_text)
        # The records of the only micro-batch, reported when it has ended, before its query has.
        wait_until(lambda: "10 records" in log.read_text(), 60, detail=log.read_text)
        write(kafka_a, unique, numbered(10, 10))
        time.sleep(3)
        assert end_offset(kafka_b, f"A.{unique}") == 10
        say(process, "start again")
        copy(kafka_a, kafka_b, unique, 20, log)
        say(process, "end the session")
        ended = "ENDED Nothing can be copied any more: the Spark context of this process has ended"
        wait_until(lambda: ended in log.read_text(), 90, detail=log.read_text)
        assert "Spark lost, restarting" not in log.read_text()


@pytest.mark.parametrize("ends", ["by SIGTERM", pytest.param("with its JVM", marks=pytest.mark.slow)])
def test_spark_submit_starts_the_only_jvm_and_its_settings_apply(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, config: Path, tmp_path: Path, ends: str
) -> None:
    program, log, events = tmp_path / "mirror.py", tmp_path / "log", tmp_path / "events"
    program.write_text("import sys\nfrom mm2.cli.connect_mirror_maker import main\nsys.exit(main())\n")
    events.mkdir()
    submit = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", "local[3]"]
    submit += ["--conf", "spark.eventLog.enabled=true", "--conf", f"spark.eventLog.dir={events}"]
    submit += ["--conf", "spark.app.name=of the command line", str(program), str(config), "--clusters", "B"]
    submit[1:1] = ["--conf", "spark.eventLog.compress=false"]
    with running(submit, log) as process:
        copy(kafka_a, kafka_b, unique, 0, log)
        assert [one.pid for one in java(process)] == [process.pid]
        recorded = "\n".join(file.read_text() for file in events.rglob("*") if file.is_file())
        assert '"spark.app.name":"of the file"' in recorded
        assert '"spark.eventLog.enabled":"true"' in recorded
        python = python_of(process)
        if ends == "by SIGTERM":
            python.terminate()
            assert process.wait(60) == 0, log.read_text()
            return
        process.kill()  # its output ends, too, since the JVM forwards it
        try:
            python.wait(60)
        finally:
            with contextlib.suppress(psutil.Error):
                python.kill()
