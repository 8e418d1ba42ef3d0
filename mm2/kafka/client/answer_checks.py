"""Limits and checks of answers that kafka-python decodes into objects, for what its decoder accepts and a broker never sends.

A broker may be malicious, or another program that listens at its port.

Decoded objects take up to a hundred times the memory of the answer, so the limits are near the largest answers of real
clusters, and far below those of raw Fetch answers, whose records are not decoded.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any, Final

from kafka.protocol.schemas.fields.codecs.tagged_fields import TaggedFields
from kafka.protocol.schemas.fields.codecs.types import UnsignedVarInt32

from mm2.kafka.errors import CorruptBatch, UnreadableAnswer
from mm2.kafka.records.batch import LAST_BASE_OFFSET
from mm2.kafka.structs import ProducerIdentity
from mm2.kafka.wire.primitives import MOST_TAGS

_MIB: Final = 1 << 20
#: Before the broker is authenticated, and of any size that a token or a certificate has.
_HANDSHAKE_BYTES: Final = _MIB
#: A hundred thousand groups or ACLs, the configs of thousands of topics.
_USUAL_BYTES: Final = 8 * _MIB
#: Partitions take about 100 bytes each: 300,000 of them. Members of a group may send what they subscribe to.
_LARGE_BYTES: Final = 32 * _MIB
_HANDSHAKES: Final = frozenset({"ApiVersions", "SaslHandshake", "SaslAuthenticate"})
_LARGE: Final = frozenset(
    {"Metadata", "DescribeTopicPartitions", "ListOffsets", "OffsetFetch", "JoinGroup", "SyncGroup", "DescribeGroups"}
)
# An integer of variable length ends with its first byte below 0x80. kafka-python reads one of any length, in time that
# grows with the square. Text of a language without ASCII has such runs, but none that long. Only the start of a run is
# tried: a search from each of its bytes would take minutes for an answer full of runs of 4095 bytes.
_ENDLESS_INTEGER: Final = re.compile(rb"(?<![\x80-\xff])[\x80-\xff]{4096}")
_ENDLESS_BYTES: Final = 4096
#: So many of the bytes at multiples of `_SAMPLED` are in each such run. To search only these takes a fiftieth of the time.
_SAMPLED: Final = 64
_ENDLESS_SAMPLE: Final = re.compile(rb"[\x80-\xff]{%d}" % (_ENDLESS_BYTES // _SAMPLED))
#: For each structure with tagged fields, kafka-python copies the rest of the answer: a million of them in 32 MB took hours. Answers of
#: brokers have a handful of such structures.
_COPIED_BYTES: Final = 1 << 30
_ANY: Final = (1 << 63) - 1


class _Copies(threading.local):
    """What the decoder may still copy for the answer that this thread decodes; None: it decodes none."""

    left: int | None = None


_COPIES: Final = _Copies()


def largest_answer(api: str) -> int:
    """The largest size in bytes of an answer to this request, e.g. "Metadata"."""
    if api in _HANDSHAKES:
        return _HANDSHAKE_BYTES
    return _LARGE_BYTES if api in _LARGE else _USUAL_BYTES


def check_frame(frame: memoryview) -> None:
    """Raise CorruptBatch if decoding an answer could take forever."""
    if len(frame) < _ENDLESS_BYTES or not _ENDLESS_SAMPLE.search(bytes(frame[::_SAMPLED])):
        return
    if _ENDLESS_INTEGER.search(frame):
        message = f"an answer of {len(frame)} bytes has an integer of more than 4096 bytes"
        raise CorruptBatch(message)


def decode(body: memoryview, response_class: Any) -> Any:
    """The answer as an object. Raises CorruptBatch for too many tagged fields, and what kafka-python raises."""
    _COPIES.left = _COPIED_BYTES
    try:
        return response_class.decode(body)
    finally:
        _COPIES.left = None


def _limited(decode_fields: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(decode_fields)
    def limited(fields: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        if _COPIES.left is not None and isinstance(data, BytesIO):
            _COPIES.left -= data.getbuffer().nbytes
            if _COPIES.left < 0:
                message = "an answer has tagged fields in too many structures"
                raise CorruptBatch(message)
            at = data.tell()
            if (count := UnsignedVarInt32.decode(data)) > MOST_TAGS:
                message = f"a structure of an answer has {count} tagged fields"
                raise CorruptBatch(message)
            data.seek(at)
        return decode_fields(fields, data, *args, **kwargs)

    return limited


# There is no other place to count: the code that copies is generated.
TaggedFields.decode = _limited(TaggedFields.decode)


def only(items: Sequence[Any], what: str) -> Any:
    """The part of an answer to a question about one thing. Raises UnreadableAnswer if there is none, or more than one."""
    return exactly(1, items, what)[0]


def exactly(count: int, items: Sequence[Any], what: str) -> Sequence[Any]:
    """The parts of an answer to a question about so many things. Raises UnreadableAnswer if it has another number of parts."""
    if len(items) != count:
        message = f"an answer about {count} {what} has {len(items)} of them"
        raise UnreadableAnswer(message)
    return items


def producer_of(answer: Any) -> ProducerIdentity:
    """The producer that the coordinator has given. Raises UnreadableAnswer: a negative id would make batches that are not idempotent."""
    if answer.producer_id < 0 or answer.producer_epoch < 0:
        message = f"an answer has producer id {answer.producer_id} and producer epoch {answer.producer_epoch}"
        raise UnreadableAnswer(message)
    return ProducerIdentity(answer.producer_id, answer.producer_epoch)


def check_fields(answer: Any) -> None:
    """Raise CorruptBatch for a null string or array that the protocol does not allow to be null, and for an offset or producer
    that does not exist.

    The decoder returns None for any negative length, and callers rely on the schema. -1 stands for no offset.
    """
    key = answer.API_KEY, answer.API_VERSION
    checks = _CHECKS.get(key)
    if checks is None:
        checks = _CHECKS[key] = _checks_of(answer._struct, answer.API_VERSION)  # noqa: SLF001
    _check_fields(answer, *checks)


#: Names of the fields of a structure that are never null, of its numbers, and of its arrays of structures with their own.
_Checks = tuple[tuple[str, ...], tuple[tuple[str, int], ...], tuple[tuple[str, Any], ...]]
#: Numbers that brokers give, and the largest of each. Clients may commit any offset and write with any producer id.
_LARGEST: Final = {
    **dict.fromkeys(("offset", "end_offset", "base_offset", "current_txn_start_offset"), LAST_BASE_OFFSET),
    **dict.fromkeys(("producer_id", "producer_epoch", "leader_epoch"), _ANY),
}


_CHECKS: Final[dict[tuple[int, int], _Checks]] = {}


def _checks_of(struct: Any, version: int) -> _Checks:
    fields: list[str] = []
    numbers: list[tuple[str, int]] = []
    arrays: list[tuple[str, _Checks]] = []
    for field in struct._fields:
        if not _has(field._versions, version) or _has(field._tagged_versions, version):  # noqa: SLF001
            continue
        inner = getattr(field, "array_of", None)
        has_length = inner is not None or field._type_str in {"string", "bytes"}  # noqa: SLF001
        if has_length and not _has(field._nullable_versions, version):  # noqa: SLF001
            fields.append(field.name)
        elif field.name in _LARGEST:
            numbers.append((field.name, _LARGEST[field.name]))
        if getattr(inner, "_fields", None):
            arrays.append((field.name, _checks_of(inner, version)))
    return tuple(fields), tuple(numbers), tuple(arrays)


def _has(versions: tuple[int, int] | None, version: int) -> bool:
    return versions is not None and versions[0] <= version <= versions[1]


def _check_fields(
    item: Any, fields: tuple[str, ...], numbers: tuple[tuple[str, int], ...], arrays: tuple[tuple[str, Any], ...]
) -> None:
    for name in fields:
        if getattr(item, name) is None:
            message = f"{name} is null"
            raise CorruptBatch(message)
    for name, largest in numbers:
        if not -1 <= getattr(item, name) <= largest:
            message = f"{name} is {getattr(item, name)}"
            raise CorruptBatch(message)
    for name, inner in arrays:
        if any(inner):
            for one in getattr(item, name) or ():
                _check_fields(one, *inner)
