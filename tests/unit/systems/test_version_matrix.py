"""The matrix of Kafka versions in docs/reference/kafka-versions.md is the generated one, and covers all tests and versions."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.support.versions import VERSIONS, KafkaVersion
from tests.systems.version_matrix import ALWAYS, FEATURES, PAIRS, table

ROOT = Path(__file__).parents[3]


def test_the_documented_matrix_is_the_generated_one() -> None:
    assert table() in (ROOT / "docs" / "reference" / "kafka-versions.md").read_text(encoding="utf-8")


def test_the_documented_pairs_are_the_tested_ones() -> None:
    text = (ROOT / "docs" / "reference" / "kafka-versions.md").read_text(encoding="utf-8")
    assert set(re.findall(r"(\d\.\d\.\d) → (\d\.\d\.\d)", text)) == set(PAIRS)


def test_every_test_is_a_row() -> None:
    module = ast.parse((ROOT / "tests" / "systems" / "test_versions.py").read_text(encoding="utf-8"))
    tests = {node.name for node in module.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}
    assert {feature.test for feature in FEATURES} == tests


def test_every_version_is_a_source_and_every_one_since_2_8_a_target() -> None:
    assert sorted(KafkaVersion.of(source) for source, _ in PAIRS) == list(VERSIONS)
    assert {KafkaVersion.of(target) for _, target in PAIRS} == {one for one in VERSIONS if one.since(2, 8)}


def test_the_oldest_source_and_the_newest_target_are_always_tested() -> None:
    oldest, newest = map(str, (VERSIONS[0], VERSIONS[-1]))
    assert oldest in {source for source, _ in ALWAYS}
    assert newest in {target for _, target in ALWAYS}
