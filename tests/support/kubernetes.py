"""A Kubernetes of one namespace on 127.0.0.1: a real API server with etcd, and a small kubelet that runs pods as plain processes."""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import os
import secrets
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import httpx
import yaml

from mm2.sandbox.errors import SandboxError
from mm2.sandbox.jars import cache_folder
from mm2.sandbox.ports import free_ports
from mm2.sandbox.process import Startable, end, spawn
from tests.support.certificates import issue, serving_files

ROOT: Final = Path(__file__).parents[2]
MANIFESTS: Final = ROOT / "conf" / "kubernetes"
NAMESPACE: Final = "mm2"
ACCOUNT: Final = "mm2-spark"
_TOOL: Final = ROOT / "tests" / "tools" / "kubernetes" / "build"
_POLL_S: Final = 0.2
_MERGE: Final = {"Content-Type": "application/merge-patch+json"}


def binaries() -> Path:
    """The folder with etcd and kube-apiserver, compiled by the first call. Raises SandboxError."""
    folder = cache_folder() / "kubernetes-1.34.4"
    done = subprocess.run([str(_TOOL), str(folder)], check=False, capture_output=True, text=True)
    if done.returncode:
        raise SandboxError(done.stderr.strip()[-2000:])
    return folder


@dataclass
class _Container:
    """The process of a pod."""

    process: subprocess.Popen[bytes]
    address: str
    reported: str = ""


