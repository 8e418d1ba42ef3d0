"""Two brokers, a loaded source topic and the eyes on its replica: what bin/soak and bin/chaos have in common."""

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
from mm2.kafka.cluster import Cluster
from mm2.kafka.settings import ClientSettings
from mm2.sandbox.kafka import LocalKafka, start_pair
from tests.endurance.growth import Growth
from tests.endurance.judge import Judge, Verdict
from tests.endurance.product import Product
from tests.endurance.readback import read_to_judge
from tests.endurance.traffic import Pace, Traffic

TOPIC = "endurance"
_READ_PATIENCE_S = 60.0


@dataclass
class Scene:
    """All that runs around the product. `folder` is deleted at the end; the product's logs only after a success."""

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
        """A process that is not started yet and whose remains are ended with the scene."""
        product = Product(self.flow, self.folder, name, dict(settings))
        self._stack.callback(product.clean_up)
        return product

    def judge(self, boundaries: list[dict[int, int]]) -> Verdict:
        """Reads the whole replica. `boundaries`: see Judge.verdict."""
        judge = Judge(self.traffic.run, self.traffic.sent)
        read_to_judge(self.target.bootstrap, self.flow.remote_topic, self.partitions, judge, _READ_PATIENCE_S)
        return judge.verdict(boundaries)


@contextmanager
def scene(
    *, partitions: int, rate: float, size_bytes: int, producers: int, look_interval_s: float = 0.02
) -> Iterator[Scene]:
    """Brokers are up and the traffic flows; the product is the caller's to start. Ctrl-C and SIGTERM end all of it."""
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
        growth = Growth(Arrivals(cluster, flow.remote_topic, partitions), look_interval_s)
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
        stage = Scene(folder, source, target, flow, partitions, growth, traffic, cluster, stack)
        try:
            yield stage
        finally:
            if not stage.succeeded:
                stack.callback(_keep_logs, folder)


def _keep_logs(folder: Path) -> None:
    """Copies the product's logs to a folder that stays, and says where."""
    kept = Path(tempfile.mkdtemp(prefix="mm2-endurance-logs-"))
    for log in folder.glob("*/contender.log"):
        shutil.copyfile(log, kept / f"{log.parent.name}.log")
    sys.stderr.write(f"The logs of the product are in {kept}.\n")
