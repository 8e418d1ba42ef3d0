from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm2.config.configdef import ConfigException
from mm2.kafka.structs import TopicPartition
from mm2.mirror.source.start_from import StartFrom, parse_start_from

WANTED = {TopicPartition("orders", 0): 41, TopicPartition("orders", 1): 0, TopicPartition("a.b-c_d", 12): 2**40}


def from_file(tmp_path: Path, content: str, source_alias: str | None = None) -> StartFrom:
    file = tmp_path / "offsets"
    file.write_text(content, encoding="utf-8")
    return parse_start_from(f"file:{file}", source_alias=source_alias)


def complaint(tmp_path: Path, content: str, source_alias: str | None = None) -> str:
    with pytest.raises(ConfigException) as caught:
        from_file(tmp_path, content, source_alias)
    assert caught.value.name == "start.from"
    assert caught.value.reason is not None
    return caught.value.reason.replace(f" of {tmp_path / 'offsets'}", "")


def test_an_empty_value_has_no_start_position() -> None:
    assert parse_start_from("") == StartFrom(None, {}) == parse_start_from("  ")


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("0", 0),
        ("1700000000000", 1_700_000_000_000),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000),
        ("2023-11-14T22:13:20.123", 1_700_000_000_123),  # without an offset from UTC it is UTC
        ("2023-11-14T23:13:20.5+01:00", 1_700_000_000_500),
        ("2023-11-15T03:43:20+0530", 1_700_000_000_000),
        (" 2023-11-14 ", 1_699_920_000_000),
        ("1970-01-01T01:00:00+01:00", 0),
    ],
)
def test_a_point_in_time(text: str, milliseconds: int) -> None:
    assert parse_start_from(text) == StartFrom(timestamp_ms=milliseconds)


def test_a_time_without_an_offset_is_utc_on_every_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        assert parse_start_from("2023-11-14T22:13:20").timestamp_ms == 1_700_000_000_000
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    "text", ["yesterday", "-1", "1.5", "earliest", "2023-13-01", "9" * 20, "0x10", "file", "file:"]
)
def test_a_value_that_is_neither_time_nor_file_is_rejected_in_one_sentence(text: str) -> None:
    with pytest.raises(ConfigException, match=r"^Invalid value .* for configuration start\.from: [^\n]+$"):
        parse_start_from(text)


def test_times_before_1970_are_rejected() -> None:
    with pytest.raises(ConfigException, match="before 1970"):
        parse_start_from("1969-12-31T23:59:59Z")


def test_lines_of_a_table(tmp_path: Path) -> None:
    plain = "orders,0,41\norders,1,0\na.b-c_d,12,1099511627776\n"
    # With quotes, like the output of kafka-consumer-groups --reset-offsets --export.
    exported = '"orders",0,41\n"orders",1,0\n"a.b-c_d",12,1099511627776\n'
    dressed = (
        "# offsets of the old cluster\r\n\r\nTopic, Partition, Offset\r\n"
        "orders, 0, 41\r\n orders ,1,0\r\n\r\n# more\r\na.b-c_d, 12 ,1099511627776"
    )
    for content in (plain, exported, dressed, "\ufeff" + plain):
        assert from_file(tmp_path, content).offsets == WANTED
    assert from_file(tmp_path, "").offsets == {}


def flat() -> list[dict[str, object]]:
    return [{"topic": tp.topic, "partition": tp.partition, "offset": offset} for tp, offset in WANTED.items()]


def connect() -> list[dict[str, object]]:
    """In the format of GET /connectors/MirrorSourceConnector/offsets: the last copied offset."""
    return [
        {"partition": {"cluster": "A", "partition": tp.partition, "topic": tp.topic}, "offset": {"offset": offset - 1}}
        for tp, offset in WANTED.items()
        if offset
    ] + [{"partition": {"cluster": "A", "partition": 9, "topic": "orders"}, "offset": None}]


