"""Lines of files, without Kafka."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm2.connect.api import ConnectError, SinkRecord, SourceTaskContext, WorkerView
from mm2.connect.files import FileStreamSinkTask, FileStreamSourceConnector, FileStreamSourceTask, LineSplitter


def split(data: bytes, sizes: list[int]) -> list[tuple[bytes, int]]:
    splitter, lines, at = LineSplitter(), [], 0
    for size in [*sizes, len(data)]:
        splitter.feed(data[at : at + size])
        at += size
        while taken := splitter.take(2):
            lines += taken
    return lines


@given(st.lists(st.sampled_from([b"a", b"bc", b"\r", b"\n", b"\r\n", "ü".encode()])), st.lists(st.integers(1, 4)))
def test_lines_do_not_depend_on_how_the_bytes_are_split(parts: list[bytes], sizes: list[int]) -> None:
    data = b"".join(parts)
    lines = split(data, sizes)
    assert lines == split(data, [])
    taken = sum(size for _, size in lines)
    rest = data[taken:]
    assert b"\n" not in rest
    assert b"\r" not in rest[:-1]


def test_a_line_ends_with_lf_cr_or_both_and_a_last_cr_waits() -> None:
    assert split(b"a\nb\r\nc\rd\r", []) == [(b"a", 2), (b"b", 3), (b"c", 2)]


class Reader:
    def __init__(self, offset: dict[str, Any] | None = None) -> None:
        self.offset = offset

    def offsets(self, partitions: Iterable[Mapping[str, Any]]) -> list[dict[str, Any] | None]:
        return [self.offset for _ in partitions]


def source(file: Path, offset: dict[str, Any] | None = None, **more: str) -> FileStreamSourceTask:
    task = FileStreamSourceTask()
    view = WorkerView({}, "g", "offsets", {}, exactly_once=False)
    task.initialize(SourceTaskContext("c", 0, {}, Reader(offset), view))
    task.start({"file": str(file), "topic": "t", **{key.replace("__", "."): value for key, value in more.items()}})
    return task


def polled(task: FileStreamSourceTask) -> list[tuple[Any, Any]]:
    return [(record.value, (record.source_offset or {})["position"]) for record in task.poll() or []]


def test_positions_count_bytes_and_a_restart_continues_exactly_there(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("eins\nzwölf\nhalb")
    task = source(file)
    assert polled(task) == [("eins", 5), ("zwölf", 12)]
    with file.open("a") as growing:
        growing.write("er Satz\n")
    assert polled(task) == [("halber Satz", 24)]
    task.stop()
    again = source(file, {"position": 12})
    (record,) = again.poll() or []
    assert (record.value, record.source_partition, record.source_offset) == (
        "halber Satz",
        {"filename": str(file)},
        {"position": 24},
    )
    again.stop()


def test_at_most_one_batch_is_returned_and_the_rest_without_new_data(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("".join(f"{n}\n" for n in range(25)))
    task = source(file, batch__size="10")
    assert [len(polled(task)) for _ in range(3)] == [10, 10, 5]
    task.stop()


def test_a_missing_file_is_awaited_until_stop(tmp_path: Path) -> None:
    file = tmp_path / "f"
    task = source(file)
    threading.Timer(0.1, task.stop).start()
    assert task.poll() is None
    later = source(file)
    assert later._file is None
    file.write_text("here\n")
    assert polled(later) == [("here", 5)]
    later.stop()


def test_a_truncated_file_is_reported_and_read_again_when_it_is_long_enough(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "f"
    file.write_text("short\n")
    task = source(file, {"position": 10})
    threading.Timer(0.1, task._stopping.set).start()
    assert task.poll() is None
    assert "shorter than the stored position" in capsys.readouterr().out
    task._stopping.clear()
    file.write_text("0123456789new\n")
    assert polled(task) == [("new", 14)]
    task.stop()


def test_a_position_that_is_not_a_number_fails_the_task(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("x\n")
    with pytest.raises(ConnectError, match="incorrect type"):
        source(file, {"position": "7"}).poll()


@pytest.mark.parametrize(
    ("offset", "output"),
    [
        ({"at": 1}, "contain the key 'position'"),
        ({"position": "1"}, "expected to be a Long"),
        ({"position": True}, "expected to be a Long"),
        ({"position": -1}, "non-negative"),
    ],
)
def test_impossible_offsets_are_rejected(offset: dict[str, Any], output: str) -> None:
    connector, props = FileStreamSourceConnector(), {"file": "f", "topic": "t"}
    with pytest.raises(ConnectError, match=output):
        connector.alter_offsets(props, [({"filename": "f"}, offset)])
    with pytest.raises(ConnectError, match="should contain the key 'filename'"):
        connector.alter_offsets(props, [({"file": "f"}, {"position": 1})])
    with pytest.raises(ConnectError, match="stdin"):
        connector.alter_offsets({"topic": "t"}, [({"filename": "f"}, {"position": 1})])
    assert connector.alter_offsets(props, [({"garbage": 1}, None), ({"filename": "f"}, {"position": 1})])


def test_exactly_once_is_for_files_only() -> None:
    connector = FileStreamSourceConnector()
    assert connector.exactly_once_support({"file": "f", "topic": "t"})
    assert not connector.exactly_once_support({"topic": "t"})


def test_a_sink_writes_lines_as_java_prints_values(tmp_path: Path) -> None:
    file = tmp_path / "out"
    file.write_text("before\n")
    task = FileStreamSinkTask()
    task.start({"file": str(file)})
    values = ["ä line", None, True, 7, 1.5, {"a": [1, None]}, b"bytes"]
    task.put([SinkRecord("t", 0, None, value, n) for n, value in enumerate(values)])
    assert file.read_text() == "before\nä line\nnull\ntrue\n7\n1.5\n{a=[1, null]}\nbytes\n"
    task.stop()
    with pytest.raises(ConnectError, match="Couldn't find or create file"):
        FileStreamSinkTask().start({"file": str(tmp_path / "no" / "folder")})
