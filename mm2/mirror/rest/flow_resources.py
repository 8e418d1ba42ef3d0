"""The REST resources of a MirrorMaker process: those of its flows, and a few of the process."""

from __future__ import annotations

import asyncio
import functools
import re
import urllib.parse
from collections.abc import Mapping
from typing import Any, Final, cast

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from mm2.codec import encode
from mm2.config.mirrormaker import SourceAndTarget
from mm2.connect.herder.answers import HealthInfo
from mm2.connect.herder.interface import Herder
from mm2.connect.herder.loggers import Loggers
from mm2.connect.plugins import Plugins
from mm2.connect.request_signing import SessionKey
from mm2.connect.rest.access.authorization import Access
from mm2.connect.rest.access.roles import Role
from mm2.connect.rest.app import admin_resources, application, herder_routers
from mm2.connect.rest.assembly import LocalAccess, access_control
from mm2.connect.rest.extensions import (
    Configurable,
    ConnectClusterState,
    ConnectRestExtensionContext,
    load_extensions,
)
from mm2.connect.rest.failures import JsonAnswer, RestFailure
from mm2.connect.rest.forwarding import Requests, RestClient
from mm2.connect.rest.paths import path_of
from mm2.connect.rest.resources.dispatch import Dispatch, needs
from mm2.connect.rest.resources.openapi import refusals
from mm2.connect.rest.resources.worker_resources import HealthRules, internal_router, loggers_router, server_info
from mm2.connect.rest.settings import RestSettings
from mm2.mirror.rest.flow_paths import RESERVED, Apps, Failing, Progress, flow_path
from mm2.mirror.rest.redaction import RedactedHerder

_FLOWS: Final = "flows"
_INTERNAL: Final = re.compile(r"/connectors/[^/]+/(tasks|fence)")


class FlowResources:
    """The applications behind the listeners of the process."""

    def __init__(
        self,
        herders: Mapping[SourceAndTarget, Herder],
        settings: RestSettings,
        *,
        internal: bool,
        apps: Apps | None = None,
        failing: Failing = lambda _: [],
        progress: Progress = lambda _: [],
        local: LocalAccess | None = None,
    ) -> None:
        """``failing``: why a flow cannot copy although its workers respond; ``progress`` of its tasks here.

        Raises ConnectError or ConfigException for an extension that cannot be created.
        """
        self._herders: dict[SourceAndTarget, Herder] = {}
        self._settings = settings
        self._internal = internal
        self._failing = failing
        self._progress = progress
        timeout_s = settings.limits.request_timeout_s
        self.requests = Requests(RestClient(settings.props, timeout_s), timeout_s)
        first = cast(Herder, _First(self))
        # Log levels belong to the process, whichever flow's interface sets them.
        loggers = [loggers_router(first, self.requests)]
        self._admin_apart = settings.admin_listeners is not None
        own = application([self._own_router(), *([] if self._admin_apart else loggers)])
        self._apps = _ByPath(Dispatch(own))
        self._apps.more.update({segment: make(self._apps) for segment, make in (apps or {}).items()})
        self.change(herders)
        configurable = Configurable()
        extensions = load_extensions(settings.extension_classes, Plugins(), settings.props)
        for extension in extensions:
            extension.register(ConnectRestExtensionContext(configurable, ConnectClusterState(first, timeout_s)))
        configurable.add_routers(own)
        control = access_control(settings, extensions, local or LocalAccess(), self._session_key)
        self.main: ASGIApp = control.around(configurable.around(self._apps))
        self.admin = control.around(admin_resources(loggers, configurable)) if settings.admin_listeners else None

    @property
    def herders(self) -> Mapping[SourceAndTarget, Herder]:
        """The herders of the served flows; never changed, only replaced."""
        return self._herders

    def change(self, herders: Mapping[SourceAndTarget, Herder]) -> None:
        """Serve these flows; a removed flow returns 404. Not thread-safe."""
        before, self._herders = self._herders, dict(herders)
        for pair in before.keys() - herders.keys():
            self._apps.flows.pop(pair)
            self._apps.internal.pop(pair, None)
        for pair, herder in herders.items():
            if before.get(pair) is not herder:
                shown = cast(Herder, RedactedHerder(herder))
                health = HealthRules(
                    self._settings.limits.health_timeout_s,
                    Role.METRICS,  # without credentials, /health is enough, and which flows exist is not shown
                    functools.partial(self._with_lanes, pair),
                )
                routers = herder_routers(shown, self.requests, health, internal=self._internal)
                routers.append(self._progress_router(pair))
                if not self._admin_apart:
                    routers.append(loggers_router(herder, self.requests))
                self._apps.flows[pair] = Dispatch(application(routers, prefix=flow_path(pair)))
                if self._internal:
                    self._apps.internal[pair] = Dispatch(application([internal_router(herder, self.requests)]))

    def _progress_router(self, pair: SourceAndTarget) -> APIRouter:
        router = APIRouter(tags=["process"])

        @router.get("/progress", responses=refusals())
        @needs(Role.VIEWER)
        async def progress() -> Response:
            """The newest micro-batch with records of each task of the flow in this process, as Spark's StreamingQueryProgress."""
            return JsonAnswer(self._progress(pair))

        return router

    def _own_router(self) -> APIRouter:
        router = APIRouter(tags=["process"])

        @router.get("/", responses=refusals())
        @needs(Role.VIEWER)
        async def info() -> Response:
            """Version of the process, and its flows."""
            return JsonAnswer({**server_info(""), "flows": self._flows()})

        @router.get("/flows", responses=refusals())
        @needs(Role.VIEWER)
        async def flows() -> Response:
            """The flows and where their REST interfaces are."""
            return JsonAnswer(self._flows())

        @router.get("/connectors", responses=refusals(404))
        @needs(Role.VIEWER)
        async def connectors() -> Response:
            """Always 404, with the paths of the flows' connectors."""
            raise self._connectors_elsewhere()

        @router.get(
            "/health",
            response_model=HealthInfo,
            responses=refusals()
            | {
                503: {"model": HealthInfo, "description": "A flow is starting, or cannot copy."},
                500: {"model": HealthInfo, "description": "The herder of a flow does not answer."},
            },
        )
        @needs(Role.NONE)
        async def health(request: Request) -> Response:
            """Health of all flows; the status of the process is the worst one."""
            timeout_s = self._settings.limits.health_timeout_s
            herders = self._herders
            responses = await asyncio.gather(*(self.requests.health(herder, timeout_s) for herder in herders.values()))
            answers = [self._with_lanes(pair, found) for pair, found in zip(herders, responses, strict=True)]
            worst = max(answers, key=_badness)
            if Access.of(request.scope).role < Role.METRICS:
                return JsonAnswer(worst.without_details(), worst.http_status)
            each = {str(pair): answer for pair, answer in zip(herders, answers, strict=True)}
            return JsonAnswer({**encode(worst), "flows": each}, worst.http_status)

        return router

    def _connectors_elsewhere(self) -> RestFailure:
        paths = ", ".join(f"{flow_path(pair)}/connectors" for pair in self._herders) or "none; no flow runs"
        return RestFailure(404, f"Each flow has connectors of its own: {paths}")

    def _with_lanes(self, pair: SourceAndTarget, health: HealthInfo) -> HealthInfo:
        """The health of a flow whose herder has responded so."""
        failing = self._failing(pair) if health.http_status == 200 else []
        return HealthInfo.blocked("; ".join(failing)) if failing else health

    def _session_key(self, path: str) -> SessionKey | None:
        """The key of the flow whose interface has this path."""
        segments = path.split("/")[1:]
        pair, _ = _split(segments[1:] if segments[0] == _FLOWS else segments)
        herder = None if pair is None else self._herders.get(pair)
        return None if herder is None else herder.session_key

    def _flows(self) -> list[dict[str, Any]]:
        return [
            {
                "source": pair.source,
                "target": pair.target,
                "path": flow_path(pair),
                "kafka_cluster_id": herder.kafka_cluster_id,
            }
            for pair, herder in self._herders.items()
        ]


