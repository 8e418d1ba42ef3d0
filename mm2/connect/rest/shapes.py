"""The JSON of requests and responses, for the OpenAPI page."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Error(BaseModel):
    """Every error."""

    error_code: int = Field(description="the HTTP status")
    message: str | None


class ServerInfo(BaseModel):
    """GET /."""

    version: str
    commit: str
    kafka_cluster_id: str


class Health(BaseModel):
    """GET /health."""

    status: Literal["healthy", "starting", "unhealthy"]
    message: str


class TaskId(BaseModel):
    """A task by its number."""

    connector: str
    task: int


class ConnectorInfo(BaseModel):
    """A connector and its configuration."""

    name: str
    config: dict[str, str | None]
    tasks: list[TaskId]
    type: Literal["source", "sink", "unknown"]


class CreateConnector(BaseModel):
    """POST /connectors."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1, pattern=r"^[A-Za-z0-9._-]+$")
    config: dict[str, str]
    initial_state: Literal["RUNNING", "PAUSED", "STOPPED"] | None = None


class WorkState(BaseModel):
    """State of a connector."""

    state: str
    worker_id: str
    version: str | None = None
    trace: str | None = None


class TaskState(WorkState):
    """State of a task."""

    id: int


class ConnectorStatus(BaseModel):
    """States of a connector and its tasks."""

    name: str
    connector: WorkState
    tasks: list[TaskState]
    type: Literal["source", "sink", "unknown"]


class TaskInfo(BaseModel):
    """A task and its configuration."""

    id: TaskId
    config: dict[str, str | None]


class Offset(BaseModel):
    """The offset of a partition; an offset of null removes it."""

    model_config = ConfigDict(extra="forbid")

    partition: dict[str, Any]
    offset: dict[str, Any] | None


class Offsets(BaseModel):
    """Offsets of a connector."""

    model_config = ConfigDict(extra="forbid")

    offsets: list[Offset] = Field(min_length=1)


class Message(BaseModel):
    """A message."""

    message: str


class PluginInfo(BaseModel):
    """One plugin."""

    model_config = ConfigDict(populate_by_name=True)

    class_: str = Field(alias="class")
    type: Literal["sink", "source", "transformation", "predicate", "converter", "header_converter"]
    version: str | None = None


class ConfigKeyInfo(BaseModel):
    """Definition of a key."""

    name: str
    type: str
    required: bool
    default_value: str | None
    importance: str
    documentation: str | None
    group: str | None
    order_in_group: int
    width: str
    display_name: str | None
    dependents: list[str]


class ConfigValueInfo(BaseModel):
    """Value of a key, and its errors."""

    name: str
    value: str | None
    recommended_values: list[str | None]
    errors: list[str]
    visible: bool


class ConfigInfo(BaseModel):
    """One key."""

    definition: ConfigKeyInfo | None
    value: ConfigValueInfo


class ConfigInfos(BaseModel):
    """Result of a validation."""

    name: str
    error_count: int
    groups: list[str]
    configs: list[ConfigInfo]


class LoggerLevel(BaseModel):
    """Level of a logger."""

    level: str
    last_modified: int | None


class SetLevel(BaseModel):
    """PUT /admin/loggers/{logger}."""

    level: Literal["OFF", "FATAL", "ERROR", "WARN", "INFO", "DEBUG", "TRACE", "ALL"]


Strings = dict[str, str]
NullableStrings = dict[str, str | None]
