"""What is told of a fault, and how soon: by `mm2 status`, by a page of the dashboard that is open, by /metrics, and by the alerts of
a real Prometheus.

Two brokers, one process, conf/prometheus as it is. A row is injected as somebody would do it by hand; then everybody is listened
to until it is mended, and until all is well again.
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
from tests.faults.stage import Topics
from tests.integration.copy_flow import producer_of
from tests.integration.mirror_process import ROOT, MirrorProcess, ends, write_config
from tests.integration.prometheus_server import Prometheus, prometheus
from tests.support.waiting import wait_until

TOPICS: Final = ("orders", "audit", "invoices", "clicks")
_SCRAM: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
_PASSWORD: Final = "mirror-secret"
_LISTEN_S: Final = 60.0
#: When somebody types `mm2 status`, which waits up to 15 s for a cluster that does not answer.
_ASK_S: Final = 10.0
#: For a start and a recovery on a machine that has much else to do; what is told is timed, not waited for.
_PATIENCE_S: Final = 600.0
#: Gauges that say something by being 1, and those that say it by their number.
_FLAGS: Final = {"mm2_flow_state": "state", "mm2_partition_state": "state"}
_NUMBERS: Final = ("mm2_flow_seconds_at_risk", "mm2_flow_records_at_risk", "mm2_lost_ranges_total")
_WELL: Final = {"RUNNING", "CATCHING_UP"}
#: Fires for an hour, since nothing makes a loss undone.
_LASTING: Final = "Mm2RecordsLost"


@dataclass
class Heard:
    """Of one row. Seconds count from the fault; ``alerts``: name -> (pending since, firing since), None: not by then."""

    row: str
    done: str
    page: str = ""
    page_s: float = 0.0
    status: str = ""
    status_s: float = 0.0
    metrics: str = ""
    alerts: dict[str, tuple[float | None, float | None]] = field(default_factory=dict)
    well_s: float | None = None

    @property
    def is_told(self) -> bool:
        """An alert knows of it within 30 s, if only as pending."""
        return any(at is not None and at <= 30 for times in self.alerts.values() for at in times)


class Rig:
    """The flow A->B and all who listen to it."""

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
        """The process, once more."""
        self._starts += 1
        self.process = MirrorProcess(self._file, self._folder / f"mirror-{self._starts}.log", "B")
        return self.process

    def now(self) -> None:
        """What follows is the fault."""
        self.injected_s = time.time()

    def clean_up(self) -> None:
        """End the process, whichever it is by now."""
        self.process.clean_up()

    def mm2(self, *words: str) -> tuple[int, str]:
        """Exit code and words of the command."""
        verb, *more = words
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
        """Every sample of /metrics, by its name and labels; None when nobody answers."""
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
        """The first page of the dashboard; from then on it is on its own, as on somebody's screen."""
        self.page.goto(f"{self._url}/ui/")
        self.page.locator(".sentence").first.wait_for()

    def dashboard(self) -> str:
        """The bar across the page when there is one, and what stands there of the flow."""
        alarm, flow = self.page.locator("#alarm"), self.page.get_by_role("region", name="A->B", exact=True)
        said = [alarm.inner_text()] if alarm.is_visible() else []
        said += [f"{flow.locator('.state').first.inner_text()}: {flow.locator('.sentence').inner_text()}"]
        said += flow.locator(".errors li").all_inner_texts()
        lost = flow.locator("a[href^=gaps]").inner_text()
        said += [] if lost == "0" else [f"Lost ranges: {lost}"]
        return "<br>".join(said)

    def is_well(self) -> bool:
        """Nothing critical is pending or firing, and the flow runs. Warnings may linger for minutes."""
        critical = {alert.name for alert in self.server.alerts() if alert.labels["severity"] == "critical"}
        return critical <= {_LASTING} and self.server.value('max(mm2_flow_state{state="RUNNING"})') == 1

    def caught_up(self, topic: str) -> bool:
        """All of the topic is on the target."""
        return ends(self.a, topic) == ends(self.b, f"A.{topic}")


@contextmanager
def rig() -> Iterator[Rig]:
    """Runs and is well; all of it is gone at the end."""
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
        wait_until(made.is_well, _PATIENCE_S, what="a flow that is well")
        made.open_page()
        yield made


# -- what is done


def w1(made: Rig) -> tuple[str, Callable[[], object]]:
    """Everything of the process at once, as by a power cut."""
    made.now()
    made.process.kill9(whole_family=True)
    return "kill -9 of the process with all it has started, under load; started again after a minute", made.start


def b2(made: Rig) -> tuple[str, Callable[[], object]]:
    """The target's only broker."""
    made.now()
    made.b.kill9()
    return "kill -9 of the target's only broker, under load; started again after a minute", made.b.start


def d4(made: Rig) -> tuple[str, Callable[[], object]]:
    """The reader is kept back, and retention goes on."""
    assert made.mm2("pause", "--topic", "clicks")[0] == 0
    made.write("clicks", 900)
    Topics(made.a).delete_before("clicks", {0: 630})
    made.now()
    assert made.mm2("resume", "--topic", "clicks")[0] == 0
    return "topic paused, 900 records written, 600 of them deleted by DeleteRecords, topic resumed", lambda: None


