"""The entrypoint of the image."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mm2.cli.container import executor_command
from mm2.copy.driver.jvm import SparkUnavailable

#: As Spark 4.3 sets them in executor pods.
POD = {
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@driver:7078",
    "SPARK_EXECUTOR_ID": "EXECID",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_EXECUTOR_MEMORY": "512m",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.1.2.3",
    "SPARK_EXECUTOR_POD_NAME": "mm2-exec-1",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_CONF_DIR": "/opt/spark/conf",
}


def test_an_executor_gets_what_spark_states() -> None:
    options = {f"SPARK_JAVA_OPT_{number}": f"-Dnumber={number}" for number in (10, 2, 0)}
    command = executor_command({**POD, **options, "SPARK_EXTRA_CLASSPATH": "/more/*"})
    assert [word for word in command if word.startswith("-Dnumber")] == ["-Dnumber=0", "-Dnumber=2", "-Dnumber=10"]
    path = command[command.index("-cp") + 1].split(":")
    assert (path[0], path[-1]) == ("/opt/spark/conf", "/more/*")
    assert any("spark-kubernetes" in jar for jar in path)
    assert {"-Xms512m", "-Xmx512m"} <= set(command)
    assert command[-4:] == ["--resourceProfileId", "0", "--podName", "mm2-exec-1"]


def test_what_spark_has_not_set_is_named() -> None:
    pod = {name: value for name, value in POD.items() if name not in {"SPARK_DRIVER_URL", "SPARK_EXECUTOR_MEMORY"}}
    with pytest.raises(SparkUnavailable, match=r"which sets SPARK_DRIVER_URL, SPARK_EXECUTOR_MEMORY$"):
        executor_command(pod)


def test_other_arguments_are_those_of_connect_mirror_maker() -> None:
    command = [sys.executable, "-P", "-m", "mm2.cli.container"]
    done = subprocess.run([*command, "missing.properties"], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, "missing.properties" in done.stderr) == (255, True)
