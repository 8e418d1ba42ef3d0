"""Connectors and tasks in separate processes that really run and crash; the runtime is simulated."""

from __future__ import annotations

import datetime as dt
import importlib
import os
import signal
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mm2.config.configdef import ConfigDef, ConfigException, Importance, Password, Type, Width
from mm2.connect.api import (
    ConnectError,
    DataError,
    Headers,
    OffsetAndMetadata,
    RetriableError,
    Schema,
    SinkRecord,
    SourceRecord,
    SourceTaskContext,
    TopicPartition,
    WorkerView,
)
from mm2.connect.api import Type as SchemaType
from mm2.connect.data.record import NO_HEADERS
from mm2.connect.data.schema import Field, SchemaAndValue
from mm2.connect.data.struct import Struct
from mm2.connect.plugins import Plugins
from mm2.connect.plugins.process.values import Decoding, Encoding
from mm2.connect.runtime.tasks.sink_records import InternalSinkRecord
from mm2.kafka.consumer.records import ConsumerRecord
from mm2.kafka.producer.producer import RecordMetadata
from tests.support.waiting import wait_until
from tests.unit.connect.plugin_folders import entry_points, write_files

PLUGIN = """
import os
import threading
import time

from mm2.connect.api import *
from mm2.config.configdef import ConfigDef, Importance, Type, at_least

DEFINITION = ConfigDef().define("count", Type.INT, 2, at_least(1), Importance.HIGH, "How many.", group="Counting")


class Source(SourceConnector):
    def version(self): return "1.5"
    def start(self, props): self.props = props
    def stop(self): pass
    def task_class(self): return Task1
    def config(self): return DEFINITION
    def task_configs(self, max_tasks):
        if self.props.get("reconfigure"):
            self.context.request_task_reconfiguration()
        return [{"task": str(n), "stored": str(len(self.context.stored_task_configs()))} for n in range(max_tasks)]


class Task1(SourceTask):
    def version(self): return "1.5"

    def start(self, props):
        self.props = props
        self.stopped = threading.Event()
        self.thread = threading.get_ident()
        if props.get("fail"):
            raise RetriableError("not now")

    def poll(self):
        what = self.props.get("do", "")
        if what == "block":
            self.stopped.wait(60)
            return None
        if what == "exit":
            print("I give up", flush=True)
            os._exit(3)
        if what == "raise":
            raise ValueError("broken line 7")
        offset = self.context.offset_reader.offsets([{"file": "f"}])[0] or {"line": 0}
        records = [SourceRecord({"file": "f"}, {"line": n}, "t", None, None, (os.getpid(), threading.get_ident() == self.thread))
                   for n in range(offset["line"] + 1, offset["line"] + 3)]
        self.context.report({"read": len(records)})
        if self.context.transaction_context:
            self.context.transaction_context.commit_transaction(records[0])
        return records

    def stop(self): self.stopped.set()

    def commit_record(self, record, metadata):
        self.context.report({"committed": record.source_offset["line"], "offset": metadata.offset})


class Sink(SinkConnector):
    def version(self): return "2.0"
    def start(self, props): raise DataError("no such table")
    def stop(self): pass
    def task_class(self): return Task2
    def config(self): return DEFINITION
    def task_configs(self, max_tasks): return [{}]


class Mute(Exception):
    def __str__(self): raise RuntimeError("no text")


class Task2(SinkTask):
    def version(self): return "2.0"
    def start(self, props): self.seen = 0
    def stop(self): pass

    def open(self, partitions):
        self.context.offset({partition: 7 for partition in partitions})

    def put(self, records):
        reporter = self.context.errant_record_reporter()
        for record in records:
            if record.value == "mute":
                raise Mute
            if record.value == "cut \\ud83d":
                raise DataError(f"no column {record.value}")
            if record.value is None:
                reporter.report(record, DataError("empty")).result()
            self.seen += 1
        self.context.request_commit()

    def pre_commit(self, current_offsets):
        return {partition: OffsetAndMetadata(found.offset - 1) for partition, found in current_offsets.items()}
"""

PROCESS = {"plugin.isolation": "process"}


@pytest.fixture
def plugins(tmp_path: Path) -> Plugins:
    listed = entry_points("acme.plugin:Source", "acme.plugin:Sink")
    write_files(tmp_path / "acme", {"acme/__init__.py": "", "acme/plugin.py": PLUGIN, **listed})
    return Plugins({"plugin.path": str(tmp_path), "plugin.discovery": "service_load"})


