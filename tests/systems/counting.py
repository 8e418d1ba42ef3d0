"""Configurations of a source connector that counts and needs only a topic."""

from __future__ import annotations

from tests.integration.connect_toy import CONNECTOR

BYTES = "org.apache.kafka.connect.converters.ByteArrayConverter"


def counting(topic: str, tasks: int = 1, **more: str) -> dict[str, str]:
    """A body for ``POST /connectors`` and similar requests."""
    return {
        "connector.class": CONNECTOR,
        "topic": topic,
        "tasks.max": str(tasks),
        "key.converter": BYTES,
        "value.converter": BYTES,
        **more,
    }
