"""The process of a plugin: ``python -m mm2.connect.plugins.process.child <file descriptor>``.

Ends when its worker ends.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import os
import socket
import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from types import MappingProxyType
from typing import Any

from mm2.connect.api import (
    Connector,
    ErrantRecordReporter,
    SinkRecord,
    SinkTask,
    SourceRecord,
    SourceTask,
    SourceTaskContext,
    Task,
    TopicPartition,
    WorkerView,
)
from mm2.connect.plugins.plugin import types_of
from mm2.connect.plugins.process.peer import FrameSocket, Peer

_OVERRIDABLE = ("commit", "commit_record", "pause", "resume")


class _ConnectorContext:
    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    def request_task_reconfiguration(self) -> None:
        self._peer.call("request_task_reconfiguration")

    @functools.cached_property
    def group_id(self) -> str:
        return str(self._peer.call("group_id"))

    @functools.cached_property
    def worker_topics(self) -> frozenset[str]:
        return frozenset(self._peer.call("worker_topics"))

    def stored_task_configs(self) -> list[dict[str, str]]:
        found: list[dict[str, str]] = self._peer.call("stored_task_configs")
        return found

    def raise_error(self, exc: Exception) -> None:
        self._peer.call("raise_error", exc)


class _OffsetReader:
    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    def offsets(self, partitions: Iterable[Mapping[str, Any]]) -> list[dict[str, Any] | None]:
        found: list[dict[str, Any] | None] = self._peer.call("offsets", list(map(dict, partitions)))
        return found


class _TransactionContext:
    """Collects a task's requests; the positions of its records are known only when ``poll`` returns them."""

    def __init__(self) -> None:
        self.wishes: list[tuple[str, SourceRecord | None]] = []

    def commit_transaction(self, record: SourceRecord | None = None) -> None:
        self.wishes.append(("commit", record))

    def abort_transaction(self, record: SourceRecord | None = None) -> None:
        self.wishes.append(("abort", record))


class _SinkTaskContext:
    def __init__(self, peer: Peer, reporter: ErrantRecordReporter | None) -> None:
        self._peer = peer
        self._reporter = reporter

    def configs(self) -> Mapping[str, str]:
        found: dict[str, str] = self._peer.call("configs")
        return found

    def offset(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._peer.call("offset", dict(offsets))

    def timeout(self, timeout_ms: int) -> None:
        self._peer.call("timeout", timeout_ms)

    def assignment(self) -> set[TopicPartition]:
        return set(self._peer.call("assignment"))

    def pause(self, *partitions: TopicPartition) -> None:
        self._peer.call("pause_partitions", list(partitions))

    def resume(self, *partitions: TopicPartition) -> None:
        self._peer.call("resume_partitions", list(partitions))

    def request_commit(self) -> None:
        self._peer.call("request_commit")

    def errant_record_reporter(self) -> ErrantRecordReporter | None:
        return self._reporter


class _Reporter:
    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._numbers = itertools.count()
        self._reports: dict[int, Future[None]] = {}

    def report(self, record: SinkRecord, error: BaseException) -> Future[None]:
        number, future = next(self._numbers), Future[None]()
        self._reports[number] = future
        try:
            self._peer.call("report", number, record, error)
        except BaseException:
            self._reports.pop(number, None)
            raise
        return future

    def settle(self, number: int, error: BaseException | None) -> None:
        future = self._reports.pop(number, None)
        if future is None:
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)


