"""The worker's side of a plugin in its own process: connectors and tasks that forward every call.

When the process dies, the call in progress and all later ones raise ConnectError, which fails only this connector or
task; a connector without a call in progress reports it through its context. A restart creates a new process.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import weakref
from abc import abstractmethod
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from types import MappingProxyType
from typing import IO, Any, Final

import structlog

from mm2.config.configdef import ConfigDef
from mm2.connect.api import (
    ConnectError,
    Connector,
    ConnectorContext,
    ErrantRecordReporter,
    OffsetAndMetadata,
    SinkConnector,
    SinkRecord,
    SinkTask,
    SinkTaskContext,
    SourceConnector,
    SourceRecord,
    SourceTask,
    SourceTaskContext,
    Task,
    TopicPartition,
)
from mm2.connect.plugins.plugin import Plugin, PluginType
from mm2.connect.plugins.process.peer import FrameSocket, Handler, Peer, PeerGone
from mm2.kafka.producer.producer import RecordMetadata

log = structlog.get_logger(__name__)

_END_S: Final = 5.0
"""Time for a process to end after it was requested to, in seconds."""
_OUTPUT_S: Final = 1.0
"""Time to read the last output of a process that has ended. A child of it may keep the pipe open."""
_LAST_LINES: Final = 5


class PluginProcess:
    """A process with one plugin. Ends with `close`, with its owner's garbage collection, or with the worker."""

    def __init__(self, name: str, handler: Handler) -> None:
        """``name`` is the plugin's name in messages. Raises ConnectError when the process cannot be created."""
        self.name = name
        self._last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._closed = False
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "mm2.connect.plugins.process.child", str(theirs.fileno())]
            try:
                self._process: Final = subprocess.Popen(
                    command,
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    # Only the worker handles Ctrl-C in its terminal.
                    start_new_session=True,
                )
            except OSError as error:
                ours.close()
                raise ConnectError(f"The process of plugin {name} could not be started: {error}") from error
        self._peer = Peer(FrameSocket(ours), handler, name=f"plugin-{self._process.pid}", first=0, on_end=self._ended)
        output = self._process.stdout
        self._listening: threading.Thread | None = None
        if output is not None:
            self._listening = threading.Thread(
                target=self._listen, args=(output,), name=f"plugin-{self.pid}-output", daemon=True
            )
            self._listening.start()
        self.on_death: Any = None
        self._peer.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def call(self, method: str, *args: Any) -> Any:
        """The plugin's answer. Raises what it raises, and ConnectError when its process has ended."""
        try:
            return self._peer.call(method, *args)
        except PeerGone as error:
            raise ConnectError(self.death()) from error

    def notify(self, method: str, *args: Any) -> None:
        """Send a message without waiting for an answer, if the process is alive."""
        try:
            self._peer.notify(method, *args)
        except PeerGone:
            return

    def death(self) -> str:
        """How the process ended, in one sentence."""
        if self._closed:
            return f"Plugin {self.name} has been stopped and its process {self.pid} has ended"
        try:
            code = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return f"The process {self.pid} of plugin {self.name} does not respond"
        if self._listening is not None:
            self._listening.join(_OUTPUT_S)
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        output = f"; its last output: {' | '.join(self._last_lines)}" if self._last_lines else ""
        return f"The process {self.pid} of plugin {self.name} {how}{output}"

    def close(self) -> None:
        """End the process; kill it when it does not exit by itself."""
        self._closed = True
        self._peer.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            log.warning("plugin process did not exit in time, killing it", plugin=self.name, pid=self.pid)
            self._process.kill()
            self._process.wait()

    def _ended(self) -> None:
        if not self._closed and self.on_death is not None:
            self.on_death(ConnectError(self.death()))

    def _listen(self, output: IO[bytes]) -> None:
        with output:
            for line in output:
                text = line.decode(errors="replace").rstrip()
                self._last_lines.append(text)
                log.info("output of a plugin process", plugin=self.name, pid=self.pid, line=text)


class _Remote:
    """What proxies of connectors and tasks share."""

    #: Set by `remote_class`.
    plugin: Plugin
    #: The name that configurations store for the plugin.
    plugin_name: str

    def __init__(self) -> None:
        self._process = PluginProcess(self.plugin_name, _weakly(self))
        self._finalizer = weakref.finalize(self, self._process.close)
        loader = self.plugin.loader
        try:
            self._facts = self._process.call("load", self.plugin.path, [] if loader is None else loader.paths)
        except BaseException:
            self._end()
            raise

    def version(self) -> str:
        """The version that the plugin reports."""
        return str(self._facts["version"])

    @property
    def pid(self) -> int:
        """Id of the plugin's process."""
        return self._process.pid

    def _does(self, method: str) -> bool:
        """Whether the plugin overrides a method, so that a call is necessary."""
        return method in self._facts["overridden"]

    def _end(self) -> None:
        self._finalizer()

    @abstractmethod
    def answer(self, method: str, args: list[Any]) -> Any:
        """Answer a call of the plugin to the runtime."""


