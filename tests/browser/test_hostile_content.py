"""A flow full of hostile texts, through every view, read-only command and report: nothing is executed, nothing breaks.

Given two brokers and a process. Groups, client ids, metadata of offsets, headers, connectors, their error texts, heartbeats and source
offsets contain HTML, terminal escapes, formulas, forged lines and very long names. Brokers restrict the names of topics, and nothing
else.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from playwright.sync_api import Page, expect
from prometheus_client.parser import text_string_to_metric_families

from mm2.cli.mm2 import parser
from mm2.mirror.common.formats import Heartbeat
from tests.browser.dashboard_flow import FLOW, PATIENCE_S, SOURCE, TARGET, DashboardFlow, start_dashboard_flow
from tests.integration.copy_flow import create
from tests.integration.mirror_process import ROOT
from tests.support.waiting import wait_until
from tests.unit.cli.common.test_terminal import executed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

HTML = """<img src=x onerror="window.hurt = 1">'"><script>window.hurt = 1</script>{{ 7 * 7 }}"""
TERMINAL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp.exe\u200b\u2066\r\x08"
FORGED = "quiet\nforged->line  RUNNING  nothing is lost\n"
FORMULA = '=HYPERLINK("http://x","y")'
LONG = "long-" + "x" * 30_000
GROUPS = (HTML, TERMINAL, FORGED, FORMULA, "@SUM(1)", "-1+1", LONG)
#: As in Java, names of connectors contain no control characters of ISO 8859.
CONNECTOR = f"{HTML} \u202egnp.exe\u200b\u2066 {FORMULA}"
VIEWS = (
    "",
    "topics",
    f"topic?flow={FLOW}&topic=hostile",
    "partitions",
    "groups",
    "gaps",
    "connectors",
    "workers",
    "spark",
    "configuration",
)

#: The offsets topic of another deployment, to be adopted.
ADOPTED = "adopted-offsets"
ADOPTION = ["adopt", "FILE", "FLOW", "--from-topic", ADOPTED, "--from-connector", CONNECTOR, "--dry-run"]
#: Arguments of each verb that changes nothing; FILE and FLOW are replaced.
READ_ONLY: dict[str, list[list[str]]] = {
    "client": [
        ["heartbeat-topics", "FILE", "--cluster", TARGET],
        ["checkpoint-topics", "FILE", "--cluster", TARGET],
        ["upstream-clusters", "FILE", "--cluster", TARGET],
        ["remote-topics", "FILE", "--cluster", TARGET],
        ["hops", "FILE", SOURCE, "--cluster", TARGET],
        ["translate-offsets", "FILE", SOURCE, "--groups", "(?s).*", "--cluster", TARGET],
        ["translate-offsets", "FILE", SOURCE, "--groups", "(?s).*", "--cluster", TARGET, "--json"],
        ["translate-offsets", "FILE", SOURCE, "--groups", "(?s).*", "--cluster", TARGET, "--csv"],
        ["translate-offsets", "FILE", SOURCE, TERMINAL, "--cluster", TARGET],
    ],
    "config": [["FILE"], ["FILE", "--json"]],
    "failback": [["FILE", "FLOW", "--dry-run"], ["FILE", "FLOW", "--dry-run", "--json"]],
    "failover": [["FILE", "FLOW", "--dry-run"], ["FILE", "FLOW", "--dry-run", "--json"]],
    "gaps": [["FILE", "FLOW"], ["FILE", "FLOW", "--json"]],
    "groups": [["FILE", "FLOW"], ["FILE", "FLOW", "--json"]],
    "heartbeats": [["FILE"], ["FILE", "--json"]],
    "lag": [["FILE", "FLOW"], ["FILE", "FLOW", "--json"]],
    "offsets": [
        ["list", "FILE", "FLOW"],
        ["list", "FILE", "FLOW", "--json"],
        ["delete", "FILE", "FLOW", "--older-than", "0s", "--force", "--dry-run"],
        ["delete", "FILE", "FLOW", "--connector", CONNECTOR, "--dry-run", "--json"],
        [*ADOPTION, "--from-group", TERMINAL],
        ["adopt", "FILE", "FLOW", "--from-topic", ADOPTED, "--from-connector", TERMINAL, "--dry-run"],
        ["adopt", "FILE", "FLOW", "--from-topic", TERMINAL + FORGED, "--dry-run"],
    ],
    "plan": [["FILE"], ["FILE", "--json"], ["FILE", "FLOW", "--rights"]],
    "processes": [[], ["--json"]],
    "promote": [["FILE", "FLOW", "--dry-run"]],
    "status": [["FILE"], ["FILE", "FLOW"], ["FILE", "--json"], ["FILE", "FLOW", "--topic", "hostile"]],
    "throttle": [["FILE", "FLOW"], ["FILE", "FLOW", "--json"]],
    "topics": [["FILE"], ["FILE", "FLOW", "--topic", "hostile"], ["FILE", "--json"]],
    "verify": [["FILE", "FLOW", "--topic", "hostile", "--html", "REPORT"]],
    "version": [[], ["--json"]],
}
#: These have nothing to do here, or are refused because the workers run: exit code 2, and one sentence.
REFUSED = {"failback", "adopt"}
CHANGING = {"pause", "resume", "restart", "stop"}
NOT_OF_A_CLUSTER = {"completion", "demo", "hash-password", "sandbox", "token", "ui"}


