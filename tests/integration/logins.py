"""Checks of connections that have logged in."""

from __future__ import annotations

import time

from kafka.protocol.metadata import MetadataRequest

from mm2.kafka.client.connection import Connection


def usable(connection: Connection) -> None:
    """Assert that the connection accepts a request that needs authentication; closes it."""
    try:
        assert connection.request(MetadataRequest(topics=[])).cluster_id
    finally:
        connection.close()


def used_for(connection: Connection, seconds: float) -> None:
    """Send requests for so long, assert that the connection is still the same, and close it."""
    before = connection.fileno()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        connection.request(MetadataRequest(topics=[]))
        time.sleep(0.1)
    assert connection.fileno() == before
    usable(connection)
