"""Results of herder requests; ``to_json`` returns the JSON of the REST API.

FastAPI generates the OpenAPI document from these classes. The metadata of a field are arguments of `pydantic.Field`; they
describe where the JSON differs from the class. This module does not import pydantic: a herder without REST has no use for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from mm2.codec import stored
from mm2.connect.errors import BadRequest, MalformedBody
from mm2.connect.plugins.plugin import LISTED
from mm2.connect.stores.config_state import ConnectorTaskId

#: Version of a plugin that has none; never shown.
UNDEFINED_VERSION: Final = "undefined"


class ConnectorType(StrEnum):
    """Type of a connector class; UNKNOWN when the class cannot be loaded on this worker."""

    SOURCE = "source"
    SINK = "sink"
    UNKNOWN = "unknown"


class _AsObject:
    """Annotation of a task id: a tuple in Python, an object in JSON."""

    def __get_pydantic_json_schema__(self, _core_schema: Any, _handler: Any) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {"connector": {"type": "string"}, "task": {"type": "integer"}},
            "required": ["connector", "task"],
        }


TaskId = Annotated[ConnectorTaskId, _AsObject()]


@dataclass(frozen=True)
class ConnectorInfo:
    """A connector's configuration as stored: provider references are not resolved."""

    name: str
    config: Mapping[str, str | None] = field(repr=False)
    tasks: tuple[TaskId, ...]
    type: ConnectorType


@dataclass(frozen=True)
class Created:
    """Result of writing a connector's configuration."""

    #: False when the connector already existed.
    created: bool
    info: ConnectorInfo


@dataclass(frozen=True)
class TaskInfo:
    """A task's configuration as stored: provider references are not resolved."""

    id: TaskId
    config: Mapping[str, str | None] = field(repr=False)


@dataclass(frozen=True)
class WorkState:
    """State of a connector's instance or of one of its tasks."""

    state: str
    worker_id: str
    trace: str | None = None
    #: Version of the plugin; "undefined" when it has none, None when the reporting worker is older than 4.0.
    version: str | None = None

    def to_json(self) -> dict[str, Any]:
        """``{"state", "worker_id"[, "version"][, "trace"]}``; omits an empty trace and the version "undefined"."""
        shown: dict[str, Any] = {"state": self.state, "worker_id": self.worker_id}
        if self.version != UNDEFINED_VERSION:
            shown["version"] = self.version
        if self.trace:
            shown["trace"] = self.trace
        return shown


@dataclass(frozen=True)
class TaskStateInfo(WorkState):
    """State of a task."""

    id: int = field(kw_only=True)

    def to_json(self) -> dict[str, Any]:
        """``{"id", …}`` and the fields of :meth:`WorkState.to_json`."""
        return {"id": self.id, **super().to_json()}


@dataclass(frozen=True)
class ConnectorStateInfo:
    """States of a connector and its tasks, ordered by task number."""

    name: str
    connector: WorkState
    tasks: tuple[TaskStateInfo, ...]
    type: ConnectorType


@dataclass(frozen=True)
class ActiveTopicsInfo:
    """Topics that a connector's tasks have used (KIP-558)."""

    connector: str
    topics: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """``{"<connector>": {"topics": […]}}``."""
        return {self.connector: {"topics": list(self.topics)}}


@dataclass(frozen=True)
class ConnectorOffset:
    """The offset of one source partition; both maps are defined by the connector. An ``offset`` of None removes it."""

    partition: Mapping[str, Any] | None
    offset: Mapping[str, Any] | None


@dataclass(frozen=True)
class ConnectorOffsets:
    """Offsets of a connector (KIP-875)."""

    offsets: tuple[ConnectorOffset, ...]

    @classmethod
    def from_json(cls, body: Any) -> ConnectorOffsets:
        """Read the body of a PATCH.

        Raises MalformedBody when the body does not have this shape, BadRequest when it contains no offsets.
        """
        if not isinstance(body, Mapping):
            raise _not_of_type(body, f"{_ENTITIES}.ConnectorOffsets")
        if unknown := sorted(set(body) - {"offsets"}):
            raise MalformedBody(f'Unrecognized field "{unknown[0]}"; the only known one is "offsets"')
        entries = body.get("offsets")
        if entries is not None and not isinstance(entries, list):
            raise _not_of_type(entries, f"java.util.ArrayList<{_ENTITIES}.ConnectorOffset>", is_built=False)
        if not entries:
            raise BadRequest("Partitions / offsets need to be provided for an alter offsets request")
        return cls(tuple(_offset(entry) for entry in entries))


_ENTITIES: Final = "org.apache.kafka.connect.runtime.rest.entities"


