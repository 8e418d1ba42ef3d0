"""REST keys that Kafka does not have, and the REST keys of MirrorMaker's file at the top level."""

from __future__ import annotations

from typing import Final

from mm2.config.configdef import ConfigDef, ConfigException, Importance, Type, at_least, one_of
from mm2.config.validators import Check
from mm2.config.worker_keys import REST_CONFIG

LOGIN_CONFIG_KEY: Final = "java.security.auth.login.config"

REST_LIMITS_CONFIG: Final = (
    ConfigDef()
    .define(
        "rest.request.timeout.ms",
        Type.INT,
        90_000,
        at_least(1),
        Importance.LOW,
        "How long a REST request may wait for the herder. (Java: always 90 s.)",
    )
    .define(
        "rest.health.timeout.ms",
        Type.INT,
        10_000,
        at_least(1),
        Importance.LOW,
        "How long GET /health waits for the herder. (Java: always 10 s.)",
    )
    .define(
        "rest.request.max.bytes",
        Type.INT,
        16 * 1024 * 1024,
        at_least(1),
        Importance.LOW,
        "Largest body of a REST request; larger ones are answered with 413.",
    )
    .define(
        "rest.idle.timeout.ms",
        Type.INT,
        30_000,
        at_least(1),
        Importance.LOW,
        "A caller who sends or takes nothing for this long in the middle of a request is cut off.",
    )
    .define(
        LOGIN_CONFIG_KEY,
        Type.STRING,
        None,
        None,
        Importance.LOW,
        "Java's login configuration for BasicAuthSecurityRestExtension; the environment's KAFKA_OPTS may name it, too.",
    )
)
"""Keys that in Java are constants, unlimited, or JVM properties."""


def _listeners_or_none() -> Check:
    def ensure(name: str, value: object) -> None:
        if not isinstance(value, list) or not all(str(item).strip() for item in value):
            raise ConfigException(f"Empty URL found when parsing {name} list.")

    return Check(ensure, "List of comma-separated URLs; empty = no port at all.")


CARDINALITY_KEY: Final = "metrics.cardinality"
STRANGERS_KEY: Final = "rest.unauthenticated.access"
EVERYTHING: Final = "all"

MIRROR_REST_CONFIG: Final = (
    ConfigDef(REST_CONFIG, REST_LIMITS_CONFIG)
    .redefine("listeners", validator=_listeners_or_none())
    .define(
        STRANGERS_KEY,
        Type.STRING,
        "metrics",
        one_of("metrics", EVERYTHING),
        Importance.LOW,
        "What callers from other machines may see and do where nobody has to log in: /health and /metrics, or all.",
    )
    .define(
        CARDINALITY_KEY,
        Type.STRING,
        "full",
        one_of("full", "topic", "flow"),
        Importance.LOW,
        "How much GET /metrics tells of single partitions, and of groups in them: everything, sums by topic, or sums by flow. "
        "Partitions in trouble are told by name with each of them. With thousands of partitions topic is the better choice: "
        "with full each of them has some twenty-five series.",
    )
)
"""REST keys of a MirrorMaker process. The list of listeners may be empty."""
