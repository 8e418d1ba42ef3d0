"""Kafka's own integration tests of MirrorMaker, unmodified, against processes of this project.

The tests are those of `connect-mirror`'s test jar. `WorkerHandle.java` and `MirrorMaker.java` take the place of the two Kafka classes that would
run a worker or a herder inside the tests' JVM. Left out are tests whose subject is a Java class with state in that JVM: a ForwardingAdmin
(MirrorConnectorsWithCustomForwardingAdminIntegrationTest) and a MetricsReporter (testConnectorMetrics…).
"""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from mm2.sandbox.jars import cache_folder
from mm2.sandbox.java import java_executable

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[1]
_PACKAGE = "org.apache.kafka.connect.mirror.integration"


@pytest.fixture(scope="session")
def jars() -> Path:
    """A folder with the jars of `pom.xml`, downloaded by Maven if needed."""
    folder = cache_folder() / "kafka-tests"
    command = ["mvn", "-q", "-B", "-f", str(_HERE / "pom.xml"), "dependency:copy-dependencies"]
    subprocess.run([*command, f"-DoutputDirectory={folder}"], check=True, timeout=900)
    return folder


@pytest.fixture(scope="session")
def classes(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("classes")
    sources = [str(path) for path in sorted(_HERE.glob("*.java"))]
    subprocess.run(["javac", "-cp", f"{jars}/*", "-d", str(made), *sources], check=True, timeout=300)
    return made


@pytest.mark.slow
@pytest.mark.timeout(5400)
@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("DedicatedMirrorIntegrationTest", 3),
        ("IdentityReplicationIntegrationTest", 13),
        ("MirrorConnectorsIntegrationExactlyOnceTest", 13),
        ("MirrorConnectorsIntegrationSSLTest", 13),
        ("MirrorConnectorsIntegrationTransactionsTest", 13),
    ],
)
def test_kafkas_tests_of_mirrormaker_pass(name: str, count: int, jars: Path, classes: Path, tmp_path: Path) -> None:
    given = {"folder": str(tmp_path), "python": sys.executable, "root": str(_ROOT)}
    command = [
        *(java_executable(), "-Xmx1500m", *(f"-Dmm2.{key}={value}" for key, value in given.items())),
        *("-cp", f"{classes}:{jars}/*", "org.junit.platform.console.ConsoleLauncher", "execute", "--disable-banner"),
        *("--details=none", f"--reports-dir={tmp_path}", f"--select-class={_PACKAGE}.{name}"),
        "--exclude-methodname=.*testConnectorMetrics.*",
    ]
    with (tmp_path / "output").open("wb") as output:
        subprocess.run(command, stdout=output, stderr=output, cwd=tmp_path, check=False)
    cases = [case for report in tmp_path.glob("TEST-*.xml") for case in ET.parse(report).iter("testcase")]  # noqa: S314  (written by JUnit)
    failed = [
        f"{case.get('name')}: {found.get('message')}"
        for case in cases
        for found in case
        if found.tag in {"failure", "error"}
    ]
    assert failed == []
    assert len(cases) == count, (tmp_path / "output").read_text(errors="replace")[-3000:]
