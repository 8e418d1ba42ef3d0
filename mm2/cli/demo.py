"""`bin/demo`: two brokers, a live stream, connect-mirror-maker between them, and a comparison record by record."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from mm2.cli.common.flow import CommandError
from mm2.cli.common.option_sources import SourcedParser
from mm2.cli.common.terminal import with_controls
from mm2.cli.common.verbs import examples, seconds
from mm2.cli.local.local_access import chosen, login_link
from mm2.connect.api import ConnectError
from mm2.kafka.admin import Admin
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.errors import KafkaFailure, value_of
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.sandbox.compare import TopicComparison, compare_topics
from mm2.sandbox.errors import SandboxError
from mm2.sandbox.kafka import LocalKafka, start_pair
from mm2.sandbox.process import end, spawn
from mm2.sandbox.samples import flow_file
from mm2.sandbox.stream import TOPICS, Pump
from mm2.sandbox.watch import ArrivalRates, TopicReader

_START_PATIENCE_S = 90.0
_CATCH_UP_PATIENCE_S = 60.0
_STOP_PATIENCE_S = 15.0
_QUIET_INTERVAL_S = 2.0
_TAIL_LINES = 20


class DemoFailed(Exception):
    """The demo cannot continue; the message is the reason."""


class MirrorMakerProcess:
    """connect-mirror-maker as a user starts it: a separate process with its own file."""

    def __init__(self, folder: Path, source: LocalKafka, target: LocalKafka) -> None:
        self.log_file = folder / "connect-mirror-maker.log"
        self.properties_file = folder / "connect-mirror-maker.properties"
        self.properties_file.write_text(
            flow_file(source.bootstrap, target.bootstrap, "listeners = http://127.0.0.1:0"), encoding="utf-8"
        )
        command = (sys.executable, "-P", "-m", "mm2.cli.connect_mirror_maker")
        self._process: subprocess.Popen[bytes] = spawn(
            [*command, str(self.properties_file), "--clusters", "B"],
            output=self.log_file,
            folder=folder,
            environment={**os.environ, "PYTHONUNBUFFERED": "1"},
        )

    def check(self) -> None:
        """Raises DemoFailed with the end of the log if the process has ended."""
        code = self._process.poll()
        if code is not None:
            tail = "\n".join(self.log_file.read_text(errors="replace").splitlines()[-_TAIL_LINES:])
            raise DemoFailed(f"connect-mirror-maker ended with exit code {code}:\n{tail}")

    def dashboard_link(self) -> str | None:
        """A link that opens the dashboard, once; None if there is none."""
        try:
            return login_link(chosen(self.properties_file))
        except (CommandError, ConnectError):
            return None

    def stop(self) -> None:
        end(self._process, patience_s=_STOP_PATIENCE_S)


class Demo:
    """The running parts of the demo, and their output."""

    def __init__(self, console: Console, pump: Pump, watch: TopicReader, mirror: MirrorMakerProcess) -> None:
        self._console = console
        self._pump = pump
        self._watch = watch
        self._mirror = mirror
        self._begin = time.monotonic()

    def follow(self, until: Callable[[ArrivalRates], bool], patience_s: float | None = None) -> bool:
        """Show the live line until `until` is true. False if that took longer than `patience_s`.

        Raises DemoFailed if connect-mirror-maker ends, and KafkaFailure if the stream cannot be written.
        """
        deadline = None if patience_s is None else time.monotonic() + patience_s
        with self._live_line() as show:
            while True:
                rates = self._watch.sight()
                show(self._line(rates))
                if until(rates):
                    return True
                if deadline is not None and time.monotonic() > deadline:
                    return False
                self._mirror.check()
                if self._pump.failure is not None:
                    raise self._pump.failure
                time.sleep(0.1)

    def _line(self, rates: ArrivalRates) -> str:
        # The line fits into 80 columns.
        clock = f"{time.monotonic() - self._begin:3.0f} s"
        if not rates.records:
            return f"{clock}  {self._pump.records:,} records on A, connect-mirror-maker is starting"
        heartbeat = "none yet" if rates.heartbeat_age_s is None else f"{rates.heartbeat_age_s:.1f} s"
        parts = [
            clock,
            f"{rates.records:,} records",
            f"{rates.bytes_per_s / 1e6:.1f} MB/s",
            f"lag {max(0, self._pump.records - rates.records):,}",
            f"latency {_latency(rates.latency_p50_ms, rates.latency_p99_ms)}",
            f"heartbeat {heartbeat}",
        ]
        return "  ".join(parts)

    @contextmanager
    def _live_line(self) -> Iterator[Callable[[str], None]]:
        if self._console.is_terminal:
            with Live(console=self._console, auto_refresh=False) as live:
                yield lambda line: live.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True)
            return
        last = [-_QUIET_INTERVAL_S]

        def show(line: str) -> None:
            if time.monotonic() - last[0] >= _QUIET_INTERVAL_S:
                last[0] = time.monotonic()
                self._console.print(line, highlight=False, soft_wrap=True)

        yield show


_DESCRIPTION: Final = "Replicates a live stream between two brokers on this machine and compares both sides."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; the exit code is 0 all equal, 1 not equal or failed, 130 interrupted."""
    parser = SourcedParser(prog="bin/demo", description=_DESCRIPTION)
    _add_options(parser)
    return run(parser.parse_args(arguments))


