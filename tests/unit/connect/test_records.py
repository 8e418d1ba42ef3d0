from dataclasses import FrozenInstanceError, dataclass

import pytest

import mm2.connect.api
from mm2.connect.api import Header, Headers, SinkRecord, SourceRecord


def test_all_names_of_the_plugin_api_exist() -> None:
    assert [name for name in mm2.connect.api.__all__ if not hasattr(mm2.connect.api, name)] == []


def test_headers_keep_order_and_repetitions() -> None:
    headers = Headers.of([("a", 1), ("b", 2)]).with_header("a", 3)
    assert [header.value for header in headers.all_with_name("a")] == [1, 3]
    assert headers.last_with_name("a") == Header("a", 3)
    assert headers.last_with_name("c") is None
    assert headers.without("a") == (Header("b", 2),)
    assert headers.apply(lambda header: header._replace(value=0) if header.key == "b" else None) == (Header("b", 0),)


def test_headers_can_be_given_as_pairs() -> None:
    record = SourceRecord({}, {}, "t", None, None, None, headers=[("h", 1)])
    assert record.headers == Headers.of([("h", 1)])


def test_a_sink_record_has_its_original_topic_partition_and_offset() -> None:
    record = SinkRecord("t", 1, None, None, 5).new_record(topic="other", partition=2)
    assert (record.topic, record.original_topic, record.original_kafka_partition) == ("other", "t", 1)
    assert record.original_kafka_offset == 5


def test_source_records_are_immutable_and_can_be_derived_from() -> None:
    @dataclass(frozen=True)
    class Numbered(SourceRecord):
        number: int = 0

    record = SourceRecord({"p": 1}, {"o": 2}, "t", None, "k", "v", timestamp=5)
    assert record == SourceRecord({"p": 1}, {"o": 2}, "t", None, "k", "v", timestamp=5) != record.new_record(topic="u")
    with pytest.raises(FrozenInstanceError):
        record.topic = "u"  # type: ignore[misc]
    assert record.new_record(headers=[("h", 1)]).headers == Headers.of([("h", 1)])
    assert (record.headers, record.new_record(key=None).key, record.key) == (Headers(), None, "k")
    with pytest.raises(TypeError, match="nothing_like_it"):
        record.new_record(nothing_like_it=1)
    numbered = Numbered({}, {}, "t", None, None, None, [("h", 1)], number=7)  # type: ignore[arg-type]
    assert numbered.new_record(value="v") == Numbered({}, {}, "t", None, None, "v", Headers.of([("h", 1)]), number=7)