class Context:
    """A connector's."""

    def __init__(self) -> None:
        self.requests = 0
        self.errors: list[Exception] = []
        self.failed = threading.Event()

    def request_task_reconfiguration(self) -> None:
        self.requests += 1

    def stored_task_configs(self) -> list[dict[str, str]]:
        return [{}, {}, {}]

    def raise_error(self, exc: Exception) -> None:
        self.errors.append(exc)
        self.failed.set()


class Transactions:
    def __init__(self) -> None:
        self.commits: list[SourceRecord | None] = []

    def commit_transaction(self, record: SourceRecord | None = None) -> None:
        self.commits.append(record)

    def abort_transaction(self, record: SourceRecord | None = None) -> None:
        raise AssertionError(record)


def source_context(reports: list[dict[str, Any]], transactions: Transactions | None = None) -> SourceTaskContext:
    reader = SimpleNamespace(offsets=lambda partitions: [{"line": 40} for _ in partitions])
    return SourceTaskContext(
        connector="c",
        task_id=0,
        configs={"a": "b"},
        offset_reader=reader,
        worker=WorkerView({"password": "x"}, "g", "o", {"acks": "all"}, exactly_once=False),
        transaction_context=transactions,
        report=reports.append,
    )


def on_a_thread(body: Callable[[], Any]) -> Any:
    """Run a task in its own thread, as the runtime does."""
    outcome: Future[Any] = Future()

    def run() -> None:
        try:
            outcome.set_result(body())
        except Exception as error:  # noqa: BLE001 - raised in the waiting thread
            outcome.set_exception(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    return outcome.result(0)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def source(plugins: Plugins) -> Iterator[Any]:
    connector: Any = plugins.new_connector({"connector.class": "acme.plugin.Source", **PROCESS})
    yield connector
    if is_alive(connector.pid):
        connector.stop()


def test_a_connector_runs_in_another_process(source: Any, plugins: Plugins) -> None:
    context = Context()
    assert source.pid != os.getpid()
    assert source.version() == "1.5"
    source.initialize(context)
    source.start({"reconfigure": "1"})
    assert source.task_configs(2) == [{"task": "0", "stored": "3"}, {"task": "1", "stored": "3"}]
    assert context.requests == 1
    key = source.config().keys["count"]
    assert (key.default, key.type, key.importance, key.group) == (2, Type.INT, Importance.HIGH, "Counting")
    assert source.validate({"count": "0"}) == [
        ("count", "Invalid value 0 for configuration count: Value must be at least 1")
    ]
    assert source.exactly_once_support({}) is None
    assert source.alter_offsets({}, [({"file": "f"}, None)]) is False
    assert plugins.name_of(source.task_class(), object) == "acme.plugin.Task1"
    source.stop()
    assert not is_alive(source.pid)
    with pytest.raises(ConnectError, match=r"Plugin acme\.plugin\.Source has been stopped and its process"):
        source.config()


def test_errors_keep_their_class_their_text_and_their_traceback(plugins: Plugins) -> None:
    sink = plugins.new_connector({"connector.class": "acme.plugin.Sink", **PROCESS})
    with pytest.raises(DataError) as raised:
        sink.start({})
    assert str(raised.value) == "no such table"
    assert 'raise DataError("no such table")' in "".join(raised.value.__notes__)
    sink.stop()


def test_the_death_of_an_idle_process_is_reported(source: Any) -> None:
    context = Context()
    source.initialize(context)
    source.start({})
    os.kill(source.pid, signal.SIGKILL)
    assert context.failed.wait(60)
    assert str(context.errors[0]) == f"The process {source.pid} of plugin acme.plugin.Source was killed by signal 9"
    with pytest.raises(ConnectError, match="was killed by signal 9"):
        source.task_configs(1)


def new_task(plugins: Plugins, connector: str, task: str) -> Any:
    return plugins.new_task(f"acme.plugin.{task}", {"connector.class": f"acme.plugin.{connector}", **PROCESS})


def test_a_source_task_polls_and_commits_on_one_thread_of_the_process(plugins: Plugins) -> None:
    task, transactions = new_task(plugins, "Source", "Task1"), Transactions()
    reports: list[dict[str, Any]] = []

    def life() -> list[SourceRecord]:
        task.initialize(source_context(reports, transactions))
        task.start({})
        records: list[SourceRecord] = task.poll()
        task.commit_record(records[0], RecordMetadata("t", 0, 99, 5))
        task.stop()
        return records

    records = on_a_thread(life)
    assert [(record.source_offset, record.value) for record in records] == [
        ({"line": 41}, (task.pid, True)),
        ({"line": 42}, (task.pid, True)),
    ]
    assert transactions.commits == [records[0]]
    assert transactions.commits[0] is records[0]
    assert reports == [{"read": 2}, {"committed": 41, "offset": 99}]
    wait_until(lambda: not is_alive(task.pid))


def test_stop_reaches_a_task_that_blocks(plugins: Plugins) -> None:
    task = new_task(plugins, "Source", "Task1")

    def life() -> Any:
        task.initialize(source_context([]))
        task.start({"do": "block"})
        threading.Timer(0.3, task.stop).start()
        return task.poll()

    before = time.monotonic()
    assert on_a_thread(life) is None
    assert time.monotonic() - before < 30


@pytest.mark.parametrize(
    ("props", "kind", "text"),
    [
        (
            {"do": "exit"},
            ConnectError,
            "of plugin acme.plugin.Task1 ended with exit code 3; its last output: I give up",
        ),
        ({"do": "raise"}, ConnectError, "ValueError: broken line 7"),
        ({"fail": "1"}, RetriableError, "not now"),
    ],
)
def test_an_error_in_the_process_fails_only_its_task(
    plugins: Plugins, props: dict[str, str], kind: type[Exception], text: str
) -> None:
    task, other = new_task(plugins, "Source", "Task1"), new_task(plugins, "Source", "Task1")

    def life(which: Any, given: dict[str, str]) -> Any:
        which.initialize(source_context([]))
        which.start(given)
        return which.poll()

    with pytest.raises(kind, match=text):
        on_a_thread(lambda: life(task, props))
    assert len(on_a_thread(lambda: life(other, {}))) == 2
    wait_until(lambda: not is_alive(task.pid))


class SinkContext:
    def __init__(self) -> None:
        self.output: list[Any] = []
        self.reported: list[SinkRecord] = []

    def configs(self) -> Mapping[str, str]:
        return {}

    def offset(self, offsets: Mapping[TopicPartition, int]) -> None:
        self.output.append(dict(offsets))

    def request_commit(self) -> None:
        self.output.append("commit")

    def errant_record_reporter(self) -> Any:
        return self

    def report(self, record: SinkRecord, error: BaseException) -> Future[None]:
        self.output.append((record.kafka_offset, str(error), type(error)))
        self.reported.append(record)
        future: Future[None] = Future()
        threading.Timer(0.1, future.set_result, [None]).start()
        return future


def test_a_sink_task_receives_records_and_uses_its_context(plugins: Plugins) -> None:
    task, context = new_task(plugins, "Sink", "Task2"), SinkContext()
    partition = TopicPartition("t", 0)

    def life() -> Any:
        task.initialize(context)
        task.start({})
        task.open([partition])
        task.put([SinkRecord("t", 0, b"k", "v", 7), SinkRecord("t", 0, b"k", None, 8)])
        committed = task.pre_commit({partition: OffsetAndMetadata(9)})
        task.close([partition])
        task.stop()
        return committed

    assert on_a_thread(life) == {partition: OffsetAndMetadata(8)}
    assert context.output == [{partition: 7}, (8, "empty", DataError), "commit"]


def consumed(value: str | None, offset: int) -> SinkRecord:
    """A record as the runtime passes it to a task."""
    record = ConsumerRecord(TopicPartition("t", 0), offset, None, None, (), 0, is_log_append_time=False)
    nothing = SchemaAndValue(None, None)
    return InternalSinkRecord.of(record, nothing, SchemaAndValue(None, value), NO_HEADERS, keep=True)


def test_a_sink_task_receives_the_records_of_the_runtime_and_reports_them(plugins: Plugins) -> None:
    task, context = new_task(plugins, "Sink", "Task2"), SinkContext()
    empty = consumed(None, 8)

    def life() -> None:
        task.initialize(context)
        task.start({})
        task.put([consumed("v", 7), empty])
        task.stop()

    on_a_thread(life)
    assert context.output == [(8, "empty", DataError), "commit"]
    assert context.reported[0] is empty  # the dead letter has the bytes that were consumed


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        ("mute", ConnectError, "put has failed with Mute, which cannot be passed on: "),
        ("cut \ud83d", DataError, "no column cut \ud83d"),
    ],
)
def test_no_error_of_a_plugin_blocks_the_worker(plugins: Plugins, value: str, kind: type[Exception], text: str) -> None:
    task = new_task(plugins, "Sink", "Task2")

    def life() -> None:
        task.initialize(SinkContext())
        task.start({})
        with pytest.raises(kind, match=text):
            task.put([consumed(value, 7)])
        task.stop()

    on_a_thread(life)