def _weakly(remote: _Remote) -> Handler:
    reference = weakref.ref(remote)

    def answer(method: str, args: list[Any]) -> Any:
        found = reference()
        if found is None:
            raise ConnectError("The worker no longer uses this plugin")
        return found.answer(method, args)

    return answer


class _RemoteConnector(_Remote, Connector):
    def initialize(self, ctx: ConnectorContext) -> None:
        super().initialize(ctx)
        self._process.call("initialize_connector")
        self._process.on_death = ctx.raise_error

    def start(self, props: dict[str, str]) -> None:
        self._process.call("start", props)

    def stop(self) -> None:
        self._process.on_death = None
        try:
            self._process.call("stop")
        finally:
            self._end()

    def task_class(self) -> type[Task]:
        name = str(self._process.call("task_class"))
        kind = RemoteSinkTask if isinstance(self, SinkConnector) else RemoteSourceTask
        plugin = Plugin(name, Task, _with_colon(name), loader=self.plugin.loader, location=self.plugin.location)
        return remote_class(plugin, kind)

    def task_configs(self, max_tasks: int) -> list[dict[str, str]]:
        found: list[dict[str, str]] = self._process.call("task_configs", max_tasks)
        return found

    def config(self) -> ConfigDef:
        found: ConfigDef = self._process.call("config")
        return found

    def validate(self, props: Mapping[str, str]) -> Any:
        return self._process.call("validate", dict(props))

    def answer(self, method: str, args: list[Any]) -> Any:
        match method:
            case "request_task_reconfiguration":
                return self.context.request_task_reconfiguration()
            case "group_id":
                return self.context.group_id
            case "worker_topics":
                return sorted(self.context.worker_topics)
            case "stored_task_configs":
                return self.context.stored_task_configs()
            case "raise_error":
                return self.context.raise_error(args[0])
        raise ConnectError(f"A connector cannot call {method}")


class RemoteSourceConnector(_RemoteConnector, SourceConnector):
    """A source connector in its own process."""

    def exactly_once_support(self, props: Mapping[str, str]) -> bool | None:
        found: bool | None = self._process.call("exactly_once_support", dict(props))
        return found

    def can_define_transaction_boundaries(self, props: Mapping[str, str]) -> bool:
        return bool(self._process.call("can_define_transaction_boundaries", dict(props)))

    def alter_offsets(
        self, props: Mapping[str, str], offsets: Sequence[tuple[dict[str, Any], dict[str, Any] | None]]
    ) -> bool:
        return bool(self._process.call("alter_offsets", dict(props), list(offsets)))


class RemoteSinkConnector(_RemoteConnector, SinkConnector):
    """A sink connector in its own process."""

    def alter_offsets(self, props: Mapping[str, str], offsets: Mapping[TopicPartition, int | None]) -> bool:
        return bool(self._process.call("alter_offsets", dict(props), dict(offsets)))


class _RemoteTask(_Remote, Task):
    def start(self, props: dict[str, str]) -> None:
        # The task ends with the thread that starts it; then the process is closed.
        runner, process = threading.current_thread(), self._finalizer
        threading.Thread(
            target=_close_after, args=(runner, process), name=f"plugin-{self.pid}-end", daemon=True
        ).start()
        self._process.call("start", props)

    def stop(self) -> None:
        self._process.call("stop")


def _close_after(runner: threading.Thread, close: Any) -> None:
    runner.join()
    close()


class RemoteSourceTask(_RemoteTask, SourceTask):
    """A source task in its own process."""

    def initialize(self, ctx: SourceTaskContext) -> None:
        super().initialize(ctx)
        if self._facts["produces_by_itself"]:
            raise ConnectError(
                f"Task {self.plugin_name} writes to Kafka by itself and needs the worker's process: it does not support "
                "plugin.isolation=process"
            )
        transactions = ctx.transaction_context is not None
        self._process.call(
            "initialize_source",
            ctx.connector,
            ctx.task_id,
            dict(ctx.configs),
            ctx.worker,
            transactions,
            ctx.task_count,
        )

    def poll(self) -> list[SourceRecord] | None:
        records: list[SourceRecord] | None
        records, wishes = self._process.call("poll")
        transactions = self.context.transaction_context
        if transactions is not None:
            for what, place in wishes:
                wish = transactions.commit_transaction if what == "commit" else transactions.abort_transaction
                wish(None if place is None or records is None else records[place])
        return records

    def pause(self) -> None:
        if self._does("pause"):
            self._process.call("pause")

    def resume(self) -> None:
        if self._does("resume"):
            self._process.call("resume")

    def commit(self) -> None:
        if self._does("commit"):
            self._process.call("commit")

    def commit_record(self, record: SourceRecord, metadata: RecordMetadata | None) -> None:
        if self._does("commit_record"):
            self._process.call("commit_record", record, metadata)

    def answer(self, method: str, args: list[Any]) -> Any:
        match method:
            case "offsets":
                return self.context.offset_reader.offsets(args[0])
            case "report_detail":
                return self.context.report(args[0])
            case "confirm_ownership":
                return self.context.confirm_ownership()
        raise ConnectError(f"A source task cannot call {method}")


