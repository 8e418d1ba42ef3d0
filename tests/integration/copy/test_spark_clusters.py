"""Spark clusters of a test of its own: a master that forgets the application, an executor of the image, the whole program."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mm2 import __version__
from mm2.copy.driver.engine import CopyEngine
from mm2.copy.spec import Assignment
from mm2.sandbox.kafka import LocalKafka
from mm2.sandbox.process import end, spawn
from tests.integration.copy.test_copy_engine import numbered, write
from tests.integration.copy.test_spark_standalone import PARTITIONS, SECRET, assert_equal, busy, executors
from tests.integration.copy_flow import Flow, Traffic, create
from tests.integration.mirror_process import ROOT, MirrorProcess, has_all, write_config
from tests.support.spark import LocalSpark
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@contextlib.contextmanager
def started(props: dict[str, str]) -> Iterator[CopyEngine]:
    engine = CopyEngine(props)
    engine.start()
    try:
        yield engine
    finally:
        engine.stop()


@pytest.mark.parametrize("away_s", [0.0, 20.0])
def test_copying_continues_after_the_master_was_killed_and_forgot_the_application(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, tmp_path: Path, away_s: float
) -> None:
    """Its workers end the executors of the unknown application; before, none was ever started again."""
    with (
        LocalSpark(tmp_path / "spark", workers=1, cores=2) as cluster,
        started({**cluster.props, "spark.authenticate": "false"}) as engine,
    ):
        wait_until(lambda: engine.slots.count == 2, 120)
        first = engine.spark.application_id
        flow = Flow(engine, kafka_a, kafka_b, unique)
        topic = flow.topic(partitions=2)
        spec = flow.spec(topic, partitions=2, lanes=1, batch_duration_ms=3_000)
        with Traffic(flow.source, topic, 2, per_second=100) as traffic, flow.copying(spec) as job:
            wait_until(lambda: job.status()["records"] > 200, 120, detail=job.status)
            cluster.kill_master()
            time.sleep(away_s)
            cluster.start_master()
            wait_until(lambda: engine.spark.application_id not in {"", first}, 240, detail=lambda: engine.down)
            at = traffic.sent
            wait_until(lambda: sum(row.position for row in job.progress()) > at, 120, detail=job.status)
            traffic.finish()
            flow.wait_until_copied(job, spec, 120)
        assert assert_equal(flow.source, flow.target, topic, flow.remote(topic)) == traffic.sent


def test_the_entrypoint_of_the_image_starts_an_executor(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, tmp_path: Path
) -> None:
    """What Kubernetes starts in a pod, with the variables that Spark sets: here the driver is that of a standalone cluster without workers."""
    with LocalSpark(tmp_path / "spark", workers=0, secret=SECRET) as nothing, started(nothing.props) as engine:
        context = engine.spark.context(60)
        port = context.getConf().get("spark.driver.port")
        options = [f"-D{key}={value}" for key, value in nothing.props.items() if not key.startswith("spark.master")]
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "SPARK_DRIVER_URL": f"spark://CoarseGrainedScheduler@127.0.0.1:{port}",
            "SPARK_EXECUTOR_ID": "7",
            "SPARK_EXECUTOR_CORES": "2",
            "SPARK_EXECUTOR_MEMORY": "450m",
            "SPARK_APPLICATION_ID": engine.spark.application_id,
            "SPARK_EXECUTOR_POD_IP": "127.0.0.1",
            "SPARK_EXECUTOR_POD_NAME": "pod-7",
            "SPARK_RESOURCE_PROFILE_ID": "0",
            **{f"SPARK_JAVA_OPT_{number}": option for number, option in enumerate(options)},
        }
        command = [sys.executable, "-P", "-m", "mm2.cli.container", "executor"]
        log = tmp_path / "executor.log"
        executor = spawn(command, output=log, environment=environment)
        try:
            flow = Flow(engine, kafka_a, kafka_b, unique)
            topic = flow.topic()
            write(flow.source, topic, numbered(0, 10))
            spec = flow.spec(topic)
            with flow.copying(spec) as job:
                wait_until(lambda: engine.slots.count == 2, 60, detail=log.read_text)
                flow.wait_until_copied(job, spec, 60)
            flow.assert_equal(topic)
        finally:
            end(executor)


@pytest.mark.parametrize("differs", ["mm2", "python", "no mm2"])
def test_an_executor_that_does_not_fit_is_one_sentence(
    kafka_a: LocalKafka,
    kafka_b: LocalKafka,
    unique: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    differs: str,
) -> None:
    python = {"spark.pyspark.python": sys._base_executable} if differs == "no mm2" else {}  # type: ignore[attr-defined]
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with (
        LocalSpark(tmp_path / "spark", workers=1, cores=2) as cluster,
        started({**cluster.props, "spark.authenticate": "false", **python}) as engine,
    ):
        wait_until(lambda: engine.slots.count == 2, 120)
        if differs == "mm2":
            monkeypatch.setattr("mm2.copy.driver.engine.Assignment", functools.partial(Assignment, version="0.0.9"))
            wanted = f"the executor has mm2 {__version__}, and the driver 0.0.9: install the same version on both"
        elif differs == "python":
            engine.spark.context(60).pythonVer = "3.9"
            wanted = "Python in worker has different version"
        else:
            wanted = "No module named 'mm2'"
        flow = Flow(engine, kafka_a, kafka_b, unique)
        topic = flow.topic()
        found: list[str] = []
        with flow.copying(flow.spec(topic)) as job:

            def is_reported() -> bool:
                found[:] = [one for one in job.status()["troubles"] if wanted in one]
                return bool(found)

            wait_until(is_reported, 60, detail=job.status)
        assert "\n" not in found[0]
        assert "Traceback" not in found[0]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive for executors that bin/release makes of a wheel, here of this checkout."""
    folder = tmp_path_factory.mktemp("release")
    source = checkout_copy(folder / "source")
    build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    run = functools.partial(subprocess.run, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    run([sys.executable, "-P", "-c", build, str(folder)], cwd=source)
    (wheel,) = folder.glob("*.whl")
    run([sys.executable, "-P", str(ROOT / "tests" / "tools" / "executor_archive.py"), str(wheel), str(folder)])
    (made,) = folder.glob("*.tar.gz")
    return made


def checkout_copy(folder: Path) -> Path:
    shutil.copytree(ROOT / "mm2", folder / "mm2", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "conf", folder / "conf")
    for name in ("README.md", "pyproject.toml", "setup.cfg"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def test_executors_run_with_the_archive_of_a_release_where_no_package_is_installed(
    archive: Path, kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, tmp_path: Path
) -> None:
    python = sys._base_executable  # type: ignore[attr-defined]
    props = {
        "spark.authenticate": "false",
        "spark.archives": f"{archive}#mm2",
        "spark.pyspark.python": python,
        "spark.executorEnv.PYTHONPATH": "./mm2",
    }
    with LocalSpark(tmp_path / "spark", workers=1, cores=2) as cluster, started({**cluster.props, **props}) as engine:
        wait_until(lambda: engine.slots.count == 2, 120)

        def places(_: int) -> tuple[str, str, str]:
            import mm2  # noqa: PLC0415  (in the executor)

            return sys.executable, mm2.__file__, str(Path.cwd())

        ((executable, package, folder),) = engine.spark.context(60).parallelize([0], 1).map(places).collect()
        assert (executable, package) == (python, f"{folder}/mm2/mm2/__init__.py")
        flow = Flow(engine, kafka_a, kafka_b, unique)
        topic = flow.topic()
        write(flow.source, topic, numbered(0, 10))
        spec = flow.spec(topic)
        with flow.copying(spec) as job:
            flow.wait_until_copied(job, spec, 60)
        flow.assert_equal(topic)


def test_the_whole_program_runs_on_a_cluster(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, tmp_path: Path
) -> None:
    topic = f"{unique}-t"
    create(kafka_a, topic, PARTITIONS)
    with LocalSpark(tmp_path / "spark", workers=2, cores=2) as cluster:
        props = {
            "clusters": "east, west",
            "east.bootstrap.servers": kafka_a.bootstrap,
            "west.bootstrap.servers": kafka_b.bootstrap,
            "east->west.enabled": "true",
            "east->west.topics": topic,
            "west->east.enabled": "false",
            "copy.batch.duration.ms": "4000",
            **cluster.props,
            "spark.authenticate": "false",  # the master is on loopback
        }
        process = MirrorProcess(write_config(tmp_path / "mm2.properties", props), tmp_path / "mm2.log", "west")
        try:
            with Traffic(kafka_a, topic, PARTITIONS, per_second=500) as traffic:
                process.await_log("Spark is up", master=cluster.url, timeout_s=120)
                process.await_log("Copied so far.", timeout_s=180)
                wait_until(lambda: len(executors(cluster)) == 2, 30)
                wait_until(lambda: busy(cluster), 60)
                busy(cluster)[0].kill()
                at = traffic.sent
                process.eventually(lambda: traffic.sent > at + 3_000, 60)
            remote = f"east.{topic}"
            process.eventually(lambda: has_all(kafka_a, topic, kafka_b, remote), 180)
            assert process.lines(event="Spark's connections are not encrypted")
            code, seconds = process.stop()
        finally:
            process.clean_up()
        assert code == 0
        assert seconds < 15
        assert assert_equal(kafka_a, kafka_b, topic, remote) == traffic.sent
        wait_until(lambda: not executors(cluster), 30)
