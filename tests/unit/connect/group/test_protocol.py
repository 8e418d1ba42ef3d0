"""Golden bytes of the embedded group protocol, recorded from Java Connect 4.3.0 (KIP-415)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm2.connect.api import ConnectError
from mm2.connect.group.protocol import (
    WorkerAssignment,
    WorkerState,
    decode_assignment,
    decode_worker_state,
    encode_assignment,
    encode_worker_state,
    offered_protocols,
)
from mm2.connect.stores.config_state import ConnectorTaskId

URL = "http://h:1/"
ASSIGN_V0 = bytes.fromhex(
    "0000 0000 0001 4c 000b 687474703a2f2f683a312f 0000000000000005 00000002 0001 63 00000002 ffffffff 00000000"
    "0001 64 00000001 00000001"
)
ASSIGN_V2 = bytes.fromhex(
    "0002 0000 0001 4c 000b 687474703a2f2f683a312f 0000000000000005 00000002 0001 63 00000002 ffffffff 00000000"
    "0001 64 00000001 00000001 00000001 0001 64 00000002 ffffffff 00000000 00000007"
)
EMPTY_V2 = bytes.fromhex("0002 0000 0001 4c 000b 687474703a2f2f683a312f 0000000000000005 00000000 00000000 00000000")
FULL = WorkerAssignment(
    0,
    "L",
    URL,
    5,
    ("c",),
    (ConnectorTaskId("c", 0), ConnectorTaskId("d", 1)),
    ("d",),
    (ConnectorTaskId("d", 0),),
    7,
)
META = {
    "default": "0000 000b 687474703a2f2f683a312f 0000000000000005",
    "compatible": "0001 000b 687474703a2f2f683a312f 0000000000000005 ffffffff",
    "sessioned": "0002 000b 687474703a2f2f683a312f 0000000000000005 ffffffff",
}


@pytest.mark.parametrize("protocol", META)
def test_worker_state_without_allocation(protocol: str) -> None:
    assert encode_worker_state(WorkerState(URL, 5), protocol) == bytes.fromhex(META[protocol])
    assert decode_worker_state(bytes.fromhex(META[protocol])) == WorkerState(URL, 5)


def test_worker_state_with_allocation() -> None:
    golden = bytes.fromhex("0002 000b 687474703a2f2f683a312f 0000000000000005 00000051") + ASSIGN_V2
    assert encode_worker_state(WorkerState(URL, 5, FULL), "sessioned") == golden
    assert decode_worker_state(golden) == WorkerState(URL, 5, FULL)


def test_assignments() -> None:
    assert encode_assignment(FULL, 0) == ASSIGN_V0
    assert encode_assignment(FULL, 2) == ASSIGN_V2
    assert encode_assignment(WorkerAssignment(0, "L", URL, 5), 2) == EMPTY_V2
    assert decode_assignment(ASSIGN_V2) == FULL
    assert decode_assignment(ASSIGN_V0).revoked_connectors == ()


def test_null_arrays_are_read_as_empty() -> None:
    head = bytes.fromhex("0001 0000 0001 4c 0001 75 0000000000000005 ffffffff ffffffff 00000000")
    assert decode_assignment(head).tasks == ()


@pytest.mark.parametrize("data", [b"", b"\xff\xff", ASSIGN_V2[:-1], ASSIGN_V2[:20]])
def test_malformed_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ConnectError, match="Malformed"):
        decode_assignment(data)


work = st.lists(
    st.tuples(st.text(max_size=5), st.integers(0, 2**31 - 1)).map(lambda t: ConnectorTaskId(*t)), unique=True
)


@given(work, work, st.integers(0, 2**31 - 1))
def test_round_trip(tasks: list[ConnectorTaskId], gone: list[ConnectorTaskId], delay: int) -> None:
    assignment = WorkerAssignment(0, "m", "ü", 2**40, (), tuple(sorted(tasks)), ("x",), tuple(sorted(gone)), delay)
    back = decode_assignment(encode_assignment(assignment, 2))
    assert (set(back.tasks), set(back.revoked_tasks), back.delay_ms) == (set(tasks), set(gone), delay)


def test_offers_by_setting() -> None:
    assert offered_protocols("sessioned") == ("sessioned", "compatible", "default")
    assert offered_protocols("eager") == ("default",)
    with pytest.raises(ConnectError, match=r"connect\.protocol"):
        offered_protocols("x")