@pytest.mark.parametrize("indent", [None, 2])
def test_a_list_of_objects(tmp_path: Path, indent: int | None) -> None:
    assert from_file(tmp_path, json.dumps(flat(), indent=indent)).offsets == WANTED
    assert from_file(tmp_path, " [ ] ").offsets == {}


@pytest.mark.parametrize("indent", [None, 2])
def test_copying_starts_after_the_offsets_in_connect_s_response(tmp_path: Path, indent: int | None) -> None:
    known = {tp: offset for tp, offset in WANTED.items() if offset}
    assert from_file(tmp_path, json.dumps({"offsets": connect()}, indent=indent), "A").offsets == known
    assert from_file(tmp_path, json.dumps(connect(), indent=indent)).offsets == known


def listed(*connectors: str) -> str:
    """The output of mm2 offsets list --json for a topic with rows of these connectors."""
    rows: list[dict[str, object]] = [
        {"connector": connector, "configured": "STARTED", **row, "key": "[…]", "written_ms": 1, "log": {"partition": 3}}
        for connector in connectors
        for row in connect()
    ]
    others = [
        {"sourceClusterAlias": "A", "targetClusterAlias": "B"},
        {"group": "g", "topic": "orders", "partition": 0},
        {"filename": "test.txt"},
        None,
    ]
    rows[1:1] = [{"connector": partition and "other", "partition": partition, "offset": {}} for partition in others]
    return json.dumps({"topic": "mm2-offsets.A.internal", "offsets": rows}, indent=2)


def test_the_output_of_mm2_offsets_list_is_accepted_and_rows_of_other_connectors_are_ignored(tmp_path: Path) -> None:
    known = {tp: offset for tp, offset in WANTED.items() if offset}
    assert from_file(tmp_path, listed("MirrorSourceConnector"), "A").offsets == known
    shared = json.loads(listed("A->B.MirrorSourceConnector"))
    shared["offsets"] += [
        {**row, "connector": "C->B.MirrorSourceConnector", "partition": {**row["partition"], "cluster": "C"}}
        for row in shared["offsets"]
        if row["partition"] and "cluster" in row["partition"]
    ]
    assert from_file(tmp_path, json.dumps(shared), "A").offsets == known
    assert from_file(tmp_path, json.dumps(shared), "C").offsets == known
    assert from_file(tmp_path, '{"topic": "mm2-offsets.A.internal", "offsets": []}', "A").offsets == {}


def test_a_list_with_positions_of_other_clusters_only_is_rejected(tmp_path: Path) -> None:
    # Every partition would start from the beginning.
    output = complaint(tmp_path, listed("MirrorSourceConnector"), "C")
    assert output == f"{tmp_path / 'offsets'} has no position of cluster C, only of A"


def test_a_partition_that_two_connectors_list_is_rejected(tmp_path: Path) -> None:
    assert "is listed twice" in complaint(tmp_path, listed("MirrorSourceConnector", "mirror"), "A")


