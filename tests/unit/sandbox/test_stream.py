import itertools
import json

from mm2.sandbox.stream import TOPICS, StreamTopic, records_of

_NOW_MS = 1_700_000_000_000


def _take(
    topic: StreamTopic, count: int
) -> list[tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]]:
    stream = itertools.islice(records_of(topic, 1, lambda: _NOW_MS), count)
    return [(record.key, record.value, record.headers) for record in stream]


def test_the_same_seed_writes_the_same_stream() -> None:
    for topic in TOPICS:
        assert _take(topic, 50) == _take(topic, 50)


def test_the_stream_contains_edge_cases_of_replication() -> None:
    records = {topic.name: _take(topic, 400) for topic in TOPICS}
    orders, clicks, customers = records["orders"], records["clicks"], records["customers"]
    assert any(value is None and key for key, value, _ in customers), "tombstones"
    assert any(key == b"" and value == b"" for key, value, _ in customers), "empty is not null"
    assert any(key is None for key, _, _ in clicks), "no keys"
    assert any(len({name for name, _ in headers}) < len(headers) for _, _, headers in orders), "repeated headers"
    assert any(content is None for _, _, headers in orders for _, content in headers), "null headers"
    assert max(len(value or b"") for _, value, _ in records["invoices"]) > 100_000, "large bodies"
    assert all(json.loads(value or b"{}") for _, value, _ in orders + clicks)


def test_shares_add_up() -> None:
    assert sum(topic.share for topic in TOPICS) == 1.0
