"""Thirty chains of transformations, predicates and converters, and random records for them.

Copied records are bytes, so transformations of fields need HoistField before them, and a converter that can write a struct.
A null value fails there, because its schema is not optional: with errors.tolerance=all such records are skipped.
"""

from __future__ import annotations

import random
import string
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from mm2.kafka.records.record import Record
from mm2.sandbox.kafka import LocalKafka
from tests.integration.copy_flow import producer_of

_T: Final = "org.apache.kafka.connect.transforms"
_JSON: Final = "org.apache.kafka.connect.json.JsonConverter"
_STRING: Final = "org.apache.kafka.connect.storage.StringConverter"
_SIMPLE: Final = "org.apache.kafka.connect.storage.SimpleHeaderConverter"
TOMBSTONE: Final = ("RecordIsTombstone",)
VALUES_AS_JSON: Final = {"value.converter": _JSON, "value.converter.schemas.enable": "false"}
KEYS_AS_JSON: Final = {"key.converter": _JSON}

Step = tuple[str, Mapping[str, str]]


def has(name: str) -> tuple[str, str, str]:
    return "HasHeaderKey", "name", name


def matches(pattern: str) -> tuple[str, str, str]:
    return "TopicNameMatches", "pattern", pattern


def chain(*steps: Step, given: Mapping[str, str] | None = None) -> dict[str, str]:
    """The settings of a chain; a step's key ``if`` or ``unless`` names a predicate."""
    props = dict(given or {})
    predicates: list[str] = []
    for index, (kind, settings) in enumerate(steps):
        props[f"transforms.t{index}.type"] = f"{_T}.{kind}"
        for key, value in settings.items():
            props[f"transforms.t{index}.{key}"] = value
    props["transforms"] = ",".join(f"t{index}" for index in range(len(steps)))
    for key in [key for key in props if key.endswith((".if", ".unless"))]:
        prefix, _, how = key.rpartition(".")
        kind, *setting = props.pop(key).split("|")
        alias = f"p{len(predicates)}"
        predicates.append(alias)
        props[f"predicates.{alias}.type"] = f"{_T}.predicates.{kind}"
        if setting:
            props[f"predicates.{alias}.{setting[0]}"] = setting[1]
        props[f"{prefix}.predicate"] = alias
        if how == "unless":
            props[f"{prefix}.negate"] = "true"
    if predicates:
        props["predicates"] = ",".join(predicates)
    return props


def when(predicate: Sequence[str]) -> dict[str, str]:
    return {"if": "|".join(predicate)}


def unless(predicate: Sequence[str]) -> dict[str, str]:
    return {"unless": "|".join(predicate)}


HOIST: Final[Step] = ("HoistField$Value", {"field": "data"})
HOIST_KEY: Final[Step] = ("HoistField$Key", {"field": "id"})
BACK: Final[Step] = ("ExtractField$Value", {"field": "data"})
DROP_ALL_HEADERS: Final[Step] = ("DropHeaders", {"headers": "a,b,c"})
ORIGIN: Final[Step] = (
    "InsertField$Value",
    {
        "topic.field": "topic",
        "partition.field": "part",
        "timestamp.field": "at",
        "static.field": "by",
        "static.value": "x",
    },
)
STAMP: Final[Step] = ("InsertHeader", {"header": "origin", "value.literal": "east"})

