"""Re-authentication of a live connection (KIP-368). The broker is simulated."""

from __future__ import annotations

import socket
import time

import pytest
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from mm2.kafka.client.connection import Connection
from mm2.kafka.client.stream import Stream
from mm2.kafka.errors import TimeoutFailure
from mm2.kafka.settings.client_settings import ClientSettings

PROPS = {
    "bootstrap.servers": "h:1",
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.jaas.config": 'PlainLoginModule required username="u" password="p";',
    "request.timeout.ms": "600000",
}


def test_a_broker_that_does_not_answer_blocks_the_caller_only_for_its_timeout() -> None:
    """An executor does it in its event loop, which has to renew the lease every few seconds."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    settings = ClientSettings.from_props(PROPS, client_id="c")
    connection = Connection(Stream(ours, "broker h:1"), "h", 1, settings, "broker h:1")
    connection._versions = {one.API_KEY: (0, 1) for one in (SaslHandshakeRequest, SaslAuthenticateRequest)}
    connection._reauthenticate_at = time.monotonic()
    began = time.monotonic()
    with theirs:
        with pytest.raises(TimeoutFailure, match="SaslHandshake"):
            connection.maybe_reauthenticate(timeout_s=0.05)
        assert theirs.recv(1), "it has been asked"
    assert time.monotonic() - began < 300
    assert connection.closed
