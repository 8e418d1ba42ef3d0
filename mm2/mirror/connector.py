"""What the three mirror connectors have in common: configuration, clients, a scheduler, an end that does not hang."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Final, TypeVar

import structlog

from mm2 import __version__
from mm2.config.configdef import AbstractConfig, ConfigDef, ConfigException
from mm2.connect.api import SourceConnector
from mm2.kafka.admin import Admin
from mm2.kafka.cluster import Cluster
from mm2.mirror.clients import MirrorClients, Side
from mm2.mirror.filters import Filter, close_quietly
from mm2.mirror.recurring_errors import RecurringErrors
from mm2.mirror.scheduler import Job, Scheduler

log = structlog.get_logger(__name__)

F = TypeVar("F", bound=Filter)

STOP_TIMEOUT_S: Final = 5.0
"""How long a stop waits for the job that is running; its connections are closed by then, so it fails at once."""
PREFLIGHT_TIMEOUT_S: Final = 5.0


class MirrorConnector(SourceConnector):
    """Base of the mirror connectors. `start` returns at once; all work is done by the scheduler's thread.

    So an unreachable cluster does not hold the herder up: the connector is RUNNING, says what it waits for, and asks
    for task reconfiguration when it knows more.
    """

    DEFINITION: ClassVar[ConfigDef]

    def __init__(self) -> None:
        self._scheduler: Scheduler | None = None
        self._clusters: list[Cluster] = []
        self._filters: list[Filter] = []
        self._recurring = RecurringErrors()
        self._props: dict[str, str] = {}

    def version(self) -> str:
        return __version__

    def config(self) -> ConfigDef:
        return self.DEFINITION

    def start(self, props: dict[str, str]) -> None:
        """Raises ConfigException or ConnectError when `props` cannot be used."""
        scheduler = self._prepared(props)
        if scheduler is None:
            log.info("Connector is switched off.", flow=self._clients.flow, connector=props.get("name"))
            return
        self._scheduler = scheduler
        scheduler.start()

    def rehearse(self, props: dict[str, str]) -> None:
        """Do what `start` does, short of running anything or connecting. Raises what `start` would raise."""
        try:
            self._prepared(props)
        finally:
            self._close_clusters()
            self._close_filters()

    def _prepared(self, props: dict[str, str]) -> Scheduler | None:
        """Everything set up and all jobs scheduled, nothing running yet; None when there is nothing to do."""
        self._props = dict(props)
        self._settings = AbstractConfig(self.DEFINITION, props)
        self._clients = MirrorClients(self._props)
        if not self._active():
            return None
        context = {"flow": self._clients.flow, "connector": props.get("name")}
        scheduler = Scheduler(f"scheduler-{self._clients.flow}-{props.get('name')}", context=context)
        try:
            self._schedule(scheduler)
        except BaseException:
            self._close_clusters()
            self._close_filters()
            raise
        return scheduler

    def stop(self) -> None:
        scheduler, self._scheduler = self._scheduler, None
        if scheduler is None:
            return
        scheduler.stop(0)
        self._close_clusters()  # a request under way fails now, which ends the job that waits for it
        if not scheduler.stop(STOP_TIMEOUT_S):
            log.warning("A job did not end in time and is left behind.", flow=self._clients.flow)
        self._close_filters()

    @abstractmethod
    def _active(self) -> bool:
        """There is something to do with this configuration."""

    @abstractmethod
    def _schedule(self, scheduler: Scheduler) -> None:
        """Open clients and schedule all jobs; nothing is running yet."""

    def _admin(self, side: Side, role: str) -> Admin:
        """An admin client that lives until `stop`."""
        cluster, admin = self._clients.admin(side, role)
        self._clusters.append(cluster)
        return admin

    @staticmethod
    def _reaching(job: Job, *admins: Admin) -> Job:
        """`job`, preceded by a quick look whether its clusters answer: calls would go on trying for half a minute."""

        def run() -> bool | None:
            for admin in admins:
                admin.cluster.preflight(PREFLIGHT_TIMEOUT_S)
            return job()

        return run

    def _closing(self, filter_: F) -> F:
        """The same, to be closed at the end."""
        self._filters.append(filter_)
        return filter_

    def _close_filters(self) -> None:
        filters, self._filters = self._filters, []
        for filter_ in filters:
            close_quietly(filter_)

    def _close_clusters(self) -> None:
        for cluster in self._clusters:
            cluster.close()

    def _interval_s(self, job: str, *, group: str | None = None) -> float:
        """Seconds between runs from `<job>.interval.seconds`; negative when the job is switched off.

        Raises ConfigException for 0, with which Java's connector fails to start too.
        """
        key = f"{group or job}.interval.seconds"
        seconds = self._settings.int(key)
        if not self._settings.bool(f"{job}.enabled"):
            return -1
        if seconds == 0:
            raise ConfigException(key, seconds, f"must be positive; {job}.enabled=false switches this off")
        return seconds
