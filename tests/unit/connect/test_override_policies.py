"""Judgements were observed on the policies of connect-runtime 4.3.0."""

from __future__ import annotations

import pytest

from mm2.connect.override_policies import (
    POLICY_KEY,
    ClientType,
    ConnectorClientConfigOverridePolicy,
    ConnectorClientConfigRequest,
)
from mm2.connect.plugins import Plugins

OVERRIDES = {
    "acks": "1",
    "linger.ms": 5,
    "sasl.jaas.config": "x",
    "sasl.mechanism": "PLAIN",
    "security.protocol": "SSL",
}


@pytest.mark.parametrize(
    ("policy", "allowed"),
    [
        ("All", set(OVERRIDES)),
        ("None", set()),
        ("Principal", {"sasl.jaas.config", "sasl.mechanism", "security.protocol"}),
        ("Allowlist", {"acks", "linger.ms"}),
        ("org.apache.kafka.connect.connector.policy.AllConnectorClientConfigOverridePolicy", set(OVERRIDES)),
    ],
)
def test_a_policy_allows_what_kafka_s_allows(policy: str, allowed: set[str]) -> None:
    made = Plugins().new(policy, ConnectorClientConfigOverridePolicy, key=POLICY_KEY)
    made.configure({"connector.client.config.override.allowlist": "acks, linger.ms"})
    request = ConnectorClientConfigRequest("c", "source", object, ClientType.PRODUCER, OVERRIDES)
    values = made.validate(request)
    assert {value.name: value.value for value in values} == OVERRIDES
    assert {value.name for value in values if not value.errors} == allowed
    for value in values:
        if value.name not in allowed:
            assert value.errors == [
                f"The '{policy}' policy does not allow '{value.name}' to be overridden in the connector configuration."
            ]


def test_the_request_does_not_show_secrets() -> None:
    request = ConnectorClientConfigRequest("c", "source", object, ClientType.PRODUCER, {"sasl.jaas.config": "s3cret"})
    assert "s3cret" not in repr(request)
