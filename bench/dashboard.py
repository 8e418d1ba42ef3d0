"""How quick the dashboard is with many partitions, in a real Chromium, on snapshots that are made up.

    python -m bench.dashboard [--partitions 10000] [--groups 1000] [--viewers 5] [--results FILE]
    python -m bench.dashboard --serve            only serve it, at 127.0.0.1:8084, to be looked at while it is worked on

Measured are the times that a viewer waits for: until the first content of the page of partitions is painted (First Contentful Paint) and
until its rows are there, until a search, another order, a filter and the next page are answered; the same for the list of topics and the
page of a topic; and what it costs the process to keep so many viewers up to date, in CPU time a second. The first page of all also waits
for Chromium's processes.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import uvicorn
from starlette.responses import PlainTextResponse

from bench.workers import RESULTS
from mm2.config.mirrormaker import MirrorMakerConfig
from mm2.connect.rest.access.authorization import Access
from mm2.connect.rest.access.roles import Role
from mm2.copy.states import PartitionState
from mm2.copy.tally import BOUNDS_S
from mm2.mirror.topics.config_sync import ConfigDifference
from mm2.observer.curves.history import COARSE_STEP_MS, STEP_MS, FlowSample, History, TopicSample
from mm2.observer.curves.recorder import FlowSampler
from mm2.observer.views import (
    ConnectorView,
    FlowState,
    FlowView,
    GroupProcess,
    GroupView,
    HeartbeatView,
    LaneView,
    Latency,
    PartitionView,
    Risk,
    Snapshot,
    SparkView,
    TaskView,
)
from mm2.ui.dashboard import Dashboard
from mm2.ui.elements.wording import RANGE
from mm2.ui.source import PageData, Settings

if TYPE_CHECKING:
    from playwright.sync_api import Page

PORT = 8084
_TURNS = 5
_CONFIG = {
    "clusters": "A, B",
    "A.bootstrap.servers": "a1:9092,a2:9092",
    "B.bootstrap.servers": "b1:9092",
    "B.sasl.jaas.config": "the password is never shown",
    "A->B.enabled": "true",
    "A->B.topics": "orders.*, payments",
    "replication.factor": "3",
}
_TRACE = (
    "Traceback (most recent call last):\n"
    '  File "mm2/mirror/source_task.py", line 120, in poll\n'
    "mm2.copy.driver.engine.CopyFailed: orders-3 cannot be read: the batch at offset 1234 is corrupt"
)


class MadeUp:
    """Snapshots of two flows that change from second to second: one has all the partitions, the other one breaks after a minute."""

    def __init__(self, partitions: int, groups: int) -> None:
        self._chance = random.Random(1)
        self._partitions = partitions
        self._groups = groups
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._records = self._others = 0
        self._began_ms = int(time.time() * 1000)
        self._last: Snapshot | None = None
        self.history = History()
        self._samplers = {"A->B": FlowSampler(), "B->A": FlowSampler()}

    def remember(self) -> None:
        """Fill the history: a day, and the newest half hour in detail."""
        now_ms = int(time.time() * 1000)
        snapshot = self.snapshot()
        samples = {view.name: self._samplers[view.name].of_view(now_ms, view) for view in snapshot.flows}
        past = [now_ms - COARSE_STEP_MS * number for number in range(288, 5, -1)]
        for at_ms in [*past, *range(now_ms - 1_800_000, now_ms, STEP_MS)]:
            self.history.add(at_ms, {name: self._varied(sample, at_ms) for name, sample in samples.items()})

    def _varied(self, sample: FlowSample, at_ms: int) -> FlowSample:
        """A sample of another time."""
        by_day = 1 + 0.6 * math.sin(at_ms / 86_400_000 * 2 * math.pi)

        def near(value: float | None) -> float | None:
            return None if value is None else value * by_day * self._chance.uniform(0.7, 1.3)

        topics = {
            name: TopicSample(near(one.records_per_s), near(one.lag_records), one.unhealthy)
            for name, one in sample.topics.items()
        }
        low, middle, high = (self._chance.uniform(0.5, 1.0) * seconds for seconds in (0.04, 0.2, 0.6))
        return replace(
            sample,
            records_per_s=near(sample.records_per_s),
            lag_records=near(sample.lag_records),
            latency_s=(low, middle, high),
            topics=topics,
        )

    def snapshot(self) -> Snapshot:
        """The one of this second."""
        now_ms = int(time.time() * 1000)
        if self._last is None or now_ms - self._last.at_ms >= 900:
            self._last = self._made(now_ms)
        return self._last

    def settings(self) -> Settings:
        """Of a small file."""
        return Settings.of(MirrorMakerConfig(dict(_CONFIG)), Path(os.devnull))

    def differences(self, flow: str, topic: str, remote_topic: str) -> list[ConfigDifference]:
        """Of any topic."""
        return [
            ConfigDifference("max.message.bytes", "20971520", "1048588", is_synced=True),
            ConfigDifference("min.insync.replicas", "2", "1", is_synced=False),
        ]

    def _made(self, now_ms: int) -> Snapshot:
        lanes = tuple(
            LaneView(f"A->B MirrorSourceConnector-{n // 2} lane {n % 2}", n // 2, 40 + n, now_ms - 7_000 * n, 0, 25)
            for n in range(4)
        )
        spark = SparkView(True, "", "local[512]", "local-1795327951", lanes)
        flows = (self._well(now_ms), self._breaking(now_ms))
        if now_ms - self.history.at_ms >= STEP_MS:
            self.history.add(now_ms, {flow.name: self._samplers[flow.name].of_view(now_ms, flow) for flow in flows})
        return Snapshot(now_ms, "0", flows, spark)

    def _well(self, now_ms: int) -> FlowView:
        """The flow that everything is well with."""
        rate = 12_000 + 3_000 * math.sin(now_ms / 30_000) + self._chance.gauss(0, 400)
        self._records += int(rate)
        for _ in range(200):
            self._counts[min(len(self._counts) - 1, max(0, int(self._chance.gauss(6, 1.2))))] += 1
        views = tuple(self._partition(number, now_ms) for number in range(self._partitions))
        lag = sum(view.lag_records or 0 for view in views)
        return FlowView(
            "A",
            "B",
            FlowState.RUNNING,
            f"If A dies now you lose 0.4 seconds, {lag:,} records.",
            Risk(0.4, lag, lag * 310),
            now_ms,
            records=self._records,
            bytes=self._records * 310,
            records_per_s=rate,
            bytes_per_s=rate * 310,
            states=Counter(view.state for view in views),
            gaps={"compacted": 12_345, "control": 220, "aborted": 31},
            latency={"visible": Latency(BOUNDS_S, tuple(self._counts), 0.0)},
            partitions=views,
            groups=tuple(map(self._group, range(self._groups))),
            heartbeats=(HeartbeatView("A.heartbeats", "B", "A", ("A",), self._chance.randrange(200, 1_300)),),
            connectors=(
                _connector("MirrorCheckpointConnector", 1),
                _connector("MirrorHeartbeatConnector", 1),
                _connector("MirrorSourceConnector", 4),
            ),
            workers=(
                GroupProcess("10.0.0.1:8083", is_leader=True, is_this=True, connectors=2, tasks=4),
                GroupProcess("10.0.0.2:8083", is_leader=False, is_this=False, connectors=1, tasks=2),
            ),
        )

    def _breaking(self, now_ms: int) -> FlowView:
        """The flow whose source goes a minute after the start."""
        since_ms = self._began_ms + 60_000
        is_gone = now_ms > since_ms
        state = PartitionState.UNREACHABLE if is_gone else PartitionState.RUNNING
        when = f"{datetime.fromtimestamp(since_ms / 1000, UTC):%H:%M:%S} UTC"
        age_s = max(0, now_ms - since_ms) / 1000 + 0.9
        self._others += 0 if is_gone else 310
        return FlowView(
            "B",
            "A",
            FlowState.DEGRADED if is_gone else FlowState.RUNNING,
            f"B has not answered since {when}. If it died then, you lost 0.9 seconds, 287 records."
            if is_gone
            else "If B dies now you lose 0.9 seconds, 287 records.",
            Risk(0.9, 287, 88_000),
            min(now_ms, since_ms),
            source_error="10.0.0.7:9092 refuses the connection" if is_gone else "",
            records=self._others,
            records_per_s=0.0 if is_gone else 310.0,
            bytes_per_s=0.0 if is_gone else 96_000.0,
            states={state: 3},
            partitions=tuple(
                PartitionView(
                    "invoices",
                    number,
                    "B.invoices",
                    state,
                    "its leader 10.0.0.7:9092 does not answer" if is_gone else "",
                    since_ms,
                    70_000 + number,
                    None if is_gone else 70_090 + number,
                    70_000 + number,
                    None if is_gone else 90,
                )
                for number in range(3)
            ),
            heartbeats=(HeartbeatView("B.heartbeats", "A", "B", ("B",), round(age_s * 1000)),),
            connectors=(
                _connector("MirrorHeartbeatConnector", 1, "PAUSED"),
                ConnectorView(
                    "MirrorSourceConnector",
                    "source",
                    "RUNNING",
                    "10.0.0.1:8083",
                    "",
                    (TaskView(0, "FAILED" if is_gone else "RUNNING", "10.0.0.1:8083", _TRACE if is_gone else ""),),
                    "STARTED",
                ),
            ),
            workers=(GroupProcess("10.0.0.1:8083", is_leader=True, is_this=True, connectors=2, tasks=2),),
        )

    def _partition(self, number: int, now_ms: int) -> PartitionView:
        topic, lag = f"orders.{number // 16:04d}", self._chance.randrange(0, 5)
        position = 17_000_000 + (now_ms - self._began_ms) // 100 + number
        return PartitionView(
            topic,
            number % 16,
            f"A.{topic}",
            PartitionState.RUNNING,
            "",
            self._began_ms,
            position,
            position + lag,
            position,
            lag,
            lag * 310,
            lag / 10,
            3.1,
            960.0,
            {"compacted": 12 + number}
            if number % 20 == 0
            else {"aborted": 2, "control": 4}
            if number % 33 == 1
            else {},
            task=number % 4,
            verified_offset=position - 40_000 if number % 3 else None,
            verified_at_ms=now_ms - 3_600_000,
        )

    def _group(self, number: int) -> GroupView:
        topic, place = f"orders.{number // 40:04d}", 10_000 + 7 * number
        missing = number % 37 == 0
        return GroupView(
            f"billing-{number % 40:02d}",
            topic,
            number % 16,
            f"A.{topic}",
            place,
            None if missing else place - number % 20,
            None if missing else place - number % 20,
            "no offset sync reaches back so far" if missing else "",
        )


def _connector(name: str, tasks: int, state: str = "RUNNING") -> ConnectorView:
    where = "10.0.0.1:8083"
    wanted = state if state != "RUNNING" else "STARTED"
    return ConnectorView(
        name, "source", state, where, "", tuple(TaskView(n, state, where) for n in range(tasks)), wanted
    )


@contextmanager
def served(made_up: MadeUp, port: int = 0) -> Iterator[str]:
    """The dashboard alone; its URL."""
    data = PageData(made_up.snapshot, made_up.settings, made_up.history, made_up.differences)
    app = Access(role=Role.ADMIN).calling(Dashboard(data, PlainTextResponse("", 204)))
    server = uvicorn.Server(
        uvicorn.Config(app, "127.0.0.1", port, lifespan="off", ws="websockets-sansio", log_level="warning")
    )
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    bound = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{bound}/ui/"
    finally:
        server.should_exit = True
        thread.join(10)


def measured(partitions: int, groups: int, viewers: int) -> dict[str, list[float]]:
    """Milliseconds of everything a viewer waits for, and CPU milliseconds a second of serving."""
    from tests.browser.chromium import chromium  # noqa: PLC0415 - needs it only here

    times: dict[str, list[float]] = {}

    @contextmanager
    def timed(what: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        times.setdefault(what, []).append((time.perf_counter() - began) * 1000)

    with (
        tempfile.TemporaryDirectory(prefix="mm2-bench-", ignore_cleanup_errors=True) as profile,
        served(MadeUp(partitions, groups)) as url,
        chromium(Path(profile)) as browser,
    ):
        browser.set_default_timeout(60_000)
        total = f"of {partitions + 3:,} partitions"
        pages = [browser.new_page() for _ in range(viewers)]
        for one in pages:
            one.set_viewport_size({"width": 1600, "height": 900})
            one.bring_to_front()  # a page in the background is not painted
            with timed("page"):
                one.goto(f"{url}partitions")
                one.get_by_text(total).wait_for()
            times.setdefault("page: paint", []).append(_first_paint_ms(one))
        page = pages[0]
        page.bring_to_front()
        count = page.locator(".tools .count")
        for _ in range(_TURNS):
            head = page.locator("th button").get_by_text("Lag", exact=True)  # its name has an arrow once it is chosen
            with timed("order"):
                head.click()
                page.locator("th[aria-sort=descending]").wait_for()
            head.click()
            page.locator("th[aria-sort=ascending]").wait_for()
            with timed("search"):
                page.get_by_role("searchbox").fill("0123")
                count.filter(has_text="of 16 ").wait_for()
            page.get_by_role("searchbox").fill("")
            count.filter(has_text=total).wait_for()
            with timed("filter"):
                page.get_by_label("State").select_option("TOO_LARGE")
                count.filter(has_not_text=total).wait_for()
            page.get_by_label("State").select_option("")
            count.filter(has_text=total).wait_for()
            with timed("next page"):
                page.get_by_role("button", name="Next").click()
                count.filter(has_text="51").wait_for()
            page.get_by_role("button", name="Previous").click()
            count.filter(has_text=f"1{RANGE}50").wait_for()
        _measure_topics(page, url, timed, times.setdefault("topics: paint", []))
        process = psutil.Process()
        for _ in range(_TURNS):
            before = sum(process.cpu_times()[:2])
            time.sleep(2)
            times.setdefault("CPU a second", []).append((sum(process.cpu_times()[:2]) - before) * 500)
    return times


def _first_paint_ms(page: Page) -> float:
    entry = "performance.getEntriesByName('first-contentful-paint')[0]"
    page.wait_for_function(entry)
    return float(page.evaluate(f"{entry}.startTime"))


def _measure_topics(
    page: Page, url: str, timed: Callable[[str], AbstractContextManager[None]], painted: list[float]
) -> None:
    """The list of topics, a search in it, and the page of a topic."""
    count = page.locator(".tools .count")
    for _ in range(_TURNS):
        with timed("topics"):
            page.goto(f"{url}topics")
            count.filter(has_text=" topics").wait_for()
        painted.append(_first_paint_ms(page))
        every = str(count.text_content())
        with timed("topics: search"):
            page.get_by_role("searchbox").fill("orders.000?")
            count.filter(has_text="of 10 topics").wait_for()
        page.get_by_role("searchbox").fill("")
        count.filter(has_text=every).wait_for()
        with timed("topic"):
            page.goto(f"{url}topic?flow=A-%3EB&topic=orders.0001")
            page.locator(".map i").nth(15).wait_for()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--groups", type=int, default=1_000)
    parser.add_argument("--viewers", type=int, default=5)
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.serve:
        with served(MadeUp(options.partitions, options.groups), PORT) as url:
            print(url)
            try:
                threading.Event().wait()
            except KeyboardInterrupt:
                return 130
    times = measured(options.partitions, options.groups, options.viewers)
    print(f"{options.partitions:,} partitions, {options.viewers} viewers; milliseconds: median, greatest")
    for what, values in times.items():
        print(f"{what:14} {statistics.median(values):8,.0f} {max(values):8,.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
