"""Two brokers, a loaded source topic and the monitor of its remote topic, shared by bin/soak and bin/chaos."""

import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from bench.arrivals import Arrivals
from bench.contenders import Flow
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.sandbox.kafka import LocalKafka, start_pair
from tests.endurance.growth import Growth
from tests.endurance.judge import Judge, Verdict
from tests.endurance.product import Product
from tests.endurance.readback import read_to_judge
from tests.endurance.traffic import Pace, Traffic

TOPIC = "endurance"
_READ_PATIENCE_S = 60.0


@dataclass
class Environment:
    """Everything that runs beside the product. `folder` is deleted at the end; logs of the product are kept after a failure."""

    folder: Path
    source: LocalKafka
    target: LocalKafka
    flow: Flow
    partitions: int
    growth: Growth
    traffic: Traffic
    target_cluster: Cluster
    _stack: ExitStack
    succeeded: bool = False

    def product(self, name: str, settings: Mapping[str, str]) -> Product:
        """A process that is not started yet; its processes are killed at the end of the environment."""
        product = Product(self.flow, self.folder, name, dict(settings))
        self._stack.callback(product.clean_up)
        return product

    def judge(self, boundaries: list[dict[int, int]]) -> Verdict:
        """Read the whole remote topic. `boundaries`: see Judge.verdict."""
        judge = Judge(self.traffic.run, self.traffic.sent)
        read_to_judge(self.target.bootstrap, self.flow.remote_topic, self.partitions, judge, _READ_PATIENCE_S)
        return judge.verdict(boundaries)


@contextmanager
def environment(
    *, partitions: int, rate: float, size_bytes: int, producers: int, poll_interval_s: float = 0.02
) -> Iterator[Environment]:
    """Run brokers and traffic; the caller starts the product. Ctrl-C and SIGTERM stop everything."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix="mm2-endurance-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        source, target = stack.enter_context(start_pair(folder))
        flow = Flow("A", "B", source.bootstrap, target.bootstrap, TOPIC)
        admin = AdminClient({"bootstrap.servers": source.bootstrap, "log_level": 2})
        admin.create_topics([NewTopic(TOPIC, partitions, 1)])[TOPIC].result(30)
        cluster = Cluster(ClientSettings.from_props({"bootstrap.servers": target.bootstrap}), name="B")
        stack.callback(cluster.close)
        growth = Growth(Arrivals(cluster, flow.remote_topic, partitions), poll_interval_s)
        growth.start()
        stack.callback(growth.stop)
        traffic = Traffic(
            source.bootstrap,
            TOPIC,
            partitions,
            run=secrets.token_bytes(8),
            rate=rate,
            size_bytes=size_bytes,
            pace=Pace(producers),
        )
        traffic.start()
        stack.callback(traffic.halt)
        env = Environment(folder, source, target, flow, partitions, growth, traffic, cluster, stack)
        try:
            yield env
        finally:
            if not env.succeeded:
                stack.callback(_keep_logs, folder)


def _keep_logs(folder: Path) -> None:
    """Copy the product's logs to a folder that is kept, and print its path."""
    kept = Path(tempfile.mkdtemp(prefix="mm2-endurance-logs-"))
    for log in folder.glob("*/contender.log"):
        shutil.copyfile(log, kept / f"{log.parent.name}.log")
    sys.stderr.write(f"The logs of the product are in {kept}.\n")