def test_every_verb_is_either_run_here_or_changes_something() -> None:
    (verbs,) = [one for one in parser()._actions if isinstance(one, argparse._SubParsersAction)]
    assert set(verbs.choices) == READ_ONLY.keys() | CHANGING | NOT_OF_A_CLUSTER


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DashboardFlow]:
    """A running flow of its own, with one more topic."""
    settings = {
        f"{FLOW}.groups": "(?s).*",  # names with line ends, too
        f"{FLOW}.preserve.offsets": "true",
        f"{FLOW}.preserve.offsets.topics": "preserved",
        # In the escapes of a properties file.
        "".join(f"\\u{ord(char):04x}" for char in f"unread.{HTML}{TERMINAL}{FORGED}{FORMULA}"): "7",
    }
    with start_dashboard_flow(
        tmp_path_factory.mktemp("hostile"), topics=("hostile", "preserved"), settings=settings
    ) as shop:
        yield shop


def commit(flow: DashboardFlow, group: str) -> None:
    """Commit an offset for a group, with metadata and a client id."""
    consumer = Consumer(
        {"bootstrap.servers": flow.source.bootstrap, "group.id": group, "client.id": TERMINAL.strip("\r\x08")}
    )
    try:
        at = TopicPartition("orders", 0, 10, metadata=(HTML + TERMINAL)[:3000])
        consumer.commit(offsets=[at], asynchronous=False)
    finally:
        consumer.close()


