"""Versions of Kafka: the newest patch release of each line, what each of them has, and a broker of any of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mm2.sandbox.jars import JarSet
from mm2.sandbox.kafka import LocalKafka
from tests.support.java import kraft_broker, old_broker
from tests.support.old_kafka import OldKafka, log4j_options, write_log4j

_LAST_MS: Final = str((1 << 63) - 1)


@dataclass(frozen=True, order=True)
class KafkaVersion:
    """A release of Kafka. Compare it with other releases to find out what it has."""

    number: tuple[int, ...]

    @classmethod
    def of(cls, text: str) -> KafkaVersion:
        return cls(tuple(map(int, text.split("."))))

    def __str__(self) -> str:
        return ".".join(map(str, self.number))

    def since(self, *line: int) -> bool:
        """Whether it is of this line (for example 3, 3) or a newer one."""
        return self.number[: len(line)] >= line

    @property
    def has_zookeeper(self) -> bool:
        """Whether its tests run it with ZooKeeper. KRaft has been ready for production since 3.3 (KIP-833)."""
        return not self.since(3, 3)

    @property
    def jar_set(self) -> JarSet:
        """The jars of its broker."""
        return old_broker(str(self)) if self.has_zookeeper else kraft_broker(str(self))

    @property
    def authorizer(self) -> str:
        """The class that stores ACLs in ZooKeeper (from 2.4 on another one, KIP-504) or in the metadata log (KIP-801)."""
        if not self.has_zookeeper:
            return "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
        return (
            "kafka.security.authorizer.AclAuthorizer" if self.since(2, 4) else "kafka.security.auth.SimpleAclAuthorizer"
        )

    @property
    def limits_future_timestamps(self) -> bool:
        """Whether records more than an hour ahead are rejected by default (KIP-1030)."""
        return self.since(4, 0)


#: As source: all. As target: 2.8 and newer.
VERSIONS: Final = tuple(
    map(
        KafkaVersion.of,
        ("2.1.1", "2.4.1", "2.8.2", "3.3.2", "3.9.2", "4.0.2", "4.1.2", "4.2.2", "4.3.1", "4.4.0"),
    )
)


class ReleasedKafka(LocalKafka):
    """One broker in KRaft mode of Kafka 3.3 or newer, otherwise as `LocalKafka`."""

    def __init__(
        self, version: KafkaVersion, name: str, data_dir: Path, *, overrides: Mapping[str, str], heap: str
    ) -> None:
        # With an argument its data is formatted by its own tool: since 4.4 that writes other files.
        super().__init__(name, data_dir, overrides=overrides, heap=heap, format_args=["--ignore-formatted"])
        self.version = version

    @property
    def jar_set(self) -> JarSet:
        return self.version.jar_set

    def _system_properties(self) -> list[str]:
        return super()._system_properties() if self.version.since(4, 0) else log4j_options(self.folder)

    def _prepare(self, jars: Path) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        write_log4j(self.folder)
        super()._prepare(jars)


def broker_of(
    version: KafkaVersion, name: str, data_dir: Path, *, overrides: Mapping[str, str] | None = None, heap: str = "256m"
) -> LocalKafka:
    """A broker that has not been started, with an authorizer that allows everything to clients that have no ACL.

    It accepts records of any time: since 4.0 they have to be at most an hour ahead by default (KIP-1030).
    """
    settings = {
        "authorizer.class.name": version.authorizer,
        "allow.everyone.if.no.acl.found": "true",
        "super.users": "User:ANONYMOUS",
        "log.cleaner.backoff.ms": "200",
        "broker.session.timeout.ms": "18000",  # no broker is killed here, and the machine may be busy
        **({"log.message.timestamp.after.max.ms": _LAST_MS} if version.limits_future_timestamps else {}),
        **(overrides or {}),
    }
    if version.has_zookeeper:
        return OldKafka(str(version), name, data_dir, overrides=settings, heap=heap)
    return ReleasedKafka(version, name, data_dir, overrides=settings, heap=heap)