def test_a_last_copied_offset_of_minus_one_is_the_start(tmp_path: Path) -> None:
    """Exactly-once mode writes it for a topic that was recreated, and mm2 failback for an empty copy."""
    row = {"partition": {"cluster": "A", "partition": 0, "topic": "t"}, "offset": {"offset": -1}}
    assert from_file(tmp_path, json.dumps({"offsets": [row]}), "A").offsets == {TopicPartition("t", 0): 0}
    row["offset"] = {"offset": -2}
    assert complaint(tmp_path, json.dumps({"offsets": [row]}), "A") == "line 1: -2 is not an offset"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("t,0,1\nt,1\n", "line 2: 2 columns instead of topic,partition,offset"),
        ("g,t,0,1\n", "line 1: 4 columns instead of topic,partition,offset"),
        ("\n\nt,0,x\n", "line 3: 'x' is not an offset"),
        ("t,0,-1\n", "line 1: '-1' is not an offset"),
        ("t,zero,1\n", "line 1: 'zero' is not a partition number"),
        ("t,2147483648,1\n", "line 1: 2147483648 is not a partition number"),
        ("a/b,0,1\n", "line 1: 'a/b' is not a topic name"),
        ("t,0,1\ntopic,partition,offset\n", "line 2: 'partition' is not a partition number"),
        ("t,0,1\nu,0,1\nt,0,2\n", "line 3: t-0 is listed twice"),
        ("[\n{}\n]", "line 2: {} is not"),
        ('[{"topic":"t","partition":0,"offset":1},\n{"topic":"t","partition":1,"offset":true}]', "line 2: True is no"),
        ('[{"topic":"t","partition":0,"offset":1}\n{"topic":"t"}]', "line 2: not JSON: a comma"),
        ('[\n{"topic":"t",\n"partition":0,\n"offset":1]', "line 4: not JSON"),
        ('[\n{"topic":"t","partition":0,"offset":1}\n', "line 3: not JSON: a comma or the end of the list is missing"),
        ('[{"topic":"t","partition":0,"offset":1}]\nmore', "line 1: not JSON: something follows"),
        ('{"topic":"t","partition":0,"offset":1}', "line 1: neither a list of"),
        ('{"offsets":[{"partition":{"topic":"t","partition":0},"offset":{}}]}', "line 1: '' is not an offset"),
        ('{"offsets":[{"partition":{"topic":"t","partition":0},"offset":7}]}', "line 1: "),
        ("[" * 100_000, "line 1: not JSON"),
    ],
)
def test_a_bad_line_is_reported_in_one_sentence(tmp_path: Path, content: str, reason: str) -> None:
    output = complaint(tmp_path, content)
    assert output.startswith(reason)
    assert "\n" not in output


def test_positions_of_another_cluster_are_rejected(tmp_path: Path) -> None:
    output = complaint(tmp_path, json.dumps({"offsets": connect()}), "C")
    assert output == "line 1: orders-0 is of cluster 'A', but the flow copies from C"


def test_an_unreadable_positions_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigException, match=f"{tmp_path}/nowhere cannot be read: No such file or directory"):
        parse_start_from(f"file:{tmp_path}/nowhere")
    (tmp_path / "binary").write_bytes(b"t,0,1\n\xff\xfe")
    with pytest.raises(ConfigException, match="binary is not UTF-8 text"):
        parse_start_from(f"file:{tmp_path}/binary")


def test_a_file_without_an_end_and_one_that_is_too_large_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/zero", tmp_path / "pipe"):
        with pytest.raises(ConfigException, match=f"{path} is not a regular file"):
            parse_start_from(f"file:{path}")
    with pytest.raises(ConfigException, match="cannot be read: Is a directory"):
        parse_start_from(f"file:{tmp_path}")
    with pytest.raises(ConfigException, match=r"'a\\x00b' is not a path"):
        parse_start_from("file:a\0b")
    assert from_file(tmp_path, "t,0,1\n").offsets
    monkeypatch.setattr("mm2.mirror.source.start_from._MOST_BYTES", 5)
    assert complaint(tmp_path, "t,0,1\n") == f"{tmp_path / 'offsets'} is larger than 5 bytes"


@given(content=st.text() | st.text(alphabet='[]{}",:0123456789topicarnsfe \n'))
def test_any_text_returns_offsets_or_one_sentence(tmp_path_factory: pytest.TempPathFactory, content: str) -> None:
    file = tmp_path_factory.getbasetemp() / "any"
    file.write_text(content, encoding="utf-8", errors="surrogatepass")
    try:
        found = parse_start_from(f"file:{file}")
    except ConfigException as error:
        assert error.reason  # noqa: PT017 - either outcome is right
    else:
        assert all(0 <= offset < 2**63 and tp.topic for tp, offset in found.offsets.items())


def test_a_long_list_is_read_in_reasonable_time(tmp_path: Path) -> None:
    many = [{"topic": "t", "partition": p, "offset": p} for p in range(20_000)]
    begun = time.process_time()  # CPU time of this process: the machine may be busy
    assert len(from_file(tmp_path, json.dumps(many, indent=1)).offsets) == len(many)
    assert time.process_time() - begun < 60
