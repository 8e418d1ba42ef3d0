"""Which faults `mm2 status`, an open page of the dashboard, /metrics and the alerts of a real Prometheus report, and how soon.

It uses two brokers, one process and conf/prometheus unchanged. The fault of a row is injected as an operator would do it by hand.
All interfaces are observed until the fault is fixed and the flow is healthy again.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from playwright.sync_api import Page
from prometheus_client.parser import text_string_to_metric_families

from mm2.sandbox.kafka import LocalKafka, start_all, stop_all
from mm2.sandbox.ports import free_ports
from tests.browser.chromium import chromium
from tests.endurance.traffic import Pace, Traffic
from tests.faults import segments
from tests.faults.environment import Topics
from tests.integration.copy_flow import producer_of
from tests.integration.mirror_process import ROOT, MirrorProcess, ends, write_config
from tests.integration.prometheus_server import Prometheus, prometheus
from tests.support.waiting import wait_until

TOPICS: Final = ("orders", "audit", "invoices", "clicks")
_SCRAM: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
_PASSWORD: Final = "mirror-secret"
_OBSERVE_S: Final = 60.0
#: When `mm2 status` is called, which waits up to 15 s for an unresponsive cluster.
_STATUS_S: Final = 10.0
#: Timeout of a start and of a recovery on a busy machine.
_PATIENCE_S: Final = 600.0
#: Gauges that are 1 for a state, and gauges with a number.
_FLAGS: Final = {"mm2_flow_state": "state", "mm2_partition_state": "state"}
_NUMBERS: Final = ("mm2_flow_seconds_at_risk", "mm2_flow_records_at_risk", "mm2_lost_ranges_total")
_HEALTHY: Final = {"RUNNING", "CATCHING_UP", "PREPARING"}
#: Fires for an hour, since a loss is permanent.
_PERMANENT: Final = "Mm2RecordsLost"


@dataclass
class RowResult:
    """Result of one row. Times are seconds after the fault; ``alerts``: name -> (pending since, firing since), None: never."""

    row: str
    done: str
    page: str = ""
    page_s: float = 0.0
    status: str = ""
    status_s: float = 0.0
    metrics: str = ""
    alerts: dict[str, tuple[float | None, float | None]] = field(default_factory=dict)
    healthy_s: float | None = None

    @property
    def is_detected(self) -> bool:
        """Whether an alert was pending or firing within 30 s."""
        return any(at is not None and at <= 30 for times in self.alerts.values() for at in times)


class Rig:
    """The flow A->B with Prometheus and an open dashboard."""

    def __init__(
        self, folder: Path, a: LocalKafka, b: LocalKafka, file: Path, url: str, server: Prometheus, page: Page
    ) -> None:
        self.a, self.b = a, b
        self.server = server
        self.page = page
        self.injected_s = 0.0
        self._folder, self._file, self._url = folder, file, url
        self._starts = 0
        self.process = self.start()

    def start(self) -> MirrorProcess:
        """Start the process again."""
        self._starts += 1
        self.process = MirrorProcess(self._file, self._folder / f"mirror-{self._starts}.log", "B")
        return self.process

    def mark_injected(self) -> None:
        """Record the time of the fault, just before it is injected."""
        self.injected_s = time.time()

    def clean_up(self) -> None:
        """Kill the current process."""
        self.process.clean_up()

    def mm2(self, *arguments: str) -> tuple[int, str]:
        """Exit code and output of the command."""
        verb, *more = arguments
        done = subprocess.run(
            [sys.executable, "-P", "-m", "mm2.cli.mm2", verb, str(self._file), "A->B", *more],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        return done.returncode, done.stdout + done.stderr

    def write(self, topic: str, count: int) -> None:
        """Records of 100 bytes into partition 0, in three batches."""
        producer = producer_of(self.a)
        for number in range(count):
            producer.produce(topic, b"%0100d" % number, partition=0)
            if number % (count // 3) == 0:
                producer.flush(30)
        assert producer.flush(30) == 0

    def metrics(self) -> dict[str, float] | None:
        """Every sample of /metrics by name and labels; None without a response."""
        try:
            text = httpx.get(f"{self._url}/metrics", timeout=5).text
        except httpx.HTTPError:
            return None
        return {
            sample.name + json.dumps(sample.labels, sort_keys=True): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def open_page(self) -> None:
        """Open the first page of the dashboard, which is not reloaded afterwards."""
        self.page.goto(f"{self._url}/ui/")
        self.page.locator(".sentence").first.wait_for()

    def dashboard(self) -> str:
        """The alarm bar if it is visible, and the texts about the flow."""
        alarm, flow = self.page.locator("#alarm"), self.page.get_by_role("region", name="A->B", exact=True)
        texts = [alarm.inner_text()] if alarm.is_visible() else []
        texts += [f"{flow.locator('.state').first.inner_text()}: {flow.locator('.sentence').inner_text()}"]
        texts += flow.locator(".errors li").all_inner_texts()
        lost = flow.locator("a[href^=gaps]").inner_text()
        texts += [] if lost == "0" else [f"Lost ranges: {lost}"]
        return "<br>".join(texts)

    def is_healthy(self) -> bool:
        """Whether no critical alert is pending or firing and the flow runs. Warnings may last for minutes."""
        critical = {alert.name for alert in self.server.alerts() if alert.labels["severity"] == "critical"}
        return critical <= {_PERMANENT} and self.server.value('max(mm2_flow_state{state="RUNNING"})') == 1

    def caught_up(self, topic: str) -> bool:
        """Whether the whole topic is on the target."""
        return ends(self.a, topic) == ends(self.b, f"A.{topic}")


@contextmanager
def rig() -> Iterator[Rig]:
    """Run a healthy flow; stop everything at the end."""
    guarded = {
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "listener.name.login.scram-sha-256.sasl.jaas.config": f"{_SCRAM} required;",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "allow.everyone.if.no.acl.found": "true",
    }
    user = ["--add-scram", f"SCRAM-SHA-256=[name=mirror,password={_PASSWORD}]"]
    listeners = {"OPEN": "PLAINTEXT", "LOGIN": "SASL_PLAINTEXT"}
    (port,) = free_ports(1)
    with ExitStack() as stack:
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="mm2-alarms-", ignore_cleanup_errors=True))
        )
        a = LocalKafka("A", folder / "a", listeners=listeners, overrides=guarded, format_args=user)
        b = LocalKafka("B", folder / "b")
        start_all([a, b], _PATIENCE_S)
        stack.callback(stop_all, [a, b])
        Topics(a).create("orders", partitions=2)
        Topics(a).create(*TOPICS[1:])
        file = write_config(
            folder / "mm2.properties",
            {
                "clusters": "A, B",
                "A.bootstrap.servers": a.address("LOGIN"),
                "A.security.protocol": "SASL_PLAINTEXT",
                "A.sasl.mechanism": "SCRAM-SHA-256",
                "A.sasl.jaas.config": f'{_SCRAM} required username="mirror" password="{_PASSWORD}";',
                "B.bootstrap.servers": b.bootstrap,
                "A->B.enabled": "true",
                "A->B.topics": ", ".join(TOPICS),
                "B->A.emit.heartbeats.enabled": "false",
                "listeners": f"http://127.0.0.1:{port}",
            },
        )
        server = stack.enter_context(prometheus(folder / "prometheus", [f"127.0.0.1:{port}"]))
        browser = stack.enter_context(chromium(folder / "chromium"))
        browser.set_default_timeout(_PATIENCE_S * 1000)
        made = Rig(folder, a, b, file, f"http://127.0.0.1:{port}", server, browser.new_page())
        stack.callback(made.clean_up)
        traffic = Traffic(a.bootstrap, "orders", 2, run=os.urandom(8), rate=100, size_bytes=200, pace=Pace(1))
        traffic.start()
        stack.callback(traffic.halt)
        for topic in TOPICS[1:]:
            made.write(topic, 30)
        wait_until(made.is_healthy, _PATIENCE_S, what="a healthy flow")
        made.open_page()
        yield made


# -- faults


def w1(made: Rig) -> tuple[str, Callable[[], object]]:
    """Kill the process with all its children, as by a power failure."""
    made.mark_injected()
    made.process.kill9(whole_family=True)
    return "kill -9 of the process with all it has started, under load; started again after a minute", made.start


def b2(made: Rig) -> tuple[str, Callable[[], object]]:
    """Kill the target's only broker."""
    made.mark_injected()
    made.b.kill9()
    return "kill -9 of the target's only broker, under load; started again after a minute", made.b.start


