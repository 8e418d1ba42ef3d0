"""Shared code of connect-distributed and connect-standalone (Kafka's AbstractConnectCli and Connect).

Exit codes, as in Java: 0 stopped by SIGTERM or Ctrl-C, 1 bad usage or the herder has failed, 2 the worker could not be
set up (file, configuration, plugins, port, Kafka cluster), 3 it could not be started.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol, cast

import structlog

from mm2 import __version__
from mm2.allocator import collect_less_often, use_one_arena
from mm2.cli.common.option_sources import SourcedParser
from mm2.cli.logs import add_log_options, configure_logging
from mm2.cli.signals import exit_in, stop_at_signals
from mm2.config.configdef import ConfigException
from mm2.config.files.java_options import ineffective_variables
from mm2.config.files.properties import load_properties
from mm2.config.keys.key_effects import check_effects, worker_uses
from mm2.config.keys.legacy_keys import without_legacy_keys
from mm2.config.providers import ConfigTransformer, ProviderError
from mm2.connect.api import ConnectError
from mm2.connect.herder.base import AbstractHerder
from mm2.connect.herder.interface import Herder
from mm2.connect.metrics import ConnectMetrics, ObservedWorker
from mm2.connect.plugins import Plugins
from mm2.connect.rest import local_processes
from mm2.connect.rest.app import worker_resources
from mm2.connect.rest.assembly import LocalAccess, check_access
from mm2.connect.rest.binding import Binding, warn_of_exposure
from mm2.connect.rest.extensions import close_extensions, load_extensions
from mm2.connect.rest.forwarding import Requests, RestClient
from mm2.connect.rest.listeners.server import RestServer
from mm2.connect.rest.resources.worker_resources import metrics_router
from mm2.connect.rest.settings import RestSettings
from mm2.copy.driver.engine import CopyEngine
from mm2.kafka.errors import KafkaFailure, is_unavailable
from mm2.metrics.exposition import Exposition
from mm2.mirror.common.plugins import use
from mm2.mirror.rest.redaction import RedactedHerder
from mm2.mirror.source_task import COPY_RESOURCE

log = structlog.get_logger(__name__)

EXIT_STOPPED: Final = 0
EXIT_USAGE: Final = 1
EXIT_DIED: Final = 1
EXIT_BAD_SETUP: Final = 2
EXIT_NOT_STARTED: Final = 3

#: Default time limit for a Kafka cluster to return its id.
_CLUSTER_PATIENCE_MS: Final = "60000"
_PATIENCE_KEY: Final = "default.api.timeout.ms"
_TRY_S: Final = 5.0
_BETWEEN_TRIES_S: Final = 0.5
_WATCH_S: Final = 0.2
_ENGINE_STOP_S: Final = 10.0
#: The name in messages of the cluster behind bootstrap.servers.
CLUSTER: Final = "Kafka"
#: Longer than the parts of a stop may take themselves.
_LAST_RESORT_S: Final = 180.0
_LAST_SECONDS_S: Final = 3.0


class WorkerNode(Protocol):
    """A configured worker: :mod:`mm2.connect.node`."""

    @property
    def herder(self) -> Herder:
        """The worker's herder."""

    def check(self, timeout_s: float) -> str:
        """The id of the Kafka cluster. Raises KafkaFailure."""

    def stop(self) -> None:
        """Stop the herder and close connections."""


@dataclass(frozen=True)
class Program:
    """The differences between the two programs."""

    name: str
    description: str
    #: Creates the worker from its resolved settings, plugins and ports. Raises ConfigException, ConnectError.
    make_node: Callable[[Mapping[str, str], Plugins, Binding], WorkerNode]
    #: The help of the files after the first on the command line; None = not accepted.
    files_help: str | None = None
    #: Called with these files after the worker has started. An exception ends the program with exit code 3.
    after_start: Callable[[Herder, Sequence[Path]], None] = lambda _herder, _files: None


