"""The transformations and converters of MirrorSourceConnector, applied to copied records in the executors.

A record enters the chain as Java's MirrorSourceTask makes it (``convertRecord``): key and value are bytes with the schemas
OPTIONAL_BYTES and BYTES, headers are bytes, the topic is the one that the replication policy names. Afterwards it is
converted as in ``AbstractWorkerSourceTask.convertTransformedRecord``. Failures are handled as by
``RetryWithToleranceOperator``, except that a RetriableError does not block: the partition is read again from that record
after the back-off. A record that a predecessor may have copied is not skipped for a RetriableError: it was changed then.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self

from mm2.config.configdef import AbstractConfig, ConfigException
from mm2.config.files.provider_values import hider
from mm2.config.keys.connector_keys import SOURCE_CONNECTOR_CONFIG
from mm2.config.keys.mirror_keys import SOURCE_CONNECTOR
from mm2.connect.api import ConnectError, RetriableError, SourceRecord
from mm2.connect.converters import ByteArrayConverter
from mm2.connect.data.record import NO_HEADERS, Header, Headers
from mm2.connect.data.schema import BYTES_SCHEMA, OPTIONAL_BYTES_SCHEMA
from mm2.connect.plugins import Plugins
from mm2.connect.runtime.counters import ErrorCounters
from mm2.connect.runtime.error_reporters import LogReporter, of_source_record
from mm2.connect.runtime.tasks.conversion import SourceRecordConverter, build_converters
from mm2.connect.runtime.tolerance import (
    ConversionFailed,
    ProcessingContext,
    ProcessingStage,
    RetryWithToleranceOperator,
    Tolerance,
)
from mm2.connect.runtime.transformation_chain import build_stages
from mm2.connect.stores.config_state import ConnectorTaskId
from mm2.connect.transforms import RegexRouter, TimestampRouter
from mm2.copy.changes import FILTERED, SKIPPED, Attempts, ChangeDelayed, ChangeFailed, Passing
from mm2.copy.spec import PartitionSpec
from mm2.kafka.records.batch import NO_TIMESTAMP
from mm2.kafka.records.record import Record
from mm2.kafka.structs import TopicPartition
from mm2.mirror.topics.routing import TopicRoute, topic_route

#: Setting with what replaces values of config providers in errors, as JSON. Executors resolve no references.
HIDDEN_KEY: Final = "mm2.hidden"
_LEAST_DELAY_MS: Final = 300
_KEYS: Final = {
    ProcessingStage.KEY_CONVERTER: "key.converter",
    ProcessingStage.VALUE_CONVERTER: "value.converter",
    ProcessingStage.HEADER_CONVERTER: "header.converter",
}
_OWN_CLASSES: Final = "mm2.connect."


class RecordChain:
    """See the module. ``settings`` are those of `mm2.mirror.source.record_changes.changes_spec`. Use it in one thread.

    ``versions`` are those of the user's classes, ``not_repeatable`` names those that are not declared deterministic.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        """Raises ConnectError or ConfigException."""
        plugins = Plugins(settings) if settings.get("plugin.path") else Plugins()
        config = AbstractConfig(SOURCE_CONNECTOR_CONFIG, {"connector.class": SOURCE_CONNECTOR, **settings})
        self._tolerance = Tolerance.of(config)
        self._hide = hider(json.loads(settings.get(HIDDEN_KEY, "{}")))
        counters = ErrorCounters()
        self._operator: RetryWithToleranceOperator[Any] = RetryWithToleranceOperator(
            self._tolerance, counters, threading.Event()
        )
        if self._tolerance.log_enable:
            task_id = ConnectorTaskId(settings["name"], int(settings["task.id"]))
            where = of_source_record if self._tolerance.log_include_messages else None
            self._operator.add_reporter(LogReporter(task_id, counters, where))
        self._converters = build_converters(plugins, settings, None, {}, str)
        self._convert = SourceRecordConverter(self._converters, self._operator).convert_once
        self._passes_bytes = all(
            type(one) is ByteArrayConverter
            for one in (self._converters.key, self._converters.value, self._converters.header)
        )
        self._stages = build_stages(plugins, config, settings, None)
        self._classes = {
            ProcessingStage.KEY_CONVERTER: self._converters.key_class,
            ProcessingStage.VALUE_CONVERTER: self._converters.value_class,
            ProcessingStage.HEADER_CONVERTER: self._converters.header_class,
        }
        self.attempts: dict[TopicPartition, Attempts] = {}
        self._alias = settings["source.cluster.alias"]
        self._part: PartitionSpec | None = None
        self._source: dict[str, Any] = {}
        self._route = self._checked_route(settings)
        self._named = self._topic = ""  # of the records of the current partition, before and after the chain
        users = [plugin for plugin in self._plugins() if not type(plugin).__module__.startswith(_OWN_CLASSES)]
        self.versions = [f"{type(plugin).__qualname__} {plugin.version()}" for plugin in users]
        self.not_repeatable = _not_repeatable(users)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def apply(self, part: PartitionSpec, record: Record, *, may_pass: bool = True) -> Record | str:
        """As `mm2.copy.changes.RecordChanges.apply`."""
        if part is not self._part:
            self._part = part
            self._named = part.named or part.remote_topic
            self._topic = self._route.of(self._named)
            self._source = {"cluster": self._alias, "partition": part.partition, "topic": part.topic}
        given = current = _source_record(self._source, self._named, part, record)
        for stage in self._stages:
            try:
                transformed = stage.apply(current)
            except Exception as error:  # noqa: BLE001 - plugins may raise any exception
                what = f"transformation {stage.alias} ({stage.class_name})"
                step = ProcessingStage.TRANSFORMATION, stage.class_name
                return self._failed(part, record, given, *step, error, what, may_pass=may_pass)
            if transformed is None:
                return FILTERED
            current = transformed
        if current.topic != self._topic or current.partition != part.partition:
            raise ChangeFailed(
                f"{part.source}: the transformations send the record at offset {record.offset} to partition "
                f"{current.partition} of {current.topic}; only {self._topic}-{part.partition} is possible"
            )
        try:
            converted = record if current is given and self._passes(record) else self._convert(current, record.offset)
        except ConversionFailed as failure:
            failed = failure.failed
            name = self._classes[failed.stage]
            step = failed.stage, name
            return self._failed(part, record, given, *step, failed.error, f"converter {name}", may_pass=may_pass)
        except ConnectError as error:  # an invalid timestamp
            raise ChangeFailed(
                f"{part.source}: the record at offset {record.offset} cannot be copied: {error}"
            ) from error
        if self.attempts:
            self.attempts.pop(part.source, None)
        if converted.timestamp is None and record.timestamp == NO_TIMESTAMP:
            # Not the time of copying, which differs when it is read again.
            return converted._replace(timestamp=NO_TIMESTAMP)
        return converted

    def _checked_route(self, settings: Mapping[str, str]) -> TopicRoute:
        """The route of the chain. Raises ConfigException for a router that it does not include."""
        try:
            route = topic_route(settings)
            for stage in self._stages:
                is_router = isinstance(stage.transformation, RegexRouter | TimestampRouter)
                if is_router and (type(stage.transformation) is not RegexRouter or stage.alias not in route.aliases):
                    raise ConfigException(
                        f"transforms.{stage.alias}.type",
                        stage.class_name,
                        "a class of your own cannot name remote topics; use RegexRouter or replication.policy.class",
                    )
        except (ConfigException, ConnectError):
            self.close()
            raise
        return route

    def close(self) -> None:
        """Close all plugins."""
        for plugin in self._plugins():
            plugin.close()
        self._operator.close()

    def _plugins(self) -> list[Any]:
        stages = [(stage.transformation, stage.predicate) for stage in self._stages]
        plugins: list[Any] = [plugin for pair in stages for plugin in pair if plugin is not None]
        plugins += [self._converters.key, self._converters.value, self._converters.header]
        return list({id(plugin): plugin for plugin in plugins}.values())

    def _passes(self, record: Record) -> bool:
        """Whether the converters write a record that no transformation has changed as it was read."""
        return self._passes_bytes and (record.timestamp is None or record.timestamp >= NO_TIMESTAMP)

    def _failed(
        self,
        part: PartitionSpec,
        record: Record,
        given: SourceRecord,
        stage: ProcessingStage,
        class_name: str,
        error: Exception,
        what: str,
        *,
        may_pass: bool,
    ) -> str:
        """A step has failed: the reason for which the record is skipped, if that is tolerated."""
        reason = self._hide(
            f"{part.source}: {what} failed for the record at offset {record.offset}: {type(error).__name__}: {error}"
        )
        # An error may quote half a surrogate pair from JSON, which no ledger and no page can contain.
        reason = reason.encode("utf-8", "replace").decode()
        is_passing = isinstance(error, RetriableError)
        if is_passing and (self._tolerance.retry_timeout_ms != 0 or not may_pass):
            self._delay(part, record, reason, may_end=may_pass or not self._tolerance.tolerates_all)
        self.attempts.pop(part.source, None)
        context = ProcessingContext(given)
        try:
            self._operator.execute_failed(context, stage, class_name, error)
        except ConnectError as exceeded:
            raise ChangeFailed(f"{reason} (errors.tolerance is none)", _KEYS.get(stage, "transforms")) from exceeded
        return Passing(SKIPPED) if is_passing else SKIPPED

    def _delay(self, part: PartitionSpec, record: Record, reason: str, *, may_end: bool) -> None:
        """Raise ChangeDelayed while errors.retry.timeout has not passed since the first attempt, or without an end."""
        now, timeout_ms = time.monotonic(), self._tolerance.retry_timeout_ms
        known = self.attempts.get(part.source)
        if known is None or known.offset != record.offset:
            known = Attempts(record.offset, 0, now)
        until_s = float("inf") if timeout_ms < 0 or not may_end else known.since_s + timeout_ms / 1000
        if now >= until_s:
            return
        most_ms = self._tolerance.retry_delay_max_ms
        delay_ms: float = _LEAST_DELAY_MS << min(known.failed, 40)
        if delay_ms > most_ms:
            delay_ms = random.uniform(0, most_ms)
        self.attempts[part.source] = known._replace(failed=known.failed + 1)
        raise ChangeDelayed(reason, max(0.0, min(delay_ms / 1000, until_s - now)))


def _source_record(source: dict[str, Any], topic: str, part: PartitionSpec, record: Record) -> SourceRecord:
    key, value, given, timestamp, offset = record
    headers = NO_HEADERS
    if given:
        headers = Headers(
            [
                Header(name, content, OPTIONAL_BYTES_SCHEMA if content is None else BYTES_SCHEMA)
                for name, content in given
            ]
        )
    return SourceRecord(
        source,
        {"offset": offset},
        topic,
        part.partition,
        key,
        value,
        headers,
        timestamp,
        OPTIONAL_BYTES_SCHEMA,
        BYTES_SCHEMA,
    )


def _not_repeatable(users: list[Any]) -> str:
    """Why a record may have another result when it is read again; "": it has not."""
    names = [type(plugin).__qualname__ for plugin in users if vars(type(plugin)).get("deterministic") is not True]
    return "" if not names else f"{', '.join(dict.fromkeys(names))} is not declared deterministic"
