import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm2.mirror.common.formats import Checkpoint, FormatError, Heartbeat, OffsetSync

# Bytes of Kafka 4.3.0's classes Heartbeat, Checkpoint and OffsetSync.
HEARTBEAT = Heartbeat("A", "B", 1700000000000)
CHECKPOINT = Checkpoint("g1", "A.t", 3, 100, 57, "")
SYNC = OffsetSync("t", 3, 100, 57)


def test_heartbeat_bytes() -> None:
    assert HEARTBEAT.key().hex() == "000141000142"
    assert HEARTBEAT.value().hex() == "00000000018bcfe56800"
    assert Heartbeat.decode(HEARTBEAT.key(), HEARTBEAT.value()) == HEARTBEAT


def test_checkpoint_bytes() -> None:
    assert CHECKPOINT.key().hex() == "000267310003412e7400000003"
    assert CHECKPOINT.value().hex() == "0000000000000000006400000000000000390000"
    assert Checkpoint.decode(CHECKPOINT.key(), CHECKPOINT.value()) == CHECKPOINT


def test_offset_sync_bytes() -> None:
    assert SYNC.key().hex() == "00017400000003"
    assert SYNC.value().hex() == "00000000000000640000000000000039"
    assert OffsetSync.decode(SYNC.key(), SYNC.value()) == SYNC


def test_console_texts() -> None:
    assert str(HEARTBEAT) == "Heartbeat{sourceClusterAlias=A, targetClusterAlias=B, timestamp=1700000000000}"
    assert str(CHECKPOINT) == (
        "Checkpoint{consumerGroupId=g1, topicPartition=A.t-3, upstreamOffset=100, downstreamOffset=57, metadata=}"
    )
    assert str(SYNC) == "OffsetSync{topicPartition=t-3, upstreamOffset=100, downstreamOffset=57}"


def test_connect_partitions_keep_javas_field_order() -> None:
    assert list(HEARTBEAT.connect_partition()) == ["sourceClusterAlias", "targetClusterAlias"]
    assert list(CHECKPOINT.connect_partition()) == ["partition", "topic", "group"]


def test_trailing_bytes_are_not_checked() -> None:
    assert OffsetSync.decode(SYNC.key() + b"x", SYNC.value() + b"y") == SYNC


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, SYNC.value()),
        (SYNC.key(), None),
        (SYNC.key()[:-1], SYNC.value()),
        (SYNC.key(), SYNC.value()[:-1]),
        (b"\xff\xff", SYNC.value()),
        (b"\x00\x09t", SYNC.value()),
        (b"\x00\x01\xff\x00\x00\x00\x03", SYNC.value()),
        (b"", b""),
    ],
)
def test_malformed_syncs_are_refused(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(FormatError):
        OffsetSync.decode(key, value)


def test_other_versions_are_refused() -> None:
    with pytest.raises(FormatError, match="version 1"):
        Heartbeat.decode(HEARTBEAT.key(), b"\x00\x01" + HEARTBEAT.value()[2:])
    with pytest.raises(FormatError, match="version 1"):
        Checkpoint.decode(CHECKPOINT.key(), b"\x00\x01" + CHECKPOINT.value()[2:])


def test_a_string_too_long_for_its_length_field_is_refused() -> None:
    with pytest.raises(FormatError, match="32768 bytes"):
        Checkpoint("g" * 32768, "t", 0, 0, 0).key()


INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@given(TEXT, TEXT, st.integers(0, 2**31 - 1), INT64, INT64, TEXT)
def test_checkpoints_survive_the_round_trip(
    group: str, topic: str, partition: int, upstream: int, downstream: int, metadata: str
) -> None:
    checkpoint = Checkpoint(group, topic, partition, upstream, downstream, metadata)
    assert Checkpoint.decode(checkpoint.key(), checkpoint.value()) == checkpoint
