"""The classes that kafka-python creates for responses and caches by weak references."""

from __future__ import annotations

import gc
import threading
import time
from typing import Any

import pytest
from kafka.protocol.api_header import ResponseClassRegistry
from kafka.protocol.metadata import FindCoordinatorRequest, FindCoordinatorResponse

from mm2.kafka.client.connection import response_class_of


def test_threads_that_first_request_a_version_concurrently_share_one_class(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    register, naps_s = ResponseClassRegistry.register_response_class, [0.01, 0.1]

    def slowly(response_class: Any) -> None:
        register(response_class)
        time.sleep(naps_s.pop())  # the first one finishes last

    def ask() -> Any:
        request = FindCoordinatorRequest(version=2)
        request.with_header(correlation_id=1, client_id="c")
        return response_class_of(request)

    monkeypatch.setattr(FindCoordinatorResponse, "_VERSIONS", {})
    # Otherwise later tests of this process find the classes of this one, which end with it.
    known = dict(ResponseClassRegistry._response_class_registry)
    monkeypatch.setattr(ResponseClassRegistry, "_response_class_registry", known)
    monkeypatch.setattr(ResponseClassRegistry, "register_response_class", slowly)
    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert ask().__name__ == "FindCoordinatorResponse_v2"