def add(verbs: Any) -> None:
    """Declare `mm2 demo`."""
    parser = verbs.add_parser(
        "demo",
        help="replicate a live stream between two brokers and compare every record",
        description=f"{_DESCRIPTION} Kafka is fetched the first time; everything runs in a folder for temporary files, reachable "
        "from this machine only, and is deleted afterwards. Exit code: 0 all equal, 1 not equal or failed, 130 interrupted.",
        epilog=examples(
            ("half a minute of records", "mm2 demo"), ("keep it running, to explore it", "mm2 demo --seconds 5 --keep")
        ),
    )
    _add_options(parser)
    parser.set_defaults(run=run)


def _add_options(parser: Any) -> None:
    parser.add_argument("--seconds", type=seconds, default=30.0, help="how long the stream runs (default: %(default)g)")
    parser.add_argument("--rate", type=float, default=5000.0, help="records per second (default: %(default)g)")
    parser.add_argument("--keep", action="store_true", help="keep running after the verdict until Ctrl-C")


def run(options: Any) -> int:
    """Run the command; returns the exit code."""
    console = Console(file=with_controls(sys.stdout))
    folder = Path(tempfile.mkdtemp(prefix="mm2-demo-"))
    # SIGTERM gets the same clean end as Ctrl-C, which a shell ignores for background processes.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    code = 1
    try:
        code = _run(console, folder, seconds=options.seconds, rate=options.rate, keep=options.keep)
    except KeyboardInterrupt:
        console.print("Stopped.")
        code = 130
    except (DemoFailed, SandboxError, KafkaFailure) as exc:
        console.print("[bold red]The demo failed:[/]", end=" ")
        console.print(str(exc), markup=False, highlight=False, soft_wrap=True)
    finally:
        if code == 1:
            console.print(f"The logs are in {folder}.", highlight=False, soft_wrap=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return code


def _run(console: Console, folder: Path, *, seconds: float, rate: float, keep: bool) -> int:
    with ExitStack() as stack:
        began = time.monotonic()
        source_kafka, target_kafka = stack.enter_context(start_pair(folder))
        console.print(
            f"Two Kafka brokers up in {time.monotonic() - began:.1f} s: "
            f"A at {source_kafka.bootstrap}, B at {target_kafka.bootstrap}",
            highlight=False,
        )
        source, target = _cluster(stack, source_kafka), _cluster(stack, target_kafka)
        _create_topics(source)
        console.print("Arriving on B; latency from produced to visible as median/99th percentile:")

        mirror = MirrorMakerProcess(folder, source_kafka, target_kafka)
        stack.callback(mirror.stop)
        watch = TopicReader(target, [_replica(topic.name) for topic in TOPICS])
        watch.start()
        stack.callback(watch.stop)
        pump = Pump(source, rate=rate)
        pump.start()
        stack.callback(pump.abandon)
        demo = Demo(console, pump, watch, mirror)

        if not demo.follow(lambda rates: rates.records > 0, _START_PATIENCE_S):
            raise DemoFailed(f"nothing arrived on B in {_START_PATIENCE_S:.0f} s; see {mirror.log_file}.")
        _show_dashboard(console, mirror)
        enough = time.monotonic() + seconds
        demo.follow(lambda _: time.monotonic() >= enough)
        pump.stop()
        caught_up = demo.follow(lambda rates: rates.records >= pump.records, _CATCH_UP_PATIENCE_S)
        equal = _verdict(console, source, target, pump, caught_up=caught_up)
        if keep:
            console.print(f"Still running, with {mirror.properties_file}. Ctrl-C stops everything.", highlight=False)
            _show_dashboard(console, mirror)
            pump.start()
            _until_interrupted(demo)
    return 0 if equal else 1


def _show_dashboard(console: Console, mirror: MirrorMakerProcess) -> None:
    link = mirror.dashboard_link()
    if link is not None:
        text = f"Dashboard, once and within a minute: {link}"
        console.print(text, markup=False, highlight=False, soft_wrap=True)


def _until_interrupted(demo: Demo) -> None:
    try:
        demo.follow(lambda _: False)
    except KeyboardInterrupt:
        return


def _cluster(stack: ExitStack, kafka: LocalKafka) -> Cluster:
    settings = ClientSettings.from_props({"bootstrap.servers": kafka.bootstrap}, client_id="demo")
    cluster = Cluster(settings, name=kafka.name)
    stack.callback(cluster.close)
    return cluster


def _create_topics(cluster: Cluster) -> None:
    for result in Admin(cluster).create_topics([topic.new_topic for topic in TOPICS]).values():
        value_of(result)


def _replica(topic: str) -> str:
    return f"A.{topic}"  # DefaultReplicationPolicy, which the sample uses


def _verdict(console: Console, source: Cluster, target: Cluster, pump: Pump, *, caught_up: bool) -> bool:
    if not caught_up:
        console.print(f"[bold red]B has not caught up in {_CATCH_UP_PATIENCE_S:.0f} s.[/]", highlight=False)
    began = time.monotonic()
    compared: list[TopicComparison] = []
    for topic in TOPICS:
        with console.status(f"Comparing {topic.name}"):
            compared.append(compare_topics(source, target, topic.name, _replica(topic.name)))
    table = Table("topic on A", "replica on B")
    for heading in ("partitions", "records", "MB"):
        table.add_column(heading, justify="right")
    table.add_column("record by record")
    for row in compared:
        table.add_row(
            row.source_topic,
            row.target_topic,
            str(row.partitions),
            f"{row.records:,}",
            f"{row.payload_bytes / 1e6:.1f}",
            Text("equal", "green") if row.equal else Text(str(row.difference), "red"),
        )
    console.print(table)
    records = sum(row.records for row in compared)
    equal = all(row.equal for row in compared) and records == pump.records
    if equal:
        console.print(
            f"[bold green]EQUAL[/]: all {records:,} records, compared in {time.monotonic() - began:.1f} s.",
            highlight=False,
        )
    else:
        console.print(
            f"[bold red]DIFFERENT[/]: {records:,} of {pump.records:,} records are the same on both sides.",
            highlight=False,
        )
    return equal


def _latency(median_ms: float | None, high_ms: float | None) -> str:
    """Median and 99th percentile, in seconds if they are long."""
    if median_ms is None or high_ms is None:
        return "-"
    if high_ms >= 10_000:
        return f"{median_ms / 1000:.1f}/{high_ms / 1000:.1f} s"
    return f"{median_ms:.0f}/{high_ms:.0f} ms"


if __name__ == "__main__":
    sys.exit(main())
