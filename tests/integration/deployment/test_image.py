"""The container image, built from its Dockerfile in a clean root, and run from there between two brokers.

Slow, and as root only: debootstrap (Debian's package) makes the root. Without Docker; the limits of this test are in
docs/how-to/deployment.md.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mm2.sandbox.kafka import LocalKafka
from mm2.sandbox.ports import free_ports
from mm2.sandbox.process import end, spawn
from tests.integration.copy_flow import create, producer_of
from tests.integration.dockerfile import Builder, Image, debootstrap
from tests.integration.mirror_process import has_all, write_config
from tests.support.waiting import PATIENCE, wait_until

ROOT = Path(__file__).parents[3]
DOCKERFILE = ROOT / "Dockerfile"
TEST_PACKAGES = {
    "pytest",
    "hypothesis",
    "mypy",
    "ruff",
    "confluent-kafka",
    "schemathesis",
    "psutil",
    "pip",
    "setuptools",
}


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    if os.geteuid() or shutil.which("debootstrap") is None:
        pytest.fail("needs root, and Debian's package debootstrap: tests/tools/debian-packages debootstrap")
    folder = tmp_path_factory.mktemp("image")
    folder.chmod(0o755)
    base = debootstrap(folder)
    ambient = {
        name: value for name, value in os.environ.items() if name.startswith(("PIP_", "http", "HTTP", "SSL_CERT"))
    }
    ambient.pop("PIP_FIND_LINKS", None)
    # The build trusts the certificates of this machine's registries, which may be behind a proxy.
    bundle = Path("/etc/ssl/certs/ca-certificates.crt")
    (base / "var" / "tmp" / "trusted.crt").write_bytes(bundle.read_bytes())
    ambient |= dict.fromkeys(("PIP_CERT", "SSL_CERT_FILE"), "/var/tmp/trusted.crt")  # noqa: S108 - in the new root
    yield Builder(ROOT, folder, base, ambient).build(DOCKERFILE.read_text())
    shutil.rmtree(folder)


@pytest.mark.slow
@pytest.mark.timeout(2400)
class TestImage:
    def test_the_image_has_the_tested_versions_and_no_test_packages(self, image: Image) -> None:
        reported = image.run(
            "python",
            "-c",
            "from importlib.metadata import distributions\nfor d in distributions(): print(f'{d.name}=={d.version}')",
        ).stdout.split()
        pinned = {
            _normal(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"
        }
        installed = {_normal(line) for line in reported}
        ours = {line for line in installed if line.startswith("mm2==")}
        assert ours
        assert installed - ours <= pinned
        assert not {line.partition("==")[0] for line in installed} & TEST_PACKAGES
        assert image.run("java", "-version").returncode == 0
        assert image.run("sh", "-c", "command -v gcc pip").returncode != 0

    def test_the_image_runs_unprivileged_and_writes_only_to_its_home(self, image: Image) -> None:
        assert image.user == "10001:10001"
        assert image.run("id", "-u").stdout == "10001\n"
        assert image.run("sh", "-c", "touch /opt/mm2/x || touch /usr/x || touch /etc/x").returncode != 0
        assert image.run("touch", "x").returncode == 0
        assert (image.root / "opt" / "mm2" / "share" / "mm2" / "spark.jsa").stat().st_size > 10_000_000

    def test_records_are_copied_and_the_health_check_is_green(
        self, image: Image, kafka_a: LocalKafka, kafka_b: LocalKafka, tmp_path: Path, unique: str
    ) -> None:
        create(kafka_a, unique, 3)
        producer = producer_of(kafka_a)
        for index in range(1000):
            producer.produce(unique, value=b"%d" % index)
        assert producer.flush(60) == 0
        (port,) = free_ports(1)
        (image.root / "etc" / "mm2").mkdir()
        file = write_config(
            image.root / "etc" / "mm2" / "mm2.properties",
            {
                "clusters": "A,B",
                "A.bootstrap.servers": kafka_a.bootstrap,
                "B.bootstrap.servers": kafka_b.bootstrap,
                "A->B.enabled": "true",
                "A->B.topics": unique,
                "emit.heartbeats.enabled": "false",
                "listeners": f"http://127.0.0.1:{port}",
            },
        )
        assert file.exists()
        address = f"http://127.0.0.1:{port}/health"
        assert image.run(*image.health, address).returncode == 1, "no process listens yet"
        log = tmp_path / "container.log"
        command = image.command(*image.entrypoint, "/etc/mm2/mm2.properties", "--clusters", "B")
        process = spawn(command, output=log)
        try:
            wait_until(lambda: has_all(kafka_a, unique, kafka_b, f"A.{unique}"), 180, detail=log.read_text)
            wait_until(lambda: image.run(*image.health, address).returncode == 0, 60, detail=log.read_text)
            owners = {int(line) for line in _owners(process.pid)}
            assert owners == {10001}, owners
            began = time.monotonic()
            assert end(process, patience_s=30 * PATIENCE) == 0, log.read_text()
            assert time.monotonic() - began < 20 * PATIENCE
            assert image.run(*image.health, address).returncode == 1
        finally:
            end(process)


def _normal(line: str) -> str:
    name, _, version = line.partition("==")
    return f"{name.lower().replace('_', '-').replace('.', '-')}=={version}"


def _owners(session: int) -> list[str]:
    """User ids of all processes in the session."""
    return subprocess.run(
        ["ps", "-o", "uid=", "--sid", str(session)], capture_output=True, text=True, check=True, timeout=20
    ).stdout.split()