def test_a_plugin_whose_compiled_module_is_loaded_elsewhere_needs_the_option(tmp_path: Path) -> None:
    origin = importlib.import_module("_cffi_backend").__file__
    assert origin is not None
    files = {
        "acme/__init__.py": "import _cffi_backend\n",
        "acme/plugin.py": PLUGIN,
        **entry_points("acme.plugin:Source"),
    }
    folder = write_files(tmp_path / "acme", files)
    (folder / f"_cffi_backend{sysconfig.get_config_var('EXT_SUFFIX')}").write_bytes(Path(origin).read_bytes())
    plugins = Plugins({"plugin.path": str(tmp_path), "plugin.discovery": "service_load"})
    name = "acme.plugin.Source"
    assert {"class": name, "type": "source", "version": "1.5"} in plugins.listing()
    with pytest.raises(ConnectError, match=r"compiled module _cffi_backend of .* set plugin\.isolation=process"):
        plugins.new_connector({"connector.class": name})
    connector = plugins.new_connector({"connector.class": name, **PROCESS})
    assert connector.version() == "1.5"
    connector.stop()


SCHEMA = Schema(
    SchemaType.STRUCT,
    name="s",
    fields=(
        Field("id", 0, Schema(SchemaType.INT64)),
        Field("tags", 1, Schema(SchemaType.ARRAY, optional=True, value_schema=Schema(SchemaType.STRING))),
        Field("note", 2, Schema(SchemaType.STRING, optional=True, default="none")),
    ),
)


