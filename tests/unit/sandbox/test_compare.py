import pytest

from mm2.kafka.records.record import Record
from mm2.sandbox.compare import differ

_RECORD = Record(b"k", b"v", (("a", b"1"), ("a", None)), 1_700_000_000_000, offset=7)


def test_offsets_need_not_be_equal() -> None:
    other = Record(_RECORD.key, _RECORD.value, _RECORD.headers, _RECORD.timestamp, offset=90)
    assert differ(0, 0, _RECORD, other) is None


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (
            Record(None, b"v", _RECORD.headers, _RECORD.timestamp),
            "the key is b'k' on the source and None on the target",
        ),
        (Record(b"", b"v", _RECORD.headers, _RECORD.timestamp), "the key is b'k' on the source and b'' on the target"),
        (Record(b"k", None, _RECORD.headers, _RECORD.timestamp), "the value is b'v' on the source and None"),
        (Record(b"k", b"v", (("a", None), ("a", b"1")), _RECORD.timestamp), "the headers is"),
        (Record(b"k", b"v", _RECORD.headers, 1_700_000_000_001), "the timestamp is 1700000000000 on the source"),
    ],
)
def test_the_first_difference_is_reported(other: Record, what: str) -> None:
    difference = differ(3, 41, _RECORD, other)
    assert str(difference).startswith(f"partition 3, record 41: {what}")


def test_extra_and_missing_records_are_reported() -> None:
    assert "is offset 7, key b'k' on the source and missing on the target" in str(differ(0, 0, _RECORD, None))
    assert "is missing on the source and offset 7" in str(differ(0, 0, None, _RECORD))


def test_long_values_are_shortened() -> None:
    difference = differ(0, 0, Record(value=b"x" * 1000, timestamp=0), Record(value=b"y" * 1000, timestamp=0))
    assert "(1000 bytes)" in str(difference)
    assert len(str(difference)) < 300