class _WithCopying:
    """A worker whose MirrorSourceTasks copy with Spark, which starts with the first of them."""

    def __init__(self, node: WorkerNode, engine: CopyEngine) -> None:
        self._node = node
        self._engine = engine

    @property
    def herder(self) -> Herder:
        return self._node.herder

    def check(self, timeout_s: float) -> str:
        return self._node.check(timeout_s)

    def stop(self) -> None:
        self._node.stop()
        self._engine.stop(_ENGINE_STOP_S)


def with_copying(props: Mapping[str, str], make: Callable[[Mapping[str, Any]], WorkerNode]) -> WorkerNode:
    """The node that ``make`` creates with the resources of tasks. The worker's ``spark.*`` settings configure Spark."""
    engine = CopyEngine({key: value for key, value in props.items() if key.startswith("spark.")})
    return _WithCopying(make({COPY_RESOURCE: engine}), engine)


class _NotStarted(Exception):
    """The program could not be started after it was set up."""


class _WorkerParser(SourcedParser):
    def error(self, message: str) -> NoReturn:
        self.print_help(sys.stderr)
        sys.stderr.write(f"\n{self.prog}: {message}\n")
        raise SystemExit(EXIT_USAGE)


def parser(program: Program) -> Any:
    """The command line."""
    made = _WorkerParser(prog=program.name, description=program.description, add_help=False)
    made.add_argument("config", metavar="worker.properties", type=Path, help="settings of the worker")
    if program.files_help is not None:
        made.add_argument("files", metavar="connector", type=Path, nargs="*", help=program.files_help)
    made.add_argument("--help", "-h", action="store_true", help="show this and exit with 1, as Java does")
    add_log_options(made)
    made.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    return made


def run_program(program: Program, arguments: Sequence[str] | None = None) -> int:
    """Run a worker until a signal arrives or its herder fails; returns the exit code."""
    if arguments is not None:
        return _run(program, list(arguments))
    code = _run(program, sys.argv[1:])
    # The interpreter waits for all threads at exit, and one of a plugin may hang.
    exit_in(_LAST_SECONDS_S, code)
    return code


def _run(program: Program, given: Sequence[str]) -> int:
    command = parser(program)
    if not given or "--help" in given or "-h" in given:
        command.print_help(sys.stderr)
        return EXIT_USAGE
    options = command.parse_args(given)
    use_one_arena()
    collect_less_often()
    configure_logging(options.log_format, options.log_level)
    stopping = stop_at_signals()
    running = _Running(stopping)
    try:
        running.set_up(program, options.config)
    except (ConfigException, ConnectError, KafkaFailure, ProviderError) as error:
        return running.give_up(error, EXIT_BAD_SETUP)
    except Exception as error:
        log.exception("Cannot set the worker up.")
        return running.give_up(error, EXIT_BAD_SETUP, logged=True)
    try:
        running.start()
        program.after_start(running.node.herder, getattr(options, "files", ()))
    except Exception as error:
        log.error("Stopping after connector error: %s", error, exc_info=error)  # noqa: TRY400 - with a message
        running.stop()
        return EXIT_NOT_STARTED
    return running.wait()