def test_values_are_transferred_unchanged() -> None:
    zone = dt.timezone(dt.timedelta(hours=2))
    values = [
        None,
        True,
        2**70,
        -1.5,
        float("inf"),
        "text\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"),
        "half a pair \ud83d, \u00e9, {}",
        {"\ud83d": ["\ud83d"]},
        Schema(SchemaType.STRUCT, doc="\ud83d", fields=(Field("\ud83d", 0, Schema(SchemaType.INT64)),)),
        b"\x00\xff",
        [1, [2]],
        (1, "x"),
        {"a": {"b": [None]}},
        {1: "one", (2, 3): "pair"},
        {"x", "y"},
        Decimal("1.20"),
        dt.datetime(2026, 1, 2, 3, 4, 5, 678901, zone),
        dt.date(2026, 1, 2),
        dt.time(1, 2, 3, 4),
        Password("s3cret"),
        TopicPartition("t", 3),
        {TopicPartition("t", 3): OffsetAndMetadata(5, "m", 2)},
        Headers.of([("a", 1), ("a", b"2")]),
        SCHEMA,
        Struct(SCHEMA, {"id": 5, "tags": ["a"]}),
        SinkRecord("t", 1, "k", Struct(SCHEMA, {"id": 1}), 9, Headers.of([("h", "v")]), 77, value_schema=SCHEMA),
        SourceRecord({"p": 1}, {"o": 2}, "t", None, None, {"free": [1.5]}, timestamp=3),
    ]
    encoding, decoding = Encoding(), Decoding()
    for value in values + values:
        decoded = decoding.decode(encoding.encode(value))
        assert (decoded, type(decoded)) == (value, type(value))
    again = decoding.decode(encoding.encode([SCHEMA, SCHEMA]))
    assert again[0] is again[1]


def test_a_definition_is_transferred_without_its_code() -> None:
    definition = ConfigDef().define(
        "a", Type.PASSWORD, doc="Secret.", group="g", order=3, width=Width.LONG, display_name="A", dependents=["b"]
    )
    decoded = Decoding().decode(Encoding().encode(definition))
    assert dict(decoded.keys) == dict(definition.keys)


def test_values_that_cannot_be_transferred_are_reported_and_harmless() -> None:
    encoding, decoding = Encoding(), Decoding()
    with pytest.raises(TypeError, match="a lock is not a value of the plugin API"):
        encoding.encode([SCHEMA, threading.Lock()])
    assert decoding.decode(encoding.encode(SCHEMA)) == SCHEMA
    error = decoding.decode(encoding.encode(ConfigException("k", 1, "Too small")))
    assert (str(error), error.name) == ("Invalid value 1 for configuration k: Too small", "k")
    with pytest.raises(ValueError, match="Error"):
        decoding.decode(b"\xff")