class _Child:
    def __init__(self, frames: FrameSocket) -> None:
        self.peer = Peer(frames, self.answer, name="worker", first=1, on_end=lambda: None)
        self._plugin: Connector | Task | None = None
        self._transactions: _TransactionContext | None = None
        self._reporter: _Reporter | None = None

    def answer(self, method: str, args: list[Any]) -> Any:
        special: Callable[..., Any] | None = getattr(self, f"_on_{method}", None)
        if special is not None:
            return special(*args)
        return getattr(self._plugin, method)(*args)

    def _on_load(self, path: str, search: list[str]) -> dict[str, Any]:
        # A separate process needs no isolated module names. The plugin's folders precede those of the environment; mm2
        # and modules of the standard library that are already loaded are not replaced.
        sys.path[:0] = search
        found = _class_of(path)
        self._plugin = plugin = found()
        if not isinstance(plugin, Connector | Task):
            raise TypeError(f"{path} is neither a connector nor a task")
        base = type(plugin).__mro__
        return {
            "version": plugin.version(),
            "overridden": [name for name in _OVERRIDABLE if not _is_base_s(base, name)],
            "produces_by_itself": bool(getattr(plugin, "produces_by_itself", False)),
        }

    def _on_describe(self, path: str, search: list[str]) -> dict[str, Any]:
        sys.path[:0] = search
        found = _class_of(path)
        types = [type_.value for type_ in types_of(found)]
        version = found().version() if hasattr(found, "version") else "undefined"
        return {"types": types, "version": str(version)}

    def _on_initialize_connector(self) -> None:
        plugin = self._expect(Connector)
        plugin.initialize(_ConnectorContext(self.peer))

    def _on_initialize_source(
        self,
        connector: str,
        task_id: int,
        configs: dict[str, str],
        worker: WorkerView,
        transactions: bool,
        task_count: int,
    ) -> None:
        self._transactions = _TransactionContext() if transactions else None
        context = SourceTaskContext(
            connector=connector,
            task_id=task_id,
            configs=configs,
            offset_reader=_OffsetReader(self.peer),
            worker=worker,
            resources=MappingProxyType({}),
            transaction_context=self._transactions,
            report=lambda detail: self.peer.call("report_detail", detail),
            confirm_ownership=lambda: self.peer.call("confirm_ownership"),
            task_count=task_count,
        )
        self._expect(SourceTask).initialize(context)

    def _on_initialize_sink(self, reporter: bool) -> None:
        self._reporter = _Reporter(self.peer) if reporter else None
        self._expect(SinkTask).initialize(_SinkTaskContext(self.peer, self._reporter))

    def _on_settle(self, number: int, error: BaseException | None) -> None:
        if self._reporter is not None:
            self._reporter.settle(number, error)

    def _on_poll(self) -> list[Any]:
        """The records, and which of them end transactions: (commit or abort, index or None) each."""
        records = self._expect(SourceTask).poll()
        wishes: list[Any] = []
        if self._transactions is not None:
            taken, self._transactions.wishes = self._transactions.wishes, []
            wishes = [[what, _place(record, records)] for what, record in taken]
        return [None if records is None else list(records), wishes]

    def _on_task_class(self) -> str:
        found = self._expect(Connector).task_class()
        return f"{found.__module__}.{found.__qualname__}"

    def _expect(self, kind: type[Any]) -> Any:
        if not isinstance(self._plugin, kind):
            raise TypeError(f"{type(self._plugin).__qualname__} is not a {kind.__name__}")
        return self._plugin


def _class_of(path: str) -> type[Any]:
    module_name, _, attribute = path.partition(":") if ":" in path else path.rpartition(".")
    found: Any = importlib.import_module(module_name)
    for part in attribute.split("."):
        found = getattr(found, part)
    if not isinstance(found, type):
        raise TypeError(f"{path} is not a class")
    return found


def _is_base_s(mro: tuple[type[Any], ...], name: str) -> bool:
    owner = next((found for found in mro if name in vars(found)), None)
    return owner is None or owner.__module__.startswith("mm2.connect.api")


def _place(record: SourceRecord | None, records: list[SourceRecord] | None) -> int | None:
    if record is None:
        return None
    for place, found in enumerate(records or ()):
        if found is record:
            return place
    raise ValueError("The transaction boundary is at a record that this poll does not return")


def main() -> None:
    """Serve the worker at the other end of the file descriptor given as argument."""
    sock = socket.socket(fileno=int(sys.argv[1]))
    child = _Child(FrameSocket(sock))
    child.peer.start()
    child.peer.join()
    # Threads of the plugin may never end; without the worker they have no purpose.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
