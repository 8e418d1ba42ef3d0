"""The herder as REST, MirrorMaker and extensions see it (org.apache.kafka.connect.runtime.Herder).

Three kinds of methods:

- those that return a plain value answer at once from what this worker has read, and raise;
- those that return a `StagedFuture` need the herder's thread, a write, a plugin or the network. The future fails with what
  the docstring says; every RequestError has its HTTP status (:mod:`mm2.connect.errors`), any other exception is status 500.
  Who waits for it gives up after `REQUEST_TIMEOUT_S` with `timed_out(future)`;
- `start`, `stop` and `await_…`, for the program around it.

Where only the leader, or only the owner, can do something, the future fails with NotLeader or NotAssigned, which carry the URL
to forward to. Who must do what is the column F of spec connect C.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

from mm2.connect.errors import RequestTimedOut
from mm2.connect.group.protocol import ConnectorTaskId
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
    TaskState,
)
from mm2.connect.herder.stages import Stage, StagedFuture
from mm2.connect.request_signing import RequestSignature
from mm2.connect.stores.config_state import Props, RestartRequest, TargetState

if TYPE_CHECKING:
    from mm2.config.configdef import ConfigInfos

#: How long REST waits for the outcome of a request.
REQUEST_TIMEOUT_S: Final = 90.0
#: How long a health check waits for the herder.
HEALTH_TIMEOUT_S: Final = 10.0


def timed_out(future: Future[Any]) -> RequestTimedOut:
    """What to answer when `REQUEST_TIMEOUT_S` have passed: it names the stage that the request waits for."""
    if isinstance(future, StagedFuture):
        return RequestTimedOut(f"Request timed out. {future.stage().summary()}")
    return RequestTimedOut("Request timed out")


class Herder(ABC):
    """What decides what runs. Thread-safe."""

    # -- life

    @abstractmethod
    def start(self) -> None:
        """Start the herder's threads and return."""

    @abstractmethod
    def stop(self) -> None:
        """Stop all work, leave the group, close the stores. Waits; may be called twice."""

    @abstractmethod
    def await_stopped(self, timeout_s: float | None = None) -> bool:
        """Wait until the herder has ended, of itself (``failure`` says why) or by :meth:`stop`."""

    @property
    @abstractmethod
    def failure(self) -> BaseException | None:
        """Why the herder ended by itself."""

    @property
    @abstractmethod
    def is_ready(self) -> bool:
        """Whether it has started up: internal topics read, first tick done; standalone: its connectors created."""

    @property
    @abstractmethod
    def stage(self) -> Stage:
        """What the herder's thread is doing, or did last."""

    @property
    @abstractmethod
    def kafka_cluster_id(self) -> str:
        """Id of the Kafka cluster behind ``bootstrap.servers``."""

    @abstractmethod
    def health(self) -> StagedFuture[HealthInfo]:
        """Whether the herder's thread answers. Always has a result, at the latest after `HEALTH_TIMEOUT_S`."""

    # -- connectors: reading

    @abstractmethod
    def connectors(self) -> list[str]:
        """Names of all connectors, sorted."""

    @abstractmethod
    def known_connector_info(self, name: str) -> ConnectorInfo:
        """What is known here right now, for lists. Raises NotFound."""

    @abstractmethod
    def connector_info(self, name: str) -> StagedFuture[ConnectorInfo]:
        """Fails with NotFound or RebalanceNeeded."""

    @abstractmethod
    def connector_config(self, name: str) -> StagedFuture[Props]:
        """The raw configuration: provider references are not resolved. Fails with NotFound or RebalanceNeeded."""

    @abstractmethod
    def connector_status(self, name: str) -> ConnectorStateInfo:
        """Raises NotFound when there is no status."""

    @abstractmethod
    def task_status(self, task: ConnectorTaskId) -> TaskState:
        """Raises NotFound when there is no status."""

    @abstractmethod
    def task_configs(self, name: str) -> StagedFuture[list[TaskInfo]]:
        """Raw, in order. Fails with NotFound or RebalanceNeeded."""

    @abstractmethod
    def connector_topics(self, name: str) -> ActiveTopicsInfo:
        """Topics in use; none for an unknown connector. Raises Forbidden when tracking is off."""

    @abstractmethod
    def reset_connector_topics(self, name: str) -> None:
        """Forget the topics in use. Raises Forbidden when tracking or resetting is off."""

    # -- connectors: changing

    @abstractmethod
    def put_connector_config(
        self, name: str, config: Props, *, allow_replace: bool, target_state: TargetState | None = None
    ) -> StagedFuture[Created]:
        """Validate, then create or replace a connector; a new one begins in ``target_state`` (KIP-980).

        ``name`` is filled into ``config`` when it has none. Fails with BadRequest (it lists all that is wrong), AlreadyExists,
        NotLeader or RebalanceNeeded.
        """

    @abstractmethod
    def patch_connector_config(self, name: str, patch: Props) -> StagedFuture[Created]:
        """Merge ``patch`` into the raw configuration; None removes a key (KIP-477). Fails as a put, or with NotFound."""

    @abstractmethod
    def delete_connector_config(self, name: str) -> StagedFuture[None]:
        """Fails with NotLeader, NotFound or RebalanceNeeded."""

    @abstractmethod
    def pause_connector(self, name: str) -> StagedFuture[None]:
        """On any worker. Fails with NotFound."""

    @abstractmethod
    def resume_connector(self, name: str) -> StagedFuture[None]:
        """Leave PAUSED or STOPPED. On any worker. Fails with NotFound."""

    @abstractmethod
    def stop_connector(self, name: str) -> StagedFuture[None]:
        """Take its tasks away, keep configuration and offsets (KIP-875). Fails with NotLeader, NotFound, RebalanceNeeded."""

    @abstractmethod
    def restart_connector(self, name: str) -> StagedFuture[None]:
        """Restart the connector's instance only; done when it has started. Fails with NotLeader, NotAssigned, NotFound,
        RebalanceNeeded, or what its start raises."""

    @abstractmethod
    def restart_connector_and_tasks(self, request: RestartRequest) -> StagedFuture[ConnectorStateInfo]:
        """Have every worker restart what it runs of the request's plan (KIP-745); done when that is written down, with the
        states as the plan makes them. Fails with NotLeader, NotFound or RebalanceNeeded."""

    @abstractmethod
    def restart_task(self, task: ConnectorTaskId) -> StagedFuture[None]:
        """Fails with NotLeader, NotAssigned, NotFound, RebalanceNeeded, or ConnectError when it does not start."""

    # -- between workers

    @abstractmethod
    def put_task_configs(
        self, name: str, configs: Sequence[Props], signature: RequestSignature | None
    ) -> StagedFuture[None]:
        """Publish the task configurations that a follower's connector has made. The signature is checked first.

        Fails with BadRequest (no or bad signature, connector stopped), Forbidden (wrong signature), NotReady (no key yet),
        NotLeader, NotFound or RebalanceNeeded; standalone: NotSupported.
        """

    @abstractmethod
    def fence_zombies(self, name: str, signature: RequestSignature | None) -> StagedFuture[None]:
        """See that no producer of a connector's older task configs can write any more (KIP-618).

        Fails as :meth:`put_task_configs`, with BadRequest also for a sink, with Conflict when newer task configs came meanwhile.
        """

    # -- offsets (KIP-875)

    @abstractmethod
    def connector_offsets(self, name: str) -> StagedFuture[ConnectorOffsets]:
        """Fails with NotFound, RebalanceNeeded or ConnectError."""

    @abstractmethod
    def alter_connector_offsets(self, name: str, offsets: ConnectorOffsets) -> StagedFuture[Message]:
        """The connector must be STOPPED and have no tasks. Fails with BadRequest, NotFound, NotLeader, RebalanceNeeded, or
        ConnectError: zombie tasks, refused by the connector."""

    @abstractmethod
    def reset_connector_offsets(self, name: str) -> StagedFuture[Message]:
        """Remove all. Fails as :meth:`alter_connector_offsets`."""

    # -- plugins

    @abstractmethod
    def validate_connector_config(self, config: Props) -> StagedFuture[ConfigInfos]:
        """On a thread of its own: a plugin that hangs holds up nobody. Fails with BadRequest when there is nothing to validate
        against (no ``connector.class``, a connector without a config definition)."""

    @abstractmethod
    def connector_plugins(self, *, connectors_only: bool = True) -> list[PluginInfo]:
        """Sinks, sources, then (not ``connectors_only``) transformations, predicates, converters, header converters."""

    @abstractmethod
    def plugin_config(self, name: str, version: str | None = None) -> list[dict[str, Any]]:
        """Definition objects of a plugin's keys, as JSON. Raises NotFound, or BadRequest for a class that is no such plugin."""

    # -- loggers

    @abstractmethod
    def all_loggers(self) -> Mapping[str, LoggerLevel]:
        """Loggers with a level of their own, by name, sorted; the root is called ``root``."""

    @abstractmethod
    def logger_level(self, name: str) -> LoggerLevel | None:
        """The effective level; None when there is no such logger."""

    @abstractmethod
    def set_worker_logger_level(self, namespace: str, level: str) -> list[str]:
        """Set it here; names of the loggers that have changed, sorted. Raises NotFound for a level that does not exist."""

    @abstractmethod
    def set_cluster_logger_level(self, namespace: str, level: str) -> StagedFuture[None]:
        """Have all workers set it (KIP-976). Fails with NotFound for a level that does not exist."""
