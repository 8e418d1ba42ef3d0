"""REST interface of a MirrorMaker process: that of a Connect worker for each flow, under ``/{source}/{target}/``.

Java serves only the requests between the processes, and only with ``dedicated.mode.enable.internal.rest`` (KIP-710).
Here the other resources are served as well, at 127.0.0.1 unless ``listeners`` is set. The requests between the
processes need ``dedicated.mode.enable.internal.rest`` here too, and have Java's paths.

A flow whose source has a reserved alias is served only under ``/flows/{source}/{target}/``; all other flows are served
there too.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from mm2.config.mirrormaker import MirrorMakerConfig, SourceAndTarget
from mm2.connect.herder.interface import Herder
from mm2.connect.rest import local_processes
from mm2.connect.rest.assembly import LocalAccess, check_access
from mm2.connect.rest.binding import Binding, warn_of_exposure
from mm2.connect.rest.settings import RestSettings
from mm2.mirror.rest.flow_paths import Apps, Failing, Progress

if TYPE_CHECKING:
    from mm2.connect.rest.listeners.server import RestServer
    from mm2.mirror.rest.flow_resources import FlowResources

log = structlog.get_logger("mm2.mirror.rest")

_LISTENERS: Final = "listeners"
#: Kafka Connect's port. If it is in use, this is an error: a client that knows the port would reach the process that uses it.
_DEFAULT: Final = "http://127.0.0.1:8083"


class FlowsRest:
    """The ports of the process, bound by the constructor; requests are answered after :meth:`serve`."""

    def __init__(
        self,
        config: MirrorMakerConfig,
        apps: Apps | None = None,
        file: Path | None = None,
        *,
        failing: Failing = lambda _: [],
        progress: Progress = lambda _: [],
    ) -> None:
        """Raises ConfigException, or ConnectError if a port cannot be bound. ``file`` is the properties file."""
        self._file = file
        self._apps = apps or {}
        self._failing = failing
        self._progress = progress
        props = config.rest_props()
        self.internal = config.internal_rest
        self.binding = Binding(RestSettings.of({_LISTENERS: _DEFAULT, **props}))
        self._settings = self.binding.settings
        check_access(self._settings.props)  # wrong settings are reported at the start
        self._local = LocalAccess()
        if self.internal and _LISTENERS not in props:
            log.warning(
                "Processes on other machines cannot reach this one: set listeners to an address of this machine.",
                listeners=self.binding.advertised_url,
            )
        self._lock = threading.Lock()
        self._stopped = False
        self._herders: dict[SourceAndTarget, Herder] = {}
        self._resources: FlowResources | None = None
        self._server: RestServer | None = None

    def serve(self, herders: Mapping[SourceAndTarget, Herder]) -> None:
        """Start to serve these flows in the background. The modules are loaded in parallel to the rest of the start."""
        self._local = LocalAccess.publish(self.binding)
        self.change(herders)
        threading.Thread(target=self._serve, name="rest-start", daemon=True).start()

    def change(self, herders: Mapping[SourceAndTarget, Herder]) -> None:
        """Serve these flows."""
        with self._lock:
            self._herders = dict(herders)
            if self._resources is not None:
                self._resources.change(self._herders)
        local_processes.write(self.binding.local_url, [str(pair) for pair in herders], self._file)

    def stop(self, graceful_s: float) -> None:
        """Accept no more requests, and wait this long for requests in progress. May be called twice."""
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
        # FastAPI and its dependencies take half a second to load; flows should not wait for them.
        from mm2.connect.rest.listeners.server import RestServer  # noqa: PLC0415
        from mm2.mirror.rest.flow_resources import FlowResources  # noqa: PLC0415

        try:
            resources = FlowResources(
                self._herders,
                self._settings,
                internal=self.internal,
                apps=self._apps,
                failing=self._failing,
                progress=self._progress,
                local=self._local,
            )
            with self._lock:
                if self._stopped:
                    return
                resources.change(self._herders)  # they may have changed since
                self._resources = resources
                self._server = RestServer(self.binding)
            self._server.serve(resources.main, resources.admin)
            warn_of_exposure(self.binding)
        except Exception:
            log.exception("The REST interface could not be started.")


def serves_rest(config: MirrorMakerConfig) -> bool:
    """Whether the process has a port: an empty ``listeners=`` means none."""
    return _LISTENERS not in config.originals or bool(config.originals[_LISTENERS].strip())
