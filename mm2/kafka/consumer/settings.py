"""Consumer settings, read from Java-style keys (org.apache.kafka.clients.consumer.ConsumerConfig 4.3.0)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from mm2.config.configdef import ConfigException
from mm2.kafka.consumer.assignors import BUILT_IN, Assignor
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.settings.typed_keys import TypedKeys, setting
from mm2.kafka.structs import EARLIEST, LATEST

_DURATION: Final = re.compile(
    r"by_duration:P(?:(?P<days>\d+)D)?(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?",
    re.IGNORECASE,
)
_DEFAULT_ASSIGNORS: Final = "RangeAssignor,CooperativeStickyAssignor"
_ISOLATION: Final = ("read_uncommitted", "read_committed")
_SHARE_KEYS: Final = ("share.acknowledgement.mode", "share.acquire.mode")
#: Keys that a consumer of this protocol may not have (ConsumerConfig.checkUnsupportedConfigsPostProcess).
_UNSUPPORTED: Final = {
    "classic": ("group.remote.assignor", *_SHARE_KEYS),
    "consumer": ("partition.assignment.strategy", "heartbeat.interval.ms", "session.timeout.ms", *_SHARE_KEYS),
}


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """Start offset without a committed offset, or when it is out of range (``auto.offset.reset``)."""

    #: `EARLIEST` or `LATEST`; None: by duration, or none at all.
    timestamp: int | None = None
    #: Start with records at most this many milliseconds old (KIP-1106).
    age_ms: int | None = None

    @property
    def is_none(self) -> bool:
        """Whether a missing offset is an error."""
        return self.timestamp is None and self.age_ms is None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the value of the key. Raises ConfigException."""
        named = {"earliest": cls(EARLIEST), "latest": cls(LATEST), "none": cls()}
        if text in named:
            return named[text]
        match = _DURATION.fullmatch(text)
        if match is None or not any(match.groups()):
            raise ConfigException(
                "auto.offset.reset", text, "must be earliest, latest, none or by_duration:<ISO 8601 duration>"
            )
        days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
        return cls(age_ms=int((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000))


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """Times in milliseconds, sizes in bytes; defaults as in Java, except those that Connect sets itself."""

    client: ClientSettings
    group_id: str
    assignors: tuple[type[Assignor], ...]
    offset_reset: OffsetReset
    #: Whether the coordinator assigns the partitions (``group.protocol=consumer``, KIP-848).
    server_assigned: bool = False
    #: The coordinator's assignor; None: the coordinator decides.
    remote_assignor: str | None = setting(TypedKeys.optional, "group.remote.assignor")
    group_instance_id: str | None = setting(TypedKeys.optional, "group.instance.id")
    session_timeout_ms: int = setting(TypedKeys.integer, "session.timeout.ms", 45_000, low=1)
    heartbeat_interval_ms: int = setting(TypedKeys.integer, "heartbeat.interval.ms", 3_000, low=1)
    max_poll_interval_ms: int = setting(TypedKeys.integer, "max.poll.interval.ms", 300_000, low=1)
    max_poll_records: int = setting(TypedKeys.integer, "max.poll.records", 500, low=1)
    fetch_min_bytes: int = setting(TypedKeys.integer, "fetch.min.bytes", 1, low=0)
    fetch_max_bytes: int = setting(TypedKeys.integer, "fetch.max.bytes", 52_428_800, low=0)
    fetch_max_wait_ms: int = setting(TypedKeys.integer, "fetch.max.wait.ms", 500, low=0)
    max_partition_fetch_bytes: int = setting(TypedKeys.integer, "max.partition.fetch.bytes", 1_048_576, low=0)
    default_api_timeout_ms: int = setting(TypedKeys.integer, "default.api.timeout.ms", 60_000, low=0)
    read_committed: bool = False
    check_crcs: bool = setting(TypedKeys.boolean, "check.crcs", True)
    allow_auto_create_topics: bool = setting(TypedKeys.boolean, "allow.auto.create.topics", True)
    exclude_internal_topics: bool = setting(TypedKeys.boolean, "exclude.internal.topics", True)

    @property
    def is_cooperative(self) -> bool:
        """Whether partitions are kept during a rebalance: only if every offered assignor supports it."""
        return all(assignor.is_cooperative for assignor in self.assignors)

    @classmethod
    def from_props(cls, props: Mapping[str, str]) -> Self:
        """Settings from unprefixed keys. Raises ConfigException naming the key and the value."""
        keys = TypedKeys(props)
        group_id = keys.text("group.id", "")
        if not group_id:
            raise ConfigException("group.id", props.get("group.id"), "a consumer that subscribes needs one")
        protocol = _protocol(props)
        isolation = keys.text("isolation.level", _ISOLATION[0]).lower()
        if isolation not in _ISOLATION:
            raise ConfigException("isolation.level", isolation, f"must be one of {', '.join(_ISOLATION)}")
        settings = cls(
            client=ClientSettings.from_props(props),
            group_id=group_id,
            server_assigned=protocol == "consumer",
            **keys.values_of(cls),
            assignors=_assignors(str(props.get("partition.assignment.strategy", "") or _DEFAULT_ASSIGNORS)),
            offset_reset=OffsetReset.parse(keys.text("auto.offset.reset", "latest").lower()),
            read_committed=isolation == _ISOLATION[1],
        )
        if settings.heartbeat_interval_ms >= settings.session_timeout_ms:
            raise ConfigException(
                "heartbeat.interval.ms",
                str(settings.heartbeat_interval_ms),
                f"must be less than session.timeout.ms, which is {settings.session_timeout_ms}",
            )
        return settings


def _protocol(props: Mapping[str, str]) -> str:
    given = str(props.get("group.protocol", "")).strip() or "classic"
    protocol = given.lower()
    if protocol not in _UNSUPPORTED:
        raise ConfigException("group.protocol", given, "String must be one of (case insensitive): CONSUMER, CLASSIC")
    refused = [key for key in _UNSUPPORTED[protocol] if str(props.get(key, "")).strip()]
    if refused:
        raise ConfigException(f"{', '.join(refused)} cannot be set when group.protocol={protocol.upper()}")
    return protocol


def _assignors(text: str) -> tuple[type[Assignor], ...]:
    found = []
    for name in (part.strip() for part in text.split(",")):
        simple = name.rpartition(".")[2]
        if simple not in BUILT_IN:
            raise ConfigException(
                "partition.assignment.strategy", name, f"must be one of {', '.join(BUILT_IN)} of Kafka's consumer"
            )
        found.append(BUILT_IN[simple])
    return tuple(dict.fromkeys(found))