def r3(made: Rig) -> tuple[str, Callable[[], object]]:
    """In the second of three batches that nobody has read yet; the byte is put back at the end, as another replica would."""
    assert made.mm2("pause", "--topic", "invoices")[0] == 0
    made.write("invoices", 30)
    spoilt = segments.batches(made.a, "invoices")[-2]
    spoilt.change(segments.flip_a_bit, right_crc=False)
    made.now()
    assert made.mm2("resume", "--topic", "invoices")[0] == 0
    return (
        "one bit flipped in a batch on the source's disk",
        lambda: spoilt.change(segments.flip_a_bit, right_crc=False),
    )


def s1(made: Rig) -> tuple[str, Callable[[], object]]:
    """Taken away while it runs, and records come."""
    admin = AdminClient({"bootstrap.servers": made.a.bootstrap, "log_level": 0})

    def rule(operation: AclOperation, permission: AclPermissionType) -> AclBinding:
        where = ("audit", ResourcePatternType.LITERAL, "User:mirror", "*")
        return AclBinding(ResourceType.TOPIC, *where, operation, permission)

    def give_back() -> None:
        anybody: Any = None
        everything = AclBindingFilter(
            ResourceType.TOPIC,
            "audit",
            ResourcePatternType.LITERAL,
            anybody,
            anybody,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        for done in admin.delete_acls([everything]).values():
            done.result(30)

    rules = [rule(AclOperation.ALL, AclPermissionType.ALLOW), rule(AclOperation.READ, AclPermissionType.DENY)]
    made.now()
    for done in admin.create_acls(rules).values():
        done.result(30)
    made.write("audit", 30)
    return "the right to READ one topic taken away, and records written to it", give_back


#: Each does it and returns what it has done, and how it is mended.
ROWS: Final[dict[str, Callable[[Rig], tuple[str, Callable[[], object]]]]] = {
    "W1": w1,
    "B2": b2,
    "D4": d4,
    "R3": r3,
    "S1": s1,
}


# -- what is told


def play(made: Rig, row: str) -> Heard:
    """Injects a row, listens for a minute, mends it, and waits until all is well."""
    ears = _Ears(made.server)
    try:
        done, mend = ROWS[row](made)
        heard, injected_s = Heard(row, done), made.injected_s
        ears.listen(injected_s)
        time.sleep(max(0.0, injected_s + _ASK_S - time.time()))
        heard.page, heard.page_s = made.dashboard(), time.time() - injected_s
        code, said = made.mm2("status")
        heard.status, heard.status_s = f"{_told(said)} (exit code {code})", time.time() - injected_s
        heard.metrics = _worth_telling(made.metrics())
        time.sleep(max(0.0, injected_s + _LISTEN_S - time.time()))
        mend()
        mended_s = time.time()
        wait_until(made.is_well, _PATIENCE_S, what=f"{row} to be well again; there are {made.server.alerts()}")
        heard.well_s = time.time() - mended_s
    finally:
        ears.stop()
    heard.alerts = ears.heard
    return heard


class _Ears(threading.Thread):
    """Asks Prometheus for alerts four times a second."""

    def __init__(self, server: Prometheus) -> None:
        super().__init__(name="ears", daemon=True)
        self._began_s = 0.0
        self.heard: dict[str, tuple[float | None, float | None]] = {}
        self._server = server
        self._stopping = threading.Event()

    def listen(self, began_s: float) -> None:
        """From now on; seconds count from there."""
        self._began_s = began_s
        self.start()

    def run(self) -> None:
        while not self._stopping.wait(0.25):
            now_s = time.time() - self._began_s
            for alert in self._server.alerts():
                pending, firing = self.heard.get(alert.name, (None, None))
                if alert.state == "firing":
                    self.heard[alert.name] = (pending, now_s if firing is None else firing)
                else:
                    self.heard[alert.name] = (now_s if pending is None else pending, firing)

    def stop(self) -> None:
        """And wait for it."""
        self._stopping.set()
        if self.is_alive():
            self.join(10)


def _told(said: str) -> str:
    """The flow's own lines without the tables."""
    lines = [line.strip() for line in said.splitlines() if re.match(r"(A->B  [A-Za-z]|mm2: )", line)]
    return "<br>".join(re.sub(r" {2,}", " ", line).replace("|", "\\|") for line in lines)


def _worth_telling(samples: dict[str, float] | None) -> str:
    if samples is None:
        return "does not answer"
    told = []
    for key, value in sorted(samples.items()):
        name, _, labels = key.partition("{")
        label = json.loads("{" + labels)
        if name in _FLAGS and value == 1 and (name == "mm2_flow_state" or label["state"] not in _WELL):
            where = f"{label['topic']}-{label['partition']} " if "topic" in label else ""
            told.append(f"{name} {where}{label['state']}")
        elif name == "mm2_flow_cluster_up" and value == 0:
            told.append(f"{name} {label['cluster']} 0")
        elif name in _NUMBERS and value:
            told.append(f"{name} {value:g}")
    return "; ".join(told)
