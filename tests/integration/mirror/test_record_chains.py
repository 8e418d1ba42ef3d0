"""Thirty chains of transformations, predicates and converters make of copied records what Kafka's classes make of them."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mm2.copy.spec import PartitionSpec
from mm2.kafka.records.record import Record
from mm2.mirror.source.record_chain import RecordChain
from mm2.mirror.source.record_changes import changes_spec
from tests.integration.java_source import run_source
from tests.integration.record_chains import CHAINS, random_records
from tests.support.waiting import PATIENCE

_ORACLE = Path(__file__).parents[1] / "java" / "ChainOracle.java"
_PART = PartitionSpec("orders-changed", 3, "east.orders-changed")
_TOLERANT = {"errors.tolerance": "all"}


def text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def row_of(record: Record, topic: str) -> dict[str, Any]:
    return {
        "key": text(record.key),
        "value": text(record.value),
        "headers": [[name, text(content)] for name, content in record.headers],
        "topic": topic,
        "partition": _PART.partition,
        "timestamp": record.timestamp,
    }


def ours(chain: Mapping[str, str], records: list[Record]) -> list[Any]:
    spec = changes_spec({"source.cluster.alias": "east", **_TOLERANT, **chain}, {}, connector="C", task=0)
    assert spec is not None
    with RecordChain(spec.settings) as built:
        changed = [built.apply(_PART, record) for record in records]
    return [one if isinstance(one, str) else row_of(one, _PART.remote_topic) for one in changed]


@pytest.mark.timeout(int(300 * PATIENCE))
@pytest.mark.parametrize("count", [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_each_chain_makes_what_java_makes(tmp_path: Path, count: int) -> None:
    """Key, value, headers, topic, partition and timestamp of every record, or whether it is dropped or fails. The records
    are made by Java's MirrorSourceTask.
    """
    records = list(random_records(count, seed=count))
    chains, given, answers = (tmp_path / name for name in ("chains", "records", "answers"))
    chains.write_text("".join(json.dumps(chain) + "\n" for chain in CHAINS))
    rows = [{**row_of(record, _PART.topic), "offset": record.offset} for record in records]
    given.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run_source(_ORACLE, str(chains), str(given), str(answers), "east")
    lines = [json.loads(line) for line in answers.read_text().splitlines()]
    assert len(lines) == len(CHAINS) * count
    outcomes = set()
    for index, chain in enumerate(CHAINS):
        wanted, got = lines[index * count : (index + 1) * count], ours(chain, records)
        different = next(
            ((at, *pair) for at, pair in enumerate(zip(wanted, got, strict=True)) if pair[0] != pair[1]), None
        )
        assert different is None, f"chain {index} {chain}: {different}"
        outcomes |= {one if isinstance(one, str) else "copied" for one in got}
    assert outcomes == {"copied", "filtered", "skipped"}
