"""The actions of the dashboard, executed as REST requests within the process, with the role of the page's client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import httpx
from starlette.types import ASGIApp

from mm2.config.mirrormaker import SourceAndTarget
from mm2.connect.errors import RequestError
from mm2.connect.rest.access.authorization import Access
from mm2.connect.rest.failures import RestFailure
from mm2.mirror.rest.flow_paths import encoded, flow_path

_TIMEOUT_S: Final = 100.0


@dataclass(frozen=True)
class Action:
    """An action. ``consequence`` is shown in the confirmation dialog; ``done`` is the predicate of the success message."""

    name: str
    method: str
    path: str
    consequence: str
    done: str
    is_destructive: bool = False


PAUSE: Final = Action(
    "Pause",
    "PUT",
    "pause",
    "Its tasks stay assigned and do nothing until it is resumed. Records that are not copied meanwhile stay at risk.",
    "is paused",
)
RESUME: Final = Action("Resume", "PUT", "resume", "Its tasks continue at their positions.", "is resumed")
RESTART: Final = Action(
    "Restart",
    "POST",
    "restart?includeTasks=true&onlyFailed=false",
    "The connector and all its tasks are restarted, which takes a few seconds.",
    "is being restarted",
)
STOP: Final = Action(
    "Stop",
    "PUT",
    "stop",
    "Its tasks are removed until it is resumed. Its configuration and its offsets are kept. Records that are not copied "
    "meanwhile stay at risk.",
    "is stopped",
    is_destructive=True,
)
RESTART_TASK: Final = Action("Restart", "POST", "restart", "The task is restarted.", "is being restarted")
ACTIONS: Final = (PAUSE, RESUME, RESTART, STOP)


@dataclass(frozen=True)
class Subject:
    """A connector of a flow, or one of its tasks."""

    flow: SourceAndTarget
    connector: str
    task: int | None = None

    def __str__(self) -> str:
        prefix = "" if self.task is None else f"task {self.task} of "
        return f"{prefix}{self.connector} of {self.flow}"

    @property
    def path(self) -> str:
        """The path of its REST resource."""
        tasks = "" if self.task is None else f"/tasks/{self.task}"
        return f"{flow_path(self.flow)}/connectors/{encoded(self.connector)}{tasks}"


PAUSE_TOPIC: Final = Action(
    "Pause",
    "PUT",
    "pause",
    "The topic is not read any more until it is resumed. Records that are not copied meanwhile stay at risk.",
    "is being paused",
)
RESUME_TOPIC: Final = Action("Resume", "PUT", "resume", "The topic continues at its positions.", "is being resumed")
LIMIT_TOPIC: Final = Action(
    "Limit",
    "PUT",
    "throttle",
    "Bytes per second for all partitions of the topic together, as in 500k or 20MB. The lag may grow.",
    "is being limited",
)
UNLIMIT_TOPIC: Final = Action(
    "Remove limit", "PUT", "throttle", "The limit of the file applies again.", "has the limit of the file again"
)


@dataclass(frozen=True)
class TopicSubject:
    """A source topic of a flow."""

    flow: SourceAndTarget
    topic: str

    def __str__(self) -> str:
        return f"topic {self.topic} of {self.flow}"

    @property
    def path(self) -> str:
        """The path of its REST resource."""
        return f"/overview/{encoded(self.flow.source)}/{encoded(self.flow.target)}/topics/{encoded(self.topic)}"


class Actions:
    """Sends the requests; ``rest`` is the REST application of the process."""

    def __init__(self, rest: ASGIApp) -> None:
        self._rest = rest

    async def do(
        self, action: Action, subject: Subject | TopicSubject, access: Access, body: Mapping[str, object] | None = None
    ) -> tuple[bool, str]:
        """Execute an action for a client; returns whether it succeeded, and a message."""
        name = str(subject)
        transport = httpx.ASGITransport(access.calling(self._rest))
        try:
            async with httpx.AsyncClient(
                transport=transport, base_url="http://localhost", timeout=_TIMEOUT_S
            ) as client:
                response = await client.request(action.method, f"{subject.path}/{action.path}", json=body)
        except (RestFailure, RequestError) as failure:
            return False, f"{action.name} {name}: {failure}"
        if response.is_success:
            return True, f"{name[0].upper()}{name[1:]} {action.done}."
        return False, f"{action.name} {name}: {_message(response)}"


def _message(response: httpx.Response) -> str:
    try:
        return str(response.json()["message"])
    except (ValueError, LookupError, TypeError):
        return f"HTTP {response.status_code} {response.reason_phrase}"