class _Running:
    """The lifecycle of a worker: set up, started, stopped, each at most once."""

    node: WorkerNode

    def __init__(self, stopping: threading.Event) -> None:
        self._stopping = stopping
        self._closers: list[Callable[[], None]] = []
        self._server: RestServer | None = None

    def set_up(self, program: Program, path: Path) -> None:
        """Validate all settings and connect for the first time. Raises ConfigException, ConnectError."""
        began_s = time.monotonic()
        raw, old = without_legacy_keys(load_properties(path))
        for sentence in old:
            log.warning(sentence)
        plugins = Plugins(raw)
        use(plugins)
        transformer = ConfigTransformer.from_props(raw, plugins.new_provider)
        props = transformer.transform(raw)
        for name in (name for name, is_restricted in transformer.restricted.items() if not is_restricted):
            log.warning(
                "Connector configurations can read everything that this worker can read: set config.providers.%s.param.%s.",
                name,
                "allowed.paths (or allowlist.pattern for EnvVarConfigProvider)",
            )
        for one in (*check_effects(worker_uses(props)), *ineffective_variables()):
            log.warning("%s", one)
        self._settings = RestSettings.of(props)
        check_access(props)
        self._extensions = load_extensions(self._settings.extension_classes, plugins, props)
        binding = Binding(self._settings)
        self._server = RestServer(binding)
        self._closers.append(lambda: close_extensions(self._extensions))
        warn_of_exposure(binding)
        self._local = LocalAccess.publish(binding)
        local_processes.write(binding.local_url, (), path)
        self._closers.append(local_processes.remove)
        self.node = program.make_node(props, plugins, binding)
        self._closers.append(self.node.stop)
        cluster_id = self._cluster_id(float(props.get(_PATIENCE_KEY, _CLUSTER_PATIENCE_MS)) / 1000)
        log.info(
            "Kafka Connect worker initialized.",
            took_ms=int((time.monotonic() - began_s) * 1000),
            worker_id=binding.worker_id,
            kafka_cluster_id=cluster_id,
        )

    def start(self) -> None:
        """Start the herder, then the resources. Requests that arrive meanwhile get 503."""
        if self._server is None:
            raise _NotStarted("The worker has not been set up")
        herder = self.node.herder
        herder.start()
        timeout_s = self._settings.limits.request_timeout_s
        requests = Requests(RestClient(self._settings.props, timeout_s), timeout_s)
        self._closers.append(requests.close)
        workers = [ObservedWorker(herder, {})] if isinstance(herder, AbstractHerder) else []
        metrics = metrics_router(Exposition(ConnectMetrics(lambda: workers)))
        resources = worker_resources(
            herder,
            self._settings,
            requests,
            self._extensions,
            [metrics],
            local=self._local,
            redacted=cast(Herder, RedactedHerder(herder)),
        )
        self._server.serve(resources.main, resources.admin)
        log.info("Kafka Connect started.")

    def wait(self) -> int:
        """Wait until a signal arrives or the herder ends by itself, then stop; returns the exit code."""
        while not self._stopping.wait(_WATCH_S):
            if self.node.herder.await_stopped(0):
                log.error("The herder has failed: %s", self.node.herder.failure)
                self.stop()
                return EXIT_DIED
        self.stop()
        log.info("Stopped.")
        return EXIT_STOPPED

    def stop(self) -> None:
        """Stop REST first, then the herder. Parts that hang for too long are abandoned."""
        timer = exit_in(_LAST_RESORT_S, EXIT_DIED)
        if self._server is not None:
            self._server.stop()
        for close in self._closers:
            try:
                close()
            except Exception:
                log.exception("A part of the worker could not be stopped.")
        timer.cancel()

    def give_up(self, error: Exception, code: int, *, logged: bool = False) -> int:
        """Report a failure before the start; returns the exit code. ``logged``: the error was logged already."""
        stop_requested = self._stopping.is_set()
        if not logged and not stop_requested:
            log.error("%s", error)
            log.debug("The error in full.", exc_info=error)
        self.stop()
        return EXIT_STOPPED if stop_requested else code

    def _cluster_id(self, patience_s: float) -> str:
        deadline = time.monotonic() + patience_s
        warned = False
        while True:
            try:
                return self.node.check(max(0.1, min(_TRY_S, deadline - time.monotonic())))
            except KafkaFailure as failure:
                passing = is_unavailable(failure)
                if not passing or time.monotonic() > deadline or self._stopping.is_set():
                    raise ConnectError(
                        f"Failed to connect to and describe Kafka cluster. Check worker's broker connection and security "
                        f"properties. {failure}"
                    ) from failure
                if not warned:
                    log.warning("The Kafka cluster does not answer yet: %s", failure)
                    warned = True
            self._stopping.wait(_BETWEEN_TRIES_S)
