"""What a flow's leader reads in ledgers and writes to its own, now and then; tasks follow theirs by themselves."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from typing import Final

from mm2.copy.ledger import Ledger, LedgerLog, ledger_topic
from mm2.kafka.admin import Admin
from mm2.kafka.cluster import Cluster
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.producer import Producer
from mm2.kafka.records.record import Record
from mm2.mirror.clients import Kind, MirrorClients, Side

_TIMEOUT_S: Final = 15.0
_LEDGER: Final = re.compile(r"mm2-ledger\..+\.internal")


class Ledgers:
    """Used by one thread; `stop` by another ends what is under way."""

    def __init__(self, clients: MirrorClients, target_admin: Admin) -> None:
        self._clients = clients
        self._target_admin = target_admin
        self._lock = threading.Lock()
        self._reading: LedgerLog | None = None
        self._stopped = False

    def own(self) -> Ledger:
        """The flow's own ledger as it is now. Raises KafkaFailure, also when it does not exist."""
        return self.read(Side.TARGET, ledger_topic(self._clients.source_alias), self._target_admin)

    def of_source(self, source_admin: Admin) -> Iterator[Ledger]:
        """The ledgers of all flows into the source that may be seen. Raises KafkaFailure when one cannot be read."""
        for topic in sorted(filter(_LEDGER.fullmatch, source_admin.list_topics())):
            yield self.read(Side.SOURCE, topic, source_admin)

    def read(self, side: Side, topic: str, admin: Admin) -> Ledger:
        """A ledger of one of the clusters as it is now. Raises KafkaFailure, also when it does not exist."""
        answer = admin.describe_topics([topic])[topic]
        if isinstance(answer, KafkaFailure):
            raise answer  # a reader would wait for it
        settings = self._clients.settings(side, Kind.CONSUMER, "ledger-consumer")
        reading = LedgerLog(settings, topic, name=self._clients.alias(side))
        with self._lock:
            self._reading = reading
        try:
            if not self._stopped:
                reading.start(_TIMEOUT_S)
        finally:
            reading.stop()
            with self._lock:
                self._reading = None
        return reading.ledger

    def write(self, records: Sequence[Record]) -> None:
        """Append to the flow's own ledger; returns when they are acknowledged. Raises KafkaFailure."""
        if not records:
            return
        settings = self._clients.settings(Side.TARGET, Kind.PRODUCER, "ledger-producer")
        cluster = Cluster(settings, name=self._clients.target_alias)
        try:
            Producer(cluster).send(ledger_topic(self._clients.source_alias), list(records), 0, timeout_s=_TIMEOUT_S)
        finally:
            cluster.close()

    def stop(self) -> None:
        """No more reading."""
        self._stopped = True
        with self._lock:
            reading = self._reading
        if reading is not None:
            reading.stop()