CHAINS: Final[tuple[dict[str, str], ...]] = (
    chain(("Filter", when(TOMBSTONE))),
    chain(HOIST, ORIGIN, given=VALUES_AS_JSON),
    chain(STAMP, given={"header.converter": _SIMPLE}),
    chain(("Filter", when(has("a"))), DROP_ALL_HEADERS),
    chain(("ValueToKey", {"fields": "x", **when(has("b"))})),
    chain(
        HOIST,
        ("InsertField$Value", {"timestamp.field": "at"}),
        ("TimestampConverter$Value", {"field": "at", "target.type": "string", "format": "yyyy-MM-dd HH:mm:ss.SSS"}),
        given=VALUES_AS_JSON,
    ),
    chain(("Filter", unless(TOMBSTONE))),
    chain(("Filter", unless(has("a")))),
    chain(("Filter", when(matches(".*changed.*")))),
    chain(("Filter", unless(matches(".*changed.*")))),
    chain(DROP_ALL_HEADERS),
    chain(("DropHeaders", {"headers": "b", **unless(TOMBSTONE)})),
    chain(DROP_ALL_HEADERS, STAMP, given={"header.converter": _STRING}),
    chain(
        ("InsertHeader", {"header": "n", "value.literal": "42", **when(has("c"))}), given={"header.converter": _SIMPLE}
    ),
    chain(HOIST, given={"value.converter": _JSON}),
    chain(HOIST_KEY, given=KEYS_AS_JSON),
    chain(HOIST, BACK),
    chain(HOIST, ORIGIN, BACK, ("Filter", when(has("b")))),
    chain(
        HOIST,
        ("SetSchemaMetadata$Value", {"schema.name": "n", "schema.version": "3"}),
        given={"value.converter": _JSON},
    ),
    chain(("Cast$Key", {"spec": "string"}), given={"key.converter": _STRING}),
    chain(("Cast$Value", {"spec": "string"}), given={"value.converter": _STRING}),
    chain(("Cast$Value", {"spec": "int32"}), given={"value.converter": _STRING}),
    chain(HOIST, ("ReplaceField$Value", {"renames": "data:payload"}), given=VALUES_AS_JSON),
    chain(HOIST, ORIGIN, ("ReplaceField$Value", {"exclude": "data,by"}), given=VALUES_AS_JSON),
    chain(HOIST, ORIGIN, ("MaskField$Value", {"fields": "topic,by", "replacement": "***"}), given=VALUES_AS_JSON),
    chain(HOIST, ORIGIN, ("Flatten$Value", {"delimiter": "_"}), given={"value.converter": _JSON}),
    chain(HOIST, ("HeaderFrom$Value", {"fields": "data", "headers": "copy", "operation": "copy"}), BACK),
    chain(HOIST, ORIGIN, ("ValueToKey", {"fields": "part,by"}), given={**VALUES_AS_JSON, **KEYS_AS_JSON}),
    chain(("MaskField$Value", {"fields": "x", **unless(has("c"))})),
    {"value.converter": _JSON, "header.converter": _SIMPLE},
)


def random_records(count: int, seed: int) -> Iterator[Record]:
    """Records with and without key, value and headers, of texts, numbers and other bytes; timestamps rise."""
    chance = random.Random(seed)

    def content() -> bytes | None:
        kind = chance.randrange(6)
        if kind == 0:
            return None
        if kind == 1:
            return chance.randbytes(chance.randrange(40))
        if kind == 2:
            return str(chance.randrange(1 << 33)).encode()
        return "".join(chance.choices(string.ascii_letters + ' "\\{}:,äß€', k=chance.randrange(60))).encode()

    at = 1_700_000_000_000
    for offset in range(count):
        at += chance.randrange(5_000)
        headers = [(chance.choice("abc"), content()) for _ in range(chance.choice((0, 0, 0, 1, 2, 3)))]
        yield Record(content(), content(), tuple(headers), at, offset)


def write_random(broker: LocalKafka, topic: str, partitions: int, count: int, seed: int) -> None:
    """Write random records with every codec."""
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    rows = list(random_records(count, seed))
    share = -(-count // len(codecs))
    for index, codec in enumerate(codecs):
        producer = producer_of(broker, compression__type=codec, linger__ms=20)
        for row in rows[index * share : (index + 1) * share]:
            headers: Any = list(row.headers)  # the client's annotations do not allow bytes next to None
            partition = row.offset % partitions
            producer.produce(topic, row.value, row.key, partition, timestamp=row.timestamp or 0, headers=headers)
            producer.poll(0)
        assert producer.flush(60) == 0