def d4(made: Rig) -> tuple[str, Callable[[], object]]:
    """Delete records before they are copied."""
    assert made.mm2("pause", "--topic", "clicks")[0] == 0
    made.write("clicks", 900)
    Topics(made.a).delete_before("clicks", {0: 630})
    made.mark_injected()
    assert made.mm2("resume", "--topic", "clicks")[0] == 0
    return "topic paused, 900 records written, 600 of them deleted by DeleteRecords, topic resumed", lambda: None


def r3(made: Rig) -> tuple[str, Callable[[], object]]:
    """Corrupt the second of three uncopied batches; the byte is restored at the end, as by another replica."""
    assert made.mm2("pause", "--topic", "invoices")[0] == 0
    made.write("invoices", 30)
    damaged = segments.batches(made.a, "invoices")[-2]
    damaged.change(segments.flip_a_bit, right_crc=False)
    made.mark_injected()
    assert made.mm2("resume", "--topic", "invoices")[0] == 0
    return (
        "one bit flipped in a batch on the source's disk",
        lambda: damaged.change(segments.flip_a_bit, right_crc=False),
    )


def s1(made: Rig) -> tuple[str, Callable[[], object]]:
    """Revoke a permission while the flow runs and records are written."""
    admin = AdminClient({"bootstrap.servers": made.a.bootstrap, "log_level": 0})

    def rule(operation: AclOperation, permission: AclPermissionType) -> AclBinding:
        where = ("audit", ResourcePatternType.LITERAL, "User:mirror", "*")
        return AclBinding(ResourceType.TOPIC, *where, operation, permission)

    def restore() -> None:
        any_value: Any = None
        everything = AclBindingFilter(
            ResourceType.TOPIC,
            "audit",
            ResourcePatternType.LITERAL,
            any_value,
            any_value,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        for done in admin.delete_acls([everything]).values():
            done.result(30)

    rules = [rule(AclOperation.ALL, AclPermissionType.ALLOW), rule(AclOperation.READ, AclPermissionType.DENY)]
    made.mark_injected()
    for done in admin.create_acls(rules).values():
        done.result(30)
    made.write("audit", 30)
    return "READ permission of one topic revoked, and records written to it", restore


#: Each injects its fault and returns its description and the function that fixes it.
ROWS: Final[dict[str, Callable[[Rig], tuple[str, Callable[[], object]]]]] = {
    "W1": w1,
    "B2": b2,
    "D4": d4,
    "R3": r3,
    "S1": s1,
}


# -- results


def run_row(made: Rig, row: str) -> RowResult:
    """Inject the fault of a row, observe it for a minute, fix it, and wait until the flow is healthy."""
    watcher = _AlertWatcher(made.server)
    try:
        done, fix = ROWS[row](made)
        result, injected_s = RowResult(row, done), made.injected_s
        watcher.observe(injected_s)
        time.sleep(max(0.0, injected_s + _STATUS_S - time.time()))
        result.page, result.page_s = made.dashboard(), time.time() - injected_s
        code, output = made.mm2("status")
        result.status, result.status_s = f"{_status_lines(output)} (exit code {code})", time.time() - injected_s
        result.metrics = _at_risk(made.metrics())
        time.sleep(max(0.0, injected_s + _OBSERVE_S - time.time()))
        fix()
        fixed_s = time.time()
        wait_until(made.is_healthy, _PATIENCE_S, what=f"recovery after {row}; alerts are {made.server.alerts()}")
        result.healthy_s = time.time() - fixed_s
    finally:
        watcher.stop()
    result.alerts = watcher.result
    return result


class _AlertWatcher(threading.Thread):
    """Polls Prometheus for alerts four times a second."""

    def __init__(self, server: Prometheus) -> None:
        super().__init__(name="watcher", daemon=True)
        self._began_s = 0.0
        self.result: dict[str, tuple[float | None, float | None]] = {}
        self._server = server
        self._stopping = threading.Event()

    def observe(self, began_s: float) -> None:
        """Start; times are relative to `began_s`."""
        self._began_s = began_s
        self.start()

    def run(self) -> None:
        while not self._stopping.wait(0.25):
            now_s = time.time() - self._began_s
            for alert in self._server.alerts():
                pending, firing = self.result.get(alert.name, (None, None))
                if alert.state == "firing":
                    self.result[alert.name] = (pending, now_s if firing is None else firing)
                else:
                    self.result[alert.name] = (now_s if pending is None else pending, firing)

    def stop(self) -> None:
        """Stop and wait for the thread."""
        self._stopping.set()
        if self.is_alive():
            self.join(10)


def _status_lines(output: str) -> str:
    """The flow's own lines without the tables."""
    lines = [line.strip() for line in output.splitlines() if re.match(r"(A->B  [A-Za-z]|mm2: )", line)]
    return "<br>".join(re.sub(r" {2,}", " ", line).replace("|", "\\|") for line in lines)


def _at_risk(samples: dict[str, float] | None) -> str:
    if samples is None:
        return "does not respond"
    found = []
    for key, value in sorted(samples.items()):
        name, _, labels = key.partition("{")
        label = json.loads("{" + labels)
        if name in _FLAGS and value == 1 and (name == "mm2_flow_state" or label["state"] not in _HEALTHY):
            where = f"{label['topic']}-{label['partition']} " if "topic" in label else ""
            found.append(f"{name} {where}{label['state']}")
        elif name == "mm2_flow_cluster_up" and value == 0:
            found.append(f"{name} {label['cluster']} 0")
        elif name in _NUMBERS and value:
            found.append(f"{name} {value:g}")
    return "; ".join(found)