@pytest.fixture(scope="module")
def hostile(shop: DashboardFlow) -> DashboardFlow:
    """The flow, with hostile texts wherever a client can put them."""
    for group in GROUPS:
        commit(shop, group)
    producer = Producer({"bootstrap.servers": shop.source.bootstrap, "client.id": HTML, "message.max.bytes": 1_000_000})
    producer.produce("hostile", HTML.encode(), key=TERMINAL.encode(), headers=[(HTML, b"1"), (TERMINAL, b"2")])
    producer.produce("hostile", b"value", headers=[("x" * 900_000, FORMULA.encode())])
    assert producer.flush(PATIENCE_S) == 0
    target = Producer({"bootstrap.servers": shop.target.bootstrap})
    beat = Heartbeat(TERMINAL, HTML, 1)
    target.produce("heartbeats", beat.value(), key=beat.key(), partition=0)
    key = json.dumps([CONNECTOR, {"cluster": SOURCE, "partition": 0, "topic": TERMINAL + FORGED}])
    target.produce(f"mm2-offsets.{SOURCE}.internal", b'{"offset":1}', key=key.encode())
    # On the target only: a difference that `mm2 verify` reports with the texts of the record.
    target.produce(f"{SOURCE}.hostile", TERMINAL.encode(), key=HTML.encode(), headers=[(TERMINAL, HTML.encode())])
    # Two programs write to a topic whose offsets are preserved: its partition is DIVERGED.
    producer.produce("preserved", HTML.encode())
    assert producer.flush(PATIENCE_S) == 0
    wait_until(lambda: log_end(shop, f"{SOURCE}.preserved") == 1, PATIENCE_S, detail=shop.process.tail)
    target.produce(f"{SOURCE}.preserved", TERMINAL.encode(), key=HTML.encode(), partition=0)
    create(shop.target, ADOPTED, 1)
    for topic, offset in ((TERMINAL + FORGED, 1), ("hostile", 0)):
        key = json.dumps([CONNECTOR, {"cluster": SOURCE, "partition": 0, "topic": topic}])
        target.produce(ADOPTED, b'{"offset":%d}' % offset, key=key.encode())
    assert target.flush(PATIENCE_S) == 0
    producer.produce("preserved", b"the offset is taken")
    assert producer.flush(PATIENCE_S) == 0
    config = {
        "connector.class": "FileStreamSink",
        "topics": f"{SOURCE}.hostile",
        "file": f"/nowhere/{HTML}{TERMINAL}{FORGED}/{FORMULA}",
    }
    wait_until(
        lambda: (
            shop.ask("POST", "/connectors", json={"name": CONNECTOR, "config": config}).status_code in {201, 409}
            and CONNECTOR in shop.ask("GET", "/connectors").json()
        ),
        PATIENCE_S,
        detail=shop.process.tail,
    )
    wait_until(lambda: set(GROUPS) <= checkpoints(shop), 2 * PATIENCE_S, detail=shop.process.tail)
    wait_until(lambda: b"DIVERGED" in run(shop, "status", str(shop.file)).stdout, PATIENCE_S, detail=shop.process.tail)
    return shop


def log_end(flow: DashboardFlow, topic: str) -> int:
    """The log end offset of partition 0 on the target, -1 if there is none."""
    consumer = Consumer({"bootstrap.servers": flow.target.bootstrap, "group.id": "ends"})
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), PATIENCE_S)[1])
    except KafkaException:
        return -1
    finally:
        consumer.close()


def run(flow: DashboardFlow, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(flow.file.parent), "COLUMNS": "200"}
    command = [sys.executable, "-P", "-m", "mm2.cli.mm2", *arguments]
    return subprocess.run(command, capture_output=True, check=False, timeout=20 * PATIENCE_S, env=environment)


def checkpoints(flow: DashboardFlow) -> set[str]:
    done = run(
        flow,
        *("client", "translate-offsets", str(flow.file), SOURCE, "--groups", "(?s).*", "--cluster", TARGET, "--json"),
    )
    return {row["group"] for row in json.loads(done.stdout or b"[]")}


def problems_of(call: list[str], done: subprocess.CompletedProcess[bytes]) -> Iterator[str]:
    """What is wrong with the output of a command."""
    where = f"mm2 {' '.join(call)[:200]} (exit code {done.returncode})"
    for output in (done.stdout.decode(), done.stderr.decode()):
        if found := executed(output):
            yield f"{where}: a terminal executes {found}"
        if [line for line in output.splitlines() if line.startswith("forged->line")]:
            yield f"{where}: a forged line"
        if max(map(len, output.splitlines()), default=0) >= 2_000_000:
            yield f"{where}: a line of more than 2 MB"
    if b"Traceback" in done.stderr:  # the standard output may have that of a task
        yield f"{where}: {done.stderr.decode()[-3000:]}"
    is_refused = bool(REFUSED & set(call))
    if done.returncode not in ({2} if is_refused else {0, 1}):
        yield f"{where}: {done.stderr.decode()[-1000:]}"
    if is_refused and len(done.stderr.splitlines()) != 1:
        yield f"{where}: not one sentence but {done.stderr.decode()[-1000:]}"
    if "--json" in call and not is_refused:
        try:
            json.loads(done.stdout)
        except ValueError:
            yield f"{where}: no JSON but {done.stdout[:300]!r}; {done.stderr.decode()[-1000:]}"


