"""The base class of the mirror connectors: configuration, clients, a scheduler, and a bounded stop."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Final, TypeVar

import structlog

from mm2 import __version__
from mm2.config.configdef import AbstractConfig, ConfigDef, ConfigException
from mm2.config.keys.mirror_keys import is_job_on
from mm2.connect.api import ConnectorContext, SourceConnector
from mm2.kafka.admin import Admin
from mm2.kafka.client.cluster import Cluster
from mm2.mirror.common.clients import MirrorClients, Side
from mm2.mirror.common.plugins import unusable_classes, with_class_checks
from mm2.mirror.common.recurring_errors import RecurringErrors
from mm2.mirror.common.scheduler import Job, Scheduler
from mm2.mirror.filters import MirrorFilter, close_quietly, slow_patterns

log = structlog.get_logger("mm2.mirror.connector")

F = TypeVar("F", bound=MirrorFilter)

STOP_TIMEOUT_S: Final = 5.0
"""How long a stop waits for the running job. Its connections are closed by then, so the job fails at once."""
PREFLIGHT_TIMEOUT_S: Final = 5.0


class MirrorConnector(SourceConnector):
    """Base of the mirror connectors. `start` returns at once; all work runs in the scheduler's thread.

    An unreachable cluster therefore does not block the herder: the connector is RUNNING, logs what it waits for, and
    requests a task reconfiguration when it knows more.
    """

    DEFINITION: ClassVar[ConfigDef]

    def __init__(self) -> None:
        self._scheduler: Scheduler | None = None
        self._clusters: list[Cluster] = []
        self._filters: list[MirrorFilter] = []
        self._recurring = RecurringErrors()
        self._props: dict[str, str] = {}

    def version(self) -> str:
        return __version__

    def config(self) -> ConfigDef:
        return with_class_checks(self.DEFINITION)

    def validate(self, props: Mapping[str, str]) -> list[tuple[str, str]]:
        return super().validate(props) + slow_patterns(
            {key: props[key] for key in self.DEFINITION.keys if key in props}
        )

    def start(self, props: dict[str, str]) -> None:
        """Start the scheduler. Raises ConfigException or ConnectError if `props` cannot be used."""
        scheduler = self._prepared(props)
        if scheduler is None:
            log.info("The connector is disabled.", flow=self._clients.flow, connector=props.get("name"))
            return
        self._scheduler = scheduler
        scheduler.start()

    def dry_run(self, props: dict[str, str]) -> None:
        """Do what `start` does without running anything or connecting. Raises what `start` would raise."""
        try:
            self._prepared(props)
        finally:
            self._close_clusters()
            self._close_filters()

    def _prepared(self, props: dict[str, str]) -> Scheduler | None:
        """Set up everything and schedule all jobs without running them; None if there is nothing to do."""
        self._props = dict(props)
        self._settings = AbstractConfig(self.DEFINITION, props)
        for error in unusable_classes(props, self.DEFINITION).values():
            raise error
        self._clients = MirrorClients(self._props, group=self._group())
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
        self._close_clusters()  # a request in flight fails now, which ends the job that waits for it
        if not scheduler.stop(STOP_TIMEOUT_S):
            log.warning("A job did not end in time and is abandoned.", flow=self._clients.flow)
        self._close_filters()

    def _group(self) -> str | None:
        """The Connect group; None before the connector is started."""
        context: ConnectorContext | None = getattr(self, "context", None)
        return None if context is None else context.group_id

    def _worker_topics(self) -> frozenset[str]:
        """The topics of the worker, also while a configuration is validated; none without a worker."""
        context: ConnectorContext | None = getattr(self, "context", None)
        return frozenset() if context is None else context.worker_topics

    @abstractmethod
    def _active(self) -> bool:
        """Whether this configuration requires any work."""

    @abstractmethod
    def _schedule(self, scheduler: Scheduler) -> None:
        """Open clients and schedule all jobs; nothing runs yet."""

    def _admin(self, side: Side, role: str) -> Admin:
        """An admin client that is closed by `stop`."""
        cluster, admin = self._clients.admin(side, role)
        self._clusters.append(cluster)
        return admin

    @staticmethod
    def _reaching(job: Job, *admins: Admin) -> Job:
        """`job`, preceded by a quick check that its clusters answer.

        Without it, calls would retry for half a minute.
        """

        def run() -> bool | None:
            for admin in admins:
                admin.cluster.preflight(PREFLIGHT_TIMEOUT_S)
            return job()

        return run

    def _closing(self, filter_: F) -> F:
        """Register the filter to be closed at stop, and return it."""
        self._filters.append(filter_)
        return filter_

    def _close_filters(self) -> None:
        filters, self._filters = self._filters, []
        for filter_ in filters:
            close_quietly(filter_)

    def _close_clusters(self) -> None:
        for cluster in self._clusters:
            cluster.close()

    def _interval_s(self, job: str) -> float:
        """Seconds between runs, from `<job>.interval.seconds`; negative if the job is disabled.

        Raises ConfigException for 0, with which Java's connector fails to start too.
        """
        key = f"{job}.interval.seconds"
        seconds = self._settings.int(key)
        if not is_job_on(self._props, job):
            return -1
        if seconds == 0:
            raise ConfigException(key, seconds, f"must be positive; {job}.enabled=false disables it")
        return seconds
