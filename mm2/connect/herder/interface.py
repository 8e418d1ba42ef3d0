"""The herder's interface for REST, MirrorMaker and extensions (org.apache.kafka.connect.runtime.Herder).

Three kinds of methods:

- those that return a plain value answer immediately from what this worker has read, and raise;
- those that return a `StagedFuture` need the herder's thread, a write, a plugin or the network. The future fails as
  documented; every RequestError has its HTTP status (:mod:`mm2.connect.errors`), any other exception is status 500.
  Callers stop waiting after `REQUEST_TIMEOUT_S` and raise `timed_out(future)`;
- `start`, `stop` and `await_…`, for the program around it.

If only the leader or the owner can perform a request, the future fails with NotLeader or NotAssigned on other workers;
these errors carry the URL to forward to.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

from mm2.connect.errors import RequestTimedOut
from mm2.connect.herder.answers import (
    ActiveTopicsInfo,
    ConnectorInfo,
    ConnectorOffsets,
    ConnectorStateInfo,
    Created,
    HealthInfo,
    LoggerLevel,
    Message,
    PluginInfo,
    TaskInfo,
    TaskStateInfo,
)
from mm2.connect.herder.request_queue import StagedFuture, WorkerStage
from mm2.connect.request_signing import RequestSignature, SessionKey
from mm2.connect.stores.config_state import ConnectorTaskId, Props, RestartRequest, TargetState

if TYPE_CHECKING:
    from mm2.config.configdef import ConfigInfos

#: How long REST waits for the result of a request.
REQUEST_TIMEOUT_S: Final = 90.0
#: How long a health check waits for the herder.
HEALTH_TIMEOUT_S: Final = 10.0


def timed_out(future: Future[Any]) -> RequestTimedOut:
    """The error to raise after `REQUEST_TIMEOUT_S`: it names the stage that the request waits for."""
    if isinstance(future, StagedFuture):
        return RequestTimedOut(f"Request timed out. {future.stage().summary()}")
    return RequestTimedOut("Request timed out")


class Herder(ABC):
    """Decides which connectors and tasks run on a worker. Thread-safe."""

    # -- lifecycle

    @abstractmethod
    def start(self) -> None:
        """Start the herder's threads and return."""

    @abstractmethod
    def stop(self) -> None:
        """Stop all work, leave the group, close the stores. Waits; may be called twice."""

    @abstractmethod
    def await_stopped(self, timeout_s: float | None = None) -> bool:
        """Wait until the herder has ended, by an error (see ``failure``) or by :meth:`stop`."""

    @property
    @abstractmethod
    def failure(self) -> BaseException | None:
        """Why the herder ended without a call of :meth:`stop`."""

    @property
    @abstractmethod
    def is_ready(self) -> bool:
        """Whether startup has completed: internal topics read, first tick done; standalone: its connectors created."""

    @property
    @abstractmethod
    def stage(self) -> WorkerStage:
        """The stage of the herder's thread: in progress, or completed last."""

    @property
    @abstractmethod
    def kafka_cluster_id(self) -> str:
        """Id of the Kafka cluster behind ``bootstrap.servers``."""

    @abstractmethod
    def health(self) -> StagedFuture[HealthInfo]:
        """Whether the herder's thread responds. Always has a result, at the latest after `HEALTH_TIMEOUT_S`."""

    # -- connectors: reading

    @abstractmethod
    def connectors(self) -> list[str]:
        """Names of all connectors, sorted."""

    @abstractmethod
    def known_connector_info(self, name: str) -> ConnectorInfo:
        """The connector as currently known to this worker, for lists. Raises NotFound."""

    @abstractmethod
    def connector_info(self, name: str) -> StagedFuture[ConnectorInfo]:
        """Fails with NotFound or RebalanceNeeded."""

    @abstractmethod
    def connector_config(self, name: str) -> StagedFuture[Props]:
        """The configuration as stored: provider references are not resolved. Fails with NotFound or RebalanceNeeded."""

    @abstractmethod
    def connector_status(self, name: str) -> ConnectorStateInfo:
        """Raises NotFound when there is no status."""

    @abstractmethod
    def task_status(self, task: ConnectorTaskId) -> TaskStateInfo:
        """Raises NotFound when there is no status."""

    @abstractmethod
    def task_configs(self, name: str) -> StagedFuture[list[TaskInfo]]:
        """As stored, in order. Fails with NotFound or RebalanceNeeded."""

    @abstractmethod
    def connector_topics(self, name: str) -> ActiveTopicsInfo:
        """Topics in use; none for an unknown connector. Raises Forbidden when tracking is disabled."""

    @abstractmethod
    def reset_connector_topics(self, name: str) -> None:
        """Reset the topics in use. Raises Forbidden when tracking or resetting is disabled."""

    # -- connectors: changing

    @abstractmethod
    def put_connector_config(
        self, name: str, config: Props, *, allow_replace: bool, target_state: TargetState | None = None
    ) -> StagedFuture[Created]:
        """Validate, then create or replace a connector; a new one starts in ``target_state`` (KIP-980).

        ``name`` is added to ``config`` when it has none. Fails with BadRequest (which lists all errors), AlreadyExists,
        NotLeader or RebalanceNeeded.
        """

    @abstractmethod
    def patch_connector_config(self, name: str, patch: Props) -> StagedFuture[Created]:
        """Merge ``patch`` into the stored configuration; None removes a key (KIP-477).

        Fails like a put, or with NotFound.
        """

    @abstractmethod
    def delete_connector_config(self, name: str) -> StagedFuture[None]:
        """Fails with NotLeader, NotFound or RebalanceNeeded."""

    @abstractmethod
    def pause_connector(self, name: str) -> StagedFuture[None]:
        """On any worker. Fails with NotFound."""

    @abstractmethod
    def resume_connector(self, name: str) -> StagedFuture[None]:
        """From PAUSED or STOPPED. On any worker. Fails with NotFound."""

    @abstractmethod
    def stop_connector(self, name: str) -> StagedFuture[None]:
        """Stop the connector and remove its tasks, keep configuration and offsets (KIP-875).

        Fails with NotLeader, NotFound or RebalanceNeeded.
        """

    @abstractmethod
    def restart_connector(self, name: str) -> StagedFuture[None]:
        """Restart the connector's instance only; completes when it has started.

        Fails with NotLeader, NotAssigned, NotFound, RebalanceNeeded, or the error of its start.
        """

    @abstractmethod
    def restart_connector_and_tasks(self, request: RestartRequest) -> StagedFuture[ConnectorStateInfo]:
        """Make every worker restart its part of the request's plan (KIP-745).

        Completes when the request is written to the config topic, with the states according to the plan. Fails with
        NotLeader, NotFound or RebalanceNeeded.
        """

    @abstractmethod
    def restart_task(self, task: ConnectorTaskId) -> StagedFuture[None]:
        """Fails with NotLeader, NotAssigned, NotFound, RebalanceNeeded, or ConnectError when it does not start."""

    # -- between workers

    @property
    def session_key(self) -> SessionKey | None:
        """The key that signs requests between the workers of the group; None if they are not signed, or before there is one."""
        return None

    @property
    def verifies_signatures(self) -> bool:
        """Whether `put_task_configs` and `fence_zombies` reject unsigned requests."""
        return True

    @abstractmethod
    def require_signature(self) -> None:
        """Raises BadRequest if worker-to-worker requests must be signed: for a request without a signature."""

    @abstractmethod
    def put_task_configs(
        self, name: str, configs: Callable[[], Sequence[Props]], signature: RequestSignature | None, is_permitted: bool
    ) -> StagedFuture[None]:
        """Publish the task configurations of a follower's connector. ``is_permitted``: the client may do so where requests are not signed.

        ``configs`` parses them; it is called only if the signature is valid, and its exceptions are raised. Fails with BadRequest (missing or malformed signature, connector stopped), Forbidden (wrong signature), NotReady
        (no key yet), NotLeader, NotFound or RebalanceNeeded; standalone: NotSupported.
        """

    @abstractmethod
    def fence_zombies(self, name: str, signature: RequestSignature | None, is_permitted: bool) -> StagedFuture[None]:
        """Ensure that no producer of a connector's older task configs can write any more (KIP-618).

        Fails like :meth:`put_task_configs`, with BadRequest also for a sink, and with Conflict when newer task configs
        were committed meanwhile.
        """

    # -- offsets (KIP-875)

    @abstractmethod
    def connector_offsets(self, name: str) -> StagedFuture[ConnectorOffsets]:
        """Fails with NotFound, RebalanceNeeded or ConnectError."""

    @abstractmethod
    def alter_connector_offsets(self, name: str, offsets: ConnectorOffsets) -> StagedFuture[Message]:
        """Change offsets. The connector must be STOPPED and have no tasks.

        Fails with BadRequest, NotFound, NotLeader, RebalanceNeeded, or ConnectError: zombie tasks, or rejected by the
        connector.
        """

    @abstractmethod
    def reset_connector_offsets(self, name: str) -> StagedFuture[Message]:
        """Remove all offsets. Fails like :meth:`alter_connector_offsets`."""

    # -- plugins

    @abstractmethod
    def validate_connector_config(self, config: Props) -> StagedFuture[ConfigInfos]:
        """Validate on a separate thread, so that a plugin that hangs does not block other requests.

        Fails with BadRequest when validation is not possible (no ``connector.class``, a connector without a config
        definition).
        """

    @abstractmethod
    def connector_plugins(self, *, connectors_only: bool = True) -> list[PluginInfo]:
        """Sinks, sources, and unless ``connectors_only`` transformations, predicates, converters, header converters."""

    @abstractmethod
    def plugin_config(self, name: str, version: str | None = None) -> list[dict[str, Any]]:
        """Definitions of a plugin's keys, as JSON.

        Raises NotFound, or BadRequest for a class that is not such a plugin.
        """

    # -- loggers

    @abstractmethod
    def all_loggers(self) -> Mapping[str, LoggerLevel]:
        """Loggers with their own level, sorted by name; the root logger is called ``root``."""

    @abstractmethod
    def logger_level(self, name: str) -> LoggerLevel | None:
        """The effective level; None when the logger does not exist."""

    @abstractmethod
    def set_worker_logger_level(self, namespace: str, level: str) -> list[str]:
        """Set the level on this worker; returns the changed loggers, sorted. Raises NotFound, BadRequest (`Loggers.check`)."""

    @abstractmethod
    def set_cluster_logger_level(self, namespace: str, level: str) -> StagedFuture[None]:
        """Set the level on all workers (KIP-976). Fails with NotFound for an unknown level."""
