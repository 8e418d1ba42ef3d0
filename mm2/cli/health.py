"""mm2-health: the health of a MirrorMaker process on this machine, for frequent checks by containers and supervisors.

A separate program that uses only the standard library: `mm2` takes longer to load than the request takes. It calls
``GET /health`` (`mm2.mirror.rest.flow_resources`). Exit codes: 0 healthy, 1 unhealthy or no response, as Docker and
Kubernetes expect.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any, Final

from mm2 import __version__

EXIT_WELL: Final = 0
EXIT_NOT_WELL: Final = 1
_MOST_BYTES: Final = 1024 * 1024
_URL: Final = "http://127.0.0.1:8083/health"
#: The status of /health if a flow's worker had started and no longer responds. All other error codes come from a live
#: process: 503 while a target is unreachable, 401 without valid credentials.
_HANGS: Final = 500


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="mm2-health",
        description="Checks the health of a MirrorMaker process on this machine.",
        epilog="Exit code: 0 healthy, 1 unhealthy or no response.",
    )
    made.add_argument("url", nargs="?", default=_URL, help="URL (default: %(default)s)")
    made.add_argument(
        "--alive",
        action="store_true",
        help="liveness only: a process whose flows are still starting because a cluster is unavailable is alive, "
        "and so is one that requires a password",
    )
    made.add_argument("--timeout", metavar="SECONDS", type=float, default=12.0, help="(default: %(default)s)")
    made.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one sentence; returns the exit code."""
    options = parser().parse_args(arguments)
    if not options.url.startswith(("http://", "https://")):
        parser().error(f"{options.url} is not an http address.")
    # No proxy: the request is for this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(options.url, timeout=options.timeout) as answer:
            return _say(EXIT_WELL, _body(answer.read(_MOST_BYTES)))
    except urllib.error.HTTPError as error:
        well = options.alive and error.code != _HANGS
        return _say(
            EXIT_WELL if well else EXIT_NOT_WELL, _body(error.read(_MOST_BYTES)) or {"message": f"HTTP {error.code}."}
        )
    except (OSError, ValueError, http.client.HTTPException) as error:
        return _say(EXIT_NOT_WELL, {"message": f"No response from {options.url}: {getattr(error, 'reason', error)}."})


def _body(data: bytes) -> dict[str, Any]:
    try:
        body = json.loads(data)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _say(code: int, body: dict[str, Any]) -> int:
    flows = body.get("flows")
    unwell = {
        name: state.get("message")
        for name, state in (flows.items() if isinstance(flows, dict) else ())
        if isinstance(state, dict) and state.get("status") != "healthy"
    }
    for sentence in [f"{name}: {text}" for name, text in unwell.items()] or [body.get("message") or "Well."]:
        sys.stdout.write(f"{sentence}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
