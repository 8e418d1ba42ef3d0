"""REST in a MirrorMaker process: the interface of a Connect worker for each flow, under ``/{source}/{target}/``.

Java serves but what the processes ask of each other, and that only with ``dedicated.mode.enable.internal.rest``
(spec mirrormaker §9.4). Here the rest is served as well, and at 127.0.0.1 unless ``listeners`` says otherwise; what the
processes ask of each other needs the switch here, too, and is where Java has it.

A flow whose source has one of the reserved aliases is served under ``/flows/{source}/{target}/``; so is every other one.
"""

from __future__ import annotations

import contextlib
import threading
import urllib.parse
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

import structlog

from mm2.config.mirrormaker import MirrorMakerConfig, SourceAndTarget
from mm2.config.rest_keys import EVERYTHING, STRANGERS_KEY
from mm2.connect.api import ConnectError
from mm2.connect.herder.interface import Herder
from mm2.connect.rest.binding import Binding, exposed
from mm2.connect.rest.settings import RestSettings
from mm2.mirror import local_processes

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from mm2.connect.rest.server import RestServer
    from mm2.mirror.flow_resources import FlowResources

log = structlog.get_logger(__name__)

RESERVED: Final = ("ui", "metrics", "overview", "health", "admin", "connectors", "flows")
"""First segments of paths that belong to the process."""

Apps: TypeAlias = Mapping[str, "Callable[[ASGIApp], ASGIApp]"]
"""What else the process serves, by one of RESERVED as the first segment of the path: makers of ASGI applications, which are
given the resources of the process as they are behind all that asks who comes, to ask them themselves. What they answer
to HTTP and WebSockets is behind the same door."""

_LISTENERS: Final = "listeners"
_HOST: Final = "127.0.0.1"
_FIRST_PORT: Final = 8083
_TRIES: Final = 1000


class FlowsRest:
    """The ports of the process, from the constructor on, and what is asked there, from :meth:`serve` on."""

    def __init__(self, config: MirrorMakerConfig, apps: Apps | None = None) -> None:
        """Raises ConfigException, ConnectError when a port cannot be had."""
        self._apps = apps or {}
        props = config.rest_props()
        self.internal = config.internal_rest
        self.binding = Binding(RestSettings.of(props)) if _LISTENERS in props else _bind_nearby(props)
        self._settings = self.binding.settings
        if self.internal and _LISTENERS not in props:
            log.warning(
                "Processes on other machines cannot reach this one: name an address of this machine in listeners.",
                listeners=self.binding.advertised_url,
            )
        self._lock = threading.Lock()
        self._stopped = False
        self._herders: dict[SourceAndTarget, Herder] = {}
        self._resources: FlowResources | None = None
        self._server: RestServer | None = None

    def serve(self, herders: Mapping[SourceAndTarget, Herder]) -> None:
        """Begin to answer for these flows, soon: what it takes is loaded beside everything else that starts."""
        self.change(herders)
        threading.Thread(target=self._serve, name="rest-start", daemon=True).start()

    def change(self, herders: Mapping[SourceAndTarget, Herder]) -> None:
        """Answer for these flows from now on."""
        with self._lock:
            self._herders = dict(herders)
            if self._resources is not None:
                self._resources.change(self._herders)
        local_processes.write(self.binding.advertised_url, [str(pair) for pair in herders])

    def stop(self, graceful_s: float) -> None:
        """Take no more requests; those under way may end for so long. May be called twice."""
        with self._lock:
            self._stopped = True
            server, resources = self._server, self._resources
        local_processes.remove()
        if server is not None:
            server.stop(graceful_s)
        if resources is not None:
            resources.requests.close()
        self.binding.close()

    def _serve(self) -> None:
        # FastAPI and what it needs take half a second to load, which no flow should wait for.
        from mm2.connect.rest.server import RestServer  # noqa: PLC0415
        from mm2.mirror.flow_resources import FlowResources  # noqa: PLC0415

        try:
            resources = FlowResources(self._herders, self._settings, internal=self.internal, apps=self._apps)
            with self._lock:
                if self._stopped:
                    return
                resources.change(self._herders)  # which may be others by now
                self._resources = resources
                self._server = RestServer(self.binding)
            self._server.serve(resources.main, resources.admin)
            self._warn(resources)
        except Exception:
            log.exception("The REST interface could not be started.")

    def _warn(self, resources: FlowResources) -> None:
        """Of what other machines can do at the ports of the process."""
        ports = [*self.binding.main, *self.binding.admin]
        if not resources.authenticates and (urls := exposed(ports)):
            if self._settings.props.get(STRANGERS_KEY, "").strip() == EVERYTHING:
                log.warning(
                    "Whoever reaches these addresses can read what is copied and change it: nobody has to log in, and %s is %s.",
                    STRANGERS_KEY,
                    EVERYTHING,
                    listeners=urls,
                )
            else:
                log.info(
                    "Other machines see /health and /metrics only, since nobody has to log in here.", listeners=urls
                )
        in_clear = [port.url for port in self.binding.main if port.context is None and not port.is_loopback]
        if resources.authenticates and in_clear:
            log.warning("Passwords come to these addresses unencrypted; https would hide them.", listeners=in_clear)


def serves_rest(config: MirrorMakerConfig) -> bool:
    """Whether the process has a port: ``listeners=`` with nothing behind it means none."""
    return _LISTENERS not in config.originals or bool(config.originals[_LISTENERS].strip())


def encoded(segment: str) -> str:
    """An alias as a segment of a path."""
    return urllib.parse.quote(segment, safe="")


def flow_path(pair: SourceAndTarget) -> str:
    """Where a flow is served: ``/{source}/{target}``, below ``/flows`` when that could be something else."""
    path = f"/{encoded(pair.source)}/{encoded(pair.target)}"
    return f"/flows{path}" if pair.source in RESERVED else path


def _bind_nearby(props: Mapping[str, str]) -> Binding:
    """At the first free port from 8083 on, which is where a tool looks first."""
    for port in range(_FIRST_PORT, _FIRST_PORT + _TRIES):
        with contextlib.suppress(ConnectError):
            return Binding(RestSettings.of({**props, _LISTENERS: f"http://{_HOST}:{port}"}))
    return Binding(RestSettings.of({**props, _LISTENERS: f"http://{_HOST}:0"}))
