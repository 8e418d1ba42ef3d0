"""What a flow asks its source, in a process with limited memory: python -m tests.fuzz.hostile_client PORT ANSWERS SEED.

Every call must return or raise KafkaFailure. The process prints one JSON line: the number of calls by outcome, the
exceptions of other kinds, and the largest memory in bytes beside its imports.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import logging
import random
import resource
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import structlog

from mm2.copy.changes import TimeSlice
from mm2.copy.executor.fetching.fetch_selector import FetchLimits
from mm2.copy.executor.fetching.source import Source
from mm2.copy.executor.fetching.throttle import Throttle
from mm2.kafka.admin import Admin
from mm2.kafka.client.channel import BufferPool
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.errors import BatchOverLimit, KafkaFailure
from mm2.kafka.readers.fetch_reader import FetchReader, FetchReaderLimits
from mm2.kafka.records.batch import iter_batches
from mm2.kafka.records.record import decode_batch
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import EARLIEST, LATEST, TopicPartition
from mm2.kafka.wire.fetch import Fetched
from tests.fuzz.hostile_broker import TOPIC
from tests.unit.copy.batches import Bench

#: The address space beside that of the imports. The largest part is an answer of 32 MB as objects.
LIMIT_BYTES: Final = 3 << 29
#: No call may take longer, of processor time; the largest answer takes about four seconds.
_HANGS_AFTER_CPU_S: Final = 60.0
#: Or at all. On a busy machine, minutes pass without a step of this process.
_HANGS_AFTER_S: Final = 1_800
_CALLS_OF_CLUSTER: Final = 50
_LIMITS: Final = FetchReaderLimits(max_wait_ms=0, max_bytes=1 << 20, partition_bytes=1 << 20)
_PARTITION: Final = TopicPartition(TOPIC, 0)


class Caller:
    """All kinds of calls to one cluster. ``outcomes`` are counted by the name of the result or of the failure."""

    def __init__(self, port: int, seed: int) -> None:
        settings = {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "request.timeout.ms": "400",
            "default.api.timeout.ms": "400",
            "socket.connection.setup.timeout.ms": "400",
            "reconnect.backoff.ms": "0",
            "reconnect.backoff.max.ms": "0",
            "retry.backoff.ms": "1",
            "retry.backoff.max.ms": "1",
            "metadata.max.age.ms": "0",
        }
        self.settings = ClientSettings.from_props(settings, client_id="c")
        self.outcomes: Counter[str] = Counter()
        self.findings: Counter[str] = Counter()
        self._random = random.Random(seed)

    def run(self, calls: int) -> None:
        """Make so many calls, a few for each cluster object."""
        for _ in range(max(1, calls // _CALLS_OF_CLUSTER)):
            with closing(Cluster(self.settings, name="A")) as cluster:
                kinds = self._kinds(cluster)
                for _ in range(_CALLS_OF_CLUSTER):
                    self._one(self._random.choice(kinds))

    def _one(self, call: Callable[[], Any]) -> None:
        faulthandler.dump_traceback_later(_HANGS_AFTER_S, exit=True)
        signal.setitimer(signal.ITIMER_PROF, _HANGS_AFTER_CPU_S)
        try:
            result = call()
        except KafkaFailure as failure:
            self.outcomes[type(failure).__name__] += 1
        except Exception as error:  # noqa: BLE001  (this is what is looked for)
            where = traceback.extract_tb(error.__traceback__)[-1]
            ours = [one for one in traceback.extract_tb(error.__traceback__) if "/mm2/" in one.filename]
            place = ours[-1] if ours else where
            self.findings[
                f"{type(error).__name__}: {str(error)[:80]} at {place.filename.rpartition('/mm2/')[2]}:{place.lineno}"
            ] += 1
        else:
            self.outcomes[result if isinstance(result, str) else type(result).__name__] += 1
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            faulthandler.cancel_dump_traceback_later()

    def _kinds(self, cluster: Cluster) -> list[Callable[[], Any]]:
        admin = Admin(cluster)
        return [
            cluster.metadata,
            lambda: cluster.metadata([TOPIC]),
            lambda: cluster.coordinators(["g", "h"]),
            lambda: admin.describe_topics([TOPIC]),
            admin.list_topics,
            lambda: admin.describe_configs([TOPIC]),
            lambda: admin.describe_broker(1, ["producer.id.expiration.ms"]),
            lambda: admin.list_offsets({_PARTITION: LATEST}),
            lambda: admin.list_offsets({_PARTITION: EARLIEST}),
            lambda: admin.epoch_ends({_PARTITION: 0}),
            lambda: admin.describe_producers([_PARTITION]),
            admin.list_groups,
            lambda: admin.describe_groups(["g"]),
            lambda: admin.list_group_offsets(["g"]),
            admin.describe_acls,
            lambda: admin.topic_rights([TOPIC]),
            lambda: admin.group_rights(["g"]),
            admin.cluster_rights,
            *[lambda: self._fetch(cluster)] * 8,
            *[lambda: self._read(cluster)] * 2,
        ]

    def _fetch(self, cluster: Cluster) -> Any:
        """Fetch, decode, and copy what came, as the executors do."""
        reader = FetchReader(cluster, timeout_s=0.4)
        try:
            reader.send({_PARTITION: 0}, _LIMITS)
            answer = reader.receive(0.5).get(_PARTITION)
            if isinstance(answer, KafkaFailure):
                raise answer
            if answer is None:
                return None
            self._copy(answer)
            for view in iter_batches(answer.records):
                try:
                    decode_batch(view)
                except BatchOverLimit:
                    self.outcomes["batch over the limit"] += 1
            return answer
        finally:
            reader.close()

    def _read(self, cluster: Cluster) -> str:
        """The executor's reader for half a second: its connections, sessions, leaders and positions."""
        bench = Bench()
        with ThreadPoolExecutor(2) as background:  # it outlives the loop, whose tasks use it
            asyncio.run(self._read_into(bench, cluster, background))
        self._count_state(bench)
        return "read, with events" if bench.owner.calls else "read"

    async def _read_into(self, bench: Bench, cluster: Cluster, background: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._on_loop_error)
        limits, pool, throttle = FetchLimits(max_wait_ms=10), BufferPool(), Throttle()
        source = Source(
            cluster,
            loop,
            background,
            pool,
            limits,
            read_committed=True,
            room=lambda: True,
            throttle=throttle,
            send=lambda: None,
        )
        source.add([bench.cursor])
        for _ in range(20):
            await asyncio.sleep(0.025)
            bench.ack(0)
        source.close()

    def _on_loop_error(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, KafkaFailure):
            what = context.get("task") or context.get("handle") or ""
            self.findings[f"on the loop: {context.get('message')}: {error!r} {str(what)[:300]}"] += 1

    def _count_state(self, bench: Bench) -> None:
        self.outcomes[f"partition {bench.state}"] += 1
        if bench.state == "FAILED":
            self.findings[f"the partition failed: {bench.cursor.current_state().reason[:120]}"] += 1

    def _copy(self, fetched: Fetched) -> None:
        """One partition of the copier: whatever came is sent, or is the state of this partition."""
        bench = Bench()
        bench.cursor.reencoding = TimeSlice(1.0, lambda call: call)
        for _ in range(2):
            bench.cursor.take(fetched)
        self._count_state(bench)


def _peak_kilobytes() -> int:
    """The largest resident memory so far. ru_maxrss would include the process that has forked this one."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def main() -> None:
    """Run, and print what happened."""
    port, calls, seed = map(int, sys.argv[1:])
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    faulthandler.register(signal.SIGPROF, chain=True)  # which then ends the process
    caller = Caller(port, seed)
    with Path("/proc/self/statm").open(encoding="ascii") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    before = _peak_kilobytes()
    resource.setrlimit(resource.RLIMIT_AS, (size + LIMIT_BYTES, -1))
    caller.run(calls)
    grown = (_peak_kilobytes() - before) << 10
    print(json.dumps({"outcomes": caller.outcomes, "findings": caller.findings, "bytes": grown}))  # noqa: T201


if __name__ == "__main__":
    main()
