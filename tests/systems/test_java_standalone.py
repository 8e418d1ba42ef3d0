"""Java's standalone worker and ours on one offset file, one after the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from mm2.connect.stores.offset_store import FileOffsetStore, load_map
from mm2.sandbox.kafka import LocalKafka
from tests.integration.copy_flow import create, read
from tests.support.waiting import wait_until
from tests.systems.workers import JavaStandaloneWorker

LINES = [f"line {number} of a file" for number in range(6)]


def java(folder: Path, broker: LocalKafka, source: Path, topic: str) -> JavaStandaloneWorker:
    connector = folder / "source.properties"
    connector.write_text(f"name=src\nconnector.class=FileStreamSource\nfile={source}\ntopic={topic}\n")
    return JavaStandaloneWorker(folder, {"bootstrap.servers": broker.bootstrap}, [connector])


@pytest.mark.timeout(240)
@pytest.mark.slow
def test_a15_the_offset_file_has_java_s_format(broker: LocalKafka, unique: str, folder: Path) -> None:
    create(broker, unique)
    source = folder / "source.txt"
    source.write_text("".join(f"{line}\n" for line in LINES[:4]))
    at_end = source.stat().st_size
    with java(folder, broker, source, unique) as worker:
        wait_until(lambda: len(read(broker, unique)) == 4, 60, detail=worker.tail)
        wait_until(lambda: worker.rest.offsets("src") != [], 60, detail=worker.tail)
        worker.stop()
    file = folder / "offsets"
    key = b'["src",{"filename":"%s"}]' % str(source).encode()
    assert load_map(file.read_bytes()) == {key: b'{"position":%d}' % at_end}

    ours = FileOffsetStore(file)
    ours.start()
    assert ours.all_offsets("src", 1) == [({"filename": str(source)}, {"position": at_end})]
    two_lines = sum(len(line) + 1 for line in LINES[:2])
    ours.write("src", [({"filename": str(source)}, {"position": two_lines})], 1)
    ours.write("another", [({"filename": f"{number}.txt"}, {"position": number}) for number in range(40)], 1)
    with source.open("a") as growing:
        growing.writelines(f"{line}\n" for line in LINES[4:])

    with java(folder, broker, source, unique) as worker:
        wait_until(lambda: len(read(broker, unique)) == 8, 60, detail=worker.tail)
        wait_until(
            lambda: worker.rest.offsets("src")[0]["offset"] == {"position": source.stat().st_size},
            60,
            detail=worker.tail,
        )
        worker.stop()
    assert [record.value.decode() for record in read(broker, unique) if record.value] == LINES[:4] + LINES[2:]
    again = FileOffsetStore(file)
    again.start()
    assert again.all_offsets("src", 1) == [({"filename": str(source)}, {"position": source.stat().st_size})]
    assert len(again.all_offsets("another", 1)) == 40