class RemoteSinkTask(_RemoteTask, SinkTask):
    """A sink task in its own process."""

    _reporter: ErrantRecordReporter | None = None
    #: Those of the last ``put`` by their origin, if they may be reported: the plugin has copies of them only.
    _records: Mapping[tuple[str, int, int], SinkRecord] = MappingProxyType({})

    def initialize(self, ctx: SinkTaskContext) -> None:
        super().initialize(ctx)
        self._reporter = ctx.errant_record_reporter()
        self._process.call("initialize_sink", self._reporter is not None)

    def put(self, records: Collection[SinkRecord]) -> None:
        batch = list(records)
        if self._reporter is not None:
            self._records = {_origin(record): record for record in batch}
        self._process.call("put", batch)

    def flush(self, current_offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        self._process.call("flush", dict(current_offsets))

    def pre_commit(
        self, current_offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> Mapping[TopicPartition, OffsetAndMetadata]:
        found: dict[TopicPartition, OffsetAndMetadata] = self._process.call("pre_commit", dict(current_offsets))
        return found

    def open(self, partitions: Collection[TopicPartition]) -> None:
        self._process.call("open", list(partitions))

    def close(self, partitions: Collection[TopicPartition]) -> None:
        self._process.call("close", list(partitions))

    def answer(self, method: str, args: list[Any]) -> Any:
        match method:
            case "report":
                return self._report(*args)
            case "configs":
                return dict(self.context.configs())
            case "assignment":
                return set(self.context.assignment())
            case "pause_partitions":
                return self.context.pause(*args[0])
            case "resume_partitions":
                return self.context.resume(*args[0])
            case "offset" | "timeout" | "request_commit":
                return getattr(self.context, method)(*args)
        raise ConnectError(f"A sink task cannot call {method}")

    def _report(self, number: int, record: SinkRecord, error: BaseException) -> None:
        if self._reporter is None:
            raise ConnectError("Errant records cannot be reported: no reporter is configured")
        process = self._process

        def settled(future: Future[None]) -> None:
            process.notify("settle", number, future.exception())

        self._reporter.report(self._records.get(_origin(record), record), error).add_done_callback(settled)


def _origin(record: SinkRecord) -> tuple[str, int, int]:
    """Where a record was consumed."""
    return record.original_topic, record.original_kafka_partition, record.original_kafka_offset


_REMOTE: Final[Mapping[PluginType, type[Any]]] = {
    PluginType.SOURCE: RemoteSourceConnector,
    PluginType.SINK: RemoteSinkConnector,
}


def remote_class(plugin: Plugin, kind: type[Any] | None = None) -> type[Any]:
    """The class whose instances are this plugin in separate processes.

    ``kind`` is one of the classes here, by default that of the plugin's type. Raises ConnectError for a plugin that is
    neither connector nor task: such plugins run in the process that handles the records.
    """
    base = kind or next((_REMOTE[type_] for type_ in plugin.types if type_ in _REMOTE), None)
    if base is None:
        raise ConnectError(f"Plugin {plugin.name} cannot run in a process of its own; connectors and their tasks can")
    simple_name = plugin.simple_name
    return type(simple_name, (base,), {"plugin": plugin, "plugin_name": plugin.name, "__module__": __name__})


def describe(plugin: Plugin) -> tuple[tuple[PluginType, ...], str]:
    """Types and version of a plugin that this process cannot load.

    Raises ConnectError or the error of loading it in the other process.
    """
    loader = plugin.loader
    process = PluginProcess(plugin.name, _no_answer)
    try:
        described = process.call("describe", plugin.path, [] if loader is None else loader.paths)
    finally:
        process.close()
    return tuple(PluginType(name) for name in described["types"]), str(described["version"])


def _no_answer(method: str, _args: list[Any]) -> Any:
    raise ConnectError(f"{method} cannot be called during plugin discovery")


def _with_colon(name: str) -> str:
    return ":".join(name.rsplit(".", 1))


__all__ = [
    "PluginProcess",
    "RemoteSinkConnector",
    "RemoteSinkTask",
    "RemoteSourceConnector",
    "RemoteSourceTask",
    "describe",
    "remote_class",
]