def test_no_command_writes_what_a_terminal_executes(hostile: DashboardFlow, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    places = {"FILE": str(hostile.file), "FLOW": FLOW, "REPORT": str(report)}
    calls = [
        [verb, *(places.get(argument, argument) for argument in arguments)]
        for verb, lists in READ_ONLY.items()
        for arguments in lists
    ]
    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(lambda call: run(hostile, *call), calls))
    problems = [problem for call, done in zip(calls, outcomes, strict=True) for problem in problems_of(call, done)]
    assert not problems
    assert checkpoints(hostile) >= set(GROUPS)
    assert report.exists()
    assert "<script>window" not in report.read_text()
    assert "<img src=x" not in report.read_text()


def test_a_csv_file_has_no_formulas_and_is_exact_on_request(hostile: DashboardFlow) -> None:
    question = ("client", "translate-offsets", str(hostile.file), SOURCE, "--groups", "(?s).*", "--cluster", TARGET)
    done = run(hostile, *question, "--csv")
    rows = list(csv.reader(io.StringIO(done.stdout.decode())))
    assert len(rows) >= len(GROUPS)
    assert not [cell for row in rows for cell in row if cell.startswith(("=", "+", "-", "@", "\t", "\r"))]
    assert b"names are escaped" in done.stderr
    exact = run(hostile, *question, "--csv", "--exact")
    names = {row[0] for row in csv.reader(io.StringIO(exact.stdout.decode(), newline=""))}
    assert names >= set(GROUPS)
    assert exact.stderr == b""


def test_metrics_and_the_log_can_be_parsed(hostile: DashboardFlow) -> None:
    text = httpx.get(f"{hostile.url}/metrics", timeout=PATIENCE_S, trust_env=False).text
    labels = {
        value
        for family in text_string_to_metric_families(text)
        for one in family.samples
        for value in one.labels.values()
    }
    assert labels >= {HTML, FORMULA}
    overview = httpx.get(f"{hostile.url}/overview", timeout=PATIENCE_S, trust_env=False)
    assert HTML in overview.text.encode().decode("unicode_escape", errors="replace") or overview.is_success
    for line in hostile.process.log.read_text().splitlines():
        assert not executed(line), line[:300]


def test_the_dashboard_shows_texts_and_executes_none(hostile: DashboardFlow, page: Page) -> None:
    for view in VIEWS:
        page.goto(f"{hostile.ui}{view}")
        expect(page.locator("main")).to_be_visible()
        assert page.evaluate("() => window.hurt") is None, view
        assert page.locator("main img, main script").count() == 0, view
    page.goto(f"{hostile.ui}groups")
    expect(page.locator("main").get_by_text(FORMULA).first).to_be_visible()
    expect(page.locator("main").get_by_text("<img src=x").first).to_be_visible()
    page.goto(f"{hostile.ui}connectors")
    expect(page.locator("main").get_by_text("<img src=x").first).to_be_visible()
    assert page.evaluate("() => window.hurt") is None
    # A very long name does not make the page wider than the window.
    page.goto(f"{hostile.ui}groups")
    assert page.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth + 1")


def test_positions_are_adopted_and_topics_failed_over_with_hostile_names(hostile: DashboardFlow) -> None:
    """The last test: the process has to be stopped."""
    hostile.process.stop()
    places = {"FILE": str(hostile.file), "FLOW": FLOW}
    calls = [
        ["offsets", *ADOPTION],
        ["offsets", *ADOPTION, "--json"],
        ["failover", "FILE", "FLOW", "--topic", "hostile", "--leave-behind", "--yes"],
        ["failover", "FILE", "FLOW", "--topic", "hostile", "--dry-run", "--json"],
        ["groups", "FILE", "FLOW"],
        ["lag", "FILE", "FLOW"],
    ]
    for call in calls:
        arguments = [places.get(argument, argument) for argument in call]
        done = run(hostile, *arguments)
        output = done.stdout.decode() + done.stderr.decode()
        assert not executed(output), call
        assert b"Traceback" not in done.stderr, done.stderr
        assert done.returncode in {0, 1} or len(done.stderr.splitlines()) == 1, (call, done.stderr)
    report = run(hostile, "failback", str(hostile.file), FLOW, "--dry-run", "--json")
    assert json.loads(report.stdout)["verb"] == "failback"
    assert not executed(report.stdout.decode())
