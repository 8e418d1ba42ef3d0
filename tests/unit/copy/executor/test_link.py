"""The executor's connection to the driver."""

from __future__ import annotations

import asyncio
import socket

import pytest

from mm2.copy.executor.link import DriverLink
from mm2.copy.spec import Assignment


def test_a_driver_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task reported "TimeoutError: " before."""
    monkeypatch.setattr("mm2.copy.executor.link._OPEN_TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        link = DriverLink(Assignment("batch", "127.0.0.1", port, "00" * 32, ""), 0, 1.0)
        with pytest.raises(TimeoutError, match=rf"no answer of the progress channel at 127\.0\.0\.1:{port} within"):
            asyncio.run(link.open())