class _First:
    """The herder of the first flow, for operations that are the same for all flows.

    Without a flow, the levels of loggers remain; anything else raises RestFailure.
    """

    def __init__(self, resources: FlowResources) -> None:
        self._resources = resources
        self._loggers = Loggers()

    def __getattr__(self, name: str) -> Any:
        for herder in self._resources.herders.values():
            return getattr(herder, name)
        own = {
            "all_loggers": self._loggers.all_levels,
            "logger_level": self._loggers.level,
            "set_worker_logger_level": self._loggers.set_level,
        }
        if name not in own:
            raise RestFailure(503, "No flow runs in this process.")
        return own[name]


class _ByPath:
    """ASGI application that dispatches on the first segments of a path. Raises RestFailure."""

    def __init__(self, own: ASGIApp) -> None:
        self.flows: dict[SourceAndTarget, ASGIApp] = {}
        #: Requests between processes, at Java's path whatever the alias.
        self.internal: dict[SourceAndTarget, ASGIApp] = {}
        #: Applications by first segment; they receive the request unchanged.
        self.more: dict[str, ASGIApp] = {}
        self._own = own

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = path_of(scope)
        segments = path.split("/")[1:]
        pair, rest = _split(segments)
        if segments[0] in RESERVED and pair in self.internal and _INTERNAL.fullmatch(rest):
            app = self.internal[pair]
        elif (more := self.more.get(segments[0])) is not None:
            await more(scope, receive, send)
            return
        else:
            app, rest = self._target(path, scope)
        await app({**scope, "path": rest, "path_is_raw": True}, receive, send)

    def _target(self, path: str, scope: Scope) -> tuple[ASGIApp, str]:
        segments = path.split("/")[1:]
        below = segments[0] == _FLOWS and len(segments) > 2
        pair, rest = _split(segments[1:] if below else segments)
        if below or segments[0] not in RESERVED:
            app = None if pair is None else self.flows.get(pair)
            if app is None and (below or pair is not None):
                Access.of(scope).require(Role.METRICS, scope)  # no other client learns which flows exist
                raise RestFailure.plain(404)
            return (self._own, path) if app is None else (app, rest)
        return self._own, path


def _split(segments: list[str]) -> tuple[SourceAndTarget | None, str]:
    if len(segments) < 2 or not all(segments[:2]):
        return None, "/"
    source, target = map(urllib.parse.unquote, segments[:2])
    return SourceAndTarget(source, target), "/" + "/".join(segments[2:])


def _badness(health: HealthInfo) -> int:
    return {200: 0, 503: 1}.get(health.http_status, 2)