def _offset(entry: Any) -> ConnectorOffset:
    if not isinstance(entry, Mapping):
        raise _not_of_type(entry, f"{_ENTITIES}.ConnectorOffset")
    if unknown := sorted(set(entry) - {"partition", "offset"}):
        raise MalformedBody(f'Unrecognized field "{unknown[0]}"; known are "partition" and "offset"')
    partition, offset = entry.get("partition"), entry.get("offset")
    for value in (partition, offset):
        if value is not None and not isinstance(value, Mapping):
            is_text = isinstance(value, str)
            name = "java.util.LinkedHashMap" + ("" if is_text else "<java.lang.String,java.lang.Object>")
            raise _not_of_type(value, name, is_built=is_text)
    return ConnectorOffset(partition, offset)


def _not_of_type(value: object, name: str, *, is_built: bool = True) -> MalformedBody:
    """Jackson's message, without the place. ``is_built``: Jackson looks for a constructor that takes the value."""
    match value:
        case None:
            return MalformedBody(f"Cannot read a value of type `{name}` from null")
        case list():
            kind, token = "Array value", "START_ARRAY"
        case Mapping():
            kind, token = "Object value", "START_OBJECT"
        case bool():
            kind, token = "Boolean value", f"VALUE_{str(value).upper()}"
        case str():
            kind, token = "String value", "VALUE_STRING"
        case int():
            kind, token = "Integer value", "VALUE_NUMBER_INT"
        case _:
            kind, token = "Floating-point value", "VALUE_NUMBER_FLOAT"
    if not is_built or isinstance(value, list | Mapping):
        return MalformedBody(f"Cannot deserialize value of type `{name}` from {kind} (token `JsonToken.{token}`)")
    kinds = {bool: ("boolean/Boolean", "boolean"), str: ("String", "String"), int: ("int/Int", "Number")}
    takes, given = kinds.get(type(value), ("double/Double", "Number"))
    shown = f"'{value}'" if isinstance(value, str) else str(value).lower()
    return MalformedBody(
        f"Cannot construct instance of `{name}` (although at least one Creator exists): no {takes}-argument "
        f"constructor/factory method to deserialize from {given} value ({shown})"
    )


@dataclass(frozen=True)
class Message:
    """An answer that is one sentence."""

    message: str


@dataclass(frozen=True)
class PluginInfo:
    """One plugin of the worker."""

    #: The class, by its Java name if it has one.
    name: str = field(metadata={"alias": "class"})
    type: str = field(metadata={"json_schema_extra": {"enum": [kind.value for kind in LISTED]}})
    version: str | None = None

    def to_json(self) -> dict[str, Any]:
        """``{"class", "type"[, "version"]}``; omits the version "undefined"."""
        shown: dict[str, Any] = {"class": self.name, "type": self.type}
        if self.version != UNDEFINED_VERSION:
            shown["version"] = self.version
        return shown


@dataclass(frozen=True)
class LoggerLevel:
    """Level of a logger and when it was last set by request; None: never (KIP-976)."""

    level: str
    #: Milliseconds since the epoch.
    last_modified: int | None


@dataclass(frozen=True)
class HealthInfo:
    """Result of a health check (KIP-1017); ``http_status`` is the matching HTTP status."""

    status: Literal["healthy", "starting", "unhealthy"]
    message: str
    http_status: int = field(metadata={"exclude": True, **stored(is_left_out=True)})  # "exclude" is for pydantic

    def without_details(self) -> HealthInfo:
        """Only the status, for clients without a role."""
        if self == self.blocked(self.message):
            return self.blocked("A flow cannot copy; the role metrics shows which one, and why.")
        known = {"healthy": self.healthy(), "starting": self.starting(""), "unhealthy": self.unhealthy("")}
        return known[self.status]

    @classmethod
    def healthy(cls) -> HealthInfo:
        """The herder responded."""
        return cls("healthy", "Worker has completed startup and is ready to handle requests.", 200)

    @classmethod
    def starting(cls, details: str) -> HealthInfo:
        """The herder has not responded because it has not started yet; ``details`` name the stage in progress."""
        return cls("starting", f"Worker is still starting up. {details}".rstrip(), 503)

    @classmethod
    def blocked(cls, details: str) -> HealthInfo:
        """The herder responds, but its tasks cannot do their work. The status is not 500: a restart would not help."""
        return cls("unhealthy", details, 503)

    @classmethod
    def unhealthy(cls, details: str) -> HealthInfo:
        """The herder has started but does not respond; ``details`` name the stage in progress."""
        sentence = "Worker was unable to handle this request and may be unable to handle other requests."
        return cls("unhealthy", f"{sentence} {details}".rstrip(), 500)