class LocalKubernetes(Startable):
    """Usable as a context manager. The namespace and the rights of applications are those of conf/kubernetes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._port, self._etcd, self._peer = free_ports(3)
        self.url = f"https://127.0.0.1:{self._port}"
        self._admin = secrets.token_hex(16)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._kubelet: Kubelet | None = None
        self._api: httpx.Client | None = None

    @property
    def kubelet(self) -> Kubelet:
        assert self._kubelet is not None
        return self._kubelet

    @property
    def props(self) -> dict[str, str]:
        """Settings of an application whose executors are pods."""
        return {
            "spark.master": f"k8s://{self.url}",
            "spark.kubernetes.namespace": NAMESPACE,
            "spark.kubernetes.container.image": "mm2",
            "spark.kubernetes.executor.podTemplateFile": str(MANIFESTS / "executor.yaml"),
            "spark.kubernetes.authenticate.caCertFile": str(self.folder / "authority.pem"),
            "spark.kubernetes.authenticate.oauthTokenFile": str(self.folder / "token"),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "512m",
        }

    def start(self, timeout_s: float = 240.0) -> Self:
        """Start all, create namespace and account. Raises SandboxError."""
        found = binaries()
        self.folder.mkdir(parents=True)
        authority, own = serving_files(self.folder)
        accounts = issue("accounts")
        signing, verifying = self.folder / "accounts.key", self.folder / "accounts.pem"
        signing.write_text(accounts.key_pem())
        signing.chmod(0o600)
        verifying.write_text(accounts.certificate_pem)
        tokens = self.folder / "tokens.csv"
        tokens.write_text(f"{self._admin},admin,admin,system:masters\n")
        tokens.chmod(0o600)
        local = f"http://127.0.0.1:{self._etcd}"
        peer = f"http://127.0.0.1:{self._peer}"
        etcd = {
            "data-dir": str(self.folder / "etcd"),
            "listen-client-urls": local,
            "advertise-client-urls": local,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
            "unsafe-no-fsync": "true",
        }
        server = {
            "etcd-servers": local,
            "bind-address": "127.0.0.1",
            "advertise-address": "127.0.0.1",
            "endpoint-reconciler-type": "none",  # 127.0.0.1 is no address of an Endpoints object
            "secure-port": str(self._port),
            "tls-cert-file": str(own),
            "tls-private-key-file": str(own),
            "token-auth-file": str(tokens),
            "authorization-mode": "RBAC",
            "service-cluster-ip-range": "10.0.0.0/24",
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": str(verifying),
            "service-account-signing-key-file": str(signing),
        }
        context = ssl.create_default_context(cafile=str(authority))
        headers = {"Authorization": f"Bearer {self._admin}"}
        self._api = api = httpx.Client(base_url=self.url, verify=context, headers=headers, timeout=30, trust_env=False)
        try:
            for program, options in (("etcd", etcd), ("kube-apiserver", server)):
                command = [str(found / program), *(f"--{name}={value}" for name, value in options.items())]
                self._processes.append(spawn(command, output=self.folder / f"{program}.log", folder=self.folder))
            self._await_ready(api, time.monotonic() + timeout_s)
            self._create(api)
        except BaseException:
            self.stop()
            raise
        self._kubelet = Kubelet(api, self.folder / "pods")
        self._kubelet.start()
        return self

    def stop(self) -> None:
        """Stop the pods, then the servers."""
        if self._kubelet is not None:
            self._kubelet.stop()
        for process in reversed(self._processes):
            end(process)
        self._processes.clear()
        if self._api is not None:
            self._api.close()

    def pods(self) -> dict[str, str]:
        """The phase of each pod."""
        return {pod["metadata"]["name"]: pod["status"]["phase"] for pod in self.listed("pods")}

    def listed(self, kind: str) -> list[Any]:
        """The objects of a kind."""
        assert self._api is not None
        answer = self._api.get(f"/api/v1/namespaces/{NAMESPACE}/{kind}").raise_for_status()
        return list(answer.json()["items"])

    def log_tail(self) -> str:
        """The ends of all logs."""
        return "\n".join(f"{log}: {log.read_text(errors='replace')[-2000:]}" for log in self.folder.rglob("*.log"))

    def _await_ready(self, api: httpx.Client, deadline: float) -> None:
        while True:
            with contextlib.suppress(httpx.HTTPError):
                if api.get("/readyz").status_code == 200:
                    return
            if time.monotonic() > deadline or any(one.poll() is not None for one in self._processes):
                raise SandboxError(f"Kubernetes does not start.\n{self.log_tail()}")
            time.sleep(_POLL_S)

    def _create(self, api: httpx.Client) -> None:
        namespace = yaml.safe_load((MANIFESTS / "namespace.yaml").read_text())
        api.post("/api/v1/namespaces", json=namespace).raise_for_status()
        core = f"/api/v1/namespaces/{NAMESPACE}"
        # The controller that creates it in each namespace does not run.
        api.post(f"{core}/serviceaccounts", json={"metadata": {"name": "default"}}).raise_for_status()
        for made in yaml.safe_load_all((MANIFESTS / "spark.yaml").read_text()):
            base = core if made["apiVersion"] == "v1" else f"/apis/{made['apiVersion']}/namespaces/{NAMESPACE}"
            kind = made["kind"].lower()
            kinds = f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"
            api.post(f"{base}/{kinds}", json=made).raise_for_status()
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        answer = api.post(f"{core}/serviceaccounts/{ACCOUNT}/token", json=request).raise_for_status()
        token = self.folder / "token"
        token.write_text(answer.json()["status"]["token"])
        token.chmod(0o600)


class Kubelet:
    """Schedules and runs every pod: its arguments are passed to the entrypoint of the image, in the environment of this checkout.

    Each pod has an address of its own, 127.0.0.2 and following. Volumes are folders; what contains a mount path in the variables of the
    container gets the folder instead.
    """

    def __init__(self, api: httpx.Client, folder: Path) -> None:
        self._api = api
        self._folder = folder
        self._path = f"/api/v1/namespaces/{NAMESPACE}"
        self._containers: dict[str, _Container] = {}
        self._started = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kubelet", daemon=True)
        #: Requests that the API server has refused, and other errors of this kubelet.
        self.errors: list[str] = []

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(60)
        for container in self._containers.values():
            end(container.process)

    def process(self, pod: str) -> subprocess.Popen[bytes]:
        """The process of a pod, by its name."""
        return self._containers[pod].process

    def _run(self) -> None:
        while not self._stopping.wait(_POLL_S):
            try:
                for pod in self._api.get(f"{self._path}/pods").raise_for_status().json()["items"]:
                    self._follow(pod)
            except httpx.HTTPError as error:
                self.errors.append(str(error))

    def _follow(self, pod: Any) -> None:
        name = pod["metadata"]["name"]
        container = self._containers.get(name)
        if "deletionTimestamp" in pod["metadata"]:
            if container is not None:
                end(container.process, patience_s=5)
            options = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}}
            self._api.request("DELETE", f"{self._path}/pods/{name}", json=options).raise_for_status()
        elif "nodeName" not in pod["spec"]:
            binding = {"metadata": {"name": name}, "target": {"kind": "Node", "name": "node"}}
            self._api.post(f"{self._path}/pods/{name}/binding", json=binding).raise_for_status()
        elif container is None:
            self._containers[name] = self._run_container(pod)
        else:
            self._report(pod, container)

    def _run_container(self, pod: Any) -> _Container:
        self._started += 1
        address = f"127.0.0.{1 + self._started}"
        (spec,) = pod["spec"]["containers"]
        folder = self._folder / pod["metadata"]["name"]
        mounts = {}
        volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", ())}
        for mount in spec.get("volumeMounts", ()):
            mounts[mount["mountPath"]] = place = folder / "volumes" / mount["name"]
            place.mkdir(parents=True)
            self._fill(place, volumes[mount["name"]])
        fields = {"status.podIP": address, "metadata.name": pod["metadata"]["name"]}
        variables = {}
        for row in spec.get("env", ()):
            value = row.get("value", "")
            if "valueFrom" in row:
                value = fields[row["valueFrom"]["fieldRef"]["fieldPath"]]
            for path, place in mounts.items():
                value = value.replace(path, str(place))
            variables[row["name"]] = value
        inherited = {name: os.environ[name] for name in ("PATH", "JAVA_HOME", "HOME") if name in os.environ}
        environment = {**inherited, "PYTHONPATH": str(ROOT), **variables}
        command = [sys.executable, "-P", "-m", "mm2.cli.container", *spec.get("args", ())]
        process = spawn(command, output=folder / "container.log", folder=folder, environment=environment)
        return _Container(process, address)

    def _fill(self, place: Path, volume: Any) -> None:
        if "configMap" in volume:
            found = self._api.get(f"{self._path}/configmaps/{volume['configMap']['name']}").raise_for_status().json()
            for file, text in found.get("data", {}).items():
                (place / file).write_text(text)
            for file, text in found.get("binaryData", {}).items():
                (place / file).write_bytes(base64.b64decode(text))

    def _report(self, pod: Any, container: _Container) -> None:
        code = container.process.poll()
        now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        phase = "Running" if code is None else "Failed" if code else "Succeeded"
        if phase == container.reported:
            return
        state: Mapping[str, Any] = {"running": {"startedAt": now}}
        if code is not None:
            state = {"terminated": {"exitCode": code if code >= 0 else 128 - code, "finishedAt": now}}
        (spec,) = pod["spec"]["containers"]
        row = {"name": spec["name"], "image": spec["image"], "imageID": spec["image"], "restartCount": 0}
        status = {
            "phase": phase,
            "podIP": container.address,
            "podIPs": [{"ip": container.address}],
            "startTime": pod["metadata"]["creationTimestamp"],
            "containerStatuses": [{**row, "ready": code is None, "state": state}],
        }
        url = f"{self._path}/pods/{pod['metadata']['name']}/status"
        self._api.patch(url, json={"status": status}, headers=_MERGE).raise_for_status()
        container.reported = phase
