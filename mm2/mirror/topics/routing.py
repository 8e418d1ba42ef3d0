"""Remote topics that transformations name: what RegexRouter makes of the names that the replication policy gives.

Java's producer writes a record to the topic that the chain of MirrorSourceConnector names. Here each source partition has
one remote partition, in which its records have consecutive sequences (`mm2.copy.progress.session`). So a router is applied to
topics, not to records: its topic must follow from the name alone.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple, cast

from mm2.config.configdef import AbstractConfig, ConfigException
from mm2.config.definitions.values import split_list
from mm2.config.keys.connector_keys import SOURCE_CONNECTOR_CONFIG
from mm2.config.keys.mirror_keys import SOURCE_CONNECTOR
from mm2.connect.api import Predicate, Transformation
from mm2.connect.errors import DataError
from mm2.connect.plugins import Plugins
from mm2.connect.predicates import TopicNameMatches
from mm2.connect.runtime.transformation_chain import build_stages
from mm2.connect.transforms import RegexRouter, TimestampRouter

TRANSFORMS_KEY: Final = "transforms"
_PREDICATES_KEY: Final = "predicates"


class _RouterStep(NamedTuple):
    """A router with its predicate; ``negate``: it applies where the predicate is false."""

    router: RegexRouter
    predicate: TopicNameMatches | None
    negate: bool

    def of(self, topic: str) -> str:
        if self.predicate is not None and self.predicate.matches(topic) is self.negate:
            return topic
        return self.router.route(topic)


class TopicRoute:
    """What the routers of a chain make of a topic name. Other transformations are taken to keep it.

    ``aliases`` are those of the routers. False without any.
    """

    def __init__(self, aliases: Collection[str] = (), steps: Sequence[_RouterStep] = ()) -> None:
        self.aliases = frozenset(aliases)
        self._steps = tuple(steps)

    def __bool__(self) -> bool:
        return bool(self._steps)

    def of(self, topic: str) -> str:
        """The name of the topic to which the records of ``topic`` are written."""
        for step in self._steps:
            topic = step.of(topic)
        return topic


NO_ROUTE: Final = TopicRoute()


def router_aliases(props: Mapping[str, str]) -> list[str]:
    """The aliases of a connector's routers, in the order of its chain."""
    aliases = split_list(props.get(TRANSFORMS_KEY) or "")
    return [alias for alias in aliases if _router(props.get(_type_key(alias)) or "") is not None]


def topic_route(props: Mapping[str, str]) -> TopicRoute:
    """The route of a connector's chain.

    Raises ConfigException for a router whose topic depends on more than the topic's name, ConfigException or ConnectError
    for invalid settings.
    """
    aliases = router_aliases(props)
    if not aliases:
        return NO_ROUTE
    for alias in aliases:
        _check(props, alias)
    prefixes = tuple(f"{TRANSFORMS_KEY}.{alias}." for alias in aliases)
    chain = {key: value for key, value in props.items() if key.startswith((*prefixes, f"{_PREDICATES_KEY}."))}
    chain |= {TRANSFORMS_KEY: ",".join(aliases), _PREDICATES_KEY: props.get(_PREDICATES_KEY, "")}
    config = AbstractConfig(SOURCE_CONNECTOR_CONFIG, {"name": "router", "connector.class": SOURCE_CONNECTOR, **chain})
    steps = []
    for stage in build_stages(_shipped(), config, chain, None):
        router = cast("RegexRouter", stage.transformation)  # the classes were checked
        try:
            router.check_replacement()
        except DataError as error:
            key = f"{TRANSFORMS_KEY}.{stage.alias}.replacement"
            raise ConfigException(key, props.get(key), str(error)) from error
        steps.append(_RouterStep(router, cast("TopicNameMatches | None", stage.predicate), stage.negate))
    return TopicRoute(aliases, steps)


def _check(props: Mapping[str, str], alias: str) -> None:
    """Raise ConfigException for a router whose topic depends on the record."""
    class_name = props[_type_key(alias)]
    if _router(class_name) is not RegexRouter:
        raise ConfigException(
            _type_key(alias),
            class_name,
            "the remote topic would depend on the timestamp of each record; a flow has one remote topic for each topic, "
            "which RegexRouter or replication.policy.class may name",
        )
    predicate = props.get(f"{TRANSFORMS_KEY}.{alias}.predicate")
    if not predicate:
        return
    key = f"{_PREDICATES_KEY}.{predicate}.type"
    if _shipped_class(props.get(key) or "", Predicate) is not TopicNameMatches:
        raise ConfigException(
            key,
            props.get(key),
            f"the remote topic would depend on each record, because {class_name} has this predicate; only TopicNameMatches "
            "can be used",
        )


def _router(name: str) -> type[RegexRouter | TimestampRouter] | None:
    """The class of this name if it is a router that ships with Kafka."""
    found = _shipped_class(name, Transformation)
    return found if found in (RegexRouter, TimestampRouter) else None


def _shipped_class(name: str, kind: type) -> type | None:
    return _shipped().find(name, kind, key="") if _shipped().is_registered(name, kind) else None


@functools.cache
def _shipped() -> Plugins:
    return Plugins()


def _type_key(alias: str) -> str:
    return f"{TRANSFORMS_KEY}.{alias}.type"
