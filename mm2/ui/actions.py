"""The actions of the dashboard, executed as REST requests within the process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import httpx
import structlog
from starlette.types import ASGIApp

from mm2.config.mirrormaker import SourceAndTarget
from mm2.connect.errors import RequestError
from mm2.connect.rest.failures import RestFailure
from mm2.mirror.rest import encoded, flow_path

log = structlog.get_logger(__name__)

_TIMEOUT_S: Final = 100.0


@dataclass(frozen=True)
class Verb:
    """An action. ``consequence`` is shown before it, ``done`` after it; ``done`` continues "… of A->B"."""

    name: str
    method: str
    path: str
    consequence: str
    done: str
    is_grave: bool = False


PAUSE: Final = Verb(
    "Pause",
    "PUT",
    "pause",
    "Its tasks stay where they are and do nothing until it is resumed. What is not copied meanwhile stays at risk.",
    "is paused",
)
RESUME: Final = Verb("Resume", "PUT", "resume", "Its tasks go on where they were.", "goes on")
RESTART: Final = Verb(
    "Restart",
    "POST",
    "restart?includeTasks=true&onlyFailed=false",
    "It and all its tasks stop and start again, which takes a few seconds.",
    "is being restarted",
)
STOP: Final = Verb(
    "Stop",
    "PUT",
    "stop",
    "Its tasks are taken away until it is resumed. Its configuration and its offsets stay. What is not copied meanwhile stays "
    "at risk.",
    "is stopped",
    is_grave=True,
)
RESTART_TASK: Final = Verb("Restart", "POST", "restart", "It stops and starts again.", "is being restarted")
VERBS: Final = (PAUSE, RESUME, RESTART, STOP)


@dataclass(frozen=True)
class Subject:
    """A connector of a flow, or one of its tasks."""

    flow: SourceAndTarget
    connector: str
    task: int | None = None

    def __str__(self) -> str:
        of_task = "" if self.task is None else f"task {self.task} of "
        return f"{of_task}{self.connector} of {self.flow}"

    @property
    def path(self) -> str:
        """The path of its REST resource."""
        tasks = "" if self.task is None else f"/tasks/{self.task}"
        return f"{flow_path(self.flow)}/connectors/{encoded(self.connector)}{tasks}"


class Actions:
    """Sends the requests; ``rest`` is the REST application of the process."""

    def __init__(self, rest: ASGIApp) -> None:
        self._client = httpx.AsyncClient(
            transport=httpx.ASGITransport(rest), base_url="http://localhost", timeout=_TIMEOUT_S, trust_env=False
        )

    async def do(self, verb: Verb, subject: Subject, viewer: str) -> tuple[bool, str]:
        """Execute an action; returns whether it succeeded, and a message.

        ``viewer`` is the client's address, for the log.
        """
        log.info("Asked for on the dashboard.", action=verb.name.lower(), subject=str(subject), viewer=viewer)
        name = str(subject)
        try:
            answer = await self._client.request(verb.method, f"{subject.path}/{verb.path}")
        except (RestFailure, RequestError) as failure:
            return False, f"{verb.name} {name}: {failure}"
        if answer.is_success:
            return True, f"{name[0].upper()}{name[1:]} {verb.done}."
        return False, f"{verb.name} {name}: {_message(answer)}"


def _message(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["message"])
    except (ValueError, LookupError, TypeError):
        return f"HTTP {answer.status_code} {answer.reason_phrase}"
